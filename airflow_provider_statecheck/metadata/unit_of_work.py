"""
Rows that a transition reads and writes, engines for use without Airflow, and database errors.

A row is read once, and a changed row is written once: before a query that may read it, or at the end. PostgreSQL writes
all rows in one statement.

A transition locks the job's row before it reads any other row, so that what it reads is current until its end. On
PostgreSQL, one statement does both for the calls of an attempt, which saves a round trip.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self, cast

from sqlalchemy import (
    ColumnElement,
    Executable,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    create_engine,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import Connection, CursorResult, Engine
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
    TimeoutError as PoolTimeoutError,
)

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.job_list import JobFigures
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.checkpoint.store import FirstRead
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.record_rows import Key, Record, RecordTable, keys, parameter, split
from airflow_provider_statecheck.metadata.statements import remove
from airflow_provider_statecheck.metadata.tables import JOB_FIGURES, JOBS, METADATA

_TOGETHER = 50
"""Maximum number of rows in a statement that writes several."""
_KEPT_STATEMENTS = 100


class Shape(NamedTuple):
    """The table and the columns of a write; writes of one shape share a compiled statement."""

    table: RecordTable[Any]
    names: tuple[str, ...]
    is_new: bool


class Write(NamedTuple):
    """
    A row to write.

    :param known: Values by which the known row is found; ``None`` to insert a row.
    """

    table: RecordTable[Any]
    values: dict[str, Any]
    known: dict[str, Any] | None

    @property
    def shape(self) -> Shape:
        """The table and the columns of the write."""
        return Shape(self.table, tuple(self.values), self.known is None)

    def parameters(self, number: int) -> dict[str, Any]:
        """Return the parameters of this write, whose names end with its number in the statement."""
        new = {f"new_{name}_{number}": each for name, each in self.values.items()}
        return new | keys(**{f"{name}_{number}": each for name, each in (self.known or {}).items()})


class UnitOfWork:
    """
    Rows of a job during a transition, with the changes of the transition.

    The transition locks the job's row, and only the holder of this lock writes rows of the job. Rows that were read are
    therefore current.

    :param connection: Connection that holds the lock.
    """

    def __init__(self, connection: Connection, job_id: str) -> None:
        self._connection = connection
        self._job_id = job_id
        self._held: defaultdict[RecordTable[Any], dict[Key, Any]] = defaultdict(dict)
        self._changed: dict[tuple[RecordTable[Any], Key], Any] = {}
        """The rows in the database by the keys of changed records; ``None`` if there is no row."""
        self._complete: set[Key] = set()

    def execute(self, statement: Executable, **values: object) -> CursorResult[Any]:
        """Execute a statement with the id of the job and other parameters of ``keys``."""
        self.flush()
        return self._connection.execute(statement, keys(job_id=self._job_id, **values))

    def read(self, table: RecordTable[Record], query: Select[Any], **values: object) -> list[Record]:
        """Return the rows of a query on the job, and hold them."""
        return [self.hold(table, row) for row in self.execute(query, **values)]

    def values(self, table: RecordTable[Any], name: str, query: Executable, **values: object) -> list[Any]:
        """
        Return the values of a query for one column of the job's rows.

        The other parameters name the rows in an error.
        """
        found = self.execute(query, **values).scalars()
        return [table.value(name, each, job_id=self._job_id, **values) for each in found]

    def read_once(self, table: RecordTable[Record], query: Select[Any], **values: object) -> None:
        """Hold the rows of a query, unless they are complete."""
        if not self.is_complete(table, *values.values()):
            self.read(table, query, **values)
            self.complete(table, *values.values())

    def complete(self, table: RecordTable[Any], *values: object) -> None:
        """Take note that all rows of a table with certain values are held."""
        self._complete.add((table, *values))

    def is_complete(self, table: RecordTable[Any], *values: object) -> bool:
        """Return whether all rows of a table with certain values are held."""
        return (table, *values) in self._complete

    def hold(self, table: RecordTable[Record], values: Sequence[Any]) -> Record:
        """Hold a row that was read."""
        record = table.read(values)
        self._held[table][table.key_of(record)] = record
        return record

    def hold_joined(self, tables: Sequence[RecordTable[Any]], rows: Iterable[Sequence[Any]]) -> None:
        """Hold the rows of joined tables, each once although a join repeats it."""
        last: dict[RecordTable[Any], Sequence[Any]] = {}
        for row in rows:
            for table, values in zip(tables, split(row, *tables), strict=True):
                if values[0] is not None and values != last.get(table):
                    self.hold(table, values)
                    last[table] = values

    def miss(self, table: RecordTable[Any], *key: object) -> None:
        """Take note that there is no row of a key, unless one is held."""
        self._held[table].setdefault((self._job_id, *key), None)

    def holds(self, table: RecordTable[Any], *key: object) -> bool:
        """Return whether the row of a key, or its absence, is known."""
        return (self._job_id, *key) in self._held[table]

    def held(self, table: RecordTable[Record]) -> Iterator[Record]:
        """Return the rows of a table that are held."""
        return (record for record in self._held[table].values() if record is not None)

    def get(self, table: RecordTable[Record], *key: object) -> Record | None:
        """Return the row of a key after the job's id, or ``None``; read it unless it is held."""
        if not self.holds(table, *key):
            # No changed row has this key, since it would be held.
            names = dict(zip(table.key_names, (self._job_id, *key), strict=True))
            for row in self._connection.execute(table.by_key, keys(**names)):
                self.hold(table, row)
            self.miss(table, *key)
        return cast("Record | None", self._held[table][self._job_id, *key])

    def save(self, table: RecordTable[Record], record: Record) -> None:
        """Insert or replace a row."""
        key = table.key_of(record)
        self._change(table, record, self.get(table, *key[1:]))

    def add(self, table: RecordTable[Record], record: Record) -> None:
        """Insert a row."""
        self._change(table, record, None)

    def remove(self, table: Table, *conditions: ColumnElement[bool]) -> None:
        """Delete the rows of the job that meet all conditions, in one statement, and hold no rows any more."""
        self.execute(remove(table, *conditions))
        self._held.clear()
        self._complete.clear()

    def flush(self, *more: Write) -> None:
        """
        Write the changed rows.

        :param more: Writes of rows that are not held.
        :raises CoordinatorError: if a row is not as it was read.
        :raises InvalidConfigurationError: if a column cannot store a value.
        """
        writes = [*self._writes(), *more]
        self._changed.clear()
        size = _TOGETHER if self._connection.dialect.name == "postgresql" else 1
        storable = [write._replace(values=write.table.storable(write.values)) for write in writes]
        for start in range(0, len(storable), size):
            self._write(storable[start : start + size])

    def _change(self, table: RecordTable[Record], record: Record, known: Record | None) -> None:
        key = table.key_of(record)
        self._changed.setdefault((table, key), known)
        self._held[table][key] = record

    def _writes(self) -> Iterator[Write]:
        for (table, key), known in self._changed.items():
            record = self._held[table][key]
            if known is None:
                yield Write(table, table.values_of(record), None)
            elif changes := table.changes(known, record):
                yield Write(table, changes, {name: getattr(known, name) for name in table.condition_names})

    def _write(self, writes: Sequence[Write]) -> None:
        parameters = {
            name: each for number, write in enumerate(writes) for name, each in write.parameters(number).items()
        }
        statement = _statement(tuple(write.shape for write in writes))
        result = self._connection.execute(statement, parameters, execution_options={"preserve_rowcount": True})
        if (result.rowcount if len(writes) == 1 else sum(result.one())) != len(writes):
            raise CoordinatorError(
                f"Expected the database rows of job {self._job_id} as they were read, found that another writer "
                "changed one; nothing was changed, read them again."
            )


