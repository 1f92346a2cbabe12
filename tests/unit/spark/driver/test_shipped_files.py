"""The package that is shipped to the executors."""

from __future__ import annotations

import ast
import hashlib
import io
import subprocess
import sys
import uuid
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_statecheck
from airflow_provider_statecheck.spark.driver import shipped_files
from airflow_provider_statecheck.spark.driver.shipped_files import (
    package_file,
    publish,
    published_package,
    published_stage_application,
    ship_package,
    stage_file,
    wheel_file,
    write_launcher_jar,
    write_package,
    write_stage_application,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


def test_package_has_the_hash_of_its_bytes_in_its_name_and_may_be_read_by_workers_of_another_user(
    tmp_path: Path,
) -> None:
    path = write_package(tmp_path / "packages").path
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"airflow_provider_statecheck-0.1.0-{digest}.zip"
    assert path.stat().st_mode & 0o777 == 0o644
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert {"airflow_provider_statecheck/__init__.py", "airflow_provider_statecheck/spark/context.py"} <= set(names)
    assert [name for name in names if not name.endswith(".py")] == []


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    first = write_package(tmp_path / "a").path.read_bytes()
    shipped_files.package_bytes.cache_clear()
    assert write_package(tmp_path / "b").path.read_bytes() == first


def test_what_is_there_is_not_written_again_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = write_package(tmp_path).path
    written = path.stat().st_mtime_ns
    assert write_package(tmp_path).path.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [path]


def test_a_driver_imports_from_it(tmp_path: Path) -> None:
    path = write_package(tmp_path).path
    script = f"""
import sys
sys.path.insert(0, {str(path)!r})
import airflow_provider_statecheck.spark.context
from airflow_provider_statecheck import StageContext
assert airflow_provider_statecheck.__file__.startswith({str(path)!r})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def shipped() -> dict[str, ast.Module]:
    """The modules of the package, parsed."""
    with zipfile.ZipFile(io.BytesIO(package_file()[1])) as archive:
        names = archive.namelist()
        return {name.removesuffix(".py").replace("/", "."): ast.parse(archive.read(name)) for name in names}


def _imported_by(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_nothing_in_it_needs_airflow(shipped: dict[str, ast.Module]) -> None:
    needed = {name.partition(".")[0] for module in shipped.values() for name in _imported_by(module)}
    assert not needed & {"airflow", "alembic", "fastapi", "jinja2", "uvicorn"}
    assert "pyspark" in needed


def test_each_module_that_it_imports_of_this_package_is_in_it(shipped: dict[str, ast.Module]) -> None:
    known = {name.removesuffix(".__init__") for name in shipped}
    of_airflow = {"hooks", "operators", "sensors"}  # names in airflow_provider_statecheck that only Airflow uses
    needed = {
        name
        for path, module in shipped.items()
        for name in _imported_by(module)
        if name.startswith("airflow_provider_statecheck.")
        and not (path.count(".") == 1 and name.split(".")[1] in of_airflow)
    }
    assert needed - known == set()


def test_a_copy_is_a_copy_of_the_file_that_it_was_imported_from(tmp_path: Path) -> None:
    path = write_package(tmp_path).path
    script = f"""
import sys
sys.path.insert(0, {str(path)!r})
from pathlib import Path
from airflow_provider_statecheck.spark.driver.shipped_files import write_package
print(write_package(Path("copies")).path)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / done.stdout.strip()).read_bytes() == path.read_bytes()
    assert Path(done.stdout.strip()).name == path.name


