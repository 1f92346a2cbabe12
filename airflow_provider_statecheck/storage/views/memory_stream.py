"""A stream of state that always travels in its handle."""

from __future__ import annotations

import io
import uuid

from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle
from airflow_provider_statecheck.exceptions import StorageError


class MemoryCheckpointOutputStream:
    """
    Keeps what is written in memory.

    :param max_state_size: How many bytes the state may have.
    """

    def __init__(self, max_state_size: int) -> None:
        self._max_state_size = max_state_size
        self._buffer = io.BytesIO()
        self._position = 0

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if the stream is closed.
        """
        self._require_open()
        self._position += self._buffer.write(data)

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        return self._position

    def flush_to_file(self) -> None:
        """
        Do nothing on an open stream: there is no file.

        :raises StorageError: if the stream is closed.
        """
        self._require_open()

    def close_and_get_handle(self) -> ByteStreamStateHandle | None:
        """
        Return the state in its handle; nothing written is no handle.

        :raises StorageError: if the stream is closed, or the state is too large.
        """
        self._require_open()
        data = self._buffer.getvalue()
        self.close()
        if len(data) > self._max_state_size:
            raise StorageError(
                f"Expected state of at most {self._max_state_size} bytes, because it is kept in memory, found {len(data)}; "
                f"raise the limit, or set execution.checkpointing.dir, so that state goes to files."
            )
        return ByteStreamStateHandle(uuid.uuid4().hex, data) if data else None

    def close(self) -> None:
        """Forget what was written, unless its handle was given out."""
        self._buffer.close()

    def _require_open(self) -> None:
        if self._buffer.closed:
            raise StorageError("Expected an open stream of state, found a closed one; open another stream.")
