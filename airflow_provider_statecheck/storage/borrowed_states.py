"""State in files of somebody else, who may delete them at any time: copied to the operator that goes on with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.layout import STATE_DIRECTORY, shared_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.checkpoint.states.streams import with_streams
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedStates:
    """State of operators of which every file belongs to the operator itself."""

    states: tuple[OperatorState, ...]
    copied_bytes: int


def own_borrowed(storage: CheckpointStorage, states: Iterable[OperatorState], attempt: AttemptRef) -> OwnedStates:
    """
    Copy the files of state that belong to the owner of a snapshot which was restored without a claim.

    A call that failed is made good by the next one of the same attempt, which copies only what is missing.

    :param storage: Where the attempt writes.
    :param states: What the next checkpoint is to name.
    :param attempt: Who writes; what it or its forerunners wrote for checkpoints to share is not copied.
    :raises CheckpointNotFoundError: if a file is missing, because its owner deleted it.
    :raises StorageError: if one cannot be copied.
    """
    copies = _OwnCopies(storage, attempt)
    owned = tuple(with_streams(state, copies.of_stream) for state in states)
    return OwnedStates(states=owned, copied_bytes=copies.size_bytes)


class _OwnCopies:
    """Copies each foreign stream once."""

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef) -> None:
        self._storage = storage
        self._epoch = attempt.epoch
        self._shared = shared_uri(storage.base_uri, attempt.job_id, attempt.operator_id)
        self._copies: dict[StreamStateHandle, FileStateHandle] = {}
        self.size_bytes = 0

    def of_stream(self, stream: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(stream, FileStateHandle | SegmentFileStateHandle) or self._is_own(stream.uri):
            return stream
        if stream not in self._copies:
            self._copies[stream] = self._copy(stream)
        return self._copies[stream]

    def _is_own(self, uri: str) -> bool:
        # Not what lies in the directory of a checkpoint: that may be the very one which was restored without a claim.
        return uri.startswith(f"{self._shared}/")

    def _copy(self, stream: FileStateHandle | SegmentFileStateHandle) -> FileStateHandle:
        copy = FileStateHandle(uri=self._uri_of(stream), size=stream.state_size, sha256=stream.sha256)
        if not self._is_there(copy):
            self._write(stream, copy)
        self.size_bytes += copy.size
        return copy

    def _write(self, stream: FileStateHandle | SegmentFileStateHandle, copy: FileStateHandle) -> None:
        if isinstance(stream, FileStateHandle):
            self._storage.copy_file(stream.uri, copy.uri)
            return
        # The rest of its file belongs to others.
        data = self._storage.read_range(stream.uri, stream.start, stream.start + stream.length)
        self._storage.write_bytes(copy.uri, data)

    def _is_there(self, copy: FileStateHandle) -> bool:
        try:
            return self._storage.size(copy.uri) == copy.size
        except CheckpointNotFoundError:
            return False

    def _uri_of(self, stream: FileStateHandle | SegmentFileStateHandle) -> str:
        # The same each time that one attempt copies it.
        part = f"{stream.start}+{stream.length}" if isinstance(stream, SegmentFileStateHandle) else ""
        name = hashlib.sha256(f"{stream.uri}#{part}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._shared}/{STATE_DIRECTORY}/{self._epoch}-{name}"
