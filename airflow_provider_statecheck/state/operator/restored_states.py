"""What one subtask was given of the operator state of all old subtasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from airflow_provider_statecheck.checkpoint.states.handles import DistributionMode, OperatorStateHandle
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.state.operator.stream_format import WrittenState, decode
from airflow_provider_statecheck.state.operator.written_elements import WrittenElements, joined

RestoredHandle = tuple[OperatorStateHandle, Callable[[], bytes]]
"""A handle, and what reads all bytes of its stream."""


def read_restored(restored: Iterable[RestoredHandle]) -> dict[str, WrittenState]:
    """
    Return the restored states by their stored names, with the elements that the handles name.

    A state of a stream of which no element is named is there too, and empty.

    :raises StorageError: if the storage fails.
    :raises CorruptStateError: if the bytes are others than those that were written.
    :raises IncompatibleCheckpointError: if a newer version wrote them, or the streams contradict each other.
    """
    states: dict[str, WrittenState] = {}
    for handle, read in restored:
        for state in _of_handle(handle, decode(read())):
            known = states.get(state.stored_name)
            states[state.stored_name] = state if known is None else _both(known, state)
    return {name: WrittenState(state.name, state.mode, joined(state.pieces)) for name, state in states.items()}


def _of_handle(handle: OperatorStateHandle, states: Sequence[WrittenState]) -> list[WrittenState]:
    metas = dict(handle.states)
    missing = metas.keys() - {state.stored_name for state in states}
    if missing:
        raise CorruptStateError(f"Expected the operator states {sorted(missing)} in their stream, found others.")
    offsets = {name: meta.offsets for name, meta in metas.items()}
    return [_selected(state, offsets.get(state.stored_name)) for state in states]


def _selected(state: WrittenState, offsets: tuple[int, ...] | None) -> WrittenState:
    if state.mode is DistributionMode.BROADCAST and offsets is not None:
        return state
    return WrittenState(state.name, state.mode, tuple(_take(state, offsets or ())))


def _take(state: WrittenState, offsets: tuple[int, ...]) -> list[WrittenElements]:
    taken: list[WrittenElements] = []
    begin = 0
    for piece in state.pieces:
        end = begin + len(piece)
        rows = [offset - begin for offset in offsets if begin <= offset < end]
        taken.append(piece.take(rows))
        begin = end
    if sum(map(len, taken)) != len(offsets):
        raise CorruptStateError(f"Expected {len(offsets)} elements of {state.name!r}, found only {begin} of them.")
    return taken


def _both(known: WrittenState, more: WrittenState) -> WrittenState:
    if known.mode is not more.mode:
        raise IncompatibleCheckpointError(
            f"Expected all subtasks to distribute operator state {known.name!r} by {known.mode.value}, found "
            f"{more.mode.value} too; restore from another checkpoint."
        )
    return WrittenState(known.name, known.mode, (*known.pieces, *more.pieces))
