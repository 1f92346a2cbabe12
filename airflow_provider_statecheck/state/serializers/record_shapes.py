"""Conversion of dataclasses, named tuples, tuples and dictionaries to columns and back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, Protocol

from airflow_provider_statecheck.exceptions import UnsupportedStateError

RowTaker = Callable[[Any], tuple[Any, ...]]
"""Takes values from a record; raises ``AttributeError`` or ``LookupError`` for one that has not the fields."""


class RecordShape(Protocol):
    """One kind of record."""

    @property
    def name(self) -> str:
        """Return what records are called."""
        ...

    @property
    def type(self) -> type:
        """Return the class of every record."""
        ...

    @property
    def can_be_changed(self) -> bool:
        """Tell whether the fields of a record can be set."""
        ...

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        """
        Return one column of values per field.

        :raises UnsupportedStateError: for records that have not these fields.
        """
        ...

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return records from the values of their fields."""
        ...

    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        """Return another record with other values of some fields."""
        ...

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        """Return what takes the values of some fields from a record."""
        ...

    def row_maker(self, names: Sequence[str]) -> Callable[[Sequence[Any]], Any] | None:
        """Return what makes a record of values in the order of some names for less than a copy costs, if there is such."""
        ...


class DataclassShape:
    """
    A dataclass; a record is made by its constructor, and fields that are none of its arguments are set afterwards.

    :param cls: The class.
    """

    def __init__(self, cls: type) -> None:
        self.type = cls
        self.name = cls.__qualname__
        fields = dataclasses.fields(cls)
        self._positional = [field.name for field in fields if field.init and not field.kw_only]
        self._keywords = [field.name for field in fields if field.init and field.kw_only]
        self._late = [field.name for field in fields if not field.init]
        self._is_plain = not any("__slots__" in vars(base) for base in cls.__mro__[:-1]) and not hasattr(
            cls, "__copy__"
        )

    @property
    def can_be_changed(self) -> bool:
        """Tell whether the class is not frozen."""
        return not self.type.__dataclass_params__.frozen  # type: ignore[attr-defined]

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        """Return one column of values per field."""
        return [list(map(attrgetter(name), records)) for name in names]

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return records from the values of their fields."""
        if self._keywords or not self._positional:
            records = self._built_by_keyword(columns)
        else:
            records = list(map(self.type, *(columns[name] for name in self._positional)))
        for name in self._late:
            for record, value in zip(records, columns[name], strict=True):
                object.__setattr__(record, name, value)
        return records

    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        """Return another record with other values of some fields."""
        other = self._copied(record)
        for name, value in values.items():
            object.__setattr__(other, name, value)
        return other

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        """Return what takes the values of some fields from a record."""
        return _taker(attrgetter, names)

    def row_maker(self, names: Sequence[str]) -> Callable[[Sequence[Any]], Any] | None:
        """Return the constructor, if these are its arguments and it does nothing but set them."""
        cls: Any = self.type
        is_plain = cls.__dataclass_params__.init and not hasattr(cls, "__post_init__")
        if not is_plain or self._late or self._keywords or list(names) != self._positional:
            return None
        return lambda row: cls(*row)

    def _copied(self, record: Any) -> Any:
        if not self._is_plain:
            return copy.copy(record)
        # Does what copy.copy does, without its detour by way of pickle's protocol.
        other: Any = object.__new__(self.type)
        other.__dict__.update(record.__dict__)
        return other

    def _built_by_keyword(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        names = [*self._positional, *self._keywords]
        count = len(next(iter(columns.values())))
        rows = zip(*(columns[name] for name in names), strict=True) if names else [()] * count
        return [self.type(**dict(zip(names, row, strict=True))) for row in rows]


class NamedTupleShape:
    """
    A class of named tuples.

    :param cls: The class.
    """

    can_be_changed = False

    def __init__(self, cls: Any) -> None:
        self.type: type = cls
        self.name = cls.__qualname__
        self._names: tuple[str, ...] = cls._fields

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        """Return one column of values per field."""
        return [list(map(itemgetter(self._names.index(name)), records)) for name in names]

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return records from the values of their fields."""
        make: Callable[[Any], Any] = partial(tuple.__new__, self.type)
        return list(map(make, zip(*(columns[name] for name in self._names), strict=True)))

    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        """Return another record with other values of some fields."""
        return record._replace(**values)

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        """Return what takes the values of some fields from a record."""
        return _taker(attrgetter, names)

    def row_maker(self, names: Sequence[str]) -> None:
        """Return nothing: what can be changed of it is not the record itself."""


