"""Virtual environments of a user: with the wheel, or with what a cluster has, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

_REQUIREMENT = "airflow-provider-statecheck"
_KEPT = ("HOME", "JAVA_HOME", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_LIMIT_SECONDS = 900


class Environment:
    """
    Empty environment below a folder.

    :param folder: Folder for the environment.
    """

    def __init__(self, folder: Path) -> None:
        self._venv = folder / "venv"
        _uv("venv", "--python", sys.executable, str(self._venv))

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

    def install(self, *arguments: str, constraints: Path = CONSTRAINTS) -> None:
        """Install requirements as ``pip install`` does, with the versions of a constraint file."""
        _uv("pip", "install", "--python", str(self.python), "--constraint", str(constraints), *arguments)

    def run(self, program: str, **variables: str) -> str:
        """Run a program with this Python, and return what it prints."""
        return self.output_of(str(self.python), "-I", "-c", program, **variables)

    def output_of(self, *command: str, **variables: str) -> str:
        """Run a command that has to succeed, and return what it prints."""
        done = self.process(*command, **variables)
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def process(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        environment = self.variables | variables
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
        )


def built_wheel(folder: Path) -> Path:
    """Build the wheel in a folder."""
    _uv("build", "--wheel", "--build-constraint", str(CONSTRAINTS), "--out-dir", str(folder), str(ROOT))
    [wheel] = folder.glob("*.whl")
    return wheel


def requirement(wheel: Path, *extras: str) -> str:
    """Return the requirement of the wheel with extras."""
    return f"{_REQUIREMENT}[{','.join(extras)}] @ {wheel.as_uri()}"


def _uv(*arguments: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [uv, *arguments, "--quiet"], capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, f"uv {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
