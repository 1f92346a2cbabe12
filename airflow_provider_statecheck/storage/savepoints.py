"""
Self-contained savepoints.

A savepoint holds copies of all files that its metadata names, in one directory. The directory can be moved as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.layout import slug
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    OperatorState,
    SegmentFileStateHandle,
    StreamStateHandle,
    with_streams,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, SnapshotHandle, write_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSavepoint:
    """Metadata location and size of a savepoint, reported to the coordinator."""

    metadata_uri: str
    metadata_size: int
    metadata_sha256: str
    state_size_bytes: int


def write_copies(
    copies: StateCopies,
    source: CheckpointDocument,
    *,
    checkpoint_id: int,
    properties: CheckpointProperties,
    request_key: str = "",
) -> WrittenSavepoint:
    """
    Copy a checkpoint into the directory of a savepoint, and write its metadata last.

    :param copies: Copies in the format of the savepoint.
    :param source: Metadata of the checkpoint.
    :param checkpoint_id: Id of the savepoint.
    :param properties: Properties of the savepoint.
    :param request_key: Key of the message that triggered the savepoint; empty for a savepoint without a row.
    :raises CheckpointNotFoundError: if a file of the source is missing.
    :raises StorageError: if the storage fails.
    """
    copy = replace(copies.of_document(source), checkpoint_id=checkpoint_id, request_key=request_key)
    document = replace(copy, properties=properties)
    file = write_metadata(copies.storage, copies.directory, document)
    return WrittenSavepoint(
        metadata_uri=file.uri,
        metadata_size=file.size,
        metadata_sha256=file.sha256,
        state_size_bytes=copies.size_bytes,
    )


class StateCopies:
    """
    Copies of the files that a checkpoint names; each file is copied once, to a name that is derived from its own.

    :param storage: Storage of the checkpoint and of the copies.
    :param directory: URI of the directory of the copies.
    :param epoch: Fencing epoch of the attempt that writes them.
    :param is_own: Returns whether a file need not be copied; by default all are copied.
    :param resumes: Whether to retain complete copies of an earlier call.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        directory: str,
        epoch: int,
        *,
        is_own: Callable[[str], bool] = lambda _: False,
        resumes: bool = False,
    ) -> None:
        self.storage = storage
        self.directory = directory
        self._epoch = epoch
        self._is_own = is_own
        self._resumes = resumes
        self._files: dict[str, FileStateHandle] = {}
        self.size_bytes = 0

    def of_document(self, source: CheckpointDocument) -> CheckpointDocument:
        """Copy all files of a checkpoint, and return its metadata with the copies; it has no commits to make."""
        return replace(
            source,
            has_commit=False,
            snapshots=tuple(self.of_snapshot(handle) for handle in source.snapshots),
            state=self.of_file(source.state) if isinstance(source.state, FileStateHandle) else source.state,
            operator_states=tuple(self.of_operator(state) for state in source.operator_states),
        )

    def of_operator(self, operator: OperatorState) -> OperatorState:
        """Copy the files of an operator, and return its state with the copies."""
        return with_streams(operator, self.of_stream)

    def of_snapshot(self, handle: SnapshotHandle) -> SnapshotHandle:
        """Copy the directory of a snapshot."""
        uri = f"{self.directory}/shared/{slug(handle.name, handle.scope)}/{handle.epoch}-{_digest(handle.uri)}"
        self.storage.copy_directory(handle.uri, uri, size_bytes=handle.size_bytes)
        self.size_bytes += handle.size_bytes
        return replace(handle, uri=uri)

    def of_file(self, handle: FileStateHandle) -> FileStateHandle:
        """Copy a file, unless it was copied before."""
        if handle.uri not in self._files:
            copy = replace(handle, uri=self._uri_of_copy(handle.uri))
            if not self._is_done(copy):
                self.storage.copy_file(handle.uri, copy.uri)
            self._add(handle.uri, copy)
        return self._files[handle.uri]

    def of_stream(self, stream: StreamStateHandle) -> StreamStateHandle:
        """Copy the file or segment of a handle; return a handle of inline state unchanged."""
        if isinstance(stream, ByteStreamStateHandle) or self._is_own(stream.uri):
            return stream
        return self.of_file(stream) if isinstance(stream, FileStateHandle) else self._of_segment(stream)

    def _of_segment(self, segment: SegmentFileStateHandle) -> FileStateHandle:
        # The other segments of the file can belong to other checkpoints.
        source = f"{segment.uri}#{segment.start}+{segment.length}"
        if source not in self._files:
            copy = FileStateHandle(uri=self._uri_of_copy(source), size=segment.length, sha256=segment.sha256)
            if not self._is_done(copy):
                data = self.storage.read_range(segment.uri, segment.start, segment.start + segment.length)
                self.storage.write_bytes(copy.uri, data)
            self._add(source, copy)
        return self._files[source]

    def _is_done(self, copy: FileStateHandle) -> bool:
        return self._resumes and self.storage.size_or_none(copy.uri) == copy.size

    def _add(self, source: str, copy: FileStateHandle) -> None:
        self._files[source] = copy
        self.size_bytes += copy.size

    def _uri_of_copy(self, source: str) -> str:
        return f"{self.directory}/{self._epoch}-{_digest(source)}"


def _digest(source: str) -> str:
    # A repeated copy replaces an interrupted one.
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:32]
