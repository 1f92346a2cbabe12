"""A table in a database of its own, and the attempts that write to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, text

from airflow_provider_statecheck.spark.connectors.sql.loading import COMMITS, HEADS
from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink
from airflow_provider_statecheck.testing.sink_contract import SinkAttempt

TABLE = "balances"


@dataclass(frozen=True)
class Place:
    url: str
    folder: Path

    def sink(self, table: str = TABLE, **settings: Any) -> SqlSink:
        return SqlSink(self.url, table, staging=str(self.folder / "staging"), **settings)

    def attempt(self, epoch: int, *, settings: dict[str, Any] | None = None, **context: Any) -> SinkAttempt:
        return SinkAttempt(self.sink(**(settings or {})), epoch, **context)

    def open(self, epoch: int, **context: Any) -> SinkAttempt:
        return self.attempt(epoch, **context).open()

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def staged(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "staging").rglob("*.staged"))

    @contextmanager
    def connection(self) -> Iterator[Any]:
        with create_engine(self.url, poolclass=NullPool).begin() as connection:
            yield connection

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connection() as connection:
            found = connection.execute(text(statement))
            return [tuple(row) for row in found] if found.returns_rows else []

    def run_alone(self, statement: str) -> None:
        """Run a statement that no transaction may have, such as the creation of a database."""
        with create_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text(statement))

    def rows(self, columns: str = "key, name", table: str = TABLE) -> list[tuple[Any, ...]]:
        return sorted(self.run(f"SELECT {columns} FROM {table}"))

    @property
    def seen(self) -> list[int]:
        return [key for (key,) in self.rows("key")]

    @property
    def commits(self) -> list[tuple[int, int, int]]:
        return sorted(self.run(f"SELECT generation, checkpoint_id, row_count FROM {COMMITS}"))

    def clear(self) -> None:
        for name in (TABLE, HEADS, COMMITS):
            self.run(f"DROP TABLE IF EXISTS {name}")
