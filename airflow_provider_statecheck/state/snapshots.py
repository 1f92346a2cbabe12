"""Contract of the snapshots of a state backend: captured first, written later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class StateSize:
    """Number of keys and size of one state in a snapshot, as far as the backend knows them."""

    name: str
    keys: int | None = None
    """Number of keys, counted once for each namespace; ``None`` if only a scan could tell."""
    size_bytes: int | None = None
    """Size of the files of the state; ``None`` if it shares a file with other states."""


@dataclass(frozen=True, slots=True)
class SnapshotResult(Generic[Handle]):
    """Result of a snapshot."""

    handle: Handle | None = None
    """Handle of the snapshot; ``None`` if there was no state."""
    new_bytes: int = 0
    """Bytes written by this snapshot, without the files of earlier snapshots."""
    sizes: tuple[StateSize, ...] = ()
    """Sizes of single states, for display; a backend may omit them."""

    @classmethod
    def empty(cls) -> SnapshotResult[Handle]:
        """Return the result of a snapshot without state."""
        return cls()

    @property
    def is_empty(self) -> bool:
        """Return whether there was no state."""
        return self.handle is None


class StateSnapshot(Protocol[Handle]):
    """Captured state that is not written yet. Later changes are not included."""

    def run(self) -> SnapshotResult[Handle]:
        """
        Write the state. Called once, possibly in another thread.

        :raises StorageError: if the storage fails; written files are deleted.
        :raises SnapshotCancelledError: if the snapshot was cancelled.
        """
        ...

    def cancel(self) -> None:
        """Stop the write and delete its files. Has no effect after the end of the write."""
        ...