@lru_cache(_KEPT_STATEMENTS)
def _statement(shapes: tuple[Shape, ...]) -> Executable:
    if len(shapes) == 1:
        return _single(shapes[0], 0)
    job_id = [shape.table.c.job_id for shape in shapes]
    parts = [_single(shape, n).returning(job_id[n]).cte(f"write_{n}") for n, shape in enumerate(shapes)]
    return select(*(select(func.count()).select_from(part).scalar_subquery() for part in parts))


def _single(shape: Shape, number: int) -> Insert | Update:
    table = shape.table.table
    values = {name: bindparam(f"new_{name}_{number}", type_=table.c[name].type) for name in shape.names}
    if shape.is_new:
        return insert(table).values(values)
    known = (table.c[name] == parameter(f"{name}_{number}", table.c[name].type) for name in shape.table.condition_names)
    return update(table).where(*known).values(values)


_SQLITE_WAIT_SECONDS = 30.0


_JOB = (JOBS, JOB_FIGURES)


class FirstRows(NamedTuple):
    """Current rows of an operator, in rows of a join of tables."""

    of: FirstRead
    tables: tuple[RecordTable[Any], ...]
    joined: Sequence[Sequence[Any]]
    is_repeated: bool
    """Whether the key of the trigger request is that of a checkpoint."""


