"""Files of a Parquet sink: what tasks write, what a commit publishes, and what readers of the ledger see."""

from __future__ import annotations

import datetime
import decimal
import re
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.exactly_once import target_files
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import CommitFiles
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles
from airflow_provider_statecheck.spark.connectors.files.sink import PublishedFiles, committed_files
from airflow_provider_statecheck.spark.tables.data_files import OutputFile
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, table_of
from tests.unit.spark.connectors.attempts import Attempt, committed_in, hidden_in, seen_in


def test_the_names_of_files_tell_whose_they_are(path):
    attempt = Attempt(path, 7, generation=3).open()
    attempt.commit(41, attempt.write(1, subtask=5))
    (file,) = committed_files(path)
    assert file.uri.rpartition("/")[2].startswith(f"part-{file.lineage}-g3-c41-5-")
    assert file.uri.endswith(".parquet")


def test_a_checkpoint_without_output_is_committed_too(path):
    attempt = Attempt(path, 1).open()
    attempt.commit(1, attempt.write())
    attempt.commit(2, [])
    assert (seen_in(path), hidden_in(path, "staging")) == ([], [])
    assert hidden_in(path, "commits") == ["1-1.json"]


def test_an_older_checkpoint_is_not_committed_after_a_newer_one(path):
    attempt = Attempt(path, 1).open()
    late = attempt.write(1)
    attempt.add(2, 2)
    with pytest.raises(CoordinatorError, match=r"a checkpoint after the newest one, found checkpoint 1 of attempt 1"):
        attempt.commit(1, late)
    assert seen_in(path) == [2]


def test_a_staged_file_that_is_gone_is_told_with_its_names(path):
    attempt = Attempt(path, 1).open()
    written = attempt.write(1)
    filesystem, root = fsspec.url_to_fs(path)
    staged = written[0]["files"][0]["name"]
    filesystem.rm_file(next(name for name in filesystem.find(root) if name.endswith(staged)))
    with pytest.raises(CorruptStateError, match=rf"either as part-.* or staged as {staged}, found neither"):
        attempt.commit(1, written)
    assert committed_in(path) == []
    # The target is not blocked by what no attempt can publish.
    second = Attempt(path, 2, generation=2).open()
    second.add(2, 2)
    second.finish()
    assert (seen_in(path), committed_in(path)) == ([2], [2])


@pytest.mark.parametrize(
    ("scheme", "cause"),
    [
        ("local", "it was deleted, or the executors of Spark wrote it to another disk"),
        ("memory", "it was deleted. Restore"),
    ],
)
def test_a_lost_file_is_told_with_what_may_have_happened_on_such_a_storage(tmp_path, memory_path, scheme, cause):
    attempt = Attempt(str(tmp_path / "table") if scheme == "local" else memory_path, 1).open()
    written = attempt.write(1)
    attempt.files.delete(written[0]["files"][0]["name"])
    with pytest.raises(CorruptStateError, match=f"found neither; {re.escape(cause)}"):
        attempt.commit(1, written)


def test_a_move_whose_reply_was_lost_is_made_once(path, monkeypatch):
    attempt = Attempt(path, 1).open()
    written = attempt.write(1)
    move = TargetFiles.move

    def lost(*args):
        move(*args)
        return move(*args)

    monkeypatch.setattr(TargetFiles, "move", lost)
    attempt.commit(1, written)
    assert (seen_in(path), committed_in(path)) == ([1], [1])


def test_a_copy_whose_original_stayed_is_finished(memory_path, monkeypatch):
    first = Attempt(memory_path, 1).open()
    written = first.write(1)
    with monkeypatch.context() as patch:
        patch.setattr(TargetFiles, "delete", _failing)
        with pytest.raises(StorageError, match="planted"):
            first.commit(1, written)
    assert len(hidden_in(memory_path, "staging")) == 1
    Attempt(memory_path, 2, restored=1).open().commit(1, written)
    assert hidden_in(memory_path, "staging") == []
    assert (seen_in(memory_path), committed_in(memory_path)) == ([1], [1])


def _failing(*_):
    raise StorageError("planted")


def test_a_published_file_that_was_changed_is_refused(path, monkeypatch):
    first = Attempt(path, 1).open()
    written = first.write(1)
    with monkeypatch.context() as patch:
        # The process dies after it has published, before it notes that.
        patch.setattr(PublishedFiles, "publish", _dying_after(PublishedFiles.publish))
        with pytest.raises(KeyboardInterrupt):
            first.commit(1, written)
    filesystem, root = fsspec.url_to_fs(path)
    (name,) = (n for n in filesystem.find(root) if n.endswith(".parquet"))
    content = bytearray(filesystem.cat_file(name))
    content[-20] ^= 1
    filesystem.pipe_file(name, bytes(content))
    with pytest.raises(CorruptStateError, match="the file was modified"):
        Attempt(path, 2, restored=1).open()


