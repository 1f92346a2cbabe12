"""A table or a query of a database as a source, cut into key ranges."""

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
from airflow_provider_statecheck.spark.sources.source_changes import parse_on_change
from airflow_provider_statecheck.spark.sources.sql.changed_rows import Watch
from airflow_provider_statecheck.spark.sources.sql.database import Address, Database, open_database, shown_address
from airflow_provider_statecheck.spark.sources.sql.reader import Cuts, Position, SavedPosition, SqlReader, next_run
from airflow_provider_statecheck.spark.sources.sql.relation import (
    Columns,
    Relation,
    columns_of_schema,
    columns_of_table,
)
from airflow_provider_statecheck.state.source_items import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS_PER_INCREMENT = 1_000_000


class SqlSource:
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
        self._address = url
        self._shown = shown_address(url)
        self._table = table
        self._query = None if query is None else query.strip().rstrip(";")
        self._key = key
        self._readers = require_count(readers, "readers")
        self._cuts = _parse_cuts(rows_per_increment, ranges, self._readers)
        self._names = None if columns is None else tuple(columns)
        self._schema = schema
        self._version_column = version_column
        self._on_change = parse_on_change(on_change)

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
        Query the bounds of the keys and plan the unfinished ranges.

        :param spark: The session that reads.
        :param restored: State from :meth:`ItemEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: ``True`` if a new run continues from the state of an earlier run and also reads new rows.
        :param storage_options: Unused; the source reads no files.
        :raises SourceChangedError: if rows that were read have changed.
        :raises SourceRestartRequiredError: if so and ``on_change`` is ``"restart"``.
        :raises SourceError: if the database cannot be read.
        """
        database = open_database(self._address)
        before = None if restored is None else decode_source_state(restored)
        saved = None if before is None else SavedPosition.decode(before.reader, self._key)
        columns = self._columns(database, saved)
        relation = self._relation(columns)
        watch = self._watch(database, relation, saved, before)
        position = Position(self._key) if saved is None else saved.position
        ledger = Ledger(()) if before is None else before.ledger
        if before is None or new_run:
            ledger, position = next_run(database, relation, self._cuts, ledger, position)
        reader = SqlReader(spark, database, relation, columns, self._selected_names(columns), watch, position)
        state = SourceState(ledger, 0 if before is None else before.increments)
        return ItemEnumerator(state, Limits(items=self._readers), reader, lambda _: None)

    def _columns(self, database: Database, saved: SavedPosition | None) -> Columns:
        if self._schema is not None:
            return columns_of_schema(self._schema)
        if saved is not None:
            return saved.columns
        selected = None if self._names is None else [*self._names, *self._internal_names()]
        return columns_of_table(database, str(self._table), selected)

    def _relation(self, columns: Columns) -> Relation:
        shown = "the query" if self._table is None else f"table {self._table}"
        names = [*self._selected_names(columns), *self._internal_names()]
        known = columns.select(names, shown)
        if self._key in known.casts:
            raise InvalidConfigurationError(
                f"Expected key to be a column of numbers, dates, times or texts, found {self._key!r} of another type; use "
                "another column."
            )
        return Relation(self._table, self._query, self._key, arrow_schema(known.schema), known.casts)

    def _internal_names(self) -> list[str]:
        return [self._key, *([self._version_column] if self._version_column else [])]

    def _selected_names(self, columns: Columns) -> tuple[str, ...]:
        return tuple(columns.schema.names) if self._names is None else self._names

    def _watch(
        self, database: Database, relation: Relation, saved: SavedPosition | None, before: SourceState | None
    ) -> Watch:
        finished = frozenset(() if before is None else (before.ledger.items[i].name for i in before.ledger.finished))
        observations = [] if saved is None else saved.observations_of(finished)
        watch = Watch(database, relation, self._version_column, self._on_change, observations)
        watch.require_finished_unchanged()
        return watch


def _require_one_relation(table: str | None, query: str | None, schema: Any) -> None:
    if (table is None) == (query is None) or "" in (table, query):
        raise InvalidConfigurationError(
            "Expected a table or a query, found " + ("both." if table and query else "neither.")
        )
    if query is not None and schema is None:
        raise InvalidConfigurationError(
            "Expected a schema for a query, because its result types are unknown before it runs; found none. Give a StructType, "
            "or DDL such as 'id bigint, name string'."
        )


def _parse_cuts(rows_per_increment: int | None, ranges: int | None, readers: int) -> Cuts:
    if rows_per_increment is not None and ranges is not None:
        raise InvalidConfigurationError("Expected rows_per_increment or ranges, found both; set one of them.")
    rows = require_count(
        _ROWS_PER_INCREMENT if rows_per_increment is None else rows_per_increment, "rows_per_increment"
    )
    count = None if ranges is None else require_count(ranges, "ranges") * readers
    return Cuts(rows=-(-rows // readers), count=count)
