"""Schemas of tables in Spark and Arrow, and DataFrames and Parquet files with these schemas."""

from __future__ import annotations

import functools
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, StorageError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.spark.snapshots.columns import with_plain_text
from airflow_provider_statecheck.spark.tables.column_types import require_exchanged, with_null_parts
from airflow_provider_statecheck.spark.tables.named_rows import find_name
from airflow_provider_statecheck.spark.versions import from_arrow_schema, to_arrow_schema, type_of_ddl
from airflow_provider_statecheck.storage.failures import RetryPolicy, advice
from airflow_provider_statecheck.storage.snapshot_manifest import with_all_rows
from airflow_provider_statecheck.storage.uris import conceal, harmless

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


def to_struct_type(schema: Any) -> StructType:
    """
    Convert a ``StructType`` or DDL to a ``StructType``; requires an active session.

    :raises InvalidConfigurationError: if the schema is invalid or has no columns.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = schema if isinstance(schema, StructType) else type_of_ddl(schema)
    except (PySparkException, TypeError, ValueError) as error:
        raise _invalid_schema(schema) from error
    if not isinstance(found, StructType) or not found.fields:
        raise _invalid_schema(schema)
    return found


def arrow_schema(schema: StructType) -> Any:
    """
    Return the Arrow schema in which Spark exchanges columns of a schema with Python.

    :raises UnsupportedStateError: for a column whose values Spark does not exchange unchanged.
    """
    require_exchanged(schema)
    found = to_arrow_schema(with_plain_text(schema))
    return pa.schema([field.with_type(with_null_parts(field.type)) for field in found], found.metadata)


def spark_schema(schema: Any) -> StructType:
    """
    Return the Spark schema of an Arrow schema.

    :raises InvalidConfigurationError: if Spark has no type for a column.
    """
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


def select_fields(schema: StructType, columns: Sequence[str] | None, *, is_case_sensitive: bool) -> StructType:
    """
    Return the schema of selected columns, under the selected names; all columns for ``None``.

    :param is_case_sensitive: Whether columns have exactly these names, and not only in another case.
    :raises InvalidConfigurationError: if a column does not exist.
    """
    from pyspark.sql.types import StructField, StructType

    if columns is None:
        return schema
    positions = [find_name(schema.names, name, is_case_sensitive=is_case_sensitive) for name in columns]
    require_columns([name for name, at in zip(columns, positions, strict=True) if at is None], schema.names)
    pairs = [(name, schema.fields[at]) for name, at in zip(columns, positions, strict=True) if at is not None]
    return StructType([StructField(name, field.dataType, field.nullable, field.metadata) for name, field in pairs])


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


def _invalid_schema(schema: Any) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected schema to be a StructType or DDL such as 'id bigint, name string'; found {schema!r}."
    )


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


def schema_differences(theirs: Any, ours: Any, *, may_add: bool = True, may_lack: bool = False) -> list[str]:
    """
    Return the reasons why rows with one schema cannot be added to rows with another.

    Nullability is no reason: a column that is never null takes part as any other, and writers refuse null in the
    columns of a table that require values.

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


def required_part_differences(theirs: Any, ours: Any) -> list[str]:
    """
    Return the parts of columns that cannot be null in a table and can be null in the rows to add.

    Readers of the table would fail at null in such a part, also where the struct around it is null.
    """
    shared = [(column, ours.field(column.name)) for column in theirs if ours.get_field_index(column.name) >= 0]
    return [
        f"{name!r} can be null here and not there (declare it NOT NULL in output= of the last function)"
        for column, given in shared
        if is_same_type(column.type, given.type)
        for name in _optional_parts(column.type, given.type, column.name)
    ]


def _optional_parts(theirs: Any, ours: Any, path: str) -> Iterator[str]:
    for position in range(theirs.num_fields if pa.types.is_nested(theirs) else 0):
        required, given = theirs.field(position), ours.field(position)
        name = f"{path}.{required.name}"
        if given.nullable and not required.nullable:
            yield name
        yield from _optional_parts(required.type, given.type, name)


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

    @property
    def tasks(self) -> list[Any]:
        """The tasks."""
        found: list[Any] = json.loads(zlib.decompress(self.packed_tasks))
        return found

    def frame(self, spark: SparkSession, columns: StructType) -> DataFrame:
        """
        Return the rows of all tasks.

        :param columns: Spark schema of the rows.
        """
        count = len(self.tasks)
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
    tasks = reader.tasks
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


def group_sizes(metadata: Any, columns: Collection[str] | None = None) -> list[int]:
    """
    Return the compressed size of each row group.

    :param columns: Names of the columns that count; all for ``None``.
    """
    paths = [metadata.schema.column(leaf).path.partition(".")[0] for leaf in range(metadata.num_columns)]
    leaves = [leaf for leaf, name in enumerate(paths) if columns is None or name in columns]
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [sum(group.column(leaf).total_compressed_size for leaf in leaves) for group in groups]


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