class Begun(NamedTuple):
    """A job whose row is locked, as the transition begins."""

    job: JobRecord
    figures: JobFigures
    rows: FirstRows | None = None
    """Rows that were read together with the job, if they are current."""

    @classmethod
    def of(cls, row: Sequence[Any], rows: FirstRows | None = None) -> Self:
        """Return the job in a row that begins with its columns."""
        job, figures = split(row, *_JOB)
        return cls(JOBS.read(job), JOB_FIGURES.read(figures), rows)


def begin(
    connection: Connection, job_id: JobId, now: datetime, *, is_known: bool, reads: FirstRead | None
) -> Begun | None:
    """
    Lock the row of a job, and return the job; ``None`` if there is none.

    :param is_known: Whether the job must have an attempt.
    :param reads: What to read with the lock, where the database can.
    """
    values = keys(job_id=job_id, now=now)
    if reads is not None and is_known and connection.dialect.name == "postgresql":
        return _begin_and_read(connection, values, reads)
    if connection.dialect.update_returning:
        row = connection.execute(statements.BEGIN_AND_READ[is_known], values).one_or_none()
    else:
        exists = connection.execute(statements.BEGIN[is_known], values).rowcount == 1
        row = connection.execute(statements.JOB_AND_FIGURES, values).one() if exists else None
    return None if row is None else Begun.of(row)


def _begin_and_read(connection: Connection, values: dict[str, object], reads: FirstRead) -> Begun | None:
    tables = statements.ROWS_OF_OPERATOR if reads.ends_checkpoint else statements.ROWS_OF_OPERATOR[:3]
    is_trigger = reads.request_key is not None
    found = values | keys(operator_id=reads.operator_id) | (keys(request_key=reads.request_key) if is_trigger else {})
    rows = connection.execute(statements.begin_with_operator(tables, is_trigger=is_trigger), found).all()
    if not rows:
        return None
    begun = Begun.of(rows[0])
    return begun._replace(rows=_current(begun.job, rows, FirstRows(reads, tables, (), False)))


def _current(job: JobRecord, rows: Sequence[Sequence[Any]], read: FirstRows) -> FirstRows | None:
    before, repeated = rows[0][-2:]
    if job.version != before + 1:
        # Another transition was committed while this one waited for the lock, and the rows are those of before.
        return None
    start = sum(len(table.columns) for table in _JOB)
    return read._replace(joined=[row[start:] for row in rows], is_repeated=repeated is not None)


