"""
Files of a checkpoint of a stage, written on the driver, and savepoints of the stage or its job.

A savepoint of the stage is a copy of the files; for one of the job the stage waits. The files of snapshots and of keyed
state are written before, by Spark. ``_metadata`` is written last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping, Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AttemptGrant,
    AttemptRef,
    DeclineCheckpoint,
    PendingCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointRequest
from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, FileStateHandle, OperatorState
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    StaleAttemptError,
    StateCheckError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.gateway.verbs import StageGateway
from airflow_provider_statecheck.state.writing.canonical import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    DocumentCache,
    InlineStateHandle,
    SnapshotHandle,
    write_metadata,
)
from airflow_provider_statecheck.storage.uris import redact
from airflow_provider_statecheck.storage.views.state_files import CheckpointStorageCoordinatorView
from airflow_provider_statecheck.storage.views.state_streams import spill_above_budget

log = logging.getLogger(__name__)

PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """Content of a checkpoint whose files are already on storage."""

    snapshots: tuple[SnapshotHandle, ...] = ()
    """All live snapshots."""
    state: dict[str, Any] = field(default_factory=dict)
    """State of the driver as JSON."""
    operator_states: tuple[OperatorState, ...] = ()
    """State of the functions of a stateful stage."""
    has_commit: bool = False
    """Whether a sink has committables to commit once the checkpoint is completed."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers for logs and pages, such as those of snapshots and finished items."""
    summary: CheckpointSummary | None = None
    """Figures for pages, without the time to write the metadata; ``None`` if they are unknown."""
    new_bytes: int = 0
    """Bytes that were written since the last checkpoint."""
    increment_seconds: float = 0.0
    """Duration of the increment, if the checkpoint was triggered before it."""
    pinned: AbstractSet[str] = frozenset()
    """URIs of snapshots that must not be deleted even if no checkpoint references them."""

    @property
    def size_bytes(self) -> int:
        """The size of all files that the checkpoint references."""
        snapshot_bytes = sum(handle.size_bytes for handle in self.snapshots)
        return snapshot_bytes + sum(state.state_size for state in self.operator_states)


