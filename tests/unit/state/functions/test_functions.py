"""User functions: objects or plain functions, and which optional methods they have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.functions.contexts import KeyedContext
from airflow_provider_statecheck.state.functions.user_functions import (
    KeyedProcessFunction,
    MapFunction,
    RichMapFunction,
    as_map_function,
    processes_batches,
    require_keyed_process_function,
    wants_end_of_input,
)


class Double(MapFunction[int, int]):
    def map(self, value: int) -> int:
        return 2 * value


class ByElement(KeyedProcessFunction[str, int, int]):
    def process_element(self, value: int, context: KeyedContext[str]) -> Iterable[int]:
        yield value


class ByBatch(KeyedProcessFunction[str, int, int]):
    def process_batch(self, table: Any, context: Any) -> Any:
        return table


class AtTheEnd(ByElement):
    def on_end_of_input(self, context: KeyedContext[str]) -> Iterable[int]:
        return [1]


class ByBatchMixin:
    def process_batch(self, table: Any, context: Any) -> Any:
        return table


class Mixed(ByBatchMixin, ByElement):
    pass


class TestPlainFunctions:
    def test_an_object_stays_what_it_is(self) -> None:
        function = Double()
        assert as_map_function(function) is function

    def test_a_plain_function_becomes_a_map_function(self) -> None:
        def next_one(value: int) -> int:
            return value + 1

        assert as_map_function(next_one).map(1) == 2

    @pytest.mark.parametrize("found", [Double, 3, None])
    def test_what_is_neither_object_nor_function_is_refused(self, found: Any) -> None:
        with pytest.raises(InvalidConfigurationError, match="an object of a MapFunction"):
            as_map_function(found)

    def test_a_function_without_its_method_cannot_be_made(self) -> None:
        class Nothing(RichMapFunction[int, int]):
            pass

        with pytest.raises(TypeError, match="map"):
            Nothing()  # type: ignore[abstract]


class TestOptionalMethods:
    @pytest.mark.parametrize(
        ("function", "takes_batches", "has_end"),
        [(ByElement(), False, False), (ByBatch(), True, False), (AtTheEnd(), False, True), (Mixed(), True, False)],
        ids=["of elements", "of batches", "inherited", "of a mixin"],
    )
    def test_defined_methods_are_found(self, function: Any, takes_batches: bool, has_end: bool) -> None:
        assert (processes_batches(function), wants_end_of_input(function)) == (takes_batches, has_end)

    def test_a_method_of_the_object_alone_is_found(self) -> None:
        function = ByElement()
        function.process_batch = lambda table, context: table  # type: ignore[method-assign]
        assert processes_batches(function)

    def test_a_function_must_take_elements_or_batches(self) -> None:
        class Neither(KeyedProcessFunction[str, int, int]):
            pass

        with pytest.raises(InvalidConfigurationError, match="process_element or process_batch"):
            require_keyed_process_function(Neither())

    @pytest.mark.parametrize("found", [ByElement, Double(), print])
    def test_only_objects_of_keyed_process_functions_are_taken(self, found: Any) -> None:
        with pytest.raises(InvalidConfigurationError, match="an object of a KeyedProcessFunction"):
            require_keyed_process_function(found)

    @pytest.mark.parametrize("function", [ByElement(), ByBatch(), Mixed()])
    def test_functions_with_either_method_are_taken(self, function: Any) -> None:
        require_keyed_process_function(function)
        with pytest.raises(InvalidConfigurationError, match="an object of a KeyedProcessFunction"):
            require_keyed_process_function(type(function))

    def test_nothing_is_emitted_at_the_end_unless_it_is_defined(self) -> None:
        assert ByElement().on_end_of_input(KeyedContext()) is None

    @pytest.mark.parametrize("method", ["process_element", "process_batch"])
    def test_a_method_that_was_not_defined_cannot_be_called(self, method: str) -> None:
        with pytest.raises(NotImplementedError):
            getattr(KeyedProcessFunction[str, int, int](), method)(1, KeyedContext())
