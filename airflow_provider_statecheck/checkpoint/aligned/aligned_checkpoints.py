"""Calls of a leader of aligned checkpoints with direct access to the rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint import transitions as rows
from airflow_provider_statecheck.checkpoint.aligned import transitions
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider, Choice
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortCheckpoints,
    AcknowledgeAligned,
    AcknowledgedCheckpoint,
    Assessment,
    BeginCheckpoint,
    CleaningEffects,
    Handles,
    PutHandle,
    RequestOutcome,
    TakeLeadership,
    TakenOver,
)
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import require_running
from airflow_provider_statecheck.checkpoint.ids import (
    OperatorId,
    checkpoint_uri,
    job_id_of,
    new_key,
)
from airflow_provider_statecheck.checkpoint.messages import (
    HIGHEST_ID,
    LONGEST_CHECKPOINT,
    AcknowledgeResult,
    AttemptRef,
    OpenEffects,
    require_id_on_storage,
    require_metadata_in,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, JobStatus
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.savepoint_restore import (
    claim_savepoint,
    require_claimable,
    require_unclaimed,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction, StoredJobs
from airflow_provider_statecheck.exceptions import HandleExistsError, HandleNotFoundError, ResourceVersionError


class AlignedCheckpoints(StoredJobs):
    """
    Calls of a leader of aligned checkpoints to the rows of its job, each in one transaction.

    A task of a maintenance Dag makes the same calls over HTTP. A repeated call takes effect once, except that a call
    may draw another id or count a failure without an id again. Calls that change rows raise ``StaleAttemptError`` if
    another leader has taken over.
    """

    def lead(self, request: TakeLeadership) -> AttemptRef:
        """
        Register a leader under the next epoch and fence the previous one.

        Pending checkpoints remain pending, and the coordinator of the new leader resumes them. New ids are above those
        on storage.

        :raises InvalidConfigurationError: if the directory of checkpoints or the id on storage is not valid.
        :raises StaleAttemptError: if the leader with this key has been replaced since.
        """
        require(
            "storage_base", request.storage_base, lambda uri: "://" in uri, "a URI such as file:///data/checkpoints"
        )
        require_id_on_storage(request.newest_on_storage)
        with self._store.transaction(job_id_of(request.job_name), create_as=request.job_name) as tx:
            return transitions.lead(tx, request)

    def resign(self, leader: AttemptRef) -> None:
        """
        Close the attempt of a leader, unless it has ended or been replaced.

        Its checkpoints remain for the next leader.
        """
        with self._store.transaction(leader.job_id) as tx:
            attempt = tx.attempt(leader.operator_id, leader.epoch)
            if attempt is not None and attempt.is_running:
                tx.save_attempt(replace(attempt, status=AttemptStatus.FINISHED, ended_at=tx.now))

    def count_ids(self, leader: AttemptRef, at_least: int = 1, *, draws: bool = False) -> int:
        """
        Raise the next checkpoint id of a job, or draw it, and return it.

        :raises InvalidConfigurationError: if the id is out of range.
        """
        require("at_least", at_least, lambda i: 1 <= i <= HIGHEST_ID + 1, f"1 to {HIGHEST_ID + 1}")
        with self._transition(leader) as (tx, _):
            if at_least > tx.job.next_checkpoint_id:
                tx.set_next_checkpoint_id(at_least)
            return tx.draw_checkpoint_id() if draws else tx.job.next_checkpoint_id

    def enqueue(
        self,
        leader: AttemptRef,
        decider: CheckpointRequestDecider,
        request_key: str,
        properties: CheckpointProperties,
        target: str | None = None,
        is_periodic: bool = False,
    ) -> tuple[CheckpointRequest, ...]:
        """
        Add a request and return those that the full queue refuses, which have failed.

        :param request_key: Idempotency key of the client; the same key returns the same request.
        :param target: Parent directory of a savepoint; by default the configured one.
        """
        require("unclaimed", properties.unclaimed, lambda value: not value, "false for a new checkpoint")
        with self._transition(leader) as (tx, _):
            if tx.request(request_key) is not None:
                return tuple(r for r in tx.view().requests if r.failed_by == request_key)
            new = CheckpointRequest(
                job_id=leader.job_id,
                request_key=request_key,
                operator_id=leader.operator_id,
                properties=properties,
                target=target,
                is_periodic=is_periodic,
                requested_at=tx.now,
            )
            refused = decider.admit(tx.requests_of_job(), new)
            if new not in refused:
                tx.save_request(new)
            reason = CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
            return tuple(rows.fail_request(tx, each, reason, failed_by=request_key) for each in refused)

    def choose(self, leader: AttemptRef, decider: CheckpointRequestDecider, cleanings: int = 0) -> Choice:
        """
        Choose the request to trigger now, and those that are too early, without any effect.

        :param cleanings: Number of cleanings in progress.
        """
        with self._transition(leader) as (tx, _):
            return transitions.choose(tx, decider, cleanings)

    def begin(self, request: BeginCheckpoint) -> CheckpointRecord | None:
        """
        Add a pending checkpoint, or return ``None`` if its request is not the one to trigger now.

        :raises InvalidConfigurationError: if the location or the timeout is not valid.
        """
        _require_seconds("timeout_seconds", request.timeout_seconds)
        _require_distinct(request)
        with self._transition(request.leader) as (tx, leader):
            return transitions.begin(tx, leader, request)

    def acknowledge(self, request: AcknowledgeAligned) -> Assessment:
        """
        Store an acknowledgement that the checkpoint awaits; the last one starts the finalization.

        :raises InvalidConfigurationError: if the manifest is not in the directory of the checkpoint.
        """
        _require_seconds("lease_seconds", request.lease_seconds)
        with self._transition(request.leader) as (tx, _):
            pending = transitions.of_status(tx, CheckpointStatus.PENDING)
            if not request.is_written and any(c.expires_at <= tx.now for c in pending):
                return Assessment(verdict=AcknowledgeResult.UNKNOWN, has_expired=True)
            return transitions.acknowledge(tx, request)

    def abort(self, request: AbortCheckpoints) -> tuple[CheckpointRecord, ...]:
        """Abort the checkpoints of a scope and return their rows."""
        with self._transition(request.leader) as (tx, _):
            return tuple(transitions.abort(tx, request))

    def take_over(self, leader: AttemptRef, finalizer: str, lease_seconds: float, *, is_new: bool = False) -> TakenOver:
        """
        Take over the finalizations whose lease has expired.

        :param finalizer: New key of the call, which holds what it takes over; a repeated call returns the same
            checkpoints.
        :param is_new: Whether the coordinator has just started, and also needs the pending checkpoints of earlier
            leaders.
        """
        _require_seconds("lease_seconds", lease_seconds)
        with self._transition(leader) as (tx, _):
            taken = transitions.take_over(tx, finalizer, timedelta(seconds=lease_seconds))
            pending = transitions.of_status(tx, CheckpointStatus.PENDING) if is_new else []
            earlier = (c for c in pending if c.epoch < leader.epoch)
            return TakenOver(
                finalizing=tuple(_acknowledged(tx, c) for c in taken),
                pending=tuple(_acknowledged(tx, c) for c in earlier),
            )

    def is_finalizing(
        self, leader: AttemptRef, checkpoint_id: int, finalizer: str | None, lease_until: datetime | None
    ) -> bool:
        """Return whether a finalizer still holds a checkpoint, whose directory may otherwise be deleted."""
        with self._transition(leader) as (tx, _):
            found = tx.checkpoint(checkpoint_id)
            return found is not None and transitions.is_held(found, finalizer, lease_until)

    def adopt(
        self, leader: AttemptRef, checkpoint_id: int, location: str, metadata_uri: str, *, is_claimed: bool = False
    ) -> bool:
        """
        Let a job add a restored checkpoint to its own, and return whether it has used the id of it.

        :param checkpoint_id: Id of the restored checkpoint.
        :param is_claimed: Whether the job becomes the owner of it.
        :raises SavepointClaimedError: if another job has claimed it.
        :raises InvalidConfigurationError: if the claim is for a checkpoint that is not a savepoint.
        """
        if is_claimed:
            require_claimable(location, metadata_uri)
        with self._transition(leader) as (tx, attempt):
            require_unclaimed(tx, attempt, location)
            if is_claimed:
                claim_savepoint(tx, attempt, location)
            return tx.checkpoint(checkpoint_id) is not None

    def record_restore(self, leader: AttemptRef, checkpoint_id: int) -> None:
        """Pin the checkpoint that was restored, and count the restore."""
        with self._transition(leader) as (tx, attempt):
            found = tx.checkpoint(checkpoint_id)
            if found is not None:
                rows.record_restore(tx, attempt, found)

    def effects(self, leader: AttemptRef, checkpoint_ids: tuple[int, ...] = ()) -> CleaningEffects:
        """
        Return the checkpoints whose files may be deleted.

        :param checkpoint_ids: Checkpoints to delete now, whose reply has all references to their files; empty for a
            list of what may be deleted.
        """
        with self._transition(leader) as (tx, _):
            effects = rows.effects_of(tx, leader.operator_id)
            if not checkpoint_ids:
                return CleaningEffects(effects=OpenEffects(discards=effects.discards))
            return _cleaning_effects(tx, effects, leader.operator_id, checkpoint_ids)

    def record_discards(self, leader: AttemptRef, checkpoint_ids: tuple[int, ...]) -> None:
        """Record that the files of ended checkpoints were deleted; ids of other checkpoints are ignored."""
        with self._transition(leader) as (tx, _):
            rows.mark_discarded(tx, leader.operator_id, checkpoint_ids)

    def put_handle(self, request: PutHandle) -> CheckpointRecord:
        """
        Complete a fully acknowledged checkpoint, add a restored one, or replace the properties of a completed one.

        :raises HandleExistsError: if another checkpoint has the id, or had it before.
        :raises HandleNotFoundError: if there is no handle to replace.
        :raises ResourceVersionError: if the handle to replace has another version.
        :raises InvalidConfigurationError: if the job neither wrote nor claimed the checkpoint.
        """
        with self._transition(request.leader) as (tx, leader):
            if request.version is not None:
                return _replaced(tx, leader, request)
            found = tx.checkpoint(request.checkpoint_id)
            if found is None:
                return _adopted(tx, leader, request)
            if found.status is CheckpointStatus.FINALIZING:
                require_metadata_in(found.location, request.metadata.uri)
                return rows.complete(tx, found, _completed(tx, found, request))
            if not _is_same(found, request) or found.status is not CheckpointStatus.COMPLETED:
                raise _exists(found)
            return found

    def handles(self, leader: AttemptRef) -> Handles:
        """Return the handles of a leader, which a newer one may have replaced."""
        with self._store.transaction(leader.job_id) as tx:
            live = _live(tx, leader)
            found = tx.open_checkpoints(leader.operator_id)
        removed = (c for c in found if c.status is CheckpointStatus.SUBSUMED and c.awaits_discard)
        return Handles(live=live, removed=tuple(c.checkpoint_id for c in removed))

    def remove_handle(self, leader: AttemptRef, checkpoint_id: int) -> None:
        """Subsume a checkpoint; one that has ended or has no row is ignored."""
        with self._transition(leader) as (tx, _):
            rows.roll_back(tx, (c for c in _live(tx, leader) if c.checkpoint_id == checkpoint_id))

    def end_handles(self, leader: AttemptRef, status: JobStatus | None, end_key: str) -> tuple[CheckpointRecord, ...]:
        """
        Remove all handles at the end of the job, and return the checkpoints that are left to the user.

        :param status: Terminal status, with which the properties decide what the user keeps; ``None`` to leave all
            files to the user.
        :param end_key: Idempotency key of the client; the same key returns the same checkpoints.
        """
        with self._transition(leader) as (tx, attempt):
            known = tx.open_checkpoints(leader.operator_id)
            if before := tuple(c for c in known if c.finalizer == end_key):
                return before
            ended = _live(tx, leader)
            kept = tuple(c for c in ended if status is None or not c.properties.discard_on(status))
            rows.roll_back(tx, [c for c in ended if c not in kept])
            owned = tuple(_left_to_user(c, end_key) for c in kept)
            for record in owned:
                tx.update_checkpoint(record, expected=CheckpointStatus.COMPLETED)
            _end_leader(tx, attempt, is_new_generation=bool(kept))
        return owned

    def outcome(self, leader: AttemptRef, request_key: str) -> RequestOutcome:
        """Return the outcome of a request of any coordinator of the job."""
        job_id = leader.job_id
        found = self._store.request(job_id, request_key)
        if found is None or found.status is not RequestStatus.COMPLETED or found.checkpoint_id is None:
            return RequestOutcome(request=found)
        return RequestOutcome(request=found, checkpoint=self._store.checkpoint(job_id, found.checkpoint_id))

    def owns(self, leader: AttemptRef, location: str) -> bool:
        """
        Return whether the job took or claimed a savepoint, according to its rows, and no other one has claimed it.
        """
        claim = self._store.claim(location)
        if claim is not None:
            return claim.job_id == leader.job_id
        own = self._store.describe(leader.job_id).of_operator(leader.operator_id)
        return any(c.location == location for c in own if not c.properties.unclaimed)

    def report_failure(
        self,
        leader: AttemptRef,
        reason: CheckpointFailureReason,
        checkpoint_id: int | None = None,
        cause: str | None = None,
    ) -> None:
        """
        Add the cause of a failed checkpoint to the statistics, and count it if it has no row.

        :param checkpoint_id: Id of the checkpoint; ``None`` if it failed before it had one.
        :param cause: Root cause, for display.
        """
        with self._transition(leader) as (tx, _):
            transitions.report_failure(tx, leader.operator_id, reason, checkpoint_id, cause)

    @contextmanager
    def _transition(self, leader: AttemptRef) -> Iterator[tuple[JobTransaction, AttemptRecord]]:
        with self._store.transaction(leader.job_id) as tx:
            yield tx, require_running(tx, leader)


def _require_distinct(request: BeginCheckpoint) -> None:
    ids = [task.operator_id for task in request.awaited]
    is_valid = len(set(ids)) == len(ids) and request.leader.operator_id not in ids
    require("awaited", ids, lambda _: is_valid, "tasks of different operators")


def _require_seconds(key: str, seconds: float) -> None:
    require(key, seconds, lambda s: 0 < s <= LONGEST_CHECKPOINT.total_seconds(), "more than 0 seconds, up to a year")


def _acknowledged(tx: JobTransaction, checkpoint: CheckpointRecord) -> AcknowledgedCheckpoint:
    acknowledgements = tuple(tx.acknowledgements(checkpoint.checkpoint_id))
    return AcknowledgedCheckpoint(checkpoint=checkpoint, acknowledgements=acknowledgements)


def _cleaning_effects(
    tx: JobTransaction, effects: OpenEffects, operator_id: OperatorId, checkpoint_ids: Collection[int]
) -> CleaningEffects:
    running = [c for c in tx.open_checkpoints(operator_id) if c.is_in_progress]
    in_progress = [_acknowledged(tx, c) for c in running if not c.properties.is_savepoint]
    unanswered = [c for c in in_progress if not all(a.is_acknowledged for a in c.acknowledgements)]
    triggered_at = min((c.checkpoint.triggered_at for c in unanswered), default=None)
    chosen = (c for c in effects.discards if c.checkpoint_id in checkpoint_ids)
    others = (o.operator_id for o, _ in tx.operators_besides(frozenset()) if o.operator_id != operator_id)
    # Stages of the job may name files below the same directory of shared state.
    retained = [c for other in others for c in rows.effects_of(tx, other).retained]
    return CleaningEffects(
        effects=replace(
            effects,
            discards=tuple(c for c in chosen if not _may_be_named(c, triggered_at)),
            retained=(*effects.retained, *retained),
        ),
        manifests=tuple(a for c in in_progress for a in c.acknowledgements),
    )


def _may_be_named(ended: CheckpointRecord, unanswered: datetime | None) -> bool:
    # A task that was triggered before the end may still acknowledge state that names files of the ended checkpoint.
    is_subsumed = ended.status is CheckpointStatus.SUBSUMED and ended.ended_at is not None
    return is_subsumed and unanswered is not None and unanswered <= (ended.ended_at or unanswered)


def _live(tx: JobTransaction, leader: AttemptRef) -> tuple[CheckpointRecord, ...]:
    operator = tx.operator(leader.operator_id)
    return () if operator is None else rows.restorable(tx, operator)[::-1]


def _completed(tx: JobTransaction, finalizing: CheckpointRecord, handle: PutHandle) -> CheckpointRecord:
    return replace(
        finalizing,
        status=CheckpointStatus.COMPLETED,
        finalizer=None,
        lease_until=None,
        # The clock that timed a restored checkpoint may be ahead of the job's.
        completed_at=min(max(handle.completed_at, finalizing.triggered_at), tx.now),
        metadata_uri=handle.metadata.uri,
        metadata_size=handle.metadata.size,
        metadata_sha256=handle.metadata.sha256,
        state_size_bytes=handle.state_size_bytes,
        full_size_bytes=handle.full_size_bytes,
        counts={"operators": handle.operators},
    )


def _adopted(tx: JobTransaction, leader: AttemptRecord, handle: PutHandle) -> CheckpointRecord:
    _require_owned(tx, leader, handle.location, handle)
    require("checkpoint_id", handle.checkpoint_id, lambda i: 1 <= i <= HIGHEST_ID, f"1 to {HIGHEST_ID}")
    if handle.checkpoint_id >= tx.job.next_checkpoint_id:
        # A later checkpoint of the job must not draw this id.
        tx.set_next_checkpoint_id(handle.checkpoint_id + 1)
    pending = CheckpointRecord(
        job_id=leader.job_id,
        checkpoint_id=handle.checkpoint_id,
        operator_id=leader.operator_id,
        epoch=leader.epoch,
        generation=leader.generation,
        status=CheckpointStatus.FINALIZING,
        request_key=new_key(),
        location=handle.location,
        triggered_at=tx.now,
        expires_at=tx.now,
        properties=handle.properties,
    )
    record = _completed(tx, pending, handle)
    tx.add_checkpoint(record)
    return record


def _replaced(tx: JobTransaction, leader: AttemptRecord, handle: PutHandle) -> CheckpointRecord:
    live = _live(tx, handle.leader)
    found = next((c for c in live if c.checkpoint_id == handle.checkpoint_id), None)
    if found is None:
        raise HandleNotFoundError(
            f"Expected a state handle of checkpoint {handle.checkpoint_id}, found none or one that was removed; add it "
            "first."
        )
    if found.epoch != handle.version:
        raise ResourceVersionError(
            f"Expected version {handle.version} of the state handle of checkpoint {handle.checkpoint_id}, found "
            f"{found.epoch}; read it again."
        )
    if not _is_same(found, handle):
        raise _exists(found)
    _require_owned(tx, leader, found.location, handle)
    changed = replace(found, properties=handle.properties)
    tx.update_checkpoint(changed, expected=CheckpointStatus.COMPLETED)
    return changed


def _require_owned(tx: JobTransaction, leader: AttemptRecord, location: str, handle: PutHandle) -> None:
    """Require that the job wrote or claimed the directory of a checkpoint that it may delete."""
    if handle.properties.unclaimed:
        return
    own, claim = checkpoint_uri(leader.storage_base, leader.job_id, handle.checkpoint_id), tx.claim(location)
    is_claimed = claim is not None and (claim.job_id, claim.operator_id) == (leader.job_id, leader.operator_id)
    require(
        "location", location, lambda uri: uri == own or is_claimed, f"{own}, or a savepoint that the job has claimed"
    )
    require_metadata_in(location, handle.metadata.uri)


def _is_same(found: CheckpointRecord, handle: PutHandle) -> bool:
    metadata = handle.metadata
    return (found.metadata_uri, found.metadata_size, found.metadata_sha256) == (
        metadata.uri,
        metadata.size,
        metadata.sha256,
    )


def _exists(found: CheckpointRecord) -> HandleExistsError:
    return HandleExistsError(
        f"Expected no other state handle of checkpoint {found.checkpoint_id}, found one that is {found.status.value} "
        f"with the metadata {found.metadata_uri}; ids are never used twice, so draw another one."
    )


def _left_to_user(record: CheckpointRecord, end_key: str) -> CheckpointRecord:
    return replace(record, properties=replace(record.properties, discard_on_subsumed=False), finalizer=end_key)


def _end_leader(tx: JobTransaction, leader: AttemptRecord, *, is_new_generation: bool) -> None:
    operator, generation = tx.operator(leader.operator_id), leader.generation
    if operator is not None and is_new_generation:
        # The next generation starts without the checkpoints of this one.
        generation = operator.generation + 1
        tx.save_operator(replace(operator, generation=generation))
    tx.save_attempt(replace(leader, generation=generation, restored_from=None))
