"""Contract of keyed state with a time to live (TTL)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.testing.function_harness import Concatenate, KeyedHarness

LIFE = timedelta(milliseconds=100)
TTL = StateTtlConfig(LIFE)
ON_READ = StateTtlConfig(LIFE, UpdateType.ON_READ_AND_WRITE)
SHOWING = StateTtlConfig(LIFE, state_visibility=StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)
DISABLED = StateTtlConfig(LIFE, UpdateType.DISABLED)


def value_of(keyed: KeyedHarness, ttl: StateTtlConfig, default: int | None = None) -> tuple[Any, Any]:
    """Return a backend with the current key ``a`` and its value state."""
    backend: Any = keyed.open()
    backend.set_current_key("a")
    return backend, backend.store.get_state(ValueStateDescriptor("n", int, default, ttl=ttl))


class KeyedTtlContract:
    """Expiry of each kind of state, and visibility of expired values."""

    def test_value_lives_up_to_its_time(self, keyed: KeyedHarness) -> None:
        _, state = value_of(keyed, TTL)
        state.update(1)
        keyed.now_ms += 99
        assert state.value() == 1
        keyed.now_ms += 1
        assert state.value() is None

    def test_expired_value_is_removed_when_it_is_read(self, keyed: KeyedHarness) -> None:
        backend, state = value_of(keyed, TTL)
        state.update(1)
        keyed.now_ms += 100
        assert backend.num_entries() == 1
        assert state.value() is None
        assert backend.num_entries() == 0

    def test_default_is_seen_after_the_value_expired(self, keyed: KeyedHarness) -> None:
        _, state = value_of(keyed, TTL, 7)
        state.update(1)
        keyed.now_ms += 100
        assert state.value() == 7

    def test_reading_does_not_renew_unless_it_is_to(self, keyed: KeyedHarness) -> None:
        _, state = value_of(keyed, TTL)
        state.update(1)
        keyed.now_ms += 60
        assert state.value() == 1
        keyed.now_ms += 60
        assert state.value() is None

    def test_reading_renews_on_read_and_write(self, keyed: KeyedHarness) -> None:
        _, state = value_of(keyed, ON_READ)
        state.update(1)
        for _ in range(3):
            keyed.now_ms += 60
            assert state.value() == 1
        keyed.now_ms += 100
        assert state.value() is None

    def test_writing_renews(self, keyed: KeyedHarness) -> None:
        _, state = value_of(keyed, TTL)
        for _ in range(3):
            state.update(1)
            keyed.now_ms += 60
        assert state.value() == 1

    def test_disabled_updates_let_nothing_expire(self, keyed: KeyedHarness) -> None:
        _, state = value_of(keyed, DISABLED)
        state.update(1)
        keyed.now_ms += 10_000
        assert state.value() == 1

    def test_expired_value_may_be_shown_until_it_is_cleaned_up(self, keyed: KeyedHarness) -> None:
        backend, state = value_of(keyed, SHOWING)
        state.update(1)
        keyed.now_ms += 100
        assert state.value() == 1
        assert state.value() is None
        assert backend.num_entries() == 0

    def test_updating_an_expired_value_makes_a_new_one(self, keyed: KeyedHarness) -> None:
        _, state = value_of(keyed, TTL)
        state.update(1)
        keyed.now_ms += 100
        state.update(2)
        keyed.now_ms += 99
        assert state.value() == 2

    def test_adding_to_what_is_expired_begins_anew(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        store = backend.store
        states: list[Any] = [
            store.get_reducing_state(ReducingStateDescriptor("r", lambda a, b: a + b, str, ttl=TTL)),
            store.get_aggregating_state(AggregatingStateDescriptor("a", Concatenate(), list[str], ttl=TTL)),
            store.get_folding_state(FoldingStateDescriptor("f", "", lambda a, b: a + b, str, ttl=TTL)),
        ]
        for state in states:
            state.add("x")
        keyed.now_ms += 100
        for state in states:
            assert state.get() is None
            state.add("y")
            assert state.get() == "y"

    def test_elements_of_a_list_expire_one_by_one(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        state = backend.store.get_list_state(ListStateDescriptor("l", int, ttl=TTL))
        state.add(1)
        keyed.now_ms += 50
        state.add_all([2, 3])
        assert list(state.get()) == [1, 2, 3]
        keyed.now_ms += 50
        assert list(state.get()) == [2, 3]
        keyed.now_ms += 50
        assert list(state.get()) == []
        assert backend.num_entries() == 0

    def test_reading_a_list_renews_its_elements_on_read_and_write(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        state = backend.store.get_list_state(ListStateDescriptor("l", int, ttl=ON_READ))
        state.add(1)
        for _ in range(3):
            keyed.now_ms += 60
            assert list(state.get()) == [1]

    def test_expired_elements_may_be_shown_until_they_are_cleaned_up(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        state = backend.store.get_list_state(ListStateDescriptor("l", int, ttl=SHOWING))
        state.add(1)
        keyed.now_ms += 50
        state.add(2)
        keyed.now_ms += 50
        assert list(state.get()) == [1, 2]
        assert list(state.get()) == [2]

    def test_entries_of_a_map_expire_one_by_one(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        state = backend.store.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL))
        state.put("x", 1)
        keyed.now_ms += 50
        state.put("y", None)
        keyed.now_ms += 50
        assert [tuple(entry) for entry in state.entries()] == [("y", None)]
        assert not state.contains("x")
        assert state.contains("y")
        keyed.now_ms += 50
        assert not state.contains("y")
        assert state.is_empty()
        assert backend.num_entries() == 0

    def test_reading_an_entry_renews_it_alone(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        state = backend.store.get_map_state(MapStateDescriptor("m", str, int, ttl=ON_READ))
        state.put_all({"x": 1, "y": 2})
        keyed.now_ms += 60
        assert state.get("x") == 1
        keyed.now_ms += 60
        assert list(state.keys()) == ["x"]

    def test_writing_through_an_entry_renews_it(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        state = backend.store.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL))
        state.put("x", 1)
        keyed.now_ms += 60
        next(state.entries()).set_value(2)
        keyed.now_ms += 60
        assert state.get("x") == 2

    def test_expired_map_is_empty(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        state = backend.store.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL))
        state.put("x", 1)
        keyed.now_ms += 100
        assert state.is_empty()
        assert backend.num_entries() == 0

    @pytest.mark.parametrize("ttl", [TTL, ON_READ, SHOWING])
    def test_many_keys_at_once_expire_as_one_by_one(self, keyed: KeyedHarness, ttl: StateTtlConfig) -> None:
        descriptor: Any = ValueStateDescriptor("n", int, 7, ttl=ttl)
        one_by_one, at_once = keyed.open(), keyed.open()
        for each in (one_by_one, at_once):
            for key in "abcd":
                each.set_current_key(key)
                each.store.get_state(descriptor).update(ord(key))
                keyed.now_ms += 25
            keyed.now_ms -= 100
        keyed.now_ms += 130
        for _ in range(3):
            keys, expected = _one_by_one(keyed, one_by_one, descriptor)
            assert at_once.batch_state(descriptor).get(keys).to_pylist() == expected
            assert at_once.num_entries() == one_by_one.num_entries()
            keyed.now_ms += 20


def _one_by_one(keyed: KeyedHarness, backend: Any, descriptor: Any) -> tuple[Any, list[Any]]:
    from airflow_provider_statecheck.testing.keyed_ownership_contract import batch_of

    ordered, keys = batch_of(keyed, list("abcd"))
    found = []
    for key in ordered:
        backend.set_current_key(key)
        found.append(backend.store.get_state(descriptor).value())
    return keys, found


class KeyedTtlRestoreContract:
    """Restores of state with a TTL, and adding or removing the TTL."""

    def test_times_go_through_a_snapshot(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        descriptors = _expiring(TTL)
        _write(backend, descriptors)
        keyed.now_ms += 99
        backend = keyed.reopened(backend)
        backend.set_current_key("a")
        assert _read(backend, _expiring(TTL)) == [1, [1], 1]
        keyed.now_ms += 1
        assert _read(backend, _expiring(TTL)) == [None, [], None]

    def test_expired_state_is_not_read_after_a_restore(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        _write(backend, _expiring(TTL))
        keyed.now_ms += 100
        backend = keyed.reopened(backend)
        backend.set_current_key("a")
        assert _read(backend, _expiring(TTL)) == [None, [], None]
        assert backend.num_entries() == 0

    def test_time_to_live_that_is_added_begins_with_the_restore(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        backend.set_current_key("a")
        _write(backend, _expiring(None))
        keyed.now_ms += 1000
        backend = keyed.reopened(backend)
        backend.set_current_key("a")
        descriptors = _expiring(TTL)
        for descriptor in descriptors:
            backend.get_partitioned_state(descriptor)
        keyed.now_ms += 99
        assert _read(backend, descriptors) == [1, [1], 1]
        keyed.now_ms += 1
        assert _read(backend, descriptors) == [None, [], None]

    def test_time_to_live_that_is_taken_away_drops_what_is_expired(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        for key in "ab":
            backend.set_current_key(key)
            _write(backend, _expiring(TTL))
            keyed.now_ms += 45
        elements = backend.store.get_list_state(ListStateDescriptor("l", int, ttl=TTL))
        backend.set_current_key("a")
        elements.add(2)
        handles = keyed.save(backend)
        keyed.now_ms += 10
        backend = keyed.open(handles)
        backend.set_current_key("a")
        assert _read(backend, _expiring(None)) == [None, [2], None]
        backend.set_current_key("b")
        keyed.now_ms += 1000
        assert _read(backend, _expiring(None)) == [1, [1], 1]


def _expiring(ttl: StateTtlConfig | None) -> list[Any]:
    return [
        ValueStateDescriptor("v", int, ttl=ttl),
        ListStateDescriptor("l", int, ttl=ttl),
        MapStateDescriptor("m", str, int, ttl=ttl),
    ]


def _write(backend: Any, descriptors: list[Any]) -> None:
    value, elements, entries = map(backend.get_partitioned_state, descriptors)
    value.update(1)
    elements.add(1)
    entries.put("x", 1)


def _read(backend: Any, descriptors: list[Any]) -> list[Any]:
    value, elements, entries = map(backend.get_partitioned_state, descriptors)
    return [value.value(), list(elements.get()), entries.get("x")]
