"""What a store of state handles needs of a database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from airflow_provider_statecheck.checkpoint.messages import AttemptRef

LONGEST_LEASE = timedelta(hours=1)
"""How long a lock may live that nobody renews; one that lives longer was written by a clock that was ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleRow:
    """One name and the pointer under it."""

    name: str
    handle: bytes
    version: int = 0
    is_deleting: bool = False


class HandleTransaction(Protocol):
    """
    One change of the handles of one operator.

    It began with a write to the job's row, so no other writer of this job is between its read and its commit.
    Leaving the context without an error commits; an error rolls everything back.
    """

    @property
    def now(self) -> datetime:
        """Return the time of the job's transition."""
        ...

    def require_leader(self, attempt: AttemptRef) -> None:
        """
        Refuse whoever does not hold the operator's epoch.

        :raises StaleAttemptError: if a newer attempt registered, or this one never did, or has ended.
        """
        ...

    def row(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        ...

    def rows(self) -> tuple[HandleRow, ...]:
        """Return all rows, by name."""
        ...

    def save(self, row: HandleRow) -> None:
        """Insert or replace a row."""
        ...

    def remove(self, name: str) -> None:
        """Remove a row and all locks on it."""
        ...

    def lock(self, name: str, holder: str, until: datetime) -> None:
        """Insert or prolong a lock."""
        ...

    def unlock(self, holder: str, name: str | None = None) -> None:
        """Remove the lock of a holder on a name, or all that it has."""
        ...

    def locks_of(self, holder: str) -> tuple[str, ...]:
        """Return the names that a holder has locked."""
        ...

    def is_locked(self, name: str, *, besides: str) -> bool:
        """Tell whether somebody else holds a lock whose lease has not ended."""
        ...


class HandleRows(Protocol):
    """The handles of one operator; reads outside a transaction see committed rows only."""

    def transaction(self) -> AbstractContextManager[HandleTransaction]:
        """
        Begin a change.

        :raises CheckpointNotFoundError: if the job never registered an attempt.
        :raises CommitStateUnknownError: on leaving, if the commit may or may not have taken effect.
        """
        ...

    def read(self) -> tuple[HandleRow, ...]:
        """Return all rows, by name."""
        ...

    def find(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        ...
