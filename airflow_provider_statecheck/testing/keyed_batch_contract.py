"""Rules of state that is read and written for many keys at once, for any state backend; part of ``StateBackendContract``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch
from airflow_provider_statecheck.state.ttl import StateTtlConfig
from airflow_provider_statecheck.testing.keyed_harness import KEY_GROUPS, KeyedHarness
from airflow_provider_statecheck.testing.keyed_samples import Concatenate

KEYS = [f"key {number}" for number in range(40)]


def batch_of(keyed: KeyedHarness, keys: Sequence[Any]) -> tuple[list[Any], KeyBatch]:
    """Return keys in the order of their key groups, and the same as columns."""
    import pyarrow as pa

    groups = {key: keyed.keys.key_group_of(key, KEY_GROUPS) for key in keys}
    ordered = sorted(keys, key=lambda key: groups[key])
    key_groups = pa.array([groups[key] for key in ordered], pa.int32())
    return ordered, KeyBatch(key_groups, keyed.keys.to_columns(ordered))


class KeyedBatchContract:
    """Key by key and at once are the same state."""

    def test_what_is_put_at_once_is_read_key_by_key(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        backend: Any = keyed.open()
        descriptor: Any = ValueStateDescriptor("n", int)
        ordered, keys = batch_of(keyed, KEYS)
        backend.batch_state(descriptor).put(keys, pa.array(range(len(ordered)), pa.int64()))
        state = backend.store.get_state(descriptor)
        for number, key in enumerate(ordered):
            backend.set_current_key(key)
            assert state.value() == number
        assert backend.num_entries() == len(KEYS)

    def test_what_is_put_key_by_key_is_read_at_once(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        descriptor: Any = ValueStateDescriptor("n", int)
        state = backend.store.get_state(descriptor)
        ordered, keys = batch_of(keyed, KEYS)
        for key in ordered[::2]:
            backend.set_current_key(key)
            state.update(int(key.split()[1]))
        expected = [int(key.split()[1]) if index % 2 == 0 else None for index, key in enumerate(ordered)]
        assert backend.batch_state(descriptor).get(keys).to_pylist() == expected
        assert backend.num_entries() == len(KEYS) // 2

    def test_null_clears_at_once(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        backend: Any = keyed.open()
        batch = backend.batch_state(ValueStateDescriptor("n", int))
        _, keys = batch_of(keyed, KEYS)
        batch.put(keys, pa.array(range(len(KEYS)), pa.int64()))
        batch.put(keys, pa.nulls(len(KEYS), pa.int64()))
        assert batch.get(keys).to_pylist() == [None] * len(KEYS)
        assert backend.num_entries() == 0

    def test_default_is_seen_at_once(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        ordered, keys = batch_of(keyed, ["a", "b", "c"])
        numbers: Any = ValueStateDescriptor("n", int, 7)
        backend.set_current_key(ordered[1])
        backend.store.get_state(numbers).update(1)
        assert backend.batch_state(numbers).get(keys).to_pylist() == [7, 1, 7]
        lists = backend.batch_state(ValueStateDescriptor("lists", list[int], [1, 2]))
        assert lists.get(keys).to_pylist() == [[1, 2]] * 3
        assert backend.num_entries() == 1

    def test_reductions_and_accumulators_are_the_same_at_once(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        backend: Any = keyed.open()
        reducing: Any = ReducingStateDescriptor("r", lambda a, b: a + b, int)
        aggregating: Any = AggregatingStateDescriptor("a", Concatenate(), list[str])
        backend.set_current_key("a")
        backend.store.get_reducing_state(reducing).add(1)
        backend.store.get_aggregating_state(aggregating).add("x")
        _, keys = batch_of(keyed, ["a"])
        assert backend.batch_state(reducing).get(keys).to_pylist() == [1]
        assert backend.batch_state(aggregating).get(keys).to_pylist() == [["x"]]
        backend.batch_state(reducing).put(keys, pa.array([5], pa.int64()))
        backend.batch_state(aggregating).put(keys, pa.array([["y", "z"]], pa.list_(pa.string())))
        backend.store.get_reducing_state(reducing).add(1)
        assert backend.store.get_reducing_state(reducing).get() == 6
        assert backend.store.get_aggregating_state(aggregating).get() == "y,z"

    def test_what_was_put_at_once_is_restored(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        backend: Any = keyed.open()
        ordered, keys = batch_of(keyed, KEYS)
        backend.batch_state(ValueStateDescriptor("n", int)).put(keys, pa.array(range(len(ordered)), pa.int64()))
        backend = keyed.reopened(backend)
        found = backend.batch_state(ValueStateDescriptor("n", int)).get(keys)
        assert found.to_pylist() == list(range(len(ordered)))

    def test_no_keys_at_once_are_nothing(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        batch = keyed.open().batch_state(ValueStateDescriptor("n", int, 7))
        _, keys = batch_of(keyed, [])
        assert batch.get(keys).to_pylist() == []
        batch.put(keys, pa.array([], pa.int64()))

    def test_keys_of_another_subtask_are_refused_at_once(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        batch = keyed.open(index=0, parallelism=2).batch_state(ValueStateDescriptor("n", int))
        _, keys = batch_of(keyed, KEYS)
        with pytest.raises(InvalidConfigurationError, match="key groups"):
            batch.get(keys)
        with pytest.raises(InvalidConfigurationError, match="key groups"):
            batch.put(keys, pa.nulls(len(KEYS), pa.int64()))

    def test_keys_in_another_order_than_that_of_their_groups_are_refused(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        batch = keyed.open().batch_state(ValueStateDescriptor("n", int))
        _, keys = batch_of(keyed, KEYS)
        order = pa.array(range(len(keys) - 1, -1, -1))
        turned = KeyBatch(keys.key_groups.take(order), tuple(column.take(order) for column in keys.columns))
        with pytest.raises(InvalidConfigurationError, match="order of their key groups"):
            batch.get(turned)

    def test_other_number_of_values_than_keys_is_refused(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        _, keys = batch_of(keyed, ["a"])
        with pytest.raises(InvalidConfigurationError, match="one value"):
            keyed.open().batch_state(ValueStateDescriptor("n", int)).put(keys, pa.array([1, 2], pa.int64()))

    def test_values_of_another_column_type_are_converted_or_refused(self, keyed: KeyedHarness) -> None:
        import pyarrow as pa

        for ttl in (None, StateTtlConfig(timedelta(days=1))):
            batch = keyed.open().batch_state(ValueStateDescriptor("n", int, ttl=ttl))
            _, keys = batch_of(keyed, ["a", "b"])
            for values in (pa.chunked_array([[1], [2]]), pa.array([1, 2], pa.int32())):
                batch.put(keys, values)
                assert batch.get(keys).equals(pa.array([1, 2], pa.int64()))
            with pytest.raises(UnsupportedStateError, match="int64"):
                batch.put(keys, pa.array([1.5, 2.0]))

    def test_lists_and_maps_are_used_key_by_key(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        others: list[Any] = [ListStateDescriptor("l", int), MapStateDescriptor("m", str, int)]
        for descriptor in others:
            with pytest.raises(InvalidConfigurationError, match="key by key"):
                backend.batch_state(descriptor)
