"""
What ``airflow statecheck package`` writes, on a machine that has Spark and what the requirements file names.

Nothing of Airflow is there, as on the clusters of managed services.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.packaging.environment import Environment

pytestmark = [pytest.mark.soak, pytest.mark.spark]

SCRIPTS = Path(__file__).with_name("scripts")
SHIPPED = ("checkpoint", "gateway", "state", "storage", "spark")
"""Packages that drivers and executors import."""
DATABASE = "sqlalchemy"
IMPORTS = """
import importlib, pkgutil, sys
sys.path.insert(0, {package!r})
count = 0
for name in {packages!r}:
    place = importlib.import_module(f"airflow_provider_statecheck.{{name}}").__path__
    for module in pkgutil.walk_packages(place, f"airflow_provider_statecheck.{{name}}."):
        importlib.import_module(module.name)
        count += 1
print(count, sorted({{"airflow", "sqlalchemy", "alembic", "fastapi"}} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The zip file and the requirements file."""
    folder = tmp_path_factory.mktemp("shipped")
    command = [sys.executable, "-m", "airflow", "statecheck", "package", str(folder)]
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    [package], [requirements] = folder.glob("*.zip"), folder.glob("*.txt")
    return package, requirements


@pytest.fixture(scope="module")
def machine(shipped: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return machine_with(shipped[1], tmp_path_factory.mktemp("machine"))


def machine_with(requirements: Path, folder: Path) -> Environment:
    machine = Environment(folder)
    machine.install(f"pyspark=={pyspark.__version__}", "--requirement", str(requirements))
    return machine


def submit(machine: Environment, package: Path, script: str, work: Path) -> subprocess.CompletedProcess[str]:
    # Spark sends what the script writes to stderr to stdout.
    spark_submit = str(machine.python.with_name("spark-submit"))
    options = ["--master", "local[2]", "--driver-memory", "512m", "--conf", "spark.ui.enabled=false"]
    options += ["--conf", "spark.sql.shuffle.partitions=2", "--py-files", str(package)]
    return machine.process(spark_submit, *options, str(SCRIPTS / script), str(work), PYSPARK_PYTHON=str(machine.python))


def test_the_machine_has_neither_airflow_nor_this_package(machine: Environment) -> None:
    found = machine.run(
        "from importlib.metadata import distributions\nprint(*sorted(each.name.lower() for each in distributions()))"
    ).split()
    assert {"pyspark", "fsspec", "pandas", "pyarrow"} <= set(found)
    assert [name for name in found if "airflow" in name or name in ("pyspark-client", DATABASE)] == []


def test_every_module_that_is_shipped_can_be_imported_from_the_zip_file(
    machine: Environment, shipped: tuple[Path, Path]
) -> None:
    count, loaded = machine.run(IMPORTS.format(package=str(shipped[0]), packages=SHIPPED)).split(" ", 1)
    assert int(count) > 200
    assert loaded == "[]"


def test_a_script_with_a_database_of_its_own_is_told_what_the_machine_lacks(
    machine: Environment, shipped: tuple[Path, Path], tmp_path: Path
) -> None:
    done = submit(machine, shipped[0], "steps.py", tmp_path)
    assert done.returncode != 0
    assert f"found no {DATABASE}; run pip install {DATABASE} there" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def machine_with_database(shipped: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A machine on which the mark before the package for databases was removed."""
    requirements = tmp_path_factory.mktemp("requirements") / "requirements.txt"
    requirements.write_text(shipped[1].read_text().replace(f"# {DATABASE}", DATABASE))
    return machine_with(requirements, tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize(
    ("script", "computed"),
    [
        ("steps.py", ["numbers", "item a", "item b", "item b", "result 200"]),
        ("stage.py", ["day 1", "day 2", "day 2", "day 3", "result 300 rows, 4 keys"]),
    ],
)
def test_a_script_that_fails_there_resumes(
    machine_with_database: Environment, shipped: tuple[Path, Path], tmp_path: Path, script: str, computed: list[str]
) -> None:
    first = submit(machine_with_database, shipped[0], script, tmp_path)
    assert first.returncode != 0
    assert "planned" in first.stdout
    second = submit(machine_with_database, shipped[0], script, tmp_path)
    assert second.returncode == 0, second.stdout
    assert (tmp_path / "computed").read_text().splitlines() == computed
