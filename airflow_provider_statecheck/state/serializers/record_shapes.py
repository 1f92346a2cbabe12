"""Conversion of dataclasses, named tuples, tuples and dictionaries to columns and back."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError

RowTaker = Callable[[Any], tuple[Any, ...]]
"""Returns field values of a record; raises ``AttributeError`` or ``LookupError`` if a field is missing."""


class RecordShape(ABC):
    """Conversion between one class of records and columns."""

    name: str
    """Name of the record class for messages."""
    type: type
    """Class of the records."""
    can_be_changed: bool = False
    """Whether the fields of a record are mutable."""

    @abstractmethod
    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        """
        Return one column of values per field.

        :raises UnsupportedStateError: if a record has other fields.
        """

    @abstractmethod
    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return the records whose field values the columns contain."""

    @abstractmethod
    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        """Return a copy of a record with some fields replaced."""

    @abstractmethod
    def row_taker(self, names: Sequence[str]) -> RowTaker:
        """Return a function that returns the values of some fields of a record."""

    def row_maker(self, names: Sequence[str]) -> Callable[[Sequence[Any]], Any] | None:
        """Return a function that builds a record from field values, or ``None`` if none is cheaper than a copy."""
        return None


class DataclassShape(RecordShape):
    """Shape of a dataclass; fields with ``init=False`` are set after the constructor call."""

    def __init__(self, cls: Any) -> None:
        self.type = cls
        self.name = cls.__qualname__
        # A record that equals only itself is copied too, so that a map refuses it as a key.
        self.can_be_changed = not cls.__dataclass_params__.frozen or cls.__eq__ is object.__eq__
        fields = dataclasses.fields(cls)
        self._positional = [field.name for field in fields if field.init and not field.kw_only]
        self._keywords = [field.name for field in fields if field.init and field.kw_only]
        self._late = [field.name for field in fields if not field.init]
        has_slots = any("__slots__" in vars(base) for base in cls.__mro__[:-1])
        self._is_plain = not has_slots and not hasattr(cls, "__copy__")

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        return [list(map(attrgetter(name), records)) for name in names]

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        if self._keywords or not self._positional:
            records = self._built_by_keyword(columns)
        else:
            records = list(map(self.type, *(columns[name] for name in self._positional)))
        for name in self._late:
            for record, value in zip(records, columns[name], strict=True):
                object.__setattr__(record, name, value)
        return records

    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        other = self._copied(record)
        for name, value in values.items():
            object.__setattr__(other, name, value)
        return other

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        return _taker(attrgetter, names)

    def row_maker(self, names: Sequence[str]) -> Callable[[Sequence[Any]], Any] | None:
        # The constructor suffices if it takes exactly these fields by position and only assigns them.
        cls: Any = self.type
        is_plain = cls.__dataclass_params__.init and not hasattr(cls, "__post_init__")
        if not is_plain or self._late or self._keywords or list(names) != self._positional:
            return None
        return lambda row: cls(*row)

    def _copied(self, record: Any) -> Any:
        if not self._is_plain:
            return copy.copy(record)
        # Equivalent to copy.copy, which is slower because it uses the pickle protocol.
        other: Any = object.__new__(self.type)
        other.__dict__.update(record.__dict__)
        return other

    def _built_by_keyword(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        names = [*self._positional, *self._keywords]
        count = len(next(iter(columns.values())))
        rows = zip(*(columns[name] for name in names), strict=True) if names else [()] * count
        return [self.type(**dict(zip(names, row, strict=True))) for row in rows]


class NamedTupleShape(RecordShape):
    """Shape of a named tuple class."""

    def __init__(self, cls: Any) -> None:
        self.type = cls
        self.name = cls.__qualname__
        self.names: tuple[str, ...] = cls._fields

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        return [list(map(itemgetter(self.names.index(name)), records)) for name in names]

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        make: Callable[[Any], Any] = partial(tuple.__new__, self.type)
        return list(map(make, zip(*(columns[name] for name in self.names), strict=True)))

    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        return tuple.__new__(self.type, map(values.get, self.names, record))

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        return _taker(itemgetter, [*map(self.names.index, names)])


class TupleShape(NamedTupleShape):
    """Shape of plain tuples of one length, with the field names ``_1``, ``_2`` and so on, as in Spark."""

    type = tuple

    def __init__(self, length: int) -> None:
        self.name = f"tuple of {length}"
        self.names = tuple(f"_{i + 1}" for i in range(length))

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        for length in {*map(len, records)} - {len(self.names)}:
            raise UnsupportedStateError(f"Expected tuples of {len(self.names)} items, found one of {length}.")
        return super().columns(records, names)

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        return list(zip(*(columns[name] for name in self.names), strict=True))

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        # For all items, the length is not checked.
        return tuple if tuple(names) == self.names else super().row_taker(names)


class DictShape(RecordShape):
    """Shape of dictionaries by field name, for structs without a Python class; a missing key stands for ``None``."""

    type: type = dict
    can_be_changed = True
    name = "struct"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._known = frozenset(names)

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        for key in set().union(*records) - {*self.names}:
            raise UnsupportedStateError(
                f"Expected a dict with the keys {', '.join(self.names)}, found the key {key!r}."
            )
        return [[record.get(name) for record in records] for name in names]

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        make, rows = self.type, zip(*(columns[name] for name in self.names), strict=True)
        return [make(zip(self.names, row, strict=True)) for row in rows]

    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        return self.type(record, **values)

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        def take(record: Any) -> tuple[Any, ...]:
            if not self._known >= record.keys():
                raise LookupError(*(record.keys() - self._known))
            return tuple(map(record.get, names))

        return take

    def row_maker(self, names: Sequence[str]) -> Callable[[Sequence[Any]], Any] | None:
        return lambda row: dict(zip(names, row, strict=True))


class HashableRecord(dict[str, Any]):
    """Record as a dictionary in a place that needs a hash, such as the key of a map. It must not be modified."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class HashableDictShape(DictShape):
    """Shape of dictionaries that are keys of a map or elements of a set."""

    type: type = HashableRecord
    can_be_changed = False


def _taker(getter: Callable[..., Callable[[Any], Any]], names: Sequence[Any]) -> RowTaker:
    take: Callable[[Any], Any] = getter(*names) if names else lambda _: ()
    return take if len(names) != 1 else lambda record: (take(record),)
