"""What a checkpoint names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, SegmentFileStateHandle
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.checkpoint.states.streams import streams_of
from airflow_provider_statecheck.storage.document import CheckpointDocument


def document_uris(document: CheckpointDocument) -> Iterator[str]:
    """Return the URI of everything that a checkpoint names, as often as it is named."""
    yield from (handle.uri for handle in document.snapshots)
    if isinstance(document.state, FileStateHandle):
        yield document.state.uri
    yield from state_uris(document.operator_states)


def state_uris(states: Iterable[OperatorState]) -> Iterator[str]:
    """Return the URI of every file that holds state of operators, as often as it is named."""
    for state in states:
        for stream in streams_of(state):
            if isinstance(stream, FileStateHandle | SegmentFileStateHandle):
                yield stream.uri
