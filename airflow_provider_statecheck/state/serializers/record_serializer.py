"""Records as Arrow structs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import call, is_
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.base import AbstractSerializer
from airflow_provider_statecheck.state.serializers.freezing import Freezing
from airflow_provider_statecheck.state.serializers.optional import is_immutable, require_no_none
from airflow_provider_statecheck.state.serializers.owning import (
    Own,
    compiled_check,
    own_of,
    own_through_arrow,
    plain_of,
)
from airflow_provider_statecheck.state.serializers.record_shapes import RecordShape, RowTaker, require_records
from airflow_provider_statecheck.state.serializers.serializer import Compatibility, TypeSerializer
from airflow_provider_statecheck.state.serializers.snapshot_json import encode_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordField:
    """One field of a record."""

    name: str
    serializer: TypeSerializer[Any]
    aliases: tuple[str, ...] = ()
    """Names that it had before."""
    default: Callable[[], Any] | None = None
    """Gives the value for records that were written without the field."""


class RecordSerializer(AbstractSerializer[Any]):
    """
    Records of one kind as a struct with a column for each field.

    :param shape: How records are taken apart and made.
    :param fields: In the order of the columns.
    :raises UnsupportedStateError: for a record without fields.
    """

    class_id = "record"

    def __init__(self, shape: RecordShape, fields: Sequence[RecordField]) -> None:
        if not fields:
            raise UnsupportedStateError(f"Expected {shape.name} to have fields, found none; there is nothing to save.")
        self.shape = shape
        self.fields = tuple(fields)

    @cached_property
    def arrow_type(self) -> Any:
        """Return the type of structs."""
        import pyarrow as pa

        return pa.struct([(field.name, field.serializer.arrow_type) for field in self.fields])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(field.name for field in self.fields)

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """
        Return an Arrow array of structs, null where there is ``None``.

        :raises UnsupportedStateError: for another record, or a field of another type.
        """
        import pyarrow as pa

        if not require_records(self.shape, values):
            return pa.StructArray.from_arrays(self._columns(values), fields=list(self.arrow_type))
        present = self.to_arrow([value for value in values if value is not None])
        return present.take(_places(values))

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the records of an array; each is new and may be changed."""
        return _with_nulls(array, self._records)

    @cached_property
    def is_immutable(self) -> bool:
        """Tell whether values can be shared, as nobody can change them."""
        return not (self.shape.can_be_changed or self._copies)

    def copy(self, value: Any) -> Any:
        """Return a record that shares nothing with another that could be changed."""
        if value is None or self.is_immutable:
            return value
        parts = zip(self._copies.items(), self._take_copied(value), strict=True)
        return self.shape.with_values(
            value, {name: part if part is None else copy(part) for (name, copy), part in parts}
        )

    @cached_property
    def own(self) -> Own:
        """
        Return what checks a record and makes it the state's own: a function that is quick with plain values.

        It raises ``UnsupportedStateError`` for another record, or a field of another type.
        """
        if not self.is_immutable:
            return self._owned
        plain_row, own = self._plain_row, self._owned
        return lambda value: own(value) if plain_row(value) is None else value

    def freezing(self) -> Freezing:
        """Return how records are kept: as rows of values that nobody can change, where a record is no more than that."""
        make = self.shape.row_maker(self.names) if self.shape.can_be_changed and not self._copies else None
        if make is None:
            return Freezing(self.own, None if self.is_immutable else self.copy, self.from_arrow, self.to_arrow)
        return Freezing(self._frozen_row, make, self._rows, self._from_rows)

    def config(self) -> dict[str, Any]:
        """Return the fields."""
        return {"fields": [_field_config(field) for field in self.fields]}

    def with_fields(self, fields: Sequence[RecordField]) -> RecordSerializer:
        """Return a serializer of the same records with other columns."""
        return RecordSerializer(self.shape, fields)

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        from airflow_provider_statecheck.state.serializers.record_evolution import resolve_record

        return resolve_record(self, config["fields"])

    def _records(self, array: Any) -> list[Any]:
        return self.shape.build(dict(zip(self.names, self._values(array), strict=True)))

    def _owned(self, value: Any) -> Any:
        row = self._own_row(value)
        if row is None:
            return own_through_arrow(self, value)
        if not self.shape.can_be_changed and all(map(is_, row, self._take(value))):
            return value
        return self.shape.with_values(value, dict(zip(self.names, row, strict=True)))

    def _own_row(self, value: Any) -> tuple[Any, ...] | None:
        """Return the values of a record as state keeps them, ``None`` for what takes a closer look."""
        try:
            row = self._take(value) if type(value) is self.shape.type else ()
            return tuple(map(call, self._owns, row)) if len(row) == len(self.fields) else None
        except (AttributeError, LookupError, UnsupportedStateError):
            return None

    def _frozen_row(self, value: Any) -> tuple[Any, ...]:
        row = self._plain_row(value) or self._own_row(value)
        if row is not None:
            return row
        made: tuple[Any, ...] = self._rows(self.to_arrow([value]))[0]
        return made

    def _from_rows(self, rows: Sequence[Any]) -> Any:
        import pyarrow as pa

        present = [row for row in rows if row is not None]
        columns = zip(*present, strict=True) if present else ((),) * len(self.fields)
        arrays = [self._column(field, column) for field, column in zip(self.fields, columns, strict=True)]
        array = pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type))
        return array if len(present) == len(rows) else array.take(_places(rows))

    def _rows(self, array: Any) -> list[Any]:
        return _with_nulls(array, lambda present: list(zip(*self._values(present), strict=True)))

    def _values(self, array: Any) -> list[list[Any]]:
        return [field.serializer.from_arrow(array.field(i)) for i, field in enumerate(self.fields)]

    def _columns(self, values: Sequence[Any]) -> list[Any]:
        columns = self.shape.columns(values, self.names)
        return [self._column(field, column) for field, column in zip(self.fields, columns, strict=True)]

    def _column(self, field: RecordField, values: Sequence[Any]) -> Any:
        place = f"the field {field.name} of {self.shape.name}"
        try:
            column = field.serializer.to_arrow(values)
        except UnsupportedStateError as error:
            raise UnsupportedStateError(f"In {place}: {error}") from error
        require_no_none(field.serializer, column, 0, place)
        return column

    @cached_property
    def _take(self) -> RowTaker:
        return self.shape.row_taker(self.names)

    @cached_property
    def _take_copied(self) -> RowTaker:
        return self.shape.row_taker(tuple(self._copies))

    @cached_property
    def _plain_row(self) -> Callable[[Any], tuple[Any, ...] | None]:
        """Return what gives the values of a record of which each is known to fit at a glance, ``None`` for other records."""
        plain = [plain_of(field.serializer) for field in self.fields]
        known = [each for each in plain if each is not None]
        if len(known) < len(plain):
            return lambda _: None
        kind, take, fits = self.shape.type, self._take, compiled_check(known)

        def plain_row(value: Any) -> tuple[Any, ...] | None:
            if type(value) is not kind:
                return None
            try:
                row = take(value)
            except (AttributeError, LookupError):
                return None
            return row if fits(row) else None

        return plain_row

    @cached_property
    def _owns(self) -> tuple[Own, ...]:
        return tuple(own_of(field.serializer) for field in self.fields)

    @cached_property
    def _copies(self) -> dict[str, Callable[[Any], Any]]:
        return {field.name: field.serializer.copy for field in self.fields if not is_immutable(field.serializer)}

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self.shape, "fields": self.fields}

    @property
    def _identity(self) -> Any:
        # Defaults are functions, which are never equal to others.
        return (self.shape.type, tuple(replace(field, default=None) for field in self.fields))


def _with_nulls(array: Any, read: Callable[[Any], list[Any]]) -> list[Any]:
    """Return what is read of the values of an array that are there, ``None`` in place of the others."""
    if not array.null_count:
        return read(array)
    present = iter(read(array.drop_null()))
    return [next(present) if valid else None for valid in array.is_valid().to_pylist()]


def _places(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    places: list[int | None] = []
    count = 0
    for value in values:
        places.append(None if value is None else count)
        count += value is not None
    return pa.array(places, pa.int64())


def _field_config(field: RecordField) -> dict[str, Any]:
    config: dict[str, Any] = {"name": field.name, "type": encode_snapshot(field.serializer.snapshot())}
    if field.aliases:
        config["aliases"] = list(field.aliases)
    if field.default is not None:
        config["default"] = True
    return config
