"""The stream of a checkpoint's metadata, which is published whole or not at all."""

from __future__ import annotations

import hashlib
import io
from typing import Protocol

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact
from airflow_provider_statecheck.storage.views.completed_location import (
    CompletedCheckpointStorageLocation,
    FsCompletedCheckpointStorageLocation,
)


class CheckpointMetadataOutputStream(Protocol):
    """``write`` any number of times, then ``close_and_finalize_checkpoint``; ``close`` before that leaves no metadata."""

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if the stream is closed.
        """
        ...

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        ...

    def flush(self) -> None:
        """
        Do nothing on an open stream: nobody sees metadata before it is whole.

        :raises StorageError: if the stream is closed.
        """
        ...

    def close_and_finalize_checkpoint(self) -> CompletedCheckpointStorageLocation:
        """
        Publish the metadata.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        ...

    def close(self) -> None:
        """Give up what was written, unless it was published."""
        ...


class BufferedMetadata:
    """Bytes that nobody sees before they are whole."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._require_open()
        self._buffer.write(data)

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        self._require_open()
        return self._buffer.tell()

    def flush(self) -> None:
        """Refuse a closed stream."""
        self._require_open()

    def close(self) -> None:
        """Forget the bytes."""
        self._buffer.close()

    def content(self) -> bytes:
        """Return what was written."""
        self._require_open()
        return self._buffer.getvalue()

    def _require_open(self) -> None:
        if self._buffer.closed:
            raise StorageError("Expected an open stream of metadata, found a closed one; open another stream.")


class FsCheckpointMetadataOutputStream(BufferedMetadata):
    """
    Metadata as a file.

    :param storage: Where it goes.
    :param directory: The checkpoint's own directory.
    :raises StorageError: if metadata is there already: two checkpoints must never share a directory.
    """

    def __init__(self, storage: CheckpointStorage, directory: str) -> None:
        super().__init__()
        self._storage = storage
        self._directory = directory
        self._uri = f"{directory}/{METADATA_FILE}"
        if storage.exists(self._uri):
            raise StorageError(
                f"Expected no metadata at {redact(self._uri)}, found some; two checkpoints share a directory.",
                uri=redact(self._uri),
            )

    def close_and_finalize_checkpoint(self) -> FsCompletedCheckpointStorageLocation:
        """
        Publish the file; after a failure it may be called again.

        A failure deletes nothing, because what is there by then may be another's.

        :raises StorageError: if the stream is closed, the storage fails, or others wrote metadata meanwhile.
        """
        data = self.content()
        self._storage.write_bytes(self._uri, data)
        self.close()
        handle = FileStateHandle(self._uri, len(data), hashlib.sha256(data).hexdigest())
        return FsCompletedCheckpointStorageLocation(self._storage, self._directory, handle)
