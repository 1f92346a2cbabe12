"""
Assignment of state to subtasks on restore: Flink's ``StateAssignmentOperation``.

The assignment does not read state. It returns handles with other offsets of the same streams. Names are assigned in
sorted order, which makes the result deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    StreamStateHandle,
    key_group_ranges,
)
from airflow_provider_statecheck.checkpoint.states.matching import MatchedStates, RestoreTarget, validate_states
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError

KeyedHandles = tuple[KeyedStateHandle, ...]


def intersection_of(handle: KeyedStateHandle, key_group_range: KeyGroupRange) -> KeyedStateHandle | None:
    """
    Return the part of a handle within a range of key groups, or ``None`` if they do not overlap.

    The part keeps all files of the handle, which are not divided by key groups. Its reader must skip keys outside the
    common range, because their values may be outdated.
    """
    common = handle.key_group_range.intersection(key_group_range)
    return replace(handle, key_group_range=common) if common else None


def redistribute_keyed(
    old: Sequence[KeyedHandles], new_parallelism: int, max_parallelism: int
) -> tuple[KeyedHandles, ...]:
    """
    Return the keyed state handles of each subtask of the restored operator.

    With an unchanged parallelism, each subtask gets its own handles.

    :param old: Handles of each previous subtask, in order.
    :raises InvalidConfigurationError: for a parallelism out of bounds, or offsets that do not match a handle's range.
    """
    if len(old) == new_parallelism:
        return tuple(map(tuple, old))
    handles = [handle for subtask in old for handle in subtask]
    return tuple(handles_within(handles, own) for own in key_group_ranges(new_parallelism, max_parallelism))


def handles_within(handles: Iterable[KeyedStateHandle], own: KeyGroupRange) -> KeyedHandles:
    """Return the parts of handles within a range of key groups, see :func:`intersection_of`."""
    parts = (intersection_of(handle, own) for handle in handles)
    return tuple(part for part in parts if part is not None)


Handles = tuple[OperatorStateHandle, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements of one named state in one handle of a previous subtask."""

    position: int
    """Position of the handle among all handles, in the order of the previous subtasks."""
    stream: StreamStateHandle
    meta: OperatorStateMeta

    def part(self, start: int, end: int) -> _Piece:
        offsets = self.meta.offsets[start:end]
        return _Piece(self.position, self.stream, OperatorStateMeta(offsets=offsets, mode=self.meta.mode))


@dataclass(slots=True)
class _NamedState:
    """All pieces of one named state, by the previous subtasks that reported it."""

    mode: DistributionMode
    reported: dict[int, list[_Piece]] = field(default_factory=dict)

    @property
    def pieces(self) -> list[_Piece]:
        return [piece for pieces in self.reported.values() for piece in pieces]


Dealt = list[dict[str, list[_Piece]]]
"""Pieces by name for each new subtask."""


def redistribute(old: Sequence[Handles], old_parallelism: int, new_parallelism: int) -> tuple[Handles, ...]:
    """
    Return the operator state handles of each subtask of the restored operator.

    :param old: Handles of each previous subtask, in order.
    :raises InvalidConfigurationError: if the new parallelism is below 1, or ``old`` does not match the old one.
    :raises IncompatibleCheckpointError: if subtasks have different distribution modes for a named state.
    """
    if new_parallelism < 1:
        raise InvalidConfigurationError(f"Expected a new parallelism of at least 1, found {new_parallelism}.")
    if len(old) != old_parallelism:
        raise InvalidConfigurationError(f"Expected state of {old_parallelism} subtasks, found that of {len(old)}.")
    named = _by_name(old)
    if old_parallelism != new_parallelism:
        return tuple(map(_merged, _deal(named, new_parallelism)))
    if _is_unchanged(named, new_parallelism):
        return tuple(map(tuple, old))
    return tuple(map(_merged, _deal_unchanged_parallelism(named, new_parallelism)))


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
            f"Expected all subtasks to distribute operator state {name!r} by {expected.value}, found {found.value} "
            "too; restore from another checkpoint."
        )


def _is_unchanged(named: dict[str, _NamedState], parallelism: int) -> bool:
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


