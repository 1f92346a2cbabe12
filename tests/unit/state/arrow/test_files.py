"""The files of state: what any Arrow reader finds in them, and how little of them is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyGroupRange,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.run_files import RunBytes, decode_meta, encode_meta
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from tests.unit.state.arrow.harness import BY_TEXT_AND_NUMBER, GROUPS, VALUE, Job

MAP: MapStateDescriptor[Any] = MapStateDescriptor("map", str, int)


def _read(job: Job, handle: Any) -> list[pa.ipc.RecordBatchFileReader]:
    data = [read_state(job.storage, stream) for _, stream in handle.shared]
    return [pa.ipc.open_file(pa.py_buffer(content)) for content in data]


def test_parts_are_plain_arrow_files_with_ascending_disjoint_ranges(tmp_path: Path) -> None:
    job = Job(tmp_path)
    files = _read(job, job.save(job.filled(range(500))))
    assert len(files) > 1
    table = pa.concat_tables([file.read_all() for file in files])
    assert table.column_names == ["key_group", "k_id", "value"]
    assert table.equals(table.sort_by([("key_group", "ascending"), ("k_id", "ascending")]))
    assert sorted(table["k_id"].to_pylist()) == list(range(500))
    assert table["value"].equals(table["k_id"])


def test_block_has_one_key_group_and_at_most_so_many_rows(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(block_rows=7))
    for file in _read(job, job.save(job.filled(range(500)))):
        blocks = [file.get_batch(i) for i in range(file.num_record_batches)]
        assert max(block.num_rows for block in blocks) == 7
        assert all(len(block["key_group"].unique()) == 1 for block in blocks)


def test_block_of_large_values_has_few_rows(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(block_bytes=10_000))
    backend = job.open()
    texts = Job.state(backend, ValueStateDescriptor("text", str))
    for key in range(100):
        backend.set_current_key(key, 3)
        texts.update("x" * 3_000)
    (file,) = _read(job, job.save(backend))
    assert {file.get_batch(i).num_rows for i in range(file.num_record_batches)} <= {1, 2, 3}


def test_part_is_about_as_large_as_was_asked_for(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(part_bytes=20_000, compression=None))
    handle = job.save(job.filled(range(10_000)))
    sizes = [stream.state_size for _, stream in handle.shared]
    assert len(sizes) > 5
    assert all(20_000 <= size < 60_000 for size in sizes[:-1])


def test_map_has_a_row_for_each_entry_in_order(tmp_path: Path) -> None:
    job = Job(tmp_path, BY_TEXT_AND_NUMBER)
    backend = job.open()
    entries = Job.state(backend, MAP)
    backend.set_current_key(("a", 1))
    for user_key in ("z", "b", "m"):
        entries.put(user_key, 1)
    (file,) = _read(job, job.save(backend))
    table = file.read_all()
    assert table.column_names == ["key_group", "k_name", "k_id", "user_key", "value"]
    assert table["user_key"].to_pylist() == ["b", "m", "z"]


def test_change_of_one_entry_rewrites_no_map(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings())
    backend = job.open()
    entries = Job.state(backend, MAP)
    for key in range(50):
        backend.set_current_key(key)
        for n in range(50):
            entries.put(f"entry {n}", n)
    restored = job.open(job.save(backend))
    entries = Job.state(restored, MAP)
    restored.set_current_key(7)
    entries.put("entry 7", -1)
    (newest, *_) = _read(job, job.save(restored))
    assert newest.read_all()["user_key"].to_pylist() == ["entry 7"]


def test_namespace_and_deletion_have_columns_only_where_there_are_any(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(100))
    backend.set_current_key(1)
    Job.state(backend, VALUE, "window").update(5)
    first = job.save(backend)
    assert "namespace" in _read(job, first)[0].schema.names
    restored = job.open(first)
    restored.set_current_key(1)
    Job.state(restored, VALUE, "window").clear()
    second = _read(job, job.save(restored))[0].read_all()
    assert second.select(["k_id", "namespace", "deleted"]).to_pylist() == [
        {"k_id": 1, "namespace": "window", "deleted": True}
    ]


def test_entries_of_a_subtask_without_namespaces_are_found_beside_those_of_another_with_one(tmp_path: Path) -> None:
    job = Job(tmp_path)
    spaces = {key: "window" if job.keys.key_group_of(key, GROUPS) < GROUPS // 2 else "" for key in range(100)}
    handles = []
    for owned, own in ((KeyGroupRange(0, GROUPS // 2 - 1), "window"), (KeyGroupRange(GROUPS // 2, GROUPS - 1), "")):
        backend = job.open(owned=owned)
        for key in (key for key, namespace in spaces.items() if namespace == own):
            backend.set_current_key(key)
            Job.state(backend, MAP, own).put(f"entry {key}", key)
        handles.append(job.save(backend))
    restored = job.open(*handles)
    for key, namespace in spaces.items():
        restored.set_current_key(key)
        assert Job.state(restored, MAP, namespace).get(f"entry {key}") == key


def test_deletions_are_dropped_when_the_oldest_run_takes_part(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open(job.save(job.filled(range(100))))
    batch = job.batch(range(60))
    backend.batch_state(VALUE).put(batch, pa.nulls(60, pa.int64()))
    table = pa.concat_tables([file.read_all() for file in _read(job, job.save(backend))])
    assert table.column_names == ["key_group", "k_id", "value"]
    assert sorted(table["k_id"].to_pylist()) == list(range(60, 100))


class _CountingStorage(CheckpointStorage):
    ranges: list[int]

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        self.ranges.append(end - start)
        return super().read_range(uri, start, end)


def test_one_key_is_one_read_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("memory://one-key")
    handle = job.save(job.filled(range(2_000)))
    lengths = {int(n) for run in job.described(handle)["value"].runs for file in run for n in file.blocks["length"]}
    state = Job.state(backend := job.open(handle), VALUE)
    ranges, read_range = list[int](), CheckpointStorage.read_range

    def counted(storage: CheckpointStorage, uri: str, start: int, end: int) -> bytes:
        ranges.append(end - start)
        return read_range(storage, uri, start, end)

    monkeypatch.setattr(CheckpointStorage, "read_range", counted)
    backend.set_current_key(1_234)
    for _ in range(2):
        assert state.value() == 1_234
        assert len(ranges) == 1
        assert ranges[0] in lengths


def test_neighbouring_pieces_are_one_range_and_distant_ones_are_several() -> None:
    storage = _CountingStorage.open("memory://arrow-pieces")
    storage.ranges = []
    storage.write_bytes("memory://arrow-pieces/file", bytes(range(256)) * 4096)
    handle = FileStateHandle("memory://arrow-pieces/file", 1 << 20)
    found = RunBytes(storage).read(handle, [(0, 10), (20, 10), (1_000_000, 5)])
    assert sorted(storage.ranges) == [5, 30]
    assert [bytes(piece) for piece in found] == [bytes(range(10)), bytes(range(20, 30)), bytes(range(64, 69))]


def _distant_pieces(count: int) -> list[tuple[int, int]]:
    return [(number * 100_000, 10) for number in range(count)]


def _with_file(storage: _CountingStorage) -> FileStateHandle:
    storage.ranges = []
    uri = f"{storage.base_uri}/file"
    storage.write_bytes(uri, bytes(range(250)) * 8_000)
    return FileStateHandle(uri, 2_000_000)


class _MeetingStorage(_CountingStorage):
    meeting: Barrier

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        self.meeting.wait(timeout=30)
        return super().read_range(uri, start, end)


def test_ranges_of_an_object_store_are_read_at_the_same_time() -> None:
    storage = _MeetingStorage.open("memory://arrow-same-time")
    storage.meeting = Barrier(4)
    handle = _with_file(storage)
    found = RunBytes(storage).read_ahead([(handle, _distant_pieces(3)), (handle, [(50, 5)])])
    assert [bytes(piece) for piece in found] == [*[bytes(range(10))] * 3, bytes(range(50, 55))]


def test_no_more_than_four_ranges_are_read_ahead() -> None:
    storage = _CountingStorage.open("memory://arrow-ahead")
    reading = RunBytes(storage).read_ahead([(_with_file(storage), _distant_pieces(20))])
    for taken in range(1, 21):
        next(reading)
        assert len(storage.ranges) <= taken + 3
    assert len(storage.ranges) == 20


def test_reading_that_ends_early_asks_for_nothing_more() -> None:
    storage = _CountingStorage.open("memory://arrow-early")
    reading = RunBytes(storage).read_ahead([(_with_file(storage), _distant_pieces(20))])
    next(reading)
    reading.close()
    assert len(storage.ranges) <= 4


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Requests to the store in memory, as name of the method and file."""
    from fsspec.implementations.memory import MemoryFileSystem

    made = list[tuple[str, str]]()
    for name in ("info", "ls", "find", "_open", "cat_file"):
        original = getattr(MemoryFileSystem, name)

        def counted(self: Any, path: str, *args: Any, _name: str = name, _call: Any = original, **kwargs: Any) -> Any:
            made.append((_name, path.rpartition("/")[2]))
            return _call(self, path, *args, **kwargs)

        monkeypatch.setattr(MemoryFileSystem, name, counted)
    return made


