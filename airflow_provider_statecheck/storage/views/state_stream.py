"""A stream into which a task writes one piece of state."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.checkpoint.states.handles import StreamStateHandle


class CheckpointStateOutputStream(Protocol):
    """
    Used by one thread: ``write`` any number of times, then ``close_and_get_handle``.

    ``close`` before that, or a step that fails, leaves no state behind.
    """

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        ...

    def get_pos(self) -> int:
        """Return how many bytes were written, the buffered ones too."""
        ...

    def flush_to_file(self) -> None:
        """
        Let the state go to a file, however small it is.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        ...

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """
        Make the state durable and return where it is; ``None`` if nothing was written.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        ...

    def close(self) -> None:
        """Give up what was written, unless its handle was given out."""
        ...
