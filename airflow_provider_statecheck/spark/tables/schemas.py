"""
Schemas of tables in Spark and Arrow, and DataFrames and Parquet files with these schemas.

PyArrow reads single row groups of a file. :func:`reads_like_spark` decides whether its rows equal those of Spark's
reader.
"""

from __future__ import annotations

import functools
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, StorageError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.storage.failures import RetryPolicy, advice
from airflow_provider_statecheck.storage.snapshot_manifest import with_all_rows
from airflow_provider_statecheck.storage.uris import conceal, harmless

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


_LEGACY_CALENDAR_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


def to_struct_type(schema: Any) -> StructType:
    """
    Convert a ``StructType`` or DDL to a ``StructType``; requires an active session.

    :raises InvalidConfigurationError: if the schema is invalid or has no columns.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except (PySparkException, TypeError, ValueError) as error:
        raise _invalid_schema(schema) from error
    if not isinstance(found, StructType) or not found.fields:
        raise _invalid_schema(schema)
    return found


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema in which Spark exchanges columns of a schema with Python."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def spark_schema(schema: Any) -> StructType:
    """
    Return the Spark schema of an Arrow schema.

    :raises InvalidConfigurationError: if Spark has no type for a column.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return from_arrow_schema(schema)
    except Exception as error:  # the class differs between versions of Spark
        raise InvalidConfigurationError(
            f"Expected columns that Spark has types for, found {error}; exclude the column with columns=."
        ) from error


def all_nullable(schema: Any) -> Any:
    """Return an Arrow schema whose columns, and all parts of them, can be null."""
    return pa.schema([_nullable(field) for field in schema], schema.metadata)


def _nullable(field: Any) -> Any:
    return field.with_type(_nullable_type(field.type)).with_nullable(True)


def _nullable_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_nullable_type(kind.key_type)), _nullable(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_field))
    return pa.large_list(_nullable(kind.value_field)) if pa.types.is_large_list(kind) else kind


def with_required(schema: Any, names: Collection[str]) -> Any:
    """Return an Arrow schema in which some columns are never null, as the table requires that they are written to."""
    return pa.schema([field.with_nullable(field.nullable and field.name not in names) for field in schema])


def required_columns(schema: Any) -> tuple[str, ...]:
    """Return the columns of an Arrow schema that cannot be null."""
    return tuple(field.name for field in schema if not field.nullable)


def is_same_type(kind: Any, other: Any) -> bool:
    """Return whether two Arrow types are equal; the nullability of their parts does not count."""
    return bool(_nullable_type(kind) == _nullable_type(other))


def merged_schema(schemas: Iterable[Any]) -> Any:
    """Return the Arrow schema with the columns of all schemas; the last one decides the type of a column."""
    fields = {field.name: field for schema in schemas for field in schema}
    return pa.schema(list(fields.values()))


def require_columns(names: Iterable[str], known: Sequence[str], table: str = "the source") -> None:
    """
    Require that columns exist.

    :param known: All columns.
    :param table: Name of the table, for the error message.
    :raises InvalidConfigurationError: if a column does not exist.
    """
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidConfigurationError(f"Expected columns of {table}, found {missing}; it has {list(known)}.")


def select_fields(schema: StructType, columns: Sequence[str] | None) -> StructType:
    """
    Return the schema of selected columns; all columns for ``None``.

    :raises InvalidConfigurationError: if a column does not exist.
    """
    from pyspark.sql.types import StructType

    if columns is None:
        return schema
    require_columns(columns, schema.names)
    return StructType([schema[name] for name in columns])


def is_arrow_compatible(data_type: DataType) -> bool:
    """Return whether Spark reads values of a type from Arrow batches unchanged."""
    from pyspark.sql import types

    if isinstance(data_type, types.StructType):
        return all(is_arrow_compatible(field.dataType) for field in data_type.fields)
    if isinstance(data_type, types.ArrayType):
        return is_arrow_compatible(data_type.elementType)
    if isinstance(data_type, types.MapType):
        return is_arrow_compatible(data_type.keyType) and is_arrow_compatible(data_type.valueType)
    # Equality excludes the subclasses for collations and for limited lengths.
    return data_type == types.StringType() or isinstance(data_type, _atomic_types())


def reads_like_spark(metadata: Any, schema: StructType) -> bool:
    """
    Return whether PyArrow reads the same rows from a file as Spark.

    :param metadata: ``pyarrow.parquet.FileMetaData`` of the file.
    :param schema: The columns to read.
    """
    if not all(is_arrow_compatible(field.dataType) for field in schema.fields) or _has_legacy_calendar(metadata):
        return False
    found, wanted = metadata.schema.to_arrow_schema(), arrow_schema(schema)
    if _has_ambiguous_names(found.names) or _has_ambiguous_names(wanted.names) or _has_nanoseconds(metadata.schema):
        return False
    pairs = ((find_column(found.names, field.name), field.type) for field in wanted)
    return all(name is None or _is_compatible(found.field(name).type, kind) for name, kind in pairs)


