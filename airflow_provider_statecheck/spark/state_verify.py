"""Whether the files are there and unchanged that hold the state of operators."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    PlaceholderStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.streams import streams_of
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.documents import UNREADABLE
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class StateVerifier:
    """
    Looks at the streams that checkpoints name, at each once however many name it.

    :param storage: Where the bytes are.
    :param is_deep: Whether to read and compare bytes too, where the handle has a checksum.
    """

    def __init__(self, storage: CheckpointStorage, *, is_deep: bool = False) -> None:
        self._storage = storage
        self._is_deep = is_deep
        self._seen: dict[StreamStateHandle, str] = {}

    def problems(self, document: CheckpointDocument) -> list[str]:
        """
        Say what is wrong with each stream that the operators' state names, once.

        :raises StorageError: if the storage does not answer.
        """
        streams = {(state.uid, stream): None for state in document.operator_states for stream in streams_of(state)}
        self._look_at_all([stream for _, stream in streams])
        found = ((uid, self._seen[stream]) for uid, stream in streams)
        return [f"state of operator {uid!r}: {problem}" for uid, problem in found if problem]

    def _look_at_all(self, streams: Iterable[StreamStateHandle]) -> None:
        unseen = [stream for stream in dict.fromkeys(streams) if stream not in self._seen]
        # An object store takes its time for each file, however small the answer.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self._seen.update(zip(unseen, pool.map(self._look_at, unseen), strict=True))

    def _look_at(self, stream: StreamStateHandle) -> str:
        try:
            _require(self._storage, stream, is_deep=self._is_deep)
        except UNREADABLE as error:
            return str(error)
        return ""


def _require(storage: CheckpointStorage, stream: StreamStateHandle, *, is_deep: bool) -> None:
    if isinstance(stream, PlaceholderStateHandle):
        raise CorruptStateError("Expected a handle with state, found a placeholder; the state was never uploaded.")
    if isinstance(stream, FileStateHandle):
        _require_size(storage.size(stream.uri) == stream.size, f"{stream.size} bytes", stream.uri)
        _require_digest(storage, stream.uri, 0, stream.size, stream.sha256 if is_deep else "")
    elif isinstance(stream, SegmentFileStateHandle):
        end = stream.start + stream.length
        _require_size(0 <= stream.start <= end <= storage.size(stream.uri), f"at least {end} bytes", stream.uri)
        _require_digest(storage, stream.uri, stream.start, end, stream.sha256 if is_deep else "")


def _require_size(is_as_expected: bool, expected: str, uri: str) -> None:
    if not is_as_expected:
        raise CorruptStateError(f"Expected {expected} in {uri}, found another size; it was changed or cut.", uri=uri)


def _require_digest(storage: CheckpointStorage, uri: str, start: int, end: int, expected: str) -> None:
    if not expected:
        return
    digest = hashlib.sha256()
    for begin in range(start, end, _CHUNK_BYTES):
        digest.update(storage.read_range(uri, begin, min(begin + _CHUNK_BYTES, end)))
    if digest.hexdigest() != expected:
        raise CorruptStateError(
            f"Expected bytes {start} to {end} of {uri} to have the digest {expected[:12]}…, found "
            f"{digest.hexdigest()[:12]}…; they were changed after they were written.",
            uri=uri,
        )


_AT_ONCE = 8
_CHUNK_BYTES = 8 * 1024 * 1024
