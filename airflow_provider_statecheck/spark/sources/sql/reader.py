"""
Reading of key ranges in Spark tasks, and the position of a SQL source across runs.

The keys above the position are cut into ranges when a run begins; each range is an item, and one task reads it.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError, SourceError
from airflow_provider_statecheck.spark.snapshots.columns import arrow_schema
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.sql.changed_rows import (
    Observation,
    Watch,
    decode_observations,
    encode_observations,
)
from airflow_provider_statecheck.spark.sources.sql.database import Database
from airflow_provider_statecheck.spark.sources.sql.relation import (
    Columns,
    KeyRange,
    Relation,
    equal_widths,
    ranges_between,
)
from airflow_provider_statecheck.state.source_items import Item, Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection

_ROWS_PER_BATCH = 10_000


class SqlReader:
    """
    Reads key ranges through Spark.

    :param columns: All known columns of the relation.
    :param names: Names of the columns to read.
    """

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        relation: Relation,
        columns: Columns,
        names: Sequence[str],
        watch: Watch,
        position: Position,
    ) -> None:
        self._spark = spark
        self._database = database
        self._relation = relation
        self._columns = columns
        self._names = names
        self._watch = watch
        self._position = position

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Verify that ranges have not changed, if there is a version column.

        :raises SourceChangedError: if rows changed since the last observation.
        """
        self._watch.require_unchanged(KeyRange.of_name(item.name) for item in items)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        ranges = [KeyRange.of_name(split.item.name) for split in splits if split.item]
        schema = self._columns.select(self._names, self._relation.shown).schema
        return load_ranges(self._spark, self._database, self._relation, schema, ranges)

    def snapshot(self) -> dict[str, Any]:
        """Return the state for the next attempt: position, columns and observations."""
        return {
            **self._position.encode(),
            "columns": self._columns.encode(),
            "finished": encode_observations(self._watch.finished),
            # A copy: other threads observe the ranges that they read.
            "current": encode_observations(list(self._watch.current.values())),
        }


def load_ranges(
    spark: SparkSession, database: Database, relation: Relation, schema: StructType, ranges: Sequence[KeyRange]
) -> DataFrame:
    """Return the rows of ranges; one Spark task reads each range."""
    packed = zlib.compress(json.dumps([keys.name for keys in ranges]).encode())
    reader = RangeReader(database, relation, arrow_schema(schema), packed)
    frame = spark.range(0, len(ranges), 1, len(ranges))
    return frame.mapInArrow(functools.partial(read_ranges, reader), schema)


def read_ranges(reader: RangeReader, batches: Iterator[Any]) -> Iterator[Any]:
    """Return the rows of a task."""
    return reader.read(batches)


@dataclass(frozen=True, slots=True, repr=False)
class RangeReader:
    """Reads key ranges inside Spark tasks."""

    database: Database
    relation: Relation
    schema: Any
    """Arrow schema of the rows for Spark."""
    packed_ranges: bytes

    def read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Yield the rows of ranges.

        :param batches: Record batches with one column of range numbers.
        :raises SourceError: if the database cannot be read, or a value does not have the type of its column.
        """
        names = json.loads(zlib.decompress(self.packed_ranges))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read_range(KeyRange.of_name(names[number]))

    def _read_range(self, keys: KeyRange) -> Iterator[Any]:
        with self.database.connect() as connection:
            statement = self.relation.rows_of(keys, self.schema.names)
            # With a server-side cursor where the database has one, a range need not fit into memory.
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
                "Give a schema with a matching type, or cast the values in a query."
            ) from None


@dataclass(frozen=True, slots=True)
class Position:
    """Largest planned key, across all runs."""

    key: str
    mark: Any = None
    """Largest planned key; ``None`` before the first row."""
    has_planned_rows_without_key: bool = False

    def encode(self) -> dict[str, Any]:
        """Return the position as plain values."""
        return {"key": self.key, "mark": self.mark, "null": self.has_planned_rows_without_key}


@dataclass(frozen=True, slots=True)
class SavedPosition:
    """The decoded state of a reader from an earlier attempt."""

    position: Position
    columns: Columns
    finished: Sequence[Observation]
    current: Sequence[Observation]

    @classmethod
    def decode(cls, state: Mapping[str, Any] | None, key: str) -> SavedPosition:
        """
        Decode the state from :meth:`SqlReader.snapshot`.

        :raises InvalidConfigurationError: if the state belongs to another key.
        :raises CorruptStateError: if the state is invalid.
        """
        try:
            saved = _decode_saved_position(state or {})
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                f"Expected the position of a source in a database, found invalid data: {error!r}; restore another checkpoint."
            ) from error
        if saved.position.key != key:
            raise InvalidConfigurationError(
                f"Expected to continue by the key {saved.position.key!r}, found key={key!r}; set the previous key, or start "
                "without the state."
            )
        return saved

    def observations_of(self, finished: frozenset[str]) -> list[Observation]:
        """
        Return the observations of all finished ranges.

        :param finished: Names of the finished ranges of the last run.
        """
        return [*self.finished, *(seen for seen in self.current if seen.keys.name in finished)]


def _decode_saved_position(state: Mapping[str, Any]) -> SavedPosition:
    return SavedPosition(
        Position(str(state["key"]), state["mark"], bool(state["null"])),
        Columns.decode(state["columns"]),
        decode_observations(state, "finished"),
        decode_observations(state, "current"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Rule for cutting keys into ranges, each read by one task."""

    rows: int
    """Number of rows of a range."""
    count: int | None
    """Number of ranges with equal key widths; takes precedence over ``rows``."""

    def ranges_above(self, connection: Connection, relation: Relation, above: Any) -> list[KeyRange]:
        """
        Return ranges of all keys above one.

        :raises InvalidConfigurationError: if ``count`` is set and keys of this type have no width.
        """
        lowest, highest = relation.bounds(connection, above)
        if highest is None:
            return []
        if self.count is not None:
            return ranges_between(above, equal_widths(lowest, highest, self.count))
        ends = relation.ends_of_ranges(connection, self.rows, KeyRange(above, highest))
        return ranges_between(above, [*ends, highest])


def next_run(
    database: Database, relation: Relation, cuts: Cuts, before: Ledger, position: Position
) -> tuple[Ledger, Position]:
    """
    Plan a new run; return its ledger and the new position.

    :param before: Ledger of the previous run; its unfinished ranges come first.
    :raises InvalidConfigurationError: if keys of this type have no width.
    """
    left = [item for i, item in enumerate(before.items) if i not in before.finished]
    with database.connect() as connection:
        ranges = cuts.ranges_above(connection, relation, position.mark)
        has_null = position.has_planned_rows_without_key or relation.has_rows_without_key(connection)
    mark = ranges[-1].up_to if ranges else position.mark
    if has_null and not position.has_planned_rows_without_key:
        ranges.append(KeyRange())
    items = (*left, *(Item.of(keys.name, 0, "") for keys in ranges))
    return Ledger(items), Position(position.key, mark, has_null)
