"""
What ``airflow statecheck package`` writes, on a machine that has Spark and what the requirements file names.

Nothing of Airflow is there, as on the clusters of managed services.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pyspark
import pytest

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.object_store import ObjectStore
from tests.packaging.environment import Environment

pytestmark = [pytest.mark.soak, pytest.mark.spark]

SCRIPTS = Path(__file__).with_name("scripts")
SHIPPED = ("checkpoint", "gateway", "queryable", "state", "storage", "spark")
"""Packages that drivers and executors import without a database."""
DATABASE = "sqlalchemy"
OF_STAGES = ("numpy", "pandas")
OPTIONAL = {"httpx", "tenacity", "s3fs", DATABASE, *OF_STAGES}
IMPORTS = """
import importlib, pkgutil, sys
sys.path.insert(0, {package!r})
count = 0
for name in {packages!r}:
    place = importlib.import_module(f"airflow_provider_statecheck.{{name}}").__path__
    for module in pkgutil.walk_packages(place, f"airflow_provider_statecheck.{{name}}."):
        importlib.import_module(module.name)
        count += 1
print(count, sorted({{"airflow", "alembic", "fastapi"}} & set(sys.modules)))
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


def unmarked(requirements: Path, names: Sequence[str], folder: Path) -> Path:
    """Return a requirements file without the marks before some packages."""
    lines = requirements.read_text().splitlines()
    kept = [
        line.removeprefix("# ") if line.startswith(tuple(f"# {name}>" for name in names)) else line for line in lines
    ]
    path = folder / "requirements.txt"
    path.write_text("\n".join(kept))
    return path


def submit(
    machine: Environment, package: Path, script: str, work: Path, *arguments: str, executors: Environment | None = None
) -> subprocess.CompletedProcess[str]:
    # Spark sends what the script writes to stderr to stdout.
    spark_submit = str(machine.python.with_name("spark-submit"))
    options = ["--master", "local[2]", "--driver-memory", "512m", "--conf", "spark.ui.enabled=false"]
    options += ["--conf", "spark.sql.shuffle.partitions=2", "--py-files", str(package)]
    return machine.process(
        spark_submit,
        *options,
        str(SCRIPTS / script),
        str(work),
        *arguments,
        PYSPARK_DRIVER_PYTHON=str(machine.python),
        PYSPARK_PYTHON=str((executors or machine).python),
    )


def test_the_machine_has_neither_airflow_nor_this_package(machine: Environment) -> None:
    found = machine.run(
        "from importlib.metadata import distributions\nprint(*sorted(each.name.lower() for each in distributions()))"
    ).split()
    assert {"pyspark", "fsspec", "pyarrow"} <= set(found)
    assert [name for name in found if "airflow" in name or name in {"pyspark-client", *OPTIONAL}] == []


def test_every_module_that_is_shipped_can_be_imported_from_the_zip_file(
    machine: Environment, machine_with_database: Environment, shipped: tuple[Path, Path]
) -> None:
    """Only the rows of a script with a database need a package more."""
    with zipfile.ZipFile(shipped[0]) as archive:
        parts = [PurePosixPath(name).parts for name in archive.namelist()]
    assert {part[1] for part in parts if len(part) > 2} == {*SHIPPED, "metadata"}
    for place, packages, least in ((machine, SHIPPED, 250), (machine_with_database, ("metadata",), 8)):
        count, loaded = place.run(IMPORTS.format(package=str(shipped[0]), packages=packages)).split(" ", 1)
        assert int(count) > least
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
    requirements = unmarked(shipped[1], [DATABASE], tmp_path_factory.mktemp("requirements"))
    return machine_with(requirements, tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def machine_for_stages(shipped: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    requirements = unmarked(shipped[1], [DATABASE, *OF_STAGES], tmp_path_factory.mktemp("requirements"))
    return machine_with(requirements, tmp_path_factory.mktemp("machine"))


STEPS = ["numbers", "item a", "item b", "item b", "result 200"]
STAGE = ["day 1", "day 2", "day 2", "day 3", "result 300 rows, 4 keys"]


@pytest.mark.parametrize(
    ("machine", "script", "computed"),
    [("machine_with_database", "steps.py", STEPS), ("machine_for_stages", "stage.py", STAGE)],
)
def test_a_script_that_fails_there_resumes(
    machine: str,
    shipped: tuple[Path, Path],
    tmp_path: Path,
    script: str,
    computed: list[str],
    request: pytest.FixtureRequest,
) -> None:
    driver = request.getfixturevalue(machine)
    first = submit(driver, shipped[0], script, tmp_path)
    assert first.returncode != 0
    assert "planned" in first.stdout
    second = submit(driver, shipped[0], script, tmp_path)
    assert second.returncode == 0, second.stdout
    assert (tmp_path / "computed").read_text().splitlines() == computed


def on_store(store: ObjectStore) -> tuple[str, str]:
    return f"s3://{store.make_bucket()}/checkpoints", json.dumps(store.storage_options)


def test_a_script_resumes_from_an_object_store_that_pyarrow_serves_to_driver_and_executors(
    machine_for_stages: Environment,
    machine: Environment,
    shipped: tuple[Path, Path],
    tmp_path: Path,
    object_store: ObjectStore,
) -> None:
    """Neither Spark's Hadoop nor Python has a package for the store; executors have Spark, PyArrow and fsspec alone."""
    place = on_store(object_store)
    first = submit(machine_for_stages, shipped[0], "steps.py", tmp_path, *place, executors=machine)
    assert first.returncode != 0
    assert "planned" in first.stdout
    second = submit(machine_for_stages, shipped[0], "steps.py", tmp_path, *place, executors=machine)
    assert second.returncode == 0, second.stdout
    assert (tmp_path / "computed").read_text().splitlines() == STEPS
    stored = CheckpointStorage.open(place[0], **object_store.storage_options).list_files(place[0])
    assert any(name.endswith(".parquet") for name in stored)
    assert any(name.endswith("/_metadata") for name in stored)


def test_a_driver_is_told_what_it_lacks_to_let_executors_write(
    machine_with_database: Environment, shipped: tuple[Path, Path], tmp_path: Path, object_store: ObjectStore
) -> None:
    done = submit(machine_with_database, shipped[0], "steps.py", tmp_path, *on_store(object_store))
    assert done.returncode != 0
    assert "found no pandas; run pip install pandas there" in done.stdout
    assert list(tmp_path.iterdir()) == []
