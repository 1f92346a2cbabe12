"""Functions that turn one element into one other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.functions.rich_function import RichFunction

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
