"""
Union state of operators of which some subtasks have ended.

How many subtasks ended without leaving any is kept with the acknowledgement, so that every finalizer finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_statecheck.checkpoint.acknowledgements import AcknowledgementRecord
from airflow_provider_statecheck.checkpoint.coordination.task_messages import AcknowledgeMessage
from airflow_provider_statecheck.checkpoint.coordination.unanswered_states import require_whole_union_state
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState

ENDED_SUBTASKS = "ended_subtasks"
"""The metric of how many subtasks had ended."""
ENDED_WITHOUT_STATE = "ended_subtasks_without_state"


def metrics_of(message: AcknowledgeMessage) -> dict[str, int]:
    """Return the metrics of a part with what a finalizer has to know of ended subtasks."""
    ended = message.finished_subtasks
    if message.state is None or not ended:
        return dict(message.metrics)
    missing = len(ended - message.state.subtask_states.keys())
    return dict(message.metrics) | {ENDED_SUBTASKS: len(ended), ENDED_WITHOUT_STATE: missing}


def require_whole_union_states(
    states: Mapping[OperatorId, OperatorState], parts: Iterable[AcknowledgementRecord]
) -> None:
    """
    Refuse a checkpoint in which a part of a union state is missing because some, not all subtasks have ended.

    :raises CheckpointException: ``CHECKPOINT_DECLINED_TASK_CLOSING`` for such a one.
    """
    for part in parts:
        state = states.get(part.operator_id)
        if state is not None and part.metrics.get(ENDED_WITHOUT_STATE, 0):
            require_whole_union_state(state, _ended(state, part))


def _ended(state: OperatorState, part: AcknowledgementRecord) -> frozenset[int]:
    # Which ones ended with state is not told, and does not matter; as many as said have to be missing.
    absent = [i for i in range(state.parallelism) if i not in state.subtask_states]
    present = sorted(state.subtask_states)
    without = absent[: part.metrics[ENDED_WITHOUT_STATE]]
    left = max(0, part.metrics.get(ENDED_SUBTASKS, 0) - len(without))
    return frozenset((*without, *present[:left]))
