"""
Serializers of dataclasses, named tuples and structs, and their schema evolution.

Fields are matched by name, then by alias. A new version of a record may add fields that are optional or have a default.
It may also drop, rename, reorder and widen fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from operator import call, is_
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.serializers.nested_columns import (
    OptionalSerializer,
    nulls_of_array,
    require_no_none,
    resolve_part,
)
from airflow_provider_statecheck.state.serializers.record_shapes import RecordShape, RowTaker
from airflow_provider_statecheck.state.serializers.serializer import (
    AS_IS,
    Compatibility,
    Freezing,
    Outcome,
    Own,
    Plain,
    TypeSerializer,
    after_migration,
    decode_snapshot,
    incompatible,
    migrated,
    reconfigured,
    require_class,
    serializer_from_now_on,
    whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordField:
    """Field of a record."""

    name: str
    serializer: TypeSerializer[Any]
    aliases: tuple[str, ...] = ()
    """Former names of the field."""
    default: Callable[[], Any] | None = None
    """Returns the value for records that were written without the field."""


class RecordSerializer(TypeSerializer[Any]):
    """
    Serializer of one class of records as an Arrow struct with one column per field.

    :param fields: The fields in the order of the columns.
    :raises UnsupportedStateError: if there are no fields.
    """

    class_id = "record"

    def __init__(self, shape: RecordShape, fields: Sequence[RecordField]) -> None:
        if not fields:
            raise UnsupportedStateError(f"Expected {shape.name} to have fields, found none; declare at least one.")
        self.shape = shape
        self.fields = tuple(fields)

    @cached_property
    def arrow_type(self) -> Any:
        return pa.struct([(field.name, field.serializer.arrow_type) for field in self.fields])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field.name for field in self.fields)

    def to_arrow(self, values: Sequence[Any]) -> Any:
        has_nulls = require_class(values, self.shape.type, self.shape.name)
        return self._structs(values, has_nulls, lambda present: self.shape.columns(present, self.names))

    def from_arrow(self, array: Any) -> list[Any]:
        return _read_present(
            array, lambda present: self.shape.build(dict(zip(self.names, self._values(present), strict=True)))
        )

    @cached_property
    def is_immutable(self) -> bool:
        return not (self.shape.can_be_changed or self._copies)

    def copy(self, value: Any) -> Any:
        if self.is_immutable:
            return value
        parts = zip(self._copies.items(), self._take_copied(value), strict=True)
        return self.shape.with_values(
            value, {name: part if part is None else copy(part) for (name, copy), part in parts}
        )

    @cached_property
    def own(self) -> Own:
        if not self.is_immutable:
            return self._validated
        plain_row, own = self._plain_row, self._validated
        return lambda value: own(value) if plain_row(value) is None else value

    def freezing(self) -> Freezing:
        # A tuple of the field values, if it suffices to rebuild the record.
        make = self.shape.row_maker(self.names) if self.shape.can_be_changed and not self._copies else None
        if make is None:
            return super().freezing()
        return Freezing(self._frozen_row, make, self._rows, self._from_rows)

    def require_valid_or_null(self, array: Any, place: str) -> None:
        # A required field has no value below a null.
        is_required = any(not isinstance(field.serializer, OptionalSerializer) for field in self.fields)
        columns = (array.drop_null() if is_required else array).flatten()
        for field, column in zip(self.fields, columns, strict=True):
            field.serializer.require_valid(column, f"{place}.{field.name}")

    def config(self) -> dict[str, Any]:
        return {"fields": [_field_config(field) for field in self.fields]}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        matches = [_matched(field, self, config["fields"]) for field in self.fields]
        placed = [(f"field {match.field.name}", match.verdict) for match in matches]
        placed.append(("", _resolve_dropped(matches, config["fields"])))
        placed.append(("", _resolve_order(self, matches)))
        return whole(placed, lambda: _rearranged(self, matches), lambda array: _converted(array, self, matches))

    def _validated(self, value: Any) -> Any:
        row = self._validated_row(value)
        if row is None:
            return super().own(value)
        if not self.shape.can_be_changed and all(map(is_, row, self._take(value))):
            return value
        return self.shape.with_values(value, dict(zip(self.names, row, strict=True)))

    def _validated_row(self, value: Any) -> tuple[Any, ...] | None:
        """Return the validated field values of a record, or ``None`` if the slow path has to decide."""
        try:
            row = self._take(value) if type(value) is self.shape.type else ()
            return tuple(map(call, self._owns, row)) if len(row) == len(self.fields) else None
        except (AttributeError, LookupError, UnsupportedStateError):
            return None

    def _frozen_row(self, value: Any) -> tuple[Any, ...]:
        row = self._plain_row(value) or self._validated_row(value)
        if row is not None:
            return row
        restored: tuple[Any, ...] = self._rows(self.to_arrow([value]))[0]
        return restored

    def _from_rows(self, rows: Sequence[Any]) -> Any:
        none = ((),) * len(self.fields)
        return self._structs(rows, None in rows, lambda present: zip(*present, strict=True) if present else none)

    def _structs(
        self, rows: Sequence[Any], has_nulls: bool, columns_of: Callable[[Sequence[Any]], Iterable[Sequence[Any]]]
    ) -> Any:
        """Return an Arrow array of structs, with null for ``None``; ``columns_of`` gets the other rows."""
        columns = columns_of([row for row in rows if row is not None] if has_nulls else rows)
        arrays = [self._column(field, column) for field, column in zip(self.fields, columns, strict=True)]
        structs = pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type))
        if not has_nulls:
            return structs
        places = count()
        return structs.take(pa.array([None if row is None else next(places) for row in rows], pa.int64()))

    def _rows(self, array: Any) -> list[Any]:
        return _read_present(array, lambda present: list(zip(*self._values(present), strict=True)))

    def _values(self, array: Any) -> list[list[Any]]:
        return [field.serializer.from_arrow(array.field(i)) for i, field in enumerate(self.fields)]

    def _column(self, field: RecordField, values: Sequence[Any]) -> Any:
        place = f"the field {field.name} of {self.shape.name}"
        try:
            column = field.serializer.to_arrow(values)
        except UnsupportedStateError as error:
            raise UnsupportedStateError(f"In {place}: {error}") from error
        require_no_none(field.serializer, column, place)
        return column

    @cached_property
    def _take(self) -> RowTaker:
        return self.shape.row_taker(self.names)

    @cached_property
    def _take_copied(self) -> RowTaker:
        return self.shape.row_taker(tuple(self._copies))

    @cached_property
    def _plain_row(self) -> Callable[[Any], tuple[Any, ...] | None]:
        """A function that returns the field values of a record, or ``None`` if a value fails its cheap test."""
        plain = [field.serializer.plain for field in self.fields]
        known = [each for each in plain if each is not None]
        if len(known) < len(plain):
            return lambda _: None
        kind, take, fits = self.shape.type, self._take, _compiled_check(known)

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
        return tuple(field.serializer.own for field in self.fields)

    @cached_property
    def _copies(self) -> dict[str, Callable[[Any], Any]]:
        return {field.name: field.serializer.copy for field in self.fields if not field.serializer.is_immutable}


def _compiled_check(columns: Sequence[Plain]) -> Callable[[Sequence[Any]], bool]:
    """
    Return a function that tests each value of a row against its column.

    The function runs for every record that is put into state. It is compiled to one expression, because a loop takes
    five times as long.
    """
    names: dict[str, Any] = {}
    terms = [f"len(row) == {len(columns)}"]
    for at, (kind, fits, bounds) in enumerate(columns):
        names |= {f"kind{at}": kind, f"fits{at}": fits}
        terms.append(f"type(row[{at}]) is kind{at}")
        terms += [] if bounds is None else [f"{bounds[0]} <= row[{at}] <= {bounds[1]}"]
        terms += [] if fits is None else [f"fits{at}(row[{at}])"]
    check: Callable[[Sequence[Any]], bool] = eval(f"lambda row: {' and '.join(terms)}", names)  # noqa: S307 - only the above
    return check


def _read_present(array: Any, read: Callable[[Any], list[Any]]) -> list[Any]:
    """Apply ``read`` to the non-null values of an array and return ``None`` for the others."""
    if not array.null_count:
        return read(array)
    present = iter(read(array.drop_null()))
    return [next(present) if valid else None for valid in array.is_valid().to_pylist()]


def _field_config(field: RecordField) -> dict[str, Any]:
    config: dict[str, Any] = {"name": field.name, "type": encode(field.serializer.snapshot())}
    if field.aliases:
        config["aliases"] = list(field.aliases)
    if field.default is not None:
        config["default"] = True
    return config


@dataclass(frozen=True, slots=True)
class _Match:
    field: RecordField
    source: int | None
    """Index of the former column; ``None`` for an added field."""
    verdict: Compatibility


def _matched(field: RecordField, new: RecordSerializer, old_fields: Sequence[Mapping[str, Any]]) -> _Match:
    source = _source(field, new, [old["name"] for old in old_fields])
    if source is None:
        return _Match(field, None, _resolve_added(field))
    old = old_fields[source]
    verdict = resolve_part(field.serializer, decode_snapshot(old["type"]), _default_of(field))
    return _Match(field, source, _renamed(verdict, old["name"], field.name))


def _source(field: RecordField, new: RecordSerializer, old_names: Sequence[str]) -> int | None:
    if field.name in old_names:
        return old_names.index(field.name)
    # An alias that is the current name of another field refers to that field.
    aliases = [alias for alias in field.aliases if alias in old_names and alias not in new.names]
    return old_names.index(aliases[0]) if aliases else None


def _renamed(verdict: Compatibility, old: str, new: str) -> Compatibility:
    if old == new or verdict.outcome is Outcome.INCOMPATIBLE:
        return verdict
    reason = "; ".join(filter(None, (f"renamed from {old}", verdict.reason)))
    return after_migration(reason, lambda array: migrated(verdict, array), merges=verdict.merges)


def _resolve_added(field: RecordField) -> Compatibility:
    if field.default is None and not isinstance(field.serializer, OptionalSerializer):
        return incompatible("is new and has no default; give it one, or an alias if it was renamed")
    return after_migration("is new", lambda array: array)


def _resolve_dropped(matches: Sequence[_Match], old_fields: Sequence[Mapping[str, Any]]) -> Compatibility:
    used = {match.source for match in matches}
    dropped = [old["name"] for i, old in enumerate(old_fields) if i not in used]
    return after_migration(f"dropped {', '.join(dropped)}", lambda array: array, merges=True) if dropped else AS_IS


def _resolve_order(new: RecordSerializer, matches: Sequence[_Match]) -> Compatibility:
    sources = [match.source for match in matches if match.source is not None]
    if sources == sorted(sources):
        return AS_IS
    return reconfigured("the order of the fields differs; the columns keep their order", new, lambda array: array)


def _rearranged(new: RecordSerializer, matches: Sequence[_Match]) -> RecordSerializer:
    in_old_order = sorted(matches, key=lambda match: match.source or 0)
    fields = [
        replace(match.field, serializer=serializer_from_now_on(match.verdict, match.field.serializer))
        for match in in_old_order
    ]
    return RecordSerializer(new.shape, fields)


def _converted(array: Any, new: RecordSerializer, matches: Sequence[_Match]) -> Any:
    columns = [_column(array, match) for match in matches]
    return pa.StructArray.from_arrays(columns, fields=list(new.arrow_type), mask=nulls_of_array(array))


def _column(array: Any, match: _Match) -> Any:
    if match.source is not None:
        return migrated(match.verdict, array.field(match.source))
    default = _default_of(match.field)
    one = default() if default else match.field.serializer.to_arrow([None])
    return one.take(pa.nulls(len(array), pa.int64()).fill_null(0))


def _default_of(field: RecordField) -> Callable[[], Any] | None:
    make = field.default
    return None if make is None else lambda: field.serializer.to_arrow([make()])


@dataclass(frozen=True, slots=True)
class Aliases:
    """
    Former names of a field, as in ``total: Annotated[int, Aliases("sum")]``.

    :param names: The names of the field in earlier versions of the record.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)
