"""
One attempt of a stage on the driver: register, restore, take checkpoints, clean up.

It knows storage and the coordinator, nothing of Spark. The order of the writes is the safety of the whole:
bytes before rows, ``_metadata`` last of the bytes, rows before deletes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.aligned.failure_manager import (
    UNKNOWN_CHECKPOINT_ID,
    UNLIMITED_TOLERABLE_FAILURES,
    CheckpointFailureManager,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, job_uri
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AttemptGrant,
    ConfirmCommits,
    ConfirmDiscards,
    DeclineCheckpoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnOverlap
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, OperatorState
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    CheckpointNotFoundError,
    CoordinatorError,
    StaleAttemptError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.gateway.retrying import registering
from airflow_provider_statecheck.spark.restore import RestoredStage, restore_latest
from airflow_provider_statecheck.spark.savepoints import StageSavepoints
from airflow_provider_statecheck.spark.status_log import CheckpointLog, fenced_line, leftover_line, retained_line
from airflow_provider_statecheck.storage.discarding import EffectDiscards
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    DocumentCache,
    InlineStateHandle,
    SnapshotHandle,
    encode_metadata,
    state_uris,
)
from airflow_provider_statecheck.storage.orphans import newest_checkpoint_id, sweep
from airflow_provider_statecheck.storage.views.state_streams import (
    FsCheckpointStateOutputStream,
    StateWriting,
    spill_above_budget,
)

log = logging.getLogger(__name__)

UNLIMITED: Final = -1
_CHECKPOINT: Final = CheckpointProperties()


class FailedCheckpoints:
    """
    Counts checkpoints of one stage that failed one after another.

    :param tolerable: How many may fail in a row; ``-1`` for any number.
    """

    def __init__(self, tolerable: int = UNLIMITED) -> None:
        self._tolerable = UNLIMITED_TOLERABLE_FAILURES if tolerable == UNLIMITED else tolerable
        self._manager = self._new_manager()

    def succeeded(self) -> None:
        """Start counting anew."""
        self._manager = self._new_manager()

    def failed(self, error: StateCheckError, checkpoint_id: int = UNKNOWN_CHECKPOINT_ID) -> None:
        """
        Count a failure and say so.

        :param checkpoint_id: Of the checkpoint, if it had one.
        :raises CheckpointDeclinedError: if it is one too many; it lists the failures, and its cause is the last one.
        """
        self._manager.handle_checkpoint_exception(
            CheckpointException(_counted_reason(error), error),
            properties=_CHECKPOINT,
            checkpoint_id=checkpoint_id,
        )
        which = "A checkpoint" if checkpoint_id == UNKNOWN_CHECKPOINT_ID else f"Checkpoint {checkpoint_id}"
        log.warning("%s failed, the stage goes on without it: %s", which, error)

    def _new_manager(self) -> CheckpointFailureManager:
        return CheckpointFailureManager(self._tolerable, _FailStage())


class _FailStage:
    """The stage fails where it took the checkpoint."""

    def fail_job(self, cause: Exception) -> None:
        raise cause

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        raise cause


def _counted_reason(error: StateCheckError) -> CheckpointFailureReason:
    """Return a reason that counts, for the stage has lost a checkpoint whatever the reason is."""
    reason = vars(error).get("reason")
    if isinstance(reason, CheckpointFailureReason) and not reason.is_tolerated_silently:
        return reason
    return CheckpointFailureReason.IO_EXCEPTION


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """Everything whose bytes are on storage by now."""

    snapshots: tuple[SnapshotHandle, ...] = ()
    """All live ones."""
    state: dict[str, Any] = field(default_factory=dict)
    """The rest of the state as JSON."""
    operator_states: tuple[OperatorState, ...] = ()
    """Of the functions of a stateful stage."""
    has_commit: bool = False
    """Whether a sink has to commit something once the checkpoint is completed."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """For people."""
    new_bytes: int = 0
    """How many bytes are new since the last checkpoint."""
    increment_seconds: float = 0.0
    """How long the increment took that it holds, if its id was drawn before."""
    pinned: AbstractSet[str] = frozenset()
    """URIs of snapshots that must stay although no checkpoint may name them."""

    @property
    def size_bytes(self) -> int:
        """Return the size of what the checkpoint names."""
        of_snapshots = sum(handle.size_bytes for handle in self.snapshots)
        return of_snapshots + sum(state.state_size for state in self.operator_states)


INLINE_STATE_BYTES = 20 * 1024


class StageAttempt:
    """
    One registered try of a stage.

    :param gateway: The way to the coordinator.
    :param storage: Where the bytes go.
    :param registration: Who asks, under which job and uid, with which settings.
    :param tolerable_failed_checkpoints: How many checkpoints in a row may fail before the stage fails; ``-1`` for any
        number.
    :param savepoint_dir: Where savepoints go whose request names no place.
    :param data_inline_threshold: Up to how many bytes small values are written into the metadata.
    :param on_overlap: What to do while another run's attempt has the operator.
    """

    def __init__(
        self,
        gateway: CheckpointCoordinatorGateway,
        storage: CheckpointStorage,
        registration: RegisterAttempt,
        *,
        tolerable_failed_checkpoints: int = -1,
        savepoint_dir: str | None = None,
        data_inline_threshold: int = INLINE_STATE_BYTES,
        on_overlap: OnOverlap = OnOverlap.FAIL,
    ) -> None:
        self._gateway = gateway
        self._data_inline_threshold = data_inline_threshold
        self._failures = FailedCheckpoints(tolerable_failed_checkpoints)
        found = replace(registration, newest_on_storage=newest_checkpoint_id(storage, job_id_of(registration.job_name)))
        self.grant: AttemptGrant = registering(gateway.register, on_overlap)(found)
        self.storage = storage = storage.allowing(*_places_named(registration, self.grant))
        self._documents = DocumentCache(lambda _: storage)
        self._cleaner = EffectDiscards(storage, self._documents)
        # Everything that is written belongs to the operator, which may have begun under another uid.
        self.registration = replace(registration, uid=self.grant.uid)
        self._log = CheckpointLog(registration.job_name, self.grant.uid, self.grant.attempt.epoch)
        self._log.registered(self.grant)
        self._savepoints = StageSavepoints(gateway, storage, self._documents, self.grant.attempt, savepoint_dir)
        self.latest: CheckpointRecord | None = None
        self._newer_epoch: int | None = None

    def restore(self) -> RestoredStage | None:
        """
        Load the newest checkpoint that can be read, and tell the coordinator which one it was.

        :return: ``None`` for a fresh start.
        :raises NoRestorableCheckpointError: if there are checkpoints and none can be read.
        """
        restored = self.load()
        self.confirm_restore(restored)
        return restored

    def load(self) -> RestoredStage | None:
        """
        Load the newest checkpoint that can be read.

        Nothing is claimed or deleted before :meth:`confirm_restore`, so that the caller can refuse what does not fit.

        :return: ``None`` for a fresh start.
        :raises NoRestorableCheckpointError: if there are checkpoints and none can be read.
        """
        return self._load_latest() if self.grant.is_restore else None

    def confirm_restore(self, restored: RestoredStage | None) -> None:
        """
        Tell the coordinator what the stage starts from, and delete what is no longer needed.

        :param restored: What :meth:`load` returned.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises SnapshotClaimedError: if another operator claimed the savepoint in the meantime.
        """
        if restored is None:
            self._discard(self.grant.effects, frozenset())
            return
        source = self.registration.restore_from
        claim = source is not None and source.mode is RestoreMode.CLAIM
        self._gateway.confirm_restore(restored.confirmation(self.grant.attempt, claim=claim))
        self._documents.remember(restored.checkpoint.checkpoint_id, restored.document)
        self.latest = restored.checkpoint
        self._log.restored(restored.checkpoint)
        self._discard(self.grant.effects, frozenset(h.uri for h in restored.document.snapshots))

    @property
    def begins_from_savepoint(self) -> bool:
        """Tell whether the attempt begins from a savepoint that it has not confirmed to have restored."""
        return any(candidate.is_adoption for candidate in self.grant.candidates)

    def take_checkpoint(
        self,
        snapshots: tuple[SnapshotHandle, ...],
        state: dict[str, Any],
        *,
        finished_items: int,
        new_bytes: int,
        pinned: AbstractSet[str],
    ) -> CheckpointRecord | None:
        """
        Take one checkpoint of the stage.

        :param snapshots: All live snapshots; their bytes are on storage.
        :param state: The rest of the state as JSON.
        :param finished_items: How many items of loops are finished, for people.
        :param new_bytes: How many bytes are new since the last checkpoint.
        :param pinned: URIs of snapshots that must stay although no checkpoint may name them.
        :return: The completed checkpoint, or ``None`` if it failed and failures are tolerated.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        :raises StoppedWithSavepointError: if the stage was asked to stop with a savepoint; the checkpoint is complete.
        """
        counts = {"snapshots": len(snapshots), "items": finished_items}
        content = CheckpointContent(snapshots=snapshots, state=state, counts=counts, new_bytes=new_bytes, pinned=pinned)
        pending = self.begin_checkpoint(None)
        return None if pending is None else self.complete_checkpoint(pending, content)

    def begin_checkpoint(self, timeout_seconds: float | None) -> PendingCheckpoint | None:
        """
        Draw the id of a checkpoint, also before the work that it is to hold.

        :param timeout_seconds: How long the work and the checkpoint may take together; ``None`` for the job's own setting.
        :return: ``None`` if it failed and failures are tolerated.
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
        Complete a checkpoint that was begun.

        :return: The completed checkpoint, or ``None`` if it failed and failures are tolerated.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        :raises StoppedWithSavepointError: if the stage was asked to stop with a savepoint; the checkpoint is complete.
        """
        try:
            completed, effects = self._complete(pending, content)
        except StaleAttemptError:
            raise
        except (StorageError, CoordinatorError, CheckpointDeclinedError) as error:
            self._failures.failed(error, pending.checkpoint_id)
            return None
        self._failures.succeeded()
        self._savepoints.serve(effects.savepoints, completed)
        return completed

    def confirm_commits(self, checkpoint_ids: tuple[int, ...]) -> None:
        """
        Say that the sink has committed what some checkpoints hold, and discard what waited for that.

        :raises StaleAttemptError: if a newer attempt has taken over.
        """
        effects = self._gateway.confirm_commits(
            ConfirmCommits(attempt=self.grant.attempt, checkpoint_ids=checkpoint_ids)
        )
        self._discard(effects, frozenset())

    def job_view(self) -> JobView:
        """Return all that is kept of the job."""
        return self._gateway.describe(self.grant.attempt.job_id)

    def failed(self, error: StateCheckError) -> None:
        """
        Count a checkpoint that failed before it was begun.

        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        """
        self._failures.failed(error)

    def finish(self, status: AttemptStatus, message: str = "", damaged_snapshots: tuple[str, ...] = ()) -> None:
        """
        Close the attempt and carry out what its pins held back; after a success orphans are swept too.

        :param damaged_snapshots: URIs of restored snapshots that could not be read; the next attempt leaves them out.
        :raises StaleAttemptError: if a newer attempt has taken over.
        """
        if status is AttemptStatus.FINISHED:
            self._serve_last_savepoints()
        closing = FinishAttempt(
            attempt=self.grant.attempt, status=status, message=message, damaged_snapshots=damaged_snapshots
        )
        effects = self._gateway.finish(closing)
        deleted = self._discard(effects, frozenset())
        if status is AttemptStatus.FINISHED:
            self._sweep()
            self._tell_what_is_left(effects, deleted)

    def _tell_what_is_left(self, effects: OpenEffects, deleted: tuple[int, ...]) -> None:
        line = leftover_line(self.registration, effects, deleted)
        if line is not None:
            log.info("%s", line)

    def fail(self, error: BaseException, damaged_snapshots: tuple[str, ...] = ()) -> None:
        """
        Close the attempt as failed. Outside of Airflow, say what is kept; a task says it below the account of its error.

        :param error: Why it failed.
        :param damaged_snapshots: As for :meth:`finish`.
        """
        self._newer_epoch = _newer_epoch(error)
        try:
            self.finish(AttemptStatus.FAILED, f"{type(error).__name__}: {error}", damaged_snapshots)
        except StaleAttemptError as stale:
            self._newer_epoch = _newer_epoch(stale)
        except StateCheckError as closing:
            log.warning("The attempt could not be closed, the next one will fence it: %s", closing)
        if not self.registration.owner.airflow:
            log.error("%s", self.kept())

    def kept(self) -> str:
        """Say what the next attempt will find, or that it runs already."""
        if self._newer_epoch is not None:
            return fenced_line(self.registration.job_name, self.grant.attempt.epoch, self._newer_epoch)
        return retained_line(self.registration, self.latest)

    def _serve_last_savepoints(self) -> None:
        # A request may have come after the last checkpoint, or have waited for the end.
        if self.latest is None:
            return
        attempt = self.grant.attempt
        try:
            requests = self._gateway.describe(attempt.job_id).savepoints_asked_of(attempt.operator_id)
        except (CoordinatorError, CheckpointNotFoundError) as error:
            log.warning("Whether a savepoint is asked for could not be told; it is taken by the next gc: %s", error)
            return
        self._savepoints.serve(requests, self.latest, is_end=True)

    def _load_latest(self) -> RestoredStage:
        try:
            return restore_latest(self.storage, self.grant, self.registration)
        except StateCheckError as error:
            self._close_unrestored(error)
            raise

    def _close_unrestored(self, error: StateCheckError) -> None:
        message = FinishAttempt(attempt=self.grant.attempt, status=AttemptStatus.FAILED, message=str(error))
        try:
            self._gateway.finish(message)
        except CoordinatorError as closing:
            # The next registration closes it; the error that matters is the one which is being raised.
            log.warning("The attempt that could not be restored is left open: %s", closing)

    def _trigger(self, timeout_seconds: float | None) -> PendingCheckpoint:
        request = TriggerCheckpoint(attempt=self.grant.attempt, request_key=new_key(), timeout_seconds=timeout_seconds)
        pending = self._gateway.trigger(request)
        self._log.triggered(pending)
        return pending

    def _complete(self, pending: PendingCheckpoint, content: CheckpointContent) -> tuple[CheckpointRecord, OpenEffects]:
        try:
            message = self._write(pending, content)
        except StateCheckError as error:
            self._decline(pending, error, content.increment_seconds)
            raise
        return self._acknowledge(message, content.pinned | frozenset(state_uris(content.operator_states)))

    def _write(self, pending: PendingCheckpoint, content: CheckpointContent) -> AcknowledgeCheckpoint:
        state_handle, state_bytes = self._write_state(pending, content.state)
        document = self._document(pending, content, state_handle)
        uri = f"{pending.location}/{METADATA_FILE}"
        data = encode_metadata(document, uri=uri)
        # Last of the bytes: a directory with this file in it is whole.
        self.storage.write_bytes(uri, data)
        self._documents.remember(pending.checkpoint_id, document)
        return AcknowledgeCheckpoint(
            attempt=self.grant.attempt,
            checkpoint_id=pending.checkpoint_id,
            metadata_uri=uri,
            metadata_size=len(data),
            metadata_sha256=hashlib.sha256(data).hexdigest(),
            state_size_bytes=content.new_bytes + state_bytes,
            full_size_bytes=state_bytes + content.size_bytes,
            counts=dict(content.counts),
            has_commit=content.has_commit,
            increment_seconds=content.increment_seconds,
        )

    def _write_state(
        self, pending: PendingCheckpoint, state: dict[str, Any]
    ) -> tuple[InlineStateHandle | FileStateHandle, int]:
        data = json.dumps(state, sort_keys=True, separators=(",", ":")).encode()
        writing = StateWriting(epoch=self.grant.attempt.epoch, inline_threshold=self._data_inline_threshold)
        stream = FsCheckpointStateOutputStream.open(self.storage, pending.location, writing)
        stream.write(data)
        handle = stream.close_and_get_handle()
        if isinstance(handle, FileStateHandle):
            return handle, len(data)
        return InlineStateHandle(value=state), len(data)

    def _document(
        self,
        pending: PendingCheckpoint,
        content: CheckpointContent,
        state: InlineStateHandle | FileStateHandle,
    ) -> CheckpointDocument:
        return CheckpointDocument(
            job_id=self.grant.attempt.job_id,
            job_name=self.registration.job_name,
            operator_id=self.grant.attempt.operator_id,
            uid=self.registration.uid,
            checkpoint_id=pending.checkpoint_id,
            epoch=self.grant.attempt.epoch,
            generation=self.grant.generation,
            snapshots=content.snapshots,
            state=state,
            has_commit=content.has_commit,
            request_key=pending.request_key,
            operator_states=spill_above_budget(
                content.operator_states,
                self.storage,
                directory=pending.location,
                epoch=self.grant.attempt.epoch,
            ),
            created_at=datetime.now(UTC).isoformat(),
        )

    def _acknowledge(
        self, message: AcknowledgeCheckpoint, pinned: AbstractSet[str]
    ) -> tuple[CheckpointRecord, OpenEffects]:
        reply = self._gateway.acknowledge(message)
        completed = reply.checkpoint if reply.is_completed else None
        if completed is None:
            self._discard(reply.effects, pinned)
            raise _too_late(message, reply)
        self.latest = completed
        self._log.completed(completed)
        self._discard(reply.effects, pinned)
        return completed, reply.effects

    def _decline(self, pending: PendingCheckpoint, error: StateCheckError, increment_seconds: float) -> None:
        message = DeclineCheckpoint(
            attempt=self.grant.attempt,
            checkpoint_id=pending.checkpoint_id,
            reason=CheckpointFailureReason.IO_EXCEPTION,
            message=str(error),
            increment_seconds=increment_seconds,
        )
        try:
            self._gateway.decline(message)
        except CoordinatorError as declining:
            # It expires by itself; the error that matters is the one which is being raised.
            log.warning("Checkpoint %s could not be declined: %s", pending.checkpoint_id, declining)

    def _discard(self, effects: OpenEffects, pinned: AbstractSet[str]) -> tuple[int, ...]:
        gone = self._cleaner.discard(effects, pinned)
        if not gone:
            return ()
        self._log.discarded(c for c in effects.discards if c.checkpoint_id in gone)
        attempt = self.grant.attempt
        try:
            self._gateway.confirm_discards(ConfirmDiscards(job_id=attempt.job_id, checkpoint_ids=gone, attempt=attempt))
        except StaleAttemptError:
            raise
        except (CoordinatorError, CheckpointNotFoundError) as error:
            # Deleting again is harmless: the effect stays open and the next reply carries it, or the job is gone with it.
            log.warning("Discarded checkpoints %s could not be confirmed: %s", gone, error)
        return gone

    def _sweep(self) -> None:
        try:
            job_id, gateway = self.grant.attempt.job_id, self._gateway
            rows = functools.partial(gateway.checkpoint, job_id)
            sweep(self.storage, gateway.describe(job_id), self._documents, row_of=rows)
        except (StorageError, CoordinatorError, CheckpointNotFoundError) as error:
            log.warning("Orphans were not swept, a later sweep finds them: %s", error)


def _newer_epoch(error: BaseException) -> int | None:
    return vars(error).get("current_epoch") if isinstance(error, StaleAttemptError) else None


def _places_named(registration: RegisterAttempt, grant: AttemptGrant) -> Iterator[str]:
    # Rows may lie in the directory of an earlier configuration, or be a savepoint that was claimed.
    rows = (*grant.candidates, *grant.effects.retained, *grant.effects.discards)
    yield from dict.fromkeys(row.location for row in rows)
    # A checkpoint in the present directory may name snapshots in an earlier one, whose own checkpoints are all gone.
    yield from (job_uri(base, grant.attempt.job_id) for base in grant.storage_bases)
    source = registration.restore_from
    # That of a fork whose checkpoint is gone is what the user wrote, such as run:<run>.
    if source is not None and "://" in source.pointer:
        yield source.pointer


def _too_late(message: AcknowledgeCheckpoint, reply: AcknowledgeReply) -> CheckpointDeclinedError:
    return CheckpointDeclinedError(
        f"Checkpoint {message.checkpoint_id} was acknowledged too late and is {reply.result.value}; raise "
        f"checkpoint_timeout_seconds if its bytes need longer to be written.",
        reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
        checkpoint_id=message.checkpoint_id,
    )
