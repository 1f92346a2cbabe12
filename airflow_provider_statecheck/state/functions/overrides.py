"""Which of its optional methods a function has."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.functions.keyed_process_function import KeyedProcessFunction


def overrides(function: object, base: type, method: str) -> bool:
    """Tell whether an object has a method of its own in place of its base's, by its class or by itself."""
    own = getattr(function, method, None)
    return own is not None and getattr(own, "__func__", own) is not getattr(base, method)


def processes_batches(function: KeyedProcessFunction[Any, Any, Any]) -> bool:
    """Tell whether a function takes tables."""
    return overrides(function, KeyedProcessFunction, "process_batch")


def processes_elements(function: KeyedProcessFunction[Any, Any, Any]) -> bool:
    """Tell whether a function takes single elements."""
    return overrides(function, KeyedProcessFunction, "process_element")


def wants_end_of_input(function: KeyedProcessFunction[Any, Any, Any]) -> bool:
    """Tell whether a function is asked for each key at the end of the input."""
    return overrides(function, KeyedProcessFunction, "on_end_of_input")


def require_keyed_process_function(function: object) -> None:
    """
    Refuse what cannot be given elements of a key.

    :raises InvalidConfigurationError: for another object, a class, or a function that takes neither elements nor tables.
    """
    if not isinstance(function, KeyedProcessFunction):
        raise InvalidConfigurationError(f"Expected an object of a KeyedProcessFunction, found {function!r}.")
    if not (processes_elements(function) or processes_batches(function)):
        raise InvalidConfigurationError(
            f"Expected {type(function).__name__} to define process_element or process_batch, found neither of them."
        )
