"""
Whether PyArrow reads row groups of a Parquet file as Spark reads the whole file.

Spark cannot read single row groups. :func:`obstacle` alone decides whether a file is cut: it compares the footer, the
columns, the values of partitions and the settings of the session, and names the first difference that it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.spark.snapshots.columns import nested_types
from airflow_provider_statecheck.spark.tables.alignment import is_case_sensitive, is_on
from airflow_provider_statecheck.spark.tables.common_types import is_same
from airflow_provider_statecheck.spark.tables.named_rows import find_name
from airflow_provider_statecheck.spark.tables.partition_directories import is_cast_like_a_directory
from airflow_provider_statecheck.spark.tables.schemas import (
    arrow_schema,
    is_arrow_compatible,
    spark_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField, StructType

_REBASE = "spark.sql.parquet.datetimeRebaseModeInRead"
_INT96_REBASE = "spark.sql.parquet.int96RebaseModeInRead"
_UNWANTED = (
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.int96TimestampConversion",
    "spark.sql.parquet.fieldId.read.enabled",
)
"""Settings with which Spark reads other rows than PyArrow, if they are on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRules:
    """Settings of a session on which it depends what Spark reads from a Parquet file."""

    is_case_sensitive: bool = False
    rebase: str = "CORRECTED"
    """How Spark reads days and times of files that do not tell their calendar."""
    int96_rebase: str = "CORRECTED"
    unwanted: tuple[str, ...] = ()
    """Settings with which PyArrow would read other rows."""

    @classmethod
    def of(cls, spark: SparkSession) -> Self:
        """Return the settings of a session."""
        unwanted = tuple(name for name in _UNWANTED if is_on(spark, name))
        rebase, int96_rebase = (str(spark.conf.get(name)).upper() for name in (_REBASE, _INT96_REBASE))
        return cls(
            is_case_sensitive=is_case_sensitive(spark), rebase=rebase, int96_rebase=int96_rebase, unwanted=unwanted
        )

    def find(self, names: Iterable[str], wanted: str) -> str | None:
        """Find the name of a column, as Spark does: in any case unless the session is sensitive to it."""
        return find_column(names, wanted, is_case_sensitive=self.is_case_sensitive)


