"""
What versions of Spark do differently, and whether a session is one of Spark Connect.

All other code calls Spark as the newest version is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import np

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StringType, StructType

Result = TypeVar("Result")

_CONNECT_MODULES = "pyspark.sql.connect."
_SEED = 42
"""Seed of the hash by which Spark chooses the partition of a row."""
_C1, _C2 = 0xCC9E2D51, 0x1B873593


def is_at_least(spark: SparkSession, version: str) -> bool:
    """
    Return whether a session has a version of Spark or a newer one; with Spark Connect, its server decides.

    :param version: Major and minor number, such as ``4.2``.
    """
    return _numbers(spark.version) >= _numbers(version)


def is_connect(session_or_frame: Any) -> bool:
    """Return whether a session or a DataFrame belongs to a Spark Connect server."""
    # Clients of services derive their session from that of Spark Connect.
    return any(kind.__module__.startswith(_CONNECT_MODULES) for kind in type(session_or_frame).__mro__)


def _numbers(version: str) -> tuple[int, ...]:
    # Managed services append names of their own, as in 4.0.0-amzn-0.
    return tuple(int(number) for number in version.split(".")[:2])


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a session, with their secrets."""
    if hasattr(spark.conf, "getAll"):
        return spark.conf.getAll
    # Python has no call for it before Spark 4.0, and SET hides secrets.
    state: Any = spark._jsparkSession.sessionState()
    return dict(state.conf().settings())


def inheriting_thread(run: Callable[[], None], spark: SparkSession, name: str) -> Thread:
    """Return a thread whose Spark jobs have the properties of the caller's."""
    from pyspark import InheritableThread

    # Spark 3.5 finds the session itself.
    takes_session = "session" in inspect.signature(InheritableThread.__init__).parameters
    return InheritableThread(run, daemon=True, name=name, **({"session": spark} if takes_session else {}))


def inheriting(call: Callable[[], Result], spark: SparkSession) -> Callable[[], Result]:
    """Return a function for another thread, whose Spark jobs have a copy of the properties of this thread."""
    from pyspark import inheritable_thread_target

    # Spark 3.5 finds the session itself.
    target: Any = inheritable_thread_target
    found: Callable[[], Result] = target(spark)(call) if is_at_least(spark, "4.0") else target(call)
    return found


def type_of_ddl(ddl: str) -> DataType:
    """Return the type that a text in DDL declares; requires an active session."""
    from pyspark.sql import types

    if hasattr(types.StructType, "fromDDL"):
        return types.StructType.fromDDL(ddl)
    return types._parse_datatype_string(ddl)  # what fromDDL calls since Spark 4.0


