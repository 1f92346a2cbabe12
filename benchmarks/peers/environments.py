"""Cached virtual environments for peers that pin other versions of shared packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.tpch import cache_folder


def python_with(name: str, *requirements: str) -> str:
    """
    Return the interpreter of an environment.

    :param name: Name of the environment, another one for other requirements.
    :param requirements: Packages to install.
    """
    target = cache_folder() / name
    python = target / "bin" / "python"
    ready = target / "ready"
    if not ready.exists():
        shutil.rmtree(target, ignore_errors=True)
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or "uv"
        subprocess.run([uv, "venv", "--python", "3.11", str(target)], check=True, env=_environment())
        install = [uv, "pip", "install", "--python", str(python), *requirements]
        subprocess.run(install, check=True, env=_environment())
        ready.touch()
    return str(python)


def _environment() -> dict[str, str]:
    # Without VIRTUAL_ENV, uv cannot install into the environment of the benchmarks.
    return {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | {"UV_PYTHON": sys.executable}
