"""Whether the state of a checkpoint fits a job, told before any operator gets a part of it."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping

from airflow_provider_statecheck.checkpoint.states.matching import MatchedStates, match_states
from airflow_provider_statecheck.checkpoint.states.max_parallelism import restored_max_parallelism
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.checkpoint.states.restore_target import RestoreTarget
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError

log = logging.getLogger(__name__)


def validate_states(
    tasks: Iterable[RestoreTarget],
    operator_states: Iterable[OperatorState],
    *,
    renamed_uids: Mapping[str, str] | None = None,
    allow_non_restored_state: bool = False,
    all_or_nothing_state: bool = False,
) -> MatchedStates:
    """
    Find the state of each operator and check that the job can go on with it.

    :param renamed_uids: New uids by old ones.
    :param allow_non_restored_state: Whether state may be dropped because its operator is not among the tasks. State without
        content always may.
    :param all_or_nothing_state: Whether an operator of which some subtasks have state must have state of all.
    :raises IncompatibleCheckpointError: if it cannot.
    :raises InvalidConfigurationError: if two operators have one uid or id.
    """
    matched = match_states(tasks, operator_states, renamed_uids)
    _require_a_place(matched, renamed_uids or {}, is_allowed=allow_non_restored_state)
    for target, state in matched.pairs:
        restored_max_parallelism(state, target)
        if all_or_nothing_state:
            _require_all_subtasks(state)
    _require_consistent_ends(matched, renamed_uids or {})
    return matched


def _require_a_place(matched: MatchedStates, renamed_uids: Mapping[str, str], *, is_allowed: bool) -> None:
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
    # Those of a fully finished operator have none.
    number = sum(subtask.has_state for subtask in state.subtask_states.values())
    if 0 < number < state.parallelism:
        raise IncompatibleCheckpointError(
            f"Expected state of all {state.parallelism} subtasks of operator {state.uid!r}, found it of only a subset of "
            f"{number}; do without all_or_nothing_state if subtasks may have none.",
            operator_id=state.operator_id,
        )


def _require_consistent_ends(matched: MatchedStates, renamed_uids: Mapping[str, str]) -> None:
    # An operator that is not restored itself, as when a single task is, is still known by its state.
    finished = {renamed_uids.get(state.uid, state.uid) for state in matched.unmatched if state.is_fully_finished}
    finished |= {target.uid for target, state in matched.pairs if state.is_fully_finished}
    for target, state in matched.pairs:
        running = [uid for uid in target.upstream if uid not in finished]
        if state.is_fully_finished and running:
            raise IncompatibleCheckpointError(
                f"Operator {target.uid!r} is finished in the checkpoint, but {', '.join(map(repr, running))} upstream of it "
                f"is not; add operators only behind finished ones.",
                operator_id=target.operator_id,
            )
