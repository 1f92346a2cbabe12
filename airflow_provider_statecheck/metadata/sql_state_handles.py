"""State handles and checkpoint ids in the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Table, bindparam, delete, exists, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from airflow_provider_statecheck.checkpoint.aligned.id_counter import JobIDCounter
from airflow_provider_statecheck.checkpoint.clock import Clock
from airflow_provider_statecheck.checkpoint.fencing import require_running
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.state_handle_store import HandleRow
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import CommitStateUnknownError, CoordinatorUnavailableError
from airflow_provider_statecheck.metadata.database import executing
from airflow_provider_statecheck.metadata.models import StateHandleLock, StateHandleRow
from airflow_provider_statecheck.metadata.record_table import KeyedTable, given, keys
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore, SqlJobTransaction

_HANDLES = KeyedTable(StateHandleRow, write_once=("created_at",))
_LOCKS = KeyedTable(StateHandleLock)
_handle, _lock = _HANDLES.table.c, _LOCKS.table.c

_OPERATOR_HANDLES = select(_handle.name, _handle.handle, _handle.version, _handle.deleting).where(
    given(_handle.job_id), given(_handle.operator_id)
)
_NAMED_HANDLE = _OPERATOR_HANDLES.where(given(_handle.name))
_LOCKED_BY = select(_lock.name).where(given(_lock.job_id), given(_lock.operator_id), given(_lock.holder))
_IS_LOCKED = select(
    exists().where(
        given(_lock.job_id),
        given(_lock.operator_id),
        given(_lock.name),
        _lock.holder != bindparam("besides"),
        _lock.expires_at > bindparam("now", type_=_lock.expires_at.type),
    )
)


class SqlHandleRows:
    """
    Rows of the tables ``statecheck_state_handle`` and ``statecheck_state_handle_lock`` for one operator.

    :param engine: Database that has the tables.
    :param job_id: Id of the job.
    :param operator_id: Id of the operator, whose epoch fences writers.
    :param clock: Clock for times. The default is the system clock.
    """

    def __init__(self, engine: Engine, job_id: JobId, operator_id: OperatorId, clock: Clock | None = None) -> None:
        self._engine = engine
        self._jobs = SqlJobStore(engine, clock)
        self._job_id = job_id
        self._operator_id = operator_id
        self._keys = {"job_id": job_id, "operator_id": operator_id}

    @contextmanager
    def transaction(self) -> Iterator[SqlHandleTransaction]:
        """Begin a change; it locks the row of the job."""
        try:
            with self._jobs.transaction(self._job_id) as job:
                yield SqlHandleTransaction(job, self._job_id, self._operator_id)
        except CoordinatorUnavailableError as error:
            if isinstance(error.__cause__, DBAPIError) and error.__cause__.connection_invalidated:
                raise CommitStateUnknownError(
                    "Expected a change of a state handle to be committed, found that the connection to the database was "
                    "lost; nothing was deleted, read the handle before you repeat the call."
                ) from error
            raise

    def read(self) -> tuple[HandleRow, ...]:
        """Return all rows, sorted by name."""
        with executing(), self._engine.connect() as connection:
            return _rows(connection, self._keys)

    def find(self, name: str) -> HandleRow | None:
        """Return the row of a name, or ``None``."""
        with executing(), self._engine.connect() as connection:
            return _find(connection, self._keys | {"name": name})


class SqlHandleTransaction:
    """A change of the handles of an operator, within a transition of its job."""

    def __init__(self, job: SqlJobTransaction, job_id: JobId, operator_id: OperatorId) -> None:
        self._job = job
        self._connection = job.connection
        self._keys = {"job_id": job_id, "operator_id": operator_id}

    @property
    def now(self) -> datetime:
        """Return the time of the change."""
        return self._job.now

    def require_leader(self, attempt: AttemptRef) -> None:
        """Require the attempt that holds the epoch of the operator."""
        require_running(self._job, attempt)

    def row(self, name: str) -> HandleRow | None:
        """Return the row of a name, or ``None``."""
        return _find(self._connection, self._keys | {"name": name})

    def rows(self) -> tuple[HandleRow, ...]:
        """Return all rows, sorted by name."""
        return _rows(self._connection, self._keys)

    def save(self, row: HandleRow) -> None:
        """Insert or replace a row."""
        values = {"name": row.name, "handle": row.handle, "version": row.version, "deleting": row.is_deleting}
        _HANDLES.save(self._connection, self._keys | values | {"created_at": self.now, "updated_at": self.now})

    def remove(self, name: str) -> None:
        """Remove a row and its locks."""
        for table in (_LOCKS.table, _HANDLES.table):
            self._delete(table, name=name)

    def lock(self, name: str, holder: str, until: datetime) -> None:
        """Insert or extend a lock."""
        _LOCKS.save(self._connection, self._keys | {"name": name, "holder": holder, "expires_at": until})

    def unlock(self, holder: str, name: str | None = None) -> None:
        """Remove the lock of a holder on a name, or all its locks."""
        self._delete(_LOCKS.table, holder=holder, **({} if name is None else {"name": name}))

    def locks_of(self, holder: str) -> tuple[str, ...]:
        """Return the names that a holder has locked."""
        return tuple(self._connection.scalars(_LOCKED_BY, keys(**self._keys, holder=holder)))

    def is_locked(self, name: str, *, besides: str) -> bool:
        """Return ``True`` if a holder other than ``besides`` has a lock whose lease has not ended."""
        parameters = keys(**self._keys, name=name) | {"besides": besides, "now": self.now}
        return bool(self._connection.scalar(_IS_LOCKED, parameters))

    def _delete(self, table: Table, **values: str) -> None:
        self._connection.execute(delete(table).filter_by(**self._keys, **values))


class SqlCheckpointIDCounter(JobIDCounter):
    """
    Counter in the column ``next_checkpoint_id`` of the table ``statecheck_job``.

    Each call locks the row of the job, so concurrent callers wait until it is committed.

    :param engine: Database that has the tables.
    :param job_id: Id of a job with a registered attempt.
    :param clock: Clock for times. The default is the system clock.
    """

    def __init__(self, engine: Engine, job_id: JobId, clock: Clock | None = None) -> None:
        super().__init__(SqlJobStore(engine, clock), job_id)

    def _raise_to(self, tx: JobTransaction, count: int) -> None:
        assert isinstance(tx, SqlJobTransaction)  # noqa: S101 - SqlJobStore creates no others
        tx.set_next_checkpoint_id(count)


def _find(connection: Connection, key: dict[str, str]) -> HandleRow | None:
    row = connection.execute(_NAMED_HANDLE, keys(**key)).one_or_none()
    return None if row is None else _row(row)


def _rows(connection: Connection, key: dict[str, str]) -> tuple[HandleRow, ...]:
    rows = connection.execute(_OPERATOR_HANDLES, keys(**key))
    # Databases have different collations, so they would sort differently.
    return tuple(sorted((_row(row) for row in rows), key=lambda row: row.name))


def _row(row: Sequence[Any]) -> HandleRow:
    name, handle, version, is_deleting = row
    return HandleRow(name=name, handle=handle, version=version, is_deleting=is_deleting)
