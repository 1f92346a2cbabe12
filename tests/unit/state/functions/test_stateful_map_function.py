"""A map function with keyed and operator state, as its user writes it, over a failure."""

from __future__ import annotations

from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.functions.contexts import FunctionInitializationContext, FunctionSnapshotContext
from airflow_provider_statecheck.state.functions.user_functions import CheckpointedFunction, RichMapFunction
from airflow_provider_statecheck.testing.function_harness import FunctionHarness


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
