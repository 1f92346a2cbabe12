"""
Steps of a savepoint of a whole job: begin it, give a member, decline, and keep the newest ones.

A process leads only for its step: what it has not triggered or finalized when it ends is settled by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedContent
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.leader_steps import LeaderSteps
from airflow_provider_statecheck.checkpoint.aligned.rows import AcknowledgedCheckpoint, AwaitedTask, BeginCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.steps import delete_ended, repeated, report_failure
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeResult, AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, CheckpointRecord, CheckpointRequest
from airflow_provider_statecheck.checkpoint.retention import beyond_retention
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, OperatorState
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.checkpoint.transitions import SAVEPOINT_TIMEOUT
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StaleAttemptError, StateCheckError
from airflow_provider_statecheck.gateway.leadership import leading
from airflow_provider_statecheck.maintenance.savepoint_members import (
    GivingStatus,
    StageAtTrigger,
    require_checkpoints,
    stages_at_trigger,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.aligned_files import AlignedFiles
from airflow_provider_statecheck.storage.discarding import EffectDiscards
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, DocumentCache

log = logging.getLogger(__name__)

OWNER = AttemptOwner(
    logical_task="savepoints of the job", run_key="", run_id="", clear_marker="", label="savepoints of the job"
)
"""Owner of the leadership of a process that takes savepoints of a job."""
RETAINED = 2
"""Number of savepoints of a job whose rows stay completed; the files of all of them are the user's."""
_ONE_AT_A_TIME = CheckpointRequestDecider(max_concurrent=1, min_pause_seconds=0)


@contextmanager
def leading_savepoints(
    rows: AlignedCheckpoints, storage: CheckpointStorage, view: JobView, directory: str | None
) -> Iterator[SavepointSteps]:
    """
    Lead the savepoints of a job in a block, and settle at its start what an earlier process has left.

    :param directory: Directory of savepoints whose request names none.
    """
    documents = DocumentCache(lambda _: storage)
    with leading(rows, storage, job_name=view.job.name, owner=OWNER) as leader:
        files = AlignedFiles(storage, leader.job_id, view.job.name, directory, documents=documents)
        steps = SavepointSteps(rows, leader, files, EffectDiscards(storage, documents), view)
        steps.resume()
        yield steps


