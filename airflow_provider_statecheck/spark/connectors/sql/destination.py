"""
Table of a SQL database as the destination of a two-phase commit.

The rows and the commit log change in one transaction of the database.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import (
    CommitLog,
    CommitRange,
    LogChange,
    Publication,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.committer import CommitDestination, other_output_error
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import (
    TargetFiles,
    delete_after_commit,
    sweep_staged,
)
from airflow_provider_statecheck.spark.connectors.limits import TargetLimits
from airflow_provider_statecheck.spark.connectors.sink import (
    CHECKPOINT,
    LINEAGE,
    Committable,
    SinkContext,
    decode_schema,
    with_constants,
)
from airflow_provider_statecheck.spark.connectors.sql.databases import SinkDatabase
from airflow_provider_statecheck.spark.connectors.sql.limits import DatabaseLimits, table_limits
from airflow_provider_statecheck.spark.connectors.sql.loading import (
    RowLoader,
    TableName,
    commits_table,
    heads_table,
    output_table,
    staged_rows,
)
from airflow_provider_statecheck.spark.connectors.sql.table_checks import (
    columns_of,
    require_fitting,
    require_log_tables,
)
from airflow_provider_statecheck.spark.tables.schemas import required_columns

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlDestination(CommitDestination):
    """
    Output and commit log of one sink in a table.

    :param files: Files of the staging directory, with the lineage of the sink.
    :param keys: Key columns for upserts; empty for inserts.
    :param marks_rows: Whether two columns record the sink and the checkpoint of each row.
    """

    database: SinkDatabase
    table: TableName
    files: TargetFiles
    keys: Sequence[str]
    marks_rows: bool
    context: SinkContext

    @property
    @override
    def name(self) -> str:
        return f"table {self.table} of {self.database.shown}"

    def prepare(self) -> TargetLimits:
        """
        Create missing tables, and check existing ones.

        :return: What the table cannot hold; without columns of the output nothing is known of it.
        :raises UnfitOutputError: if the table cannot store the output.
        """
        schema, marks = self.context.schema, (LINEAGE, CHECKPOINT) if self.marks_rows else ()
        names = () if schema is None else (*schema.names, *marks)
        with self.database.transaction() as connection:
            limits = DatabaseLimits.of(connection)
            limits.require_names(self.table, names, self.database.shown, is_upserted=bool(self.keys))
        # The types of the output decide whether the sink writes anything.
        table = None if schema is None else self._output(schema, marks_rows=self.marks_rows)
        create_tables(self.database, (self._heads, self._commits))
        require_log_tables(self.database, self._heads, self._commits, retracts=self.marks_rows)
        # Tasks know no more of the database than the name of the table.
        shown, keys = f"the table {self.table}", tuple(self.keys)
        if schema is None or table is None:
            return TargetLimits(target=shown, keys=keys)
        create_tables(self.database, (table,))
        require_fitting(self.database, table, keys, required_columns(schema))
        self._warn_if_emptied(table)
        with self.database.transaction() as connection:
            return table_limits(connection, table, schema, target=shown, keys=keys)

    @override
    def load(self, epoch: int) -> CommitLog:
        return self.log_of(self.files.lineage)

    @override
    def log_of(self, lineage: str) -> CommitLog:
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

    @override
    def require_retractable(self, ranges: Sequence[CommitRange]) -> None:
        """Do nothing: marked rows can be deleted, and the log records which rows are marked."""

    @override
    def require_same(self, committed: Publication) -> None:
        from sqlalchemy import select

        commits, rows = self._commits, sum(file.rows for file in committed.files)
        wanted = select(commits.c.row_count).where(
            *self._is_own(commits),
            commits.c.generation == committed.generation,
            commits.c.checkpoint_id == committed.checkpoint_id,
        )
        with self.database.transaction() as connection:
            known = connection.execute(wanted).scalar()
        if known is not None and known != rows:
            raise other_output_error(
                committed, self.name, f"{counted(rows, 'row')} and {counted(known, 'committed row')}"
            )

    @override
    def apply(self, epoch: int, change: LogChange) -> StateCheckError | None:
        with self.database.transaction() as connection:
            # Updating the log first blocks concurrent attempts, which then find a changed log.
            if not self._replace_log(connection, epoch, change):
                return StorageError(f"Expected the log of {self.name} as it was read, found a concurrent change.")
            for each in change.retracted:
                self._retract(connection, each)
            if change.publication is not None:
                self._publish(connection, change.publication)
        if change.publication is not None:
            delete_after_commit(self.files, change.publication)
        return None

    @override
    def sweep(self, epoch: int, last_epoch: int) -> None:
        sweep_staged(self.files, last_epoch)

    def _warn_if_emptied(self, table: Table) -> None:
        from sqlalchemy import exists, select

        if self.context.restored_checkpoint_id is None:
            return
        commits = self._commits
        wanted = select(exists().where(*self._is_own(commits), commits.c.row_count > 0), exists().select_from(table))
        try:
            with self.database.transaction() as connection:
                has_committed, has_rows = connection.execute(wanted).one()
        except StateCheckError as error:
            # A user who may only add rows cannot read them, and a database that fails does so again.
            log.info("%s is not searched for rows: %s", self.name, error)
            return
        if has_committed and not has_rows:
            log.warning(
                "%s has no rows, although earlier checkpoints have added some: it was recreated or emptied", self.name
            )

    def _replace_log(self, connection: Connection, epoch: int, change: LogChange) -> bool:
        from sqlalchemy import update

        before = change.before.encode()
        statement = update(self._heads).where(*self._is_own(self._heads), self._heads.c.log == before)
        done = connection.execute(statement.values(log=change.after.encode(), epoch=epoch))
        return done.rowcount == 1 or (change.before == CommitLog() and self._insert_log(connection, epoch, change))

    def _insert_log(self, connection: Connection, epoch: int, change: LogChange) -> bool:
        insert = _insert_for(connection)
        owner = {"job_name": self.context.job_name, "uid": self.context.uid, "epoch": epoch}
        values = {**self._key(), **owner, "log": change.after.encode()}
        statement = insert(self._heads).values(values).on_conflict_do_nothing()
        return bool(connection.execute(statement).rowcount == 1)

    def _retract(self, connection: Connection, retracted: CommitRange) -> None:
        from sqlalchemy import column, delete, table

        rows = table(self.table.name, column(LINEAGE), column(CHECKPOINT), schema=self.table.schema)
        connection.execute(
            delete(rows).where(
                rows.c[LINEAGE] == self.files.lineage, rows.c[CHECKPOINT].between(retracted.first, retracted.last)
            )
        )
        commits = self._commits
        connection.execute(
            delete(commits).where(
                *self._is_own(commits), commits.c.checkpoint_id.between(retracted.first, retracted.last)
            )
        )

    def _publish(self, connection: Connection, publication: Publication) -> None:
        from sqlalchemy import insert

        rows, marks = 0, self._marks(connection, publication.checkpoint_id)
        for columns, committables in _by_schema(publication.committables):
            loader = RowLoader(self._output(decode_schema(columns), marks_rows=bool(marks)), self.keys)
            rows += loader.load(connection, self._rows(committables, marks))
        connection.execute(
            insert(self._commits).values(
                **self._key(),
                generation=publication.generation,
                checkpoint_id=publication.checkpoint_id,
                epoch=publication.epoch,
                row_count=rows,
            )
        )

    def _marks(self, connection: Connection, checkpoint_id: int) -> dict[str, Any]:
        if self.marks_rows:
            return {LINEAGE: self.files.lineage, CHECKPOINT: checkpoint_id}
        marks: dict[str, Any] = dict.fromkeys((LINEAGE, CHECKPOINT))
        # A row that an upsert replaces must lose the marks of another sink, which could otherwise retract it.
        return marks if self.keys and marks.keys() <= columns_of(connection, self.table).keys() else {}

    def _rows(self, committables: Iterable[Committable], marks: Mapping[str, Any]) -> Iterator[Any]:
        for committable in committables:
            for table in staged_rows(self.files, committable):
                yield with_constants(table, **marks)

    def _output(self, columns: Any, *, marks_rows: bool) -> Table:
        return output_table(
            self.table, columns, keys=self.keys, marks_rows=marks_rows, is_sqlite=self.database.is_sqlite
        )

    @property
    def _heads(self) -> Table:
        return heads_table(self.table.schema)

    @property
    def _commits(self) -> Table:
        return commits_table(self.table.schema)

    def _key(self) -> dict[str, str]:
        return {"lineage": self.files.lineage, "table_name": self.table.name}

    def _is_own(self, table: Table) -> list[Any]:
        return [table.c[name] == value for name, value in self._key().items()]


def create_tables(database: SinkDatabase, tables: Iterable[Table]) -> None:
    """
    Create missing tables.

    :raises StateCheckError: if the database rejects the creation.
    """
    for table in tables:
        try:
            with database.transaction() as connection:
                table.create(connection, checkfirst=True)
        except StateCheckError:
            # Another sink may have created the table concurrently.
            with database.transaction() as connection:
                if not _exists(connection, table):
                    raise


def _exists(connection: Connection, table: Table) -> bool:
    from sqlalchemy import inspect

    return bool(inspect(connection).has_table(table.name, schema=table.schema))


def _by_schema(committables: Sequence[Committable]) -> list[tuple[str, list[Committable]]]:
    schemas = dict.fromkeys(each.schema for each in committables)
    return [(schema, [each for each in committables if each.schema == schema]) for schema in schemas]


def _insert_for(connection: Connection) -> Any:
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert
    from sqlalchemy.dialects.postgresql import insert

    return insert
