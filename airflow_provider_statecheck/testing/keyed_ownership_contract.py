"""
Contract of values in keyed state: batch access, ownership of objects and type checks.

A state stores a value as it is at the time of the write, and a read returns a value that the caller owns. Changes in
place never affect the state. A value of the wrong type is rejected by the write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from itertools import chain
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.testing.function_harness import KEY_GROUPS, OPERATOR, Concatenate, KeyedHarness

KEYS = [f"key {number}" for number in range(40)]


def batch_of(keyed: KeyedHarness, keys: Sequence[Any]) -> tuple[list[Any], KeyBatch]:
    """Return keys in the order of their key groups, as a list and as a batch."""
    groups = {key: keyed.keys.key_group_of(key, KEY_GROUPS) for key in keys}
    ordered = sorted(keys, key=lambda key: groups[key])
    key_groups = pa.array([groups[key] for key in ordered], pa.int32())
    return ordered, KeyBatch(key_groups, keyed.keys.to_columns(ordered))


class _Side(Enum):
    LEFT = 1
    RIGHT = 2


class KeyedBatchContract:
    """Batch access and access by single keys use the same state."""

    def test_what_is_put_at_once_is_read_key_by_key(self, keyed: KeyedHarness) -> None:
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
        backend: Any = keyed.open()
        batch = backend.batch_state(ValueStateDescriptor("n", int))
        _, keys = batch_of(keyed, KEYS)
        batch.put(keys, pa.array(range(len(KEYS)), pa.int64()))
        batch.put(keys, pa.nulls(len(KEYS), pa.int64()))
        assert batch.get(keys).to_pylist() == [None] * len(KEYS)
        assert backend.num_entries() == 0

    def test_scan_has_each_key_with_its_current_value(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        descriptor: Any = ValueStateDescriptor("n", int)
        ordered, keys = batch_of(keyed, KEYS)
        backend.batch_state(descriptor).put(keys, pa.array(range(len(ordered)), pa.int64()))
        backend.set_current_key(ordered[0])
        backend.store.get_state(descriptor).update(None)
        backend.get_partitioned_state(descriptor, "elsewhere").update(7)
        backend.set_current_key(ordered[1])
        backend.store.get_state(descriptor).update(-1)
        batches = list(backend.scan(descriptor))
        pairs = [
            zip(keyed.keys.from_columns(each.columns), values.to_pylist(), strict=True) for each, values in batches
        ]
        groups = [group for each, _ in batches for group in each.key_groups.to_pylist()]
        assert dict(chain.from_iterable(pairs)) == {ordered[1]: -1, **{key: ordered.index(key) for key in ordered[2:]}}
        assert groups == sorted(groups)

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
        backend: Any = keyed.open()
        ordered, keys = batch_of(keyed, KEYS)
        backend.batch_state(ValueStateDescriptor("n", int)).put(keys, pa.array(range(len(ordered)), pa.int64()))
        backend = keyed.reopened(backend)
        found = backend.batch_state(ValueStateDescriptor("n", int)).get(keys)
        assert found.to_pylist() == list(range(len(ordered)))

    def test_no_keys_at_once_are_nothing(self, keyed: KeyedHarness) -> None:
        batch = keyed.open().batch_state(ValueStateDescriptor("n", int, 7))
        _, keys = batch_of(keyed, [])
        assert batch.get(keys).to_pylist() == []
        batch.put(keys, pa.array([], pa.int64()))

    def test_keys_of_another_subtask_are_refused_at_once(self, keyed: KeyedHarness) -> None:
        batch = keyed.open(index=0, parallelism=2).batch_state(ValueStateDescriptor("n", int))
        _, keys = batch_of(keyed, KEYS)
        with pytest.raises(InvalidConfigurationError, match="key groups"):
            batch.get(keys)
        with pytest.raises(InvalidConfigurationError, match="key groups"):
            batch.put(keys, pa.nulls(len(KEYS), pa.int64()))

    def test_keys_in_another_order_than_that_of_their_groups_are_refused(self, keyed: KeyedHarness) -> None:
        batch = keyed.open().batch_state(ValueStateDescriptor("n", int))
        _, keys = batch_of(keyed, KEYS)
        order = pa.array(range(len(keys) - 1, -1, -1))
        turned = KeyBatch(keys.key_groups.take(order), tuple(column.take(order) for column in keys.columns))
        with pytest.raises(InvalidConfigurationError, match="order of their key groups"):
            batch.get(turned)

    def test_other_number_of_values_than_keys_is_refused(self, keyed: KeyedHarness) -> None:
        _, keys = batch_of(keyed, ["a"])
        with pytest.raises(InvalidConfigurationError, match="one value"):
            keyed.open().batch_state(ValueStateDescriptor("n", int)).put(keys, pa.array([1, 2], pa.int64()))

    def test_values_of_another_column_type_are_converted_or_refused(self, keyed: KeyedHarness) -> None:
        for ttl in (None, StateTtlConfig(timedelta(days=1))):
            batch = keyed.open().batch_state(ValueStateDescriptor("n", int, ttl=ttl))
            _, keys = batch_of(keyed, ["a", "b"])
            for values in (pa.chunked_array([[1], [2]]), pa.array([1, 2], pa.int32())):
                batch.put(keys, values)
                assert batch.get(keys).equals(pa.array([1, 2], pa.int64()))
            with pytest.raises(UnsupportedStateError, match="int64"):
                batch.put(keys, pa.array([1.5, 2.0]))

    def test_values_that_a_function_could_not_write_are_refused_at_once(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        _, keys = batch_of(keyed, ["a"])
        refused: list[tuple[Any, Any]] = [
            (list[int], pa.array([[1, None]])),
            (
                tuple[int, str],
                pa.array([{"_1": None, "_2": "x"}], pa.struct([("_1", pa.int64()), ("_2", pa.string())])),
            ),
            (_Side, pa.array(["UP"])),
            (pa.float32(), pa.array([0.1])),
            (int, pa.array(["1"])),
        ]
        for number, (kind, values) in enumerate(refused):
            batch = backend.batch_state(ValueStateDescriptor(f"s{number}", kind))
            with pytest.raises(UnsupportedStateError, match=f"'s{number}'"):
                batch.put(keys, values)
            assert batch.get(keys).null_count == 1

    def test_lists_and_maps_are_used_key_by_key(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        others: list[Any] = [ListStateDescriptor("l", int), MapStateDescriptor("m", str, int)]
        for descriptor in others:
            with pytest.raises(InvalidConfigurationError, match="key by key"):
                backend.batch_state(descriptor)


@dataclass
class Basket:
    """A mutable value with a mutable field."""

    owner: str = "ann"
    items: list[str] = field(default_factory=list)


@dataclass
class Total:
    """A mutable value with immutable fields."""

    owner: str = "ann"
    amount: int = 0


class TextSerializer:
    """Custom serializer of ``bytearray`` values."""

    class_id = "text"
    version = 1

    def serialize(self, value: bytearray) -> bytes:
        return bytes(value)

    def deserialize(self, data: bytes) -> bytearray:
        return bytearray(data)


def _sold(total: Total) -> None:
    total.amount += 1


_Change = Callable[[Any], Any]
CHANGEABLE: dict[str, tuple[Any, Callable[[], Any], _Change]] = {
    "list": (list[str], lambda: ["x1"], lambda value: value.append("y")),
    "list of lists": (list[list[int]], lambda: [[1]], lambda value: value[0].append(2)),
    "dict": (dict[str, int], lambda: {"a": 1}, lambda value: value.update(b=2)),
    "set": (set[int], lambda: {1}, lambda value: value.add(2)),
    "record": (Total, Total, _sold),
    "record with a list": (Basket, Basket, lambda value: value.items.append("tea")),
    "tuple with a list": (tuple[str, list[int]], lambda: ("a", [1]), lambda value: value[1].append(2)),
    "custom serializer": (TextSerializer(), lambda: bytearray(b"x"), lambda value: value.extend(b"y")),
}
TIMES: dict[str, Any] = {"no ttl": None, "ttl": StateTtlConfig(timedelta(days=1))}
MISFITS: dict[str, tuple[Any, Any]] = {
    "text for a number": (int, "text"),
    "number of too many bits": (int, 2**63),
    "truth value for a number": (int, True),
    "fraction for a number": (int, 1.5),
    "half of a surrogate pair": (str, "\ud800"),
    "tuple for a list": (list[int], (1,)),
    "element": (list[int], ["text"]),
    "no element": (list[int], [None]),
    "entry": (dict[str, int], {"a": "text"}),
    "field": (Total, Total(amount="text")),  # type: ignore[arg-type]
    "no field": (Total, Total(amount=None)),  # type: ignore[arg-type]
    "tuple of another length": (tuple[int, int], (1,)),
}


class _Pick:
    """Aggregate function that stores the last value without a copy."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return b


