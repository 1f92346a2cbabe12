"""Savepoints of a running stage, written as copies of its latest checkpoint."""

from __future__ import annotations

import hashlib
import logging

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AttemptRef,
    DeclineCheckpoint,
    PendingCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, SnapshotRequest
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    InvalidConfigurationError,
    StaleAttemptError,
    StateCheckError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.state.writing.canonical import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import DocumentCache
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)


class StageSavepoints:
    """
    Takes the requested savepoints of one attempt; a failed savepoint does not fail the stage.

    :param gateway: Gateway to the coordinator.
    :param storage: Storage of the checkpoints.
    :param documents: Cache of the metadata of the attempt's checkpoints.
    :param attempt: The attempt that takes the savepoints.
    :param directory: Directory of savepoints whose request names none.
    """

    def __init__(
        self,
        gateway: CheckpointCoordinatorGateway,
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

    def serve(self, requests: tuple[SnapshotRequest, ...], source: CheckpointRecord, *, is_end: bool = False) -> None:
        """
        Take the requested savepoints.

        :param requests: Open requests of the operator.
        :param source: The latest completed checkpoint.
        :param is_end: Whether the stage has finished; requests to terminate wait for this.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises StoppedWithSavepointError: if a request stops the stage.
        """
        for request in requests:
            if request.properties.is_terminate and not is_end:
                continue
            completed = self._serve(request, source)
            if completed is not None and request.properties.is_synchronous and not is_end:
                raise _stopped(request, completed)

    def _serve(self, request: SnapshotRequest, source: CheckpointRecord) -> CheckpointRecord | None:
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
            self._decline(pending, error)
            return None

    def _trigger(self, request: SnapshotRequest) -> PendingCheckpoint:
        base = request.target or self._directory or self._storage.base_uri
        return self._gateway.trigger(
            TriggerCheckpoint(
                attempt=self._attempt,
                request_key=self._trigger_key(request),
                serves=request.request_key,
                savepoint_dir=base,
            )
        )

    def _trigger_key(self, request: SnapshotRequest) -> str:
        # The same for each trigger of this attempt: a lost reply must not lead to a second savepoint.
        return hashlib.sha256(f"{request.request_key}/{self._attempt.epoch}".encode()).hexdigest()[:32]

    def _complete(
        self, request: SnapshotRequest, pending: PendingCheckpoint, source: CheckpointRecord
    ) -> CheckpointRecord | None:
        if request.target is None and self._directory is None:
            raise InvalidConfigurationError(
                "Expected a directory for savepoints, found none; name one in the request, or set [statecheck] savepoint_dir."
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
                metadata_uri=written.metadata_uri,
                metadata_size=written.metadata_size,
                metadata_sha256=written.metadata_sha256,
                state_size_bytes=written.state_size_bytes,
                full_size_bytes=written.state_size_bytes,
                counts=dict(source.counts),
                summary=source.summary,
            )
        )
        if reply.is_completed:
            log.info("Savepoint %s completed: %s", pending.checkpoint_id, redact(pending.location))
        return reply.checkpoint if reply.is_completed else None

    def _decline(self, pending: PendingCheckpoint, error: StateCheckError) -> None:
        reason = CheckpointFailureReason.IO_EXCEPTION
        message = DeclineCheckpoint(
            attempt=self._attempt, checkpoint_id=pending.checkpoint_id, reason=reason, message=str(error)
        )
        try:
            self._gateway.decline(message)
        except CoordinatorError as declining:
            # The savepoint will expire, and its request with it.
            log.warning("Savepoint %s could not be declined: %s", pending.checkpoint_id, declining)


def _stopped(request: SnapshotRequest, completed: CheckpointRecord) -> StoppedWithSavepointError:
    requester = f" by {request.requested_by}" if request.requested_by else ""
    return StoppedWithSavepointError(
        f"The stage stopped with a savepoint, as requested{requester}: {redact(completed.location)}. Clear the task to resume "
        f"from its last checkpoint, or start another job from the savepoint.",
        pointer=redact(completed.location),
    )
