"""State handles and checkpoint ids in a database."""

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

_HANDLES = KeyedTable(StateHandleRow, kept=("created_at",))
_LOCKS = KeyedTable(StateHandleLock)
_handle, _lock = _HANDLES.table.c, _LOCKS.table.c

_OF_OPERATOR = select(_handle.name, _handle.handle, _handle.version, _handle.deleting).where(
    given(_handle.job_id), given(_handle.operator_id)
)
_OF_NAME = _OF_OPERATOR.where(given(_handle.name))
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


class SqlHandleTransaction:
    """One change of the handles of one operator, inside a transition of its job."""

    def __init__(self, job: SqlJobTransaction, job_id: JobId, operator_id: OperatorId) -> None:
        self._job = job
        self._connection = job.connection
        self._keys = {"job_id": job_id, "operator_id": operator_id}

    @property
    def now(self) -> datetime:
        """Return the time of this change."""
        return self._job.now

    def require_leader(self, attempt: AttemptRef) -> None:
        """Refuse whoever does not hold the operator's epoch."""
        require_running(self._job, attempt)

    def row(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        return _find(self._connection, self._keys | {"name": name})

    def rows(self) -> tuple[HandleRow, ...]:
        """Return all rows, by name."""
        return _rows(self._connection, self._keys)

    def save(self, row: HandleRow) -> None:
        """Insert or replace a row."""
        values = {"name": row.name, "handle": row.handle, "version": row.version, "deleting": row.is_deleting}
        _HANDLES.save(self._connection, self._keys | values | {"created_at": self.now, "updated_at": self.now})

    def remove(self, name: str) -> None:
        """Remove a row and all locks on it."""
        for table in (_LOCKS.table, _HANDLES.table):
            self._delete(table, name=name)

    def lock(self, name: str, holder: str, until: datetime) -> None:
        """Insert or prolong a lock."""
        _LOCKS.save(self._connection, self._keys | {"name": name, "holder": holder, "expires_at": until})

    def unlock(self, holder: str, name: str | None = None) -> None:
        """Remove the lock of a holder on a name, or all that it has."""
        self._delete(_LOCKS.table, holder=holder, **({} if name is None else {"name": name}))

    def locks_of(self, holder: str) -> tuple[str, ...]:
        """Return the names that a holder has locked."""
        return tuple(self._connection.scalars(_LOCKED_BY, keys(**self._keys, holder=holder)))

    def is_locked(self, name: str, *, besides: str) -> bool:
        """Tell whether somebody else holds a lock whose lease has not ended."""
        others = {"besides": besides, "now": self.now}
        return bool(self._connection.scalar(_IS_LOCKED, keys(**self._keys, name=name) | others))

    def _delete(self, table: Table, **values: str) -> None:
        self._connection.execute(delete(table).filter_by(**self._keys, **values))


class SqlHandleRows:
    """
    Rows in the tables ``statecheck_state_handle`` and ``statecheck_state_handle_lock``.

    :param engine: The database; its tables exist.
    :param job_id: The job.
    :param operator_id: Its operator, whose epoch is the fence.
    :param clock: Where time comes from.
    """

    def __init__(self, engine: Engine, job_id: JobId, operator_id: OperatorId, clock: Clock | None = None) -> None:
        self._engine = engine
        self._jobs = SqlJobStore(engine, clock)
        self._job_id = job_id
        self._operator_id = operator_id
        self._keys = {"job_id": job_id, "operator_id": operator_id}

    @contextmanager
    def transaction(self) -> Iterator[SqlHandleTransaction]:
        """Begin a change with a write to the job's row."""
        try:
            with self._jobs.transaction(self._job_id) as job:
                yield SqlHandleTransaction(job, self._job_id, self._operator_id)
        except CoordinatorUnavailableError as error:
            if isinstance(error.__cause__, DBAPIError) and error.__cause__.connection_invalidated:
                raise CommitStateUnknownError(
                    "The connection to the database was lost while a state handle was changed; nothing was deleted. "
                    "Look at the handle before you repeat the call."
                ) from error
            raise

    def read(self) -> tuple[HandleRow, ...]:
        """Return all rows, by name."""
        with executing(), self._engine.connect() as connection:
            return _rows(connection, self._keys)

    def find(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        with executing(), self._engine.connect() as connection:
            return _find(connection, self._keys | {"name": name})


def _find(connection: Connection, key: dict[str, str]) -> HandleRow | None:
    row = connection.execute(_OF_NAME, keys(**key)).one_or_none()
    return None if row is None else _row(row)


def _rows(connection: Connection, key: dict[str, str]) -> tuple[HandleRow, ...]:
    found = connection.execute(_OF_OPERATOR, keys(**key))
    # Not by the database: collations differ.
    return tuple(sorted((_row(row) for row in found), key=lambda row: row.name))


def _row(row: Sequence[Any]) -> HandleRow:
    name, handle, version, is_deleting = row
    return HandleRow(name=name, handle=handle, version=version, is_deleting=is_deleting)


class SqlCheckpointIDCounter(JobIDCounter):
    """
    The column ``next_checkpoint_id`` of the table ``statecheck_job``.

    Each call begins with a write to the row, so callers in other threads and processes wait until it is committed.

    :param engine: The database; its tables exist.
    :param job_id: The job; it registered an attempt.
    :param clock: Where time comes from.
    """

    def __init__(self, engine: Engine, job_id: JobId, clock: Clock | None = None) -> None:
        super().__init__(SqlJobStore(engine, clock), job_id)

    def _raise_to(self, tx: JobTransaction, count: int) -> None:
        assert isinstance(tx, SqlJobTransaction)  # noqa: S101 - the store above makes no others
        tx.set_next_checkpoint_id(count)
