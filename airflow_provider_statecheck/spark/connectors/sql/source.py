"""
A table or a query of a database as a source, cut into key ranges.

The keys above the position are cut into ranges when a run begins; each range is an item, and one Spark task reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require_count
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SourceError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import ItemReader, ItemSplit, Limits
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource, Opening, parse_columns
from airflow_provider_statecheck.spark.connectors.source import OnChange, change_error, restart_or_rewind
from airflow_provider_statecheck.spark.connectors.sql.databases import Address, Database, shown_address
from airflow_provider_statecheck.spark.connectors.sql.relation import (
    Columns,
    KeyRange,
    Relation,
    columns_of_table,
    equal_widths,
    ranges_between,
)
from airflow_provider_statecheck.spark.tables.exact_values import exact_array
from airflow_provider_statecheck.spark.tables.schemas import (
    TaskReader,
    arrow_schema,
    pack_tasks,
    to_struct_type,
)
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.stored_json import decoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection

_ROWS_PER_INCREMENT = 1_000_000


class SqlSource(ItemSource):
    """
    Rows of a database table or query, read in key ranges.

    A run reads the keys that exist at its start; the next run continues above the largest key.

    :param url: An SQLAlchemy URL, ``env:NAME`` for a URL in an environment variable of the driver, or a function that
        returns a URL. Messages and logs never contain it.
    :param table: Name of the table, with a schema prefix if needed.
    :param query: A statement, instead of a table.
    :param key: A sortable column of numbers, dates, times or texts, preferably with an index.
    :param rows_per_increment: Approximate number of rows of one Spark job, by default 1,000,000; counted once at the
        start of a run.
    :param ranges: Number of increments with equal key widths, instead of counting rows.
    :param readers: Number of tasks, each with its own connection, that read an increment.
    :param columns: Columns to read; all by default.
    :param schema: Columns and their types, as a ``StructType`` or DDL; required for a query.
    :param version_column: A column whose value increases with every change of a row, to detect changes of rows that
        were read.
    :param on_change: Policy for such changes: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is invalid, or not exactly one of ``table`` and ``query`` is
        given.
    """

    def __init__(
        self,
        url: Address,
        table: str | None = None,
        *,
        query: str | None = None,
        key: str = "id",
        rows_per_increment: int | None = None,
        ranges: int | None = None,
        readers: int = 4,
        columns: Sequence[str] | None = None,
        schema: Any = None,
        version_column: str | None = None,
        on_change: str = "fail",
    ) -> None:
        _require_one_relation(table, query, schema)
        super().__init__(Limits(items=require_count("readers", readers)), on_change)
        self._address = url
        self._shown = shown_address(url)
        self._table = table
        self._query = None if query is None else query.strip().rstrip(";")
        self._key = key
        self._cuts = _parse_cuts(rows_per_increment, ranges, readers)
        self._names = parse_columns(columns)
        self._schema = schema
        self._version_column = version_column

    def __repr__(self) -> str:
        return f"SqlSource({self._shown!r}, {self._table or 'query'!r})"

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        database = Database.open(self._address)
        ledger = Ledger(()) if opening.before is None else opening.before.ledger
        position = self._position(database, opening)
        relation = self._relation(position.columns)
        observations = position.observations_of(ledger.finished_names)
        watch = Watch(database, relation, self._version_column, self._on_change, observations)
        watch.require_finished_unchanged(restart_or_rewind(ledger, new_run=opening.is_new_run))
        if opening.before is None or opening.is_new_run:
            ledger, position = next_run(database, relation, self._cuts, ledger, position)
        schema = position.columns.select(self._selected_names(position.columns), relation.shown).schema
        return ledger, SqlReader(opening.spark, database, relation, schema, watch, position)

    def _position(self, database: Database, opening: Opening) -> Position:
        given = None if self._schema is None else Columns(to_struct_type(self._schema))
        if opening.before is not None:
            saved = Position.decode(opening.reader_state, self._key)
            known = saved.columns if self._table is None or not opening.is_new_run else self._columns_now(database)
            return replace(saved, columns=given or known)
        return Position(key=self._key, columns=given or self._columns_now(database))

    def _columns_now(self, database: Database) -> Columns:
        wanted = None if self._names is None else [*self._names, *self._internal_names()]
        return columns_of_table(database, str(self._table), wanted)

    def _relation(self, columns: Columns) -> Relation:
        relation = Relation(self._table, self._query, self._key, None)
        known = columns.select([*self._selected_names(columns), *self._internal_names()], relation.shown)
        if self._key in known.casts:
            raise InvalidConfigurationError(
                f"Expected key to be a column of numbers, dates, times or texts, found {self._key!r} of another type; "
                "use another column."
            )
        return replace(relation, schema=arrow_schema(known.schema), casts=known.casts)

    def _internal_names(self) -> list[str]:
        return [self._key, *([self._version_column] if self._version_column else [])]

    def _selected_names(self, columns: Columns) -> tuple[str, ...]:
        return tuple(columns.schema.names) if self._names is None else self._names


def _require_one_relation(table: str | None, query: str | None, schema: Any) -> None:
    if (table is None) == (query is None) or "" in (table, query):
        raise InvalidConfigurationError(
            "Expected a table or a query, found " + ("both." if table and query else "neither.")
        )
    if query is not None and schema is None:
        raise InvalidConfigurationError(
            "Expected a schema for a query, because its result types are unknown before it runs; found none. Give a "
            "StructType, or DDL such as 'id bigint, name string'."
        )


def _parse_cuts(rows_per_increment: int | None, ranges: int | None, readers: int) -> Cuts:
    if rows_per_increment is not None and ranges is not None:
        raise InvalidConfigurationError("Expected rows_per_increment or ranges, found both; set one of them.")
    rows = (
        _ROWS_PER_INCREMENT if rows_per_increment is None else require_count("rows_per_increment", rows_per_increment)
    )
    count = None if ranges is None else require_count("ranges", ranges) * readers
    return Cuts(rows=-(-rows // readers), count=count)


class Watch:
    """
    Observes ranges before and after they are read, and at the start of an attempt.

    :param version_column: Name of the version column; without one nothing is observed.
    :param finished: Observations of finished ranges, in order.
    """

    def __init__(
        self,
        database: Database,
        relation: Relation,
        version_column: str | None,
        on_change: OnChange,
        finished: Iterable[Observation] = (),
    ) -> None:
        self._database = database
        self._relation = relation
        self._version_column = version_column
        self._on_change = on_change
        self.finished = merge_adjacent(finished)
        """Observations of all ranges that earlier attempts have read."""
        self.current: dict[str, Observation] = {}
        """Observations of the ranges that this attempt reads, by the names of the ranges."""

    def require_finished_unchanged(self, remedy: str) -> None:
        """
        Verify that the ranges of earlier attempts have not changed.

        :param remedy: What the user can do, besides ignoring the change.
        :raises SourceChangedError: if rows changed and the policy is ``FAIL``.
        :raises SourceRestartRequiredError: if rows changed and the policy is ``RESTART``.
        """
        now = self._observe([observation.keys for observation in self.finished])
        self._compare(self.finished, now, remedy)
        # An ignored change is not reported again.
        self.finished = now or self.finished

    def require_unchanged(self, ranges: Iterable[KeyRange]) -> None:
        """
        Observe ranges and verify that they have not changed since this attempt observed them first.

        :raises SourceChangedError: if rows changed and the policy is ``FAIL``.
        :raises SourceRestartRequiredError: if rows changed and the policy is ``RESTART``.
        """
        now = self._observe(list(ranges))
        before = [self.current.get(observation.keys.name, observation) for observation in now]
        self.current.update({observation.keys.name: observation for observation in now})
        self._compare(before, now, restart_or_rewind(Ledger(()), new_run=False))

    def _observe(self, ranges: list[KeyRange]) -> list[Observation]:
        if self._version_column is None or not ranges:
            return []
        version = self._version_column
        with self._database.connect() as connection:
            return [Observation(keys, *self._relation.count_and_version(connection, version, keys)) for keys in ranges]

    def _compare(self, before: list[Observation], now: list[Observation], remedy: str) -> None:
        changed = [(old, new) for old, new in zip(before, now, strict=False) if old != new]
        if changed and self._on_change is not OnChange.IGNORE:
            old, new = changed[0]
            raise change_error(
                f"Expected {self._relation.shown} as it was read, found that {old.keys} changed: {old.rows} rows with "
                f"versions up to {old.newest} are now {new.rows} with versions up to {new.newest}",
                f"Set on_change to 'ignore' to continue with the rows as they were read, or {remedy}.",
                self._on_change,
            )


@dataclass(frozen=True, slots=True)
class Observation:
    """Row count and largest version of a key range at one time."""

    keys: KeyRange
    rows: int
    newest: Any

    def merge(self, following: Observation) -> Observation:
        """Return the observation of this range and the adjacent following one."""
        versions = [version for version in (self.newest, following.newest) if version is not None]
        keys = KeyRange(self.keys.above, following.keys.up_to)
        return Observation(keys, self.rows + following.rows, max(versions, default=None))

    def encode(self) -> list[Any]:
        """Return the observation as plain values."""
        return [self.keys.name, self.rows, self.newest]

    @classmethod
    def decode(cls, encoded: list[Any]) -> Observation:
        """Decode an observation from :meth:`encode`."""
        name, rows, newest = encoded
        return cls(KeyRange.of_name(name), rows, newest)


def merge_adjacent(observations: Iterable[Observation]) -> list[Observation]:
    """Merge the observations of adjacent ranges."""
    merged: list[Observation] = []
    for observation in observations:
        end = merged[-1].keys.up_to if merged else None
        if end is not None and observation.keys.up_to is not None and end == observation.keys.above:
            merged[-1] = merged[-1].merge(observation)
        else:
            merged.append(observation)
    return merged


ROWS_PER_BATCH = 10_000


class SqlReader(ItemReader):
    """
    Reads key ranges through Spark.

    :param schema: The columns to read.
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
        reader = RangeReader(
            database=self._database,
            relation=self._relation,
            schema=arrow_schema(self._schema),
            packed_tasks=pack_tasks([split.item.name for split in splits]),
        )
        return reader.frame(self._spark, self._schema)

    @override
    def snapshot(self) -> dict[str, Any]:
        # A copy: other threads observe the ranges that they read.
        current = list(self._watch.current.values())
        return replace(self._position, finished=self._watch.finished, current=current).encode()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RangeReader(TaskReader):
    """Reads key ranges inside Spark tasks."""

    database: Database
    relation: Relation

    @override
    def read_task(self, task: Any) -> Iterator[Any]:
        keys = KeyRange.of_name(task)
        with self.database.connect() as connection:
            statement = self.relation.rows_of(keys, self.schema.names)
            # With a server-side cursor where the database has one, a range need not fit into memory.
            result = connection.execution_options(yield_per=ROWS_PER_BATCH).execute(statement)
            for rows in result.partitions():
                yield self._batch(rows)

    def _batch(self, rows: Sequence[Any]) -> Any:
        columns = zip(*rows, strict=True)
        arrays = [self._array(field, values) for field, values in zip(self.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: Any, values: tuple[Any, ...]) -> Any:
        try:
            return exact_array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SourceError(
                f"Expected values of {field.type} in column {field.name!r} of {self.relation.shown}, found others: "
                f"{error}. Give a schema with a matching type, or cast the values in a query."
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
                f"Expected to continue by the key {position.key!r}, found key={key!r}; set the previous key, or start "
                "without the state."
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