class TupleShape:
    """
    Plain tuples of one length; their fields are called ``_1``, ``_2`` and so on, as Spark does.

    :param length: How many items there are.
    """

    type: type = tuple
    can_be_changed = False

    def __init__(self, length: int) -> None:
        self.name = f"tuple of {length}"
        self.names = tuple(f"_{i + 1}" for i in range(length))

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        """
        Return one column of values per field.

        :raises UnsupportedStateError: for a tuple of another length.
        """
        for length in {*map(len, records)} - {len(self.names)}:
            raise UnsupportedStateError(f"Expected tuples of {len(self.names)} items, found one of {length}.")
        return [list(map(itemgetter(self.names.index(name)), records)) for name in names]

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return records from the values of their fields."""
        return list(zip(*(columns[name] for name in self.names), strict=True))

    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        """Return another record with other values of some fields."""
        return tuple(values.get(name, value) for name, value in zip(self.names, record, strict=True))

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        """Return what takes some items from a tuple; all of them are the tuple itself, whatever its length."""
        return tuple if tuple(names) == self.names else _taker(itemgetter, [*map(self.names.index, names)])

    def row_maker(self, names: Sequence[str]) -> None:
        """Return nothing: what can be changed of it is not the record itself."""


class DictShape:
    """
    Dictionaries with the names of fields as keys, for structs that no class stands for.

    :param names: The names.
    """

    type: type = dict
    can_be_changed = True
    name = "struct"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._known = frozenset(names)

    def columns(self, records: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
        """
        Return the values of each field, ``None`` where one is left out.

        :raises UnsupportedStateError: for a key that is no field.
        """
        for key in set().union(*records) - {*self.names}:
            raise UnsupportedStateError(f"Expected a dict with the keys {', '.join(self.names)}, found {key!r} too.")
        return [[record.get(name) for record in records] for name in names]

    def build(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return records from the values of their fields."""
        rows = zip(*(columns[name] for name in self.names), strict=True)
        return [dict(zip(self.names, row, strict=True)) for row in rows]

    def with_values(self, record: Any, values: Mapping[str, Any]) -> Any:
        """Return another record with other values of some fields."""
        return {**record, **values}

    def row_taker(self, names: Sequence[str]) -> RowTaker:
        """Return what takes some values from a dictionary, ``None`` where one is left out."""

        def take(record: Any) -> tuple[Any, ...]:
            if not self._known >= record.keys():
                raise LookupError(*(record.keys() - self._known))
            return tuple(map(record.get, names))

        return take

    def row_maker(self, names: Sequence[str]) -> Callable[[Sequence[Any]], Any] | None:
        """Return what makes a dictionary."""
        return lambda row: dict(zip(names, row, strict=True))


def _taker(getter: Callable[..., Callable[[Any], Any]], names: Sequence[Any]) -> RowTaker:
    take: Callable[[Any], Any] = getter(*names) if names else lambda _: ()
    return take if len(names) != 1 else lambda record: (take(record),)


def require_records(shape: RecordShape, values: Sequence[Any]) -> bool:
    """
    Tell whether some values are ``None``.

    :raises UnsupportedStateError: for what is another record, also one of a subclass.
    """
    kinds = {*map(type, values)}
    for kind in kinds - {shape.type, NoneType}:
        raise UnsupportedStateError(
            f"Expected {shape.name}, found {kind.__module__}.{kind.__qualname__}; convert it, or declare another type."
        )
    return NoneType in kinds