def find_column(names: Any, wanted: str) -> str | None:
    """Find the name of a column in a file, ignoring case as Spark does."""
    return next((name for name in names if name.lower() == wanted.lower()), None)


def _invalid_schema(schema: Any) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected schema to be a StructType or DDL such as 'id bigint, name string'; found {schema!r}."
    )


def _has_ambiguous_names(names: list[str]) -> bool:
    return len({name.lower() for name in names}) < len(names)


def _has_nanoseconds(schema: Any) -> bool:
    # INT96 timestamps have no logical type; Spark rejects all other nanosecond timestamps.
    return any("timeUnit=nanoseconds" in str(schema.column(i).logical_type) for i in range(len(schema)))


def _atomic_types() -> tuple[type[DataType], ...]:
    from pyspark.sql import types

    return (
        types.BooleanType,
        types.ByteType,
        types.ShortType,
        types.IntegerType,
        types.LongType,
        types.FloatType,
        types.DoubleType,
        types.DecimalType,
        types.BinaryType,
        types.DateType,
        types.TimestampType,
        types.TimestampNTZType,
    )


def _has_legacy_calendar(metadata: Any) -> bool:
    properties = metadata.metadata or {}
    version = properties.get(b"org.apache.spark.version", b"3")
    # Spark rebases old dates of such files to the Gregorian calendar; PyArrow does not.
    return version[:1] in (b"1", b"2") or any(key in properties for key in _LEGACY_CALENDAR_KEYS)


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


def schema_differences(theirs: Any, ours: Any, *, may_add: bool = True, may_lack: bool = False) -> list[str]:
    """
    Return the reasons why rows with one schema cannot be added to rows with another.

    Nullability is no reason: a column that is never null takes part as any other, and writers refuse null in the columns of a
    table that require values.

    :param theirs: Arrow schema of the rows that are there.
    :param ours: Arrow schema of the rows to add.
    :param may_add: Whether the rows may have new columns, which are null in those that are there.
    :param may_lack: Whether the rows may lack nullable columns.
    """
    found = [
        f"column {column.name!r} is missing here"
        for column in theirs
        if ours.get_field_index(column.name) < 0 and not (may_lack and column.nullable)
    ]
    by_case = {name.lower(): name for name in theirs.names}
    for column in ours:
        if theirs.get_field_index(column.name) >= 0:
            found += _type_differences(theirs.field(column.name), column)
        elif column.name.lower() in by_case:
            found.append(f"column {by_case[column.name.lower()]!r} is {column.name!r} here")
        elif not may_add:
            found.append(f"column {column.name!r} is new")
    return found


def conflicts(ours: Any, theirs: Any) -> list[str]:
    """Return the reasons why the files of two writers cannot be read as one table."""
    shared = [field for field in ours if theirs.get_field_index(field.name) >= 0]
    return [
        f"column {field.name!r} is {theirs.field(field.name).type} there and {field.type} here"
        for field in shared
        if not is_same_type(theirs.field(field.name).type, field.type)
    ] or ([] if shared else ["no column has a name in common"])


