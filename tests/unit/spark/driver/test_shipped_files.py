"""The package that is shipped to the executors."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.spark.driver import shipped_files
from airflow_provider_statecheck.spark.driver.shipped_files import ship_package, write_launcher_jar, write_package


def test_package_has_the_hash_of_its_bytes_in_its_name_and_may_be_read_by_workers_of_another_user(
    tmp_path: Path,
) -> None:
    path = write_package(tmp_path / "packages").path
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"airflow_provider_statecheck-0.1.0-{digest}.zip"
    assert path.stat().st_mode & 0o777 == 0o644
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert {"airflow_provider_statecheck/py.typed", "airflow_provider_statecheck/metadata/alembic.ini"} <= set(names)
    assert [name for name in names if "__pycache__" in name] == []


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
