"""Reading key ranges in Spark tasks, in one run and across runs."""

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
from airflow_provider_statecheck.spark.sources.splits import Item, Ledger
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection


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


@dataclass(frozen=True, slots=True)
class Position:
    """How far runs have come, beside the ranges of the current one."""

    key: str
    mark: Any = None
    """The largest key that any run planned; ``None`` before there was a row."""
    has_planned_rows_without_key: bool = False

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"key": self.key, "mark": self.mark, "null": self.has_planned_rows_without_key}


@dataclass(frozen=True, slots=True)
class SavedPosition:
    """What an earlier attempt kept."""

    position: Position
    columns: Columns
    finished: Sequence[Observation]
    current: Sequence[Observation]

    @classmethod
    def decode(cls, state: Mapping[str, Any] | None, key: str) -> SavedPosition:
        """
        Return what :meth:`SqlReader.snapshot` gave.

        :raises InvalidConfigurationError: if it was by another key.
        :raises CorruptStateError: if it is something else.
        """
        try:
            kept = _decoded(state or {})
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(f"Expected the position of a source in a database, found {error!r}.") from error
        if kept.position.key != key:
            raise InvalidConfigurationError(
                f"Expected to go on by the key {kept.position.key!r}, found key={key!r}; take the key of the attempt before, "
                "or start over."
            )
        return kept

    def seen_of(self, finished: frozenset[str]) -> list[Observation]:
        """
        Return what was seen of all that is finished.

        :param finished: The names of ranges of the last run that are.
        """
        return [*self.finished, *(seen for seen in self.current if seen.keys.name in finished)]


class SqlReader:
    """
    Reads ranges through Spark.

    :param columns: All that is known of the relation.
    :param names: The columns that are read.
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
        Look at ranges again, if there is a version to look at.

        :raises SourceChangedError: if rows changed since the look before.
        """
        self._watch.require_unchanged(KeyRange.of_name(item.name) for item in items)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        ranges = [KeyRange.of_name(split.item.name) for split in splits if split.item]
        schema = self._columns.of(self._names, self._relation.shown).schema
        return load_ranges(self._spark, self._database, self._relation, schema, ranges)

    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to go on."""
        return {
            **self._position.encode(),
            "columns": self._columns.encode(),
            "finished": encode_observations(self._watch.finished),
            "current": encode_observations(self._watch.current.values()),
        }


def _decoded(state: Mapping[str, Any]) -> SavedPosition:
    return SavedPosition(
        Position(str(state["key"]), state["mark"], bool(state["null"])),
        Columns.decode(state["columns"]),
        decode_observations(state, "finished"),
        decode_observations(state, "current"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How keys are cut into ranges, of which each is read by a task."""

    rows: int
    """How many rows a range has."""
    count: int | None
    """How many ranges of equal width there are in place of that."""

    def ranges_above(self, connection: Connection, relation: Relation, above: Any) -> list[KeyRange]:
        """
        Return ranges of all keys above one.

        :raises InvalidConfigurationError: if keys of this type have no width.
        """
        lowest, highest = relation.bounds(connection, above)
        if highest is None:
            return []
        if self.count is not None:
            return ranges_between(above, equal_widths(lowest, highest, self.count))
        return ranges_between(above, [*relation.every(connection, self.rows, KeyRange(above, highest)), highest])


def next_run(
    database: Database, relation: Relation, cuts: Cuts, before: Ledger, position: Position
) -> tuple[Ledger, Position]:
    """
    Return what a run reads, and how far runs have come with it.

    :param before: What the run before read, and how much of it is finished.
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