def _deal_unchanged_parallelism(named: dict[str, _NamedState], parallelism: int) -> Dealt:
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
    # The next name starts at the subtask after the last extra element, which spreads the extra elements evenly.
    return (start + extra) % parallelism


def _take(pieces: list[_Piece], number: int) -> list[_Piece]:
    """Remove and return `number` elements from the end of a list of pieces in reverse order."""
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
    # Subtasks that have not run since a restore still hold the same elements of all.
    pieces = list({(piece.stream, piece.meta): piece for piece in state.pieces}.values())
    for subtask in dealt:
        subtask[name] = pieces


def _give_copies(dealt: Dealt, name: str, state: _NamedState) -> None:
    copies = list(state.reported.values())
    for index, subtask in enumerate(dealt):
        subtask[name] = copies[index % len(copies)]


def _merged(dealt: dict[str, list[_Piece]]) -> Handles:
    """Return one handle for each stream, or several if one handle would change the order of elements."""
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


Handle = TypeVar("Handle")
_NOTHING = OperatorSubtaskState()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAssignment:
    """State of a checkpoint by operator and subtask of the restored job."""

    subtask_states: dict[tuple[OperatorId, int], OperatorSubtaskState] = field(default_factory=dict)
    """State by operator and subtask index, without empty entries."""
    coordinator_states: dict[OperatorId, StreamStateHandle] = field(default_factory=dict)
    max_parallelisms: dict[OperatorId, int] = field(default_factory=dict)
    """Number of key groups of each operator with state."""
    finished: frozenset[OperatorId] = frozenset()
    """Operators that had finished and do not run again."""
    matched: MatchedStates
    """Operators with their state, new operators, and state without an operator."""


def assign_states(
    tasks: Iterable[RestoreTarget],
    operator_states: Iterable[OperatorState],
    *,
    renamed_uids: Mapping[str, str] | None = None,
    allow_non_restored_state: bool = False,
    all_or_nothing_state: bool = False,
) -> StateAssignment:
    """
    Assign the state of a checkpoint to the subtasks of a job, or raise an error if it does not fit.

    :param tasks: Operators to restore; operators in the same Airflow task are matched separately.
    :param renamed_uids: New uids by old ones.
    :param allow_non_restored_state: Whether to drop state without an operator; empty state is always dropped.
    :param all_or_nothing_state: Whether an operator must have state of either all subtasks or none.
    :raises IncompatibleCheckpointError: if the state does not fit the operators.
    :raises InvalidConfigurationError: if two operators have the same uid or id.
    """
    matched = validate_states(
        tasks,
        operator_states,
        renamed_uids=renamed_uids,
        allow_non_restored_state=allow_non_restored_state,
        all_or_nothing_state=all_or_nothing_state,
    )
    coordinators = ((target.operator_id, state.coordinator_state) for target, state in matched.pairs)
    return StateAssignment(
        subtask_states={
            (target.operator_id, index): subtask
            for target, state in matched.pairs
            for index, subtask in enumerate(_redistributed(target, state))
            if subtask.has_state
        },
        coordinator_states={operator_id: handle for operator_id, handle in coordinators if handle is not None},
        max_parallelisms={target.operator_id: state.max_parallelism for target, state in matched.pairs},
        finished=frozenset(target.operator_id for target, state in matched.pairs if state.is_fully_finished),
        matched=matched,
    )


def _redistributed(target: RestoreTarget, state: OperatorState) -> list[OperatorSubtaskState]:
    old, new = state.parallelism, target.parallelism
    max_parallelism = state.max_parallelism

    def of_all(kind: Callable[[OperatorSubtaskState], tuple[Handle, ...]]) -> list[tuple[Handle, ...]]:
        return [kind(state.subtask_states.get(index, _NOTHING)) for index in range(old)]

    managed_operator = redistribute(of_all(lambda subtask: subtask.managed_operator), old, new)
    raw_operator = redistribute(of_all(lambda subtask: subtask.raw_operator), old, new)
    managed_keyed = redistribute_keyed(of_all(lambda subtask: subtask.managed_keyed), new, max_parallelism)
    return [
        OperatorSubtaskState(
            managed_operator=managed_operator[index],
            raw_operator=raw_operator[index],
            managed_keyed=managed_keyed[index],
        )
        for index in range(new)
    ]
