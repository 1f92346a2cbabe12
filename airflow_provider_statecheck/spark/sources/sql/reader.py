"""
Reading of key ranges in Spark tasks, and the position of a SQL source across runs.

The keys above the position are cut into ranges when a run begins; each range is an item, and one task reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SourceError
from airflow_provider_statecheck.spark.sources.enumerator import ItemReader, ItemSplit
from airflow_provider_statecheck.spark.sources.sql.changed_rows import Observation, Watch
from airflow_provider_statecheck.spark.sources.sql.relation import (
    Columns,
    KeyRange,
    Relation,
    equal_widths,
    ranges_between,
)
from airflow_provider_statecheck.spark.tables.databases import Database
from airflow_provider_statecheck.spark.tables.frames import TaskReader, pack_tasks
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema
from airflow_provider_statecheck.state.source_items import Item, Ledger, decoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection

_ROWS_PER_BATCH = 10_000


class SqlReader(ItemReader):
    """
    Reads key ranges through Spark.

    :param schema: The columns to read.
    :param watch: Observes the ranges that are read.
    :param position: State at the start of the attempt.
    """

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        relation: Relation,
        schema: StructType,
        watch: Watch,
        position: Position,
    ) -> None:
        self._spark = spark
        self._database = database
        self._relation = relation
        self._schema = schema
        self._watch = watch
        self._position = position

    @override
    def require_unchanged(self, items: Sequence[Item]) -> None:
        self._watch.require_unchanged(KeyRange.of_name(item.name) for item in items)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        ranges = [KeyRange.of_name(split.item.name) for split in splits]
        return load_ranges(self._spark, self._database, self._relation, self._schema, ranges)

    @override
    def snapshot(self) -> dict[str, Any]:
        # A copy: other threads observe the ranges that they read.
        current = list(self._watch.current.values())
        return replace(self._position, finished=self._watch.finished, current=current).encode()


def load_ranges(
    spark: SparkSession, database: Database, relation: Relation, schema: StructType, ranges: Sequence[KeyRange]
) -> DataFrame:
    """Return the rows of ranges; one Spark task reads each range."""
    packed, arrow = pack_tasks([keys.name for keys in ranges]), arrow_schema(schema)
    reader = RangeReader(database=database, relation=relation, schema=arrow, packed_tasks=packed)
    return reader.frame(spark, schema)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RangeReader(TaskReader):
    """Reads key ranges inside Spark tasks."""

    database: Database
    relation: Relation

    @override
    def read_task(self, task: Any) -> Iterator[Any]:
        """
        Yield the rows of a range.

        :raises SourceError: if the database cannot be read, or a value does not have the type of its column.
        """
        keys = KeyRange.of_name(task)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """State of a SQL source across attempts and runs."""

    key: str
    columns: Columns
    """All known columns of the relation."""
    mark: Any = None
    """Largest planned key; ``None`` before the first row."""
    has_planned_rows_without_key: bool = False
    finished: Sequence[Observation] = ()
    """Observations of the ranges that earlier attempts have read."""
    current: Sequence[Observation] = ()
    """Observations of the ranges that the last attempt has read, finished or not."""

    def encode(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {
            "key": self.key,
            "mark": self.mark,
            "null": self.has_planned_rows_without_key,
            "columns": self.columns.encode(),
            "finished": [observation.encode() for observation in self.finished],
            "current": [observation.encode() for observation in self.current],
        }

    @classmethod
    def decode(cls, state: Mapping[str, Any], key: str) -> Position:
        """
        Decode the state from :meth:`encode`.

        :raises InvalidConfigurationError: if the state belongs to another key.
        :raises CorruptStateError: if the state is invalid.
        """
        with decoding("the position of a source in a database"):
            position = cls(
                key=str(state["key"]),
                columns=Columns.decode(state["columns"]),
                mark=state["mark"],
                has_planned_rows_without_key=bool(state["null"]),
                finished=[Observation.decode(encoded) for encoded in state["finished"]],
                current=[Observation.decode(encoded) for encoded in state["current"]],
            )
        if position.key != key:
            raise InvalidConfigurationError(
                f"Expected to continue by the key {position.key!r}, found key={key!r}; set the previous key, or start without "
                "the state."
            )
        return position

    def observations_of(self, finished: frozenset[str]) -> list[Observation]:
        """
        Return the observations of all finished ranges.

        :param finished: Names of the finished ranges of the last run.
        """
        return [*self.finished, *(seen for seen in self.current if seen.keys.name in finished)]


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
    with database.connect() as connection:
        ranges = cuts.ranges_above(connection, relation, position.mark)
        has_null = position.has_planned_rows_without_key or relation.has_rows_without_key(connection)
    mark = ranges[-1].up_to if ranges else position.mark
    if has_null and not position.has_planned_rows_without_key:
        ranges.append(KeyRange())
    items = (*before.unfinished, *(Item.of(keys.name, 0, "") for keys in ranges))
    return Ledger(items), replace(position, mark=mark, has_planned_rows_without_key=has_null)
