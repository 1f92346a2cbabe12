"""Rows with names: those that functions get, and those that they emit."""

from __future__ import annotations

import dataclasses
import difflib
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NoReturn

from airflow_provider_statecheck.checkpoint.masking import counted


def find_name(names: Sequence[str], wanted: str, *, is_case_sensitive: bool) -> int | None:
    """
    Return the position of a column by Spark's rules for case; an equal name takes precedence.

    :return: ``None`` if there is none, or several that differ only in case.
    """
    if wanted in names:
        return names.index(wanted)
    if is_case_sensitive:
        return None
    found = [position for position, name in enumerate(names) if name.lower() == wanted.lower()]
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=64)
def row_type(names: tuple[str, ...]) -> Any:
    """
    Return the named tuple type for rows with these columns.

    Columns whose names are not identifiers of a named tuple are attributes of these names, and of positional ones.
    """
    kind = _with_all_names(_named_tuple(names), names)
    kind.__getattr__ = _unknown_column
    return kind


def _named_tuple(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)  # noqa: PYI024 - the fields are known only at runtime


def _with_all_names(kind: Any, names: tuple[str, ...]) -> Any:
    if kind._fields == names:
        return kind
    own = {name for name in vars(kind) if name.startswith("_")} - set(kind._fields)
    # Of equal names, the first one is the attribute.
    first = {name: position for position, name in reversed(list(enumerate(names)))}
    columns = {name: property(itemgetter(at)) for name, at in first.items() if name not in own and name[:2] != "__"}
    methods = {"__slots__": (), "__repr__": _text, "_replace": _replaced}
    return type("Row", (kind,), {**columns, **methods, "_fields": names})


def _unknown_column(row: Any, name: str) -> NoReturn:
    """Raise the error for a name that is none of the columns; Python calls this for no other name."""
    # Libraries such as numpy ask each row for names of protocols, which have to cost nothing.
    if name.startswith("_"):
        raise AttributeError(f"{type(row).__name__!r} object has no attribute {name!r}", name=name)
    raise AttributeError(_unknown_text(row._fields, name), name=name)


@lru_cache(maxsize=256)
def _unknown_text(fields: tuple[str, ...], name: str) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"Expected one of the columns {', '.join(fields)}, found {name!r}{hint}"


def _text(row: Any) -> str:
    return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(row._fields, row, strict=True))})"


def _replaced(row: Any, /, **values: Any) -> Any:
    unknown = [name for name in values if name not in row._fields]
    if unknown:
        raise TypeError(f"Expected names of columns among {row._fields}, found {unknown}.")
    return tuple.__new__(type(row), (values.get(name, value) for name, value in zip(row._fields, row, strict=True)))


def columns_of(values: Sequence[Any], names: Sequence[str], *, is_case_sensitive: bool = False) -> list[Sequence[Any]]:
    """
    Return the columns of emitted values.

    ``Row``, named tuples, mappings and dataclasses are matched by name, plain tuples by position. As in Spark, a column
    that a mapping lacks is null.

    :param values: Rows, or bare values for a single column.
    :raises TypeError: if only some of the values are rows.
    :raises ValueError: if a row lacks a column, or has another one.
    """
    if not values:
        return [()] * len(names)
    kinds = list(dict.fromkeys(map(type, values)))
    if not any(map(_is_row, kinds)):
        return _require_width([values], names)
    _require_one_form(kinds)
    wanted = tuple(names)
    if len(kinds) > 1 or _has_own_names(values, kinds[0]):
        single = [_columns_of_kind([value], type(value), wanted, is_case_sensitive) for value in values]
        return [[column[0] for column in each] for each in zip(*single, strict=True)]
    return _columns_of_kind(values, kinds[0], wanted, is_case_sensitive)


def _require_one_form(kinds: Sequence[type]) -> None:
    # Their keys or characters would become the values of a row.
    others = [kind.__name__ for kind in kinds if not issubclass(kind, tuple)]
    if len(kinds) > 1 and others and (len(others) < len(kinds) or not all(map(_is_row, kinds))):
        raise TypeError(f"tuples and {others[0]}" if len(others) < len(kinds) else " and ".join(others))


def _is_row(kind: type) -> bool:
    return issubclass(kind, tuple | Mapping) or dataclasses.is_dataclass(kind)


def _has_own_names(values: Sequence[Any], kind: type) -> bool:
    """Return whether the rows of a type have different names, which those of pyspark may."""
    if kind is tuple or hasattr(kind, "_fields") or not issubclass(kind, tuple):
        return False
    return len({_names_of(value) for value in values}) > 1


def _names_of(row: Any) -> tuple[str, ...]:
    # A Row of pyspark without names is a plain tuple; one with a column of this name has its value as the attribute.
    names: Any = getattr(type(row), "_fields", None) or getattr(row, "__fields__", ())
    return tuple(names)


def _columns_of_kind(
    values: Sequence[Any], kind: type, names: tuple[str, ...], is_case_sensitive: bool
) -> list[Sequence[Any]]:
    if issubclass(kind, Mapping):
        return _columns_of_mappings(values, names, is_case_sensitive)
    if not issubclass(kind, tuple):
        fields = tuple(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]
        found = [fields[at] for at in _positions(fields, names, is_case_sensitive)]
        return [[getattr(value, name) for value in values] for name in found]
    columns: list[Sequence[Any]] = list(zip(*values, strict=True))
    named = _names_of(values[0])
    if not named or named == names:
        return _require_width(columns, names)
    return [columns[at] for at in _positions(named, names, is_case_sensitive)]


def _columns_of_mappings(values: Sequence[Any], names: tuple[str, ...], is_case_sensitive: bool) -> list[Sequence[Any]]:
    known = set(names)
    if not all(value.keys() <= known for value in values):
        values = [_with_names(value, names, is_case_sensitive) for value in values]
    return [[value.get(name) for value in values] for name in names]


def _with_names(value: Mapping[str, Any], names: tuple[str, ...], is_case_sensitive: bool) -> dict[str, Any]:
    found = tuple(value)
    positions = [find_name(found, name, is_case_sensitive=is_case_sensitive) for name in names]
    _require_all_read(found, positions, names)
    return {name: value[found[at]] for name, at in zip(names, positions, strict=True) if at is not None}


@lru_cache(maxsize=256)
def _positions(found: tuple[str, ...], names: tuple[str, ...], is_case_sensitive: bool) -> tuple[int, ...]:
    positions = [find_name(found, name, is_case_sensitive=is_case_sensitive) for name in names]
    missing = [name for name, at in zip(names, positions, strict=True) if at is None]
    if missing:
        raise ValueError(
            f"rows with the names {list(found)}, without {missing}; a plain tuple has its values in the order of the "
            "columns"
        )
    _require_all_read(found, positions, names)
    return tuple(at for at in positions if at is not None)


def _require_all_read(found: Sequence[Any], positions: Sequence[int | None], names: Sequence[str]) -> None:
    further = [name for at, name in enumerate(found) if at not in positions]
    if further:
        raise ValueError(f"rows with the further names {further} besides {list(names)}")


def _require_width(columns: list[Sequence[Any]], names: Sequence[str]) -> list[Sequence[Any]]:
    if len(columns) != len(names):
        raise ValueError(f"{counted(len(columns), 'column')} instead of {len(names)}")
    return columns
