"""Functions that turn one element into any number of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.functions.rich_function import RichFunction

In = TypeVar("In")
Out = TypeVar("Out")


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
