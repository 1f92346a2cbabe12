"""The harness in which users test their functions."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.functions.flat_map_function import FlatMapFunction
from airflow_provider_statecheck.state.functions.keyed_context import KeyedContext
from airflow_provider_statecheck.state.functions.keyed_process_function import KeyedProcessFunction
from airflow_provider_statecheck.state.functions.runtime_context import RuntimeContext
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
