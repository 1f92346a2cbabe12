"""State handle store with leased locks, fenced by the operator's epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, require
from airflow_provider_statecheck.checkpoint.state_handles import (
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


log = logging.getLogger(__name__)
Result = TypeVar("Result")


class LeasedStateHandleStore(Generic[State]):
    """
    A :class:`~airflow_provider_statecheck.checkpoint.state_handles.StateHandleStore` over rows and a storage.

    :param rows: The handles of one operator.
    :param storage: Where state is written.
    :param attempt: In whose name handles are changed.
    :param lease_seconds: How long a lock lives that nobody renews, an hour at most.
    :param holder: In whose name handles are locked; stores that stand for one another share it. By default this one alone.
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
        """Store state under a new name, locked."""
        _require(name, state)
        pointer = self._storage.store(state)
        with self._discarding(pointer):
            data = pointer.encode()
        while self._is_dying_at_add(name, pointer, data):
            with self._discarding(pointer):
                self._remove(name, only_dying=True)
        return RetrievableStateHandle(pointer, self._storage)

    def replace(self, name: str, version: ResourceVersion, state: State) -> None:
        """Store state under a name that has some, and discard that."""
        _require(name, state)
        try:
            old, new = self._replace(name, version, state)
        except HandleNotFoundError as error:
            with _noting(error):
                self._remove(name, only_dying=True)
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
        """Return a handle, locked."""
        _require_name(name)

        def change(tx: HandleTransaction) -> StatePointer:
            pointer = StatePointer.decode(_live(tx.row(name), name).handle)
            self._lock(tx, name)
            return pointer

        return RetrievableStateHandle(self._change(change), self._storage)

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[State], str]]:
        """Return all handles that can be read, as they were at one moment, each locked."""

        def change(tx: HandleTransaction) -> list[tuple[StatePointer, str]]:
            live = [(_decoded(row), row.name) for row in tx.rows() if not row.is_deleting]
            found = [(pointer, name) for pointer, name in live if pointer is not None]
            for _, name in found:
                self._lock(tx, name)
            return found

        return [(RetrievableStateHandle(pointer, self._storage), name) for pointer, name in self._change(change)]

    def get_all_handles(self) -> list[str]:
        """Return all names, those that are being removed too."""
        return [row.name for row in self._rows.read()]

    def release_and_try_remove(self, name: str) -> bool:
        """Give a lock up and remove the handle with its state unless another store uses it."""
        _require_name(name)
        return self._remove(name)

    def release_and_try_remove_all(self) -> bool:
        """Try to remove every handle, whatever fails in between."""
        results, errors = [], []
        for name in self.get_all_handles():
            try:
                results.append(self.release_and_try_remove(name))
            except Exception as error:
                errors.append(error)
        _raise_first(errors)
        return all(results)

    def clear_entries(self) -> None:
        """Remove all handles and keep their state."""

        def change(tx: HandleTransaction) -> None:
            tx.require_leader(self._attempt)
            for row in tx.rows():
                tx.remove(row.name)

        self._change(change)

    def release(self, name: str) -> None:
        """Give the lock on a handle up."""
        _require_name(name)
        self._change(lambda tx: tx.unlock(self._holder, name))

    def release_all(self) -> None:
        """Give all locks of this store up."""
        self._change(lambda tx: tx.unlock(self._holder))

    def renew_locks(self) -> None:
        """Let all locks of this store live on for another lease."""

        def change(tx: HandleTransaction) -> None:
            for name in tx.locks_of(self._holder):
                self._lock(tx, name)

        self._change(change)

    def _is_dying_at_add(self, name: str, pointer: StatePointer, data: bytes) -> bool:
        added = HandleRow(name=name, handle=data)

        def change(tx: HandleTransaction) -> bool:
            tx.require_leader(self._attempt)
            found = tx.row(name)
            if found is None or _is_unreadable(found):
                tx.save(added)
            elif found.is_deleting:
                return True
            elif found.handle != data:
                raise HandleExistsError(f"There is a state handle {name!r} already; replace it or take another name.")
            self._lock(tx, name)
            return False

        with self._discarding(pointer, but_for=CommitStateUnknownError):
            return self._settled(name, change, landed=added, is_untouched=_is_unreadable, result=False)

    def _replace(self, name: str, version: ResourceVersion, state: State) -> tuple[StatePointer, StatePointer]:
        old = _of_version(self._rows.find(name), name, version)
        pointer = self._storage.store(state)
        with self._discarding(pointer):
            new = HandleRow(name=name, handle=pointer.encode(), version=old.version + 1)

        def change(tx: HandleTransaction) -> None:
            tx.require_leader(self._attempt)
            if _of_version(tx.row(name), name, version) != old:
                raise _other_version(name, version, "one that was removed and added again")
            tx.save(new)

        with self._discarding(pointer, but_for=CommitStateUnknownError):
            self._settled(name, change, landed=new, is_untouched=lambda row: row == old, result=None)
        return StatePointer.decode(old.handle), pointer

    def _remove(self, name: str, *, only_dying: bool = False) -> bool:
        """Mark the row, discard the bytes, delete the row: a crash in between leaves a row that can be removed again."""
        claimed = self._claimed(name, only_dying=only_dying)
        if not isinstance(claimed, HandleRow):
            return claimed
        self._storage.discard(StatePointer.decode(claimed.handle))
        return self._settled(
            name,
            lambda tx: self._erase(tx, claimed),
            landed=None,
            is_untouched=lambda row: row == claimed,
            result=True,
        )

    def _claimed(self, name: str, *, only_dying: bool) -> HandleRow | bool:
        def claim(tx: HandleTransaction) -> HandleRow | bool:
            return self._claim(tx, name, only_dying=only_dying)

        try:
            return self._change(claim)
        except CommitStateUnknownError as unknown:
            # Whatever became of the first, a second claim finds out and does the rest.
            return self._repeated(claim, unknown)

    def _claim(self, tx: HandleTransaction, name: str, *, only_dying: bool) -> HandleRow | bool:
        if not only_dying:
            tx.unlock(self._holder, name)
        found = tx.row(name)
        if found is None:
            return True
        # A lock on a row that is being removed had lapsed when the removal began.
        is_kept = not found.is_deleting and (only_dying or tx.is_locked(name, besides=self._holder))
        if is_kept or not self._leads(tx):
            return False
        if _is_unreadable(found):
            tx.remove(name)
            return True
        dying = replace(found, is_deleting=True)
        tx.save(dying)
        return dying

    def _erase(self, tx: HandleTransaction, dying: HandleRow) -> bool:
        if self._leads(tx) and tx.row(dying.name) == dying:
            tx.remove(dying.name)
        return tx.row(dying.name) is None

    def _leads(self, tx: HandleTransaction) -> bool:
        try:
            tx.require_leader(self._attempt)
        except StaleAttemptError:
            return False
        return True

    def _lock(self, tx: HandleTransaction, name: str) -> None:
        tx.lock(name, self._holder, tx.now + self._lease)

    def _change(self, change: Callable[[HandleTransaction], Result]) -> Result:
        """Only errors of this package say that nothing was committed; whatever else is raised says nothing."""
        try:
            with self._rows.transaction() as tx:
                return change(tx)
        except StateCheckError:
            raise
        except Exception as error:
            raise CommitStateUnknownError(
                "The database failed in a way that does not tell whether the state handle was changed; nothing was "
                "deleted. Look at the handle before you repeat the call."
            ) from error

    def _settled(
        self,
        name: str,
        change: Callable[[HandleTransaction], Result],
        *,
        landed: HandleRow | None,
        is_untouched: Callable[[HandleRow | None], bool],
        result: Result,
    ) -> Result:
        """Change, and look what became of it where the commit does not tell."""
        try:
            return self._change(change)
        except CommitStateUnknownError as error:
            found = self._repeated(lambda tx: tx.row(name), error)
            if found == landed:
                return result
            if not is_untouched(found):
                raise
            raise CoordinatorUnavailableError(
                f"The database did not carry out the change of the state handle {name!r}; nothing was changed. Try again."
            ) from error

    def _repeated(self, change: Callable[[HandleTransaction], Result], unknown: CommitStateUnknownError) -> Result:
        try:
            # In a transaction: its first write waits for a commit that is still under way.
            return self._change(change)
        except StateCheckError:
            raise unknown from None

    @contextmanager
    def _discarding(self, pointer: StatePointer, *, but_for: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """Discard bytes that no row came to point to."""
        try:
            yield
        except but_for:
            raise
        except Exception as error:
            with _noting(error):
                self._storage.discard(pointer)
            raise


def _decoded(row: HandleRow) -> StatePointer | None:
    try:
        return StatePointer.decode(row.handle)
    except CorruptStateError as error:
        log.warning("The state handle %r cannot be read and counts as missing: %s", row.name, error)
        return None


def _is_unreadable(row: HandleRow | None) -> bool:
    return row is None or _decoded(row) is None


def _live(row: HandleRow | None, name: str) -> HandleRow:
    if row is None or row.is_deleting:
        raise HandleNotFoundError(f"There is no state handle {name!r}, or it is being removed; add it first.")
    return row


def _of_version(row: HandleRow | None, name: str, version: ResourceVersion) -> HandleRow:
    found = _live(None if _is_unreadable(row) else row, name)
    if found.version != version.value:
        raise _other_version(name, version, str(found.version))
    return found


def _other_version(name: str, version: ResourceVersion, found: str) -> ResourceVersionError:
    return ResourceVersionError(
        f"Expected version {version.value} of the state handle {name!r}, found {found}; somebody changed it, read it again."
    )


def _require(name: str, state: object) -> None:
    _require_name(name)
    if state is None:
        raise InvalidConfigurationError(f"Expected state for the handle {name!r}, found None; nothing was written.")


def _require_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or "\0" in name:
        raise InvalidConfigurationError(
            f"Expected the name of a state handle to be 1 to {MAX_NAME} characters, found {name!r}; choose another name."
        )


@contextmanager
def _noting(first: Exception) -> Iterator[None]:
    """Attach an error in cleaning up to the one that made it necessary."""
    try:
        yield
    except Exception as error:
        log.warning("Cleaning up failed and left bytes behind", exc_info=True)
        first.add_note(f"Cleaning up failed too: {error}")


def _raise_first(errors: list[Exception]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"Another handle could not be removed either: {other}")
        raise errors[0]
