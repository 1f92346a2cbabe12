"""Rules of map states, for any state backend; part of ``StateBackendContract``."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor
from airflow_provider_statecheck.state.keyed.states.map_state import MapState
from airflow_provider_statecheck.testing.keyed_harness import KeyedHarness


def map_of(keyed: KeyedHarness) -> tuple[Any, MapState[str, int]]:
    """Return a backend whose current key is ``a``, and a map state of it."""
    backend: Any = keyed.open()
    backend.set_current_key("a")
    return backend, backend.store.get_map_state(MapStateDescriptor("m", str, int))


class KeyedMapContract:
    """Entries, null, iterators and emptiness."""

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