def _access(name: str, kind: Any, ttl: Any) -> tuple[Any, Callable[[Any, Any], None], Callable[[Any], Any]]:
    """Return a descriptor, a write function and a read function for a kind of access."""
    found: dict[str, tuple[Any, Callable[[Any, Any], None], Callable[[Any], Any]]] = {
        "value": (ValueStateDescriptor("v", kind, ttl=ttl), lambda s, v: s.update(v), lambda s: s.value()),
        "list": (ListStateDescriptor("l", kind, ttl=ttl), lambda s, v: s.update([v]), lambda s: next(iter(s.get()))),
        "added": (ListStateDescriptor("l", kind, ttl=ttl), lambda s, v: s.add(v), lambda s: next(iter(s.get()))),
        "map": (MapStateDescriptor("m", str, kind, ttl=ttl), lambda s, v: s.put("k", v), lambda s: s.get("k")),
        "entries": (
            MapStateDescriptor("m", str, kind, ttl=ttl),
            lambda s, v: s.put_all({"k": v}),
            lambda s: next(iter(s.entries())).value,
        ),
        "values": (
            MapStateDescriptor("m", str, kind, ttl=ttl),
            lambda s, v: s.put("k", v),
            lambda s: next(iter(s.values())),
        ),
        "reducing": (
            ReducingStateDescriptor("r", lambda _, value: value, kind, ttl=ttl),
            lambda s, v: s.add(v),
            lambda s: s.get(),
        ),
        "aggregating": (
            AggregatingStateDescriptor("a", _Pick(), kind, ttl=ttl),
            lambda s, v: s.add(v),
            lambda s: s.get(),
        ),
    }
    return found[name]


