"""Checks of the functions that users give to Airflow operators, when Airflow parses the Dag."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from airflow.providers.apache.spark.operators.spark_pyspark import SPARK_CONTEXT_KEYS
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

SPARK_PARAMETER = "spark"
CHECKPOINT_PARAMETER = "checkpoint"
_SUPPLIED = (CHECKPOINT_PARAMETER, *SPARK_CONTEXT_KEYS)
_NOT_IN_A_PARTIAL_TASK = "_airflow_mapped_validation_only"
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def stage_function(function: Any, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """
    Check the function of a stage and make the parameters optional that the Airflow operator supplies.

    Airflow binds the arguments of the function before the task runs. The supplied parameters and all parameters after
    them become keyword-only in its signature.

    :param arguments: Arguments of the Airflow operator, with ``op_args`` and ``op_kwargs``.
    :raises InvalidConfigurationError: if the function cannot be the function of a stage, or its arguments do not fit.
    """
    require_function(function)
    signature = _signature_of(function)
    _require_supplied_parameters(function, signature)
    wanted = _with_optional_parameters(signature)
    op_args, op_kwargs = arguments.get("op_args") or (), arguments.get("op_kwargs") or {}
    # The arguments of a mapped task are known when it runs, and an XCom may stand for all of them.
    if isinstance(op_args, Collection) and isinstance(op_kwargs, Mapping):
        _require_by_name(function, wanted, op_args, op_kwargs)
        if not arguments.get(_NOT_IN_A_PARTIAL_TASK):
            _require_all(function, wanted, op_args, op_kwargs)
    return _with_signature(function, wanted)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function can be called with an argument of this name."""
    return _takes(inspect.signature(function), name)


def _takes(signature: inspect.Signature, name: str) -> bool:
    parameter = signature.parameters.get(name)
    if parameter is not None:
        return parameter.kind in _BY_NAME
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())


def require_function(function: Any) -> None:
    """
    Require a function that returns its result.

    :raises InvalidConfigurationError: if it is something else, or asynchronous, or a generator.
    """
    if not callable(function):
        raise InvalidConfigurationError(
            f"Expected a function as python_callable, found {function!r}; give the arguments of the task by name, such "
            "as conn_id=."
        )
    if any(map(inspect.iscoroutinefunction, _inner(function))) or _is(inspect.isasyncgenfunction, function):
        raise InvalidConfigurationError(
            f"Expected a function that returns its result, found that {_name(function)} is asynchronous; Spark's calls "
            "wait for their results: write it with 'def', and call asyncio.run for what is asynchronous in it."
        )
    if _is(inspect.isgeneratorfunction, function):
        raise InvalidConfigurationError(
            f"Expected a function that returns its result, found that {_name(function)} is a generator, whose values "
            "nothing would read; return the result, and add the metadata of assets by outlet_events."
        )


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    return kind(function) or kind(type(function).__call__)


def _inner(function: Any) -> Iterator[Any]:
    # Airflow takes a function that wraps an asynchronous one for asynchronous too.
    while isinstance(function, functools.partial):
        function = function.func
    yield function
    yield inspect.unwrap(function)
    yield type(function).__call__


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidConfigurationError(
            f"Expected a function with a signature, found that {_name(function)} has none; wrap it in a function with "
            "the parameters spark and checkpoint."
        ) from error


def _require_supplied_parameters(function: Callable[..., Any], signature: inspect.Signature) -> None:
    missing = [name for name in (SPARK_PARAMETER, CHECKPOINT_PARAMETER) if not _takes(signature, name)]
    if missing:
        shown = signature.replace(return_annotation=inspect.Signature.empty)
        raise InvalidConfigurationError(
            f"Expected the parameters spark and checkpoint, which the Airflow operator passes by name, found "
            f"{_name(function)}{shown} without {' and '.join(missing)}; add them to the signature."
        )


def _with_optional_parameters(signature: inspect.Signature) -> inspect.Signature:
    parameters: list[inspect.Parameter] = []
    by_name_only = False
    for parameter in signature.parameters.values():
        is_supplied = parameter.name in _SUPPLIED
        by_name_only = by_name_only or is_supplied
        default = None if is_supplied else parameter.default
        parameters.append(parameter.replace(default=default, kind=_kind(parameter, by_name_only=by_name_only)))
    return signature.replace(parameters=parameters)


def _kind(parameter: inspect.Parameter, *, by_name_only: bool) -> Any:
    is_plain = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter.KEYWORD_ONLY if by_name_only and is_plain else parameter.kind


def _require_by_name(
    function: Callable[..., Any], signature: inspect.Signature, op_args: Collection[Any], op_kwargs: Mapping[str, Any]
) -> None:
    positional = [each for each in signature.parameters.values() if each.kind in _BY_POSITION]
    is_open = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in signature.parameters.values())
    if len(op_args) > len(positional) and not is_open:
        behind = [name for name, each in signature.parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY]
        named = ", ".join(f"{name}=..." for name in behind if name not in _SUPPLIED) or "no argument"
        raise InvalidConfigurationError(
            f"Expected at most {len(positional)} arguments of {_name(function)} by position, found {len(op_args)}: the "
            f"Airflow operator passes spark and checkpoint, and arguments behind them are given by name; give {named}."
        )
    supplied = [name for name in _SUPPLIED if name in op_kwargs]
    if supplied:
        raise InvalidConfigurationError(
            f"Expected {' and '.join(supplied)} of {_name(function)} from the Airflow operator only, found a value in "
            "op_kwargs; remove it."
        )


def _require_all(
    function: Callable[..., Any], signature: inspect.Signature, op_args: Collection[Any], op_kwargs: Mapping[str, Any]
) -> None:
    given = {each.name for each in list(signature.parameters.values())[: len(op_args)] if each.kind in _BY_POSITION}
    known = given | set(op_kwargs) | set(KNOWN_CONTEXT_KEYS)
    missing = [
        each.name
        for each in signature.parameters.values()
        if each.default is inspect.Parameter.empty
        and each.kind in {*_BY_POSITION, *_BY_NAME}
        and each.name not in known
    ]
    if missing:
        raise InvalidConfigurationError(
            f"Expected a value for each parameter of {_name(function)} without a default, found none for "
            f"{', '.join(missing)}; give it when the task is called, or in op_kwargs."
        )


def _with_signature(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    try:
        function.__signature__ = signature  # type: ignore[attr-defined]
    except AttributeError:
        # A bound method takes no attributes.
        return _with_signature(functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs)), signature)
    return function


def _name(function: Any) -> str:
    named = function.func if isinstance(function, functools.partial) else function
    return str(getattr(named, "__name__", None) or type(function).__name__)
