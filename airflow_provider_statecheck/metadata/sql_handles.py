"""The state handles of an operator in a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import delete, exists, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from airflow_provider_statecheck.checkpoint.clock import Clock
from airflow_provider_statecheck.checkpoint.fence import require_current
from airflow_provider_statecheck.checkpoint.handle_rows import HandleRow
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import CommitStateUnknownError, CoordinatorUnavailableError
from airflow_provider_statecheck.metadata.models import Base, StateHandleLock, StateHandleRow
from airflow_provider_statecheck.metadata.outcomes import executing
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore, SqlJobTransaction


class SqlHandleTransaction:
    """One change of the handles of one operator, inside a transition of its job."""

    def __init__(self, job: SqlJobTransaction, job_id: JobId, operator_id: OperatorId) -> None:
        self._job = job
        self._session = job.session
        self._keys = {"job_id": job_id, "operator_id": operator_id}

    @property
    def now(self) -> datetime:
        """Return the time of this change."""
        return self._job.now

    def require_leader(self, attempt: AttemptRef) -> None:
        """Refuse whoever does not hold the operator's epoch."""
        require_current(self._job, attempt)

    def row(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        row = self._session.scalar(select(StateHandleRow).filter_by(**self._keys, name=name))
        return None if row is None else _row(row)

    def rows(self) -> tuple[HandleRow, ...]:
        """Return all rows, by name."""
        return _rows(self._session, self._keys)

    def save(self, row: HandleRow) -> None:
        """Insert or replace a row."""
        known = self._session.get(StateHandleRow, (*self._keys.values(), row.name))
        values = {"handle": row.handle, "version": row.version, "deleting": row.is_deleting, "updated_at": self.now}
        created_at = self.now if known is None else known.created_at
        self._session.merge(StateHandleRow(**self._keys, name=row.name, created_at=created_at, **values))
        self._session.flush()

    def remove(self, name: str) -> None:
        """Remove a row and all locks on it."""
        for table in (StateHandleLock, StateHandleRow):
            self._delete(table, name=name)

    def lock(self, name: str, holder: str, until: datetime) -> None:
        """Insert or prolong a lock."""
        self._session.merge(StateHandleLock(**self._keys, name=name, holder=holder, expires_at=until))
        self._session.flush()

    def unlock(self, holder: str, name: str | None = None) -> None:
        """Remove the lock of a holder on a name, or all that it has."""
        self._delete(StateHandleLock, holder=holder, **({} if name is None else {"name": name}))

    def locks_of(self, holder: str) -> tuple[str, ...]:
        """Return the names that a holder has locked."""
        return tuple(self._session.scalars(select(StateHandleLock.name).filter_by(**self._keys, holder=holder)))

    def is_locked(self, name: str, *, besides: str) -> bool:
        """Tell whether somebody else holds a lock whose lease has not ended."""
        lives = (StateHandleLock.holder != besides, StateHandleLock.expires_at > self.now)
        locks = select(StateHandleLock).filter_by(**self._keys, name=name).where(*lives)
        return bool(self._session.scalar(select(exists(locks))))

    def _delete(self, table: type[Base], **keys: str) -> None:
        self._session.execute(delete(table).filter_by(**self._keys, **keys))


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
        with executing(), Session(self._engine) as session:
            return _rows(session, {"job_id": self._job_id, "operator_id": self._operator_id})


def _rows(session: Session, keys: dict[str, str]) -> tuple[HandleRow, ...]:
    found = session.scalars(select(StateHandleRow).filter_by(**keys))
    # Not by the database: collations differ.
    return tuple(sorted((_row(row) for row in found), key=lambda row: row.name))


def _row(row: StateHandleRow) -> HandleRow:
    return HandleRow(name=row.name, handle=row.handle, version=row.version, is_deleting=row.deleting)
