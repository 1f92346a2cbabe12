"""Tables for sources of a database, and what a source reads of them without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from airflow_provider_statecheck.spark.connectors.sql.source import RangeReader

Rows = list[dict[str, Any]]


class Table:
    """One table of a database."""

    def __init__(self, url: str, *columns: sa.Column[Any], name: str = "orders") -> None:
        self.url = url
        self.name = name
        self.table = sa.Table(name, sa.MetaData(), *columns)
        self._do(lambda connection: self.table.drop(connection, checkfirst=True))
        self._do(lambda connection: self.table.create(connection))

    def add(self, *rows: Mapping[str, Any]) -> None:
        self._do(lambda connection: connection.execute(self.table.insert(), [dict(row) for row in rows]))

    def add_keys(self, keys: Iterable[Any]) -> None:
        self.add(*({"id": key} for key in keys))

    def execute(self, statement: str) -> None:
        """Change rows."""
        self._do(lambda connection: connection.execute(sa.text(statement)))

    def drop(self) -> None:
        """Remove the table."""
        self._do(lambda connection: self.table.drop(connection))

    def _do(self, action: Callable[[sa.Connection], Any]) -> None:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            action(connection)


def without_spark(monkeypatch: Any) -> None:
    """Let sources read in this process, each range as its task would."""

    def frame(reader: RangeReader, *_: Any) -> list[Rows]:
        return [_rows(reader.read_task(task)) for task in reader.tasks]

    monkeypatch.setattr(RangeReader, "frame", frame)


def _rows(batches: Iterable[Any]) -> Rows:
    return [row for batch in batches for row in pa.Table.from_batches([batch]).to_pylist()]


def increments(enumerator: Any) -> list[list[Rows]]:
    """Return the rows of each range of all increments that are left, finished."""
    found = []
    for increment in iter(enumerator.next_increment, None):
        found.append(enumerator.load(increment))
        enumerator.require_unchanged(increment)
        enumerator.finish(increment)
    return found


def keys_of(found: list[list[Rows]], name: str = "id") -> list[Any]:
    """Return the keys of all rows in the order in which they were read."""
    return [row[name] for increment in found for rows in increment for row in rows]
