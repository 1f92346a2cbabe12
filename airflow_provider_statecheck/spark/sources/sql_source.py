"""A table or a query of a database as a source, cut at its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.snapshots.columns import arrow_schema
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    Limits,
    SourceState,
    decode_source_state,
)
from airflow_provider_statecheck.spark.sources.source import require_count
from airflow_provider_statecheck.spark.sources.source_changes import on_change_of
from airflow_provider_statecheck.spark.sources.splits import Ledger
from airflow_provider_statecheck.spark.sources.sql.changed_rows import Watch
from airflow_provider_statecheck.spark.sources.sql.database import Address, Database, open_database, shown_address
from airflow_provider_statecheck.spark.sources.sql.reader import Cuts, Position, SavedPosition, SqlReader, next_run
from airflow_provider_statecheck.spark.sources.sql.relation import Columns, Relation, columns_of_table, given_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS_PER_INCREMENT = 1_000_000


class SqlSource:
    """
    Rows of a database in ranges of a key, each read by a Spark task of its own.

    A run reads the keys that there are when it begins; the next one goes on above the largest of them.

    :param url: A URL of SQLAlchemy, ``env:NAME`` for one in an environment variable of the driver, or a function that
        returns one. It is never shown.
    :param table: The table, with its schema before a dot if it is not the usual one.
    :param query: A statement in place of a table.
    :param key: A column that can be ordered: numbers, days, times or texts, best with an index.
    :param rows_per_increment: About how many rows one Spark job reads; a million by default. Keys are counted once when a
        run begins.
    :param ranges: In place of that: into how many increments of equal width the keys are cut, which counts nothing.
    :param readers: How many tasks, each with a connection of its own, read an increment.
    :param columns: Which columns to read; all by default.
    :param schema: The columns and their types, as a ``StructType`` or DDL; a query needs one.
    :param version_column: A column whose value rises whenever a row changes, by which changes behind what was read are
        noticed.
    :param on_change: What to do if they are: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is out of its range, or there is not one table or query.
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
        self._address = url
        self._shown = shown_address(url)
        self._table = table
        self._query = None if query is None else query.strip().rstrip(";")
        self._key = key
        self._readers = require_count(readers, "readers")
        self._cuts = _cuts(rows_per_increment, ranges, self._readers)
        self._names = None if columns is None else tuple(columns)
        self._schema = schema
        self._version = version_column
        self._on_change = on_change_of(on_change)

    def __repr__(self) -> str:
        return f"SqlSource({self._shown!r}, {self._table or 'query'!r})"

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        Ask for the bounds of the keys and plan what is left of them.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what appeared since is read.
        :param storage_options: Without effect; nothing is read from a filesystem.
        :raises SourceChangedError: if rows that were read have changed.
        :raises SourceRestartRequiredError: if they have and the stage is to begin again.
        :raises SourceError: if the database cannot be read.
        """
        database = open_database(self._address)
        before = None if restored is None else decode_source_state(restored)
        kept = None if before is None else SavedPosition.decode(before.reader, self._key)
        columns = self._columns(database, kept)
        relation = self._relation(columns)
        watch = self._watch(database, relation, kept, before)
        position = Position(self._key) if kept is None else kept.position
        ledger = Ledger(()) if before is None else before.ledger
        if before is None or new_run:
            ledger, position = next_run(database, relation, self._cuts, ledger, position)
        reader = SqlReader(spark, database, relation, columns, self._wanted(columns), watch, position)
        state = SourceState(ledger, 0 if before is None else before.increments)
        return ItemEnumerator(state, Limits(items=self._readers), reader, lambda _: None)

    def _columns(self, database: Database, kept: SavedPosition | None) -> Columns:
        if self._schema is not None:
            return given_columns(self._schema)
        if kept is not None:
            return kept.columns
        needed = [self._key, *([self._version] if self._version else [])]
        wanted = None if self._names is None else [*self._names, *needed]
        return columns_of_table(database, str(self._table), wanted)

    def _relation(self, columns: Columns) -> Relation:
        shown = "the query" if self._table is None else f"table {self._table}"
        names = [*self._wanted(columns), self._key, *([self._version] if self._version else [])]
        known = columns.of(names, shown)
        if self._key in known.casts:
            raise InvalidConfigurationError(
                f"Expected key to be a column of numbers, days, times or texts, found {self._key!r} of another type; take "
                "another column."
            )
        return Relation(self._table, self._query, self._key, arrow_schema(known.schema), known.casts)

    def _wanted(self, columns: Columns) -> tuple[str, ...]:
        return tuple(columns.schema.names) if self._names is None else self._names

    def _watch(
        self, database: Database, relation: Relation, kept: SavedPosition | None, before: SourceState | None
    ) -> Watch:
        finished = frozenset(() if before is None else (before.ledger.items[i].name for i in before.ledger.finished))
        seen = [] if kept is None else kept.seen_of(finished)
        watch = Watch(database, relation, self._version, self._on_change, seen)
        watch.require_finished_unchanged()
        return watch


def _require_one_relation(table: str | None, query: str | None, schema: Any) -> None:
    if (table is None) == (query is None) or "" in (table, query):
        raise InvalidConfigurationError(
            "Expected a table or a query, found " + ("both." if table and query else "neither.")
        )
    if query is not None and schema is None:
        raise InvalidConfigurationError(
            "Expected a schema for a query, because a database does not say before it runs what types it gives; found none. "
            "Give a StructType, or DDL such as 'id bigint, name string'."
        )


def _cuts(rows_per_increment: int | None, ranges: int | None, readers: int) -> Cuts:
    if rows_per_increment is not None and ranges is not None:
        raise InvalidConfigurationError("Expected rows_per_increment or ranges, found both; they cut the same keys.")
    rows = require_count(
        _ROWS_PER_INCREMENT if rows_per_increment is None else rows_per_increment, "rows_per_increment"
    )
    count = None if ranges is None else require_count(ranges, "ranges") * readers
    return Cuts(rows=-(-rows // readers), count=count)