def find_column(names: Iterable[str], wanted: str, *, is_case_sensitive: bool) -> str | None:
    """Find the name of a column in a file by Spark's rules for case."""
    found = list(names)
    at = find_name(found, wanted, is_case_sensitive=is_case_sensitive)
    return None if at is None else found[at]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A Parquet file whose footer PyArrow does not read, although it may be sound."""

    reason: str


def columns_text(footer: Any) -> str:
    """Return a text that is the same for all files in which Spark finds the same columns."""
    # Its first line has the address of an object.
    return f"{str(footer.schema).partition(chr(10))[2]}{(footer.metadata or {}).get(_ROW_METADATA)!r}"


def columns_of_footer(footer: Any) -> StructType | None:
    """Return the columns of a file by their Arrow types; ``None`` if Spark has no types for them."""
    try:
        return spark_schema(footer.schema.to_arrow_schema())
    except InvalidConfigurationError:
        return None


def is_part_of(columns: StructType, known: StructType) -> bool:
    """Return whether columns are also, by equal names and types, in another schema."""
    kinds = {field.name: field.dataType for field in known.fields}
    return all(field.name in kinds and is_same(kinds[field.name], field.dataType) for field in columns.fields)


def obstacle(
    footer: Any, schema: StructType, rules: ReadingRules, directories: Mapping[str, str] | None = None
) -> str | None:
    """
    Return why a file cannot be cut; ``None`` if PyArrow reads the same rows from its row groups as Spark from the file.

    :param footer: ``pyarrow.parquet.FileMetaData`` of the file, or why there is none.
    :param schema: The columns to read.
    :param directories: Values of partition columns as they are written in the names of directories.
    """
    if isinstance(footer, Unreadable):
        return footer.reason
    if rules.unwanted:
        return f"{rules.unwanted[0]} is on"
    values = {} if directories is None else directories
    stored = [column for column in schema.fields if column.name not in values]
    found = (_of_directories(schema, values), _of_columns(stored), _of_file(footer, stored, rules))
    return next((reason for reasons in found for reason in reasons), None)


def _of_directories(schema: StructType, values: Mapping[str, str]) -> Iterator[str]:
    for column in schema.fields:
        text = values.get(column.name)
        if text is not None and not is_cast_like_a_directory(text, column.dataType):
            yield f"only Spark parses the value {text!r} of {column.name!r} in its path as {_shown(column)}"


def _of_columns(stored: Sequence[StructField]) -> Iterator[str]:
    for column in stored:
        if not is_arrow_compatible(column.dataType):
            yield f"only Spark reads {column.name!r} as {_shown(column)}"
        if any(_DEFAULT in part for part in _metadata_of(column)):
            yield f"only Spark knows the default of {column.name!r}"


_DEFAULT = "EXISTS_DEFAULT"


def _shown(column: StructField) -> str:
    return column.dataType.simpleString()


def _metadata_of(column: StructField) -> Iterator[Mapping[str, Any]]:
    from pyspark.sql.types import StructType

    yield column.metadata or {}
    for part in nested_types(column.dataType):
        if isinstance(part, StructType):
            yield from (each.metadata or {} for each in part.fields)


def _of_file(footer: Any, stored: Sequence[StructField], rules: ReadingRules) -> Iterator[str]:
    from pyspark.sql.types import StructType

    found, wanted = footer.schema.to_arrow_schema(), arrow_schema(StructType(list(stored)))
    repeated = _repeated(found.names, rules) or _repeated(wanted.names, rules)
    if repeated is not None:
        yield f"it has several columns {repeated!r}"
        return
    leaves = _leaves(footer, [name for name in (rules.find(found.names, each) for each in wanted.names) if name])
    yield from _of_leaves(footer, leaves)
    yield from _of_times(footer, stored, leaves, rules)
    yield from _of_types(found, wanted, rules)


def _repeated(names: Sequence[str], rules: ReadingRules) -> str | None:
    known: set[str] = set()
    for name in names:
        key = name if rules.is_case_sensitive else name.lower()
        if key in known:
            return name
        known.add(key)
    return None


def _leaves(footer: Any, names: Sequence[str]) -> list[int]:
    """Return the numbers of the columns of a file that belong to columns of a table."""
    roots = tuple(f"{name}." for name in names)
    return [i for i in range(len(footer.schema)) if f"{footer.schema.column(i).path}.".startswith(roots)]


def _of_leaves(footer: Any, leaves: Sequence[int]) -> Iterator[str]:
    for leaf in leaves:
        column = footer.schema.column(leaf)
        # INT96 timestamps have no logical type; Spark rejects all other nanosecond timestamps.
        if "timeUnit=nanoseconds" in str(column.logical_type):
            yield f"only Spark decides about nanoseconds in {column.path!r}"
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "DECIMAL":
            yield f"only Spark decides about decimals of any length in {column.path!r}"
        codecs = {footer.row_group(i).column(leaf).compression for i in range(footer.num_row_groups)}
        for codec in sorted(codecs - {"UNCOMPRESSED"}):
            if not _is_known_codec(codec):
                yield f"PyArrow does not read the compression {codec} of {column.path!r}"


def _is_known_codec(codec: str) -> bool:
    try:
        return bool(pa.Codec.is_available(codec.lower()))
    except ValueError:
        return False


_ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
_VERSION = b"org.apache.spark.version"
_LEGACY_DAYS = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"


def _of_times(footer: Any, stored: Sequence[StructField], leaves: Sequence[int], rules: ReadingRules) -> Iterator[str]:
    # Spark rebases times before the Gregorian calendar, or refuses them; PyArrow returns them as they are.
    if any(footer.schema.column(leaf).physical_type == "INT96" for leaf in leaves):
        mode = _rebase_mode(footer, b"3.1.0", _LEGACY_INT96, rules.int96_rebase)
        if mode != "CORRECTED":
            yield f"Spark reads its INT96 timestamps in the mode {mode}"
    if any(map(_is_of_a_calendar, stored)):
        mode = _rebase_mode(footer, b"3.0.0", _LEGACY_DAYS, rules.rebase)
        if mode != "CORRECTED":
            yield f"Spark reads its dates and timestamps in the mode {mode}"


def _rebase_mode(footer: Any, first: bytes, mark: bytes, mode_without_version: str) -> str:
    properties = footer.metadata or {}
    version = properties.get(_VERSION)
    if version is None:
        return mode_without_version
    return "LEGACY" if version < first or mark in properties else "CORRECTED"


def _is_of_a_calendar(column: StructField) -> bool:
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    return any(isinstance(part, DateType | TimestampType | TimestampNTZType) for part in nested_types(column.dataType))


def _of_types(found: Any, wanted: Any, rules: ReadingRules) -> Iterator[str]:
    for column in wanted:
        name = rules.find(found.names, column.name)
        if name is not None and not _is_compatible(found.field(name).type, column.type):
            yield f"PyArrow reads {name!r} as {found.field(name).type} instead of {column.type}"


def _is_compatible(found: Any, wanted: Any) -> bool:
    kinds = pa.types
    if kinds.is_list(found) and kinds.is_list(wanted):
        return _is_compatible(found.value_type, wanted.value_type)
    if kinds.is_map(found) and kinds.is_map(wanted):
        return _is_compatible(found.key_type, wanted.key_type) and _is_compatible(found.item_type, wanted.item_type)
    if kinds.is_struct(found) and kinds.is_struct(wanted):
        return _are_compatible_fields(list(found), list(wanted))
    if kinds.is_integer(found) and kinds.is_integer(wanted):
        return bool(found.bit_width + kinds.is_unsigned_integer(found) <= wanted.bit_width)
    if kinds.is_timestamp(found) and kinds.is_timestamp(wanted):
        # PyArrow returns INT96 timestamps, which are in UTC, as nanoseconds without a zone.
        return (found.tz is None and found.unit != "ns") == (wanted.tz is None)
    return bool(found.equals(wanted) or (kinds.is_large_string(found) and kinds.is_string(wanted)))


def _are_compatible_fields(found: list[Any], wanted: list[Any]) -> bool:
    if [field.name for field in found] != [field.name for field in wanted]:
        return False
    return all(_is_compatible(field.type, other.type) for field, other in zip(found, wanted, strict=True))
