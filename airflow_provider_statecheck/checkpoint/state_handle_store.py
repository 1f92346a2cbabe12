"""State handle store with leased locks, fenced by the epoch of the operator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, require
from airflow_provider_statecheck.checkpoint.state_pointers import (
    MAX_NAME,
    ResourceVersion,
    RetrievableStateHandle,
    State,
    StatePointer,
    StateStorage,
)
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    CorruptStateError,
    HandleExistsError,
    HandleNotFoundError,
    InvalidConfigurationError,
    ResourceVersionError,
    StaleAttemptError,
    StateCheckError,
)

log = logging.getLogger(__name__)
Result = TypeVar("Result")

LONGEST_LEASE = timedelta(hours=1)
"""Maximum lease of a lock; a later expiry time was written by a clock that was ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleRow:
    """Row of a state handle: a name and the encoded pointer."""

    name: str
    handle: bytes
    version: int = 0
    is_deleting: bool = False


class HandleTransaction(Protocol):
    """
    Transaction on the handles of one operator.

    A transaction starts with a write to the job's row, which serializes the writers of the job. Leaving the context commits,
    and an error rolls all changes back.
    """

    @property
    def now(self) -> datetime:
        """Return the time of the transaction."""
        ...

    def require_leader(self, attempt: AttemptRef) -> None:
        """
        Raise an error unless an attempt is the newest one of the operator and has not ended.

        :raises StaleAttemptError: if a newer attempt has registered, or this one never registered or has ended.
        """
        ...

    def row(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        ...

    def rows(self) -> tuple[HandleRow, ...]:
        """Return all rows, sorted by name."""
        ...

    def save(self, row: HandleRow) -> None:
        """Insert or replace a row."""
        ...

    def remove(self, name: str) -> None:
        """Remove a row with its locks."""
        ...

    def lock(self, name: str, holder: str, until: datetime) -> None:
        """Insert or extend a lock."""
        ...

    def unlock(self, holder: str, name: str | None = None) -> None:
        """Remove the lock of a holder on a name, or all its locks."""
        ...

    def locks_of(self, holder: str) -> tuple[str, ...]:
        """Return the names that a holder has locked."""
        ...

    def is_locked(self, name: str, *, besides: str) -> bool:
        """Return whether another holder has a lock that has not expired."""
        ...


class HandleRows(Protocol):
    """Handle rows of one operator. Reads outside a transaction return committed rows only."""

    def transaction(self) -> AbstractContextManager[HandleTransaction]:
        """
        Begin a transaction.

        :raises CheckpointNotFoundError: if the job has never registered an attempt.
        :raises CommitStateUnknownError: on leaving the context, if the outcome of the commit is unknown.
        """
        ...

    def read(self) -> tuple[HandleRow, ...]:
        """Return all rows, sorted by name."""
        ...

    def find(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        ...


class LeasedStateHandleStore(Generic[State]):
    """
    Implementation of :class:`~airflow_provider_statecheck.checkpoint.state_pointers.StateHandleStore` with leased locks.

    :param rows: Handle rows of one operator.
    :param storage: Storage of the state.
    :param attempt: Attempt that changes the handles.
    :param lease_seconds: Lease of a lock in seconds, at most an hour.
    :param holder: Identity of the lock holder, which several stores may share; unique to this store by default.
    :raises InvalidConfigurationError: for a lease out of range.
    """

    def __init__(
        self,
        rows: HandleRows,
        storage: StateStorage[State],
        attempt: AttemptRef,
        *,
        lease_seconds: float = 600.0,
        holder: str | None = None,
    ) -> None:
        longest = LONGEST_LEASE.total_seconds()
        require("lease_seconds", lease_seconds, lambda s: 0 < s <= longest, "more than 0 seconds, an hour at most")
        self._rows = rows
        self._storage = storage
        self._attempt = attempt
        self._lease = timedelta(seconds=lease_seconds)
        self._holder = holder or new_key()

    def add_and_lock(self, name: str, state: State) -> RetrievableStateHandle[State]:
        """Store state under a new name and lock the handle."""
        _require_state(name, state)
        pointer = self._storage.store(state)
        with self._discard_on_error(pointer):
            data = pointer.encode()
        while self._is_deleting_at_add(name, pointer, data):
            with self._discard_on_error(pointer):
                self._remove(name, only_deleting=True)
        return RetrievableStateHandle(pointer, self._storage)

    def replace(self, name: str, version: ResourceVersion, state: State) -> None:
        """Store state under an existing name and discard the previous state."""
        _require_state(name, state)
        try:
            old, new = self._replace(name, version, state)
        except HandleNotFoundError as error:
            with _note_cleanup_error(error):
                self._remove(name, only_deleting=True)
            raise
        if old != new:
            self._storage.discard(old)

    def exists(self, name: str) -> ResourceVersion:
        """Return the version of a handle."""
        _require_name(name)
        row = self._rows.find(name)
        if row is None or row.is_deleting or _is_unreadable(row):
            return ResourceVersion.not_existing()
        return ResourceVersion(row.version)

    def get_and_lock(self, name: str) -> RetrievableStateHandle[State]:
        """Lock a handle and return it."""
        _require_name(name)

        def change(tx: HandleTransaction) -> StatePointer:
            pointer = StatePointer.decode(_require_existing(tx.row(name), name).handle)
            self._lock(tx, name)
            return pointer

        return RetrievableStateHandle(self._change(change), self._storage)

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[State], str]]:
        """Lock and return all readable handles in one transaction."""

        def change(tx: HandleTransaction) -> list[tuple[StatePointer, str]]:
            decoded = [(_decoded(row), row.name) for row in tx.rows() if not row.is_deleting]
            readable = [(pointer, name) for pointer, name in decoded if pointer is not None]
            for _, name in readable:
                self._lock(tx, name)
            return readable

        return [(RetrievableStateHandle(pointer, self._storage), name) for pointer, name in self._change(change)]

    def get_all_handles(self) -> list[str]:
        """Return all names, including those of handles that are being removed."""
        return [row.name for row in self._rows.read()]

    def release_and_try_remove(self, name: str) -> bool:
        """Release a lock, and remove the handle with its state unless another store has locked it."""
        _require_name(name)
        return self._remove(name)

    def release_and_try_remove_all(self) -> bool:
        """Try to remove all handles, and continue after an error."""
        results, errors = [], []
        for name in self.get_all_handles():
            try:
                results.append(self.release_and_try_remove(name))
            except Exception as error:
                errors.append(error)
        _raise_first(errors)
        return all(results)

    def clear_entries(self) -> None:
        """Remove all handles but not their state."""

        def change(tx: HandleTransaction) -> None:
            tx.require_leader(self._attempt)
            for row in tx.rows():
                tx.remove(row.name)

        self._change(change)

    def release(self, name: str) -> None:
        """Release the lock on a handle."""
        _require_name(name)
        self._change(lambda tx: tx.unlock(self._holder, name))

    def release_all(self) -> None:
        """Release all locks of this store."""
        self._change(lambda tx: tx.unlock(self._holder))

    def renew_locks(self) -> None:
        """Extend all locks of this store by another lease."""

        def change(tx: HandleTransaction) -> None:
            for name in tx.locks_of(self._holder):
                self._lock(tx, name)

        self._change(change)

    def _is_deleting_at_add(self, name: str, pointer: StatePointer, data: bytes) -> bool:
        """Add and lock a row, or return ``True`` if a row with this name is still being removed."""
        added = HandleRow(name=name, handle=data)

        def change(tx: HandleTransaction) -> bool:
            tx.require_leader(self._attempt)
            found = tx.row(name)
            if found is None or _is_unreadable(found):
                tx.save(added)
            elif found.is_deleting:
                return True
            elif found.handle != data:
                raise HandleExistsError(
                    f"Expected no state handle {name!r}, found one; replace it or choose another name."
                )
            self._lock(tx, name)
            return False

        with self._discard_on_error(pointer, except_for=CommitStateUnknownError):
            return self._change_or_verify(name, change, committed=added, is_unchanged=_is_unreadable, result=False)

    def _replace(self, name: str, version: ResourceVersion, state: State) -> tuple[StatePointer, StatePointer]:
        old = _of_version(self._rows.find(name), name, version)
        pointer = self._storage.store(state)
        with self._discard_on_error(pointer):
            new = HandleRow(name=name, handle=pointer.encode(), version=old.version + 1)

        def change(tx: HandleTransaction) -> None:
            tx.require_leader(self._attempt)
            if _of_version(tx.row(name), name, version) != old:
                raise _other_version(name, version, "a handle that was removed and added again")
            tx.save(new)

        with self._discard_on_error(pointer, except_for=CommitStateUnknownError):
            self._change_or_verify(name, change, committed=new, is_unchanged=lambda row: row == old, result=None)
        return StatePointer.decode(old.handle), pointer

    def _remove(self, name: str, *, only_deleting: bool = False) -> bool:
        """
        Remove a handle in three steps: mark its row, discard its state, delete the row.

        After a crash in between, the row is still there and can be removed again.
        """
        marked = self._mark_deleting(name, only_deleting=only_deleting)
        if not isinstance(marked, HandleRow):
            return marked
        self._storage.discard(StatePointer.decode(marked.handle))
        return self._change_or_verify(
            name,
            lambda tx: self._erase(tx, marked),
            committed=None,
            is_unchanged=lambda row: row == marked,
            result=True,
        )

    def _mark_deleting(self, name: str, *, only_deleting: bool) -> HandleRow | bool:
        def mark(tx: HandleTransaction) -> HandleRow | bool:
            return self._mark_in(tx, name, only_deleting=only_deleting)

        try:
            return self._change(mark)
        except CommitStateUnknownError as unknown:
            # Marking is idempotent, so it can be repeated whether or not the first transaction committed.
            return self._repeated(mark, unknown)

    def _mark_in(self, tx: HandleTransaction, name: str, *, only_deleting: bool) -> HandleRow | bool:
        if not only_deleting:
            tx.unlock(self._holder, name)
        found = tx.row(name)
        if found is None:
            return True
        # Locks on a row that is being removed had expired when the removal started.
        is_in_use = not found.is_deleting and (only_deleting or tx.is_locked(name, besides=self._holder))
        if is_in_use or not self._is_leader(tx):
            return False
        if _is_unreadable(found):
            tx.remove(name)
            return True
        marked = replace(found, is_deleting=True)
        tx.save(marked)
        return marked

    def _erase(self, tx: HandleTransaction, marked: HandleRow) -> bool:
        if self._is_leader(tx) and tx.row(marked.name) == marked:
            tx.remove(marked.name)
        return tx.row(marked.name) is None

    def _is_leader(self, tx: HandleTransaction) -> bool:
        try:
            tx.require_leader(self._attempt)
        except StaleAttemptError:
            return False
        return True

    def _lock(self, tx: HandleTransaction, name: str) -> None:
        tx.lock(name, self._holder, tx.now + self._lease)

    def _change(self, change: Callable[[HandleTransaction], Result]) -> Result:
        """
        Run a change in a transaction.

        :raises CommitStateUnknownError: for errors from outside this package, after which the commit may have happened.
        """
        try:
            with self._rows.transaction() as tx:
                return change(tx)
        except StateCheckError:
            raise
        except Exception as error:
            raise CommitStateUnknownError(
                "Expected the database to commit the change of a state handle, found an error that leaves the outcome unknown; "
                "nothing was deleted. Read the handle before you repeat the call."
            ) from error

    def _change_or_verify(
        self,
        name: str,
        change: Callable[[HandleTransaction], Result],
        *,
        committed: HandleRow | None,
        is_unchanged: Callable[[HandleRow | None], bool],
        result: Result,
    ) -> Result:
        """
        Run a change, and read the row if the outcome of the commit is unknown.

        :param committed: Row of the name after the change, ``None`` after a removal.
        :param is_unchanged: Predicate for the row before the change.
        :param result: Result to return if the row shows that the change was committed.
        """
        try:
            return self._change(change)
        except CommitStateUnknownError as error:
            found = self._repeated(lambda tx: tx.row(name), error)
            if found == committed:
                return result
            if not is_unchanged(found):
                raise
            raise CoordinatorUnavailableError(
                f"Expected the database to change the state handle {name!r}, found it unchanged; repeat the call."
            ) from error

    def _repeated(self, change: Callable[[HandleTransaction], Result], unknown: CommitStateUnknownError) -> Result:
        try:
            # The first write of the transaction waits for a commit that is still in progress.
            return self._change(change)
        except StateCheckError:
            raise unknown from None

    @contextmanager
    def _discard_on_error(
        self, pointer: StatePointer, *, except_for: type[Exception] | tuple[()] = ()
    ) -> Iterator[None]:
        """Discard state after an error that prevented its row."""
        try:
            yield
        except except_for:
            raise
        except Exception as error:
            with _note_cleanup_error(error):
                self._storage.discard(pointer)
            raise


