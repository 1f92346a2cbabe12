"""Snapshots write what is new, name what is there, merge few runs, and leave nothing behind when they fail."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange
from airflow_provider_statecheck.exceptions import BackendRestoreError, StorageError
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.state_runs import runs_to_merge
from airflow_provider_statecheck.state.backends import ArrowStateBackend, MemoryStateBackend
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend, StateSize
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.function_harness import KeyedHarness
from tests.unit.state.arrow.harness import GROUPS, VALUE, FailingStreams, Job

OTHER: ValueStateDescriptor[Any] = ValueStateDescriptor("other", str)


def test_only_changed_data_is_written_and_older_files_are_named_again(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings())
    backend = job.filled(range(5_000), 0)
    first = backend.snapshot(1, 0, job.streams()).run()
    again = job.open(first.handle)
    job.put(again, range(50), 1)
    second = again.snapshot(2, 0, job.streams()).run()
    assert second.new_bytes < first.new_bytes / 2
    assert set(first.handle.shared) < set(second.handle.shared)  # type: ignore[union-attr]


def test_unchanged_state_names_its_files_and_writes_a_description_alone(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(100), 0)
    first = job.save(backend)
    restored = job.open(first)
    Job.state(restored, VALUE)
    result = restored.snapshot(2, 0, job.streams()).run()
    assert result.handle.shared == first.shared  # type: ignore[union-attr]
    assert result.new_bytes == result.handle.meta.state_size  # type: ignore[union-attr]


def test_state_that_nobody_asks_for_is_carried_on_without_reading_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(100), 0)
    backend.set_current_key(1)
    Job.state(backend, OTHER).update("x")
    first = job.save(backend)
    middle = job.open(first)
    middle.set_current_key(1)
    Job.state(middle, OTHER).update("y")
    files = {path: Path(s.uri.removeprefix("file://")) for path, s in first.shared}  # type: ignore[union-attr]
    hidden = {path: file.read_bytes() for path, file in files.items()}
    of_value = {file.path for run in job.described(first)["value"].runs for file in run}
    for path in of_value:
        files[path].unlink()
    second = job.save(middle)
    for path in of_value:
        files[path].write_bytes(hidden[path])
    assert job.values(job.open(second), range(100)) == [0] * 100


def test_changes_during_a_snapshot_are_kept_when_it_completes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(10), 1)
    snapshot = backend.snapshot(1, 0, job.streams())
    job.put(backend, range(5), 2)
    assert job.values(job.open(snapshot.run().handle), range(10)) == [1] * 10
    backend.notify_checkpoint_complete(1)
    wanted = [2] * 5 + [1] * 5
    assert job.values(backend, range(10)) == wanted
    assert job.values(job.open(job.save(backend)), range(10)) == wanted


def test_files_of_a_checkpoint_are_named_only_after_it_was_complete(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(1_000), 0)
    first = backend.snapshot(1, 0, job.streams()).run().handle
    backend.notify_checkpoint_aborted(1)
    job.put(backend, range(5), 1)
    second = backend.snapshot(2, 0, job.streams()).run().handle
    assert not set(first.shared) & set(second.shared)  # type: ignore[union-attr]
    backend.notify_checkpoint_complete(2)
    job.put(backend, range(5), 2)
    third = backend.snapshot(3, 0, job.streams()).run().handle
    assert set(second.shared) & set(third.shared)  # type: ignore[union-attr]
    assert job.values(job.open(third), range(10)) == [2] * 5 + [0] * 5


@pytest.mark.parametrize("fails_at", range(4))
def test_failing_write_leaves_no_file_and_a_retry_works(tmp_path: Path, fails_at: int) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(block_rows=50, part_bytes=2_000))
    backend = job.filled(range(500), 0)
    with pytest.raises(StorageError, match="full"):
        backend.snapshot(1, 0, FailingStreams(job.streams(), fails_at)).run()
    assert job.files() == set()
    handle = job.save(backend)
    assert len(handle.shared) > fails_at - 1
    assert job.values(job.open(handle), range(500)) == [0] * 500


def test_failing_write_deletes_nothing_that_was_restored(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(100), 0)
    first = job.save(backend)
    before = job.files()
    restored = job.open(first)
    job.put(restored, range(100), 1)
    with pytest.raises(StorageError, match="full"):
        restored.snapshot(2, 0, FailingStreams(job.streams(), 1)).run()
    assert job.files() == before


def test_several_subtasks_name_a_file_under_one_name(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings())
    backend = job.filled(range(100), 0)
    whole = job.save(backend)
    halves = [job.open(whole, owned=KeyGroupRange(*ends)) for ends in ((0, 7), (8, GROUPS - 1))]
    handles = [job.save(half) for half in halves]
    assert handles[0].shared == handles[1].shared == whole.shared
    assert {handle.backend_id for handle in (whole, *handles)} == {"arrow"}
    found = [job.values(job.open(handle), range(100)).count(0) for handle in handles]
    assert sum(found) == 100
    assert all(found)


def test_blocks_of_other_key_groups_are_not_read(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(500), 0)
    half = job.open(job.save(backend), owned=KeyGroupRange(0, 7))
    Job.state(half, VALUE)
    (run,) = job.capture(half).states[0].base
    assert int(run.block_key_groups.max()) == 7
    assert all(job.keys.key_group_of(key, GROUPS) <= 7 for key in half.get_keys("value"))


def test_runs_of_several_subtasks_become_one(tmp_path: Path) -> None:
    job = Job(tmp_path)
    parts = []
    for start, end in ((0, 4), (5, 10), (11, GROUPS - 1)):
        backend = job.open(owned=KeyGroupRange(start, end))
        keys = [key for key in range(200) if start <= job.keys.key_group_of(key, GROUPS) <= end]
        batch = job.batch(keys)
        backend.batch_state(VALUE).put(batch, batch.columns[0])
        parts.append(job.save(backend))
    whole = job.open(*reversed(parts))
    assert job.values(whole, range(200)) == list(range(200))
    assert len(job.capture(whole).states[0].base) == 1


def test_changes_beyond_the_memory_go_to_local_files_and_are_in_the_snapshot(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(memtable_bytes=20_000))
    backend = job.open()
    state = Job.state(backend, VALUE)
    keys = sorted(range(30_000), key=lambda key: job.keys.key_group_of(key, GROUPS))
    last = 0
    for key in keys:
        group = job.keys.key_group_of(key, GROUPS)
        if group != last:
            backend.advance_to(group)
            last = group
        backend.set_current_key(key, group)
        state.update(key)
    snapshot = job.capture(backend)
    (captured,) = snapshot.states
    assert captured.state.memory_bytes <= 20_000
    assert len(captured.fresh) <= 3
    assert job.files() == set()
    assert job.values(job.open(snapshot.run().handle), range(0, 30_000, 77)) == list(range(0, 30_000, 77))


def test_local_files_go_with_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "local"))
    tmp_path.joinpath("local").mkdir()
    job = Job(tmp_path, settings=ArrowStateSettings(memtable_bytes=1))
    backend = job.filled(range(100), 0)
    (directory,) = tmp_path.joinpath("local").iterdir()
    assert list(directory.iterdir())
    backend.dispose()
    backend.dispose()
    assert not directory.exists()


def test_older_values_are_read_with_a_wider_type_and_written_with_it_in_the_next_snapshot(tmp_path: Path) -> None:
    job = Job(tmp_path)
    old: ValueStateDescriptor[int] = ValueStateDescriptor("n", pa.int32())
    new: ValueStateDescriptor[int] = ValueStateDescriptor("n", pa.int64())
    backend = job.open()
    batch = job.batch(range(100))
    backend.batch_state(old).put(batch, pa.array(range(100), pa.int32()))
    first = job.save(backend)
    restored = job.open(first)
    assert restored.batch_state(new).get(batch).to_pylist() == list(range(100))
    restored.set_current_key(1)
    Job.state(restored, new).update(1 << 40)
    second = job.save(restored)
    assert not set(first.shared) & set(second.shared)
    again = job.open(second)
    (files,) = job.described(second).values()
    assert all(file.state == files.state for run in files.runs for file in run)
    again.set_current_key(1)
    assert Job.state(again, new).value() == 1 << 40
    assert again.num_entries() == 100


@pytest.mark.parametrize("damage", [b"", b"ARROW1", b"x" * 500])
def test_damaged_description_is_refused(tmp_path: Path, damage: bytes) -> None:
    job = Job(tmp_path, inline=20_480)
    backend = job.filled(range(10), 0)
    handle = job.save(backend)
    with pytest.raises(BackendRestoreError, match="Expected snapshot metadata"):
        job.open(replace(handle, meta=replace(handle.meta, data=damage)))  # type: ignore[type-var]


def test_keys_that_were_read_ahead_are_no_search(tmp_path: Path) -> None:
    job = Job(tmp_path)
    entries: MapStateDescriptor[Any] = MapStateDescriptor("map", str, int)
    backend = job.filled(range(100), 7)
    for key in range(100):
        backend.set_current_key(key)
        Job.state(backend, entries).put("a", key)
    handle = job.save(backend)
    restored = job.open(handle)
    states = Job.state(restored, VALUE), Job.state(restored, entries)
    restored.prefetch(job.batch(range(50)))
    for _, stream in handle.shared:
        # Emptied, not deleted: the backend may have the files open.
        Path(stream.uri.removeprefix("file://")).write_bytes(b"")  # type: ignore[union-attr]
    for key in range(50):
        restored.set_current_key(key)
        assert (states[0].value(), dict(states[1].entries())) == (7, {"a": key})


def test_rows_with_and_without_a_namespace_may_be_in_one_run(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(block_rows=1))
    backend = job.open()
    keys = sorted(range(4), key=lambda key: job.keys.key_group_of(key, GROUPS))
    for count, (key, namespace) in enumerate(zip(keys, ("", "a", "", "b"), strict=True), 1):
        backend.set_current_key(key)
        Job.state(backend, VALUE, namespace).update(key)
        assert backend.num_entries() == count  # counting seals the changes

    def found(opened: Any) -> list[tuple[int, str, int]]:
        every = []
        for key in keys:
            opened.set_current_key(key)
            every += [(key, space, Job.state(opened, VALUE, space).value()) for space in ("", "a", "b")]
        return [each for each in every if each[2] is not None]

    wanted = [(keys[0], "", keys[0]), (keys[1], "a", keys[1]), (keys[2], "", keys[2]), (keys[3], "b", keys[3])]
    assert found(backend) == wanted
    assert found(job.open(job.save(backend))) == wanted


def test_expired_values_are_dropped_when_all_is_written_again(tmp_path: Path) -> None:
    job = Job(tmp_path, now_ms=1_000)
    expiring: ValueStateDescriptor[int] = ValueStateDescriptor("n", int, ttl=StateTtlConfig(timedelta(milliseconds=50)))
    backend = job.open()
    for key in range(10):
        backend.set_current_key(key)
        Job.state(backend, expiring).update(key)
    first = job.save(backend)
    job.now_ms = 1_100
    restored = job.open(first)
    for key in range(10, 30):
        restored.set_current_key(key)
        Job.state(restored, expiring).update(key)
    again = job.open(job.save(restored))
    Job.state(again, expiring)
    assert sorted(again.get_keys("n")) == list(range(10, 30))


def test_block_that_was_read_before_there_were_namespaces_is_of_none(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(memtable_bytes=1))
    backend = job.open()
    first, second = sorted(range(2), key=lambda key: job.keys.key_group_of(key, GROUPS))
    backend.set_current_key(first)
    Job.state(backend, VALUE).update(1)
    assert backend.num_entries() == 1  # counting seals the changes
    assert Job.state(backend, VALUE).value() == 1
    backend.set_current_key(second)
    Job.state(backend, VALUE, "a").update(2)
    assert backend.num_entries() == 2
    backend.set_current_key(first)
    assert Job.state(backend, VALUE, "a").value() is None
    assert Job.state(backend, VALUE).value() == 1
    assert len(job.capture(backend).states[0].fresh) == 1


def test_batch_replaces_what_was_read_ahead(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(10), 1)
    backend.prefetch(job.batch(range(10)))
    job.put(backend, range(5), 2)
    backend.set_current_key(3)
    assert Job.state(backend, VALUE).value() == 2


def test_change_replaces_what_was_read_ahead_also_after_it_became_rows(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.filled(range(10), 1)
    backend = job.open(job.save(backend))
    state = Job.state(backend, VALUE)
    backend.prefetch(job.batch(range(10)))
    for key, value in ((3, 2), (4, None)):
        backend.set_current_key(key)
        state.update(value)
    job.save(backend)
    found = []
    for key in (2, 3, 4):
        backend.set_current_key(key)
        found.append(state.value())
    assert found == [1, 2, None]


def _run(raw_bytes: int, deletions: int = 0) -> Any:
    """Return the sizes of a run with rows of one byte."""
    return SimpleNamespace(raw_bytes=raw_bytes, deletions=deletions, num_rows=raw_bytes)


def _after(runs: list[Any], new: int, deletions: int = 0) -> tuple[list[Any], int]:
    count = runs_to_merge(new, deletions, runs)
    merged = new + sum(run.raw_bytes for run in runs[:count])
    left = 0 if count == len(runs) else deletions + sum(run.deletions for run in runs[:count])
    return [_run(merged, left), *runs[count:]], merged


@pytest.mark.parametrize(
    ("new", "deletions", "runs", "merged"),
    [
        (10, 10, [], 0),
        (10, 0, [_run(100), _run(1000)], 0),
        (10, 0, [_run(10), _run(20), _run(1000)], 2),
        (60, 60, [_run(100)], 1),
        (10, 0, [_run(50, deletions=50), _run(100)], 2),
    ],
    ids=["first change", "much smaller", "as large as the newest", "most is deleted now", "most was deleted before"],
)
def test_change_is_merged_with_runs_of_its_size_or_with_all(
    new: int, deletions: int, runs: list[Any], merged: int
) -> None:
    assert runs_to_merge(new, deletions, runs) == merged


@given(st.lists(st.integers(1, 50), min_size=100, max_size=300))
def test_runs_stay_few_and_none_is_merged_often(changes: list[int]) -> None:
    runs, written = [_run(5000)], 0
    for change in changes:
        runs, merged = _after(runs, change)
        written += merged
        assert len(runs) <= 24
        assert sum(run.raw_bytes for run in runs[:-1]) <= runs[-1].raw_bytes
    assert written <= 10 * sum(changes)


def test_hundred_equal_changes_are_written_less_than_four_times() -> None:
    runs, written = [_run(10_000)], 0
    for _ in range(100):
        runs, merged = _after(runs, 100)
        written += merged
        assert len(runs) <= 8
    assert written <= 4 * 100 * 100


TOTAL = ValueStateDescriptor("total", int)
PLACES = MapStateDescriptor("places", str, int)


def _storage() -> CheckpointStorage:
    return CheckpointStorage.open(f"memory://{uuid.uuid4().hex}")


def _write(backend: AbstractKeyedStateBackend, keys: list[str]) -> None:
    for key in keys:
        backend.set_current_key(key)
        total: Any = backend.get_partitioned_state(TOTAL)
        total.update(1)
        places: Any = backend.get_partitioned_state(PLACES)
        places.put("a", 1)
        places.put("b", 2)


def _sizes(keyed: KeyedHarness, backend: AbstractKeyedStateBackend) -> dict[str, StateSize]:
    return {size.name: size for size in keyed.snapshot(backend).run().sizes}


@pytest.mark.parametrize("kind", [MemoryStateBackend, ArrowStateBackend])
def test_the_keys_of_a_value_are_counted_and_those_of_a_map_are_unknown(kind: type) -> None:
    keyed = KeyedHarness(kind(), _storage())
    backend = keyed.open()
    _write(backend, ["a", "b", "c"])
    sizes = _sizes(keyed, backend)
    assert (sizes["total"].keys, sizes["places"].keys) == (3, None)


def test_arrow_files_of_each_state_are_summed_over_checkpoints() -> None:
    keyed = KeyedHarness(ArrowStateBackend(), _storage())
    backend = keyed.open()
    _write(backend, ["a", "b", "c"])
    first = keyed.snapshot(backend).run()
    backend.notify_checkpoint_complete(1)
    second = keyed.snapshot(backend).run()
    for result in (first, second):
        assert result.handle is not None
        parts = sum(stream.state_size for _, stream in result.handle.shared)
        assert sum(size.size_bytes or 0 for size in result.sizes) == parts > 0


def test_a_backend_without_state_has_no_sizes() -> None:
    keyed = KeyedHarness(ArrowStateBackend(), _storage())
    assert _sizes(keyed, keyed.open()) == {}