def open_engine(url: str) -> Engine:
    """
    Open a database and create missing tables.

    Use it for separate databases only. In Airflow's database, ``airflow db migrate`` creates the tables.

    :param url: SQLAlchemy URL such as ``sqlite:///state.db``.
    :raises InvalidConfigurationError: if it is no such URL, or the driver of the database is not installed or
        asynchronous.
    :raises CoordinatorUnavailableError: if the database cannot be opened.
    """
    wait = {"timeout": _SQLITE_WAIT_SECONDS} if str(url).startswith("sqlite") else {}
    try:
        engine = create_engine(url, connect_args=wait)
    except (ArgumentError, ImportError, ValueError) as error:
        reason = f" ({error})" if isinstance(error, ImportError | NoSuchModuleError) else ""
        raise InvalidConfigurationError(
            "Expected the SQLAlchemy URL of a database with an installed driver, such as sqlite:///state.db, found "
            f"another one{reason}; it is not shown, because it may contain a password."
        ) from None
    if engine.dialect.is_async:
        raise InvalidConfigurationError(
            "Expected the SQLAlchemy URL of a database with a synchronous driver, such as postgresql+psycopg2, found "
            f"the asynchronous driver {engine.dialect.driver}; name another one."
        )
    _create_tables(engine)
    return engine


def _create_tables(engine: Engine) -> None:
    try:
        _create_missing(engine)
    except DBAPIError:
        # Another process may have created them at the same time.
        with executing():
            _create_missing(engine)


def _create_missing(engine: Engine) -> None:
    with engine.connect() as connection:
        if METADATA.tables.keys() <= set(inspect(connection).get_table_names()):
            return
        connection.rollback()
        if engine.dialect.name == "sqlite":
            # SQLite has no transaction around the creation of tables by default.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        METADATA.create_all(connection)
        connection.commit()


@contextmanager
def executing() -> Iterator[None]:
    """
    Map errors of statements before a commit; after such an error, nothing was changed.

    :raises EnvironmentNotReadyError: if tables are missing.
    :raises CoordinatorUnavailableError: if the database did not respond or no connection was free; the caller may
        retry.
    :raises InvalidConfigurationError: if another job has used a key.
    :raises CoordinatorError: if the database rejected another statement.
    """
    try:
        yield
    except DBAPIError as error:
        raise _mapped(error) from error
    except PoolTimeoutError as error:
        raise CoordinatorUnavailableError(
            "Expected a free connection to the metadata database, found that all of the pool were in use; nothing was "
            "changed, try again, or raise sql_alchemy_pool_size in section [database] of Airflow's configuration."
        ) from error


@contextmanager
def committing() -> Iterator[None]:
    """
    Map errors of a commit; after such an error, the commit may or may not have taken effect.

    :raises CommitStateUnknownError: for any error; the caller may retry but must not delete anything.
    """
    try:
        yield
    except SQLAlchemyError as error:
        raise CommitStateUnknownError(
            "Expected a successful commit, found that the database failed during it, so the change may or may not have "
            "taken effect; nothing was deleted, repeat the call."
        ) from error


def commit(connection: Connection) -> None:
    """Commit the transaction of a connection; if that fails, close the connection."""
    try:
        connection.commit()
    except BaseException:
        # In the pool, its open transaction could be committed by the next user of the connection.
        connection.invalidate()
        raise


def _mapped(error: DBAPIError) -> StateCheckError:
    if _is_missing_table(error):
        return EnvironmentNotReadyError(
            "Expected the tables statecheck_* in the metadata database, found that one is missing; run 'airflow db "
            "migrate'."
        )
    if isinstance(error, OperationalError) or error.connection_invalidated:
        # SQLite does not name the file, and a missing folder is the usual cause.
        is_unopened = "unable to open database file" in str(error.orig)
        remedy = "create its folder, or correct its path" if is_unopened else "try again"
        return CoordinatorUnavailableError(
            f"Expected the metadata database to execute a statement, found that it did not ({error.orig}); nothing was "
            f"changed, {remedy}."
        )
    if isinstance(error, IntegrityError):
        # Writers of one job take turns, so only the key of another job can be in the way.
        return InvalidConfigurationError(
            f"Expected a new key of an attempt or a request, found one that another job has used ({error.orig}); "
            "nothing was changed, generate a new key."
        )
    return CoordinatorError(
        f"Expected the metadata database to accept a statement, found an error ({error.orig}); nothing was changed."
    )


def _is_missing_table(error: DBAPIError) -> bool:
    text = str(error.orig)
    is_missing = "no such table" in text or ("does not exist" in text and isinstance(error, ProgrammingError))
    return is_missing and "statecheck_" in text