def _decoded(row: HandleRow) -> StatePointer | None:
    try:
        return StatePointer.decode(row.handle)
    except CorruptStateError as error:
        log.warning("Ignoring state handle %r, which cannot be read: %s", row.name, error)
        return None


def _is_unreadable(row: HandleRow | None) -> bool:
    return row is None or _decoded(row) is None


def _require_existing(row: HandleRow | None, name: str) -> HandleRow:
    if row is None or row.is_deleting:
        raise HandleNotFoundError(
            f"Expected a state handle {name!r}, found none or one that is being removed; add it first."
        )
    return row


def _of_version(row: HandleRow | None, name: str, version: ResourceVersion) -> HandleRow:
    found = _require_existing(None if _is_unreadable(row) else row, name)
    if found.version != version.value:
        raise _other_version(name, version, str(found.version))
    return found


def _other_version(name: str, version: ResourceVersion, found: str) -> ResourceVersionError:
    return ResourceVersionError(
        f"Expected version {version.value} of the state handle {name!r}, found {found}; another store changed it, read it again."
    )


def _require_state(name: str, state: object) -> None:
    _require_name(name)
    if state is None:
        raise InvalidConfigurationError(f"Expected state for the handle {name!r}, found None; nothing was written.")


def _require_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or "\0" in name:
        raise InvalidConfigurationError(
            f"Expected the name of a state handle to be 1 to {MAX_NAME} characters, found {name!r}; choose another name."
        )


@contextmanager
def _note_cleanup_error(first: Exception) -> Iterator[None]:
    """Attach an error of a cleanup to the error that caused the cleanup."""
    try:
        yield
    except Exception as error:
        log.warning("Cleanup failed; its files remain as orphan files", exc_info=True)
        first.add_note(f"The cleanup failed too: {error}")


def _raise_first(errors: list[Exception]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"Another handle could not be removed: {other}")
        raise errors[0]