class SavepointSteps(LeaderSteps):
    """
    The steps of one leader of the savepoints of a job.

    :param view: Rows of the job from before the step.
    """

    def __init__(
        self, rows: AlignedCheckpoints, leader: AttemptRef, files: AlignedFiles, discards: EffectDiscards, view: JobView
    ) -> None:
        super().__init__(rows, leader, files, {o.operator_id: o.uid for o in view.stages})
        self._files = files
        self._discards = discards
        self._view = view

    def begin(self, request: CheckpointRequest) -> None:
        """
        Begin a savepoint of the stages that have begun, if its request is queued.

        A failure is logged, and the next call retries.
        """
        try:
            chosen = self.rows.choose(self.leader, _ONE_AT_A_TIME).run
            if chosen is not None and chosen.request_key == request.request_key:
                self._begin(chosen, stages_at_trigger(self._view))
        except StaleAttemptError:
            raise
        except Exception:
            log.exception("The savepoint of the job could not be triggered; the next call retries")

    def _begin(self, request: CheckpointRequest, stages: Sequence[StageAtTrigger]) -> None:
        with self.refusing(request):
            self._require_checkpoints(stages)
            begun = self.rows.begin(
                BeginCheckpoint(
                    leader=self.leader,
                    decider=_ONE_AT_A_TIME,
                    request_key=request.request_key,
                    coordinator=self.name,
                    awaited=tuple(map(_awaited, stages)),
                    timeout_seconds=SAVEPOINT_TIMEOUT.total_seconds(),
                    savepoint_dir=self._files.savepoint_parent(request.target),
                )
            )
            if begun is not None:
                self.trigger(begun, partial(self._write_stages, begun, stages))

    def _require_checkpoints(self, stages: Sequence[StageAtTrigger]) -> None:
        try:
            require_checkpoints(self._view, stages)
        except CheckpointNotFoundError as error:
            raise CheckpointException(CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, error) from error

    def _write_stages(self, savepoint: CheckpointRecord, stages: Sequence[StageAtTrigger]) -> FileStateHandle:
        self._files.initialize_location(savepoint.location)
        states = sorted(map(_state, stages), key=lambda state: state.operator_id)
        return self._files.write_manifest(savepoint, AlignedContent(operator_states=tuple(states)))

    def give(self, savepoint: CheckpointRecord, stage: StageAtTrigger, member: CheckpointDocument | None) -> bool:
        """
        Give the member of a stage to a savepoint, and finalize it after the last one.

        :param member: Copy of the stage's checkpoint; ``None`` for a stage that has ended without one.
        :return: Whether the savepoint has the member; ``False`` if it has ended.
        :raises CheckpointException: if the savepoint cannot be finalized.
        """
        size = 0 if member is None else member.named_bytes
        asked = self.acknowledgement(savepoint.checkpoint_id, stage.attempt_id, state_size_bytes=size)
        found = self.acknowledge(asked, lambda pending: self._write_member(pending, member))
        return found.verdict in (AcknowledgeResult.SUCCESS, AcknowledgeResult.DUPLICATE)

    def _write_member(self, savepoint: CheckpointRecord, member: CheckpointDocument | None) -> FileStateHandle | None:
        return None if member is None else self._files.write_manifest(savepoint, AlignedContent(members=(member,)))

    def decline(self, savepoint: CheckpointRecord, error: StateCheckError) -> None:
        """Abort a savepoint for which a stage cannot give a member."""
        self.abort_one(savepoint.checkpoint_id, CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED, error))

    @override
    def finalize(self, acknowledged: AcknowledgedCheckpoint) -> bool:
        is_complete = super().finalize(acknowledged)
        if is_complete:
            self._subsume()
        return is_complete

    def _subsume(self) -> None:
        """Subsume savepoints beyond retention; a failure is logged."""
        try:
            for each in beyond_retention(self.rows.handles(self.leader).live, RETAINED):
                repeated(partial(self.rows.remove_handle, self.leader, each.checkpoint_id))
            self.clean()
        except StaleAttemptError:
            raise
        except Exception:
            log.exception("Earlier savepoints could not be ended; the next completed one ends them")

    @override
    def clean(self) -> None:
        ended = [c.checkpoint_id for c in self.rows.effects(self.leader).effects.discards]
        for checkpoint_id in ended:
            try:
                delete_ended(self.rows, self.leader, self._files, self._discards, (checkpoint_id,))
            except StaleAttemptError:
                raise
            except Exception:
                log.warning("Savepoint %s is not deleted; the next cleaning repeats it", checkpoint_id, exc_info=True)

    @override
    def _report(
        self, error: CheckpointException, failed: CheckpointRecord | CheckpointRequest, attempt_id: str = ""
    ) -> None:
        try:
            report_failure(self.rows, self.leader, error, failed.checkpoint_id)
        except StateCheckError:
            log.warning("The failure of savepoint %s is not in the statistics", failed.checkpoint_id, exc_info=True)


def _awaited(stage: StageAtTrigger) -> AwaitedTask:
    is_empty = stage.status is GivingStatus.EMPTY
    return AwaitedTask(operator_id=stage.operator_id, attempt_id=stage.attempt_id, is_finished=is_empty)


def _state(stage: StageAtTrigger) -> OperatorState:
    """Return the entry of a stage in the savepoint, which has the states in its member."""
    return OperatorState(
        operator_id=stage.operator_id,
        uid=stage.uid,
        parallelism=1,
        max_parallelism=1,
        is_fully_finished=stage.status is GivingStatus.EMPTY,
    )
