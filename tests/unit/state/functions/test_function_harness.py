"""The harness in which users test their functions, and a map function with keyed and operator state over a failure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.functions.contexts import (
    BroadcastContext,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedContext,
    RuntimeContext,
)
from airflow_provider_statecheck.state.functions.user_functions import (
    CheckpointedFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    RichMapFunction,
)
from airflow_provider_statecheck.testing.function_harness import FunctionHarness


class Sum(KeyedProcessFunction[str, int, tuple[str, int]]):
    """Sums the elements of each key, and emits at the end."""

    is_closed = False

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor[int]("total", int, 0))
        self.seen = runtime_context.get_list_state(ListStateDescriptor[int]("seen", int))

    def process_element(self, value: int, context: KeyedContext[str]) -> Iterable[tuple[str, int]]:
        self.total.update((self.total.value() or 0) + value)
        self.seen.add(context.timestamp() or 0)
        if value < 0:
            yield context.current_key, value

    def on_end_of_input(self, context: KeyedContext[str]) -> Iterable[tuple[str, int]]:
        yield context.current_key, self.total.value() or 0

    def close(self) -> None:
        self.is_closed = True


class Words(FlatMapFunction[str, str]):
    def flat_map(self, value: str) -> Iterable[str]:
        yield from value.split()


def test_each_key_has_its_own_state() -> None:
    with FunctionHarness(Sum(), key=str) as harness:
        assert harness.process(1, key="a") == []
        assert harness.process(-5, key="b") == [("b", -5)]
        harness.process(2, key="a")
        assert sorted(harness.end_of_input()) == [("a", 3), ("b", -5)]


def test_a_key_may_have_several_columns() -> None:
    harness = FunctionHarness(Sum(), key=(str, int))
    harness.process(1, key=("a", 1))
    harness.process(2, key=("a", 2))
    assert sorted(harness.end_of_input()) == [(("a", 1), 1), (("a", 2), 2)]


def test_a_snapshot_begins_another_harness() -> None:
    first = FunctionHarness(Sum(), key=str)
    first.process(1, key="a")
    snapshot = first.snapshot()
    first.process(10, key="a")
    second = FunctionHarness(Sum(), key=str, restored=snapshot)
    second.process(2, key="a")
    assert second.end_of_input() == [("a", 3)]


def test_elements_have_the_time_that_they_were_given() -> None:
    function = Sum()
    harness = FunctionHarness(function, key=str)
    harness.process(1, key="a", timestamp=12)
    assert list(function.seen) == [12]


def test_functions_without_keys_are_called_alike() -> None:
    assert FunctionHarness(Words()).process("a b") == ["a", "b"]
    assert FunctionHarness(str.upper).process("a") == ["A"]
    assert FunctionHarness(Words()).end_of_input() == []


def test_keyed_state_needs_a_key() -> None:
    with pytest.raises(CoordinatorError, match="put key_by before it"):
        FunctionHarness(Sum())
    with pytest.raises(InvalidConfigurationError):
        FunctionHarness(Sum(), key=str).process(1)


def test_the_function_is_closed_at_the_end() -> None:
    function = Sum()
    with FunctionHarness(function, key=str):
        assert not function.is_closed
    assert function.is_closed


class Pairs(FlatMapFunction[int, tuple[int, ...]], CheckpointedFunction):
    """Holds every other element back, as operator state."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("held", int))
        self.held = list(self.state.get())

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.state.update(self.held)

    def flat_map(self, value: int) -> Iterable[tuple[int, ...]]:
        self.held.append(value)
        if len(self.held) == 2:
            yield tuple(self.held)
            self.held = []


class Visits(KeyedProcessFunction[str, str, list[str]]):
    """Changes a value of state in place, and puts it back each time or the first time only."""

    def __init__(self, *, updates: bool) -> None:
        self.updates = updates
        self.calls = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self.visits: Any = runtime_context.get_state(ValueStateDescriptor[Any]("visits", list[str], []))

    def process_element(self, value: str, context: KeyedContext[str]) -> Iterable[list[str]]:
        self.calls += 1
        found = self.visits.value()
        found.append(value)
        if self.updates or len(found) == 1:
            self.visits.update(found)
        yield self.visits.value()


@pytest.mark.parametrize("state_backend", [None, "arrow", "filesystem", "memory", ArrowStateBackend()])
@pytest.mark.parametrize("snapshot_between_calls", [False, True])
def test_a_value_changed_in_place_is_kept_only_by_an_update(state_backend: Any, snapshot_between_calls: bool) -> None:
    for updates, expected in ((True, ["x1", "x2", "x3", "x4"]), (False, ["x1"])):
        with FunctionHarness(
            Visits(updates=updates),
            key=str,
            state_backend=state_backend,
            snapshot_between_calls=snapshot_between_calls,
        ) as harness:
            emitted = [harness.process(f"x{number}", key="a") for number in range(1, 5)]
        assert emitted[-1] == [expected]


def test_what_is_not_state_is_lost_between_calls_where_each_is_an_increment() -> None:
    function = Visits(updates=True)
    with FunctionHarness(function, key=str, snapshot_between_calls=True) as harness:
        harness.process("x", key="a")
        harness.process("y", key="b")
    assert function.calls == 0


def test_operator_state_goes_on_between_calls_where_each_is_an_increment() -> None:
    with FunctionHarness(Pairs(), snapshot_between_calls=True) as harness:
        assert [harness.process(number) for number in range(4)] == [[], [(0, 1)], [], [(2, 3)]]