def test_output_that_was_deleted_while_it_was_published_is_told_with_what_makes_a_fresh_start_possible(
    path, monkeypatch
):
    first = Attempt(path, 1).open()
    with monkeypatch.context() as patch:
        patch.setattr(PublishedFiles, "publish", _dying_after(PublishedFiles.publish))
        with pytest.raises(KeyboardInterrupt):
            first.add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    lineage = first.context.lineage
    filesystem.rm_file(next(n for n in filesystem.find(root) if n.endswith(".parquet")))
    with pytest.raises(CorruptStateError, match=rf"the log of the sink, _statecheck/{lineage}, and start over"):
        Attempt(path, 2, generation=2).open()
    filesystem.rm(f"{root}/_statecheck/{lineage}", recursive=True)
    Attempt(path, 2, generation=2).open().add(2, 2)
    assert both(path) == same(2)


def _dying_after(call):
    def dying(*args):
        call(*args)
        raise KeyboardInterrupt

    return dying


def test_what_a_savepoint_has_of_another_target_is_left_alone(path, caplog):
    other = Attempt(f"{path}-other", 1, job="other").open().write(1)
    Attempt(path, 1).open().commit(5, other)
    assert "job that writes to another destination" in caplog.text
    assert committed_in(path) == []


def both(path):
    return seen_in(path), committed_in(path)


def same(*keys):
    return list(keys), list(keys)


def test_files_of_strangers_stay(path):
    filesystem, root = fsspec.url_to_fs(path)
    filesystem.makedirs(root, exist_ok=True)
    filesystem.pipe_file(f"{root}/notes.txt", b"keep")
    filesystem.pipe_file(f"{root}/_SUCCESS", b"")
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    attempt.finish()
    Attempt(path, 2, generation=2).open().finish()
    assert filesystem.cat_file(f"{root}/notes.txt") == b"keep"
    assert filesystem.exists(f"{root}/_SUCCESS")


def test_staged_files_of_earlier_attempts_stay_until_the_first_commit_of_a_newer_one(path):
    open_one = Attempt(path, 1).open().write(1)
    second = Attempt(path, 2, restored=1).open()
    assert len(hidden_in(path, "staging")) == 1
    second.commit(1, open_one)
    lost = Attempt(path, 2, restored=1)
    lost.sink = second.sink
    lost.write(99)  # by a task that lost against its copy
    second.add(2, 2)
    assert both(path) == same(1, 2)
    assert len(hidden_in(path, "staging")) == 1
    second.finish()
    assert hidden_in(path, "staging") == []


def test_a_task_of_a_newer_attempt_loses_no_file_to_the_end_of_an_older_one(path, monkeypatch):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    lineage = filesystem.ls(f"{root}/_statecheck", detail=False)[0]
    newer = f"{lineage}/staging/2-{'0' * 32}.staged"
    filesystem.pipe_file(newer, b"being written")
    first.finish()
    assert filesystem.exists(newer)


def test_a_published_file_that_no_log_names_is_deleted_at_the_end(path):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    (name,) = (n for n in filesystem.find(root) if n.endswith(".parquet"))
    filesystem.cp_file(name, name.replace("-c1-", "-c9-"))
    assert seen_in(path) == [1, 1]
    attempt.finish()
    assert seen_in(path) == [1]


class RenamingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Stands for HDFS: files are renamed by the server, into directories that are there."""

    protocol = "hdfs"

    def cp_file(self, *_: object, **__: object) -> None:
        raise AssertionError("a filesystem that renames copies nothing")

    def mv(self, path1: str, path2: str, **_: object) -> None:
        Path(path1).rename(path2)


@pytest.fixture
def renaming(tmp_path):
    storage = CheckpointStorage(RenamingFileSystem(use_listings_cache=False), f"hdfs://{tmp_path}/table")
    return TargetFiles(storage, "0" * 12)


def test_a_file_is_renamed_where_the_server_can(renaming, tmp_path):
    name = f"_statecheck/{'0' * 12}/staging/1-x.staged"
    renaming.storage.write_bytes(f"{renaming.storage.base_uri}/{name}", b"content")
    final = f"day=1/part-{'0' * 12}-g1-c1-0-{'a' * 12}.parquet"
    renaming.move(name, final)
    assert renaming.list_files() == {final: 7}


def test_where_nothing_was_written_nothing_is_committed(path):
    assert committed_files(path) == ()


def test_readers_of_the_ledger_see_all_or_nothing_of_a_checkpoint(path, monkeypatch):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    written = [*attempt.write(2), *attempt.write(3)]
    monkeypatch.setattr(file_operations, "PARALLEL_CALLS", 1)  # one file after the other
    views = _watched(monkeypatch, PublishedFiles, "_move", path)
    attempt.commit(2, written)
    assert views == [([1, 2], [1]), ([1, 2, 3], [1])] or views == [([1, 3], [1]), ([1, 2, 3], [1])]
    assert committed_in(path) == [1, 2, 3]


def test_replaced_output_leaves_the_ledger_in_the_moment_in_which_new_output_enters_it(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    second = Attempt(path, 2, generation=2).open()
    written = second.write(2)
    views = _watched(monkeypatch, CommitFiles, "write", path)
    second.commit(2, written)
    assert views == [([1], [1]), ([1, 2], [2]), ([2], [2])]


def test_a_reader_reads_again_if_output_was_replaced_in_between(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    second = Attempt(path, 2, generation=2).open()
    written = second.write(2)
    visible = CommitFiles.visible

    def meeting(*args):
        monkeypatch.undo()
        second.commit(2, written)
        return visible(*args)

    monkeypatch.setattr(CommitFiles, "visible", meeting)
    assert committed_in(path) == [2]


def test_a_ledger_that_changes_all_the_time_is_an_error(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    logs = iter(range(1000))
    monkeypatch.setattr(CommitFiles, "read", lambda _: (next(logs), next(logs)))
    monkeypatch.setattr(CommitFiles, "visible", lambda *_: [])
    with pytest.raises(StorageError, match="between two commits"):
        committed_files(path)


def test_a_committed_file_tells_its_rows_and_size_and_checkpoint(path):
    attempt = Attempt(path, 1).open()
    written = attempt.add(5, 1, 2)
    (file,) = committed_files(path)
    assert (file.rows, file.checkpoint_id) == (2, 5)
    assert file.size_bytes == written[0]["files"][0]["size_bytes"]


def _watched(monkeypatch, place, name, path):
    """Note what readers of the directory and of the ledger see after each call."""
    call, views = getattr(place, name), []

    def watched(*args):
        call(*args)
        views.append((seen_in(path), committed_in(path)))

    monkeypatch.setattr(place, name, watched)
    return views


DAYS = pa.schema([("key", pa.int64()), ("name", pa.string()), ("day", pa.date32())])


def table_in(path, partitions=None):
    filesystem, root = fsspec.url_to_fs(path)
    partitioning = ds.partitioning(partitions, flavor="hive")
    return ds.dataset(root, filesystem=filesystem, format="parquet", partitioning=partitioning).to_table()


def committed(path, table, **settings):
    attempt = Attempt(path, 1, schema=table.schema, **settings).open()
    attempt.commit(1, attempt.write_table(table))


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
def test_columns_are_compressed_as_told(path, compression):
    committed(path, table_of([1]), compression=compression)
    (file,) = committed_files(path)
    with fsspec.open(file.uri) as opened:
        found = pq.read_metadata(opened).row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


# Partitions


def test_rows_lie_in_the_directories_of_their_values(path):
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]
    table = pa.table({"key": [1, 2, 3], "name": ["a", "b", "c"], "day": [days[0], days[1], days[0]]}, DAYS)
    committed(path, table, partition_by=["day"])
    directories = [file.uri.removeprefix(f"{path}/").rpartition("/")[0] for file in committed_files(path)]
    assert directories == ["day=2024-01-01", "day=2024-01-02"]
    assert [file.rows for file in committed_files(path)] == [2, 1]
    assert sorted(table_in(path).column("key").to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("value", ["a/b", "..", "a=b", "50%", "*?[]{}", "ü\n", "x y", None, "__x"])
def test_any_text_is_a_directory_of_one_level_and_read_back(path, value):
    table = pa.table({"key": [1], "name": [value]}, SCHEMA)
    committed(path, table, partition_by=["name"])
    (file,) = committed_files(path)
    assert file.uri.removeprefix(f"{path}/").count("/") == 1
    found = table_in(path, pa.schema([("name", pa.string())]))
    assert found.select(["key", "name"]).to_pylist() == [{"key": 1, "name": value}]


def test_partitions_of_whole_numbers_and_booleans_are_read_back(path):
    table = pa.table({"key": [1, 2], "number": [-7, 8], "flag": [True, False]})
    committed(path, table, partition_by=["number", "flag"])
    found = sorted(file.uri.removeprefix(f"{path}/").rpartition("/")[0] for file in committed_files(path))
    assert found == ["number=-7/flag=true", "number=8/flag=false"]


def test_partitions_need_a_column_that_is_there_and_one_beside_it(path):
    with pytest.raises(UnsupportedStateError, match="column 'day' of partition_by in the output, found key, name"):
        Attempt(path, 1, partition_by=["day"]).open()
    with pytest.raises(UnsupportedStateError, match="a column in addition to those of partition_by"):
        Attempt(path, 1, partition_by=["name", "key"]).open()


@pytest.mark.parametrize(
    ("scheme", "fitting", "longer"), [("file", "x" * 250, "ä" * 126), ("memory", "x" * 800, "x" * 900)]
)
def test_a_partition_whose_name_no_commit_could_create_fails_its_task(tmp_path, memory_path, scheme, fitting, longer):
    attempt = Attempt(str(tmp_path) if scheme == "file" else memory_path, 1, partition_by=["name"]).open()
    with pytest.raises(UnsupportedStateError, match=r"bytes in .*, found \d+ bytes for name; shorten"):
        attempt.write_table(pa.table({"key": [1], "name": [longer]}, SCHEMA))
    attempt.commit(1, attempt.write_table(pa.table({"key": [1], "name": [fitting]}, SCHEMA)))


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.timestamp("us"), pa.list_(pa.int64())])
def test_partitions_of_other_types_are_refused(memory_path, kind):
    schema = pa.schema([("key", pa.int64()), ("part", kind)])
    with pytest.raises(UnsupportedStateError, match=r"integers, strings, dates or booleans, found 'part'"):
        Attempt(memory_path, 1, schema=schema, partition_by=["part"]).open()


# Files of a task


def test_values_of_any_type_are_read_back_equal(path):
    table = pa.table(
        {
            "a": pa.array([1, None], pa.int8()),
            "b": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "c": pa.array([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None], pa.timestamp("us", tz="UTC")),
            "d": pa.array([[1, None], None], pa.list_(pa.int32())),
            "e": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "f": pa.array([{"x": b"1"}, None], pa.struct([("x", pa.binary())])),
        }
    )
    committed(path, table)
    (file,) = committed_files(path)
    with fsspec.open(file.uri) as opened:
        assert pq.ParquetFile(opened).read() == table


def test_columns_may_have_any_order_and_a_full_file_is_followed_by_another(path):
    attempt = Attempt(path, 1, max_file_bytes=1).open()
    writer = attempt.task()
    writer.write(table_of([1]).select(["name", "key"]))
    writer.write(table_of([2]))
    attempt.commit(1, writer.prepare_commit())
    assert [file.rows for file in committed_files(path)] == [1, 1]
    assert table_in(path).sort_by("key").to_pylist() == table_of([1, 2]).to_pylist()


def test_rows_wait_for_each_other_in_row_groups_of_bounded_size(path, monkeypatch):
    monkeypatch.setattr(target_files, "ROW_GROUP_BYTES", table_of([1, 2]).nbytes)
    attempt = Attempt(path, 1).open()
    writer = attempt.task()
    for key in range(5):
        writer.write(table_of([key]))
    attempt.commit(1, writer.prepare_commit())
    (file,) = committed_files(path)
    with fsspec.open(file.uri) as opened:
        metadata = pq.read_metadata(opened)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 2, 1]


def test_few_files_are_open_at_once(path, monkeypatch):
    monkeypatch.setattr(target_files, "MAX_OPEN_FILES", 2)
    attempt = Attempt(path, 1, partition_by=["name"]).open()
    writer = attempt.task()
    writer.write(table_of([1, 2, 3]))
    writer.write(table_of([1, 2, 3]))
    attempt.commit(1, writer.prepare_commit())
    assert len(committed_files(path)) > 3
    assert committed_in(path) == [1, 1, 2, 2, 3, 3]


def test_memory_of_all_open_files_is_bounded(path, monkeypatch):
    monkeypatch.setattr(target_files, "ROW_GROUP_BYTES", 200)
    flushed = []
    monkeypatch.setattr(OutputFile, "flush", lambda file: flushed.append(file))
    writer = Attempt(path, 1, partition_by=["name"]).open().task()
    writer.write(table_of(range(40)))
    assert flushed
    writer.abort()


def test_half_a_file_is_never_sent(memory_path):
    writer = Attempt(memory_path, 1).open().task()
    writer.write(table_of([1, 2]))
    assert hidden_in(memory_path, "staging") == []
    writer.prepare_commit()
    assert len(hidden_in(memory_path, "staging")) == 1


def test_a_task_that_gives_up_deletes_whole_and_half_files(path):
    writer = Attempt(path, 1, max_file_bytes=table_of([1, 2]).nbytes + 1).open().task()
    writer.write(table_of(range(100)))
    writer.write(table_of([1]))
    assert hidden_in(path, "staging")
    writer.abort()
    writer.abort()
    assert hidden_in(path, "staging") == []


def test_giving_up_raises_nothing_where_the_storage_fails(path, monkeypatch, caplog):
    writer = Attempt(path, 1, max_file_bytes=1).open().task()
    writer.write(table_of([1]))
    monkeypatch.setattr(TargetFiles, "delete", _failing)
    writer.abort()
    assert "was not deleted: planted" in caplog.text