def test_look_up_of_many_keys_makes_one_request_for_each_file(requests: list[tuple[str, str]]) -> None:
    job = Job("memory://many-keys")
    handle = job.save(job.filled(range(2_000)))
    backend = job.open(handle)
    requests.clear()
    assert backend.batch_state(VALUE).get(job.batch(range(2_000))).null_count == 0
    names = [stream.uri.rpartition("/")[2] for _, stream in handle.shared if isinstance(stream, FileStateHandle)]
    assert len(names) > 1
    assert sorted(requests) == sorted(("_open", name) for name in names)


def test_look_up_of_keys_reads_the_blocks_of_their_key_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("memory://few-groups", settings=ArrowStateSettings(block_rows=64))
    handle = job.save(job.filled(range(2_000)))
    keys = [key for key in range(2_000) if job.keys.key_group_of(key, GROUPS) == 3]
    blocks = [
        int(length)
        for [file] in job.described(handle)["value"].runs
        for length in file.blocks["length"][file.key_groups == 3]
    ]
    ranges, read_range = list[int](), CheckpointStorage.read_range

    def counted(storage: CheckpointStorage, uri: str, start: int, end: int) -> bytes:
        ranges.append(end - start)
        return read_range(storage, uri, start, end)

    backend = job.open(handle)
    monkeypatch.setattr(CheckpointStorage, "read_range", counted)
    assert backend.batch_state(VALUE).get(job.batch(keys)).null_count == 0
    assert ranges == [sum(blocks)]


