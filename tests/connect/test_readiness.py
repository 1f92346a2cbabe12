"""What a server gets before a stage begins, and which checkpoint directories it is refused."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck import StageContext
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.spark.driver.readiness import make_ready
from airflow_provider_statecheck.spark.driver.shipped_files import ship_package
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.connect.conftest import connect
from tests.connect_server import ConnectServer
from tests.standalone_cluster import StandaloneCluster

_ARCHIVE = re.compile(r"/airflow_provider_statecheck-[^/]+-[0-9a-f]{64}\.zip/")


def where_the_package_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import airflow_provider_statecheck

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"file": [airflow_provider_statecheck.__file__]})


def used_by_an_executor(spark: Any) -> str:
    return str(spark.range(1).mapInArrow(where_the_package_is, "file string").collect()[0].file)


def test_executors_use_the_package_that_was_shipped_under_a_name_with_its_hash(spark) -> None:
    ship_package(spark)
    assert _ARCHIVE.search(used_by_an_executor(spark))


@pytest.mark.soak
def test_shipping_it_twice_changes_nothing(spark) -> None:
    ship_package(spark)
    before = used_by_an_executor(spark)
    ship_package(spark)
    assert used_by_an_executor(spark) == before


def test_path_that_all_three_see_is_accepted_and_nothing_is_left_there(spark, tmp_path: Path) -> None:
    make_ready(spark, CheckpointStorage.open(str(tmp_path / "checkpoints")))
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_folder_that_cannot_be_written_is_refused(spark, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(EnvironmentNotReadyError, match="Expected to write below"):
        make_ready(spark, CheckpointStorage.open(str(tmp_path / "file" / "checkpoints")))


def hiding(folder: Path) -> tuple[str, ...]:
    """Return a command that mounts another filesystem there, for the command that follows it."""
    return ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture
def elsewhere(tmp_path: Path, base: Path) -> Iterator[ConnectServer]:
    """A server that does not see the checkpoint directory."""
    server = ConnectServer(tmp_path / "server", around=hiding(base))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def with_executors_elsewhere(tmp_path: Path, base: Path) -> Iterator[ConnectServer]:
    """A server that sees the checkpoint directory, on a cluster that does not."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = StandaloneCluster(folder, around_workers=hiding(base))
    small = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"}
    try:
        cluster.start()
        server = ConnectServer(tmp_path / "server", master=cluster.master, conf=small)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        cluster.stop()


def can_mount() -> bool:
    hide = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return os.geteuid() == 0 and subprocess.run(hide, capture_output=True, check=False).returncode == 0


NEEDS_MOUNT = pytest.mark.skipif(not can_mount(), reason="hiding a folder from a process needs a right to mount")


def refuse(server: ConnectServer, base: Path) -> str:
    """Return what a stage on a server is told, and make sure that nothing was started."""
    session = connect(server.url)
    database = base.parent / "state.db"
    with pytest.raises(EnvironmentNotReadyError) as refused:
        StageContext.open(session, job="j", checkpoint_dir=str(base), metadata=f"sqlite:///{database}")
    session.stop()
    assert not database.exists()
    assert list(base.iterdir()) == []
    return str(refused.value)


@pytest.mark.soak
@NEEDS_MOUNT
def test_path_that_the_server_has_for_itself_is_refused_before_an_attempt_begins(elsewhere, base: Path) -> None:
    text = refuse(elsewhere, base)
    assert "Spark's driver cannot read the files of the task" in text
    assert "shared volume" in text
    assert "s3://" in text


@NEEDS_MOUNT
@pytest.mark.soak
def test_path_that_an_executor_has_for_itself_is_refused(with_executors_elsewhere, base: Path) -> None:
    assert "an executor cannot read the files of the task" in refuse(with_executors_elsewhere, base)
