"""Files of a snapshot that executors write and read."""

from __future__ import annotations

import hashlib
import pickle
import sys

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from fsspec.registry import _registry

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.spark.snapshots import executor_io
from airflow_provider_statecheck.spark.snapshots.dataframes import explained
from airflow_provider_statecheck.spark.snapshots.executor_io import (
    ExecutorFiles,
    HiddenOptions,
    PartitionWriter,
    SnapshotReader,
    plan_tasks,
    read_snapshot,
)
from airflow_provider_statecheck.spark.tables.data_files import scratch_directory
from airflow_provider_statecheck.spark.tables.schemas import pack_tasks
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile
from tests.written_snapshots import change_type_of_page, flip_page


@pytest.fixture
def files(tmp_path):
    (tmp_path / "data").mkdir()
    return ExecutorFiles(f"file://{tmp_path}/data", HiddenOptions({}))


def test_options_are_never_shown_and_survive_pickling():
    files = ExecutorFiles("memory://bucket/data", HiddenOptions({"key": "planted", "secret": "planted"}))
    assert "planted" not in f"{files!r} {files} {files.options!r} {files.options}"
    assert pickle.loads(pickle.dumps(files)).options.reveal() == {"key": "planted", "secret": "planted"}


def test_a_published_file_is_read_back(files, tmp_path):
    local = tmp_path / "local"
    local.write_bytes(b"12345")
    files.publish(local, "part-0.parquet")
    with files.open("part-0.parquet", 5) as file:
        assert file.read() == b"12345"


@pytest.mark.parametrize("size", [4, 6])
def test_a_file_of_another_size_is_refused(files, tmp_path, size):
    (tmp_path / "data" / "part-0.parquet").write_bytes(b"12345")
    with pytest.raises(CorruptStateError, match=rf"Expected {size} bytes in file:///.*part-0.parquet, found 5"):
        files.open("part-0.parquet", size)


def test_a_missing_file_is_told(files):
    with pytest.raises(CorruptStateError, match="found none"):
        files.open("part-0.parquet", 5)


def test_a_missing_package_is_told_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(_registry, "gs", raising=False)
    monkeypatch.delattr(pyarrow.fs, "GcsFileSystem")  # as in a build of PyArrow without Google's client
    local = tmp_path / "local"
    local.write_bytes(b"")
    with pytest.raises(InvalidConfigurationError, match=r"airflow-provider-statecheck\[gcs\]"):
        ExecutorFiles("gs://bucket/data", HiddenOptions({})).publish(local, "part-0.parquet")


def test_an_upload_keeps_few_parts_in_memory(tmp_path):
    from fsspec.implementations.local import LocalFileSystem

    asked = []

    class Parts(LocalFileSystem):  # type: ignore[misc]
        protocol = "parts"

        def _put_file(self, lpath, rpath, max_concurrency=None):
            raise NotImplementedError

        def put_file(self, lpath, rpath, **kwargs):
            asked.append(kwargs)

    class PartFiles(ExecutorFiles):
        def _filesystem(self):
            return Parts()

    PartFiles("parts://data", HiddenOptions({})).publish(tmp_path, "part-0.parquet")
    assert asked == [{"max_concurrency": 2}]


def test_scratch_files_are_where_spark_keeps_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    with scratch_directory() as folder:
        assert folder.startswith(f"{tmp_path}/")
    assert not list(tmp_path.iterdir())


