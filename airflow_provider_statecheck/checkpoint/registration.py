"""
Registration of an attempt: fences earlier attempts and decides where the new one starts.

The state of a job with a name of its own goes from run to run. Where it stands is told by the newest completed checkpoint
of the current generation: that of the run that took it. A run with an earlier logical date is refused. A run that begins
again goes on from where the state stood before it, in the same generation; what it took before is given up.

State and output belong to the uid of an operator. A stage whose uid changed would start with nothing, read its source again
and write all output a second time, beside what it wrote under the old uid. So a new operator is refused while another one of
the job is gone: it may be the same stage under another name.

An operator is gone if no task of the registering Dag version has its uid and no other Dag ran it last. A script knows of no
Dag; for a script every other operator of the job is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint import run_order, savepoint_restore, statistics, transitions
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_UID, require_running
from airflow_provider_statecheck.checkpoint.ids import OperatorId, is_test_job, operator_id_of, task_uids_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    OnClear,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import (
    IncompatibleCheckpointError,
    NoRestorableCheckpointError,
    RunSupersededError,
)


def operator_of(tx: JobTransaction, request: RegisterAttempt) -> OperatorRecord | None:
    """
    Return the operator that a registration means: the one of its uid, or the one that it takes over from a former uid.

    The operator keeps the uid under which it began, and with it its epoch, its checkpoints and the ledgers of its sink. An
    operator that ever completed a checkpoint is never replaced by one of a former uid.

    :return: ``None`` for a new operator.
    :raises IncompatibleCheckpointError: if it is new while another one, which has completed checkpoints, is gone.
    """
    own = tx.operator(operator_id_of(request.uid))
    former = _former_operator(tx, request)
    # A first try may have registered the new uid before the user said what its former one was.
    if former is not None and (own is None or not _has_had_state(tx, own)):
        return former
    if own is None and not request.allow_non_restored_state:
        _refuse_beside_gone(tx, request)
    return own


def gone_for_sinks(tx: JobTransaction, request: RegisterAttempt) -> tuple[str, ...]:
    """Return the uids of gone operators, beside whose output no new sink may write."""
    if request.dag_uids is None and request.allow_non_restored_state:
        return ()  # what is gone only the user knows, and says that nothing is
    return tuple(operator.uid for operator in _gone(tx, request))


def _refuse_beside_gone(tx: JobTransaction, request: RegisterAttempt) -> None:
    with_state = ((operator, transitions.restorable(tx, operator)) for operator in _gone(tx, request))
    found = next(((operator, checkpoints[0]) for operator, checkpoints in with_state if checkpoints), None)
    if found is None:
        return
    gone, latest = found
    where = "this script" if request.dag_uids is None else "any task of the Dag"
    raise IncompatibleCheckpointError(
        f"Expected operator {request.uid!r}, which is new in job {tx.job.name!r}, to join operators that are still in use, found "
        f"operator {gone.uid!r} with checkpoint {latest.checkpoint_id}, whose uid is not that of {where}. If {request.uid!r} is "
        f"its new name, say renamed_uids={{{gone.uid!r}: {request.uid!r}}} or uid={gone.uid!r}; otherwise it would write all "
        f"output again. If {gone.uid!r} is another step, say allow_non_restored_state=True once to start with nothing.",
        uid=request.uid,
        found_uid=gone.uid,
        checkpoint_id=latest.checkpoint_id,
    )


def _former_operator(tx: JobTransaction, request: RegisterAttempt) -> OperatorRecord | None:
    free = (uid for uid in request.former_uids if not _has_other_task(request, uid))
    found = (tx.operator(operator_id_of(uid)) for uid in free)
    return next((operator for operator in found if operator is not None), None)


def _has_had_state(tx: JobTransaction, operator: OperatorRecord) -> bool:
    # In any generation, or a retry after a clear would switch operators. Rows are forgotten, and statistics are lost with the
    # database that a recovery replaces, so either is enough.
    return tx.has_completed(operator.operator_id) or statistics.load(tx, operator.operator_id).has_had_state


def _has_other_task(request: RegisterAttempt, uid: str) -> bool:
    mine = dict(request.owner.airflow).get("task_id")
    others = {each for task, uids in (request.dag_uids or {}).items() if task != mine for each in uids}
    return not others.isdisjoint(task_uids_of(uid))


def _gone(tx: JobTransaction, request: RegisterAttempt) -> list[OperatorRecord]:
    of_dag = (uid for uids in (request.dag_uids or {}).values() for uid in uids)
    present = {*task_uids_of(request.uid), ALIGNED_UID, *request.former_uids, *of_dag}
    return [o for o, newest in tx.operators_besides(present) if newest is None or not _is_in_use(newest, request)]


def _is_in_use(newest: AttemptRecord, request: RegisterAttempt) -> bool:
    mine, theirs = dict(request.owner.airflow), dict(newest.owner.airflow)
    if request.dag_uids is None or "dag_id" not in theirs:
        return False
    if theirs["dag_id"] != mine.get("dag_id"):
        return True
    # The uid of such a task is a template, so it may have this one in another run.
    return request.dag_uids.get(theirs["task_id"]) == ()


@dataclass(frozen=True, slots=True)
class StartDecision:
    """How an attempt starts, and why."""

    goes_on: bool
    """Whether from the newest checkpoint, not from where the state stood before the run."""
    reason: str
    verify_fingerprints: bool = True


def decide_start(previous: AttemptRecord | None, request: RegisterAttempt) -> StartDecision:
    """
    Decide how an attempt starts.

    :param previous: The attempt of the same operator before this one; the newest of its own run, where it was that run
        which took the newest checkpoint.
    :param request: The registration.
    """
    if previous is None:
        return StartDecision(False, "first attempt")
    if _is_rerun_of_old_date(previous, request):
        return StartDecision(False, "a new run under the logical date of an earlier one")
    if not _is_same_run(previous, request):
        return StartDecision(True, "the job's state goes on in a new run")
    if previous.owner.clear_marker != request.owner.clear_marker:
        return _after_clear(previous.status, request)
    return StartDecision(True, f"retry after an attempt that {_ENDED[previous.status]}")


_ENDED = {
    AttemptStatus.RUNNING: "never closed and was probably killed",
    AttemptStatus.FINISHED: "finished",
    AttemptStatus.FAILED: "failed",
    AttemptStatus.FENCED: "was fenced",
}


def _after_clear(status: AttemptStatus, request: RegisterAttempt) -> StartDecision:
    what = _what_happened(status, request)
    if request.on_clear is OnClear.RESTART:
        return StartDecision(False, f"{what}, and on_clear is restart")
    if request.on_clear is OnClear.RESUME:
        return StartDecision(True, f"{what}, and on_clear is resume", verify_fingerprints=False)
    return StartDecision(status is not AttemptStatus.FINISHED, what)


def _what_happened(status: AttemptStatus, request: RegisterAttempt) -> str:
    if request.owner.is_script:
        return f"started again after an attempt that {_ENDED[status]}"
    return "cleared after success" if status is AttemptStatus.FINISHED else "cleared before it finished"


def _is_same_run(previous: AttemptRecord, request: RegisterAttempt) -> bool:
    return previous.owner.run_key == request.owner.run_key


def _is_rerun_of_old_date(previous: AttemptRecord, request: RegisterAttempt) -> bool:
    # A test run gets a new run id each time; there the logical date alone is the run, so that a second call resumes.
    if is_test_job(request.job_name):
        return False
    return _is_same_run(previous, request) and previous.owner.run_id != request.owner.run_id


log = logging.getLogger(__name__)


class RivalError(Exception):
    """
    Another task, or the task's other run, has an attempt of the operator open.

    :param rival: That attempt.
    """

    def __init__(self, rival: AttemptRecord) -> None:
        super().__init__(rival.owner.label)
        self.rival = rival


def register(tx: JobTransaction, request: RegisterAttempt, dead: Sequence[AttemptRecord] = ()) -> AttemptGrant:
    """
    Give the next epoch to an attempt, settle what its predecessors left, and choose what to restore.

    :param dead: Attempts whose tasks are known not to run any more, whatever their rows say.
    :raises StaleAttemptError: if this very attempt was registered before and has been replaced since.
    :raises RunSupersededError: if the state stands at a later run.
    :raises RivalError: if another one's attempt is open; nobody was asked yet whether its task runs.
    :raises NoRestorableCheckpointError: if state is to be restored, existed, and no completed checkpoint is left.
    :raises SnapshotClaimedError: if the savepoint that it is to begin from belongs to another operator.
    :raises IncompatibleCheckpointError: if the operator is new while another one of the job, which has checkpoints, is gone.
    """
    # A driver that spark-submit starts registers once more, and it alone has looked at the storage.
    warning = _skip_ids_on_storage(tx, request)
    known = tx.attempt_by_key(request.attempt_key)
    if known is not None:
        ref = AttemptRef(job_id=known.job_id, operator_id=known.operator_id, epoch=known.epoch)
        return _grant(tx, require_running(tx, ref), request, warning)
    return _grant(tx, _open_attempt(tx, request, dead), request, warning)


def _skip_ids_on_storage(tx: JobTransaction, request: RegisterAttempt) -> str:
    newest, following = request.newest_on_storage, tx.job.next_checkpoint_id
    # The message may come twice; then the first one has moved the ids already.
    if newest == 0 or newest + 1 < following or tx.checkpoint(newest) is not None:
        return ""
    if newest >= following:
        tx.set_next_checkpoint_id(newest + 1)
        log.warning("Job %s: its storage holds checkpoint %s, its rows end before %s", tx.job.name, newest, following)
    return (
        f"The storage of job {tx.job.name!r} holds checkpoint {newest}, which its rows do not know, as after a backup of the "
        f"database was restored. The new checkpoints begin at {newest + 1}, and no checkpoint that the rows do not know is "
        f"deleted. To begin from checkpoint {newest} instead, run the task now in another job with from_savepoint= and that "
        f"checkpoint's directory: what it shares with checkpoints of the rows goes with those."
    )


def _open_attempt(tx: JobTransaction, request: RegisterAttempt, dead: Sequence[AttemptRecord]) -> AttemptRecord:
    operator = operator_of(tx, request) or _new_operator(tx, request)
    operator_id = operator.operator_id
    previous = tx.attempt(operator_id, operator.epoch)
    _refuse_superseded(tx, operator, request)
    _refuse_rival(previous, request, dead)
    replaced = _replaced(tx, operator, request)
    _refuse_rival(replaced, request, dead)
    _fence(tx, operator.operator_id, previous)
    if replaced is not None:
        _fence(tx, replaced.operator_id, replaced)
    start = _decide(tx, operator, previous, request)
    operator = replace(operator, epoch=operator.epoch + 1)
    if not start.goes_on:
        operator = replace(
            operator, generation=operator.generation + 1, first_run=request.owner.run_key, damaged_snapshots=()
        )
    # What an earlier generation wrote is retracted by the sink when it is opened.
    transitions.end_commits(tx, operator_id, lambda c: c.generation < operator.generation)
    tx.save_operator(operator)
    if not start.goes_on and request.restore_from is not None:
        savepoint_restore.propose(tx, operator, request.restore_from)
        start = replace(start, goes_on=True, reason=f"{start.reason}, begun from a savepoint")
    attempt = _new_attempt(tx, operator, request, start)
    tx.save_attempt(attempt)
    return attempt


def _refuse_superseded(tx: JobTransaction, operator: OperatorRecord, request: RegisterAttempt) -> None:
    newest = next(iter(transitions.restorable(tx, operator)), None)
    run = request.owner.run_key
    if newest is None or not run_order.is_earlier(run, newest.run_key):
        return
    raise RunSupersededError(
        f"Expected the state of operator {operator.uid!r} in job {tx.job.name!r} to stand before run {run!r}, found it at the "
        f"later run {newest.run_key!r} (checkpoint {newest.checkpoint_id}); nothing was changed. Either take the later runs "
        f"back, with 'airflow statecheck rewind {tx.job.name} --before {run}', and clear this one and them again; or let this "
        f"run work on a copy of an earlier state, with from_checkpoint='before:{run}'.",
        run_key=run,
        stands_at=newest.run_key,
        checkpoint_id=newest.checkpoint_id,
    )


def _refuse_rival(previous: AttemptRecord | None, request: RegisterAttempt, dead: Sequence[AttemptRecord]) -> None:
    if previous is None or previous.status is not AttemptStatus.RUNNING:
        return
    if any(_is_same_attempt(previous, each) for each in dead):
        return
    theirs, mine = previous.owner, request.owner
    # Of a test that was killed, Airflow says for ever that it runs.
    is_same_run = theirs.run_id == mine.run_id or is_test_job(request.job_name)
    if theirs.logical_task != mine.logical_task or not is_same_run:
        raise RivalError(previous)


def _is_same_attempt(attempt: AttemptRecord, other: AttemptRecord) -> bool:
    # Its owner too: another task may have adopted it since its liveness was checked.
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
    # A pending checkpoint is never fully acknowledged: acknowledging and completing are one transaction.
    transitions.abort_pending(tx, operator_id, CheckpointFailureReason.ATTEMPT_ENDED)
    if previous is not None and previous.status is AttemptStatus.RUNNING:
        tx.save_attempt(replace(previous, status=AttemptStatus.FENCED, ended_at=tx.now))


def _replaced(tx: JobTransaction, operator: OperatorRecord, request: RegisterAttempt) -> AttemptRecord | None:
    # The task may have run under its own uid before it took over the operator of a former one.
    own = tx.operator(operator_id_of(request.uid)) if operator.uid != request.uid else None
    return None if own is None else tx.attempt(own.operator_id, own.epoch)


def _decide(
    tx: JobTransaction, operator: OperatorRecord, previous: AttemptRecord | None, request: RegisterAttempt
) -> StartDecision:
    candidates = transitions.restorable(tx, operator)
    decision = decide_start(_last_of_run(tx, candidates, previous, request), request)
    if not decision.goes_on:
        return _begin_again(tx, operator, candidates, decision, request)
    if candidates:
        return decision
    if previous is not None and previous.generation < operator.generation:
        reason = f"{decision.reason}, but its checkpoints were given up with the end of their run or with their job"
        return StartDecision(False, reason)
    if tx.has_completed(operator.operator_id, operator.generation):
        raise NoRestorableCheckpointError(
            f"Operator {operator.uid!r} of job {tx.job.name!r} is to be restored ({decision.reason}), but none of its "
            f"completed checkpoints is retained any more; clear the task with on_clear='restart' to start over."
        )
    return StartDecision(False, f"{decision.reason}, no checkpoint was completed before")


def _last_of_run(
    tx: JobTransaction,
    candidates: tuple[CheckpointRecord, ...],
    previous: AttemptRecord | None,
    request: RegisterAttempt,
) -> AttemptRecord | None:
    run = request.owner.run_key
    if previous is None or previous.owner.run_key == run or not candidates or candidates[0].run_key != run:
        return previous
    # A later run tried and took no checkpoint; what counts is how the run ended that the state stands at.
    return tx.last_attempt_of_run(previous.operator_id, run) or previous


def _begin_again(
    tx: JobTransaction,
    operator: OperatorRecord,
    candidates: tuple[CheckpointRecord, ...],
    decision: StartDecision,
    request: RegisterAttempt,
) -> StartDecision:
    run = request.owner.run_key
    before = run_order.taken_before(candidates, run)
    if not before and candidates and operator.first_run != run:
        raise NoRestorableCheckpointError(
            f"Run {run!r} of operator {operator.uid!r} in job {tx.job.name!r} is to begin again ({decision.reason}), but no "
            f"checkpoint of the run before it is retained; keep those of more runs with retained_runs, go on from its own "
            f"newest checkpoint with on_clear='resume', or begin from a savepoint in another job."
        )
    if not before:
        return decision
    if all(c.unusable_reason is not None for c in before):
        raise NoRestorableCheckpointError(
            f"Run {run!r} of operator {operator.uid!r} in job {tx.job.name!r} is to begin again ({decision.reason}), but what "
            f"the run before it left could not be read: {before[0].unusable_reason}. Bring it back, or go on from the run's own "
            f"newest checkpoint with on_clear='resume'.",
            checkpoint_ids=tuple(c.checkpoint_id for c in before),
        )
    transitions.take_back(tx, candidates[: len(candidates) - len(before)])
    reason = f"{decision.reason}, begun again at checkpoint {before[0].checkpoint_id} of run {before[0].run_key!r}"
    return replace(decision, goes_on=True, reason=reason)


def _new_attempt(
    tx: JobTransaction, operator: OperatorRecord, request: RegisterAttempt, start: StartDecision
) -> AttemptRecord:
    candidates = _candidates(tx, operator) if start.goes_on else ()
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
    )


def _candidates(tx: JobTransaction, of: OperatorRecord | AttemptRecord) -> tuple[CheckpointRecord, ...]:
    return savepoint_restore.proposed(tx, of) or transitions.restorable(tx, of)


def _grant(tx: JobTransaction, attempt: AttemptRecord, request: RegisterAttempt, warning: str) -> AttemptGrant:
    is_restore = attempt.restored_from is not None
    operator = tx.operator(attempt.operator_id)
    return AttemptGrant(
        attempt=AttemptRef(job_id=attempt.job_id, operator_id=attempt.operator_id, epoch=attempt.epoch),
        generation=attempt.generation,
        is_restore=is_restore,
        verify_fingerprints=request.on_clear is not OnClear.RESUME,
        start_reason=attempt.start_reason,
        candidates=_candidates(tx, attempt) if is_restore else (),
        effects=transitions.effects_of(tx, attempt.operator_id),
        warning=warning,
        uid=request.uid if operator is None else operator.uid,
        gone_uids=gone_for_sinks(tx, request),
        damaged_snapshots=operator.damaged_snapshots if operator else (),
        storage_bases=tx.storage_bases(attempt.operator_id),
    )