def _type_differences(theirs: Any, ours: Any) -> list[str]:
    if is_same_type(theirs.type, ours.type):
        return []
    return [f"column {ours.name!r} is {theirs.type} there and {ours.type} here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReader(ABC):
    """Reads rows in Python inside Spark tasks; each Spark task reads one element of a list of tasks."""

    schema: Any
    """Arrow schema of the rows for Spark."""
    packed_tasks: bytes = field(repr=False)
    """Result of :func:`pack_tasks`: a small function stays inside the plan, where a large one becomes a broadcast."""

    def frame(self, spark: SparkSession, columns: StructType) -> DataFrame:
        """
        Return the rows of all tasks.

        :param columns: Spark schema of the rows.
        """
        count = len(_unpacked(self.packed_tasks))
        return spark.range(0, count, 1, count).mapInArrow(functools.partial(read_tasks, self), columns)

    @abstractmethod
    def read_task(self, task: Any) -> Iterator[Any]:
        """
        Yield the rows of a task as record batches.

        :raises StateCheckError: if the input is missing, has changed since it was listed, or cannot be read.
        """


def read_tasks(reader: TaskReader, batches: Iterable[Any]) -> Iterator[Any]:
    """
    Yield the rows of a Spark task.

    :param batches: Record batches with one column of numbers of tasks.
    """
    tasks = _unpacked(reader.packed_tasks)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from reader.read_task(tasks[number])


def pack_tasks(tasks: Sequence[Any]) -> bytes:
    """Return tasks in compressed form; their values must have a JSON form."""
    return zlib.compress(json.dumps(tasks, separators=(",", ":")).encode())


@contextmanager
def concealed_failures(message: str, options: Mapping[str, Any]) -> Iterator[None]:
    """
    Replace errors of a storage client by errors without credentials.

    :param message: What failed.
    :param options: Options of the client, which the error must not show.
    :raises StorageError: if the block fails with another error than those of this package.
    """
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        # No cause: Spark logs the whole chain, and client errors may contain credentials.
        raise StorageError(f"{message}: {type(error).__name__} {conceal(str(error), options)}") from None


@contextmanager
def storage_failures(what: str, options: Mapping[str, Any]) -> Iterator[None]:
    """
    Replace errors of a storage client on the driver by errors without credentials, with what the user can do.

    :param what: What failed.
    :param options: Options of the client, which the error must not show.
    :raises StorageError: if the block fails with another error than those of this package.
    """
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        # deltalake appends a stack trace after the first line.
        reason = conceal(str(error), options).partition("\n")[0].rstrip(".")
        raise StorageError(f"{what}: {reason}.{advice(error)}") from harmless(error, options)


def union_all(frames: Iterable[DataFrame]) -> DataFrame:
    """Return the rows of all DataFrames, at least one; columns are matched by position."""
    return functools.reduce(lambda frame, other: frame.unionAll(other), frames)


def quoted_column(name: str) -> Column:
    """Return a column by its literal name, which may contain dots and backticks."""
    from pyspark.sql import functions

    return functions.col(quoted(name))


def quoted(name: str) -> str:
    """Quote a column name for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def _unpacked(packed: bytes) -> list[Any]:
    found: list[Any] = json.loads(zlib.decompress(packed))
    return found


_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^<>| \x7f") | {chr(code) for code in range(32)}


def partition_values(root: str, uri: str) -> dict[str, str | None]:
    """Return the partition values in the directory names between a root and a file; ``None`` for a null value."""
    directories = uri.removeprefix(root).split("/")[:-1]
    pairs = (directory.partition("=") for directory in directories if "=" in directory)
    return {unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs}


def partition_names(directory: str) -> tuple[str, ...]:
    """Return the partition columns in the name of a directory."""
    return tuple(partition_values("", f"{directory}/"))


def partition_path(values: Mapping[str, str | None]) -> str:
    """Return the name of the directory with partition values; a null value is ``None`` or empty, as in Spark."""
    return "/".join(f"{_escaped(name)}={_escaped(value) if value else _NULL}" for name, value in values.items())


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)


TASK_BYTES = 32 * 1024 * 1024
"""Size of the files or row groups that one task reads in Python."""
_BATCH_BYTES = 8 * 1024 * 1024
_MAX_BATCH_ROWS = 64 * 1024


def open_file(filesystem: Any, path: str, shown: str) -> tuple[Any, int]:
    """
    Open a file of an fsspec filesystem and return it with its size.

    :param shown: Name of the file in messages, without credentials.
    :raises FileNotFoundError: if there is no such file.
    """
    # Without a cache: Parquet's reads are exact and already merge adjacent columns.
    file = RetryPolicy().call(lambda: filesystem.open(path, "rb", cache_type="none"), shown)
    size = int(file.seek(0, 2))
    file.seek(0)
    return file, size


def consecutive(sizes: Sequence[int], limit: int) -> Iterator[range]:
    """Yield ranges of consecutive elements that have at most a size together, or of single larger ones."""
    start, total = 0, 0
    for position, size in enumerate(sizes):
        if position > start and total + size > limit:
            yield range(start, position)
            start, total = position, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


def group_sizes(metadata: Any) -> list[int]:
    """Return the compressed size of each row group."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in groups]


def batches_of(parquet: Any, groups: Iterable[int], columns: Sequence[str] | None = None) -> Iterator[Any]:
    """
    Yield the rows of row groups in batches of bounded size.

    :param parquet: An open ``pyarrow.parquet.ParquetFile``.
    :param columns: Names of columns; all for ``None``.
    :raises OSError: if a page was changed.
    """
    for group in groups:
        described = parquet.metadata.row_group(group)
        batches = parquet.iter_batches(
            rows_per_batch(described), row_groups=[group], columns=columns, use_threads=False
        )
        yield from with_all_rows(batches, described.num_rows)


def rows_per_batch(group: Any) -> int:
    """Return the number of rows of a row group that are read at a time."""
    return int(min(_MAX_BATCH_ROWS, max(1, group.num_rows * _BATCH_BYTES // max(1, group.total_byte_size))))