class TestWheel:
    def test_is_installed_without_anything_else_and_knows_its_version(self, tmp_path: Path) -> None:
        name, data = wheel_file()
        wheel = tmp_path / Path(name).name
        wheel.write_bytes(data)
        python = venv.EnvBuilder(symlinks=True).ensure_directories(tmp_path / "env").env_exe
        venv.create(tmp_path / "env", symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--disable-pip-version-check", "-q", str(wheel)], check=True, cwd=tmp_path)
        script = """
from importlib.metadata import version
import airflow_provider_statecheck.exceptions as found
print(found.__file__, version("airflow-provider-statecheck"))
"""
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
        file, number = done.stdout.split()
        assert file.startswith(str(tmp_path / "env"))
        assert number == airflow_provider_statecheck.__version__

    def test_has_the_files_of_the_zip_file_and_is_reproducible(self) -> None:
        name, data = wheel_file()
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(io.BytesIO(package_file()[1])) as package:
            assert archive.namelist()[:-3] == package.namelist()
        assert name == f"{hashlib.sha256(data).hexdigest()}/airflow_provider_statecheck-0.1.0-py3-none-any.whl"
        assert wheel_file() == (name, data)


def test_application_of_a_stage_is_a_file_of_its_own(tmp_path: Path) -> None:
    name, data = stage_file()
    assert name == f"{hashlib.sha256(data).hexdigest()}/statecheck_stage.py"
    assert write_stage_application(tmp_path).read_bytes() == data


class TestOnAStorage:
    @pytest.fixture
    def storage(self) -> CheckpointStorage:
        return CheckpointStorage.open(f"memory://{uuid.uuid4().hex}/packages")

    def test_is_written_once_for_each_content(
        self, storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, data = package_file()
        uri = publish(storage, storage.base_uri, name, data)
        assert uri == f"{storage.base_uri}/{name}"
        assert storage.read_bytes(uri) == data
        writes: list[str] = []
        monkeypatch.setattr(CheckpointStorage, "write_bytes", lambda _, where, *given, **named: writes.append(where))
        assert publish(storage, storage.base_uri, name, data) == uri
        assert writes == []

    @pytest.mark.parametrize("found", [b"", b"other", b"PK\x03"])
    def test_what_another_has_written_in_its_place_is_replaced(self, storage: CheckpointStorage, found: bytes) -> None:
        storage.write_bytes(f"{storage.base_uri}/package.zip", found)
        publish(storage, storage.base_uri, "package.zip", b"PK\x04")
        assert storage.read_bytes(f"{storage.base_uri}/package.zip") == b"PK\x04"

    @pytest.mark.parametrize("is_elsewhere", [False, True])
    @pytest.mark.parametrize("published", [published_package, published_stage_application])
    def test_each_content_has_a_name_of_its_own_in_the_directory_for_packages(
        self, storage: CheckpointStorage, published: Callable[..., str], is_elsewhere: bool
    ) -> None:
        directory = f"memory://{uuid.uuid4().hex}" if is_elsewhere else None
        uri = published(storage, directory)
        folder = directory or f"{storage.base_uri}/packages"
        name = uri.removeprefix(f"{folder}/")
        found = CheckpointStorage.open(folder)
        # The application of a stage keeps its name, as Spark shows it, below a directory with the digest.
        assert hashlib.sha256(found.read_bytes(uri)).hexdigest() in name
        assert published(storage, directory) == uri
        assert list(found.list_files(folder)) == [name]

    def test_application_of_a_stage_is_that_of_client_mode(self, storage: CheckpointStorage, tmp_path: Path) -> None:
        of_client_mode = write_stage_application(tmp_path).read_bytes()
        assert storage.read_bytes(published_stage_application(storage)) == of_client_mode


def test_launcher_is_a_jar_without_a_class(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_launcher_jar(tmp_path).path) as archive:
        assert archive.namelist() == ["META-INF/MANIFEST.MF"]


class Session:
    def __init__(self) -> None:
        self.files: list[str] = []

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:
        assert pyfile
        self.files.append(Path(path).name)


def test_a_session_gets_the_package_once(tmp_path: Path) -> None:
    first: Any = Session()
    second: Any = Session()
    for session in (first, second, first):
        ship_package(session)
    assert first.files == second.files == [write_package(tmp_path).path.name]
