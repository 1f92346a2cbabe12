"""
Attempt of a stage on the driver: registration, restore, checkpoints and cleanup.

The module uses storage and the coordinator, not Spark. Crash safety depends on the order of writes: files before rows,
``_metadata`` after all other files, rows before deletes.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from itertools import dropwhile
from typing import Final

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import (
    UNKNOWN_CHECKPOINT_ID,
    UNLIMITED_TOLERABLE_FAILURES,
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
)
from airflow_provider_statecheck.checkpoint.ids import is_savepoint_directory, job_id_of, job_uri, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AttemptGrant,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    ReportProgress,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnOverlap
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    CheckpointNotFoundError,
    CoordinatorError,
    NoRestorableCheckpointError,
    StaleAttemptError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.gateway.verbs import StageGateway, registering
from airflow_provider_statecheck.spark.checkpoint_writer import (
    CheckpointContent,
    CheckpointFiles,
    JobStop,
    StageSavepoints,
    decline,
)
from airflow_provider_statecheck.spark.endings import fenced_line, is_success, leftover_line, message_of, retained_line
from airflow_provider_statecheck.spark.restore import RestoredStage, restore_latest
from airflow_provider_statecheck.spark.status_log import CheckpointLog, WorkInProgress
from airflow_provider_statecheck.storage.discarding import EffectDiscards
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import DocumentCache, state_uris
from airflow_provider_statecheck.storage.orphans import newest_checkpoint_id, sweep
from airflow_provider_statecheck.storage.views.checkpoint_storages import load_checkpoint_storage

log = logging.getLogger(__name__)

UNLIMITED: Final = -1
_CHECKPOINT: Final = CheckpointProperties()


class StageAttempt:
    """
    One registered attempt of a stage.

    :param registration: Job, uid, owner and settings of the attempt.
    :param tolerable_failed_checkpoints: Number of consecutive failed checkpoints that do not fail the stage; ``-1`` for
        no limit.
    :param savepoint_dir: Directory of savepoints whose request names none.
    :param storage_config: Settings of the checkpoint storage, which the driver and the tasks use.
    :param on_overlap: Policy if an attempt of another run has the operator.
    :param pause: Waits for a number of seconds while the job stops with a savepoint; until :meth:`release` by default.
    :param require_open: For a coordinator whose answers take seconds: raises ``StaleAttemptError`` if the attempt is
        known to be replaced; called before the metadata of a checkpoint is written.
    """

    def __init__(
        self,
        gateway: StageGateway,
        storage: CheckpointStorage,
        registration: RegisterAttempt,
        *,
        tolerable_failed_checkpoints: int = -1,
        savepoint_dir: str | None = None,
        storage_config: CheckpointConfig | None = None,
        on_overlap: OnOverlap = OnOverlap.FAIL,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
        require_open: Callable[[], None] | None = None,
    ) -> None:
        self._gateway = gateway
        self._require_open = require_open
        self._failures = FailedCheckpoints(tolerable_failed_checkpoints)
        newest_id = newest_checkpoint_id(storage, job_id_of(registration.job_name))
        self.grant: AttemptGrant = registering(gateway.register, on_overlap)(
            replace(registration, newest_on_storage=newest_id)
        )
        self.storage = storage = storage.allowing(*_referenced_locations(registration, self.grant))
        self._documents = DocumentCache(lambda _: storage)
        self.cleaner = EffectDiscards(storage, self._documents)
        # The operator may have been created under another uid; its files keep that one.
        source = self.grant.restore_from or registration.restore_from
        self.registration = replace(registration, uid=self.grant.uid, restore_from=source)
        self._log = CheckpointLog(registration.job_name, self.grant.uid, self.grant.attempt.epoch)
        self._log.registered(self.grant)
        self._savepoints = StageSavepoints(gateway, storage, self._documents, self.grant.attempt, savepoint_dir)
        self._job_stop = JobStop(gateway, monotonic, pause, missed=self.grant.effects.stop)
        self.latest: CheckpointRecord | None = None
        self.work = WorkInProgress(self._report_progress, monotonic)
        """What the attempt has restored and is working on, for display."""
        self._newer_epoch: int | None = None
        self._is_closed = False
        self._is_readable = True
        self.storage_config = storage_config or CheckpointConfig()
        with self.ending():
            view = load_checkpoint_storage(storage, self.grant.attempt, self.storage_config)
        self._files = CheckpointFiles(view, storage, self._documents, self.grant, registration.job_name, monotonic)

    def restore(self) -> RestoredStage | None:
        """
        Load the newest readable checkpoint and confirm it to the coordinator.

        :return: ``None`` if the attempt starts from the beginning.
        :raises NoRestorableCheckpointError: if there are checkpoints but none is readable.
        """
        restored = self.load()
        self.confirm_restore(restored)
        return restored

    def load(self) -> RestoredStage | None:
        """
        Load the newest readable checkpoint.

        Nothing is claimed or deleted before :meth:`confirm_restore`; the caller can still reject the checkpoint.

        :return: ``None`` if the attempt starts from the beginning.
        :raises NoRestorableCheckpointError: if there are checkpoints but none is readable.
        """
        if not self.grant.is_restore:
            return None
        try:
            return restore_latest(self.storage, self.grant, self.registration)
        except StateCheckError as error:
            self._is_readable = not isinstance(error, NoRestorableCheckpointError)
            self._close_unrestored(error)
            raise

    def load_before(self, restored: RestoredStage) -> RestoredStage | None:
        """
        Load the checkpoint with which the run of a loaded one began: the last one of the run before, or a savepoint.

        :return: ``None`` if no such checkpoint is among the candidates.
        :raises NoRestorableCheckpointError: if there are such checkpoints but none is readable.
        """
        taken = restored.checkpoint
        older = [c for c in self.grant.candidates if c.checkpoint_id < taken.checkpoint_id]
        before = tuple(dropwhile(lambda c: c.run_key == taken.run_key and not _is_savepoint(c), older))
        if not before:
            return None
        return restore_latest(self.storage, replace(self.grant, candidates=before), self.registration)

    def confirm_restore(
        self, restored: RestoredStage | None, *, starts_over: bool = False, restarted_run: str | None = None
    ) -> None:
        """
        Confirm the restored checkpoint to the coordinator and delete discarded checkpoints.

        :param restored: Return value of :meth:`load` or :meth:`load_before`.
        :param starts_over: Whether the stage uses nothing of it, because its source has changed. A savepoint then
            remains its owner's, and the output before the checkpoint is no longer in force.
        :param restarted_run: Run whose checkpoints, and those of later runs, are given up, because the source has
            changed.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises SavepointClaimedError: if another operator claimed the savepoint in the meantime.
        :raises NoRestorableCheckpointError: if the run starts without state, and is not the first one of the job.
        """
        if restored is None:
            self._discard(self.grant.effects, frozenset())
            return
        source, attempt = self.registration.restore_from, self.grant.attempt
        claim = source is not None and source.mode is RestoreMode.CLAIM and not starts_over
        self._gateway.confirm_restore(
            restored.confirmation(attempt, claim=claim, starts_over=starts_over, restarted_run=restarted_run)
        )
        if not starts_over:
            self._log.restored(restored.checkpoint)
        if not (starts_over and self.begins_from_savepoint):
            self._documents.remember(restored.checkpoint.checkpoint_id, restored.document)
            self.latest = restored.checkpoint
        self._discard(self.grant.effects, frozenset(h.uri for h in restored.document.snapshots))

    @property
    def answers_late(self) -> bool:
        """Whether an answer of the coordinator takes seconds, so that a stage computes on where the order allows it."""
        return self._require_open is not None

    def require_current(self) -> None:
        """
        Require that the attempt has not been replaced or fenced.

        :raises StaleAttemptError: if it has.
        """
        # Confirming nothing has no other effect.
        self._gateway.confirm_discards(self.grant.attempt, ())

    def _report_progress(self, summary: CheckpointSummary) -> None:
        try:
            self._gateway.report_progress(ReportProgress(attempt=self.grant.attempt, summary=summary))
        except StaleAttemptError:
            raise
        except (CoordinatorError, CheckpointNotFoundError) as error:
            # The next checkpoint or the end of the attempt tells it again.
            log.debug("The progress could not be reported: %s", error)

    @property
    def begins_from_savepoint(self) -> bool:
        """Whether the attempt restores a savepoint for the first time."""
        return any(candidate.is_adoption for candidate in self.grant.candidates)

    def take_checkpoint(self, content: CheckpointContent) -> CheckpointRecord | None:
        """
        Take a checkpoint of the stage.

        :return: The completed checkpoint, or ``None`` if it failed and the failure is tolerated.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        :raises StoppedWithSavepointError: if a stop with a savepoint was requested; the checkpoint is complete.
        """
        pending = self.begin_checkpoint(None)
        return None if pending is None else self.complete_checkpoint(pending, content)

    def begin_checkpoint(self, timeout_seconds: float | None) -> PendingCheckpoint | None:
        """
        Trigger a checkpoint. The work that it will contain may still follow.

        :param timeout_seconds: Time limit for that work and the checkpoint together; ``None`` for the job's setting.
        :return: ``None`` if it failed and the failure is tolerated.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        """
        try:
            return self._trigger(timeout_seconds)
        except StaleAttemptError:
            raise
        except (StorageError, CoordinatorError) as error:
            self._failures.failed(error)
            return None

    def complete_checkpoint(self, pending: PendingCheckpoint, content: CheckpointContent) -> CheckpointRecord | None:
        """
        Write the metadata of a pending checkpoint and acknowledge it.

        :return: The completed checkpoint, or ``None`` if it failed and the failure is tolerated.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        :raises StoppedWithSavepointError: if a stop with a savepoint was requested; the checkpoint is complete.
        """
        try:
            completed, effects = self._complete(pending, content)
        except StaleAttemptError:
            raise
        except (StorageError, CoordinatorError, CheckpointDeclinedError) as error:
            self._failures.failed(error, pending.checkpoint_id)
            return None
        self._failures.succeeded(completed.checkpoint_id)
        self._savepoints.serve(effects.savepoints, completed)
        self._job_stop.wait_for(effects.stop)
        return completed

    def confirm_commits(self, checkpoint_ids: tuple[int, ...], seconds: float | None = None) -> None:
        """
        Confirm that the sink has committed the committables of checkpoints, and delete discarded checkpoints.

        If the job stops with a savepoint, wait for the end of it, as :meth:`complete_checkpoint` does without open
        commits.

        :param seconds: Time of the commits, for pages; ``None`` if it was not measured.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises StoppedWithSavepointError: if the job has stopped with a savepoint.
        """
        effects = self._gateway.confirm_commits(self.grant.attempt, checkpoint_ids, seconds)
        self._discard(effects, frozenset())
        self._job_stop.wait_for(effects.stop)

    def release(self) -> None:
        """Let a thread go on that waits for the end of the savepoint with which the job stops, and report no more."""
        self._job_stop.release()
        self.work.end()

    def job_view(self) -> JobView:
        """Return the rows of the job."""
        return self._gateway.describe(self.grant.attempt.job_id)

    def failed(self, error: StateCheckError) -> None:
        """
        Count a checkpoint that failed before it was triggered.

        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        """
        self._failures.failed(error)

    def finish(self, status: AttemptStatus, message: str = "", damaged_snapshots: tuple[str, ...] = ()) -> None:
        """
        Close the attempt and delete discarded checkpoints; after a success, also delete orphan files.

        :param damaged_snapshots: URIs of restored snapshots that could not be read. The next attempt does not use them.
        :raises StaleAttemptError: if a newer attempt has taken over.
        """
        # A thread that is left behind may wait, and would keep the process from ending.
        self.release()
        if status is AttemptStatus.FINISHED:
            self._serve_last_savepoints()
        closing = FinishAttempt(
            attempt=self.grant.attempt,
            status=status,
            message=message,
            damaged_snapshots=damaged_snapshots,
            restored_summary=self.work.at_end(),
        )
        effects = self._gateway.finish(closing)
        self._is_closed = True
        deleted = self._discard(effects, frozenset())
        if status is AttemptStatus.FINISHED:
            self._sweep()
            self._log_leftover(effects, deleted)

    def fail(self, error: BaseException, damaged_snapshots: tuple[str, ...] = ()) -> None:
        """
        Close the attempt as failed, also if it was closed as finished and its task or script failed after that.

        Outside Airflow, also log the retained checkpoint; in a task, Airflow's listener logs it after the error.

        :param damaged_snapshots: As for :meth:`finish`.
        """
        self._newer_epoch = _newer_epoch(error)
        self._is_closed = True
        try:
            self.finish(AttemptStatus.FAILED, message_of(error), damaged_snapshots)
        except StaleAttemptError as stale:
            self._newer_epoch = _newer_epoch(stale)
        except StateCheckError as closing:
            log.warning("The attempt could not be closed; the next attempt will replace it: %s", closing)
        if self.registration.owner.task is None:
            log.error("%s", self.kept())

    def end(self, error: BaseException) -> None:
        """
        Close the attempt as an error ends its task or process: as finished if the error is no failure, else as failed.

        :raises StateCheckError: if the attempt cannot be closed as finished; it is closed as failed.
        """
        if self._is_closed:
            return
        if not is_success(error):
            self.fail(error)
            return
        try:
            self.finish(AttemptStatus.FINISHED, message_of(error))
        except BaseException as failure:
            self.fail(failure)
            raise

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Close the attempt if the block ends with an error, also with one that a signal raises."""
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise

    def _log_leftover(self, effects: OpenEffects, deleted: tuple[int, ...]) -> None:
        leftover = leftover_line(self.registration, effects, deleted)
        if leftover is not None:
            log.info("%s", leftover)

    def kept(self) -> str:
        """Return a line about the checkpoint that the next attempt restores, or about the attempt that took over."""
        if self._newer_epoch is not None:
            return fenced_line(self.registration.job_name, self.grant.attempt.epoch, self._newer_epoch)
        # Before a restore is confirmed, the next attempt starts from what this one was granted.
        latest = self.latest or next(iter(self.grant.candidates), None)
        return retained_line(self.registration, latest, is_readable=self._is_readable)

    def _serve_last_savepoints(self) -> None:
        # A request may have arrived after the last checkpoint, and one to terminate waits for the end.
        if self.latest is None:
            return
        attempt = self.grant.attempt
        try:
            requests = self._gateway.describe(attempt.job_id).savepoints_asked_of(attempt.operator_id)
        except (CoordinatorError, CheckpointNotFoundError) as error:
            log.warning("Savepoint requests could not be read; the next gc serves them: %s", error)
            return
        self._savepoints.serve(requests, self.latest, is_end=True)

    def _close_unrestored(self, error: StateCheckError) -> None:
        message = FinishAttempt(attempt=self.grant.attempt, status=AttemptStatus.FAILED, message=str(error))
        try:
            self._gateway.finish(message)
        except CoordinatorError as closing:
            # The next registration closes the attempt. This error must not hide the one of the restore.
            log.warning("The attempt could not be closed after its restore failed: %s", closing)

    def _trigger(self, timeout_seconds: float | None) -> PendingCheckpoint:
        request = TriggerCheckpoint(attempt=self.grant.attempt, request_key=new_key(), timeout_seconds=timeout_seconds)
        pending = self._gateway.trigger(request)
        self._log.triggered(pending)
        return pending

    def _complete(self, pending: PendingCheckpoint, content: CheckpointContent) -> tuple[CheckpointRecord, OpenEffects]:
        content, told = self.work.added_to(content)
        if self._require_open is not None:
            self._require_open()
        try:
            message = self._files.write(pending, content)
        except StateCheckError as error:
            decline(self._gateway, self.grant.attempt, pending, error, content.increment_seconds)
            raise
        acknowledged = self._acknowledge(message, content.pinned | frozenset(state_uris(content.operator_states)))
        self.work.told(told)
        return acknowledged

    def _acknowledge(
        self, message: AcknowledgeCheckpoint, pinned: AbstractSet[str]
    ) -> tuple[CheckpointRecord, OpenEffects]:
        reply = self._gateway.acknowledge(message)
        completed = reply.checkpoint if reply.is_completed else None
        if completed is None:
            self._discard(reply.effects, pinned)
            raise CheckpointDeclinedError(
                f"Checkpoint {message.checkpoint_id} was acknowledged too late and is {reply.result.value}; raise "
                f"checkpoint_timeout_seconds if its files take longer to write.",
                reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
                checkpoint_id=message.checkpoint_id,
            )
        self.latest = completed
        self._log.completed(completed)
        self._discard(reply.effects, pinned)
        return completed, reply.effects

    def _discard(self, effects: OpenEffects, pinned: AbstractSet[str]) -> tuple[int, ...]:
        deleted = self.cleaner.discard(effects, pinned) if effects.discards else ()
        if not deleted:
            return ()
        self._log.discarded(c for c in effects.discards if c.checkpoint_id in deleted)
        try:
            self._gateway.confirm_discards(self.grant.attempt, deleted)
        except StaleAttemptError:
            raise
        except (CoordinatorError, CheckpointNotFoundError) as error:
            # Harmless: the next reply contains the discards again, and deleting twice has no effect.
            log.warning("The deletion of checkpoints %s could not be confirmed: %s", deleted, error)
        return deleted

    def _sweep(self) -> None:
        try:
            job_id, gateway = self.grant.attempt.job_id, self._gateway
            rows = functools.partial(gateway.checkpoint, job_id)
            problems = sweep(self.storage, gateway.describe(job_id), self._documents, row_of=rows).problems
        except (StorageError, CoordinatorError, CheckpointNotFoundError) as error:
            problems = (str(error),)
        if problems:
            log.warning("Orphan files could not be deleted; the next garbage collection deletes them: %s", problems[0])


