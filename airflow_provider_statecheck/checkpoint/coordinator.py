"""
Checkpoint coordinator for stages; each stage checkpoints one operator.

Each call runs one transaction on the rows of a job and returns the effects that are open after it. There is no daemon
and no timer: each call first aborts the pending checkpoints that have expired. The model is Apache Flink's
``CheckpointCoordinator``, reduced to checkpoints of one operator.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta

from airflow_provider_statecheck.checkpoint import (
    registration,
    savepoint_restore,
    start_decision,
    statistics,
    transitions,
)
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.declared_uids import DagDirectory, DagTasks, UnknownDags
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import (
    ONE_RUN_AT_A_TIME,
    TaskLiveness,
    UnknownLiveness,
    is_same_try,
    require_current,
    require_running,
    require_same_task,
)
from airflow_provider_statecheck.checkpoint.ids import (
    checkpoint_uri,
    is_test_job,
    job_id_of,
    job_name,
    new_savepoint_uri,
    operator_id_of,
)
from airflow_provider_statecheck.checkpoint.messages import (
    LONGEST_CHECKPOINT,
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AcknowledgeResult,
    AttemptGrant,
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    ReportProgress,
    TriggerCheckpoint,
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
)
from airflow_provider_statecheck.checkpoint.renamed_operators import UnaskedDagsError
from airflow_provider_statecheck.checkpoint.row_removal import DEFAULT_AGE, OldRows, remove_rows
from airflow_provider_statecheck.checkpoint.store import (
    FirstRead,
    JobStore,
    JobTransaction,
    StoredJobs,
)
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    OpenCommitError,
    RunSupersededError,
    SavepointClaimedError,
    StaleAttemptError,
    StateCheckError,
)

log = logging.getLogger(__name__)

# Removes more rows than an attempt adds in a day with a checkpoint every ten seconds.
MAX_BATCHES_AT_END = 20
_CONFLICTS = (
    ConcurrentAttemptError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    OpenCommitError,
    RunSupersededError,
    SavepointClaimedError,
)
"""
Errors about other tasks, runs or checkpoints of the job, which its pages show.

