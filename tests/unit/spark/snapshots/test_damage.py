from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredSnapshot
from airflow_provider_statecheck.spark.snapshots.live_snapshots import find_damage
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import build_manifest
from tests.unit.written_stage import local_path, parquet

UNDECODABLE = [
    "Caused by: org.apache.parquet.io.ParquetDecodingException: could not read page",
    "Caused by: java.io.IOException: can not read class org.apache.parquet.format.PageHeader: don't know what type: 15",
    "Caused by: org.apache.hadoop.fs.ChecksumException: Checksum error",
]


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(str(tmp_path / "a place"))


def write(storage: CheckpointStorage, name: str) -> StoredSnapshot:
    uri = f"{storage.base_uri}/shared/{name}"
    for part in range(2):
        storage.write_bytes(f"{uri}/data/part-{part}.parquet", parquet(1000, part))
    return StoredSnapshot(uri, build_manifest(storage, f"{uri}/data", "{}"))


@pytest.fixture
def snapshots(storage: CheckpointStorage) -> list[StoredSnapshot]:
    return [write(storage, name) for name in ("1-aaaa", "1-bbbb")]


def file_of(snapshot: StoredSnapshot, part: int = 1) -> Path:
    return local_path(f"{snapshot.uri}/data/part-{part}.parquet")


def flip_page(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[pq.read_metadata(path).row_group(0).column(0).data_page_offset + 200] ^= 1
    path.write_bytes(content)


def failed_read(path: str) -> RuntimeError:
    return RuntimeError(f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {path}.  SQLSTATE: KD001")


def test_all_files_are_checked_if_spark_does_not_name_the_one_with_another_checksum(storage, snapshots):
    _, damaged = snapshots
    flip_page(file_of(damaged))
    text = "Job aborted: java.io.IOException: could not verify page integrity, CRC checksum verification failed"
    assert list(find_damage(RuntimeError(text), storage, snapshots)) == [damaged.uri]
    assert find_damage(RuntimeError("Job aborted: java.io.IOException: closed"), storage, snapshots) == {}


@pytest.mark.parametrize(
    "name_of", [str, lambda path: f"file://{str(path).replace(' ', '%20')}", lambda path: f"s3a:/{path}"]
)
def test_the_snapshot_is_found_whichever_name_spark_has_for_its_place(storage, snapshots, name_of):
    _, damaged = snapshots
    flip_page(file_of(damaged))
    found = find_damage(failed_read(name_of(file_of(damaged))), storage, snapshots)
    assert list(found) == [damaged.uri]
    assert "part-1.parquet" in found[damaged.uri]


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_an_error_that_was_raised_from_it_counts(storage, snapshots, link):
    flip_page(file_of(snapshots[0]))
    error = ValueError("the report cannot be made")
    setattr(error, link, failed_read(str(file_of(snapshots[0]))))
    assert list(find_damage(error, storage, snapshots)) == [snapshots[0].uri]


def test_a_file_that_reads_well_is_not_called_damaged(storage, snapshots):
    """Spark says the same of a storage that did not answer."""
    assert find_damage(failed_read(str(file_of(snapshots[0]))), storage, snapshots) == {}


@pytest.mark.parametrize("cause", UNDECODABLE)
def test_a_file_that_only_spark_cannot_decode_is_damaged(storage, snapshots, cause):
    error = RuntimeError(f"{failed_read(str(file_of(snapshots[0])))}\n{cause}")
    assert list(find_damage(error, storage, snapshots)) == [snapshots[0].uri]


def test_a_storage_that_does_not_answer_is_no_damage(storage, snapshots, monkeypatch):
    def unreachable(*_: object) -> bytes:
        raise StorageError("no route to host")

    monkeypatch.setattr(CheckpointStorage, "read_range", unreachable)
    assert find_damage(failed_read(str(file_of(snapshots[0]))), storage, snapshots) == {}


def test_a_missing_file_and_a_changed_footer_are_damage(storage, snapshots):
    file_of(snapshots[0]).unlink()
    path = file_of(snapshots[1])
    path.write_bytes(path.read_bytes()[:-20] + b"x" + path.read_bytes()[-19:])
    error = RuntimeError(f"{file_of(snapshots[0])} and {path}")
    assert list(find_damage(error, storage, snapshots)) == [s.uri for s in snapshots]


def test_files_of_other_snapshots_and_other_errors_are_not_looked_at(storage, snapshots):
    for snapshot in snapshots:
        flip_page(file_of(snapshot))
    other = str(file_of(snapshots[0])).replace("1-aaaa", "2-cccc")
    assert find_damage(failed_read(other), storage, snapshots) == {}
    assert find_damage(KeyError("day"), storage, snapshots) == {}


def test_an_error_without_a_text_is_borne(storage, snapshots):
    class Unreachable(Exception):
        def __str__(self) -> str:
            raise ConnectionError("the JVM is gone")

    assert find_damage(Unreachable(), storage, snapshots) == {}
