"""
Self-contained savepoints.

A savepoint holds copies of all files that its metadata names, in one directory. The directory can be moved as a whole.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, slug
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
    with_streams,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, SnapshotHandle, encode_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSavepoint:
    """Metadata location and size of a savepoint, reported to the coordinator."""

    metadata_uri: str
    metadata_size: int
    metadata_sha256: str
    state_size_bytes: int


def write_savepoint(
    storage: CheckpointStorage,
    source: CheckpointDocument,
    *,
    directory: str,
    checkpoint_id: int,
    properties: CheckpointProperties,
    request_key: str = "",
) -> WrittenSavepoint:
    """
    Copy a checkpoint into a savepoint directory, and write its metadata last.

    :param source: Metadata of the checkpoint.
    :param directory: URI of the savepoint directory; it must have no other writer.
    :param checkpoint_id: Id of the savepoint.
    :param properties: Properties of the savepoint.
    :param request_key: Key of the message that triggered the savepoint; empty for a savepoint without a row.
    :raises CheckpointNotFoundError: if a file of the source is missing.
    :raises StorageError: if the storage fails.
    """
    copies = StateCopies(storage, directory, source.epoch)
    copy = replace(copies.of_document(source), checkpoint_id=checkpoint_id, request_key=request_key)
    document = replace(copy, properties=properties)
    uri = f"{directory}/{METADATA_FILE}"
    data = encode_metadata(document, uri=uri)
    storage.write_bytes(uri, data)
    return WrittenSavepoint(
        metadata_uri=uri,
        metadata_size=len(data),
        metadata_sha256=hashlib.sha256(data).hexdigest(),
        state_size_bytes=copies.size_bytes,
    )


class StateCopies:
    """
    Copies of the files that a checkpoint names; each file is copied once, to a name that is derived from its own.

    :param storage: Storage of the checkpoint and of the copies.
    :param directory: URI of the directory of the copies.
    :param epoch: Fencing epoch of the attempt that writes them.
    """

    def __init__(self, storage: CheckpointStorage, directory: str, epoch: int) -> None:
        self._storage = storage
        self._directory = directory
        self._epoch = epoch
        self._files: dict[str, FileStateHandle] = {}
        self.size_bytes = 0

    def of_document(self, source: CheckpointDocument) -> CheckpointDocument:
        """Copy all files of a checkpoint, and return its metadata with the copies; it has no commits to make."""
        return replace(
            source,
            has_commit=False,
            snapshots=tuple(self.of_snapshot(handle) for handle in source.snapshots),
            state=self.of_file(source.state) if isinstance(source.state, FileStateHandle) else source.state,
            operator_states=tuple(with_streams(state, self.of_stream) for state in source.operator_states),
        )

    def of_snapshot(self, handle: SnapshotHandle) -> SnapshotHandle:
        """Copy the directory of a snapshot."""
        uri = f"{self._directory}/shared/{slug(handle.name, handle.scope)}/{handle.epoch}-{_digest(handle.uri)}"
        self._storage.copy_directory(handle.uri, uri, size_bytes=handle.size_bytes)
        self.size_bytes += handle.size_bytes
        return replace(handle, uri=uri)

    def of_file(self, handle: FileStateHandle) -> FileStateHandle:
        """Copy a file, unless it was copied before."""
        if handle.uri not in self._files:
            self._files[handle.uri] = replace(handle, uri=self._uri_of_copy(handle.uri))
            self._storage.copy_file(handle.uri, self._files[handle.uri].uri)
            self.size_bytes += handle.size
        return self._files[handle.uri]

    def of_stream(self, stream: StreamStateHandle) -> StreamStateHandle:
        """Copy the file or segment of a handle; return a handle of inline state unchanged."""
        if isinstance(stream, FileStateHandle):
            return self.of_file(stream)
        return self._of_segment(stream) if isinstance(stream, SegmentFileStateHandle) else stream

    def _of_segment(self, segment: SegmentFileStateHandle) -> FileStateHandle:
        # The other segments of the file can belong to other checkpoints.
        uri = self._uri_of_copy(f"{segment.uri}#{segment.start}+{segment.length}")
        copy = FileStateHandle(uri=uri, size=segment.length, sha256=segment.sha256)
        data = self._storage.read_range(segment.uri, segment.start, segment.start + segment.length)
        self._storage.write_bytes(copy.uri, data)
        self.size_bytes += segment.length
        return copy

    def _uri_of_copy(self, source: str) -> str:
        return f"{self._directory}/{self._epoch}-{_digest(source)}"


def _digest(source: str) -> str:
    # A repeated copy replaces an interrupted one.
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:32]
