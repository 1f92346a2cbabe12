"""Rules of restored keyed state, for any state backend; part of ``StateBackendContract``."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.checkpoint.states.keyed_redistribution import redistribute_keyed
from airflow_provider_statecheck.exceptions import BackendRestoreError, StateMigrationError
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.testing.keyed_harness import KEY_GROUPS, KeyedHarness
from airflow_provider_statecheck.testing.keyed_samples import all_descriptors, read_all, write_all, written
from airflow_provider_statecheck.testing.keyed_snapshot_contract import KEYS, filled

NAMESPACED: list[tuple[Any, Any]] = [
    (ValueStateDescriptor("v", int), lambda state, number: state.update(number)),
    (ListStateDescriptor("l", int), lambda state, number: state.add(number)),
    (MapStateDescriptor("m", str, int), lambda state, number: state.put("x", number)),
]


def put_all(keyed: KeyedHarness, backends: list[Any], state: ValueStateDescriptor[int], value: int) -> None:
    """Give a value to all keys of some subtasks."""
    for key in KEYS:
        for backend in backends:
            if keyed.keys.key_group_of(key, KEY_GROUPS) in backend.key_group_range:
                backend.set_current_key(key)
                backend.get_partitioned_state(state).update(value)


class KeyedRestoreContract:
    """What comes back, and what is refused."""

    travels_in_handles = False
    """Whether snapshots make no files; a subclass says so."""

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
        """One of two subtasks goes on, the other keeps what it was given."""
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
        import pyarrow as pa

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
        import pyarrow as pa

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
            pytest.skip("there are no files")
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
    """Ask for a state of each kind."""
    for descriptor in all_descriptors().values():
        backend.get_partitioned_state(descriptor)


def read_everything(backend: Any) -> None:
    """Read the state of each key."""
    for key in KEYS:
        backend.set_current_key(key)
        read_all(backend)


def wide_states(backend: Any) -> list[Any]:
    """Return a value, a list and a map of numbers of 64 bits."""
    import pyarrow as pa

    wide = pa.int64()
    descriptors: list[Any] = [
        ValueStateDescriptor("v", wide),
        ListStateDescriptor("l", wide),
        MapStateDescriptor("m", wide, wide),
    ]
    return [backend.get_partitioned_state(each) for each in descriptors]


def read_wide(backend: Any) -> tuple[Any, list[Any], dict[Any, Any]]:
    """Return what the current key has in them."""
    value, elements, entries = wide_states(backend)
    return value.value(), list(elements.get()), {entry.key: entry.value for entry in entries.entries()}


def _with_broken_bytes(handle: Any) -> Any:
    """Cut what travels in a handle itself."""
    stream: Any = getattr(handle, "stream", None)
    data = getattr(stream, "data", None)
    return handle if data is None else replace(handle, stream=replace(stream, data=data[: len(data) // 2]))
