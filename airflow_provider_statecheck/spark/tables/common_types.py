"""
The type that holds the values of two columns, and columns in such a type.

Structs have the fields of both, matched by name as Spark does everywhere except in a cast. Spark decides the wider of
two other types, for the settings of its session, as in a union.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.snapshots.columns import readable_type
from airflow_provider_statecheck.spark.tables.named_rows import find_name
from airflow_provider_statecheck.spark.tables.schemas import union_all
from airflow_provider_statecheck.spark.versions import is_widened
from airflow_provider_statecheck.storage.snapshot_manifest import column_name

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType, StructType


def positions_of(found: Sequence[str], wanted: Sequence[str], *, is_case_sensitive: bool) -> list[int | None]:
    """Return the position of each wanted column among others; ``None`` for one that is missing."""
    if list(found) == list(wanted):
        return list(range(len(wanted)))
    return [find_name(found, name, is_case_sensitive=is_case_sensitive) for name in wanted]


def is_same(kind: DataType, other: DataType) -> bool:
    """Return whether two types are equal; the nullability of their parts does not count."""
    return readable_type(kind) == readable_type(other)


@dataclass(frozen=True, slots=True)
class TypeRules:
    """Common types by the settings of a session."""

    spark: SparkSession
    is_case_sensitive: bool

    def holds(self, kind: Any, found: Any) -> bool:
        """
        Return whether the values of a type are also values of another one: parts of it are missing, or without a type.
        """
        if _is_void(found):
            return True
        shared = _parts(kind, found)
        if shared is not None:
            return all(self.holds(*each) for each in shared)
        if not _are_structs(kind, found):
            return is_same(kind, found)
        positions = self._positions(kind, found)
        return None not in positions and all(
            self.holds(kind.fields[at].dataType, field.dataType)
            for at, field in zip(positions, found.fields, strict=True)
            if at is not None
        )

    def common(self, mine: Any, theirs: Any) -> DataType | None:
        """
        Return the type with the values of two types.

        ``None`` if Spark has none, or values would become another kind.
        """
        from pyspark.sql.types import ArrayType, MapType

        if _is_void(mine) or _is_void(theirs) or is_same(mine, theirs):
            return readable_type(theirs if _is_void(mine) else mine)
        if _are_structs(mine, theirs):
            return self._common_struct(mine, theirs)
        shared = _parts(mine, theirs)
        if shared is None:
            return self._wider(mine, theirs)
        kinds = [kind for kind in (self.common(*each) for each in shared) if kind is not None]
        if len(kinds) < len(shared):
            return None
        return MapType(kinds[0], kinds[1]) if isinstance(mine, MapType) else ArrayType(kinds[0])

    def _common_struct(self, mine: StructType, theirs: StructType) -> DataType | None:
        from pyspark.sql.types import StructField, StructType

        fields, positions = [], self._positions(theirs, mine)
        for at, known in zip(positions, mine.fields, strict=True):
            kind = known.dataType if at is None else self.common(known.dataType, theirs.fields[at].dataType)
            if kind is None:
                return None
            fields.append(StructField(known.name, kind, True, known.metadata))
        return readable_type(StructType([*fields, *(f for at, f in enumerate(theirs.fields) if at not in positions)]))

    def _wider(self, mine: DataType, theirs: DataType) -> DataType | None:
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructField, StructType

        schemas = [StructType([StructField("value", readable_type(kind), True)]) for kind in (mine, theirs)]
        try:
            union = union_all(self.spark.createDataFrame([], each) for each in schemas)
            found = readable_type(union.schema.fields[0].dataType)
        except PySparkException:
            return None
        return found if _is_same_kind(mine, theirs, found) else None

    def further_fields(self, known: Any, found: Any) -> list[str]:
        """Return the paths of the fields that a type lacks, such as ``address.street`` or ``items.element.price``."""
        shared = _parts(known, found)
        if shared is not None:
            names = ("key", "value") if len(shared) > 1 else ("element",)
            pairs = zip(names, shared, strict=True)
            return [f"{name}.{path}" for name, each in pairs for path in self.further_fields(*each)]
        if not _are_structs(known, found):
            return []
        paths = []
        for at, field in zip(self._positions(known, found), found.fields, strict=True):
            nested = [] if at is None else self.further_fields(known.fields[at].dataType, field.dataType)
            paths += [field.name] if at is None else [f"{field.name}.{path}" for path in nested]
        return paths

    def is_read_as(self, stored: Any, kind: Any) -> bool:
        """
        Return whether Spark reads the values of a column of Parquet files, without a change, as a type that holds them.
        """
        shared = _parts(stored, kind)
        if shared is not None:
            return all(self.is_read_as(*each) for each in shared)
        if not _are_structs(stored, kind):
            return is_same(stored, kind) or _is_void(stored) or self._is_widened(stored, kind)
        positions = self._positions(kind, stored)
        return all(
            self.is_read_as(field.dataType, kind.fields[at].dataType)
            for at, field in zip(positions, stored.fields, strict=True)
            if at is not None
        )

    def _is_widened(self, stored: DataType, kind: DataType) -> bool:
        return _is_read_as(stored, kind) and is_widened(self.spark, stored, kind)

    def converted(self, column: Column, found: Any, wanted: Any) -> Column:
        """Return a column in a type that holds its values; the fields of structs are matched by name."""
        from pyspark.sql import functions as F

        if not _is_matched_by_name(found, wanted):
            return column.cast(readable_type(wanted))
        if _are_structs(found, wanted):
            return self._converted_struct(column, found, wanted)
        parts = _parts(found, wanted) or []
        if len(parts) == 1:
            return F.transform(column, lambda each: self.converted(each, *parts[0]))
        keyed = F.transform_keys(column, lambda key, _: self.converted(key, *parts[0]))
        return F.transform_values(keyed, lambda _, value: self.converted(value, *parts[1]))

    def _converted_struct(self, column: Column, found: StructType, wanted: StructType) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructField, StructType

        # A cast renames fields by position; by other names, Spark does not find one of two that differ only in case.
        names = [column_name(at) for at in range(len(found.fields))]
        kinds = [readable_type(field.dataType) for field in found.fields]
        renamed = column.cast(StructType([StructField(*each) for each in zip(names, kinds, strict=True)]))
        fields = [
            F.lit(None).cast(readable_type(field.dataType)).alias(field.name)
            if at is None
            else self.converted(renamed.getField(names[at]), kinds[at], field.dataType).alias(field.name)
            for at, field in zip(self._positions(found, wanted), wanted.fields, strict=True)
        ]
        return F.when(column.isNotNull(), F.struct(*fields))

    def _positions(self, found: StructType, wanted: StructType) -> list[int | None]:
        return positions_of(found.names, wanted.names, is_case_sensitive=self.is_case_sensitive)


def _is_void(kind: DataType) -> bool:
    from pyspark.sql.types import NullType

    return isinstance(kind, NullType)


def _are_structs(kind: DataType, other: DataType) -> bool:
    from pyspark.sql.types import StructType

    return isinstance(kind, StructType) and isinstance(other, StructType)


def _parts(kind: Any, other: Any) -> list[tuple[Any, Any]] | None:
    """Return the elements of two arrays, or the keys and values of two maps; ``None`` for other types."""
    from pyspark.sql.types import ArrayType, MapType

    if isinstance(kind, ArrayType) and isinstance(other, ArrayType):
        return [(kind.elementType, other.elementType)]
    if isinstance(kind, MapType) and isinstance(other, MapType):
        return [(kind.keyType, other.keyType), (kind.valueType, other.valueType)]
    return None


def _is_matched_by_name(found: Any, wanted: Any) -> bool:
    if _are_structs(found, wanted):
        pairs = zip(found.fields, wanted.fields, strict=False)
        return found.names != wanted.names or any(_is_matched_by_name(f.dataType, w.dataType) for f, w in pairs)
    return any(_is_matched_by_name(*each) for each in _parts(found, wanted) or ())


def _is_same_kind(mine: Any, theirs: Any, wider: Any) -> bool:
    from pyspark.sql import types

    if isinstance(mine, types.NumericType) and isinstance(theirs, types.NumericType):
        return all(_holds_digits(wider, each) for each in (mine, theirs))
    return any(all(isinstance(each, kind) for each in (mine, theirs, wider)) for kind in _kinds())


def _kinds() -> tuple[Any, ...]:
    from pyspark.sql import types

    return (
        (types.DateType, types.TimestampType, types.TimestampNTZType),
        (types.StringType, types.CharType, types.VarcharType),
        (types.DayTimeIntervalType,),
        (types.YearMonthIntervalType,),
    )


def _is_read_as(stored: Any, kind: Any) -> bool:
    """Return whether Spark's Parquet reader has the conversion: fewer than a union has."""
    from pyspark.sql import types

    small = (types.ByteType, types.ShortType, types.IntegerType)
    if isinstance(kind, types.DecimalType):
        # Files have integers of 32 or 64 bits, for which Spark requires all digits.
        digits = _FILE_DIGITS.get(stored.simpleString(), _digits(stored))
        return digits is not None and kind.scale >= _scale(stored) and kind.precision - kind.scale >= digits
    pairs: tuple[tuple[Any, Any], ...] = (
        (small, (types.ShortType, types.IntegerType, types.LongType, types.DoubleType)),
        (types.FloatType, types.DoubleType),
        (types.DateType, types.TimestampNTZType),
        ((types.CharType, types.VarcharType), types.StringType),
    )
    return any(isinstance(stored, each) and isinstance(kind, wider) for each, wider in pairs)


_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_FILE_DIGITS = {"tinyint": 10, "smallint": 10, "int": 10, "bigint": 20}


def _holds_digits(wider: Any, kind: Any) -> bool:
    from pyspark.sql.types import DecimalType

    if not isinstance(wider, DecimalType):
        return True
    digits = _digits(kind)
    # Spark bounds the digits of a decimal that would have more than 38.
    return digits is not None and bool(wider.scale >= _scale(kind) and wider.precision - wider.scale >= digits)


def _scale(kind: Any) -> int:
    return int(getattr(kind, "scale", 0))


def _digits(kind: Any) -> int | None:
    """Return the number of digits before the point; ``None`` for a type without such a number."""
    from pyspark.sql.types import DecimalType

    return kind.precision - kind.scale if isinstance(kind, DecimalType) else _DIGITS.get(kind.simpleString())
