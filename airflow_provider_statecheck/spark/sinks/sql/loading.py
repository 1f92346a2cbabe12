"""Load Arrow tables into a table of a database, within a transaction that is open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.sinks.sql.tables import CHECKPOINT, LINEAGE, PLACE, ROW
from airflow_provider_statecheck.spark.sinks.sql.values import as_csv, as_rows, numbered

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_TEMPORARY, _STAGED = "pg_temp", "statecheck_staged"


@dataclass(frozen=True, slots=True)
class RowLoader:
    """
    Adds rows to a table, or replaces those with the same keys.

    :param table: The table, with the columns of the rows.
    :param keys: By which rows replace others; empty if they do not.
    """

    table: Table
    keys: Sequence[str]

    def load(self, connection: Connection, tables: Iterable[Any]) -> int:
        """
        Load Arrow tables with the columns of the table; of rows with the same keys the last one stays.

        :return: How many rows there were.
        """
        if connection.dialect.name == "sqlite":
            return sum(self._insert(connection, table) for table in tables if table.num_rows)
        if not self.keys:
            return sum(self._copy(connection, self.table, table) for table in tables)
        return self._merge(connection, tables)

    def _insert(self, connection: Connection, table: Any) -> int:
        from sqlalchemy.dialects.sqlite import insert

        statement: Any = insert(self.table)
        if self.keys:
            statement = statement.on_conflict_do_update(
                index_elements=list(self.keys), set_=self._replaced(statement.excluded)
            )
        connection.execute(statement, as_rows(table))
        return int(table.num_rows)

    def _copy(self, connection: Connection, target: Table, table: Any) -> int:
        names = plain_names()
        columns = ", ".join(names.quote(name) for name in table.column_names)
        into = f"COPY {names.format_table(target)} ({columns}) FROM STDIN"
        cursor: Any = connection.connection.cursor()
        cursor.copy_expert(f"{into} WITH (FORMAT csv, ENCODING 'UTF8')", as_csv(table))
        return int(table.num_rows)

    def _merge(self, connection: Connection, tables: Iterable[Any]) -> int:
        staged = self._staged_table()
        connection.execute(_text(f"DROP TABLE IF EXISTS {_TEMPORARY}.{_STAGED}"))
        self._make_staged(connection)
        rows = 0
        for table in tables:
            rows += self._copy(connection, staged, numbered(table, ROW, rows))
        connection.execute(self._upsert(staged))
        staged.drop(connection)
        return rows

    def _upsert(self, staged: Table) -> Any:
        from sqlalchemy import func, select
        from sqlalchemy.dialects.postgresql import insert

        names = [column.name for column in self.table.columns]
        keys = [staged.c[name] for name in self.keys]
        place = func.row_number().over(partition_by=keys, order_by=staged.c[ROW].desc()).label(PLACE)
        ranked = select(*(staged.c[name] for name in names), place).subquery()
        newest = select(*(ranked.c[name] for name in names)).where(ranked.c[PLACE] == 1)
        # Whoever replaces the same rows locks them in the same order, so that neither waits for the other for ever.
        newest = newest.order_by(*(ranked.c[name] for name in self.keys))
        statement = insert(self.table).from_select(names, newest)
        return statement.on_conflict_do_update(index_elements=list(self.keys), set_=self._replaced(statement.excluded))

    def _make_staged(self, connection: Connection) -> None:
        # With the types of the table that is there, whose values convert to nothing else, and are equal as they are there.
        names = plain_names()
        columns = ", ".join(names.quote(column.name) for column in self.table.columns)
        rows = f"SELECT {columns}, CAST(0 AS BIGINT) AS {ROW} FROM {names.format_table(self.table)}"  # noqa: S608 - names, quoted
        cursor: Any = connection.connection.cursor()
        cursor.execute(f"CREATE TEMPORARY TABLE {_STAGED} AS {rows} WITH NO DATA")

    def _staged_table(self) -> Table:
        from sqlalchemy import Column, MetaData, Table

        columns: list[Column[Any]] = [Column(column.name) for column in self.table.columns]
        return Table(_STAGED, MetaData(), *columns, Column(ROW), schema=_TEMPORARY)

    def _replaced(self, excluded: Any) -> dict[str, Any]:
        marks = {LINEAGE, CHECKPOINT}
        names = [c.name for c in self.table.columns if c.name not in marks and c.name not in self.keys]
        replaced = {name: excluded[name] for name in names}
        if LINEAGE in self.table.c:
            replaced |= self._kept_marks(excluded)
        return replaced or {self.keys[0]: excluded[self.keys[0]]}

    def _kept_marks(self, excluded: Any) -> dict[str, Any]:
        # They name who made the row, as long as nobody else wrote to it; only such a row may ever be taken back.
        from sqlalchemy import case, null

        is_ours = self.table.c[LINEAGE] == excluded[LINEAGE]
        return {name: case((is_ours, self.table.c[name]), else_=null()) for name in (LINEAGE, CHECKPOINT)}


def plain_names() -> Any:
    """Return what quotes names for statements that go to psycopg2 without parameters, where a ``%`` is not doubled."""
    from sqlalchemy.dialects import postgresql

    dialect: Any = postgresql.dialect
    return dialect(paramstyle="named").identifier_preparer


def _text(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)
