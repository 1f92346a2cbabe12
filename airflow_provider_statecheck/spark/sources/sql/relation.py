"""What is read of a database: a table or a query, its columns, and the statements about ranges of its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.sources.sql.column_types import sql_type
from airflow_provider_statecheck.spark.sources.sql.key_ranges import KeyRange

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, FromClause, Select


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a query whose rows have a key."""

    table: str | None
    """With its schema before a dot, if it has one."""
    query: str | None
    key: str
    schema: Any
    """Arrow schema of all columns that matter, the key with them."""
    casts: tuple[str, ...] = ()
    """Columns that the database gives as text."""

    @property
    def shown(self) -> str:
        """Return what messages call it."""
        return "the query" if self.table is None else f"table {self.table}"

    def rows_of(self, keys: KeyRange, names: list[str]) -> Select[Any]:
        """Return the statement that reads columns of a range."""
        from sqlalchemy import Text, cast, select

        rows = self._from()
        columns = [cast(rows.c[name], Text).label(name) if name in self.casts else rows.c[name] for name in names]
        return select(*columns).where(self._within(rows, keys))

    def bounds(self, connection: Connection, above: Any) -> tuple[Any, Any]:
        """Return the smallest and the largest key above one, ``None`` where there is no row."""
        from sqlalchemy import func, select

        rows = self._from()
        key = rows.c[self.key]
        statement: Select[Any] = select(func.min(key), func.max(key))
        lowest, highest = connection.execute(statement if above is None else statement.where(key > above)).one()
        return lowest, highest

    def has_rows_without_key(self, connection: Connection) -> bool:
        """Tell whether there are rows whose key is null."""
        from sqlalchemy import literal_column, select

        rows = self._from()
        statement: Select[Any] = (
            select(literal_column("1")).select_from(rows).where(rows.c[self.key].is_(None)).limit(1)
        )
        return connection.execute(statement).first() is not None

    def every(self, connection: Connection, count: int, keys: KeyRange) -> list[Any]:
        """Return each key of a range that so many rows, or a multiple of it, lie up to."""
        from sqlalchemy import func, select

        rows = self._from()
        key = rows.c[self.key]
        place = func.row_number().over(order_by=key).label("place")
        numbered = select(key.label("key"), place).where(self._within(rows, keys)).subquery()
        statement = select(numbered.c.key).where(numbered.c.place % count == 0).order_by(numbered.c.place)
        return list(connection.execute(statement).scalars())

    def observed(self, connection: Connection, version: str, keys: KeyRange) -> tuple[int, Any]:
        """Return how many rows a range has and their largest version."""
        from sqlalchemy import func, select

        rows = self._from()
        statement = select(func.count(), func.max(rows.c[version])).where(self._within(rows, keys))
        count, newest = connection.execute(statement).one()
        return int(count), newest

    def _within(self, rows: FromClause, keys: KeyRange) -> ColumnElement[bool]:
        key = rows.c[self.key]
        if keys.up_to is None:
            return key.is_(None)
        up_to: ColumnElement[bool] = key <= keys.up_to
        return up_to if keys.above is None else (key > keys.above) & up_to

    def _from(self) -> FromClause:
        from sqlalchemy import column, table, text

        columns = [column(field.name, sql_type(field.type)) for field in self.schema]
        if self.query is not None:
            # No colon of the user's begins the name of a parameter.
            return text(self.query.replace(":", r"\:")).columns(*columns).subquery("given")
        schema, _, name = str(self.table).rpartition(".")
        return table(name, *columns, schema=schema or None)
