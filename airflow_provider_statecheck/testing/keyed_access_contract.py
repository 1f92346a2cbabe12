"""Rules of keys, names, namespaces and entries, for any state backend; part of ``StateBackendContract``."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.testing.keyed_harness import KEY_GROUPS, KeyedHarness
from airflow_provider_statecheck.testing.keyed_samples import NOTHING, all_descriptors, read_all, write_all, written


class KeyedAccessContract:
    """Who may read and write what."""

    def test_range_must_lie_within_the_key_groups(self, keyed: KeyedHarness) -> None:
        with pytest.raises(InvalidConfigurationError):
            keyed.open_range(KeyGroupRange(0, KEY_GROUPS))

    def test_null_key_is_refused(self, keyed: KeyedHarness) -> None:
        with pytest.raises(InvalidConfigurationError):
            keyed.open().set_current_key(None)

    def test_key_of_another_subtask_is_refused(self, keyed: KeyedHarness) -> None:
        parts = [keyed.open(index=index, parallelism=2) for index in range(2)]
        other = next(part for part in parts if part is not keyed.owner_of("a", parts))
        with pytest.raises(InvalidConfigurationError, match="key group"):
            other.set_current_key("a")
        with pytest.raises(InvalidConfigurationError, match="key group"):
            other.set_current_key("a", keyed.keys.key_group_of("a", KEY_GROUPS))

    def test_access_without_a_key_is_refused(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        states = {name: backend.get_partitioned_state(each) for name, each in all_descriptors().items()}
        calls: list[Any] = [state.clear for state in states.values()]
        value, elements, entries = (states[name] for name in ("value", "list", "map"))
        calls += [value.value, lambda: value.update(1), lambda: value.update(None), elements.get]
        calls += [lambda: elements.add(1), lambda: elements.add_all([]), lambda: elements.update([])]
        calls += [entries.entries, entries.is_empty, lambda: entries.get("a"), lambda: entries.put("a", 1)]
        calls += [lambda: entries.contains("a"), lambda: entries.remove("a"), lambda: entries.put_all({})]
        for name in ("reducing", "aggregating", "folding"):
            calls += [states[name].get, lambda name=name: states[name].add(1)]
        for call in calls:
            with pytest.raises(CoordinatorError, match="current key"):
                call()
        with pytest.raises(CoordinatorError, match="current key"):
            _ = backend.current_key

    def test_current_key_and_its_group_can_be_read(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        assert (backend.current_key, backend.current_key_group) == ("a", keyed.keys.key_group_of("a", KEY_GROUPS))

    def test_same_name_and_kind_is_the_same_state(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        backend.store.get_state(ValueStateDescriptor("n", int)).update(1)
        assert backend.store.get_state(ValueStateDescriptor("n", int)).value() == 1
        assert len(backend.registered_states()) == 1

    def test_same_name_with_another_kind_is_refused(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.store.get_state(ValueStateDescriptor("n", int))
        with pytest.raises(InvalidConfigurationError, match="n"):
            backend.store.get_list_state(ListStateDescriptor("n", int))

    def test_same_name_with_another_type_is_refused(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.store.get_state(ValueStateDescriptor("n", int))
        with pytest.raises(InvalidConfigurationError, match="n"):
            backend.store.get_state(ValueStateDescriptor("n", str))

    def test_descriptor_of_another_kind_than_the_method_is_refused(self, keyed: KeyedHarness) -> None:
        wrong: Any = ListStateDescriptor("n", int)
        with pytest.raises(InvalidConfigurationError, match="list"):
            keyed.open().store.get_state(wrong)

    def test_each_key_has_its_own_state(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        for number, key in enumerate("abcdefgh"):
            backend.set_current_key(key)
            write_all(backend, number)
        for number, key in enumerate("abcdefgh"):
            backend.set_current_key(key)
            assert read_all(backend) == written(number)

    def test_clear_affects_only_the_current_key(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        for key in "ab":
            backend.set_current_key(key)
            write_all(backend, 1)
        for each in all_descriptors().values():
            backend.get_partitioned_state(each).clear()
        assert read_all(backend) == NOTHING
        backend.set_current_key("a")
        assert read_all(backend) == written(1)

    def test_nothing_is_left_after_all_is_cleared(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        for key in "abcdef":
            backend.set_current_key(key)
            write_all(backend, 1)
        assert backend.num_entries() == 36
        for key in "abcdef":
            backend.set_current_key(key)
            for each in all_descriptors().values():
                backend.get_partitioned_state(each).clear()
        assert backend.num_entries() == 0
        assert keyed.save(backend) == ()

    def test_reading_makes_no_entries(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        for key in "abc":
            backend.set_current_key(key)
            assert read_all(backend) == NOTHING
        assert backend.num_entries() == 0

    def test_keys_of_several_columns_of_any_type(self, keyed_by: Any) -> None:
        import pyarrow as pa

        keyed = keyed_by([pa.int64(), pa.string(), pa.float64()])
        keys = [(1, "a", 0.5), (1, "b", 0.5), (2, "a", float("nan")), (-1, "", 0.0)]
        backend: Any = keyed.open()
        for number, key in enumerate(keys):
            backend.set_current_key(key)
            write_all(backend, number)
        backend = keyed.reopened(backend)
        for number, key in enumerate(keys):
            backend.set_current_key(key)
            assert read_all(backend) == written(number)

    def test_get_keys_gives_each_key_with_state_once(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        states = all_descriptors()
        for key in "abc":
            backend.set_current_key(key)
            write_all(backend, 1)
        backend.set_current_key("b")
        for each in states.values():
            backend.get_partitioned_state(each).clear()
        for name in states:
            assert sorted(backend.get_keys(name)) == ["a", "c"]
        assert list(backend.get_keys("other")) == []

    def test_keys_may_be_removed_while_they_are_gone_through(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        state = backend.store.get_state(ValueStateDescriptor("n", int))
        for key in "abc":
            backend.set_current_key(key)
            state.update(1)
        for key in backend.get_keys("n"):
            backend.set_current_key(key)
            state.clear()
        assert backend.num_entries() == 0

    def test_function_is_applied_to_all_keys_with_state(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        descriptor: Any = ValueStateDescriptor("n", int)
        state = backend.store.get_state(descriptor)
        for number, key in enumerate("abc"):
            backend.set_current_key(key)
            state.update(number)
        backend.apply_to_all_keys("", descriptor, lambda key, each: each.update(each.value() + 10))
        found = {}
        for key in "abc":
            backend.set_current_key(key)
            found[key] = state.value()
        assert found == {"a": 10, "b": 11, "c": 12}

    def test_current_key_is_back_after_a_function_was_applied_to_all(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        descriptor: Any = ValueStateDescriptor("n", int)
        state = backend.store.get_state(descriptor)
        for key in "ab":
            backend.set_current_key(key)
            state.update(1)
        backend.apply_to_all_keys("", descriptor, lambda key, each: None)
        assert backend.current_key == "b"

    def test_namespaces_are_apart(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        for name, descriptor in all_descriptors().items():
            for number, namespace in enumerate(("", "w1", "w2")):
                state: Any = backend.get_partitioned_state(descriptor, namespace)
                writes = {"value": "update", "map": "put"}
                arguments = (str(number),) if name in ("aggregating", "folding") else (number,)
                getattr(state, writes.get(name, "add"))(*(("k", number) if name == "map" else arguments))
            backend.get_partitioned_state(descriptor, "w1").clear()
            assert [list(backend.get_keys(name, each)) for each in ("", "w1", "w2")] == [["a"], [], ["a"]]

    def test_null_namespace_is_refused(self, keyed: KeyedHarness) -> None:
        backend, null = keyed.open(), cast_any(None)
        backend.set_current_key("a")
        descriptor: Any = ListStateDescriptor("l", int)
        calls: list[Any] = [
            lambda: backend.get_partitioned_state(descriptor, null),
            lambda: backend.get_keys("l", null),
            lambda: backend.merge_namespaces(descriptor, null, ["a"]),
            lambda: backend.merge_namespaces(descriptor, "a", [null]),
        ]
        for call in calls:
            with pytest.raises(InvalidConfigurationError, match="namespace"):
                call()

    def test_merging_namespaces_merges_and_clears_the_sources(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        expected = {"list": [3, 1, 2], "reducing": 6, "aggregating": "3,1,2"}
        for name in expected:
            descriptor = all_descriptors()[name]
            for number, namespace in ((1, "w1"), (2, "w2"), (3, "target")):
                state: Any = backend.get_partitioned_state(descriptor, namespace)
                state.add(str(number) if name == "aggregating" else number)
            backend.merge_namespaces(descriptor, "target", ["w1", "w2", "empty", "target"])
            merged: Any = backend.get_partitioned_state(descriptor, "target")
            assert (list(merged.get()) if name == "list" else merged.get()) == expected[name]
            assert [*backend.get_keys(name, "w1"), *backend.get_keys(name, "w2")] == []

    def test_merging_nothing_makes_nothing(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        for name in ("list", "reducing", "aggregating"):
            backend.merge_namespaces(all_descriptors()[name], "target", ["w1"])
        assert backend.num_entries() == 0

    def test_states_that_cannot_be_merged_are_refused(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        for name in ("value", "folding", "map"):
            with pytest.raises(InvalidConfigurationError, match="merged"):
                backend.merge_namespaces(all_descriptors()[name], "target", ["w1"])


def cast_any(value: object) -> Any:
    """Return a value as what no type checker knows."""
    return value
