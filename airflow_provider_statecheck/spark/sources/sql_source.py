"""A table or a query of a database as a source, cut into key ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.enumerator import ItemReader
from airflow_provider_statecheck.spark.sources.item_source import ItemSource, Opening, parse_columns
from airflow_provider_statecheck.spark.sources.planning import Limits, require_count
from airflow_provider_statecheck.spark.sources.sql.reader import Cuts, Position, SqlReader, Watch, next_run
from airflow_provider_statecheck.spark.sources.sql.relation import Columns, Relation, columns_of_table
from airflow_provider_statecheck.spark.tables.databases import Address, Database, open_database, shown_address
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema, to_struct_type
from airflow_provider_statecheck.state.source_items import Ledger

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
        super().__init__(Limits(items=require_count(readers, "readers")), on_change)
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
        database = open_database(self._address)
        ledger = Ledger(()) if opening.before is None else opening.before.ledger
        position = self._position(database, opening)
        relation = self._relation(position.columns)
        observations = position.observations_of(ledger.finished_names)
        watch = Watch(database, relation, self._version_column, self._on_change, observations)
        watch.require_finished_unchanged()
        if opening.before is None or opening.is_new_run:
            ledger, position = next_run(database, relation, self._cuts, ledger, position)
        schema = position.columns.select(self._selected_names(position.columns), relation.shown).schema
        return ledger, SqlReader(opening.spark, database, relation, schema, watch, position)

    def _position(self, database: Database, opening: Opening) -> Position:
        given = None if self._schema is None else Columns(to_struct_type(self._schema))
        if opening.before is not None:
            saved = Position.decode(opening.reader_state, self._key)
            return saved if given is None else replace(saved, columns=given)
        wanted = None if self._names is None else [*self._names, *self._internal_names()]
        return Position(key=self._key, columns=given or columns_of_table(database, str(self._table), wanted))

    def _relation(self, columns: Columns) -> Relation:
        relation = Relation(self._table, self._query, self._key, None)
        known = columns.select([*self._selected_names(columns), *self._internal_names()], relation.shown)
        if self._key in known.casts:
            raise InvalidConfigurationError(
                f"Expected key to be a column of numbers, dates, times or texts, found {self._key!r} of another type; use "
                "another column."
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
