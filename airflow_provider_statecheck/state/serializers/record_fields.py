"""The fields of dataclasses, named tuples and Arrow structs."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from airflow_provider_statecheck.exceptions import UnsupportedStateError

_Default = Callable[[], Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Aliases:
    """
    Names that a field had before, as in ``total: Annotated[int, Aliases("sum")]``.

    :param names: Of the same field in earlier versions of the record.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


class DeclaredField(NamedTuple):
    """A field as its class declares it."""

    name: str
    type: Any
    aliases: tuple[str, ...]
    default: _Default


def fields_of_dataclass(cls: Any) -> list[DeclaredField]:
    """
    Return the fields of a dataclass.

    :raises UnsupportedStateError: for types that cannot be found, or arguments that are no fields.
    """
    hints = type_hints(cls)
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        raise UnsupportedStateError(f"Expected {cls.__qualname__} to be made of its fields alone, found an InitVar.")
    return [_declared(field.name, hints[field.name], _default(field), field) for field in dataclasses.fields(cls)]


def fields_of_named_tuple(cls: Any) -> list[DeclaredField]:
    """
    Return the fields of a class of named tuples.

    :raises UnsupportedStateError: for types that cannot be found, or none at all.
    """
    hints = type_hints(cls)
    for name in {*cls._fields} - {*hints}:
        raise UnsupportedStateError(
            f"Expected a type for the field {name} of {cls.__qualname__}; use typing.NamedTuple."
        )
    defaults = {name: partial(_same, value) for name, value in cls._field_defaults.items()}
    return [_declared(name, hints[name], defaults.get(name)) for name in cls._fields]


def type_hints(cls: type) -> dict[str, Any]:
    """
    Return the types that a class declares.

    :raises UnsupportedStateError: for names that cannot be found.
    """
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError) as error:
        raise UnsupportedStateError(
            f"Expected the types of the fields of {cls.__qualname__} at the top of its module, found {error}; move them there."
        ) from error


def _declared(name: str, hint: Any, default: _Default, field: Any = None) -> DeclaredField:
    aliases = tuple(field.metadata.get("aliases", ())) if field is not None else ()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *extras = typing.get_args(hint)
        aliases += tuple(alias for extra in extras if isinstance(extra, Aliases) for alias in extra.names)
    return DeclaredField(name, hint, aliases, default)


def _default(field: Any) -> _Default:
    if field.default_factory is not dataclasses.MISSING:
        factory: Callable[[], Any] = field.default_factory
        return factory
    return None if field.default is dataclasses.MISSING else partial(_same, field.default)


def _same(value: Any) -> Any:
    return value
