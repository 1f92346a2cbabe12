"""
Registration of an attempt: fences earlier attempts and decides where the new one starts.

The state of a job carries over from run to run. The newest completed checkpoint of the current generation determines
the run that the state has reached. The coordinator rejects a run with an earlier logical date. A restarted run resumes
from the last checkpoint of the run before it, in the same generation, and its own checkpoints are rolled back.

A stage and a coordinator of several operators list the storage before they register, and the registration moves the
next id of the job past all ids found, which the database may have lost: no directory is written by two checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from airflow_provider_statecheck.checkpoint import savepoint_restore, start_decision, transitions
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import (
    is_earlier_run,
    is_of_new_run,
    is_other_instance,
    is_retry_of,
    map_index_of,
    remaining_after_rollback,
    require_not_superseded,
    require_running,
    under_known_key,
)
from airflow_provider_statecheck.checkpoint.ids import (
    OperatorId,
    is_test_job,
    operator_id_of,
    task_uids_of,
)
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.properties import RestoreSource
from airflow_provider_statecheck.checkpoint.records import (
    ROLLED_BACK,
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    InPlaceRestore,
    OnClear,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.renamed_operators import (
    KnownDags,
    foreign_output,
    operator_of,
    other_operators,
    shared_state_warning,
)
from airflow_provider_statecheck.checkpoint.start_decision import StartDecision, decide_start
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    RunSupersededError,
)

log = logging.getLogger(__name__)


class RivalError(Exception):
    """Another task, or another run of the task, has an open attempt of the operator."""

    def __init__(self, rival: AttemptRecord) -> None:
        super().__init__(rival.owner.label)
        self.rival = rival


class MovedKeyError(RivalError):
    """Another instance of the mapped task had the map key before this one was cleared."""


class LaterTryError(RivalError):
    """The last attempt is that of a later try: this try is delayed, or its run was deleted and created again."""


def register(
    tx: JobTransaction, request: RegisterAttempt, dead: Sequence[AttemptRecord], dags: KnownDags
) -> AttemptGrant:
    """
    Register an attempt under the next epoch, fence its predecessors and choose the candidates to restore.

    :param dead: Attempts whose tasks are known to have stopped, or to have been cleared since.
    :param dags: Tasks of the other Dags that ran operators of the job.
    :raises StaleAttemptError: if the attempt was registered before and has been replaced since.
    :raises InvalidConfigurationError: if another instance of the mapped task has the same map key, or another task of
        the Dag the same uid.
    :raises RunSupersededError: if a later run has already advanced the state.
    :raises RivalError: if another owner's attempt is open and not in ``dead``.
    :raises LaterTryError: if the last attempt is not in ``dead``, and is that of a later try of the task.
    :raises MovedKeyError: if the last attempt is not in ``dead``, and its instance of the mapped task has another
        index.
    :raises NoRestorableCheckpointError: if the operator had state and none of it can be restored.
    :raises SavepointClaimedError: if another operator has claimed the savepoint to start from.
    :raises IncompatibleCheckpointError: if the operator is new and another operator, which has checkpoints, is gone.
    :raises UnaskedDagsError: if ``dags`` lacks a Dag.
    """
    # A driver that spark-submit starts repeats the registration, and only the driver has listed the storage.
    warning = _warning_of_lost_ids(tx, request)
    known = tx.attempt_by_key(request.attempt_key)
    if known is not None:
        return _grant(tx, require_running(tx, AttemptRef.of(known)), request, dags, warning)
    return _grant(tx, _open_attempt(tx, request, dead, dags), request, dags, warning)


def _warning_of_lost_ids(tx: JobTransaction, request: RegisterAttempt) -> str:
    newest = request.newest_on_storage
    if not skip_ids_on_storage(tx, newest):
        return ""
    return (
        f"{unknown_checkpoint(tx.job.name, newest)} To start from checkpoint {newest} instead, run the task now in "
        "another job with from_savepoint= set to the directory of that checkpoint: files that it shares with "
        "checkpoints of this job will be deleted with them."
    )


def skip_ids_on_storage(tx: JobTransaction, newest: int) -> bool:
    """
    Move the next checkpoint id of a job past the newest one on its storage.

    :param newest: Highest id of a checkpoint directory; 0 without any.
    :return: Whether the database does not know this checkpoint.
    """
    following = tx.job.next_checkpoint_id
    # A repeated message finds that the first one has already advanced the id.
    if newest == 0 or newest + 1 < following or tx.checkpoint(newest) is not None:
        return False
    if newest >= following:
        tx.set_next_checkpoint_id(newest + 1)
        log.warning("Job %s: checkpoint %s on storage, next id in the database was %s", tx.job.name, newest, following)
    return True


def unknown_checkpoint(job_name: str, newest: int) -> str:
    """Return the warning for a checkpoint on storage that the database does not know."""
    return (
        f"The storage of job {job_name!r} contains checkpoint {newest}, which is not in the database, for example "
        f"because a backup of the database was restored. New checkpoints start at id {newest + 1}, and checkpoints "
        "that the database does not know are not deleted."
    )


def _open_attempt(
    tx: JobTransaction, request: RegisterAttempt, dead: Sequence[AttemptRecord], dags: KnownDags
) -> AttemptRecord:
    operator = operator_of(tx, request, dags) or _new_operator(tx, request)
    request = replace(request, owner=under_known_key(tx, operator, request.owner))
    operator_id = operator.operator_id
    previous = tx.attempt(operator_id, operator.epoch)
    _require_key_of_its_own(previous, request, dead)
    _require_uid_of_its_own(previous, request)
    _require_no_later_try(previous, request, dead)
    choice = start_decision.roll_back_to_choice(tx, operator)
    restore = start_decision.waiting_restore(tx, operator)
    if choice is None and restore is None:
        operator = _without_given_up(tx, operator)
    _require_not_superseded(tx, operator, request, restore)
    _require_no_rival(previous, request, dead)
    replaced = _replaced_attempt(tx, operator, request)
    _require_no_rival(replaced, request, dead)
    _fence(tx, operator.operator_id, previous)
    if replaced is not None:
        _fence(tx, replaced.operator_id, replaced)
    start = _start(tx, operator, previous, request, restore or choice)
    operator = replace(operator, epoch=operator.epoch + 1)
    if choice is not None:
        operator = start_decision.take(tx, operator, choice)
    if not start.resumes:
        first_run = request.owner.run_key if start.first_run is None else start.first_run
        operator = replace(operator, generation=operator.generation + 1, first_run=first_run, damaged_snapshots=())
    # The sink retracts the output of earlier generations when it is opened. A restore in place may be withdrawn before.
    ended = operator.generation if restore is None else restore.earlier_generation
    transitions.end_commits(tx, operator_id, lambda c: c.generation < ended)
    tx.save_operator(operator)
    # A stage without a member in the savepoint of its job starts without state, whatever savepoint its task names.
    source = request.restore_from if restore is None else restore.source
    if not start.resumes and source is not None:
        savepoint_restore.propose(tx, operator, source)
        reason = start.reason if start.source is not None else f"{start.reason}, started from a savepoint"
        start = replace(start, resumes=True, reason=reason)
    attempt = _new_attempt(tx, operator, request, start)
    tx.save_attempt(attempt)
    transitions.end_outdated_requests(tx, attempt, is_wanted=request.savepoint_at_end)
    if request.savepoint_at_end:
        transitions.request_savepoint_at_end(tx, attempt)
    return attempt


def _without_given_up(tx: JobTransaction, operator: OperatorRecord) -> OperatorRecord:
    """Return the operator without its checkpoints if an attempt gave up all of them, because its source had changed."""
    restorable = transitions.restorable(tx, operator)
    is_given_up = bool(restorable) and all(c.unusable_reason == ROLLED_BACK for c in restorable)
    return replace(operator, generation=operator.generation + 1) if is_given_up else operator


def _require_not_superseded(
    tx: JobTransaction, operator: OperatorRecord, request: RegisterAttempt, restore: InPlaceRestore | None
) -> None:
    if restore is not None:
        _require_not_before(restore, operator, request)
    else:
        require_not_superseded(tx, operator, request.owner)


def _require_not_before(restore: InPlaceRestore, operator: OperatorRecord, request: RegisterAttempt) -> None:
    run, reached = request.owner.run_key, "" if restore.source is None else restore.source.run
    if not is_earlier_run(run, reached):
        return
    raise RunSupersededError(
        f"Expected a run from {reached!r} on, which the savepoint {restore.pointer} has reached that operator "
        f"{operator.uid!r} of job {request.job_name!r} is restored from, found the earlier run {run!r}; nothing was "
        f"changed. Clear only run {reached!r} and later ones, or restore an earlier savepoint.",
        run_key=run,
        stands_at=reached,
    )


def _require_key_of_its_own(
    previous: AttemptRecord | None, request: RegisterAttempt, dead: Sequence[AttemptRecord]
) -> None:
    if previous is None or not is_other_instance(previous.owner, request.owner):
        return
    # Otherwise the second instance would fence the first one, or continue at its end and do nothing.
    if previous.owner.clear_marker == request.owner.clear_marker:
        raise shared_map_key(previous.owner, request.owner)
    # The index of a key changes with the list of instances, for which all of them are cleared.
    if not any(_is_same_attempt(previous, each) for each in dead):
        raise MovedKeyError(previous)


def shared_map_key(holder: AttemptOwner, owner: AttemptOwner) -> InvalidConfigurationError:
    """Return the error for an instance of a mapped task that has the map key of another one."""
    return InvalidConfigurationError(
        f"Expected a map_key of its own for each instance of a mapped task, found {owner.logical_task!r} at the "
        f"instances {map_index_of(holder)} and {map_index_of(owner)} in run {owner.run_id!r}; derive the key from the "
        "content of each instance, and remove duplicates from the list; if the run was deleted and created again, "
        "clear all its instances."
    )


def _require_uid_of_its_own(previous: AttemptRecord | None, request: RegisterAttempt) -> None:
    # The uids of templates are equal only when they are rendered. The second task would find all work done.
    if previous is None or previous.owner.run_id != request.owner.run_id:
        return
    mine, theirs = request.owner.task, previous.owner.task
    if mine is None or theirs is None or mine.dag_id != theirs.dag_id or mine.task_id == theirs.task_id:
        return
    uids = (request.dag_uids or {}).get(theirs.task_id)
    # An empty tuple means that the uid is a template. A task that has another uid now has given this one away.
    if uids is not None and (not uids or not set(uids).isdisjoint(task_uids_of(request.uid))):
        raise InvalidConfigurationError(
            f"Expected a unique uid for every task of a job, found {request.uid!r} at both {theirs.task_id!r} and "
            f"{mine.task_id!r} in run {request.owner.run_id!r} of the job {request.job_name!r}; give one of them "
            "another uid."
        )


def _require_no_later_try(
    previous: AttemptRecord | None, request: RegisterAttempt, dead: Sequence[AttemptRecord]
) -> None:
    if previous is None or any(_is_same_attempt(previous, each) for each in dead):
        return
    is_later = (request.owner.try_number or 0) < (previous.owner.try_number or 0)
    if is_later and is_of_new_run(request.owner, previous.owner):
        raise LaterTryError(previous)


def _require_no_rival(previous: AttemptRecord | None, request: RegisterAttempt, dead: Sequence[AttemptRecord]) -> None:
    if previous is None or not previous.is_running:
        return
    if any(_is_same_attempt(previous, each) for each in dead):
        return
    theirs, mine = previous.owner, request.owner
    # Airflow never ends the task instance of a killed test run.
    is_same_run = theirs.run_id == mine.run_id or is_test_job(request.job_name)
    if theirs.logical_task != mine.logical_task or not is_same_run:
        raise RivalError(previous)


def _is_same_attempt(attempt: AttemptRecord, other: AttemptRecord) -> bool:
    # Compares the owners too: another try may have adopted the attempt after the liveness check.
    mine, theirs = (attempt.operator_id, attempt.epoch), (other.operator_id, other.epoch)
    return mine == theirs and attempt.owner == other.owner


def _new_operator(tx: JobTransaction, request: RegisterAttempt) -> OperatorRecord:
    return OperatorRecord(
        job_id=tx.job.job_id,
        operator_id=operator_id_of(request.uid),
        uid=request.uid,
        epoch=0,
        generation=0,
    )


def _fence(tx: JobTransaction, operator_id: OperatorId, previous: AttemptRecord | None) -> None:
    # A pending checkpoint is never fully acknowledged, because one transaction acknowledges and completes it.
    transitions.abort_pending(tx, operator_id, CheckpointFailureReason.ATTEMPT_ENDED)
    if previous is not None and previous.is_running:
        tx.save_attempt(replace(previous, status=AttemptStatus.FENCED, ended_at=tx.now))


def _replaced_attempt(tx: JobTransaction, operator: OperatorRecord, request: RegisterAttempt) -> AttemptRecord | None:
    # The task may have run under its own uid before it took over the operator with a former uid.
    own = tx.operator(operator_id_of(request.uid)) if operator.uid != request.uid else None
    return None if own is None else tx.attempt(own.operator_id, own.epoch)


def _decide(
    tx: JobTransaction, operator: OperatorRecord, previous: AttemptRecord | None, request: RegisterAttempt
) -> StartDecision:
    candidates = transitions.restorable(tx, operator)
    decision = decide_start(_decisive_attempt(tx, candidates, previous, request), request)
    if not decision.resumes:
        return _restart_run(tx, operator, candidates, decision, request)
    if candidates:
        return decision
    if previous is not None and previous.generation < operator.generation:
        reason = f"{decision.reason}, but its checkpoints were given up, or deleted with their run or job"
        return StartDecision(False, reason)
    if tx.has_completed(operator.operator_id, operator.generation):
        raise NoRestorableCheckpointError(
            f"Expected a retained checkpoint of operator {operator.uid!r} in job {tx.job.name!r} to restore "
            f"({decision.reason}), found none; clear the task with on_clear='restart' to start over."
        )
    return StartDecision(False, f"{decision.reason}, no completed checkpoint exists")


def _start(
    tx: JobTransaction,
    operator: OperatorRecord,
    previous: AttemptRecord | None,
    request: RegisterAttempt,
    wanted: InPlaceRestore | ActionRecord | None,
) -> StartDecision:
    if isinstance(wanted, InPlaceRestore):
        return _restored_in_place(previous, request, wanted)
    if wanted is not None:
        before = decide_start(previous, request).reason
        reason = f"{before}, restored from checkpoint {wanted.checkpoint_id}, which {wanted.requested_by} chose"
        return StartDecision(True, reason, is_chosen=True)
    start = _decide(tx, operator, previous, request)
    return replace(start, is_chosen=start.resumes and _starts_from_choice_of(tx, operator, previous))


def _restored_in_place(
    previous: AttemptRecord | None, request: RegisterAttempt, restore: InPlaceRestore
) -> StartDecision:
    decision = decide_start(previous, request)
    source = restore.source
    if source is None:
        return StartDecision(False, f"{decision.reason}, without state in the savepoint {restore.pointer} of the job")
    reason = f"{decision.reason}, restored in place from {restore.pointer}"
    return StartDecision(False, reason, is_chosen=True, source=source, first_run=restore.first_run)


def _starts_from_choice_of(tx: JobTransaction, operator: OperatorRecord, previous: AttemptRecord | None) -> bool:
    # The attempt that took the choice may have ended before it read the checkpoint, and its retry must not fall back
    # either.
    if previous is None or not previous.is_restore_chosen:
        return False
    newest = next(iter(transitions.restorable(tx, operator)), None)
    if newest is None or newest.epoch >= previous.epoch:
        return False
    # It has recorded no checkpoint if its source required it to start over.
    return previous.restored_from in (None, newest.checkpoint_id)


def _decisive_attempt(
    tx: JobTransaction,
    candidates: tuple[CheckpointRecord, ...],
    previous: AttemptRecord | None,
    request: RegisterAttempt,
) -> AttemptRecord | None:
    run = request.owner.run_key
    if previous is None or previous.owner.run_key == run or not candidates or candidates[0].run_key != run:
        return previous
    # A later run failed without a checkpoint. The decision depends on the last attempt of the run that the state
    # reached.
    return tx.last_attempt_of_run(previous.operator_id, run) or previous


def _restart_run(
    tx: JobTransaction,
    operator: OperatorRecord,
    candidates: tuple[CheckpointRecord, ...],
    decision: StartDecision,
    request: RegisterAttempt,
) -> StartDecision:
    run = request.owner.run_key
    before = remaining_after_rollback(candidates, run)
    if not before and candidates and operator.first_run != run:
        raise NoRestorableCheckpointError(
            f"Expected a checkpoint before run {run!r} of operator {operator.uid!r} in job {tx.job.name!r} to restart "
            f"the run ({decision.reason}), found none retained; increase retained_runs for later runs, and now choose "
            "one of the run's own checkpoints on the page of the job or start another job from a savepoint."
        )
    if not before:
        return decision
    if all(c.unusable_reason is not None for c in before):
        raise NoRestorableCheckpointError(
            f"Expected a readable checkpoint before run {run!r} of operator {operator.uid!r} in job {tx.job.name!r} to "
            f"restart the run ({decision.reason}), found only unreadable ones: {before[0].unusable_reason}. Restore "
            "the files, or choose one of the run's own checkpoints on the page of the job.",
            checkpoint_ids=tuple(c.checkpoint_id for c in before),
        )
    transitions.roll_back_runs(tx, operator, candidates[: len(candidates) - len(before)])
    reason = f"{decision.reason}, restarted from checkpoint {before[0].checkpoint_id} of run {before[0].run_key!r}"
    return replace(decision, resumes=True, reason=reason)


def _new_attempt(
    tx: JobTransaction, operator: OperatorRecord, request: RegisterAttempt, start: StartDecision
) -> AttemptRecord:
    candidates = _candidates(tx, operator) if start.resumes else ()
    return AttemptRecord(
        job_id=operator.job_id,
        operator_id=operator.operator_id,
        epoch=operator.epoch,
        attempt_key=request.attempt_key,
        generation=operator.generation,
        status=AttemptStatus.RUNNING,
        owner=request.owner,
        start_reason=start.reason,
        restored_from=candidates[0].checkpoint_id if candidates else None,
        storage_base=request.storage_base,
        num_retained=request.num_retained,
        retained_runs=request.retained_runs,
        checkpoint_timeout_seconds=request.checkpoint_timeout_seconds,
        registered_at=tx.now,
        retention=request.retention,
        is_restore_chosen=start.is_chosen,
    )


def _candidates(tx: JobTransaction, of: OperatorRecord | AttemptRecord) -> tuple[CheckpointRecord, ...]:
    return savepoint_restore.proposed(tx, of) or transitions.restorable(tx, of)


def _granted(tx: JobTransaction, attempt: AttemptRecord) -> tuple[CheckpointRecord, ...]:
    candidates = _candidates(tx, attempt)
    # An older checkpoint would not be what the user chose.
    allowed = (c for c in candidates if not attempt.is_restore_chosen or c.checkpoint_id == attempt.restored_from)
    # A savepoint of the restored checkpoint has its figures.
    return tuple(replace(c, summary=tx.summary(c.checkpoint_id)) for c in allowed)


def _grant(
    tx: JobTransaction, attempt: AttemptRecord, request: RegisterAttempt, dags: KnownDags, warning: str
) -> AttemptGrant:
    is_restore = attempt.restored_from is not None
    operator = tx.operator(attempt.operator_id)
    effects = transitions.effects_of(tx, attempt.operator_id)
    others = other_operators(tx, request, dags)
    warnings = (warning, shared_state_warning(tx, request, attempt, others, dags))
    return AttemptGrant(
        attempt=AttemptRef.of(attempt),
        generation=attempt.generation,
        is_restore=is_restore,
        verify_fingerprints=request.on_clear is not OnClear.RESUME,
        start_reason=attempt.start_reason,
        candidates=_granted(tx, attempt) if is_restore else (),
        effects=replace(effects, stop=effects.stop or _missed_stop(tx, attempt)),
        warning=" ".join(filter(None, warnings)),
        uid=request.uid if operator is None else operator.uid,
        gone_uids=foreign_output(tx, request, operator, others),
        damaged_snapshots=operator.damaged_snapshots if operator else (),
        storage_bases=tx.storage_bases(attempt.operator_id),
        restore_from=_source_in_place(tx, operator, attempt),
    )


def _missed_stop(tx: JobTransaction, attempt: AttemptRecord) -> CheckpointRecord | None:
    """
    Return the complete savepoint with which the stage or its job suspended before an earlier try of the task stopped.
    """
    earlier = tuple(_earlier_tries(tx, attempt))
    if not earlier:
        return None
    own = tx.open_checkpoints(attempt.operator_id)

    def first(taken: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
        return next((c for c in taken if any(each.should_stop_with(c, own) for each in earlier)), None)

    return first(transitions.suspended_with(own)) or first(transitions.job_suspended_with(tx))


def _earlier_tries(tx: JobTransaction, attempt: AttemptRecord) -> Iterator[AttemptRecord]:
    has_completed = partial(tx.has_completed, attempt.operator_id)
    for epoch in range(attempt.epoch - 1, 0, -1):
        earlier = tx.attempt(attempt.operator_id, epoch)
        if earlier is None or not is_retry_of(attempt, earlier, has_completed):
            return
        yield earlier


def _source_in_place(
    tx: JobTransaction, operator: OperatorRecord | None, attempt: AttemptRecord
) -> RestoreSource | None:
    restore = None if operator is None else start_decision.waiting_restore(tx, operator)
    # The restore may have been requested after the registration that is repeated.
    return restore.source if restore is not None and attempt.is_restore_chosen else None
