"""Load Arrow tables into a table of a database, within a transaction that is open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.sinks.sql.tables import CHECKPOINT, LINEAGE
from airflow_provider_statecheck.spark.sinks.sql.values import as_csv, as_rows, numbered

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_STAGED = "statecheck_staged"
_ROW, _PLACE = "_statecheck_row", "_statecheck_place"


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
            return sum(self._copy(connection, self._name(connection), table) for table in tables)
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

    def _copy(self, connection: Connection, target: str, table: Any) -> int:
        quote = connection.dialect.identifier_preparer.quote
        columns = ", ".join(quote(name) for name in table.column_names)
        cursor: Any = connection.connection.cursor()
        cursor.copy_expert(f"COPY {target} ({columns}) FROM STDIN WITH (FORMAT csv)", as_csv(table))
        return int(table.num_rows)

    def _merge(self, connection: Connection, tables: Iterable[Any]) -> int:
        staged = self._staged_table()
        connection.execute(_text(f"DROP TABLE IF EXISTS {_STAGED}"))
        staged.create(connection)
        rows = 0
        for table in tables:
            rows += self._copy(connection, _STAGED, numbered(table, _ROW, rows))
        connection.execute(self._upsert(staged))
        staged.drop(connection)
        return rows

    def _upsert(self, staged: Table) -> Any:
        from sqlalchemy import func, select
        from sqlalchemy.dialects.postgresql import insert

        names = [column.name for column in self.table.columns]
        keys = [staged.c[name] for name in self.keys]
        place = func.row_number().over(partition_by=keys, order_by=staged.c[_ROW].desc()).label(_PLACE)
        ranked = select(*(staged.c[name] for name in names), place).subquery()
        newest = select(*(ranked.c[name] for name in names)).where(ranked.c[_PLACE] == 1)
        statement = insert(self.table).from_select(names, newest)
        return statement.on_conflict_do_update(index_elements=list(self.keys), set_=self._replaced(statement.excluded))

    def _staged_table(self) -> Table:
        from sqlalchemy import BigInteger, Column, MetaData, Table

        columns = [Column(column.name, column.type) for column in self.table.columns]
        return Table(_STAGED, MetaData(), *columns, Column(_ROW, BigInteger), prefixes=["TEMPORARY"])

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

    def _name(self, connection: Connection) -> str:
        return connection.dialect.identifier_preparer.format_table(self.table)


def _text(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)
