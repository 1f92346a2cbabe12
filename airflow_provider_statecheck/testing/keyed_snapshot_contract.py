"""Contract of snapshots and restores of keyed state."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from airflow_provider_statecheck.checkpoint.states.assignment import redistribute_keyed
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    KeyedStateHandle,
    KeyGroupRange,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    SnapshotCancelledError,
    StateMigrationError,
    StorageError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream, CheckpointStreamFactory
from airflow_provider_statecheck.testing.function_harness import (
    KEY_GROUPS,
    NOTHING,
    KeyedHarness,
    all_descriptors,
    read_all,
    write_all,
    written,
)


class _Streams:
    """Base class of stream factories that inject faults."""

    def __init__(self, target: CheckpointStreamFactory) -> None:
        self.was_used = False
        self._target = target

    def could_reuse_state_handle(self, handle: StreamStateHandle) -> bool:
        """Return what the real streams say."""
        return self._target.could_reuse_state_handle(handle)

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        self.was_used = True
        return self._changed(self._target.create_checkpoint_state_output_stream(scope))

    def _changed(self, stream: CheckpointStateOutputStream) -> CheckpointStateOutputStream:
        raise NotImplementedError


class CancellingStreams(_Streams):
    """
    Streams that cancel the snapshot while it is written.

    :param target: The stream factory to wrap.
    :param cancel: The function that cancels the snapshot.
    :param method: The stream method at which the snapshot is cancelled.
    :param is_after: Whether to cancel only after the method, instead of before it.
    """

    def __init__(
        self, target: CheckpointStreamFactory, cancel: Callable[[], None], method: str, *, is_after: bool
    ) -> None:
        super().__init__(target)
        self._cancel = cancel
        self._method = method
        self._is_after = is_after

    def _changed(self, stream: CheckpointStateOutputStream) -> CheckpointStateOutputStream:
        original = getattr(stream, self._method)

        def cancel_too(*arguments: Any) -> Any:
            if not self._is_after:
                self._cancel()
            found = original(*arguments)
            self._cancel()
            return found

        setattr(stream, self._method, cancel_too)
        return stream


class FailingStreams(_Streams):
    """Streams that fail when they are closed."""

    def _changed(self, stream: CheckpointStateOutputStream) -> CheckpointStateOutputStream:
        def fail() -> Any:
            stream.close()
            raise StorageError("The disk is full.")

        stream.close_and_get_handle = fail  # type: ignore[method-assign]
        return stream


KEYS = [f"key {number}" for number in range(50)]


class KeyedSnapshotContract:
    """Contents of snapshots, cancellation and failures."""

    travels_in_handles = False
    """Whether the handles contain the state and no streams are used; subclasses may set it."""

    def test_empty_backend_has_nothing_to_save(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        assert keyed.snapshot(backend).run().handle is None
        read_nothing = keyed.open()
        read_nothing.set_current_key("a")
        read_all(read_nothing)
        assert keyed.snapshot(read_nothing).run().handle is None
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
            pytest.skip("the handles contain the state")
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
            pytest.skip("the handles contain the state")
        with pytest.raises(StorageError, match="full"):
            snapshot.run()
        assert keyed.files() == set()
        backend = keyed.reopened(backend)
        backend.set_current_key(KEYS[0])
        assert read_all(backend) == written(0)


def filled(keyed: KeyedHarness) -> Any:
    """Return a backend with state of each kind for every key."""
    backend: Any = keyed.open()
    for number, key in enumerate(KEYS):
        backend.set_current_key(key)
        write_all(backend, number)
    return backend


NAMESPACED: list[tuple[Any, Any]] = [
    (ValueStateDescriptor("v", int), lambda state, number: state.update(number)),
    (ListStateDescriptor("l", int), lambda state, number: state.add(number)),
    (MapStateDescriptor("m", str, int), lambda state, number: state.put("x", number)),
]


def put_all(keyed: KeyedHarness, backends: list[Any], state: ValueStateDescriptor[int], value: int) -> None:
    """Write a value for all keys of the given subtasks."""
    for key in KEYS:
        for backend in backends:
            if keyed.keys.key_group_of(key, KEY_GROUPS) in backend.key_group_range:
                backend.set_current_key(key)
                backend.get_partitioned_state(state).update(value)


class KeyedRestoreContract:
    """Restores, rescaling, migration and rejected restores."""

    travels_in_handles = False
    """Whether the handles contain the state and there are no files; subclasses may set it."""

    @pytest.mark.parametrize("parallelism", [1, 2, 3, KEY_GROUPS])
    @pytest.mark.parametrize("before", [1, 2, 5])
    def test_all_state_is_back_at_any_parallelism(self, keyed: KeyedHarness, before: int, parallelism: int) -> None:
        backends = [keyed.open(index=index, parallelism=before) for index in range(before)]
        for number, key in enumerate(KEYS):
            owner = keyed.owner_of(key, backends)
            owner.set_current_key(key)
            write_all(owner, number)
        backends = keyed.reopen(keyed.reopen(backends, parallelism), before)
        for number, key in enumerate(KEYS):
            owner = keyed.owner_of(key, backends)
            owner.set_current_key(key)
            assert read_all(owner) == written(number)
        assert sum(backend.num_entries() for backend in backends) == len(KEYS) * 6

    def test_keys_outside_of_the_range_are_skipped(self, keyed: KeyedHarness) -> None:
        handles = keyed.save(filled(keyed))
        part = keyed.open_range(KeyGroupRange(3, 5), handles)
        write_nothing(part)
        own = [key for key in KEYS if keyed.keys.key_group_of(key, KEY_GROUPS) in range(3, 6)]
        for name in all_descriptors():
            assert sorted(part.get_keys(name)) == sorted(own)
        assert part.num_entries() == len(own) * 6

    @pytest.mark.parametrize("parallelism", [1, 3, KEY_GROUPS])
    def test_what_a_subtask_has_written_since_hides_what_others_still_lend(
        self, keyed: KeyedHarness, parallelism: int
    ) -> None:
        """One of two subtasks takes a new snapshot, the other retains its handles."""
        state = ValueStateDescriptor[int]("v", int)
        first: Any = keyed.open()
        put_all(keyed, [first], state, 1)
        kept, lent = redistribute_keyed([keyed.save(first)], 2, KEY_GROUPS)
        second: Any = keyed.open(lent, index=1, parallelism=2)
        put_all(keyed, [second], state, 2)
        assigned = redistribute_keyed([kept, keyed.save(second)], parallelism, KEY_GROUPS)
        subtasks = [keyed.open(own, index, parallelism) for index, own in enumerate(assigned)]
        for key in KEYS:
            owner: Any = keyed.owner_of(key, subtasks)
            owner.set_current_key(key)
            is_newer = keyed.keys.key_group_of(key, KEY_GROUPS) in second.key_group_range
            assert owner.get_partitioned_state(state).value() == (2 if is_newer else 1)

    def test_namespaces_are_restored(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        for key in KEYS:
            backend.set_current_key(key)
            for number, namespace in enumerate(("", "w1", "w2")):
                for descriptor, write in NAMESPACED:
                    write(backend.get_partitioned_state(descriptor, namespace), number)
        for part in keyed.reopen(keyed.reopen([backend], 3), 2):
            for key in (each for each in KEYS if keyed.keys.key_group_of(each, KEY_GROUPS) in part.key_group_range):
                part.set_current_key(key)
                for number, namespace in enumerate(("", "w1", "w2")):
                    value, elements, entries = (
                        cast("Any", part.get_partitioned_state(each, namespace)) for each, _ in NAMESPACED
                    )
                    assert (value.value(), list(elements.get()), entries.get("x")) == (number, [number], number)

    def test_state_that_nobody_asked_for_is_carried_on_unchanged(self, keyed: KeyedHarness) -> None:
        backends = [filled(keyed)]
        for parallelism in (3, 2, 1):
            backends = keyed.reopen(backends, parallelism)
            assert [schema.name for schema in backends[0].schemas()] == list(all_descriptors())
            assert backends[0].registered_states() == ()
        (backend,) = backends
        for number, key in enumerate(KEYS):
            backend.set_current_key(key)
            assert read_all(backend) == written(number)

    def test_names_of_restored_state_are_taken(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.reopened(filled(keyed))
        with pytest.raises(StateMigrationError, match="value"):
            backend.store.get_list_state(ListStateDescriptor("value", int))
        with pytest.raises(StateMigrationError, match="value"):
            backend.store.get_state(ValueStateDescriptor("value", bytes))
        backend.set_current_key(KEYS[3])
        assert read_all(backend) == written(3)

    def test_restored_state_is_migrated_to_wider_types(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        backend.store.get_state(ValueStateDescriptor("v", pa.int32())).update(1)
        backend.store.get_list_state(ListStateDescriptor("l", pa.int32())).add_all([1, 2])
        backend.store.get_map_state(MapStateDescriptor("m", pa.int32(), pa.int32())).put_all({1: 2, 3: None})
        for _ in range(2):
            backend = keyed.reopened(backend)
            backend.set_current_key("a")
            assert read_wide(backend) == (1, [1, 2], {1: 2, 3: None})
        value, elements, entries = wide_states(backend)
        value.update(1 << 40)
        elements.add(1 << 40)
        entries.put(1 << 40, 1 << 40)
        backend = keyed.reopened(backend)
        backend.set_current_key("a")
        assert read_wide(backend) == (1 << 40, [1, 2, 1 << 40], {1: 2, 3: None, 1 << 40: 1 << 40})

    def test_restored_records_gain_fields(self, keyed: KeyedHarness) -> None:
        @dataclass
        class Account:
            balance: int

        first = Account
        backend: Any = keyed.open()
        backend.set_current_key("a")
        backend.store.get_state(ValueStateDescriptor("v", first)).update(first(5))

        @dataclass
        class Account:  # type: ignore[no-redef]
            balance: int
            name: str = "nobody"

        backend = keyed.reopened(backend)
        backend.set_current_key("a")
        assert backend.store.get_state(ValueStateDescriptor("v", Account)).value() == Account(5, "nobody")  # type: ignore[call-arg]

    def test_keys_of_another_type_are_refused(self, keyed: KeyedHarness, keyed_by: Any) -> None:
        handles = keyed.save(filled(keyed))
        with pytest.raises(StateMigrationError, match="key"):
            keyed_by([pa.int64()]).open(handles)

    def test_corrupt_state_says_that_the_backend_could_not_be_restored(self, keyed: KeyedHarness) -> None:
        (handle,) = keyed.save(filled(keyed))
        for uri in keyed.files():
            path = f"{keyed.storage.base_uri}/{uri}"
            data = keyed.storage.read_bytes(path)
            keyed.storage.write_bytes(path, data[: len(data) // 2], overwrite=True)
        broken = _with_broken_bytes(handle)
        with pytest.raises(BackendRestoreError, match="could not be restored"):
            read_everything(keyed.open([broken]))

    def test_missing_files_say_that_the_backend_could_not_be_restored(self, keyed: KeyedHarness) -> None:
        (handle,) = keyed.save(filled(keyed))
        if self.travels_in_handles:
            pytest.skip("the handles contain the state")
        assert keyed.files()
        for uri in keyed.files():
            keyed.storage.delete_file(f"{keyed.storage.base_uri}/{uri}")
        with pytest.raises(BackendRestoreError, match="could not be restored"):
            read_everything(keyed.open([handle]))

    def test_backend_can_be_pickled(self, keyed: KeyedHarness) -> None:
        keyed.backend = pickle.loads(pickle.dumps(keyed.backend))  # noqa: S301 - of this very process
        backend: Any = keyed.reopened(filled(keyed))
        backend.set_current_key(KEYS[0])
        assert read_all(backend) == written(0)


def write_nothing(backend: Any) -> None:
    """Register a state of each kind without a write."""
    for descriptor in all_descriptors().values():
        backend.get_partitioned_state(descriptor)


def read_everything(backend: Any) -> None:
    """Read all states of all keys."""
    for key in KEYS:
        backend.set_current_key(key)
        read_all(backend)


def wide_states(backend: Any) -> list[Any]:
    """Return a value, a list and a map state of 64-bit integers."""
    wide = pa.int64()
    descriptors: list[Any] = [
        ValueStateDescriptor("v", wide),
        ListStateDescriptor("l", wide),
        MapStateDescriptor("m", wide, wide),
    ]
    return [backend.get_partitioned_state(each) for each in descriptors]


def read_wide(backend: Any) -> tuple[Any, list[Any], dict[Any, Any]]:
    """Return the values of the current key in the wide states."""
    value, elements, entries = wide_states(backend)
    return value.value(), list(elements.get()), {entry.key: entry.value for entry in entries.entries()}


def _with_broken_bytes(handle: KeyedStateHandle) -> KeyedStateHandle:
    """Return the handle with its inline data truncated."""
    files = tuple((path, _truncated(stream)) for path, stream in handle.private)
    return replace(handle, private=files, meta=None if handle.meta is None else _truncated(handle.meta))


def _truncated(stream: StreamStateHandle) -> StreamStateHandle:
    if not isinstance(stream, ByteStreamStateHandle):
        return stream
    return replace(stream, data=stream.data[: len(stream.data) // 2])
