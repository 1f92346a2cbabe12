"""What the snapshot of a backend is and gives: Flink's two phases, of which the second may run in another thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class SnapshotResult(Generic[Handle]):
    """Where a snapshot went."""

    handle: Handle | None = None
    """For the coordinator; ``None`` if there was nothing to save."""
    new_bytes: int = 0
    """How many bytes were written for it; those of earlier snapshots do not count."""

    @classmethod
    def empty(cls) -> SnapshotResult[Handle]:
        """Return what is given where there was nothing to save."""
        return cls()

    @property
    def is_empty(self) -> bool:
        """Tell whether there was nothing to save."""
        return self.handle is None


class StateSnapshot(Protocol[Handle]):
    """A view of state at one moment that is still to be written; later changes are not in it."""

    def run(self) -> SnapshotResult[Handle]:
        """
        Write the state; called once, perhaps in another thread.

        :raises StorageError: if the storage fails; then no file is left.
        :raises SnapshotCancelledError: if it was cancelled.
        """
        ...

    def cancel(self) -> None:
        """End the writing and delete what it wrote; without effect once it is done."""
        ...
