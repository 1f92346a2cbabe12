"""
Which operator of a job a registration means, and which operators of the job are gone.

State and output belong to the uid of an operator. A stage whose uid changed would start with nothing, read its source again
and write all output a second time, beside what it wrote under the old uid. So a new operator is refused while another one of
the job is gone: it may be the same stage under another name.

An operator is gone if no task of the registering Dag version has its uid and no other Dag ran it last. A script knows of no
Dag; for a script every other operator of the job is gone.
"""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_UID
from airflow_provider_statecheck.checkpoint.ids import operator_id_of, task_uids_of
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.statistics import recording
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError


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
    return tx.has_completed(operator.operator_id) or recording.load(tx, operator.operator_id).has_had_state


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
