"""Read ranges of keys inside Spark tasks: a connection for each, rows in batches, no jar."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import SourceError
from airflow_provider_statecheck.spark.snapshots.arrow_columns import arrow_schema
from airflow_provider_statecheck.spark.sources.sql.database import Database
from airflow_provider_statecheck.spark.sources.sql.key_ranges import KeyRange
from airflow_provider_statecheck.spark.sources.sql.relation import Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ROWS_PER_BATCH = 10_000


@dataclass(frozen=True, slots=True, repr=False)
class RangeReader:
    """Reads the ranges of one task."""

    database: Database
    relation: Relation
    schema: Any
    """Arrow schema in which Spark takes the rows."""
    packed_ranges: bytes

    def read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Give the rows of the ranges whose numbers arrive.

        :param batches: Record batches with one column of numbers.
        :raises SourceError: if the database cannot be read, or a value is not of its type.
        """
        names = json.loads(zlib.decompress(self.packed_ranges))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read_range(KeyRange.of_name(names[number]))

    def _read_range(self, keys: KeyRange) -> Iterator[Any]:
        with self.database.connect() as connection:
            statement = self.relation.rows_of(keys, self.schema.names)
            # Row by row from the server, where it can: a range need not fit into memory.
            result = connection.execution_options(yield_per=_ROWS_PER_BATCH).execute(statement)
            for rows in result.partitions():
                yield self._batch(rows)

    def _batch(self, rows: Sequence[Any]) -> Any:
        import pyarrow as pa

        columns = zip(*rows, strict=True)
        arrays = [self._array(field, values) for field, values in zip(self.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: Any, values: tuple[Any, ...]) -> Any:
        import pyarrow as pa

        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SourceError(
                f"Expected values of {field.type} in column {field.name!r} of {self.relation.shown}, found others: {error}. "
                "Give a schema with a type that holds them, or cast them in a query."
            ) from None


def load_ranges(
    spark: SparkSession, database: Database, relation: Relation, schema: StructType, ranges: Sequence[KeyRange]
) -> DataFrame:
    """Return the rows of ranges; each task of Spark reads one."""
    packed = zlib.compress(json.dumps([keys.name for keys in ranges]).encode())
    reader = RangeReader(database, relation, arrow_schema(schema), packed)
    frame = spark.range(0, len(ranges), 1, len(ranges))
    return frame.mapInArrow(functools.partial(read_ranges, reader), schema)


def read_ranges(reader: RangeReader, batches: Iterator[Any]) -> Iterator[Any]:
    """Give the rows of a task."""
    return reader.read(batches)
