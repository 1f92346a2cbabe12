"""Checks that the state of a checkpoint fits the operators of a job."""

from __future__ import annotations

import difflib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState, require_parallelism
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTarget:
    """
    Operator to restore, independent of the Airflow task that runs it.

    :raises InvalidConfigurationError: unless 1 <= parallelism <= max_parallelism <= 32768.
    """

    operator_id: OperatorId
    uid: str = ""
    """Uid of the operator; empty if its id was generated."""
    name: str = ""
    parallelism: int
    max_parallelism: int
    is_max_parallelism_configured: bool = False
    """Whether the user set the maximum parallelism; otherwise it was derived from the parallelism."""
    upstream: tuple[str, ...] = ()
    """Uids of the operators that it reads from."""

    def __post_init__(self) -> None:
        require_parallelism(self.parallelism, self.max_parallelism)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedStates:
    """Operators with their state, operators without state, and state without an operator."""

    pairs: tuple[tuple[RestoreTarget, OperatorState], ...]
    new: tuple[RestoreTarget, ...]
    """Operators without state in the checkpoint."""
    unmatched: tuple[OperatorState, ...]
    """State of operators that are not restored."""


def validate_states(
    tasks: Iterable[RestoreTarget],
    operator_states: Iterable[OperatorState],
    *,
    renamed_uids: Mapping[str, str] | None = None,
    allow_non_restored_state: bool = False,
    all_or_nothing_state: bool = False,
) -> MatchedStates:
    """Match operators with their state and check that the job can be restored from it; see ``assign_states``."""
    matched = match_states(tasks, operator_states, renamed_uids)
    _require_operators(matched, renamed_uids or {}, is_allowed=allow_non_restored_state)
    for target, state in matched.pairs:
        restored_max_parallelism(state, target)
        if all_or_nothing_state:
            _require_all_subtasks(state)
    _require_consistent_ends(matched, renamed_uids or {})
    return matched


def restored_max_parallelism(state: OperatorState, target: RestoreTarget) -> int:
    """
    Return the maximum parallelism of a restored operator, which is that of its state.

    :raises IncompatibleCheckpointError: if the operator has more subtasks than its state has key groups, or the user
        set another maximum parallelism.
    """
    restored = state.max_parallelism
    if restored < target.parallelism:
        raise _incompatible(
            state, target, f"parallelism={target.parallelism}", f"set parallelism to at most {restored}"
        )
    if restored != target.max_parallelism and target.is_max_parallelism_configured:
        raise _incompatible(
            state, target, f"max_parallelism={target.max_parallelism}, which cannot be changed", f"set it to {restored}"
        )
    if restored != target.max_parallelism:
        log.info("Operator %r uses max_parallelism=%s of its restored state", target.uid or target.name, restored)
    return restored


def match_states(
    targets: Iterable[RestoreTarget],
    operator_states: Iterable[OperatorState],
    renamed_uids: Mapping[str, str] | None = None,
) -> MatchedStates:
    """
    Match operators with their state in a checkpoint.

    :param renamed_uids: New uids by old ones; old uids that the checkpoint does not contain are ignored.
    :raises InvalidConfigurationError: if two operators have the same uid or id.
    :raises IncompatibleCheckpointError: if the checkpoint has two states for one operator.
    """
    operators = tuple(targets)
    _require_unique(operators)
    found: dict[OperatorId, OperatorState] = {}
    unmatched = []
    for target, state in _assigned(operators, tuple(operator_states), renamed_uids or {}):
        if target is None:
            unmatched.append(state)
        elif target.operator_id in found:
            raise _ambiguous(target, found[target.operator_id], state)
        else:
            found[target.operator_id] = state
    return MatchedStates(
        pairs=tuple((target, found[target.operator_id]) for target in operators if target.operator_id in found),
        new=tuple(target for target in operators if target.operator_id not in found),
        unmatched=tuple(unmatched),
    )


def _assigned(
    operators: tuple[RestoreTarget, ...], states: tuple[OperatorState, ...], renamed_uids: Mapping[str, str]
) -> Iterator[tuple[RestoreTarget | None, OperatorState]]:
    by_uid = {target.uid: target for target in operators if target.uid}
    matches = [(by_uid.get(renamed_uids.get(state.uid, state.uid)), state) for state in states]
    # Ids match neither operators that are matched by uid, nor state that a rename assigns to another operator.
    matched = {target.operator_id for target, _ in matches if target is not None}
    by_id = {target.operator_id: target for target in operators if target.operator_id not in matched}
    for target, state in matches:
        yield target or (None if state.uid in renamed_uids else by_id.get(state.operator_id)), state


