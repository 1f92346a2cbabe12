"""Rules of restored state that expires, for any state backend; part of ``StateBackendContract``."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.ttl import StateTtlConfig
from airflow_provider_statecheck.testing.keyed_harness import KeyedHarness
from airflow_provider_statecheck.testing.keyed_ttl_contract import TTL


class KeyedTtlRestoreContract:
    """What snapshots know of times, and a time to live that comes and goes."""

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
