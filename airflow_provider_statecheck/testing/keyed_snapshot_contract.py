"""Rules of snapshots and restores of keyed state, for any state backend; part of ``StateBackendContract``."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import (
    SnapshotCancelledError,
    StorageError,
)
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.testing.keyed_harness import KeyedHarness
from airflow_provider_statecheck.testing.keyed_samples import (
    NOTHING,
    all_descriptors,
    read_all,
    write_all,
    written,
)
from airflow_provider_statecheck.testing.keyed_stream_faults import CancellingStreams, FailingStreams

KEYS = [f"key {number}" for number in range(50)]


class KeyedSnapshotContract:
    """What is in a snapshot, and what is left when it is not finished."""

    travels_in_handles = False
    """Whether snapshots leave the streams of the checkpoint alone; a subclass says so."""

    def test_empty_backend_has_nothing_to_save(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        assert keyed.snapshot(backend).run().is_empty
        read_nothing = keyed.open()
        read_nothing.set_current_key("a")
        read_all(read_nothing)
        assert keyed.snapshot(read_nothing).run().is_empty
        assert keyed.files() == set()

    def test_result_tells_how_much_was_written(self, keyed: KeyedHarness) -> None:
        result = keyed.snapshot(filled(keyed)).run()
        assert result.handle is not None
        assert result.new_bytes > 0

    def test_snapshot_shows_the_state_at_its_sync_point(self, keyed: KeyedHarness) -> None:
        backend: Any = filled(keyed)
        snapshot = keyed.snapshot(backend)
        for key in KEYS[:10]:
            backend.set_current_key(key)
            for each in all_descriptors().values():
                backend.get_partitioned_state(each).clear()
        for key in [*KEYS[10:20], "new"]:
            backend.set_current_key(key)
            write_all(backend, 1000)
        backend.store.get_state(ValueStateDescriptor("later", int)).update(1)
        restored: Any = keyed.open([snapshot.run().handle])
        for number, key in enumerate(KEYS):
            restored.set_current_key(key)
            assert read_all(restored) == written(number)
        restored.set_current_key("new")
        assert read_all(restored) == NOTHING
        assert [schema.name for schema in restored.schemas()] == list(all_descriptors())

    def test_objects_that_are_changed_later_are_saved_as_they_were(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        value = backend.store.get_state(ValueStateDescriptor("v", list[int]))
        entries = backend.store.get_map_state(MapStateDescriptor("m", str, list[int]))
        elements = backend.store.get_list_state(ListStateDescriptor("l", list[int]))
        handed_in: Any = [1]
        value.update(handed_in)
        entries.put("x", handed_in)
        elements.add(handed_in)
        snapshot = keyed.snapshot(backend)
        handed_in.append(2)
        for handed_out in (value.value(), entries.get("x"), *elements.get()):
            assert handed_out is not None
            handed_out.append(3)
        restored: Any = keyed.open([snapshot.run().handle])
        restored.set_current_key("a")
        assert restored.store.get_state(ValueStateDescriptor("v", list[int])).value() == [1]
        assert restored.store.get_map_state(MapStateDescriptor("m", str, list[int])).get("x") == [1]
        assert list(restored.store.get_list_state(ListStateDescriptor("l", list[int])).get()) == [[1]]

    def test_several_snapshots_each_see_their_own_version(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        state = backend.store.get_state(ValueStateDescriptor("n", int))
        entries = backend.store.get_map_state(MapStateDescriptor("m", str, int))
        snapshots = []
        for number in range(4):
            for key in KEYS:
                backend.set_current_key(key)
                state.update(number)
                entries.put(str(number), number)
            snapshots.append(keyed.snapshot(backend))
        handles: dict[int, Any] = {}

        def write(number: int) -> None:
            handles[number] = snapshots[number].run().handle

        threads = [threading.Thread(target=write, args=(number,)) for number in (3, 1, 2, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(4):
            restored: Any = keyed.open([handles[number]])
            restored.set_current_key(KEYS[0])
            assert restored.store.get_state(ValueStateDescriptor("n", int)).value() == number
            found = restored.store.get_map_state(MapStateDescriptor("m", str, int))
            assert sorted(found.keys()) == [str(each) for each in range(number + 1)]

    def test_backend_goes_on_after_a_snapshot(self, keyed: KeyedHarness) -> None:
        backend: Any = filled(keyed)
        keyed.save(backend)
        backend.set_current_key(KEYS[0])
        write_all(backend, 7)
        expected = read_all(backend)
        backend = keyed.reopened(backend)
        backend.set_current_key(KEYS[0])
        assert read_all(backend) == expected
        backend.set_current_key(KEYS[1])
        assert read_all(backend) == written(1)

    def test_cancelled_snapshot_leaves_no_file(self, keyed: KeyedHarness) -> None:
        backend: Any = filled(keyed)
        snapshot = keyed.snapshot(backend)
        snapshot.cancel()
        with pytest.raises(SnapshotCancelledError):
            snapshot.run()
        assert keyed.files() == set()

    @pytest.mark.parametrize("method", ["write", "close_and_get_handle"])
    @pytest.mark.parametrize("is_after", [True, False])
    def test_snapshot_that_is_cancelled_while_it_is_written_leaves_no_file(
        self, keyed: KeyedHarness, method: str, is_after: bool
    ) -> None:
        backend = filled(keyed)
        holder: list[Any] = []
        cancelling = CancellingStreams(keyed.streams(), lambda: holder[0].cancel(), method, is_after=is_after)
        holder.append(backend.snapshot(9, keyed.now_ms, cancelling))
        if self.travels_in_handles:
            pytest.skip("there are no streams")
        with pytest.raises(SnapshotCancelledError):
            holder[0].run()
        assert cancelling.was_used
        assert keyed.files() == set()

    def test_cancelling_a_finished_snapshot_does_nothing(self, keyed: KeyedHarness) -> None:
        snapshot = keyed.snapshot(filled(keyed))
        handle = snapshot.run().handle
        snapshot.cancel()
        restored: Any = keyed.open([handle])
        restored.set_current_key(KEYS[0])
        assert read_all(restored) == written(0)

    def test_disposing_the_backend_cancels_its_snapshots(self, keyed: KeyedHarness) -> None:
        backend: Any = filled(keyed)
        snapshot = keyed.snapshot(backend)
        backend.dispose()
        backend.dispose()
        with pytest.raises(SnapshotCancelledError):
            snapshot.run()
        assert keyed.files() == set()

    def test_failing_storage_leaves_no_file_and_the_backend_goes_on(self, keyed: KeyedHarness) -> None:
        backend: Any = filled(keyed)
        failing = FailingStreams(keyed.streams())
        snapshot = backend.snapshot(9, keyed.now_ms, failing)
        if self.travels_in_handles:
            pytest.skip("there are no streams")
        with pytest.raises(StorageError, match="full"):
            snapshot.run()
        assert keyed.files() == set()
        backend = keyed.reopened(backend)
        backend.set_current_key(KEYS[0])
        assert read_all(backend) == written(0)


def filled(keyed: KeyedHarness) -> Any:
    """Return a backend in which each key has state of each kind."""
    backend: Any = keyed.open()
    for number, key in enumerate(KEYS):
        backend.set_current_key(key)
        write_all(backend, number)
    return backend
