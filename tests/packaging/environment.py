"""A virtual environment with the wheel, what it requires and nothing else, as ``pip install`` makes it for a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

_REQUIREMENT = "airflow-provider-statecheck[pyspark]"
_KEPT = ("HOME", "JAVA_HOME", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_LIMIT_SECONDS = 900


class WheelEnvironment:
    """
    Environment below a folder.

    :param folder: Folder for the wheel and the environment.
    """

    def __init__(self, folder: Path) -> None:
        self.wheels = folder / "dist"
        self._venv = folder / "venv"

    @property
    def python(self) -> Path:
        return self._venv / "bin" / "python"

    @property
    def variables(self) -> dict[str, str]:
        """
        Environment variables of its processes, with nothing that the tests' own processes have of Python or Airflow.
        """
        path = os.pathsep.join((str(self.python.parent), "/usr/local/bin", "/usr/bin", "/bin"))
        return {name: os.environ[name] for name in _KEPT if name in os.environ} | {"PATH": path}

    def install(self) -> None:
        """Build the wheel and install it with the versions of the constraints."""
        _uv("build", "--wheel", "--build-constraint", str(CONSTRAINTS), "--out-dir", str(self.wheels), str(ROOT))
        [wheel] = self.wheels.glob("*.whl")
        _uv("venv", "--python", sys.executable, str(self._venv))
        constraint = ("--constraint", str(CONSTRAINTS))
        _uv("pip", "install", "--python", str(self.python), *constraint, f"{_REQUIREMENT} @ {wheel.as_uri()}")

    def run(self, program: str) -> str:
        """Run a program with this Python, and return what it prints."""
        command = [str(self.python), "-I", "-c", program]
        done = subprocess.run(
            command, env=self.variables, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=True
        )
        return done.stdout.strip()


def _uv(*arguments: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [uv, *arguments, "--quiet"], capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, f"uv {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
