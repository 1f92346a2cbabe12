"""Rows of one task in files: their values, their sizes, and what is left after a failure."""

from __future__ import annotations

import datetime
import decimal
import itertools
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import StorageError, UnsupportedStateError
from airflow_provider_statecheck.spark.tables import data_files
from airflow_provider_statecheck.spark.tables.data_files import DataFileWriter, FileLayout, require_partitionable

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string())])


@dataclass
class Folder:
    """Files in a folder, which tasks write in place or upload."""

    path: Path
    is_local: bool
    uploaded: list[int] = field(default_factory=list)
    """Number of rows of each uploaded file."""
    target: str = "a folder"

    def local_path(self, name: str) -> Path:
        return self.path / name

    def upload(self, local: Path, name: str) -> None:
        self.uploaded.append(pq.read_table(local).num_rows)
        shutil.copy(local, self.path / name)

    def delete(self, name: str) -> None:
        (self.path / name).unlink()

    @property
    def names(self) -> list[str]:
        return sorted(file.name for file in self.path.iterdir())


@pytest.fixture(params=[True, False], ids=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(tmp_path, request.param)


def rows_of(*keys: int) -> pa.Table:
    return pa.table({"key": keys, "name": [f"name {key}" for key in keys]}, SCHEMA)


def writer_to(
    folder: Folder, schema: pa.Schema = SCHEMA, partition_by: tuple[str, ...] = (), max_file_bytes: int = 1 << 29
) -> DataFileWriter:
    layout = FileLayout(compression="zstd", partition_by=partition_by, max_file_bytes=max_file_bytes)
    numbers = itertools.count()
    return DataFileWriter(folder, layout, schema, lambda _: f"{next(numbers)}.parquet")


def written(writer: DataFileWriter, folder: Folder, *tables: pa.Table) -> list[pa.Table]:
    """Return the content of each file."""
    for table in tables:
        writer.write(table)
    return [pq.read_table(folder.path / file.name) for file in writer.finish()]


def test_any_type_comes_back_equal(folder):
    table = pa.table(
        {
            "a": pa.array([1, None], pa.int8()),
            "b": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "c": pa.array([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None], pa.timestamp("us", tz="UTC")),
            "d": pa.array([[1, None], None], pa.list_(pa.int32())),
            "e": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "f": pa.array([{"x": b"1"}, None], pa.struct([("x", pa.binary())])),
            "g": pa.nulls(2),
        }
    )
    assert written(writer_to(folder, table.schema), folder, table) == [table]


def test_columns_may_come_in_any_order(folder):
    assert written(writer_to(folder), folder, rows_of(1).select(["name", "key"])) == [rows_of(1)]


def test_tables_without_rows_make_no_file(folder):
    assert written(writer_to(folder), folder, rows_of()) == []
    assert folder.names == []


def test_a_full_file_is_followed_by_another(folder):
    assert written(writer_to(folder, max_file_bytes=1), folder, rows_of(1), rows_of(2)) == [rows_of(1), rows_of(2)]


def test_rows_wait_for_each_other_in_row_groups_of_bounded_size(folder, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", rows_of(1, 2).nbytes)
    writer = writer_to(folder)
    for key in range(5):
        writer.write(rows_of(key))
    (file,) = writer.finish()
    metadata = pq.read_metadata(folder.path / file.name)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 2, 1]


def test_few_files_are_open_at_once(folder, monkeypatch):
    monkeypatch.setattr(data_files, "_MAX_OPEN_FILES", 2)
    files = written(writer_to(folder, partition_by=("name",)), folder, rows_of(1, 2, 3), rows_of(1, 2, 3))
    assert len(files) > 3
    assert sorted(key for file in files for key in file.column("key").to_pylist()) == [1, 1, 2, 2, 3, 3]


def test_memory_of_all_open_files_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 200)
    flushed = []
    monkeypatch.setattr(data_files.OutputFile, "flush", lambda file: flushed.append(file))
    writer = writer_to(folder, partition_by=("name",))
    writer.write(rows_of(*range(40)))
    assert flushed
    writer.abort()


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.timestamp("us"), pa.list_(pa.int64())])
def test_partitions_of_other_types_are_refused(kind):
    with pytest.raises(UnsupportedStateError, match=r"integers, strings, dates or booleans, found 'part'"):
        require_partitionable(pa.schema([("key", pa.int64()), ("part", kind)]), ["part"])


# Failing


def test_giving_up_deletes_whole_and_half_files(folder):
    writer = writer_to(folder, max_file_bytes=rows_of(1, 2).nbytes + 1)
    writer.write(rows_of(*range(100)))
    writer.write(rows_of(1))
    assert "0.parquet" in folder.names
    writer.abort()
    writer.abort()
    assert folder.names == []


def test_giving_up_raises_nothing_where_the_storage_fails(folder, monkeypatch, caplog):
    writer = writer_to(folder, max_file_bytes=1)
    writer.write(rows_of(1))

    def fail(_: str) -> None:
        raise StorageError("planted")

    monkeypatch.setattr(folder, "delete", fail)
    writer.abort()
    assert "Orphan file 0.parquet in a folder was not deleted: planted" in caplog.text


def test_half_a_file_is_never_sent(tmp_path):
    folder = Folder(tmp_path, is_local=False)
    writer = writer_to(folder)
    writer.write(rows_of(1, 2))
    assert folder.uploaded == []
    writer.finish()
    assert folder.uploaded == [2]
