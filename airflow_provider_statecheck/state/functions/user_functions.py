"""User functions of stateful stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.functions.contexts import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBatchContext,
    KeyedContext,
    RuntimeContext,
)


class CheckpointedFunction(ABC):
    """Gets its state before it is opened, and a last word on it before each checkpoint."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """
        Ask for state; called once, before ``open``.

        :param context: The stores of state, and whether they were restored; of no use after the call.
        """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """
        Bring the state up to date; whatever is in it after the call is in the checkpoint.

        :param context: Which checkpoint it is; of no use after the call.
        """


class RichFunction:
    """Opened before the first element and closed after the last; both do nothing unless they are overridden."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """
        Prepare the work; called once, after the state was initialized.

        :param runtime_context: Which subtask this is, and its keyed state.
        """

    def close(self) -> None:
        """Give up what ``open`` took; called once, after a failure too."""


In = TypeVar("In")
Out = TypeVar("Out")


class MapFunction(ABC, Generic[In, Out]):
    """Turns each element into one other."""

    @abstractmethod
    def map(self, value: In) -> Out:
        """Return what an element becomes."""


class RichMapFunction(MapFunction[In, Out], RichFunction):
    """A map function that is opened and closed."""


class _CalledMapFunction(MapFunction[In, Out]):
    """A plain function in the place of an object."""

    def __init__(self, function: Callable[[In], Out]) -> None:
        self._function = function

    def map(self, value: In) -> Out:
        return self._function(value)


def as_map_function(function: MapFunction[In, Out] | Callable[[In], Out]) -> MapFunction[In, Out]:
    """
    Return a map function, made of a plain function if need be.

    :raises InvalidConfigurationError: for what is neither, such as the class in place of an object of it.
    """
    if isinstance(function, MapFunction):
        return function
    if isinstance(function, type) or not callable(function):
        raise InvalidConfigurationError(
            f"Expected a function of one element, or an object of a MapFunction, found {function!r}."
        )
    return _CalledMapFunction(function)


class FlatMapFunction(ABC, Generic[In, Out]):
    """Turns each element into none, one or more others."""

    @abstractmethod
    def flat_map(self, value: In) -> Iterable[Out]:
        """Return what an element becomes; it may be a generator."""


class RichFlatMapFunction(FlatMapFunction[In, Out], RichFunction):
    """A flat map function that is opened and closed."""


class _CalledFlatMapFunction(FlatMapFunction[In, Out]):
    """A plain function in the place of an object."""

    def __init__(self, function: Callable[[In], Iterable[Out]]) -> None:
        self._function = function

    def flat_map(self, value: In) -> Iterable[Out]:
        return self._function(value)


def as_flat_map_function(
    function: FlatMapFunction[In, Out] | Callable[[In], Iterable[Out]],
) -> FlatMapFunction[In, Out]:
    """
    Return a flat map function, made of a plain function if need be.

    :raises InvalidConfigurationError: for what is neither, such as the class in place of an object of it.
    """
    if isinstance(function, FlatMapFunction):
        return function
    if isinstance(function, type) or not callable(function):
        raise InvalidConfigurationError(
            f"Expected a function of one element, or an object of a FlatMapFunction, found {function!r}."
        )
    return _CalledFlatMapFunction(function)


K = TypeVar("K")


class KeyedProcessFunction(RichFunction, Generic[K, In, Out]):
    """
    Gets elements in the scope of their key.

    A subclass has ``process_element`` or ``process_batch``; where it has both, batches are taken.
    """

    def process_element(self, value: In, context: KeyedContext[K]) -> Iterable[Out] | None:
        """
        Take one element and return what to emit; it may be a generator.

        :param context: The key, and the time of the element; of no use after the call.
        """
        raise NotImplementedError

    def process_batch(self, table: Any, context: KeyedBatchContext) -> Any:
        """
        Take elements of many keys as an Arrow table, and return one of what to emit, or ``None``.

        :param context: The distinct keys of the table, and their state as columns; of no use after the call.
        """
        raise NotImplementedError

    def on_end_of_input(self, context: KeyedContext[K]) -> Iterable[Out] | None:
        """
        Say what to emit for a key at the end of a bounded input; called once for each key that has state.

        :param context: The key; of no use after the call.
        """
        return None
