"""A table of a database as the destination of a two-phase commit: rows and log change in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.sinks.committable import Committable, decode_schema
from airflow_provider_statecheck.spark.sinks.sql.database import SinkDatabase
from airflow_provider_statecheck.spark.sinks.sql.loading import RowLoader
from airflow_provider_statecheck.spark.sinks.sql.preparing import make_tables, require_fitting
from airflow_provider_statecheck.spark.sinks.sql.staged_rows import staged_rows
from airflow_provider_statecheck.spark.sinks.sql.tables import (
    CHECKPOINT,
    LINEAGE,
    TableName,
    commits_table,
    heads_table,
    output_table,
)
from airflow_provider_statecheck.spark.sinks.sql.values import with_constants
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.spark.sinks.two_phase_commit.commit_log import CommitLog
from airflow_provider_statecheck.spark.sinks.two_phase_commit.commit_range import CommitRange
from airflow_provider_statecheck.spark.sinks.two_phase_commit.destination import LogChange, Publication

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlDestination:
    """
    What one sink has in a table.

    :param files: Where tasks stage rows; names the lineage.
    :param keys: By which rows replace others; empty if they do not.
    :param marks_rows: Whether rows say who made them.
    """

    database: SinkDatabase
    table: TableName
    files: TargetFiles
    keys: Sequence[str]
    marks_rows: bool
    job_name: str
    uid: str

    @property
    def name(self) -> str:
        """The table, fit to be shown."""
        return f"table {self.table} of {self.database.shown}"

    def prepare(self, columns: Any) -> None:
        """
        Make the tables where they are missing, and look at those that are there.

        :param columns: Arrow schema of the output; ``None`` if it is not known.
        :raises UnsupportedStateError: if the table cannot take the output.
        """
        make_tables(self.database, (self._heads, self._commits))
        if columns is not None:
            table = self._output(columns)
            make_tables(self.database, (table,))
            require_fitting(self.database, table, self.keys)

    def load(self, epoch: int) -> CommitLog:
        """Return the log; that of a sink which never wrote is empty."""
        return self.log_of(self.files.lineage)

    def log_of(self, lineage: str) -> CommitLog:
        """Return the log of any sink of the table; that of a sink which never wrote is empty."""
        from sqlalchemy import select

        heads = self._heads
        wanted = (heads.c.lineage == lineage, heads.c.table_name == self.table.name)
        with self.database.transaction() as connection:
            found = connection.execute(select(heads.c.log).where(*wanted)).scalar()
        return (
            CommitLog()
            if found is None
            else CommitLog.decode(found, f"{self._heads.fullname} of {self.database.shown}")
        )

    def apply(self, epoch: int, change: LogChange) -> bool:
        """Change log and rows in one transaction, unless the log is another one than before."""
        with self.database.transaction() as connection:
            # First the log: whoever comes at the same time waits here, and then finds another one.
            if not self._swap(connection, epoch, change):
                return False
            for each in change.retracted:
                self._retract(connection, each)
            if change.publication is not None:
                self._publish(connection, change.publication)
        return True

    def _swap(self, connection: Connection, epoch: int, change: LogChange) -> bool:
        from sqlalchemy import update

        before = change.before.encode()
        statement = update(self._heads).where(*self._mine(self._heads), self._heads.c.log == before)
        done = connection.execute(statement.values(log=change.after.encode(), epoch=epoch))
        return done.rowcount == 1 or (change.before == CommitLog() and self._begin(connection, epoch, change))

    def _begin(self, connection: Connection, epoch: int, change: LogChange) -> bool:
        insert = _insert_for(connection)
        values = {"job_name": self.job_name, "uid": self.uid, "epoch": epoch, "log": change.after.encode()}
        statement = insert(self._heads).values(**self._key(), **values).on_conflict_do_nothing()
        return bool(connection.execute(statement).rowcount == 1)

    def _retract(self, connection: Connection, gone: CommitRange) -> None:
        from sqlalchemy import column, delete, table

        rows = table(self.table.name, column(LINEAGE), column(CHECKPOINT), schema=self.table.schema)
        connection.execute(
            delete(rows).where(rows.c[LINEAGE] == self.files.lineage, rows.c[CHECKPOINT].between(gone.first, gone.last))
        )
        commits = self._commits
        connection.execute(
            delete(commits).where(*self._mine(commits), commits.c.checkpoint_id.between(gone.first, gone.last))
        )

    def _publish(self, connection: Connection, publication: Publication) -> None:
        from sqlalchemy import insert

        rows = 0
        for columns, committables in _by_schema(publication.committables):
            loader = RowLoader(self._output(decode_schema(columns)), self.keys)
            rows += loader.load(connection, self._rows(committables, publication.checkpoint_id))
        connection.execute(
            insert(self._commits).values(
                **self._key(),
                generation=publication.generation,
                checkpoint_id=publication.checkpoint_id,
                epoch=publication.epoch,
                row_count=rows,
            )
        )

    def _rows(self, committables: Iterable[Committable], checkpoint_id: int) -> Iterator[Any]:
        marks = {LINEAGE: self.files.lineage, CHECKPOINT: checkpoint_id} if self.marks_rows else {}
        for committable in committables:
            for table in staged_rows(self.files, committable):
                yield with_constants(table, **marks)

    def _output(self, columns: Any) -> Table:
        return output_table(
            self.table, columns, keys=self.keys, marks_rows=self.marks_rows, is_sqlite=self.database.is_sqlite
        )

    @property
    def _heads(self) -> Table:
        return heads_table(self.table.schema)

    @property
    def _commits(self) -> Table:
        return commits_table(self.table.schema)

    def _key(self) -> dict[str, str]:
        return {"lineage": self.files.lineage, "table_name": self.table.name}

    def _mine(self, table: Table) -> list[Any]:
        return [table.c[name] == value for name, value in self._key().items()]


def _by_schema(committables: Sequence[Committable]) -> list[tuple[str, list[Committable]]]:
    schemas = dict.fromkeys(each.schema for each in committables)
    return [(schema, [each for each in committables if each.schema == schema]) for schema in schemas]


def _insert_for(connection: Connection) -> Any:
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert
    from sqlalchemy.dialects.postgresql import insert

    return insert
