"""
Look-up of the operator of a registration, also by a former uid, and of operators that are gone.

State and output belong to the uid of an operator. A stage with a changed uid would start empty and write all output a second
time. Registration therefore rejects a new operator while another operator of the job, which has checkpoints, is gone: both
may be the same stage. An operator is gone if no task of the registering Dag version has its uid and no other Dag ran it last.
A script has no Dag, so all other operators of its job are gone.
"""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint import statistics, transitions
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID, operator_id_of, task_uids_of
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError


def operator_of(tx: JobTransaction, request: RegisterAttempt) -> OperatorRecord | None:
    """
    Return the operator with the uid of a registration, or the operator that it takes over from a former uid.

    An operator that is taken over keeps its uid, epoch, checkpoints and sink ledgers. An operator that has completed a
    checkpoint is never replaced by one with a former uid.

    :return: The operator, or ``None`` for a new one.
    :raises IncompatibleCheckpointError: if the operator is new and another operator, which has checkpoints, is gone.
    """
    own = tx.operator(operator_id_of(request.uid))
    former = _former_operator(tx, request)
    # An earlier try may have registered the new uid before the user configured the former one.
    if former is not None and (own is None or not _has_had_state(tx, own)):
        return former
    if own is None and not request.allow_non_restored_state:
        _require_no_gone_state(tx, request)
    return own


def _former_operator(tx: JobTransaction, request: RegisterAttempt) -> OperatorRecord | None:
    free = (uid for uid in request.former_uids if not _has_other_task(request, uid))
    operators = (tx.operator(operator_id_of(uid)) for uid in free)
    return next((operator for operator in operators if operator is not None), None)


def _has_had_state(tx: JobTransaction, operator: OperatorRecord) -> bool:
    # Counts all generations, so that a retry after a clear does not switch operators. Either source is enough: maintenance
    # removes old rows, and a recovery of the database loses the statistics.
    return tx.has_completed(operator.operator_id) or statistics.load(tx, operator.operator_id).has_had_state


def _has_other_task(request: RegisterAttempt, uid: str) -> bool:
    mine = dict(request.owner.airflow).get("task_id")
    others = {each for task, uids in (request.dag_uids or {}).items() if task != mine for each in uids}
    return not others.isdisjoint(task_uids_of(uid))


def _require_no_gone_state(tx: JobTransaction, request: RegisterAttempt) -> None:
    with_state = ((operator, transitions.restorable(tx, operator)) for operator in _gone_operators(tx, request))
    found = next(((operator, checkpoints[0]) for operator, checkpoints in with_state if checkpoints), None)
    if found is None:
        return
    gone, latest = found
    where = "this script" if request.dag_uids is None else "any task of the Dag"
    raise IncompatibleCheckpointError(
        f"Expected all operators of job {tx.job.name!r} to be in use when operator {request.uid!r} is added, found operator "
        f"{gone.uid!r} with checkpoint {latest.checkpoint_id}, whose uid is not that of {where}. If {request.uid!r} is its new "
        f"name, set renamed_uids={{{gone.uid!r}: {request.uid!r}}} or uid={gone.uid!r}; otherwise all output would be written "
        f"again. If {gone.uid!r} is another step, set allow_non_restored_state=True once to start empty.",
        uid=request.uid,
        found_uid=gone.uid,
        checkpoint_id=latest.checkpoint_id,
    )


def gone_uids(tx: JobTransaction, request: RegisterAttempt) -> tuple[str, ...]:
    """Return the uids of the operators of the job that are gone."""
    if request.dag_uids is None and request.allow_non_restored_state:
        return ()  # without a Dag, allow_non_restored_state declares that no operator is gone
    return tuple(operator.uid for operator in _gone_operators(tx, request))


def _gone_operators(tx: JobTransaction, request: RegisterAttempt) -> list[OperatorRecord]:
    of_dag = (uid for uids in (request.dag_uids or {}).values() for uid in uids)
    present = {*task_uids_of(request.uid), ALIGNED_UID, *request.former_uids, *of_dag}
    return [o for o, newest in tx.operators_besides(present) if newest is None or not _is_in_use(newest, request)]


def _is_in_use(newest: AttemptRecord, request: RegisterAttempt) -> bool:
    mine, theirs = dict(request.owner.airflow), dict(newest.owner.airflow)
    if request.dag_uids is None or "dag_id" not in theirs:
        return False
    if theirs["dag_id"] != mine.get("dag_id"):
        return True
    # An empty tuple means that the uid is a template, which may render to this uid in another run.
    return request.dag_uids.get(theirs["task_id"]) == ()
