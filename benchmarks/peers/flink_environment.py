"""Cached virtual environment for PyFlink, which pins other versions of shared packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from benchmarks.tpch import cache_folder

VERSION = "2.2.1"


def flink_python() -> str:
    """Return the interpreter of the environment."""
    target = cache_folder() / f"flink-{VERSION}"
    python = target / "bin" / "python"
    ready = target / "ready"
    if not ready.exists():
        shutil.rmtree(target, ignore_errors=True)
        uv = shutil.which("uv") or "uv"
        subprocess.run([uv, "venv", "--python", "3.11", str(target)], check=True, env=_environment())
        install = [uv, "pip", "install", "--python", str(python), f"apache-flink=={VERSION}"]
        subprocess.run(install, check=True, env=_environment())
        ready.touch()
    return str(python)


def _environment() -> dict[str, str]:
    # Without VIRTUAL_ENV, uv cannot install into the environment of the benchmarks.
    return {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | {"UV_PYTHON": sys.executable}