def test_damaged_block_of_an_object_store_is_found_before_its_rows_are_used() -> None:
    job = Job("memory://damaged-block", settings=ArrowStateSettings())
    handle = job.save(job.filled(range(2_000)))
    ((_, stream),) = handle.shared
    assert isinstance(stream, FileStateHandle)
    data = bytearray(job.storage.read_bytes(stream.uri))
    data[len(data) // 2] ^= 1
    job.storage.write_bytes(stream.uri, bytes(data), overwrite=True)
    backend = job.open(handle)
    with pytest.raises(CorruptStateError, match=stream.uri.rpartition("/")[2]):
        backend.batch_state(VALUE).get(job.batch(range(2_000)))
    with pytest.raises(CorruptStateError, match=stream.uri.rpartition("/")[2]):
        list(backend.get_keys("value"))


def test_starting_reads_the_description_and_no_file(tmp_path: Path) -> None:
    job = Job(tmp_path)
    handle = job.save(job.filled(range(500)))
    for _, stream in handle.shared:
        Path(stream.uri.removeprefix("file://")).unlink()  # type: ignore[union-attr]
    backend = job.open(handle)
    backend.set_current_key(1)
    state = Job.state(backend, VALUE)
    with pytest.raises(CheckpointNotFoundError, match="/shared/"):
        state.value()


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings())
    handle = job.save(job.filled(range(20)))
    ((_, stream),) = handle.shared
    path = Path(stream.uri.removeprefix("file://"))  # type: ignore[union-attr]
    data = bytearray(path.read_bytes())
    if damage == "changed":
        for at in range(300, len(data)):
            data[at] ^= 1
    path.write_bytes(data[:300] if damage == "cut" else data)
    backend = job.open(handle)
    backend.set_current_key(1)
    with pytest.raises(CorruptStateError, match=path.name):
        Job.state(backend, VALUE).value()
    with pytest.raises(CorruptStateError, match=path.name):
        list(backend.get_keys("value"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("offset", -5), ("length", -5), ("offset", 1 << 62), ("offset", (1 << 63) - 1), ("length", 1 << 30), ("rows", -1)],
)
def test_block_outside_its_file_is_corrupt_before_anything_is_read(tmp_path: Path, field: str, value: int) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(), inline=20_480)
    handle = job.save(job.filled(range(20)))
    assert isinstance(handle.meta, ByteStreamStateHandle)
    meta = decode_meta(handle.meta.data, dict(handle.shared), "")
    [files] = meta.states
    [[file]] = files.runs
    blocks = file.blocks.copy()
    blocks[field][-1] = value
    forged = replace(meta, states=(replace(files, runs=((replace(file, blocks=blocks),),)),))
    with pytest.raises(CorruptStateError, match="a block"):
        decode_meta(encode_meta(forged), dict(handle.shared), "")


def test_small_state_travels_in_its_handles(tmp_path: Path) -> None:
    job = Job(tmp_path, inline=20_480)
    handle = job.save(job.filled(range(20)))
    assert isinstance(handle.meta, ByteStreamStateHandle)
    assert all(isinstance(stream, ByteStreamStateHandle) for _, stream in handle.shared)
    assert job.files() == set()
    backend = job.open(handle)
    backend.set_current_key(7)
    assert Job.state(backend, VALUE).value() == 7


def test_keys_come_in_the_order_of_their_groups_without_later_changes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open(job.save(job.filled(range(300))))
    job.put(backend, range(0, 300, 3), -1)
    keys = backend.get_keys("value")
    job.put(backend, range(300, 310))
    found = list(keys)
    assert sorted(found) == list(range(300))
    groups = [job.keys.key_group_of(key, GROUPS) for key in found]
    assert groups == sorted(groups)


def test_list_is_a_list_column(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open()
    backend.set_current_key(1)
    Job.state(backend, ListStateDescriptor("list", str)).update(["b", "a"])
    (file,) = _read(job, job.save(backend))
    assert file.read_all()["value"].to_pylist() == [["b", "a"]]
