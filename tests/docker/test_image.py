"""
The steps of ``docker/Dockerfile`` without Docker, and what comes of them in a clean environment.

COPY and RUN of the first stage are done as they stand there, below another folder; of the second stage the copies, for
what else it does needs root and a Debian of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docker.description import HOME, ROOT
from tests.docker.dockerfile import Instruction, copies, files_let_through, stages

pytestmark = [pytest.mark.soak, pytest.mark.airflow]

PACKAGE = "airflow_provider_statecheck"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# Of what developers install, Airflow and the provider need these themselves.
NEEDED_AT_RUN_TIME = {"jsonschema", "psutil", "python-dotenv", "pyyaml"}
_KEPT = ("JAVA_HOME", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
_LIMIT_SECONDS = 900


@dataclass(frozen=True)
class Image:
    """Where the folders of the image are."""

    root: Path

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def home(self) -> Path:
        return self.at(HOME)

    def at(self, path: str) -> Path:
        return self.root / path.removeprefix("/")

    def do(self, instruction: Instruction) -> None:
        """Do one RUN."""
        script = re.sub(r"(?<![\w.])/opt/", f"{self.root}/opt/", instruction.rest)
        # The base image has a "python", where a Debian may have only a "python3".
        script = re.sub(r"^python(?= )", shlex.quote(f"{sys.base_prefix}/bin/python3"), script)
        # Without the settings for caches: Spark need not be fetched anew by each test.
        self.run("sh", "-eu", "-c", script, at=self.build, HOME=os.environ["HOME"], PATH=os.environ["PATH"])

    def copy(self, source: str, target: Path) -> None:
        """Copy what ``Dockerfile.dockerignore`` lets through."""
        for file in files_let_through(source):
            place = target / file.relative_to(ROOT / source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)

    def run(self, *command: str, at: Path | None = None, **environment: str) -> str:
        """Run a command with nothing of the environment of the tests, and return what it says."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        path = os.pathsep.join((str(self.at("/opt/venv/bin")), "/usr/local/bin", "/usr/bin", "/bin"))
        clean = {"HOME": str(self.home), "PATH": path, "AIRFLOW_HOME": str(self.at(f"{HOME}/airflow"))}
        done = subprocess.run(
            command,
            cwd=at or self.home,
            env={**kept, **clean, **environment},
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    made = Image(tmp_path_factory.mktemp("image"))
    made.build.mkdir()
    first, second = stages()
    for instruction in first:
        if instruction.word == "COPY":
            for source, target in copies([instruction]):
                made.copy(source, made.build / target)
        elif instruction.word == "RUN":
            made.do(instruction)
    made.home.mkdir(parents=True)
    for source, target in copies(second):
        made.copy(source, made.at(target))
    return made


@pytest.fixture(scope="module")
def installed(image: Image) -> dict[str, str]:
    listing = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    lines = image.run("python", "-I", "-c", listing).split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


@pytest.fixture(scope="module")
def migrated(image: Image) -> Image:
    image.run("airflow", "db", "migrate", AIRFLOW__CORE__DAGS_FOLDER=str(image.home / "dags"))
    return image


def test_the_wheel_has_each_file_of_the_package_and_nothing_else(image):
    (wheel,) = (image.build / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    files = [file for file in (ROOT / PACKAGE).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert packed == {str(file.relative_to(ROOT)) for file in files}
    assert {Path(name).suffix for name in packed} >= {".py", ".typed", ".ini", ".mako"}


def test_the_package_comes_from_the_environment(image):
    place = image.run("python", "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)")

    assert Path(place).is_relative_to(image.at("/opt/venv"))


def test_what_is_installed_has_the_versions_of_the_constraints(installed):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = dict(line.split("==") for line in lines)
    ours = {canonicalize_name(PACKAGE), "setuptools"}  # Python's venv brings the second one, until 3.12

    assert {name: version for name, version in installed.items() if constraints.get(name) != version}.keys() <= ours
    assert canonicalize_name(PACKAGE) in installed


def test_nothing_for_developers_is_installed(installed):
    developers = {canonicalize_name(Requirement(text).name) for text in EXTRAS["dev"]} - {canonicalize_name(PACKAGE)}

    assert developers & set(installed) <= NEEDED_AT_RUN_TIME
    assert {"uv", "pip"} & set(installed) == set()


def test_airflow_knows_the_provider_and_its_tables(migrated):
    assert "airflow-provider-statecheck" in migrated.run("airflow", "providers", "list", "--output", "plain")

    tables = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT name FROM sqlite_master'))"
    found = migrated.run("python", "-c", tables, str(migrated.home / "airflow" / "airflow.db"))
    assert "statecheck_" in found


def test_each_example_can_be_read(migrated):
    said = migrated.run("airflow", "dags", "list-import-errors", AIRFLOW__CORE__DAGS_FOLDER=str(migrated.home / "dags"))

    assert "No data found" in said
    examples = [file.name for file in (migrated.home / "dags").glob("*.py")]
    assert sorted(examples) == sorted(file.name for file in (ROOT / "dags").glob("*.py"))


def test_the_examples_data_can_be_made(image):
    image.run("python", "scripts/example_data.py", "data")

    assert list((image.home / "data").rglob("*.csv"))
    assert list((image.home / "data").rglob("*.parquet"))


def test_spark_is_on_the_path(image):
    said = image.run("sh", "-c", "spark-class org.apache.spark.deploy.master.Master --help 2>&1")

    assert "Usage: Master" in said


@pytest.mark.parametrize("module", ["s3fs", "psycopg2", "asyncpg", "pyspark"])
def test_what_the_services_address_has_its_client(image, module):
    place = image.run("python", "-c", f"import {module}; print({module}.__file__)")

    assert f"site-packages/{module}/" in place