def test_a_scratch_directory_that_does_not_exist_is_no_reason_to_fail(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/gone")
    with scratch_directory() as folder:
        assert not folder.startswith(str(tmp_path / "gone"))


def test_what_a_client_says_is_shown_without_credentials(tmp_path):
    from fsspec.implementations.local import LocalFileSystem

    class Talkative(LocalFileSystem):  # type: ignore[misc]
        def put_file(self, lpath, rpath, **kwargs):
            raise PermissionError("access denied for planted-secret")

    class TalkativeFiles(ExecutorFiles):
        def _filesystem(self):
            return Talkative()

    files = TalkativeFiles("file:///data", HiddenOptions({"secret": "planted-secret"}))
    with pytest.raises(StorageError, match="PermissionError access denied") as raised:
        files.publish(tmp_path, "part-0.parquet")
    assert "planted" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_an_upload_that_fails_for_a_moment_is_sent_again(files, tmp_path, monkeypatch):
    from fsspec.implementations.local import LocalFileSystem

    failures = [ConnectionResetError("reset"), ConnectionResetError("reset")]
    put = LocalFileSystem.put_file

    def sometimes(self, lpath, rpath, **kwargs):
        if failures:
            raise failures.pop()
        put(self, lpath, rpath, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "put_file", sometimes)
    monkeypatch.setattr(executor_io, "RetryPolicy", lambda: RetryPolicy(sleep=lambda seconds: None))
    local = tmp_path / "local"
    local.write_bytes(b"12345")
    files.publish(local, "part-0.parquet")
    assert (tmp_path / "data" / "part-0.parquet").read_bytes() == b"12345"
    assert not failures


MIB = 1024 * 1024
SCHEMA = pa.schema([("_c0", pa.int64()), ("_c1", pa.string())])


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def files_in(data) -> ExecutorFiles:
    return ExecutorFiles(f"file://{data}", HiddenOptions({}))


def batches(rows: int, size: int = 100):
    for start in range(0, rows, size):
        numbers = list(range(start, min(start + size, rows)))
        yield pa.RecordBatch.from_pydict({"_c0": numbers, "_c1": [str(n) * 5 for n in numbers]}, SCHEMA)


def write(data, given, **limits):
    writer = PartitionWriter(files_in(data), SCHEMA, "write", **limits)
    return [row for batch in writer.write(given) for row in batch.to_pylist()]


def read(data, handles, tasks=None):
    listed = [SnapshotFile(name=h["name"], size_bytes=h["size_bytes"], footer_sha256="") for h in handles]
    tasks = plan_tasks(listed) if tasks is None else tasks
    reader = SnapshotReader(files=files_in(data), schema=SCHEMA, packed_tasks=pack_tasks(tasks or [[]]))
    numbers = pa.RecordBatch.from_pydict({"id": list(range(max(1, len(tasks))))})
    return [row for batch in read_snapshot(reader, iter([numbers])) for row in batch.to_pylist()]


def numbers(rows) -> list[int]:
    return sorted(row["_c0"] for row in rows)


class TestWriting:
    def test_a_row_for_each_file_says_what_is_in_it(self, data):
        (handle,) = write(data, batches(250))
        path = data / handle["name"]
        content = path.read_bytes()
        length = int.from_bytes(content[-8:-4], "little") + 8
        assert handle["rows"] == pq.read_metadata(path).num_rows == 250
        assert handle["size_bytes"] == len(content)
        assert handle["footer_sha256"] == hashlib.sha256(content[-length:]).hexdigest()

    def test_small_batches_share_a_row_group_up_to_its_limit(self, data):
        (handle,) = write(data, batches(1000), row_group_bytes=5000)
        groups = pq.read_metadata(data / handle["name"]).num_row_groups
        assert 1 < groups < 10

    def test_a_large_partition_becomes_several_files(self, data):
        handles = write(data, batches(3000), row_group_bytes=5000, file_bytes=10_000)
        assert len({h["name"] for h in handles}) == len(handles) > 2
        assert sum(h["rows"] for h in handles) == 3000
        assert numbers(read(data, handles)) == list(range(3000))

    @pytest.mark.parametrize("given", [[], [pa.RecordBatch.from_pydict({"_c0": [], "_c1": []}, SCHEMA)]])
    def test_an_empty_partition_writes_no_file(self, data, given):
        assert write(data, iter(given)) == []
        assert not list(data.iterdir())

    def test_a_task_that_fails_on_its_way_publishes_nothing(self, data):
        def failing():
            yield from batches(500)
            raise RuntimeError("lost")

        with pytest.raises(RuntimeError, match="lost"):
            write(data, failing(), row_group_bytes=1000)
        assert not list(data.iterdir())

    def test_columns_that_may_not_be_null_become_ordinary_ones(self, data):
        strict = pa.schema([pa.field("_c0", pa.int64(), nullable=False), pa.field("_c1", pa.string())])
        (handle,) = write(data, iter([batch.cast(strict) for batch in batches(10)]))
        assert pq.read_schema(data / handle["name"]).field("_c0").nullable

    @pytest.mark.parametrize(
        ("damage", "told"), [(flip_page, "CRC"), (change_type_of_page, "Expected 2000 rows, found 0")]
    )
    def test_a_page_that_was_changed_or_that_arrow_skips_is_noticed(self, data, damage, told):
        (handle,) = write(data, batches(2000))
        damage(data / handle["name"])
        with pytest.raises(StorageError, match=told):
            read(data, [handle])

    def test_what_goes_to_executors_can_be_pickled_and_shows_no_option(self, data):
        files = ExecutorFiles(f"file://{data}", HiddenOptions({"secret": "planted"}))
        writer = PartitionWriter(files, SCHEMA, "write")
        assert pickle.loads(pickle.dumps(writer)).schema == SCHEMA
        assert "planted" not in repr(writer)
        assert "planted" not in repr(SnapshotReader(files=files, schema=SCHEMA, packed_tasks=b""))


class TestReading:
    def test_parts_of_a_file_share_its_row_groups(self, data):
        (handle,) = write(data, batches(3000), row_group_bytes=5000)
        for parts in (1, 2, 3, 7, 100):
            tasks = [[(handle["name"], handle["size_bytes"], part, parts)] for part in range(parts)]
            assert numbers(read(data, [handle], tasks)) == list(range(3000))
            alone = [numbers(read(data, [handle], [task])) for task in tasks]
            assert sum(map(len, alone)) == 3000
            assert parts == 1 or max(map(len, alone)) < 3000

    def test_a_file_that_is_not_listed_is_not_read(self, data):
        handles = write(data, batches(100))
        (data / "part-99999-loser.parquet").write_bytes(b"half a file")
        assert numbers(read(data, handles)) == list(range(100))

    def test_a_snapshot_without_files_gives_no_rows(self, data):
        assert read(data, []) == []

    def test_a_changed_file_is_refused(self, data):
        (handle,) = write(data, batches(100))
        with (data / handle["name"]).open("ab") as file:
            file.write(b"x")
        with pytest.raises(CorruptStateError, match="was changed"):
            read(data, [handle])

    def test_wide_rows_come_in_small_batches(self, data):
        schema = pa.schema([("_c0", pa.binary())])
        wide = [pa.RecordBatch.from_pydict({"_c0": [bytes([i]) * MIB]}, schema) for i in range(40)]
        writer = PartitionWriter(files_in(data), schema, "write")
        (handle,) = (row for batch in writer.write(iter(wide)) for row in batch.to_pylist())
        reader = SnapshotReader(files=files_in(data), schema=schema, packed_tasks=b"")
        sizes = [b.num_rows for b in reader.read_task([(handle["name"], handle["size_bytes"], 0, 1)])]
        assert sum(sizes) == 40
        assert max(sizes) <= 8


def make_files(*sizes_mib: float) -> list[SnapshotFile]:
    return [
        SnapshotFile(name=f"part-{i}", size_bytes=int(size * MIB), footer_sha256="") for i, size in enumerate(sizes_mib)
    ]


def task_sizes(tasks) -> list[int]:
    return [sum(size // parts for _, size, _, parts in task) for task in tasks]


class TestSharingOut:
    def test_every_piece_is_given_out_once(self):
        pieces = [piece for task in plan_tasks(make_files(512, 300, 1, 1, 0.1)) for piece in task]
        assert len(set(pieces)) == len(pieces)
        for name in {name for name, *_ in pieces}:
            parts = [(part, of) for n, _, part, of in pieces if n == name]
            assert sorted(part for part, _ in parts) == list(range(parts[0][1]))

    def test_small_files_are_read_together(self):
        assert len(plan_tasks(make_files(*[0.01] * 200))) == 1

    def test_tasks_have_about_equal_sizes_of_at_most_128_mib(self):
        sizes = task_sizes(plan_tasks(make_files(*[512] * 20, *[3] * 100)))
        assert max(sizes) <= 160 * MIB
        assert min(sizes) >= 60 * MIB

    def test_a_middling_snapshot_has_work_for_many_cores(self):
        assert len(plan_tasks(make_files(*[8] * 40))) == 32

    def test_no_files_need_no_task(self):
        assert plan_tasks([]) == []

    def test_ten_thousand_files_travel_in_little_space(self):
        names = [f"part-{i:05d}-{i * 7 + 13}-0-{'ab12' * 8}.parquet" for i in range(10_000)]
        files = [SnapshotFile(name=n, size_bytes=MIB + i * 7919 % MIB, footer_sha256="") for i, n in enumerate(names)]
        tasks = plan_tasks(files)
        assert len(pack_tasks(tasks)) < 256 * 1024


TRACES = {
    "package": ("ModuleNotFoundError: No module named 'airflow_provider_statecheck'", "spark.submit.pyFiles"),
    "module-of-the-package": (
        "ModuleNotFoundError: No module named 'airflow_provider_statecheck.spark'",
        "spark.submit.pyFiles",
    ),
    "fsspec": ("ModuleNotFoundError: No module named 'fsspec'", "pip install fsspec"),
    "numpy": ("ModuleNotFoundError: No module named 'numpy'", "pip install numpy"),
    "s3fs": ("ModuleNotFoundError: No module named 's3fs'\n\nThe above", r"airflow-provider-statecheck\[s3\]"),
    "pyarrow": ("PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however", "pip install pyarrow"),
}


@pytest.mark.parametrize(("trace", "advice"), TRACES.values(), ids=TRACES.keys())
def test_a_missing_package_is_named_with_what_to_do(trace, advice):
    with pytest.raises(EnvironmentNotReadyError, match=advice) as raised, explained("s3://bucket/data"):
        raise RuntimeError(f"Job aborted\n{trace}")
    assert raised.value.package in trace.lower()


def test_what_else_went_wrong_stays_as_it_is():
    with pytest.raises(RuntimeError, match="users_module"), explained("s3://bucket/data"):
        raise RuntimeError("No module named 'users_module'")


def test_the_place_is_shown_without_its_password():
    with pytest.raises(EnvironmentNotReadyError) as raised, explained("ftp://me:planted@host/data"):
        raise RuntimeError("No module named 'fsspec'")
    assert "planted" not in str(raised.value)
