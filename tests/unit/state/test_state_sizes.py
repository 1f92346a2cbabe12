"""Number of keys and size of each state in a snapshot, where a backend knows them without a scan."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_provider_statecheck.state.backends.loading import ArrowStateBackend, MemoryStateBackend
from airflow_provider_statecheck.state.backends.state_backend import StateSize
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.function_harness import KeyedHarness

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