def test_the_harness_has_the_backend_of_a_stage() -> None:
    with FunctionHarness(Sum(), key=str) as harness:
        harness.process(1, key="a")
        (keyed,) = harness.snapshot().managed_keyed
    assert type(keyed) is KeyedStateHandle


class StatefulMapFunction(RichMapFunction[str, str], CheckpointedFunction):
    """Counts each value, and keeps all of them."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        count = ValueStateDescriptor[int]("count", int)
        self.count_state = context.get_keyed_state_store().get_state(count)
        buffer = ListStateDescriptor[str]("buffer", str)
        self.buffer_state = context.get_operator_state_store().get_list_state(buffer)
        if context.is_restored():
            self.notes.append("Restoring state from checkpoint")

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.notes.append(f"Taking snapshot for checkpoint: {context.get_checkpoint_id()}")

    def map(self, value: str) -> str:
        current_count = self.count_state.value()
        if current_count is None:
            current_count = 0
        self.count_state.update(current_count + 1)
        self.buffer_state.add(value)
        return f"{value} (processed {current_count + 1} times)"


def test_state_goes_on_where_the_checkpoint_was() -> None:
    first = FunctionHarness(StatefulMapFunction(), key=str)
    assert [first.process(value, key=value) for value in ("a", "b", "a")] == [
        ["a (processed 1 times)"],
        ["b (processed 1 times)"],
        ["a (processed 2 times)"],
    ]
    checkpoint = first.snapshot(7)
    assert first.process("a", key="a") == ["a (processed 3 times)"]

    function = StatefulMapFunction()
    second = FunctionHarness(function, key=str, restored=checkpoint)
    assert function.notes == ["Restoring state from checkpoint"]
    assert list(function.buffer_state) == ["a", "b", "a"]
    assert second.process("a", key="a") == ["a (processed 3 times)"]
    assert second.process("b", key="b") == ["b (processed 2 times)"]
    assert list(function.buffer_state) == ["a", "b", "a", "a", "b"]


def test_a_new_function_is_told_that_nothing_was_restored() -> None:
    function = StatefulMapFunction()
    harness = FunctionHarness(function, key=str)
    harness.snapshot(7)
    assert function.notes == ["Taking snapshot for checkpoint: 7"]


LIMITS: MapStateDescriptor[int] = MapStateDescriptor("limits", str, int)
TOTAL: ValueStateDescriptor[int] = ValueStateDescriptor("total", int, 0)


class Limited(KeyedBroadcastProcessFunction[str, int, tuple[str, int], Any]):
    """Sums elements up to a limit of their key; a limit of zero starts all sums again."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_broadcast_element(self, value: tuple[str, int], context: BroadcastContext) -> Iterable[Any]:
        key, limit = value
        context.get_broadcast_state(LIMITS).put(key, limit)
        if not limit:
            context.apply_to_keyed_state(TOTAL, lambda _, total: total.clear())
        self.kept = context
        yield "limit", key

    def process_element(self, value: int, context: KeyedContext[str]) -> Iterable[Any]:
        limits = context.get_broadcast_state(LIMITS)
        self.total.update(min((self.total.value() or 0) + value, limits.get(context.current_key) or 1000))
        yield self.total.value()

    def on_end_of_input(self, context: KeyedContext[str]) -> Iterable[Any]:
        yield context.current_key, context.get_broadcast_state(LIMITS).get(context.current_key)


@pytest.mark.parametrize("backend", ["arrow", "hashmap"])
@pytest.mark.parametrize("between", [False, True])
def test_broadcast_state_is_read_with_each_key_and_restored(backend: str, between: bool) -> None:
    how: dict[str, Any] = {"key": str, "broadcast": (LIMITS,), "state_backend": backend}
    harness = FunctionHarness(Limited(), snapshot_between_calls=between, **how)
    assert harness.process_broadcast(("ann", 7)) == [("limit", "ann")]
    assert [harness.process(5, key=key) for key in ("ann", "ann", "bob", "bob")] == [[5], [7], [5], [10]]
    restored = FunctionHarness(Limited(), restored=harness.snapshot(), **how)
    assert restored.process(5, key="ann") == [7]
    assert sorted(restored.end_of_input()) == [("ann", 7), ("bob", None)]
    restored.process_broadcast(("bob", 0))
    assert [restored.process(1, key=key) for key in ("ann", "bob")] == [[1], [1]]


def test_broadcast_state_is_changed_by_broadcast_elements_only() -> None:
    class Writing(Limited):
        def process_element(self, value: Any, context: KeyedContext[str]) -> Iterable[Any]:
            context.get_broadcast_state(LIMITS).put("ann", 1)
            return ()

    function = Writing()
    harness = FunctionHarness(function, key=str, broadcast=(LIMITS,))
    harness.process_broadcast(("ann", 7))
    with pytest.raises(CoordinatorError, match="found a call of put"):
        harness.process(1, key="ann")
    with pytest.raises(CoordinatorError, match="during process_broadcast_element"):
        function.kept.get_broadcast_state(LIMITS)


def test_broadcast_state_that_the_stage_does_not_declare_is_refused() -> None:
    harness = FunctionHarness(Limited(), key=str)
    with pytest.raises(InvalidConfigurationError, match="found 'limits'; name its descriptor in broadcast"):
        harness.process_broadcast(("ann", 7))
    with pytest.raises(InvalidConfigurationError, match="found 'limits'; name its descriptor in broadcast"):
        harness.process(1, key="ann")
