"""State handles: the pointers that a state handle store keeps."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError

log = logging.getLogger(__name__)
State = TypeVar("State")

FORMAT = 1
MAX_HANDLE_BYTES = 64 * 1024
MAX_NAME = 255


@dataclass(frozen=True, slots=True, order=True)
class ResourceVersion:
    """How often the handle under a name was replaced; -1 where there is none."""

    value: int

    @staticmethod
    def not_existing() -> ResourceVersion:
        """Return the version of a name without a handle."""
        return ResourceVersion(-1)

    @property
    def is_existing(self) -> bool:
        """Tell whether there is a handle."""
        return self.value >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePointer:
    """Where state lies and how to tell that it is whole."""

    uri: str
    size: int
    sha256: str

    def encode(self) -> bytes:
        """
        Return it as it is kept in a row.

        :raises InvalidConfigurationError: if it is too large for a row.
        """
        data = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()
        if len(data) > MAX_HANDLE_BYTES:
            raise InvalidConfigurationError(
                f"Expected a state handle of at most {MAX_HANDLE_BYTES} bytes, found {len(data)}; keep state on storage."
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> StatePointer:
        """
        Return what was encoded.

        :raises CorruptStateError: if it cannot be read, or is of another format.
        """
        try:
            values: dict[str, Any] = json.loads(data)
            is_known = values.pop("format") == FORMAT and _fits(values)
            pointer = cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _undecodable(data) from error
        if not is_known:
            raise _undecodable(data)
        return pointer


def uris_of(handles: Iterable[bytes]) -> tuple[str, ...] | None:
    """
    Return where the state of encoded pointers lies.

    :return: ``None`` if one of them cannot be read: then nobody knows what it points to.
    """
    try:
        return tuple(sorted(StatePointer.decode(handle).uri for handle in handles))
    except CorruptStateError as error:
        log.warning("Nobody knows which state is in use: %s", error)
        return None


def _fits(values: dict[str, Any]) -> bool:
    return isinstance(values["uri"], str) and type(values["size"]) is int and isinstance(values["sha256"], str)


def _undecodable(data: bytes) -> CorruptStateError:
    return CorruptStateError(
        f"Expected a state handle of format {FORMAT}, found {len(data)} bytes that are none; "
        "the row was changed, or a newer version wrote it."
    )


class StateStorage(Protocol[State]):
    """Writes state as bytes, each time under a name of its own."""

    def store(self, state: State) -> StatePointer:
        """Write state completely, or leave nothing and raise."""
        ...

    def retrieve(self, pointer: StatePointer) -> State:
        """Return state equal to what was stored."""
        ...

    def discard(self, pointer: StatePointer) -> None:
        """Delete the bytes; that they are missing is success."""
        ...


@dataclass(frozen=True, slots=True)
class RetrievableStateHandle(Generic[State]):
    """A pointer together with the storage that can follow it."""

    pointer: StatePointer
    storage: StateStorage[State]

    def retrieve_state(self) -> State:
        """Return the state."""
        return self.storage.retrieve(self.pointer)

    def discard_state(self) -> None:
        """Delete the state's bytes; repeating it is success."""
        self.storage.discard(self.pointer)

    def get_state_size(self) -> int:
        """Return how many bytes the state takes."""
        return self.pointer.size


class StateHandleStore(Protocol[State]):
    """
    Keeps pointers in a database and what they point to on storage.

    Whoever changes a handle holds the operator's epoch; a lock says that a store uses a handle and it must not be removed.
    Every operation may raise a ``CoordinatorError`` for the database and a ``StorageError`` for the storage.
    """

    def add_and_lock(self, name: str, state: State) -> RetrievableStateHandle[State]:
        """
        Store state under a new name, locked.

        :raises HandleExistsError: if the name has a handle.
        :raises StaleAttemptError: if a newer attempt owns the operator.
        :raises CommitStateUnknownError: if it may or may not have been added; nothing was deleted.
        :raises InvalidConfigurationError: for a name or state that is none.
        """
        ...

    def replace(self, name: str, version: ResourceVersion, state: State) -> None:
        """
        Store state under a name that has some, and discard that.

        :raises HandleNotFoundError: if the name has no handle.
        :raises ResourceVersionError: if the handle is of another version.
        :raises StaleAttemptError: if a newer attempt owns the operator.
        :raises CommitStateUnknownError: if it may or may not have been replaced; neither state was deleted.
        """
        ...

    def exists(self, name: str) -> ResourceVersion:
        """Return the version of a handle; one that is being removed or cannot be read does not exist."""
        ...

    def get_and_lock(self, name: str) -> RetrievableStateHandle[State]:
        """
        Return a handle, locked.

        :raises HandleNotFoundError: if there is none, or it is being removed.
        :raises CorruptStateError: if it cannot be read; it is not locked then.
        """
        ...

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[State], str]]:
        """Return all handles that can be read, with their names, as they were at one moment, each locked."""
        ...

    def get_all_handles(self) -> list[str]:
        """Return all names, those that are being removed too."""
        ...

    def release_and_try_remove(self, name: str) -> bool:
        """Give a lock up and remove the handle with its state unless another store uses it; tell whether it is gone."""
        ...

    def release_and_try_remove_all(self) -> bool:
        """Try to remove every handle, whatever fails in between; tell whether all are gone."""
        ...

    def clear_entries(self) -> None:
        """
        Remove all handles and keep their state.

        :raises StaleAttemptError: if a newer attempt owns the operator.
        """
        ...

    def release(self, name: str) -> None:
        """Give the lock on a handle up; without one nothing happens."""
        ...

    def release_all(self) -> None:
        """Give all locks of this store up."""
        ...

    def renew_locks(self) -> None:
        """Let all locks of this store live on for another lease."""
        ...