class CheckpointFiles:
    """
    Writes the files of the checkpoints of an attempt.

    :param view: View of the checkpoint storage, to which the state of the driver is written.
    :param storage: Storage of the metadata.
    :param job_name: Display name of the job.
    """

    def __init__(
        self,
        view: CheckpointStorageCoordinatorView,
        storage: CheckpointStorage,
        documents: DocumentCache,
        grant: AttemptGrant,
        job_name: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._view = view
        self._storage = storage
        self._documents = documents
        self._grant = grant
        self._job_name = job_name
        self._monotonic = monotonic

    def write(self, pending: PendingCheckpoint, content: CheckpointContent) -> AcknowledgeCheckpoint:
        """
        Write the state of the driver and the metadata of a checkpoint, and return the message that acknowledges it.

        :raises StorageError: if the storage fails.
        """
        begin = self._monotonic()
        state, state_bytes = self._write_state(pending, content.state)
        document = self._document(pending, content, state)
        file = write_metadata(self._storage, pending.location, document)
        self._documents.remember(pending.checkpoint_id, document)
        return AcknowledgeCheckpoint(
            attempt=self._grant.attempt,
            checkpoint_id=pending.checkpoint_id,
            metadata_uri=file.uri,
            metadata_size=file.size,
            metadata_sha256=file.sha256,
            state_size_bytes=content.new_bytes + state_bytes,
            full_size_bytes=state_bytes + content.size_bytes,
            counts=dict(content.counts),
            has_commit=content.has_commit,
            increment_seconds=content.increment_seconds,
            summary=content.summary and replace(content.summary, write_seconds=self._monotonic() - begin),
        )

    def _write_state(
        self, pending: PendingCheckpoint, state: dict[str, Any]
    ) -> tuple[InlineStateHandle | FileStateHandle, int]:
        data = json.dumps(state, sort_keys=True, separators=(",", ":")).encode()
        location = self._view.initialize_location_for_checkpoint(pending.checkpoint_id)
        stream = location.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
        stream.write(data)
        handle = stream.close_and_get_handle()
        # State in its handle is the state itself, readable in the metadata.
        return handle if isinstance(handle, FileStateHandle) else InlineStateHandle(value=state), len(data)

    def _document(
        self, pending: PendingCheckpoint, content: CheckpointContent, state: InlineStateHandle | FileStateHandle
    ) -> CheckpointDocument:
        attempt = self._grant.attempt
        return CheckpointDocument(
            job_id=attempt.job_id,
            job_name=self._job_name,
            operator_id=attempt.operator_id,
            uid=self._grant.uid,
            checkpoint_id=pending.checkpoint_id,
            epoch=attempt.epoch,
            generation=self._grant.generation,
            snapshots=content.snapshots,
            state=state,
            has_commit=content.has_commit,
            request_key=pending.request_key,
            operator_states=spill_above_budget(
                content.operator_states, self._storage, directory=pending.location, epoch=attempt.epoch
            ),
            created_at=datetime.now(UTC),
        )


class StageSavepoints:
    """
    Takes the requested savepoints of one attempt; a failed savepoint does not fail the stage.

    :param documents: Cache of the metadata of the attempt's checkpoints.
    :param directory: Directory of savepoints whose request names none.
    """

    def __init__(
        self,
        gateway: StageGateway,
        storage: CheckpointStorage,
        documents: DocumentCache,
        attempt: AttemptRef,
        directory: str | None,
    ) -> None:
        self._gateway = gateway
        self._storage = storage
        self._documents = documents
        self._attempt = attempt
        self._directory = directory

    def serve(self, requests: tuple[CheckpointRequest, ...], source: CheckpointRecord, *, is_end: bool = False) -> None:
        """
        Take the requested savepoints.

        :param requests: Open requests of the operator.
        :param is_end: Whether the stage has finished; requests to terminate wait for this.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises StoppedWithSavepointError: if a request stops the stage.
        """
        for request in requests:
            if request.properties.is_terminate and not is_end:
                continue
            completed = self._serve(request, source)
            if completed is not None and request.properties.is_synchronous and not is_end:
                raise _stopped(completed, f" by {request.requested_by}" if request.requested_by else "")

    def _serve(self, request: CheckpointRequest, source: CheckpointRecord) -> CheckpointRecord | None:
        try:
            pending = self._trigger(request)
        except StaleAttemptError:
            raise
        except StateCheckError as error:
            # The request was cancelled, or the coordinator is unavailable and will return an open request again.
            log.warning("A requested savepoint could not be triggered: %s", error)
            return None
        try:
            return self._complete(request, pending, source)
        except StaleAttemptError:
            raise
        except StateCheckError as error:
            log.warning("Savepoint %s failed: %s", pending.checkpoint_id, error)
            decline(self._gateway, self._attempt, pending, error)
            return None

    def _trigger(self, request: CheckpointRequest) -> PendingCheckpoint:
        base = request.target or self._directory or self._storage.base_uri
        return self._gateway.trigger(
            TriggerCheckpoint(
                attempt=self._attempt,
                request_key=self._trigger_key(request),
                serves=request.request_key,
                savepoint_dir=base,
            )
        )

    def _trigger_key(self, request: CheckpointRequest) -> str:
        # The same for each trigger of this attempt: a lost reply must not lead to a second savepoint.
        return hashlib.sha256(f"{request.request_key}/{self._attempt.epoch}".encode()).hexdigest()[:32]

    def _complete(
        self, request: CheckpointRequest, pending: PendingCheckpoint, source: CheckpointRecord
    ) -> CheckpointRecord | None:
        if request.target is None and self._directory is None:
            raise InvalidConfigurationError(
                "Expected a directory for savepoints, found none; name one in the request, or set [statecheck] "
                "savepoint_dir."
            )
        written = write_savepoint(
            self._storage,
            self._documents.load(source),
            directory=pending.location,
            checkpoint_id=pending.checkpoint_id,
            properties=request.properties,
            request_key=pending.request_key,
        )
        reply = self._gateway.acknowledge(
            AcknowledgeCheckpoint(
                attempt=self._attempt,
                checkpoint_id=pending.checkpoint_id,
                metadata_uri=written.metadata.uri,
                metadata_size=written.metadata.size,
                metadata_sha256=written.metadata.sha256,
                state_size_bytes=written.state_size_bytes,
                full_size_bytes=written.state_size_bytes,
                counts=dict(source.counts),
                summary=source.summary,
            )
        )
        if reply.is_completed:
            log.info("Savepoint %s completed: %s", pending.checkpoint_id, redact(pending.location))
        return reply.checkpoint if reply.is_completed else None


def decline(
    gateway: StageGateway,
    attempt: AttemptRef,
    pending: PendingCheckpoint,
    error: StateCheckError,
    increment_seconds: float = 0.0,
) -> None:
    """
    Decline a checkpoint or savepoint that failed.

    One that cannot be declined will expire, and its request with it.
    """
    message = DeclineCheckpoint(
        attempt=attempt,
        checkpoint_id=pending.checkpoint_id,
        reason=CheckpointFailureReason.IO_EXCEPTION,
        message=str(error),
        increment_seconds=increment_seconds,
    )
    try:
        gateway.decline(message)
    except CoordinatorError as declining:
        # This error must not hide the one of the checkpoint.
        log.warning("Checkpoint %s could not be declined: %s", pending.checkpoint_id, declining)


class JobStop:
    """
    Holds a stage until the savepoint that stops its job has ended: the stage stops, or continues if it failed.

    :param pause: Waits for a number of seconds; by default until :meth:`release` at the latest.
    :param missed: Savepoint with which the stage or its job stops or has stopped, if an earlier attempt failed before
        it stopped.
    """

    def __init__(
        self,
        gateway: StageGateway,
        monotonic: Callable[[], float],
        pause: Callable[[float], object] | None = None,
        missed: CheckpointRecord | None = None,
    ) -> None:
        self._gateway = gateway
        self._monotonic = monotonic
        self._released = threading.Event()
        self._pause = pause or self._released.wait
        self._missed = missed

    def wait_for(self, savepoint: CheckpointRecord | None) -> None:
        """
        Wait for the end of a savepoint with which the job stops.

        :param savepoint: The pending savepoint; ``None`` if the job does not stop.
        :raises StoppedWithSavepointError: if the savepoint is complete.
        """
        # The savepoint may have become complete while the retry had no checkpoint yet.
        savepoint, self._missed = savepoint or self._missed, None
        if savepoint is None:
            return
        ended = self._ended(savepoint)
        if ended is not None and ended.completed_at is not None:
            raise _stopped(ended)
        if self._released.is_set():
            return
        reason = ended.failure_message if ended is not None and ended.failure_message else "it was not taken in time"
        log.warning("The job does not stop, because savepoint %s failed: %s", savepoint.checkpoint_id, reason)

    def release(self) -> None:
        """Let a thread that waits go on, because the attempt ends."""
        self._released.set()

    def _ended(self, savepoint: CheckpointRecord) -> CheckpointRecord | None:
        if savepoint.is_in_progress:
            log.info("The job stops with savepoint %s; the stage waits until it is complete.", savepoint.checkpoint_id)
        # Only a process that takes savepoints lets them expire, and there may be none.
        deadline = self._monotonic() + (savepoint.expires_at - savepoint.triggered_at).total_seconds()
        row: CheckpointRecord | None = savepoint
        while row is not None and row.is_in_progress and self._monotonic() < deadline:
            if self._released.is_set():
                return row
            self._pause(PAUSE_SECONDS)
            row = self._read(row)
        return row

    def _read(self, known: CheckpointRecord) -> CheckpointRecord | None:
        """Return the row as it is now, or as it was known if the coordinator is unavailable."""
        try:
            return self._gateway.checkpoint(known.job_id, known.checkpoint_id)
        except CoordinatorUnavailableError as error:
            # The wait may last for hours, and an outage in them must not cost the stage its attempt.
            log.warning("Could not read whether savepoint %s is complete: %s", known.checkpoint_id, error)
            return known


def _stopped(savepoint: CheckpointRecord, requester: str = "") -> StoppedWithSavepointError:
    is_of_job = savepoint.is_of_job
    whose = " of its job" if is_of_job else ""
    otherwise = "restore the job" if is_of_job else "start another job"
    return StoppedWithSavepointError(
        f"The stage stopped with a savepoint{whose}, as requested{requester}: {redact(savepoint.location)}. Clear the "
        f"task to resume from its last checkpoint, or {otherwise} from the savepoint.",
        pointer=redact(savepoint.location),
    )
