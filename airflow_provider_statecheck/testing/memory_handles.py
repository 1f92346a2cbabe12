"""The state handles of an operator in memory, assumed to be right in comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from airflow_provider_statecheck.checkpoint.fence import require_running
from airflow_provider_statecheck.checkpoint.handles.handle_rows import LONGEST_LEASE, HandleRow
from airflow_provider_statecheck.checkpoint.handles.state_handles import StatePointer
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore

_Locks = dict[tuple[str, str], datetime]


class InMemoryHandleTransaction:
    """A change of private copies of the rows and locks."""

    def __init__(self, job: JobTransaction, found: dict[str, HandleRow], locks: _Locks) -> None:
        self._job = job
        self.found = found
        self.locks = locks

    @property
    def now(self) -> datetime:
        """Return the time of this change."""
        return self._job.now

    def require_leader(self, attempt: AttemptRef) -> None:
        """Refuse whoever does not hold the operator's epoch."""
        require_running(self._job, attempt)

    def row(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        return self.found.get(name)

    def rows(self) -> tuple[HandleRow, ...]:
        """Return all rows, by name."""
        return tuple(row for _, row in sorted(self.found.items()))

    def save(self, row: HandleRow) -> None:
        """Insert or replace a row."""
        self.found[row.name] = row

    def remove(self, name: str) -> None:
        """Remove a row and all locks on it."""
        self.found.pop(name, None)
        for key in [key for key in self.locks if key[0] == name]:
            del self.locks[key]

    def lock(self, name: str, holder: str, until: datetime) -> None:
        """Insert or prolong a lock."""
        self.locks[(name, holder)] = until

    def unlock(self, holder: str, name: str | None = None) -> None:
        """Remove the lock of a holder on a name, or all that it has."""
        for key in [key for key in self.locks if key[1] == holder and name in (None, key[0])]:
            del self.locks[key]

    def locks_of(self, holder: str) -> tuple[str, ...]:
        """Return the names that a holder has locked."""
        return tuple(name for name, other in self.locks if other == holder)

    def is_locked(self, name: str, *, besides: str) -> bool:
        """Tell whether somebody else holds a lock whose lease has not ended."""
        return any(key[0] == name and key[1] != besides and until > self.now for key, until in self.locks.items())


class InMemoryHandleRows:
    """
    Rows that live as long as the process.

    :param jobs: The jobs in memory, whose transitions and epochs are used.
    :param job_id: The job.
    """

    def __init__(self, jobs: InMemoryJobStore, job_id: JobId) -> None:
        self._jobs = jobs
        self._job_id = job_id
        self._found: dict[str, HandleRow] = {}
        self._locks: _Locks = {}
        jobs.attach_handles(job_id, lambda: [row.handle for row in self.read()], self._clear)

    def _clear(self) -> None:
        self._found.clear()
        self._locks.clear()

    @contextmanager
    def transaction(self) -> Iterator[InMemoryHandleTransaction]:
        """Begin a change; all jobs wait for each other."""
        with self._jobs.transaction(self._job_id) as job:
            longest = job.now + LONGEST_LEASE
            locks = {key: min(until, longest) for key, until in self._locks.items()}
            tx = InMemoryHandleTransaction(job, dict(self._found), locks)
            yield tx
            self._found, self._locks = tx.found, tx.locks

    def read(self) -> tuple[HandleRow, ...]:
        """Return all rows, by name."""
        return tuple(row for _, row in sorted(self._found.items()))

    def find(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        return self._found.get(name)


class InMemoryStates:
    """State in memory, each under a name of its own."""

    def __init__(self) -> None:
        self.bytes: dict[str, bytes] = {}
        self._stored = 0

    def store(self, state: bytes) -> StatePointer:
        """Keep state."""
        self._stored += 1
        uri = f"memory://states/{self._stored}"
        self.bytes[uri] = state
        return StatePointer(uri=uri, size=len(state), sha256="")

    def retrieve(self, pointer: StatePointer) -> bytes:
        """Return what was kept."""
        if pointer.uri not in self.bytes:
            raise CheckpointNotFoundError(f"There is no state at {pointer.uri}; it was discarded.")
        return self.bytes[pointer.uri]

    def discard(self, pointer: StatePointer) -> None:
        """Forget state."""
        self.bytes.pop(pointer.uri, None)
