"""
Coordinator of the checkpoints of one operator, as stages use it.

Each call begins a transaction of its job with a write, applies one transition to the rows, commits, and answers with the
effects that the rows then allow. There is no daemon and no timer: expiry is judged at each call from the rows' times.
The model is Apache Flink's ``CheckpointCoordinator``, cut down to checkpoints of one operator.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

from airflow_provider_statecheck.checkpoint import registration, savepoint_restore, statistics, transitions
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import (
    TaskLiveness,
    UnknownLiveness,
    require_current,
    require_running,
    require_same_task,
)
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, job_id_of
from airflow_provider_statecheck.checkpoint.layout import checkpoint_uri, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.messages import (
    LONGEST_CHECKPOINT,
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AcknowledgeResult,
    AdoptAttempt,
    AttemptGrant,
    ConfirmCommits,
    ConfirmDiscards,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    TriggerCheckpoint,
    require,
    require_metadata_in,
    require_valid,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
)
from airflow_provider_statecheck.checkpoint.retention import BATCH_SIZE, DEFAULT_AGE, forgettable_rows, remove_rows
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobStore, JobTransaction, JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    InvalidConfigurationError,
    OpenCommitError,
    StateCheckError,
)

log = logging.getLogger(__name__)

_BATCHES_AT_END = 20
"""How many batches of old rows the end of an attempt removes: more rows than one adds that runs a day and checkpoints
every ten seconds."""
# A row stays small; damage that was forgotten is found again by reading.
_MOST_DAMAGED = 100


class AttemptCoordinator:
    """
    Decides when a snapshot is a completed checkpoint and what a new attempt restores.

    It is a ``CheckpointCoordinatorGateway`` itself: in process, no more is needed.

    :param store: The rows.
    :param liveness: Who knows whether another task still runs.
    """

    def __init__(self, store: JobStore, liveness: TaskLiveness | None = None) -> None:
        self._store = store
        self._liveness = liveness or UnknownLiveness()

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """
        Fence all earlier attempts of the operator and say what to restore.

        :raises InvalidConfigurationError: for a setting out of range.
        :raises ConcurrentAttemptError: if another task, or another run of the task, still runs and holds the operator.
        :raises RunSupersededError: if the state stands at a later run.
        :raises NoRestorableCheckpointError: if there was state and none of it is left.
        :raises IncompatibleCheckpointError: if the operator is new while another one of the job, which has checkpoints, is
            gone.
        """
        require_valid(request)
        grant = self._register(request)
        log.debug(
            "Job %s operator %s: attempt %s registered for %s (%s)",
            request.job_name,
            grant.uid,
            grant.attempt.epoch,
            request.owner.label,
            grant.start_reason,
        )
        return grant

    def adopt(self, request: AdoptAttempt) -> None:
        """
        Let a later try of the same task speak for an attempt that still runs; its driver goes on undisturbed.

        :raises StaleAttemptError: if the attempt has ended, was replaced, or belongs to another task or run.
        """
        with self._store.transaction(request.attempt.job_id) as tx:
            attempt = require_running(tx, request.attempt)
            require_same_task(attempt, request.owner)
            tx.save_attempt(replace(attempt, owner=request.owner))

    def confirm_restore(self, request: ConfirmRestore) -> None:
        """
        Record what was restored; candidates that could not be no longer count towards retention.

        A savepoint that the attempt began from becomes a checkpoint of the operator, claimed if the message says so.

        :raises StaleAttemptError: if a newer attempt has registered.
        :raises CheckpointNotFoundError: if the checkpoint is not a completed one of this operator.
        :raises SnapshotClaimedError: if it is a savepoint that another operator claimed.
        """
        with self._store.transaction(request.attempt.job_id) as tx:
            attempt = require_running(tx, request.attempt)
            restored = _restored(tx, attempt, request)
            for skipped in request.skipped:
                row = _require_restorable(tx, attempt, skipped.checkpoint_id)
                tx.update_checkpoint(replace(row, unusable_reason=skipped.reason), expected=CheckpointStatus.COMPLETED)
            if restored.unusable_reason is not None:
                tx.update_checkpoint(replace(restored, unusable_reason=None), expected=CheckpointStatus.COMPLETED)
            tx.save_attempt(replace(attempt, restored_from=restored.checkpoint_id))
            statistics.restored(tx, attempt, restored)

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        """
        Draw the id of a new checkpoint; the same request key gives the same one.

        :raises StaleAttemptError: if a newer attempt has registered or this one has ended.
        :raises InvalidConfigurationError: for a timeout out of range, or a place without a request for a savepoint.
        :raises CheckpointNotFoundError: if it is to serve a request for a savepoint that is not open.
        """
        _require_place(request)
        _require_time(request)
        with self._store.transaction(request.attempt.job_id) as tx:
            attempt = require_running(tx, request.attempt)
            transitions.expire(tx, attempt.operator_id)
            known = tx.checkpoint_by_request(request.request_key)
            checkpoint = known or _new_checkpoint(tx, attempt, request)
            if known is None:
                tx.add_checkpoint(checkpoint)
        return PendingCheckpoint(
            checkpoint_id=checkpoint.checkpoint_id,
            location=checkpoint.location,
            triggered_at=checkpoint.triggered_at,
            expires_at=checkpoint.expires_at,
            request_key=checkpoint.request_key,
        )

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        """
        Complete a checkpoint, abort older pending ones, subsume what falls out of retention.

        :raises StaleAttemptError: if a newer attempt has registered or this one has ended.
        :raises InvalidConfigurationError: if its metadata lie elsewhere than in its directory.
        """
        with self._store.transaction(request.attempt.job_id) as tx:
            attempt = require_running(tx, request.attempt)
            transitions.expire(tx, attempt.operator_id)
            return _acknowledge(tx, attempt, request)

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        """
        Abort a pending checkpoint of this attempt; any other is left as it is.

        :raises StaleAttemptError: if a newer attempt has registered.
        """
        with self._store.transaction(request.attempt.job_id) as tx:
            attempt = require_current(tx, request.attempt)
            checkpoint = _own_checkpoint(tx, attempt, request.checkpoint_id)
            if checkpoint is not None and checkpoint.status is CheckpointStatus.PENDING:
                transitions.abort(tx, checkpoint, request.reason, request.message, request.increment_seconds)
            return transitions.effects_of(tx, attempt.operator_id)

    def abort(self, job_id: JobId, checkpoint_id: int, reason: CheckpointFailureReason, message: str = "") -> bool:
        """
        Abort a pending checkpoint from outside the stage.

        :return: Whether it was pending.
        """
        with self._store.transaction(job_id) as tx:
            checkpoint = tx.checkpoint(checkpoint_id)
            if checkpoint is None or checkpoint.status is not CheckpointStatus.PENDING:
                return False
            transitions.abort(tx, checkpoint, reason, message)
            return True

    def expire(self, job_id: JobId) -> None:
        """Abort every pending checkpoint of a job whose time is over."""
        operators = self._store.describe(job_id).operators
        with self._store.transaction(job_id) as tx:
            for operator in operators:
                transitions.expire(tx, operator.operator_id)

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """
        Record that the bytes of subsumed or aborted checkpoints are gone.

        :raises InvalidConfigurationError: if no attempt is named; maintenance has a way of its own.
        :raises StaleAttemptError: if a newer attempt has registered.
        """
        attempt = request.attempt
        if attempt is None:
            raise InvalidConfigurationError("Expected the attempt that deleted, found none; name it.")
        with self._store.transaction(request.job_id) as tx:
            require_current(tx, attempt)
            transitions.discarded(tx, attempt.operator_id, request.checkpoint_ids)

    def confirm_commits(self, request: ConfirmCommits) -> OpenEffects:
        """
        Record that a sink committed what checkpoints hold; what only waited for that falls out of retention now.

        What a checkpoint holds is carried into later ones until it is confirmed, so older ones of the same generation are
        confirmed with it. A checkpoint that is none of the operator's completed ones confirms nothing.

        :raises StaleAttemptError: if a newer attempt has registered.
        """
        with self._store.transaction(request.attempt.job_id) as tx:
            attempt = require_current(tx, request.attempt)
            _confirm_commits(tx, attempt, request.checkpoint_ids)
            return transitions.effects_of(tx, attempt.operator_id)

    def finish(self, request: FinishAttempt) -> OpenEffects:
        """
        Close an attempt: its pending checkpoints are aborted, its pins end, and the damage that it found is recorded.

        Old rows of the operator go afterwards, so that they are bounded even where no maintenance runs.

        :raises StaleAttemptError: if a newer attempt has registered.
        :raises OpenCommitError: if it is to end as finished although its sink has not committed everything.
        """
        if request.status not in (AttemptStatus.FINISHED, AttemptStatus.FAILED):
            raise InvalidConfigurationError(
                f"Expected an attempt to end as finished or failed, found {request.status!r}."
            )
        with self._store.transaction(request.attempt.job_id) as tx:
            attempt = require_current(tx, request.attempt)
            if attempt.status is AttemptStatus.RUNNING:
                _require_committed(tx, attempt, request)
                transitions.abort_pending(tx, attempt.operator_id, CheckpointFailureReason.ATTEMPT_ENDED)
                _record_damage(tx, attempt, request.damaged_snapshots)
                tx.save_attempt(replace(attempt, status=request.status, ended_at=tx.now, message=request.message))
            effects = transitions.effects_of(tx, attempt.operator_id)
        self._forget_old_rows(attempt)
        return effects

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return self._store.jobs()

    def describe(self, job_id: JobId) -> JobView:
        """
        Return a job as it stands.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        return self._store.describe(job_id)

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        return self._store.checkpoint(job_id, checkpoint_id)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return self._store.checkpoints(job_id, page)

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """
        Return the checkpoint that a restore of an operator would start from, ``None`` if it has none.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        return self._store.latest(job_id, operator_id)

    def _forget_old_rows(self, ended: AttemptRecord) -> None:
        try:
            for _ in range(_BATCHES_AT_END):
                with self._store.transaction(ended.job_id) as tx:
                    before = tx.now - DEFAULT_AGE
                    rows = forgettable_rows(tx, ended.operator_id, before, storage_base=ended.storage_base)
                    remove_rows(tx, rows)
                if len(rows) < BATCH_SIZE:
                    return
        except StateCheckError as error:
            # The attempt has ended all the same; a later end, or prune, removes the rows.
            log.warning("Old rows of job %s were not removed: %s", ended.job_id, error)

    def _register(self, request: RegisterAttempt) -> AttemptGrant:
        dead: list[AttemptRecord] = []
        while True:
            try:
                with self._store.transaction(job_id_of(request.job_name), create_as=request.job_name) as tx:
                    return registration.register(tx, request, dead)
            except registration.RivalError as found:
                rival = found.rival
            # Asked between two transactions: nothing foreign may run while a row is locked.
            if self._liveness.is_running(rival.owner):
                raise _overlap(rival.owner, request)
            dead.append(rival)


def _overlap(holder: AttemptOwner, request: RegisterAttempt) -> ConcurrentAttemptError:
    is_same_task = holder.logical_task == request.owner.logical_task
    advice = "Let runs follow each other" if is_same_task else "Give one of the two tasks another uid"
    return ConcurrentAttemptError(
        f"Job {request.job_name!r} already has a running task with uid {request.uid!r}: {holder.label}; "
        f"{request.owner.label} was refused. {advice}, or say on_overlap='wait'.",
        uid=request.uid,
        holder=holder.label,
    )


def _record_damage(tx: JobTransaction, attempt: AttemptRecord, found: tuple[str, ...]) -> None:
    operator = tx.operator(attempt.operator_id)
    if operator is None or not found:
        return
    damaged = dict.fromkeys((*operator.damaged_snapshots, *found))
    tx.save_operator(replace(operator, damaged_snapshots=tuple(damaged)[-_MOST_DAMAGED:]))


def _require_place(request: TriggerCheckpoint) -> None:
    if (request.serves is None) is not (request.savepoint_dir is None):
        raise InvalidConfigurationError(
            "Expected savepoint_dir with the request for a savepoint that is served, and with no other, found one of the two."
        )


def _require_time(request: TriggerCheckpoint) -> None:
    if request.timeout_seconds is not None:
        longest = LONGEST_CHECKPOINT.total_seconds()
        require(
            "timeout_seconds", request.timeout_seconds, lambda s: 0.01 <= s <= longest, "from 0.01 seconds to a year"
        )


def _new_checkpoint(tx: JobTransaction, attempt: AttemptRecord, request: TriggerCheckpoint) -> CheckpointRecord:
    checkpoint = _plain_checkpoint(tx, attempt, request)
    if request.serves is None or request.savepoint_dir is None:
        return checkpoint
    asked = transitions.begin(tx, request.serves, checkpoint.checkpoint_id)
    return replace(
        checkpoint,
        properties=asked.properties,
        location=new_savepoint_uri(asked.target or request.savepoint_dir, tx.job.job_id),
        expires_at=tx.now + transitions.LONGEST_WRITE,
    )


def _plain_checkpoint(tx: JobTransaction, attempt: AttemptRecord, request: TriggerCheckpoint) -> CheckpointRecord:
    checkpoint_id = tx.draw_checkpoint_id()
    seconds = attempt.checkpoint_timeout_seconds if request.timeout_seconds is None else request.timeout_seconds
    return CheckpointRecord(
        job_id=attempt.job_id,
        checkpoint_id=checkpoint_id,
        operator_id=attempt.operator_id,
        epoch=attempt.epoch,
        generation=attempt.generation,
        status=CheckpointStatus.PENDING,
        request_key=request.request_key,
        location=checkpoint_uri(attempt.storage_base, attempt.job_id, checkpoint_id),
        triggered_at=tx.now,
        expires_at=tx.now + timedelta(seconds=seconds),
        run_key=attempt.owner.run_key,
        properties=CheckpointProperties.for_checkpoint(attempt.retention, is_full=_must_be_full(tx, attempt)),
    )


def _must_be_full(tx: JobTransaction, attempt: AttemptRecord) -> bool:
    # What was restored without a claim may be deleted by its owner at any time, so nothing new may need it.
    restorable = [c for c in tx.open_checkpoints(attempt.operator_id) if c.is_restorable]
    return bool(restorable) and restorable[-1].properties.unclaimed


def _acknowledge(tx: JobTransaction, attempt: AttemptRecord, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
    checkpoint = _own_checkpoint(tx, attempt, request.checkpoint_id)
    result = _outcome(checkpoint)
    if checkpoint is not None and result is AcknowledgeResult.SUCCESS:
        require_metadata_in(checkpoint.location, request.metadata_uri)
        checkpoint = transitions.complete(tx, checkpoint, request)
        _make_newest(tx, attempt, checkpoint)
    if checkpoint is not None and result is AcknowledgeResult.DISCARDED:
        statistics.acknowledged_late(tx, checkpoint, request)
    return AcknowledgeReply(
        result=result, effects=transitions.effects_of(tx, attempt.operator_id), checkpoint=checkpoint
    )


def _outcome(checkpoint: CheckpointRecord | None) -> AcknowledgeResult:
    if checkpoint is None:
        return AcknowledgeResult.UNKNOWN
    if checkpoint.status is CheckpointStatus.PENDING:
        return AcknowledgeResult.SUCCESS
    if checkpoint.status is CheckpointStatus.ABORTED:
        return AcknowledgeResult.DISCARDED
    return AcknowledgeResult.DUPLICATE


def _make_newest(tx: JobTransaction, attempt: AttemptRecord, completed: CheckpointRecord) -> None:
    if completed.properties.is_savepoint and not completed.properties.is_synchronous:
        # It is no part of recovery, so it changes nothing there.
        return
    reason = CheckpointFailureReason.CHECKPOINT_SUBSUMED
    transitions.abort_pending(tx, attempt.operator_id, reason, lambda c: _is_subsumable(c, completed))
    transitions.subsume(tx, attempt.operator_id, attempt.num_retained, attempt.retained_runs)


def _is_subsumable(pending: CheckpointRecord, completed: CheckpointRecord) -> bool:
    return pending.checkpoint_id < completed.checkpoint_id and not pending.properties.is_savepoint


def _confirm_commits(tx: JobTransaction, attempt: AttemptRecord, checkpoint_ids: tuple[int, ...]) -> None:
    rows = [c for c in tx.open_checkpoints(attempt.operator_id) if c.is_restorable]
    mine = [c.checkpoint_id for c in rows if c.generation == attempt.generation and c.unusable_reason is None]
    confirmed = max((i for i in checkpoint_ids if i in mine), default=0)
    transitions.end_commits(tx, attempt.operator_id, lambda c: c.checkpoint_id in mine and c.checkpoint_id <= confirmed)
    transitions.subsume(tx, attempt.operator_id, attempt.num_retained, attempt.retained_runs)


def _require_committed(tx: JobTransaction, attempt: AttemptRecord, request: FinishAttempt) -> None:
    commits = tuple(c.checkpoint_id for c in tx.open_checkpoints(attempt.operator_id) if c.awaits_commit)
    if commits and request.status is AttemptStatus.FINISHED:
        raise OpenCommitError(
            f"Expected attempt {attempt.epoch} of job {tx.job.name!r} to finish with everything committed by its sink, found "
            f"checkpoints {', '.join(map(str, commits))} without a confirmed commit; commit and confirm them, or end the "
            f"attempt as failed, so that a retry does.",
            checkpoint_ids=commits,
        )


def _own_checkpoint(tx: JobTransaction, attempt: AttemptRecord, checkpoint_id: int) -> CheckpointRecord | None:
    checkpoint = tx.checkpoint(checkpoint_id)
    if checkpoint is None or (checkpoint.operator_id, checkpoint.epoch) != (attempt.operator_id, attempt.epoch):
        return None
    return checkpoint


def _restored(tx: JobTransaction, attempt: AttemptRecord, request: ConfirmRestore) -> CheckpointRecord:
    noted = tx.checkpoint(request.checkpoint_id)
    if noted is not None and noted in savepoint_restore.proposed(tx, attempt):
        return savepoint_restore.adopt(tx, attempt, noted, claim=request.claim)
    return _require_restorable(tx, attempt, request.checkpoint_id)


def _require_restorable(tx: JobTransaction, attempt: AttemptRecord, checkpoint_id: int) -> CheckpointRecord:
    checkpoint = tx.checkpoint(checkpoint_id)
    if checkpoint is None or checkpoint.operator_id != attempt.operator_id or not checkpoint.is_restorable:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint_id} to be a completed one of this operator in job {tx.job.name!r}, "
            f"found {checkpoint.status.value if checkpoint else 'none'}; restore from a candidate of the grant.",
            checkpoint_id=checkpoint_id,
        )
    return checkpoint
