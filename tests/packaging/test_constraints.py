"""
Every extra installs under Airflow's constraint files, as managed services use them.

The files have the names and versions that Airflow's own files of these versions pin for Python 3.12.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.packaging.environment import ROOT

FILES = sorted((Path(__file__).parent / "constraints").glob("airflow-*.txt"))
INTERNAL = {"dev", "examples"}
EXTRAS = sorted(
    set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) - INTERNAL
)


def resolved(*requirements: str, constraints: Path | None = None, extras: list[str] = EXTRAS) -> dict[str, str]:
    """Return the version of each distribution that an installation would have."""
    wanted = "\n".join([f"airflow-provider-statecheck[{','.join(extras)}] @ {ROOT.as_uri()}", *requirements])
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
    limits = [] if constraints is None else ["--constraint", str(constraints)]
    done = subprocess.run(
        [*command, "--python-version", "3.12", *limits, "-"], input=wanted, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_all_extras_install_with_spark_of_the_version_that_the_file_has(file: Path) -> None:
    pinned = dict(line.split("==") for line in file.read_text().splitlines())
    found = resolved(f"pyspark=={pinned['pyspark-client']}", constraints=file)
    assert found["pyspark"] == found["pyspark-client"]
    for name in ("fsspec", "pyarrow", "s3fs", "adlfs", "pyiceberg", "apache-airflow-providers-apache-spark"):
        assert found[name] == pinned[name]


@pytest.mark.soak
def test_an_installation_without_constraints_has_spark_and_its_client_of_one_version() -> None:
    found = resolved(extras=["pyspark"])
    assert found["pyspark"] == found["pyspark-client"]