def to_arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema of a Spark schema, with timestamps in UTC."""
    from pyspark.sql.pandas import types

    # Spark 4.2 replaced timestamp_utc by timezone, and 4.0 and 4.1 set UTC by default.
    options: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(types.to_arrow_schema).parameters else {}
    )
    return types.to_arrow_schema(schema, **options)


def from_arrow_schema(schema: Any) -> StructType:
    """Return the Spark schema of an Arrow schema; a timestamp without a time zone is a ``TIMESTAMP_NTZ``."""
    from pyspark.sql.pandas import types

    # Before Spark 4.2, the default is a timestamp with a time zone.
    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def from_arrow_type(kind: Any) -> DataType:
    """Return the Spark type of an Arrow type; a timestamp without a time zone is a ``TIMESTAMP_NTZ``."""
    from pyspark.sql.pandas import types

    return types.from_arrow_type(kind, prefer_timestamp_ntz=True)


def is_calendar_interval(data_type: DataType) -> bool:
    """Return whether a type is the interval without a fixed length; before Spark 4.0, Python has no such type."""
    from pyspark.sql import types

    return isinstance(data_type, getattr(types, "CalendarIntervalType", ()))


def is_widened(spark: SparkSession, stored: DataType, kind: DataType) -> bool:
    """
    Return whether this version reads a column of Parquet files as a wider type, as the newest one does.

    Before Spark 4.0, only integers of the same width in files are read as each other, and texts.

    :param stored: Type of the column in the files.
    :param kind: The wider type, which the newest version reads it as.
    """
    from pyspark.sql import types

    narrow = (types.ByteType, types.ShortType, types.IntegerType)
    texts = (types.CharType, types.VarcharType, types.StringType)
    alike = any(isinstance(stored, each) and isinstance(kind, each) for each in (narrow, texts))
    return alike or is_at_least(spark, "4.0")


def schema_of(frame: DataFrame) -> StructType:
    """
    Return the schema of a DataFrame.

    :raises UnsupportedStateError: if Python has no type for a column in this version of Spark.
    """
    from pyspark.errors import PySparkValueError

    try:
        return frame.schema
    except PySparkValueError as error:
        # Spark's error does not name the column.
        columns = frame._jdf.schema().toDDL()
        raise UnsupportedStateError(
            f"Expected types of columns that Python knows in Spark {frame.sparkSession.version}, found {columns}; use "
            "a day-time or a year-month interval instead of INTERVAL, or numbers."
        ) from error


def has_binary_collation(data_type: StringType) -> bool:
    """Return whether texts are equal only if their bytes are; before Spark 4.0, there are no other collations."""
    return not hasattr(data_type, "isUTF8BinaryCollation") or data_type.isUTF8BinaryCollation()


def pickled_command(function: Any) -> bytes:
    """
    Return the pickled command of a Python function in a plan.

    :param function: ``PythonFunction`` of the JVM.
    """
    command = function.command()
    # Spark 3.5 is built with Scala 2.12, in which an array becomes another sequence.
    is_wrapped = command.getClass().getName().startswith("scala.collection.mutable.WrappedArray")
    return bytes(command.array() if is_wrapped else command.unsafeArray())


def repartition_by_id(frame: DataFrame, partitions: int, column: str) -> DataFrame:
    """
    Return a DataFrame whose partition i contains the rows with i in a column.

    :param column: Integer column with values from 0 to the number of partitions minus one.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(partitions, column)
    return _repartition_by_hash(frame, partitions, column)


def _repartition_by_hash(frame: DataFrame, partitions: int, column: str) -> DataFrame:
    """Place rows by a number whose hash falls on the wanted partition; ``repartitionById`` is new in Spark 4.1."""
    from pyspark.sql import functions as F

    numbers = F.array(*(F.lit(number) for number in numbers_of_partitions(partitions)))
    place = "__statecheck_place"
    placed = frame.withColumn(place, F.element_at(numbers, F.col(column) + F.lit(1)))
    return placed.repartition(partitions, place).drop(place)


@cache
def numbers_of_partitions(partitions: int) -> tuple[int, ...]:
    """
    Return for each partition an integer that Spark places there.

    Spark's ``HashPartitioning`` takes the Murmur3 hash of an ``int`` (Austin Appleby's MurmurHash3 x86 32-bit) with the
    seed 42, modulo the number of partitions.
    """
    found: dict[int, int] = {}
    start, size = 0, max(64, 4 * partitions)
    while len(found) < partitions:
        numbers = np.arange(start, start + size, dtype=np.uint32)
        places, first = np.unique(_hashed(numbers).view(np.int32) % partitions, return_index=True)
        found = dict(zip(places.tolist(), numbers[first].tolist(), strict=True)) | found
        start += size
    return tuple(found[partition] for partition in range(partitions))


def _hashed(numbers: Any) -> Any:
    mixed = _SEED ^ (_rotated(numbers * _C1, 15) * _C2)
    mixed = _rotated(mixed, 13) * 5 + 0xE6546B64
    mixed ^= 4  # the length of an int in bytes
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35
    return mixed ^ (mixed >> 16)


def _rotated(numbers: Any, bits: int) -> Any:
    return (numbers << bits) | (numbers >> (32 - bits))
