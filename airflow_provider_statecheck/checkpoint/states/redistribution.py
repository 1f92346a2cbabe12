"""
Which subtask of a restored operator gets which elements of operator state.

An element is a place in a stream. Nothing is read: what comes out are handles that name other offsets of the same
streams. Names are dealt out in sorted order, so that equal checkpoints are always restored alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    OperatorStateHandle,
    OperatorStateMeta,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError

Handles = tuple[OperatorStateHandle, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one handle of an old subtask has of one named state."""

    position: int
    """Of the handle among all handles, in the order of the old subtasks."""
    stream: StreamStateHandle
    meta: OperatorStateMeta

    def part(self, start: int, end: int) -> _Piece:
        offsets = self.meta.offsets[start:end]
        return _Piece(self.position, self.stream, OperatorStateMeta(offsets=offsets, mode=self.meta.mode))


@dataclass(slots=True)
class _NamedState:
    """All pieces of one named state, by the old subtasks that reported it."""

    mode: DistributionMode
    reported: dict[int, list[_Piece]] = field(default_factory=dict)

    @property
    def pieces(self) -> list[_Piece]:
        return [piece for pieces in self.reported.values() for piece in pieces]


Dealt = list[dict[str, list[_Piece]]]
"""For each new subtask the pieces that it gets of each name."""


def redistribute(old: Sequence[Handles], old_parallelism: int, new_parallelism: int) -> tuple[Handles, ...]:
    """
    Return the handles of each subtask of the restored operator.

    :param old: Those of each subtask that wrote them, in order.
    :raises InvalidConfigurationError: for a new parallelism below 1, or another number of old subtasks than said.
    :raises IncompatibleCheckpointError: if subtasks disagree on how a named state is distributed.
    """
    if new_parallelism < 1:
        raise InvalidConfigurationError(f"Expected a new parallelism of at least 1, found {new_parallelism}.")
    if len(old) != old_parallelism:
        raise InvalidConfigurationError(f"Expected state of {old_parallelism} subtasks, found that of {len(old)}.")
    named = _by_name(old)
    if old_parallelism != new_parallelism:
        return tuple(map(_merged, _deal(named, new_parallelism)))
    if _goes_back_unchanged(named, new_parallelism):
        return tuple(map(tuple, old))
    return tuple(map(_merged, _deal_to_the_same(named, new_parallelism)))


def _by_name(old: Sequence[Handles]) -> dict[str, _NamedState]:
    named: dict[str, _NamedState] = {}
    position = 0
    for subtask, handles in enumerate(old):
        for handle in handles:
            for name, meta in handle.states:
                state = named.setdefault(name, _NamedState(mode=meta.mode))
                _require_mode(name, state.mode, meta.mode)
                state.reported.setdefault(subtask, []).append(_Piece(position, handle.stream, meta))
            position += 1
    return dict(sorted(named.items()))


def _require_mode(name: str, expected: DistributionMode, found: DistributionMode) -> None:
    if expected is not found:
        raise IncompatibleCheckpointError(
            f"Expected all subtasks to distribute operator state {name!r} by {expected.value}, found {found.value} too; "
            f"restore from another checkpoint."
        )


def _goes_back_unchanged(named: dict[str, _NamedState], parallelism: int) -> bool:
    return not any(
        state.mode is DistributionMode.UNION
        or (state.mode is DistributionMode.BROADCAST and len(state.reported) < parallelism)
        for state in named.values()
    )


def _deal(named: dict[str, _NamedState], parallelism: int) -> Dealt:
    dealt: Dealt = [{} for _ in range(parallelism)]
    start = 0
    for name, state in named.items():
        if state.mode is DistributionMode.SPLIT_DISTRIBUTE:
            start = _split(dealt, name, state, start)
        elif state.mode is DistributionMode.UNION:
            _give_all(dealt, name, state)
        else:
            _give_copies(dealt, name, state)
    return dealt


def _deal_to_the_same(named: dict[str, _NamedState], parallelism: int) -> Dealt:
    dealt: Dealt = [{} for _ in range(parallelism)]
    for name, state in named.items():
        if state.mode is DistributionMode.UNION:
            _give_all(dealt, name, state)
            continue
        if state.mode is DistributionMode.BROADCAST:
            _give_copies(dealt, name, state)
        for subtask, pieces in state.reported.items():
            dealt[subtask][name] = pieces
    return dealt


def _split(dealt: Dealt, name: str, state: _NamedState, start: int) -> int:
    parallelism = len(dealt)
    base, extra = divmod(sum(len(piece.meta.offsets) for piece in state.pieces), parallelism)
    pieces = state.pieces[::-1]
    for turn in range(parallelism):
        share = _take(pieces, base + (turn < extra))
        if share:
            dealt[(start + turn) % parallelism][name] = share
    # Who got no extra element of this name comes first with the next, so that no subtask collects all of them.
    return (start + extra) % parallelism


def _take(pieces: list[_Piece], number: int) -> list[_Piece]:
    """Take as many elements from the end of a list of pieces, which is in reverse order."""
    taken = []
    while number:
        piece = pieces.pop()
        found = len(piece.meta.offsets)
        if found > number:
            pieces.append(piece.part(number, found))
        if found:
            taken.append(piece.part(0, number))
        number -= min(found, number)
    return taken


def _give_all(dealt: Dealt, name: str, state: _NamedState) -> None:
    for subtask in dealt:
        subtask[name] = state.pieces


def _give_copies(dealt: Dealt, name: str, state: _NamedState) -> None:
    copies = list(state.reported.values())
    for index, subtask in enumerate(dealt):
        subtask[name] = copies[index % len(copies)]


def _merged(dealt: dict[str, list[_Piece]]) -> Handles:
    """Return one handle for each stream, and more only where one would put elements of a name out of order."""
    by_handle: dict[int, tuple[StreamStateHandle, dict[str, OperatorStateMeta]]] = {}
    for name, pieces in dealt.items():
        for piece in pieces:
            by_handle.setdefault(piece.position, (piece.stream, {}))[1][name] = piece.meta
    merged: list[tuple[StreamStateHandle, dict[str, OperatorStateMeta]]] = []
    for _, (stream, states) in sorted(by_handle.items(), key=lambda item: item[0]):
        _add(merged, stream, states)
    return tuple(OperatorStateHandle(states=tuple(states.items()), stream=stream) for stream, states in merged)


def _add(
    merged: list[tuple[StreamStateHandle, dict[str, OperatorStateMeta]]],
    stream: StreamStateHandle,
    states: dict[str, OperatorStateMeta],
) -> None:
    for other, there in reversed(merged):
        if other == stream:
            for name, meta in states.items():
                offsets = there[name].offsets if name in there else ()
                there[name] = OperatorStateMeta(offsets=offsets + meta.offsets, mode=meta.mode)
            return
        if states.keys() & there.keys():
            break
    merged.append((stream, dict(states)))