def _is_savepoint(checkpoint: CheckpointRecord) -> bool:
    # A run may have begun from a savepoint that has its own name; one that was claimed is a checkpoint like others.
    return checkpoint.properties.unclaimed or is_savepoint_directory(checkpoint.location)


def _newer_epoch(error: BaseException) -> int | None:
    return vars(error).get("current_epoch") if isinstance(error, StaleAttemptError) else None


def _referenced_locations(registration: RegisterAttempt, grant: AttemptGrant) -> Iterator[str]:
    # Checkpoints may be in the directory of an earlier configuration, or in that of a claimed savepoint.
    checkpoints = (*grant.candidates, *grant.effects.retained, *grant.effects.discards)
    yield from dict.fromkeys(checkpoint.location for checkpoint in checkpoints)
    # A checkpoint in the current directory may reference snapshots in an earlier one that has no checkpoints left.
    yield from (job_uri(base, grant.attempt.job_id) for base in grant.storage_bases)
    source = registration.restore_from
    # The pointer of a fork whose checkpoint is deleted is the user's input, such as run:<run>.
    if source is not None and "://" in source.pointer:
        yield source.pointer


class FailedCheckpoints:
    """
    Counts consecutive failed checkpoints of a stage.

    :param tolerable: Number of consecutive failures that do not fail the stage; ``-1`` for no limit.
    """

    def __init__(self, tolerable: int = UNLIMITED) -> None:
        tolerable = UNLIMITED_TOLERABLE_FAILURES if tolerable == UNLIMITED else tolerable
        self._manager = CheckpointFailureManager(tolerable, _FailStage())
        self._has_failures = False

    def succeeded(self, checkpoint_id: int) -> None:
        """Reset the count after a completed checkpoint."""
        if self._has_failures:
            self._has_failures = False
            self._manager.handle_checkpoint_success(checkpoint_id)

    def failed(self, error: StateCheckError, checkpoint_id: int = UNKNOWN_CHECKPOINT_ID) -> None:
        """
        Count a failure and log it.

        :param checkpoint_id: Id of the checkpoint, if it was triggered.
        :raises CheckpointDeclinedError: if more failed than are tolerated; the message lists the failures.
        """
        self._has_failures = True
        self._manager.handle_checkpoint_exception(
            CheckpointException(_counted_reason(error), error),
            properties=_CHECKPOINT,
            checkpoint_id=checkpoint_id,
        )
        checkpoint = "A checkpoint" if checkpoint_id == UNKNOWN_CHECKPOINT_ID else f"Checkpoint {checkpoint_id}"
        log.warning("%s failed; the stage continues without it: %s", checkpoint, error)


class _FailStage:
    """Fails the stage by raising the failure in the call that took the checkpoint."""

    def fail_job(self, cause: Exception) -> None:
        raise cause

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        raise cause


def _counted_reason(error: StateCheckError) -> CheckpointFailureReason:
    """Return a reason that the failure manager counts: any failure costs the stage a checkpoint."""
    reason = vars(error).get("reason")
    if isinstance(reason, CheckpointFailureReason) and not reason.is_tolerated_silently:
        return reason
    return CheckpointFailureReason.IO_EXCEPTION
