"""
Steps of a savepoint of a whole job: trigger, give, finalize, decline and expire.

The rows hold all that a step has done, so another process goes on after any of them. A process leads only for its step:
what it has not triggered or finalized when it ends is settled by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedContent
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortCheckpoints,
    AbortScope,
    AcknowledgeAligned,
    AcknowledgedCheckpoint,
    AwaitedTask,
    BeginCheckpoint,
)
from airflow_provider_statecheck.checkpoint.aligned.steps import (
    DEFAULT_LEASE,
    complete,
    completed_elsewhere,
    delete_ended,
    delete_merged_manifests,
    finalization_failure,
    message_of,
    recorded_failure,
    repeated,
    trigger_failure,
    unrecoverable,
    write_acknowledged,
)
from airflow_provider_statecheck.checkpoint.codec import storable_text
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason, root_cause
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeResult, AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, CheckpointRecord, CheckpointRequest
from airflow_provider_statecheck.checkpoint.retention import beyond_retention
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.checkpoint.transitions import SAVEPOINT_TIMEOUT
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StaleAttemptError, StateCheckError
from airflow_provider_statecheck.gateway.leadership import leading
from airflow_provider_statecheck.maintenance.savepoint_members import (
    Member,
    MemberStatus,
    members_of,
    require_checkpoints,
)
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
        steps = SavepointSteps(
            rows=rows,
            leader=leader,
            files=AlignedFiles(storage, leader.job_id, view.job.name, directory, documents=documents),
            discards=EffectDiscards(storage, documents),
            view=view,
        )
        steps.resume()
        yield steps


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointSteps:
    """The steps of one leader. Each raises ``StaleAttemptError`` if another process leads."""

    rows: AlignedCheckpoints
    leader: AttemptRef
    files: AlignedFiles
    discards: EffectDiscards
    view: JobView
    """Rows of the job from before the step."""
    finalizer: str = field(default_factory=new_key)

    def resume(self) -> None:
        """
        Finalize what earlier leaders have left acknowledged, and abort what they have not triggered or cannot be read.
        """
        taken = self.rows.take_over(self.leader, new_key(), DEFAULT_LEASE.total_seconds(), is_new=True)
        for acknowledged in taken.finalizing:
            self._try_finalize(acknowledged)
        for acknowledged in taken.pending:
            lost = unrecoverable(self.files, acknowledged)
            if lost is not None:
                self._abort(AbortScope.CHECKPOINT, lost, checkpoint_id=acknowledged.checkpoint.checkpoint_id)
        self._clean()

    def expire(self) -> None:
        """Abort the savepoints whose time has passed."""
        expired = CheckpointException(CheckpointFailureReason.CHECKPOINT_EXPIRED)
        self._abort(AbortScope.EXPIRED, expired, uids={o.operator_id: o.uid for o in self.view.stages})

    def trigger(self, request: CheckpointRequest) -> None:
        """
        Begin a savepoint of the stages that have begun, if its request is queued.

        A failure is logged, and the next call retries.
        """
        try:
            chosen = self.rows.choose(self.leader, _ONE_AT_A_TIME).run
            if chosen is not None and chosen.request_key == request.request_key:
                self._trigger(chosen, members_of(self.view))
        except StaleAttemptError:
            raise
        except Exception:
            log.exception("The savepoint of the job could not be triggered; the next call retries")

    def _trigger(self, request: CheckpointRequest, members: Sequence[Member]) -> None:
        begun = self._begin(request, members)
        if begun is not None:
            self._acknowledge_trigger(begun, members)

    def _begin(self, request: CheckpointRequest, members: Sequence[Member]) -> CheckpointRecord | None:
        try:
            self._require_checkpoints(members)
            return self.rows.begin(
                BeginCheckpoint(
                    leader=self.leader,
                    decider=_ONE_AT_A_TIME,
                    request_key=request.request_key,
                    coordinator=self.finalizer,
                    awaited=tuple(map(_awaited, members)),
                    timeout_seconds=SAVEPOINT_TIMEOUT.total_seconds(),
                    savepoint_dir=self.files.savepoint_parent(request.target),
                )
            )
        except StaleAttemptError:
            raise
        except Exception as error:
            # The request has a checkpoint if its begin was committed although it reported an error.
            if not self._abort(AbortScope.REQUEST, trigger_failure(error), request_key=request.request_key):
                self._report(trigger_failure(error), None)
            return None

    def _require_checkpoints(self, members: Sequence[Member]) -> None:
        try:
            require_checkpoints(self.view, members)
        except CheckpointNotFoundError as error:
            raise CheckpointException(CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, error) from error

    def _acknowledge_trigger(self, savepoint: CheckpointRecord, members: Sequence[Member]) -> None:
        try:
            self.files.initialize_location(savepoint.location)
            content = AlignedContent(operator_states=tuple(sorted(map(_state, members), key=lambda s: s.operator_id)))
            triggered = AcknowledgeAligned(
                leader=self.leader,
                checkpoint_id=savepoint.checkpoint_id,
                attempt_id=None,
                is_written=True,
                manifest=self.files.write_manifest(savepoint, content),
                finalizer=self.finalizer,
                lease_seconds=DEFAULT_LEASE.total_seconds(),
            )
            self.rows.acknowledge(triggered)
        except StaleAttemptError:
            raise
        except Exception as error:
            log.warning("Savepoint %s could not be triggered", savepoint.checkpoint_id, exc_info=True)
            failure = trigger_failure(error)
            self._abort(AbortScope.CHECKPOINT, failure, checkpoint_id=savepoint.checkpoint_id)

    def give(self, savepoint: CheckpointRecord, member: Member, part: CheckpointDocument | None) -> bool:
        """
        Give the part of a stage to a savepoint, and finalize it after the last one.

        :param part: Copy of the stage's checkpoint; ``None`` for a stage that has ended without one.
        :return: Whether the savepoint has the part; ``False`` if it has ended.
        :raises CheckpointException: if the savepoint cannot be finalized.
        """
        asked = AcknowledgeAligned(
            leader=self.leader,
            checkpoint_id=savepoint.checkpoint_id,
            attempt_id=member.attempt_id,
            state_size_bytes=0 if part is None else part.named_bytes,
            finalizer=self.finalizer,
            lease_seconds=DEFAULT_LEASE.total_seconds(),
        )
        while (found := self.rows.acknowledge(asked)).has_expired:
            self.expire()
        if found.verdict is AcknowledgeResult.SUCCESS:
            manifest = None if part is None else self.files.write_manifest(savepoint, AlignedContent(parts=(part,)))
            found = self.rows.acknowledge(replace(asked, is_written=True, manifest=manifest))
        if found.finalizing is not None:
            self._finalize(found.finalizing)
        return found.verdict in (AcknowledgeResult.SUCCESS, AcknowledgeResult.DUPLICATE)

    def decline(self, savepoint: CheckpointRecord, error: StateCheckError) -> None:
        """Abort a savepoint for which a stage cannot give a part."""
        declined = CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED, error)
        self._abort(AbortScope.CHECKPOINT, declined, checkpoint_id=savepoint.checkpoint_id)

    def _try_finalize(self, acknowledged: AcknowledgedCheckpoint) -> None:
        try:
            self._finalize(acknowledged)
        except StateCheckError:
            # The rows and the request report it.
            log.warning("Savepoint %s could not be finalized", acknowledged.checkpoint.checkpoint_id, exc_info=True)

    def _finalize(self, acknowledged: AcknowledgedCheckpoint) -> None:
        try:
            written = write_acknowledged(self.rows, self.leader, self.files, acknowledged)
            complete(self.rows, self.leader, written)
        except StaleAttemptError:
            raise
        except Exception as error:
            if not self._is_complete_after(acknowledged.checkpoint, error):
                return
        log.info("Savepoint %s of the job is complete", acknowledged.checkpoint.checkpoint_id)
        delete_merged_manifests(self.files, acknowledged)
        self._end_earlier(acknowledged.checkpoint)

    def _is_complete_after(self, record: CheckpointRecord, error: Exception) -> bool:
        failure = finalization_failure(error)
        # The first write of the transition waits for a commit that is still in progress.
        if self._abort(
            AbortScope.FINALIZATION,
            failure,
            checkpoint_id=record.checkpoint_id,
            finalizer=record.finalizer,
            lease_until=record.lease_until,
        ):
            raise failure from error
        return completed_elsewhere(self.rows, record, error) is not None

    def _end_earlier(self, completed: CheckpointRecord) -> None:
        """Subsume savepoints beyond retention and pending checkpoints that are now useless; a failure is logged."""
        try:
            for each in beyond_retention(self.rows.handles(self.leader).live, RETAINED):
                repeated(partial(self.rows.remove_handle, self.leader, each.checkpoint_id))
            if completed.properties.ends_others:
                subsumed = CheckpointException(CheckpointFailureReason.CHECKPOINT_SUBSUMED)
                self._abort(AbortScope.OLDER, subsumed, checkpoint_id=completed.checkpoint_id)
            self._clean()
        except StaleAttemptError:
            raise
        except Exception:
            log.exception("Earlier checkpoints could not be ended; the next completed one ends them")

    def _abort(self, scope: AbortScope, error: CheckpointException, **fields: Any) -> bool:
        message = AbortCheckpoints(
            leader=self.leader, scope=scope, reason=error.reason, message=message_of(error), **fields
        )
        aborted = self.rows.abort(message)
        for each in aborted:
            log.info("Aborted savepoint %s: %s", each.checkpoint_id, each.failure_message)
            self._report(recorded_failure(each) if scope is AbortScope.EXPIRED else error, each.checkpoint_id)
        if aborted:
            try:
                self._clean()
            except StaleAttemptError:
                raise
            except Exception:
                log.exception("The files of aborted savepoints are left to the next process")
        return bool(aborted)

    def _report(self, error: CheckpointException, checkpoint_id: int | None) -> None:
        cause = None if error.__cause__ is None else storable_text(root_cause(error))
        try:
            self.rows.report_failure(self.leader, error.reason, checkpoint_id, cause)
        except StateCheckError:
            log.warning("The failure of savepoint %s is not in the statistics", checkpoint_id, exc_info=True)

    def _clean(self) -> None:
        ended = [c.checkpoint_id for c in self.rows.effects(self.leader).effects.discards]
        for checkpoint_id in ended:
            try:
                delete_ended(self.rows, self.leader, self.files, self.discards, (checkpoint_id,))
            except StaleAttemptError:
                raise
            except Exception:
                log.warning("Savepoint %s is not deleted; the next cleaning repeats it", checkpoint_id, exc_info=True)


def _awaited(member: Member) -> AwaitedTask:
    is_empty = member.status is MemberStatus.EMPTY
    return AwaitedTask(operator_id=member.operator_id, attempt_id=member.attempt_id, is_finished=is_empty)


def _state(member: Member) -> OperatorState:
    """Return the entry of a stage in the savepoint, which has the states in its part."""
    return OperatorState(
        operator_id=member.operator_id,
        uid=member.uid,
        parallelism=1,
        max_parallelism=1,
        is_fully_finished=member.status is MemberStatus.EMPTY,
    )