ACCESSES = ("value", "list", "added", "map", "entries", "values", "reducing", "aggregating")


class KeyedOwnershipContract:
    """Changes of values in place, and rejection of values with the wrong type."""

    @pytest.fixture
    def backend(self, keyed: KeyedHarness) -> AbstractKeyedStateBackend:
        """Return a backend whose current key is ``a``."""
        opened = keyed.open()
        opened.set_current_key("a")
        return opened

    @pytest.mark.parametrize("ttl", TIMES.values(), ids=TIMES)
    @pytest.mark.parametrize("access", ACCESSES)
    @pytest.mark.parametrize(("kind", "make", "change"), CHANGEABLE.values(), ids=CHANGEABLE)
    def test_changing_a_value_in_place_changes_no_state(
        self, keyed: KeyedHarness, kind: Any, make: Callable[[], Any], change: _Change, access: str, ttl: Any
    ) -> None:
        descriptor, put, read = _access(access, kind, ttl)
        backend: Any = keyed.open()
        backend.set_current_key("a")
        state = backend.get_partitioned_state(descriptor)
        given = make()
        put(state, given)
        change(given)
        for _ in range(2):
            for _ in range(2):
                found = read(state)
                assert found == make()
                change(found)
            backend = keyed.reopened(backend)
            backend.set_current_key("a")
            state = backend.get_partitioned_state(descriptor)
        assert read(state) == make()

    def test_value_that_is_changed_and_put_back_is_kept_through_each_increment(self, keyed: KeyedHarness) -> None:
        descriptor: Any = ValueStateDescriptor("v", list[str], [])
        backend: Any = keyed.open()
        for number in range(1, 5):
            backend.set_current_key("a")
            state = backend.get_partitioned_state(descriptor)
            value = state.value()
            value.append(f"x{number}")
            state.update(value)
            backend = keyed.reopened(backend)
        backend.set_current_key("a")
        assert backend.get_partitioned_state(descriptor).value() == ["x1", "x2", "x3", "x4"]

    def test_entry_that_is_written_through_stays_the_writers(self, backend: Any) -> None:
        state = backend.store.get_map_state(MapStateDescriptor("m", str, list[int]))
        state.put("k", [1])
        entry = next(iter(state.entries()))
        given = [2]
        entry.set_value(given)
        given.append(3)
        entry.value.append(4)
        assert state.get("k") == [2]

    def test_accumulators_may_be_changed_in_place_by_their_function(self, backend: Any) -> None:
        def fold(accumulator: list[str], value: str) -> list[str]:
            accumulator.append(value)
            return accumulator

        def reduce(a: list[str], b: list[str]) -> list[str]:
            a.extend(b)
            return a

        nothing: list[str] = []
        folding = backend.store.get_folding_state(FoldingStateDescriptor("f", nothing, fold, list[str]))
        reducing = backend.store.get_reducing_state(ReducingStateDescriptor("r", reduce, list[str]))
        for value in ("x", "y", "z"):
            folding.add(value)
            reducing.add([value])
        folding.get().append("not kept")
        reducing.get().append("not kept")
        assert folding.get() == reducing.get() == ["x", "y", "z"]

    def test_values_that_were_put_key_by_key_are_read_at_once(self, keyed: KeyedHarness) -> None:
        backend: Any = keyed.open()
        _, keys = batch_of(keyed, ["a"])
        descriptor: Any = ValueStateDescriptor("v", Total)
        backend.set_current_key("a")
        backend.store.get_state(descriptor).update(Total("bob", 2))
        batch = backend.batch_state(descriptor)
        assert batch.get(keys).to_pylist() == [{"owner": "bob", "amount": 2}]
        batch.put(keys, batch.get(keys))
        assert backend.store.get_state(descriptor).value() == Total("bob", 2)

    @pytest.mark.parametrize("access", ACCESSES)
    @pytest.mark.parametrize(("kind", "value"), MISFITS.values(), ids=MISFITS)
    def test_value_that_does_not_fit_is_refused_when_it_is_put(
        self, backend: Any, kind: Any, value: Any, access: str
    ) -> None:
        descriptor, put, _ = _access(access, kind, None)
        state = backend.get_partitioned_state(descriptor)
        with pytest.raises(UnsupportedStateError) as refused:
            put(state, value)
        message = str(refused.value)
        assert all(repr(name) in message for name in (descriptor.name, "a", OPERATOR))
        assert backend.num_entries() == 0

    def test_user_key_that_does_not_fit_is_refused_when_it_is_put(self, backend: Any) -> None:
        state = backend.store.get_map_state(MapStateDescriptor("m", str, int))
        for entries in ({1: 1}, {"x": 1, 2: 2}):
            with pytest.raises(UnsupportedStateError, match=f"'m' of the operator '{OPERATOR}' for the key 'a'"):
                state.put_all(entries)
        with pytest.raises(UnsupportedStateError, match="'m'"):
            state.put(1, 1)
        assert state.is_empty()

    def test_user_key_that_can_be_changed_is_refused(self, backend: Any) -> None:
        state = backend.store.get_map_state(MapStateDescriptor("m", list[int], int))
        with pytest.raises(UnsupportedStateError, match="immutable key of a map"):
            state.put([1], 1)
        assert backend.num_entries() == 0

    def test_values_at_once_that_do_not_fit_are_refused_naming_the_state(self, keyed: KeyedHarness) -> None:
        _, keys = batch_of(keyed, ["a"])
        with pytest.raises(UnsupportedStateError, match=f"'n' of the operator '{OPERATOR}'"):
            keyed.open().batch_state(ValueStateDescriptor("n", int)).put(keys, pa.array(["text"]))

    def test_number_that_a_wider_type_holds_is_read_as_it_will_be_restored(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("v", float))
        state.update(1)
        assert type(state.value()) is float
