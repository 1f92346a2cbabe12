"""The files of state: what any Arrow reader finds in them, and how little of them is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, FileStateHandle, KeyGroupRange
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