Others have texts of the database, or are answers to a process that a later try of its task has replaced.
"""
# Bounds the size of the operator's row. A snapshot that drops out of the list is detected again when it is read.
_MAX_DAMAGED_SNAPSHOTS = 100


class AttemptCoordinator(StoredJobs):
    """
    Completes and aborts checkpoints, and grants attempts.

    Implements ``StageGateway``, so in-process callers use it directly.

    :param liveness: Source of the liveness of other tasks, unknown by default.
    :param dags: Lookup of the tasks of other Dags, unknown by default.
    """

    def __init__(self, store: JobStore, liveness: TaskLiveness | None = None, dags: DagDirectory | None = None) -> None:
        super().__init__(store)
        self._liveness = liveness or UnknownLiveness()
        self._dags = dags or UnknownDags()

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        require_valid(request)
        try:
            grant = self._register(request)
        except StateCheckError as error:
            self._record_refusal(request, error)
            raise
        log.debug(
            "Job %s operator %s: attempt %s registered for %s (%s)",
            request.job_name,
            grant.uid,
            grant.attempt.epoch,
            request.owner.label,
            grant.start_reason,
        )
        return grant

    def adopt(self, attempt: AttemptRef, owner: AttemptOwner) -> None:
        with self._transaction(attempt) as tx:
            found = require_current(tx, attempt)
            require_same_task(found, owner)
            if not found.is_running and is_same_try(found.owner, owner):
                return  # its driver has ended it while the task was deferred, and the task still has to close it
            running = require_running(tx, attempt)
            # Another task does not change how the driver calls.
            tx.save_attempt(replace(running, owner=replace(owner, transport=running.owner.transport)))

    def confirm_restore(self, request: ConfirmRestore) -> None:
        with self._transaction(request.attempt) as tx:
            attempt = require_running(tx, request.attempt)
            restored = _restored_checkpoint(tx, attempt, request)
            for skipped in request.skipped:
                row = _require_restorable(tx, attempt, skipped.checkpoint_id)
                tx.update_checkpoint(replace(row, unusable_reason=skipped.reason), expected=CheckpointStatus.COMPLETED)
            if restored is not None and request.skipped:
                transitions.leave_out(tx, attempt, restored.checkpoint_id)
            if restored is not None and restored.unusable_reason is not None:
                restored = replace(restored, unusable_reason=None)
                tx.update_checkpoint(restored, expected=CheckpointStatus.COMPLETED)
            if request.restarted_run is not None:
                _give_up(tx, attempt, restored, request.restarted_run)
            transitions.record_restore(tx, attempt, restored)

    def report_progress(self, request: ReportProgress) -> None:
        with self._transaction(request.attempt) as tx:
            attempt = require_running(tx, request.attempt)
            answered_after = (tx.now - attempt.registered_at).total_seconds()
            tx.save_attempt(replace(attempt, restored_summary=replace(request.summary, answered_after=answered_after)))

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        _require_savepoint_dir(request)
        _require_timeout(request)
        with self._transaction(request.attempt, request_key=request.request_key) as tx:
            attempt = require_running(tx, request.attempt)
            transitions.expire(tx, attempt.operator_id)
            known = tx.checkpoint_by_request(request.request_key)
            checkpoint = known or _begin(tx, attempt, request)
        return PendingCheckpoint(
            checkpoint_id=checkpoint.checkpoint_id,
            location=checkpoint.location,
            triggered_at=checkpoint.triggered_at,
            expires_at=checkpoint.expires_at,
            request_key=checkpoint.request_key,
        )

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        with self._transaction(request.attempt, ends_checkpoint=True) as tx:
            attempt = require_running(tx, request.attempt)
            transitions.expire(tx, attempt.operator_id)
            return _acknowledge(tx, attempt, request)

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        with self._transaction(request.attempt, ends_checkpoint=True) as tx:
            attempt = require_current(tx, request.attempt)
            checkpoint = _own_checkpoint(tx, attempt, request.checkpoint_id)
            if checkpoint is not None and checkpoint.status is CheckpointStatus.PENDING:
                transitions.abort(tx, checkpoint, request.reason, request.message, request.increment_seconds)
            return transitions.effects_of(tx, attempt.operator_id)

    def confirm_discards(self, attempt: AttemptRef, checkpoint_ids: tuple[int, ...]) -> None:
        with self._transaction(attempt) as tx:
            require_current(tx, attempt)
            transitions.mark_discarded(tx, attempt.operator_id, checkpoint_ids)

    def confirm_commits(
        self, attempt: AttemptRef, checkpoint_ids: tuple[int, ...], seconds: float | None = None
    ) -> OpenEffects:
        with self._transaction(attempt) as tx:
            _confirm_commits(tx, require_current(tx, attempt), checkpoint_ids, seconds)
            return transitions.effects_of(tx, attempt.operator_id)

    def finish(self, request: FinishAttempt) -> OpenEffects:
        if request.status not in (AttemptStatus.FINISHED, AttemptStatus.FAILED):
            raise InvalidConfigurationError(
                f"Expected an attempt to end as finished or failed, found {request.status!r}; set one of the two."
            )
        with self._transaction(request.attempt, ends_checkpoint=True) as tx:
            attempt = require_current(tx, request.attempt)
            if attempt.is_running:
                _require_committed(tx, attempt, request)
                transitions.abort_pending(tx, attempt.operator_id, CheckpointFailureReason.ATTEMPT_ENDED)
                _record_damage(tx, attempt, request.damaged_snapshots)
                tx.save_attempt(_ended(tx, attempt, request))
            elif _is_corrected(attempt, request):
                _require_committed(tx, attempt, request)
                tx.save_attempt(replace(attempt, status=request.status, message=request.message or attempt.message))
            effects = transitions.effects_of(tx, attempt.operator_id)
        self._remove_old_rows(attempt)
        return effects

    def _transaction(
        self, attempt: AttemptRef, *, request_key: str | None = None, ends_checkpoint: bool = False
    ) -> AbstractContextManager[JobTransaction]:
        reads = FirstRead(operator_id=attempt.operator_id, request_key=request_key, ends_checkpoint=ends_checkpoint)
        return self._store.transaction(attempt.job_id, reads=reads)

    def _remove_old_rows(self, ended: AttemptRecord) -> None:
        try:
            old = OldRows(ended.operator_id, storage_base=ended.storage_base)
            for _ in range(MAX_BATCHES_AT_END):
                with self._store.transaction(ended.job_id) as tx:
                    remove_rows(tx, old.batch(tx, tx.now - DEFAULT_AGE))
                if old.is_complete:
                    return
        except StateCheckError as error:
            # The attempt has ended anyway. The next attempt that ends, or prune, removes the rows.
            log.warning("Could not remove old database rows of job %s: %s", ended.job_id, error)

    def _register(self, request: RegisterAttempt) -> AttemptGrant:
        dead: list[AttemptRecord] = []
        dags: dict[str, DagTasks | None] = {}
        self._require_its_turn(request)
        while True:
            try:
                with self._store.transaction(job_id_of(request.job_name), create_as=request.job_name) as tx:
                    grant = registration.register(tx, request, dead, dags)
                    operator_id, epoch = grant.attempt.operator_id, grant.attempt.epoch
                    statistics.admitted(tx, operator_id, request.owner, is_new=epoch == 1)
                    return grant
            except (registration.RivalError, UnaskedDagsError) as raised:
                found = raised
            # What follows may call Airflow, which must not happen while the job's row is locked.
            if isinstance(found, UnaskedDagsError):
                dags |= {dag_id: self._dags.tasks_of(dag_id, request.job_name) for dag_id in found.dag_ids}
            else:
                self._require_gone(found, request)
                dead.append(found.rival)

    def _record_refusal(self, request: RegisterAttempt, error: StateCheckError) -> None:
        if request.waits or not isinstance(error, _CONFLICTS):
            return
        try:
            with self._store.transaction(job_id_of(request.job_name)) as tx:
                known = map(tx.operator, map(operator_id_of, (request.uid, *request.former_uids)))
                # Of a new operator that was refused, the job has nothing.
                operator = next(filter(None, known), None) or next(iter(tx.view().operators), None)
                if operator is not None:
                    statistics.refused(tx, operator.operator_id, request.owner, error)
        except StateCheckError as unrecorded:
            log.debug("The refusal of %s is not recorded: %s", request.owner.label, unrecorded)

    def _require_its_turn(self, request: RegisterAttempt) -> None:
        if not request.waits or is_test_job(request.job_name):
            return
        earlier = self._liveness.earlier_run_of(request.owner)
        if earlier is not None and not self._has_begun(request):
            raise _not_its_turn_error(earlier, request)

    def _has_begun(self, request: RegisterAttempt) -> bool:
        # The earlier run would wait for the newest attempt, if that is of this run, while this try waited for the
        # earlier run.
        try:
            view = self._store.describe(job_id_of(request.job_name))
        except CheckpointNotFoundError:
            return False
        operator_ids = {operator_id_of(uid) for uid in (request.uid, *request.former_uids)}
        newest = [view.current_attempt(o) for o in view.operators if o.operator_id in operator_ids]
        return any(a is not None and a.owner.run_key == request.owner.run_key for a in newest)

    def _require_gone(self, found: registration.RivalError, request: RegisterAttempt) -> None:
        holder = found.rival.owner
        if isinstance(found, registration.MovedKeyError):
            if self._liveness.is_last_try(holder):
                raise registration.shared_map_key(holder, request.owner)
        elif isinstance(found, registration.LaterTryError):
            if self._liveness.is_last_try(holder):
                raise _later_try_error(holder, request)
        elif self._liveness.is_running(holder):
            raise _concurrent_attempt_error(holder, request)


def _concurrent_attempt_error(holder: AttemptOwner, request: RegisterAttempt) -> ConcurrentAttemptError:
    is_same_task = holder.logical_task == request.owner.logical_task
    advice = ONE_RUN_AT_A_TIME if is_same_task else "Give one of the two tasks another uid"
    return ConcurrentAttemptError(
        f"Job {request.job_name!r} already has a running task with uid {request.uid!r}: {holder.label}; "
        f"{request.owner.label} was refused. {advice}, or set on_overlap='wait'.",
        uid=request.uid,
        holder=holder.label,
    )


def _not_its_turn_error(earlier: str, request: RegisterAttempt) -> ConcurrentAttemptError:
    return ConcurrentAttemptError(
        f"Job {request.job_name!r} is waited for by an earlier run of the task: {earlier}; {request.owner.label} "
        "registers after it.",
        uid=request.uid,
        holder=f"the earlier run {earlier}",
    )


def _later_try_error(holder: AttemptOwner, request: RegisterAttempt) -> StaleAttemptError:
    return StaleAttemptError(
        f"Expected the newest try of its task to register in job {request.job_name!r}, found {request.owner.label} "
        f"after {holder.label}; stop it, because the later try has replaced it."
    )


def _ended(tx: JobTransaction, attempt: AttemptRecord, request: FinishAttempt) -> AttemptRecord:
    return replace(
        attempt,
        status=request.status,
        ended_at=tx.now,
        message=request.message,
        restored_summary=request.restored_summary or attempt.restored_summary,
    )


def _is_corrected(attempt: AttemptRecord, request: FinishAttempt) -> bool:
    # A task can fail after the end of its stage. A driver that survived a failed task must not report a success.
    return attempt.status is not request.status and (request.is_of_task or request.status is AttemptStatus.FAILED)


def _record_damage(tx: JobTransaction, attempt: AttemptRecord, found: tuple[str, ...]) -> None:
    operator = tx.operator(attempt.operator_id)
    if operator is None or not found:
        return
    damaged = dict.fromkeys((*operator.damaged_snapshots, *found))
    tx.save_operator(replace(operator, damaged_snapshots=tuple(damaged)[-_MAX_DAMAGED_SNAPSHOTS:]))


def _require_savepoint_dir(request: TriggerCheckpoint) -> None:
    if (request.serves is None) is not (request.savepoint_dir is None):
        raise InvalidConfigurationError(
            "Expected serves and savepoint_dir together, found only one; set both or neither."
        )


def _require_timeout(request: TriggerCheckpoint) -> None:
    if request.timeout_seconds is not None:
        longest = LONGEST_CHECKPOINT.total_seconds()
        require(
            "timeout_seconds", request.timeout_seconds, lambda s: 0.01 <= s <= longest, "from 0.01 seconds to a year"
        )


def _begin(tx: JobTransaction, attempt: AttemptRecord, request: TriggerCheckpoint) -> CheckpointRecord:
    checkpoint_id = tx.draw_checkpoint_id()
    if request.serves is None or request.savepoint_dir is None:
        seconds = attempt.checkpoint_timeout_seconds if request.timeout_seconds is None else request.timeout_seconds
        properties = CheckpointProperties.for_checkpoint(attempt.retention, is_full=_must_be_full(tx, attempt))
        location, timeout = (
            checkpoint_uri(attempt.storage_base, attempt.job_id, checkpoint_id),
            timedelta(seconds=seconds),
        )
    else:
        savepoint = transitions.begin_request(tx, request.serves, checkpoint_id)
        properties, timeout = savepoint.properties, transitions.SAVEPOINT_TIMEOUT
        location = new_savepoint_uri(savepoint.target or request.savepoint_dir, tx.job.job_id)
    return transitions.begin(
        tx,
        attempt,
        checkpoint_id=checkpoint_id,
        location=location,
        timeout=timeout,
        request_key=request.request_key,
        properties=properties,
    )


def _must_be_full(tx: JobTransaction, attempt: AttemptRecord) -> bool:
    # The owner of an unclaimed savepoint may delete it at any time, so new checkpoints must not reference its files.
    usable = (c for c in transitions.restorable(tx, attempt) if c.is_usable)
    newest = next(usable, None)
    return newest is not None and newest.properties.unclaimed


def _acknowledge(tx: JobTransaction, attempt: AttemptRecord, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
    checkpoint = _own_checkpoint(tx, attempt, request.checkpoint_id)
    result = _result_for(checkpoint)
    if checkpoint is not None and result is AcknowledgeResult.SUCCESS:
        require_metadata_in(checkpoint.location, request.metadata_uri)
        checkpoint = transitions.complete(tx, checkpoint, transitions.acknowledged(tx, checkpoint, request))
        transitions.note_work(tx, attempt, request.summary)
        _subsume_older(tx, attempt, checkpoint)
    if checkpoint is not None and result is AcknowledgeResult.DISCARDED:
        statistics.acknowledged_late(
            tx,
            checkpoint,
            state_size_bytes=request.state_size_bytes,
            full_size_bytes=request.full_size_bytes,
            counts=statistics.truncated_counts(request.counts),
        )
    return AcknowledgeReply(
        result=result, effects=transitions.effects_of(tx, attempt.operator_id), checkpoint=checkpoint
    )


def _result_for(checkpoint: CheckpointRecord | None) -> AcknowledgeResult:
    if checkpoint is None:
        return AcknowledgeResult.UNKNOWN
    if checkpoint.status is CheckpointStatus.PENDING:
        return AcknowledgeResult.SUCCESS
    if checkpoint.status is CheckpointStatus.ABORTED:
        return AcknowledgeResult.DISCARDED
    return AcknowledgeResult.DUPLICATE


def _subsume_older(tx: JobTransaction, attempt: AttemptRecord, completed: CheckpointRecord) -> None:
    if not completed.properties.ends_others:
        # Recovery does not use the savepoint and still needs the older checkpoints.
        return
    for pending in transitions.ended_by(tx, completed):
        transitions.abort(tx, pending, CheckpointFailureReason.CHECKPOINT_SUBSUMED)
    operator = tx.operator(attempt.operator_id)
    if operator is not None and operator.in_place_restore is not None:
        start_decision.complete_in_place(tx, operator, attempt)
    transitions.subsume(tx, attempt.operator_id, attempt.num_retained, attempt.retained_runs)


def _confirm_commits(
    tx: JobTransaction, attempt: AttemptRecord, checkpoint_ids: tuple[int, ...], seconds: float | None
) -> None:
    rows = [c for c in tx.open_checkpoints(attempt.operator_id) if c.is_usable]
    mine = [c.checkpoint_id for c in rows if c.generation == attempt.generation]
    confirmed = max((i for i in checkpoint_ids if i in mine), default=0)
    transitions.end_commits(
        tx,
        attempt.operator_id,
        lambda c: c.checkpoint_id in mine and c.checkpoint_id <= confirmed,
        lambda c: _committed_summary(tx, c, seconds) if c.checkpoint_id == confirmed else c.summary,
    )
    transitions.subsume(tx, attempt.operator_id, attempt.num_retained, attempt.retained_runs)


def _committed_summary(
    tx: JobTransaction, checkpoint: CheckpointRecord, seconds: float | None
) -> CheckpointSummary | None:
    if seconds is None:
        return checkpoint.summary
    return replace(tx.summary(checkpoint.checkpoint_id) or CheckpointSummary(), commit_seconds=seconds)


def _require_committed(tx: JobTransaction, attempt: AttemptRecord, request: FinishAttempt) -> None:
    commits = tuple(c.checkpoint_id for c in transitions.restorable(tx, attempt) if c.awaits_commit)[::-1]
    if commits and request.status is AttemptStatus.FINISHED:
        raise OpenCommitError(
            f"Expected the sink of attempt {attempt.epoch} of job {tx.job.name!r} to have committed all checkpoints, "
            f"found open commits of checkpoints {', '.join(map(str, commits))}; commit and confirm them, or end the "
            "attempt as failed and let a retry commit them.",
            checkpoint_ids=commits,
        )


def _own_checkpoint(tx: JobTransaction, attempt: AttemptRecord, checkpoint_id: int) -> CheckpointRecord | None:
    checkpoint = tx.checkpoint(checkpoint_id)
    if checkpoint is None or (checkpoint.operator_id, checkpoint.epoch) != (attempt.operator_id, attempt.epoch):
        return None
    return checkpoint


def _restored_checkpoint(
    tx: JobTransaction, attempt: AttemptRecord, request: ConfirmRestore
) -> CheckpointRecord | None:
    if request.checkpoint_id is None:
        return None
    checkpoint = tx.checkpoint(request.checkpoint_id)
    is_adoption = checkpoint is not None and checkpoint.is_adoption
    if checkpoint is not None and is_adoption and checkpoint in savepoint_restore.proposed(tx, attempt):
        # The claim of a task is for the savepoint that it names, not for the one that a user restores in place.
        claim = request.claim and not attempt.is_restore_chosen
        return savepoint_restore.adopt(tx, attempt, checkpoint, claim=claim)
    return _require_restorable(tx, attempt, request.checkpoint_id)


def _give_up(tx: JobTransaction, attempt: AttemptRecord, restored: CheckpointRecord | None, run: str) -> None:
    """Release the checkpoints after the one with which a run starts again, as the registration of a restart does."""
    if restored is None:
        _require_first(tx, attempt, run)
        # They stay until the first checkpoint of this attempt, or the new generation that the next registration opens.
        transitions.leave_out(tx, attempt, 0)
        return
    newer = (c for c in transitions.restorable(tx, attempt) if c.checkpoint_id > restored.checkpoint_id)
    transitions.roll_back(tx, newer)


def _require_first(tx: JobTransaction, attempt: AttemptRecord, run: str) -> None:
    operator = tx.operator(attempt.operator_id)
    # After a recovery of the rows, the first run is unknown, like the runs of the checkpoints: earlier ones may have
    # advanced the state, unless the job is that of the run alone.
    is_first = operator is None or operator.first_run == run != "" or _is_of_one_run(tx.job.name, attempt.owner)
    if operator is not None and not is_first and not _starts_from_nothing(tx, attempt, run):
        raise NoRestorableCheckpointError(
            f"Expected a checkpoint before {f'run {run!r}' if run else 'the recovered ones'} of operator "
            f"{operator.uid!r} in job {tx.job.name!r} to start the run again, because its source has changed, found "
            "none retained; increase retained_runs for later runs, and now restore the source as it was listed, go on "
            "with its changes and the state of all runs with on_change='ignore', or start another job from a savepoint."
        )


def _is_of_one_run(job: str, owner: AttemptOwner) -> bool:
    """Return whether a job has the name that each Dag run has by default."""
    return job == job_name(f"{owner.dag_id}/{owner.run_key}", is_test=is_test_job(job))


def _starts_from_nothing(tx: JobTransaction, attempt: AttemptRecord, run: str) -> bool:
    """Return whether the first checkpoint of a run is of an attempt that restored none, because it had started over."""
    taken = (c for c in tx.completed_after(attempt.operator_id, attempt.generation, 0) if c.run_key == run)
    first = min(taken, key=lambda checkpoint: checkpoint.checkpoint_id, default=None)
    taken_by = None if first is None else tx.attempt(attempt.operator_id, first.epoch)
    return taken_by is not None and taken_by.restored_from is None


def _require_restorable(tx: JobTransaction, attempt: AttemptRecord, checkpoint_id: int) -> CheckpointRecord:
    checkpoint = tx.checkpoint(checkpoint_id)
    if checkpoint is None or checkpoint.operator_id != attempt.operator_id or not checkpoint.is_restorable:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint_id} of job {tx.job.name!r} to be a completed checkpoint of this "
            f"operator, found {checkpoint.status.value if checkpoint else 'none'}; restore from a candidate of the "
            "grant.",
            checkpoint_id=checkpoint_id,
        )
    return checkpoint
