"""Contract of keyed state: keys, names, namespaces and each kind of state."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.state.keyed.map_state import MapState
from airflow_provider_statecheck.state.keyed.queryable_names import NamedState
from airflow_provider_statecheck.testing.function_harness import (
    KEY_GROUPS,
    NOTHING,
    OPERATOR,
    Concatenate,
    KeyedHarness,
    all_descriptors,
    read_all,
    write_all,
    written,
)


class KeyedAccessContract:
    """Keys, state names and namespaces."""

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

    def test_the_current_key_can_be_read(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        assert backend.current_key == "a"

    def test_queryable_name_is_registered_with_its_state(self, keyed: KeyedHarness) -> None:
        backend = keyed.open()
        backend.store.get_state(ValueStateDescriptor("plain", int))
        assert keyed.queryable_names.states_of("total") == ()
        for _ in range(2):
            backend.store.get_state(ValueStateDescriptor("value", int, queryable_name="total"))
        assert keyed.queryable_names.states_of("total") == (NamedState(OPERATOR, "value"),)

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
    """Return a value with the type ``Any``."""
    return value


def map_of(keyed: KeyedHarness) -> tuple[Any, MapState[str, int]]:
    """Return a backend with the current key ``a`` and its map state."""
    backend: Any = keyed.open()
    backend.set_current_key("a")
    return backend, backend.store.get_map_state(MapStateDescriptor("m", str, int))


class KeyedMapContract:
    """Map state: entries, null, iterators and empty maps."""

    def test_empty_map_gives_empty_iterables(self, keyed: KeyedHarness) -> None:
        backend, state = map_of(keyed)
        assert [list(state.entries()), list(state.keys()), list(state.values()), list(state)] == [[], [], [], []]
        assert state.is_empty()
        assert state.get("x") is None
        assert not state.contains("x")
        assert backend.num_entries() == 0

    def test_entries_are_put_and_read(self, keyed: KeyedHarness) -> None:
        _, state = map_of(keyed)
        state.put("x", 1)
        state.put_all({"y": 2, "z": 3})
        state.put("x", 4)
        assert {entry.key: entry.value for entry in state.entries()} == {"x": 4, "y": 2, "z": 3}
        assert sorted(state.keys()) == ["x", "y", "z"]
        assert sorted(state.values()) == [2, 3, 4]
        assert not state.is_empty()

    def test_entry_is_removed(self, keyed: KeyedHarness) -> None:
        _, state = map_of(keyed)
        state.put_all({"x": 1, "y": 2})
        state.remove("x")
        state.remove("unknown")
        assert list(state.keys()) == ["y"]

    def test_value_may_be_none(self, keyed: KeyedHarness) -> None:
        backend, state = map_of(keyed)
        state.put("x", None)
        assert state.contains("x")
        assert state.get("x") is None
        backend = keyed.reopened(backend)
        backend.set_current_key("a")
        again: Any = backend.store.get_map_state(MapStateDescriptor("m", str, int))
        assert [tuple(entry) for entry in again.entries()] == [("x", None)]
        assert again.contains("x")

    def test_user_key_may_be_none_where_its_serializer_writes_nulls(self, keyed: KeyedHarness) -> None:
        backend, state = map_of(keyed)
        null: Any = None
        state.put(null, 1)
        state.put("x", 2)
        backend = keyed.reopened(backend)
        backend.set_current_key("a")
        again: Any = backend.store.get_map_state(MapStateDescriptor("m", str, int))
        assert again.get(null) == 1
        assert {key: value for key, value in again.entries()} == {None: 1, "x": 2}  # noqa: C416 - entries, not pairs

    def test_removing_the_last_entry_removes_the_state_of_the_key(self, keyed: KeyedHarness) -> None:
        backend, state = map_of(keyed)
        state.put_all({"x": 1, "y": 2})
        state.remove("x")
        assert list(backend.get_keys("m")) == ["a"]
        state.remove("y")
        assert state.is_empty()
        assert list(backend.get_keys("m")) == []
        assert backend.num_entries() == 0

    def test_putting_no_entries_makes_nothing(self, keyed: KeyedHarness) -> None:
        backend, state = map_of(keyed)
        state.put_all({})
        assert backend.num_entries() == 0
        with pytest.raises(InvalidConfigurationError, match="None"):
            state.put_all(None)  # type: ignore[arg-type]

    @pytest.mark.parametrize("view", ["entries", "keys", "values"])
    def test_iterators_remove(self, keyed: KeyedHarness, view: str) -> None:
        backend, state = map_of(keyed)
        state.put_all({"x": 1, "y": 2, "z": 3})
        iterator = getattr(state, view)()
        for item in iterator:
            if item in ("y", 2) or getattr(item, "key", None) == "y":
                iterator.remove()
        assert sorted(state.keys()) == ["x", "z"]
        again = getattr(state, view)()
        for _ in again:
            again.remove()
        assert backend.num_entries() == 0

    def test_nothing_is_removed_before_the_first_or_twice(self, keyed: KeyedHarness) -> None:
        _, state = map_of(keyed)
        state.put("x", 1)
        iterator = state.entries()
        with pytest.raises(CoordinatorError, match="next"):
            iterator.remove()
        next(iterator)
        iterator.remove()
        with pytest.raises(CoordinatorError, match="next"):
            iterator.remove()

    def test_entry_writes_its_value_through(self, keyed: KeyedHarness) -> None:
        backend, state = map_of(keyed)
        state.put_all({"x": 1, "y": 2})
        for entry in state.entries():
            assert entry.set_value(entry.value * 10) in (1, 2)
            assert entry.value in (10, 20)
        assert {key: value for key, value in state.entries()} == {"x": 10, "y": 20}  # noqa: C416 - entries, not pairs
        backend.set_current_key("b")
        assert state.is_empty()

    def test_iterator_stays_with_its_key(self, keyed: KeyedHarness) -> None:
        backend, state = map_of(keyed)
        state.put("x", 1)
        iterator = state.entries()
        entry = next(iterator)
        backend.set_current_key("b")
        state.put("x", 5)
        entry.set_value(2)
        assert state.get("x") == 5
        iterator.remove()
        assert state.get("x") == 5
        backend.set_current_key("a")
        assert state.is_empty()

    def test_map_may_be_changed_while_it_is_gone_through(self, keyed: KeyedHarness) -> None:
        _, state = map_of(keyed)
        state.put_all({"x": 1, "y": 2})
        for entry in state.entries():
            state.put(entry.key + entry.key, 0)
        assert sorted(state.keys()) == ["x", "xx", "y", "yy"]


class KeyedValuesContract:
    """Value, list, reducing, aggregating and folding state: defaults, null and copies."""

    @pytest.fixture
    def backend(self, keyed: KeyedHarness) -> AbstractKeyedStateBackend:
        """Return a backend with the current key ``a``."""
        opened = keyed.open()
        opened.set_current_key("a")
        return opened

    def test_value_is_none_before_it_was_set(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", int))
        assert state.value() is None
        state.update(0)
        assert state.value() == 0

    def test_default_is_seen_until_a_value_is_set(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", int, 7))
        assert state.value() == 7
        state.update(1)
        assert state.value() == 1

    def test_updating_with_none_clears_the_value(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", int, 7))
        state.update(1)
        state.update(None)
        assert state.value() == 7
        assert backend.num_entries() == 0

    def test_default_is_copied_for_each_read(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", list[int], [1]))
        first: Any = state.value()
        first.append(2)
        assert state.value() == [1]
        backend.set_current_key("b")
        assert state.value() == [1]

    def test_reading_a_default_stores_nothing(self, backend: Any) -> None:
        assert backend.store.get_state(ValueStateDescriptor("n", list[int], [1])).value() == [1]
        assert backend.num_entries() == 0

    def test_empty_list_is_an_empty_iterable(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        assert list(state.get()) == []
        state.add(1)
        state.clear()
        assert list(state.get()) == []

    def test_list_keeps_the_order_of_insertion(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(3)
        state.add_all([1, 2])
        state.add(1)
        assert list(state.get()) == [3, 1, 2, 1] == list(state)

    def test_list_is_replaced_by_an_update(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(3)
        state.update([1, 2])
        assert list(state.get()) == [1, 2]

    def test_updating_with_no_elements_clears_the_list(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(3)
        state.update([])
        assert list(state.get()) == []
        assert backend.num_entries() == 0

    def test_adding_no_elements_does_nothing(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add_all([])
        assert backend.num_entries() == 0
        state.add(1)
        state.add_all([])
        assert list(state.get()) == [1]

    @pytest.mark.parametrize(
        ("method", "argument"),
        [("add", None), ("add_all", None), ("update", None), ("add_all", [2, None]), ("update", [None, 2])],
    )
    def test_null_in_a_list_is_refused_and_the_list_unchanged(self, backend: Any, method: str, argument: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(1)
        with pytest.raises(InvalidConfigurationError, match="None"):
            getattr(state, method)(argument)
        assert list(state.get()) == [1]

    def test_list_that_was_handed_in_stays_the_callers(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        mine = [1]
        state.update(mine)
        mine.append(2)
        assert list(state.get()) == [1]
        state.add(3)
        assert mine == [1, 2]

    def test_list_that_was_read_does_not_change_later(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(1)
        found = state.get()
        state.add(2)
        assert list(found) == [1]

    def test_reducing_takes_the_first_value_as_it_is(self, backend: Any) -> None:
        state = backend.store.get_reducing_state(ReducingStateDescriptor("r", lambda a, b: a * 10 + b, int))
        assert state.get() is None
        state.add(1)
        assert state.get() == 1
        state.add(2)
        state.add(3)
        assert state.get() == 123

    def test_aggregating_adds_to_an_accumulator(self, backend: Any) -> None:
        state = backend.store.get_aggregating_state(AggregatingStateDescriptor("a", Concatenate(), list[str]))
        assert state.get() is None
        state.add("x")
        state.add("y")
        assert state.get() == "x,y"

    def test_folding_begins_with_a_copy_of_the_initial_value_for_each_key(self, backend: Any) -> None:
        def fold(accumulator: list[str], value: str) -> list[str]:
            accumulator.append(value)
            return accumulator

        state = backend.store.get_folding_state(FoldingStateDescriptor("f", ["0"], fold, list[str]))
        assert state.get() is None
        state.add("1")
        state.add("2")
        assert state.get() == ["0", "1", "2"]
        backend.set_current_key("b")
        state.add("3")
        assert state.get() == ["0", "3"]

    def test_adding_none_clears_what_was_added(self, backend: Any) -> None:
        store = backend.store
        states: list[Any] = [
            store.get_reducing_state(ReducingStateDescriptor("r", lambda a, b: a + b, str)),
            store.get_aggregating_state(AggregatingStateDescriptor("a", Concatenate(), list[str])),
            store.get_folding_state(FoldingStateDescriptor("f", "", lambda a, b: a + b, str)),
        ]
        for state in states:
            state.add("x")
            state.add(None)
            assert state.get() is None
        assert backend.num_entries() == 0

    def test_falsy_values_are_values(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", str, "default"))
        state.update("")
        assert state.value() == ""
        reducing = backend.store.get_reducing_state(ReducingStateDescriptor("r", lambda a, b: a + b, int))
        reducing.add(0)
        assert reducing.get() == 0
        assert backend.num_entries() == 2
