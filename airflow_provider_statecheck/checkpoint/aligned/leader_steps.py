"""
Steps of a leader of aligned checkpoints: resume, trigger, acknowledge, abort and finalize.

A savepoint of a whole job and the coordinator of a program take the same steps. The rows hold all that a step has done,
so another process goes on after any of them. A finalizer holds a lease; when the lease expires, another process repeats
the finalization with the same result.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedStorage, CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortCheckpoints,
    AbortScope,
    AcknowledgeAligned,
    AcknowledgedCheckpoint,
    Assessment,
    TakenOver,
)
from airflow_provider_statecheck.checkpoint.aligned.steps import (
    DEFAULT_LEASE,
    complete,
    completed_elsewhere,
    delete_manifest,
    delete_merged_manifests,
    finalization_failure,
    message_of,
    recorded_failure,
    trigger_failure,
    unrecoverable,
    write_acknowledged,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId, new_key
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeResult, AttemptRef
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointRequest, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StaleAttemptError, StateCheckError

log = logging.getLogger(__name__)


class LeaderSteps(ABC):
    """
    The steps of one leader, each of which raises ``StaleAttemptError`` if another one leads.

    :param uids: Uids of the operators by id, with which an expired checkpoint names the operators that it awaits.
    :param lease: Time after which another process may take over a finalization.
    """

    def __init__(
        self,
        rows: AlignedCheckpoints,
        leader: AttemptRef,
        storage: AlignedStorage,
        uids: Mapping[OperatorId, str],
        *,
        lease: timedelta = DEFAULT_LEASE,
    ) -> None:
        self.rows = rows
        self.leader = leader
        self.name = new_key()
        """The unique name of this process as a finalizer."""
        self._storage = storage
        self._uids = dict(uids)
        self._lease = lease

    @abstractmethod
    def clean(self) -> None:
        """Delete the files of ended checkpoints that nothing needs."""

    @abstractmethod
    def _report(
        self, error: CheckpointException, failed: CheckpointRecord | CheckpointRequest, attempt_id: str = ""
    ) -> None:
        """
        Report the failure of a checkpoint, or of a request that has none, without raising an error.

        :param attempt_id: The attempt that caused it, empty for the leader.
        """

    def resume(self) -> None:
        """
        Finalize what earlier leaders have left acknowledged, and abort what they have not triggered or cannot be read.

        :raises StateCheckError: if the database or the storage fails; the call may be repeated.
        """
        for acknowledged in self.take_over(is_new=True).pending:
            lost = unrecoverable(self._storage, acknowledged)
            if lost is not None:
                self.abort_one(acknowledged.checkpoint.checkpoint_id, lost)
        self.clean()

    def take_over(self, *, is_new: bool = False) -> TakenOver:
        """
        Finalize the checkpoints whose finalizer's lease has expired.

        :param is_new: Whether to return the pending checkpoints of earlier leaders.
        """
        taken = self.rows.take_over(self.leader, new_key(), self._lease.total_seconds(), is_new=is_new)
        for acknowledged in taken.finalizing:
            self.try_finalize(acknowledged)
        return taken

    @contextmanager
    def refusing(self, request: CheckpointRequest) -> Iterator[None]:
        """Begin the checkpoint of a request in a block, whose error fails the request."""
        try:
            yield
        except StaleAttemptError:
            raise
        except Exception as error:
            # The request has a checkpoint if its begin was committed although it reported an error.
            self.refuse(request, trigger_failure(error), AbortScope.REQUEST)

    def refuse(self, request: CheckpointRequest, error: CheckpointException, scope: AbortScope) -> None:
        """Fail a request, and with the scope ``REQUEST`` its pending checkpoint."""
        if not self.abort(scope, error, request_key=request.request_key):
            self._report(error, request)

    def trigger(self, checkpoint: CheckpointRecord, write_manifest: Callable[[], FileStateHandle | None]) -> None:
        """
        Acknowledge a checkpoint for the leader itself, after which only its tasks are awaited; an error aborts it.

        :param write_manifest: Tells the tasks, and returns the manifest of what the leader adds.
        """
        try:
            acknowledged = self.rows.acknowledge(
                self.acknowledgement(checkpoint.checkpoint_id, None, is_written=True, manifest=write_manifest())
            )
        except StaleAttemptError:
            raise
        except Exception as error:
            log.warning("Checkpoint %s could not be triggered", checkpoint.checkpoint_id, exc_info=True)
            self.abort_one(checkpoint.checkpoint_id, trigger_failure(error))
            return
        if acknowledged.finalizing is not None:
            self.try_finalize(acknowledged.finalizing)

    def acknowledgement(self, checkpoint_id: int, attempt_id: str | None, **fields: Any) -> AcknowledgeAligned:
        """Return the message of an acknowledgement; after the last one, this process finalizes the checkpoint."""
        return AcknowledgeAligned(
            leader=self.leader,
            checkpoint_id=checkpoint_id,
            attempt_id=attempt_id,
            finalizer=self.name,
            lease_seconds=self._lease.total_seconds(),
            **fields,
        )

    def acknowledge(
        self, asked: AcknowledgeAligned, write_manifest: Callable[[CheckpointRecord], FileStateHandle | None]
    ) -> Assessment:
        """
        Store an acknowledgement and finalize the checkpoint after the last one.

        :param write_manifest: Writes the manifest; called only if the checkpoint awaits the acknowledgement.
        :raises CheckpointException: if the checkpoint cannot be completed and was aborted.
        """
        while (found := self.rows.acknowledge(asked)).has_expired:
            self.expire()
        if found.verdict is not AcknowledgeResult.SUCCESS or found.checkpoint is None:
            return found
        manifest = write_manifest(found.checkpoint)
        found = self.rows.acknowledge(replace(asked, is_written=True, manifest=manifest))
        if found.verdict is not AcknowledgeResult.SUCCESS and manifest is not None:
            self._delete_surplus(manifest, found)
        if found.finalizing is not None:
            self.finalize(found.finalizing)
        return found

    def _delete_surplus(self, manifest: FileStateHandle, found: Assessment) -> None:
        is_named = manifest.uri in {a.manifest_uri for a in found.acknowledgements}
        if not is_named or _keeps_no_manifest(found.checkpoint):
            delete_manifest(self._storage, manifest.uri)

    def expire(self) -> None:
        """Abort the pending checkpoints whose time has passed."""
        expired = CheckpointException(CheckpointFailureReason.CHECKPOINT_EXPIRED)
        self.abort(AbortScope.EXPIRED, expired, uids=self._uids)

    def abort_one(self, checkpoint_id: int, error: CheckpointException, *, attempt_id: str = "") -> bool:
        """
        Abort a checkpoint if it is pending.

        :param attempt_id: The attempt that caused the abort, empty for the leader.
        :return: Whether the checkpoint was pending.
        """
        return bool(self.abort(AbortScope.CHECKPOINT, error, checkpoint_id=checkpoint_id, attempt_id=attempt_id))

    def abort(
        self, scope: AbortScope, error: CheckpointException, *, attempt_id: str = "", **fields: Any
    ) -> tuple[CheckpointRecord, ...]:
        """
        Abort the checkpoints of a scope in one transition, then report them and delete their files.

        An error of a deletion is logged.

        :param attempt_id: The attempt that caused the abort, empty for the leader.
        :param fields: Further fields of ``AbortCheckpoints``.
        :return: The aborted checkpoints.
        """
        message = AbortCheckpoints(
            leader=self.leader, scope=scope, reason=error.reason, message=message_of(error), **fields
        )
        aborted = self.rows.abort(message)
        for each in aborted:
            log.info("Aborted checkpoint %s: %s", each.checkpoint_id, each.failure_message)
            self._report(recorded_failure(each) if scope is AbortScope.EXPIRED else error, each, attempt_id)
        if aborted:
            self._clean_or_log()
        return aborted

    def _clean_or_log(self) -> None:
        try:
            self.clean()
        except Exception:
            log.exception("The files of ended checkpoints are left to the next cleaning")

    def try_finalize(self, acknowledged: AcknowledgedCheckpoint) -> None:
        """Finalize a checkpoint and log a failure, which the rows and the request report."""
        try:
            self.finalize(acknowledged)
        except StateCheckError:
            log.warning("Checkpoint %s could not be finalized", acknowledged.checkpoint.checkpoint_id, exc_info=True)

    def finalize(self, acknowledged: AcknowledgedCheckpoint) -> bool:
        """
        Complete a checkpoint that is assigned to this finalizer, and abort those that it makes useless.

        :return: Whether the checkpoint is complete; ``False`` if another finalizer decides.
        :raises CheckpointException: if the checkpoint cannot be completed and was aborted.
        :raises StaleAttemptError: if another leader has taken over; nothing is deleted.
        """
        record = acknowledged.checkpoint
        try:
            self._complete(write_acknowledged(self.rows, self.leader, self._storage, acknowledged))
        except StaleAttemptError:
            raise
        except Exception as error:
            if not self._is_complete_after(record, error):
                return False
        log.info("Checkpoint %s of the job is complete at %s", record.checkpoint_id, record.location)
        delete_merged_manifests(self._storage, acknowledged)
        if record.properties.ends_others:
            self._abort_older(record)
        return True

    def _complete(self, written: CompletedCheckpoint) -> None:
        complete(self.rows, self.leader, written)

    def _is_complete_after(self, record: CheckpointRecord, error: Exception) -> bool:
        failure = finalization_failure(error)
        # The first write of the transition waits for a commit that is still in progress.
        if self.abort(
            AbortScope.FINALIZATION,
            failure,
            checkpoint_id=record.checkpoint_id,
            finalizer=record.finalizer,
            lease_until=record.lease_until,
        ):
            raise failure from error
        return completed_elsewhere(self.rows, record, error) is not None

    def _abort_older(self, completed: CheckpointRecord) -> None:
        try:
            subsumed = CheckpointException(CheckpointFailureReason.CHECKPOINT_SUBSUMED)
            self.abort(AbortScope.OLDER, subsumed, checkpoint_id=completed.checkpoint_id)
        except StateCheckError:
            log.exception("Older checkpoints are still pending; the next completed checkpoint aborts them")


def _keeps_no_manifest(checkpoint: CheckpointRecord | None) -> bool:
    # The manifests of a checkpoint are deleted with its directory.
    return (
        checkpoint is not None
        and checkpoint.properties.is_savepoint
        and checkpoint.status is CheckpointStatus.COMPLETED
    )
