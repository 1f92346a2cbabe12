"""The state of all functions of a stage as the driver knows it: where it is, not what it says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import OperatorId, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState, OperatorSubtaskState
from airflow_provider_statecheck.spark.stages.executor.control import TaskReport
from airflow_provider_statecheck.state.schemas import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.storage.state_codec import encode_state


class StageStates:
    """
    Where each function's state is after the increments so far.

    :param schemas: The types of state by the uid of the function's operator.
    :param parallelism: Number of subtasks.
    :param max_parallelism: Number of key groups.
    :param restored: The state to begin with, by operator and subtask.
    :param unchanged: Operators as they are in the restored checkpoint, by the uid of today.
    :param restored_checkpoint_id: In which they are.
    """

    def __init__(
        self,
        schemas: Mapping[str, OperatorSchemas],
        *,
        parallelism: int,
        max_parallelism: int,
        restored: Mapping[tuple[OperatorId, int], OperatorSubtaskState],
        unchanged: Mapping[str, OperatorState] | None = None,
        restored_checkpoint_id: int | None = None,
    ) -> None:
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self._schemas = {uid: coordinator_state(encode_schemas(each)) for uid, each in schemas.items()}
        self._states: dict[str, dict[int, OperatorSubtaskState]] = {
            uid: {
                index: state for (operator_id, index), state in restored.items() if operator_id == operator_id_of(uid)
            }
            for uid in schemas
        }
        self._unchanged = dict(unchanged or {})
        self._saved_with = dict.fromkeys(self._unchanged, restored_checkpoint_id)

    def of(self, uid: str) -> dict[int, OperatorSubtaskState]:
        """Return the state of an operator by subtask."""
        return dict(self._states[uid])

    def saved_with(self, uid: str) -> int | None:
        """Return with which checkpoint an operator was saved last, 0 for an increment without one; ``None`` for never."""
        return self._saved_with.get(uid)

    def update(
        self, reports: Iterable[TaskReport], operators_by_vertex: Sequence[Sequence[str]], checkpoint_id: int
    ) -> None:
        """
        Take over what the winning tasks of an increment saved; subtasks that did not run keep what they had.

        :param operators_by_vertex: The uids of the operators of each vertex.
        :param checkpoint_id: Which the functions were told.
        """
        for report in reports:
            saved = {state.uid: state.subtask_states[report.subtask] for state in report.states}
            for uid in operators_by_vertex[report.vertex]:
                self._saved_with[uid] = checkpoint_id
                self._unchanged.pop(uid, None)
                if uid in saved:
                    self._states[uid][report.subtask] = saved[uid]
                else:
                    self._states[uid].pop(report.subtask, None)

    def operator_states(self) -> tuple[OperatorState, ...]:
        """Return what a checkpoint says of the functions; one without any state is in it too."""
        return tuple(self._operator_state(uid) for uid in self._states)

    def _operator_state(self, uid: str) -> OperatorState:
        if uid in self._unchanged:
            # What was dealt out is not what was saved: of union lists each subtask got all, which would be saved as often.
            return replace(self._unchanged[uid], operator_id=operator_id_of(uid), uid=uid)
        return OperatorState(
            operator_id=operator_id_of(uid),
            uid=uid,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            subtask_states=dict(self._states[uid]),
            coordinator_state=self._schemas[uid],
        )


def coordinator_state(value: Any) -> ByteStreamStateHandle:
    """Return JSON as state that travels in the metadata."""
    return ByteStreamStateHandle(new_key(), json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def single_state(uid: str, value: Any) -> OperatorState:
    """Return what a checkpoint says of a part of the stage that the driver alone has, such as its source."""
    return OperatorState(
        operator_id=operator_id_of(uid),
        uid=uid,
        parallelism=1,
        max_parallelism=1,
        coordinator_state=coordinator_state(encode_state(value)),
    )