def _require_unique(operators: tuple[RestoreTarget, ...]) -> None:
    uids = Counter(target.uid for target in operators if target.uid)
    ids = Counter(str(target.operator_id) for target in operators)
    for kind, counter in (("uid", uids), ("id", ids)):
        duplicates = [value for value, count in counter.items() if count > 1]
        if duplicates:
            raise InvalidConfigurationError(
                f"Expected a unique {kind} for each operator, found {', '.join(map(repr, duplicates))} twice; give one "
                "of the operators another uid."
            )


def _ambiguous(target: RestoreTarget, first: OperatorState, second: OperatorState) -> IncompatibleCheckpointError:
    return IncompatibleCheckpointError(
        f"Expected one state for operator {(target.uid or target.operator_id)!r}, found those of {first.uid!r} and "
        f"{second.uid!r}; correct renamed_uids.",
        operator_id=target.operator_id,
    )


def _incompatible(state: OperatorState, target: RestoreTarget, asked: str, remedy: str) -> IncompatibleCheckpointError:
    return IncompatibleCheckpointError(
        f"The state of operator {target.uid or target.name or target.operator_id!r} was written with "
        f"max_parallelism={state.max_parallelism}, the job asks for {asked}; {remedy}.",
        operator_id=target.operator_id,
        max_parallelism=state.max_parallelism,
    )


def _require_operators(matched: MatchedStates, renamed_uids: Mapping[str, str], *, is_allowed: bool) -> None:
    lost = [state for state in matched.unmatched if state.has_state]
    if not lost:
        return
    uids = [target.uid for target in (*matched.new, *(target for target, _ in matched.pairs)) if target.uid]
    shown = "; ".join(_shown(state, uids, renamed_uids) for state in lost)
    if is_allowed:
        log.warning("State is dropped, because its operators are not to be restored: %s", shown)
        return
    raise IncompatibleCheckpointError(
        f"Expected an operator for each state of the checkpoint, found none for {shown}. Give the operators these uids "
        f"again, name new ones in renamed_uids, or set allow_non_restored_state to drop their state.",
        operator_ids=tuple(state.operator_id for state in lost),
    )


def _shown(state: OperatorState, uids: list[str], renamed_uids: Mapping[str, str]) -> str:
    wanted = renamed_uids.get(state.uid, state.uid)
    renamed = f" renamed to {wanted!r}" if wanted != state.uid else ""
    nearest = difflib.get_close_matches(wanted, uids, n=3, cutoff=0.5) if wanted else []
    hint = f", nearest are {', '.join(map(repr, nearest))}" if nearest else ""
    return f"{state.uid!r}{renamed} (name {state.name!r}, id {state.operator_id}{hint})"


def _require_all_subtasks(state: OperatorState) -> None:
    # The subtasks of a fully finished operator have no state.
    number = sum(subtask.has_state for subtask in state.subtask_states.values())
    if 0 < number < state.parallelism:
        raise IncompatibleCheckpointError(
            f"Expected state of all {state.parallelism} subtasks of operator {state.uid!r}, found it of only a subset "
            f"of {number}; do without all_or_nothing_state if subtasks may have none.",
            operator_id=state.operator_id,
        )


def _require_consistent_ends(matched: MatchedStates, renamed_uids: Mapping[str, str]) -> None:
    # A restore of a single task does not include its upstream operators, but their state shows whether they had
    # finished.
    finished = {renamed_uids.get(state.uid, state.uid) for state in matched.unmatched if state.is_fully_finished}
    finished |= {target.uid for target, state in matched.pairs if state.is_fully_finished}
    for target, state in matched.pairs:
        running = [uid for uid in target.upstream if uid not in finished]
        if state.is_fully_finished and running:
            raise IncompatibleCheckpointError(
                f"Operator {target.uid!r} is finished in the checkpoint, but {', '.join(map(repr, running))} upstream "
                "of it is not; add operators only behind finished ones.",
                operator_id=target.operator_id,
            )
