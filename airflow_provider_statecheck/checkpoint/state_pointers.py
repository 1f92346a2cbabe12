"""Pointers to state on storage, and the contract of a store that keeps them."""

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
    """Version of a handle, which counts its replacements; -1 for a missing handle."""

    value: int

    @staticmethod
    def not_existing() -> ResourceVersion:
        """Return the version of a missing handle."""
        return ResourceVersion(-1)

    @property
    def is_existing(self) -> bool:
        """Return whether the handle exists."""
        return self.value >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePointer:
    """URI, size and checksum of state on storage."""

    uri: str
    size: int
    sha256: str

    def encode(self) -> bytes:
        """
        Encode the pointer for a row.

        :raises InvalidConfigurationError: if the result is too large for a row.
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
        Decode a pointer.

        :raises CorruptStateError: if the data cannot be read or has another format.
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
    Return the URIs of encoded pointers.

    :return: The sorted URIs, or ``None`` if a pointer cannot be read.
    """
    try:
        return tuple(sorted(StatePointer.decode(handle).uri for handle in handles))
    except CorruptStateError as error:
        log.warning("Could not determine the state in use: %s", error)
        return None


def _fits(values: dict[str, Any]) -> bool:
    return isinstance(values["uri"], str) and type(values["size"]) is int and isinstance(values["sha256"], str)


def _undecodable(data: bytes) -> CorruptStateError:
    return CorruptStateError(
        f"Expected a state handle of format {FORMAT}, found {len(data)} bytes in another format; "
        "the row is damaged, or a newer release wrote it."
    )


class StateStorage(Protocol[State]):
    """Storage that writes each state to a new file."""

    def store(self, state: State) -> StatePointer:
        """Write state completely, or raise an error and leave no file."""
        ...

    def retrieve(self, pointer: StatePointer) -> State:
        """Read state that is equal to the stored one."""
        ...

    def discard(self, pointer: StatePointer) -> None:
        """Delete the file; a missing file is not an error."""
        ...


@dataclass(frozen=True, slots=True)
class RetrievableStateHandle(Generic[State]):
    """Pointer with the storage that resolves it."""

    pointer: StatePointer
    storage: StateStorage[State]

    def retrieve_state(self) -> State:
        """Return the state."""
        return self.storage.retrieve(self.pointer)

    def discard_state(self) -> None:
        """Delete the state; a repeated call has no effect."""
        self.storage.discard(self.pointer)

    def get_state_size(self) -> int:
        """Return the size of the state in bytes."""
        return self.pointer.size


class StateHandleStore(Protocol[State]):
    """
    Store of named state: pointers in a database, state on storage.

    Only the newest attempt of an operator may change its handles. A lock prevents the removal of a handle that a store uses.
    All operations may raise a ``CoordinatorError`` for the database and a ``StorageError`` for the storage.
    """

    def add_and_lock(self, name: str, state: State) -> RetrievableStateHandle[State]:
        """
        Store state under a new name and lock the handle.

        :raises HandleExistsError: if the name has a handle.
        :raises StaleAttemptError: if a newer attempt has registered.
        :raises CommitStateUnknownError: if it is unknown whether the handle was added; nothing was deleted.
        :raises InvalidConfigurationError: for an invalid name, or ``None`` as state.
        """
        ...

    def replace(self, name: str, version: ResourceVersion, state: State) -> None:
        """
        Store state under an existing name and discard the previous state.

        :raises HandleNotFoundError: if the name has no handle.
        :raises ResourceVersionError: if the handle has another version.
        :raises StaleAttemptError: if a newer attempt has registered.
        :raises CommitStateUnknownError: if it is unknown whether the handle was replaced; neither state was deleted.
        """
        ...

    def exists(self, name: str) -> ResourceVersion:
        """Return the version of a handle; a handle that is being removed or cannot be read does not exist."""
        ...

    def get_and_lock(self, name: str) -> RetrievableStateHandle[State]:
        """
        Lock a handle and return it.

        :raises HandleNotFoundError: if the handle does not exist or is being removed.
        :raises CorruptStateError: if the handle cannot be read; it is not locked then.
        """
        ...

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[State], str]]:
        """Lock all readable handles in one transaction and return them with their names."""
        ...

    def get_all_handles(self) -> list[str]:
        """Return all names, including those of handles that are being removed."""
        ...

    def release_and_try_remove(self, name: str) -> bool:
        """
        Release a lock, and remove the handle with its state unless another store has locked it.

        :return: Whether the handle is removed.
        """
        ...

    def release_and_try_remove_all(self) -> bool:
        """
        Try to remove all handles, and continue after an error.

        :return: Whether all handles are removed.
        """
        ...

    def clear_entries(self) -> None:
        """
        Remove all handles but not their state.

        :raises StaleAttemptError: if a newer attempt has registered.
        """
        ...

    def release(self, name: str) -> None:
        """Release the lock on a handle, if this store has one."""
        ...

    def release_all(self) -> None:
        """Release all locks of this store."""
        ...

    def renew_locks(self) -> None:
        """Extend all locks of this store by another lease."""
        ...
