"""Restore of operators, hooks and operator coordinators from a checkpoint or a savepoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from airflow_provider_statecheck.checkpoint.aligned.contents import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    RestoreMode,
)
from airflow_provider_statecheck.checkpoint.savepoint_restore import require_claimable, whole_job_not_claimable
from airflow_provider_statecheck.checkpoint.states.assignment import StateAssignment, assign_states
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, OperatorSubtaskState
from airflow_provider_statecheck.checkpoint.states.matching import RestoreTarget
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.flink.components import CoordinatorComponents
from airflow_provider_statecheck.flink.participants import OperatorCoordinatorRestoreMode

log = logging.getLogger(__name__)

_UNCLAIMED = CheckpointProperties.for_unclaimed_snapshot()


class RestorableTask(Protocol):
    """The task of an operator that has not started and receives its initial state."""

    @property
    def restore_target(self) -> RestoreTarget:
        """The operator, with the requirements of its state."""

    def set_initial_state(
        self, checkpoint_id: int, subtask_states: Mapping[int, OperatorSubtaskState], *, is_finished: bool
    ) -> None:
        """
        Set the initial state.

        :param checkpoint_id: The restored checkpoint.
        :param subtask_states: The states by subtask index; subtasks without state have no entry.
        :param is_finished: Whether the operator had finished and does not run again.
        """


class StateRestorer:
    """Restores tasks, hooks and operator coordinators."""

    def __init__(self, components: CoordinatorComponents) -> None:
        self._components = components

    def restore_latest(
        self,
        tasks: Sequence[RestorableTask],
        *,
        error_if_no_checkpoint: bool,
        all_or_nothing_state: bool,
        allow_non_restored_state: bool,
        renamed_uids: Mapping[str, str] | None,
        mode: OperatorCoordinatorRestoreMode,
    ) -> bool:
        """Restore the tasks from the newest completed checkpoint, see ``restore_latest_checkpointed_state``."""
        self._components.completed_store.recover()
        latest = self._components.completed_store.get_latest_checkpoint()
        if latest is None:
            return self._start_without_checkpoint(error_if_no_checkpoint, mode)
        assignment = _assign(tasks, latest, renamed_uids, allow_non_restored_state, all_or_nothing_state)
        self._restore_hooks_and_coordinators(latest, assignment, mode, allow_non_restored_state)
        _set_initial_states(tasks, latest, assignment)
        self._components.rows.record_restore(self._components.leader, latest.checkpoint_id)
        return True

    def adopt(
        self,
        pointer: str,
        mode: RestoreMode,
        tasks: Sequence[RestorableTask],
        *,
        allow_non_restored_state: bool,
        renamed_uids: Mapping[str, str] | None,
    ) -> CompletedCheckpoint:
        """
        Add a restored checkpoint as the newest completed checkpoint of the job, see ``restore_savepoint``.

        If its state does not fit the tasks, its owner does not change.
        """
        found = self._components.storage.resolve_checkpoint(pointer)
        if mode is RestoreMode.CLAIM and found.members:
            raise whole_job_not_claimable(pointer)
        if mode is RestoreMode.CLAIM:
            require_claimable(found.external_pointer, found.metadata.uri)
        self._components.completed_store.recover()
        newest = self._components.completed_store.get_latest_checkpoint()
        if newest is not None and newest.external_pointer == found.external_pointer:
            # An earlier call added it, and its restore failed.
            return newest
        if newest is not None and newest.checkpoint_id > found.checkpoint_id:
            raise CoordinatorError(
                f"Expected to restore {pointer} into a job without newer checkpoints, found checkpoint "
                f"{newest.checkpoint_id}; restore checkpoint {newest.checkpoint_id}, or start a new job."
            )
        _assign(tasks, found, renamed_uids, allow_non_restored_state, all_or_nothing_state=False)
        self._components.id_counter.set_count(found.checkpoint_id + 1)
        adopted = self._adopted(found, mode)
        self._components.completed_store.add_checkpoint_and_subsume_oldest(adopted, self._components.cleaner)
        return adopted

    def _adopted(self, found: CompletedCheckpoint, mode: RestoreMode) -> CompletedCheckpoint:
        components, is_claimed = self._components, mode is RestoreMode.CLAIM
        policy = components.config.retention_policy
        is_used = components.rows.adopt(
            components.leader, found.checkpoint_id, found.external_pointer, found.metadata.uri, is_claimed=is_claimed
        )
        # The row of the job's own checkpoint remains as it is.
        checkpoint_id = components.id_counter.get_and_increment() if is_used else found.checkpoint_id
        return replace(
            found,
            job_id=components.leader.job_id,
            checkpoint_id=checkpoint_id,
            properties=CheckpointProperties.for_checkpoint(policy) if is_claimed else _UNCLAIMED,
        )

    def _start_without_checkpoint(self, error_if_no_checkpoint: bool, mode: OperatorCoordinatorRestoreMode) -> bool:
        if error_if_no_checkpoint:
            raise CoordinatorError(
                f"Expected a completed checkpoint of job {self._components.leader.job_id} to restore, found none; "
                "start the job without a restore, or restore a savepoint."
            )
        self._components.hooks.reset()
        self._components.operator_coordinators.restore(mode)
        return False

    def _restore_hooks_and_coordinators(
        self,
        latest: CompletedCheckpoint,
        assignment: StateAssignment,
        mode: OperatorCoordinatorRestoreMode,
        allow_non_restored_state: bool,
    ) -> None:
        self._components.hooks.restore(
            latest.checkpoint_id, latest.master_states, allow_non_restored_state=allow_non_restored_state
        )
        self._components.operator_coordinators.restore(mode, latest.checkpoint_id, _coordinator_bytes(assignment))


def _assign(
    tasks: Sequence[RestorableTask],
    restored: CompletedCheckpoint,
    renamed_uids: Mapping[str, str] | None,
    allow_non_restored_state: bool,
    all_or_nothing_state: bool,
) -> StateAssignment:
    return assign_states(
        [task.restore_target for task in tasks],
        restored.operator_states.values(),
        renamed_uids=renamed_uids,
        allow_non_restored_state=allow_non_restored_state,
        all_or_nothing_state=all_or_nothing_state,
    )


def _coordinator_bytes(assignment: StateAssignment) -> dict[OperatorId, bytes]:
    # Checkpoints store the state of operator coordinators inline only.
    handles = assignment.coordinator_states.items()
    return {operator_id: h.data for operator_id, h in handles if isinstance(h, ByteStreamStateHandle)}


def _set_initial_states(
    tasks: Sequence[RestorableTask], latest: CompletedCheckpoint, assignment: StateAssignment
) -> None:
    for task in tasks:
        operator_id = task.restore_target.operator_id
        mine = {index: state for (owner, index), state in assignment.subtask_states.items() if owner == operator_id}
        task.set_initial_state(latest.checkpoint_id, mine, is_finished=operator_id in assignment.finished)
