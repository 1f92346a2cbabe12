"""Whether the files are there and unchanged that hold the state of operators."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

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


def operator_state_problems(storage: CheckpointStorage, document: CheckpointDocument, *, is_deep: bool) -> list[str]:
    """
    Say what is wrong with each stream that the operators' state names, once.

    :param is_deep: Whether to read and compare bytes too, where the handle has a checksum.
    :raises StorageError: if the storage does not answer.
    """
    streams = {(state.uid, stream): None for state in document.operator_states for stream in streams_of(state)}
    return [f"state of operator {uid!r}: {p}" for uid, stream in streams for p in _problems(storage, stream, is_deep)]


def _problems(storage: CheckpointStorage, stream: StreamStateHandle, is_deep: bool) -> Iterator[str]:
    try:
        _require(storage, stream, is_deep=is_deep)
    except UNREADABLE as error:
        yield str(error)


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


_CHUNK_BYTES = 8 * 1024 * 1024
