"""
Look-up of the operator of a registration, also by a former uid, and of operators that are gone.

State and output belong to the uid of an operator. A stage with a changed uid would start empty and write all output a
second time. Registration therefore rejects a new operator while another operator of the job, which has checkpoints, is
gone: both may be the same stage. Whether an operator is gone is decided by the current tasks of the Dag that ran it
last: those of the registering Dag are in the request, and the coordinator asks for those of other Dags. A script has no
Dag, so all other operators of its job are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint import statistics, transitions
from airflow_provider_statecheck.checkpoint.declared_uids import DagTasks
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID, is_test_job, operator_id_of, task_uids_of
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError

KnownDags = Mapping[str, DagTasks | None]
"""Tasks of other Dags by Dag id; ``None`` for a Dag whose tasks cannot be known."""


class UnaskedDagsError(Exception):
    """Operators of the job were last run by Dags whose tasks have not been asked for."""

    def __init__(self, dag_ids: Iterable[str]) -> None:
        self.dag_ids = tuple(sorted(dag_ids))
        super().__init__(", ".join(self.dag_ids))


def operator_of(tx: JobTransaction, request: RegisterAttempt, dags: KnownDags) -> OperatorRecord | None:
    """
    Return the operator with the uid of a registration, or the operator that it takes over from a former uid.

    An operator that is taken over keeps its uid, epoch, checkpoints and sink ledgers. An operator that has completed a
    checkpoint is never replaced by one with a former uid.

    :param dags: Tasks of the other Dags that ran operators of the job.
    :return: The operator, or ``None`` for a new one.
    :raises IncompatibleCheckpointError: if the operator is new and another operator, which has checkpoints, is gone, or
        if ``renamed_uids`` gives one operator to two tasks.
    :raises UnaskedDagsError: if ``dags`` lacks a Dag.
    """
    own = tx.operator(operator_id_of(request.uid))
    # An earlier try may have registered the new uid before the user configured the former one.
    if own is not None and _has_had_state(tx, own):
        _require_one_claim(tx, request, own)
        return own
    former = _former_operator(tx, request)
    if former is not None:
        return former
    if own is None and not request.allow_non_restored_state:
        _require_no_gone_state(tx, request, dags)
    return own


def _former_operator(tx: JobTransaction, request: RegisterAttempt) -> OperatorRecord | None:
    known = [o for o in (tx.operator(operator_id_of(uid)) for uid in request.former_uids) if o is not None]
    free = next((o for o in known if not _other_tasks(request, o.uid)), None)
    # A savepoint gives the state of an operator that remains in use to a second one.
    if free is None and request.restore_from is None and not request.allow_non_restored_state:
        _require_none_with_state(tx, request, known)
    return free


def _has_had_state(tx: JobTransaction, operator: OperatorRecord) -> bool:
    # Counts all generations, so that a retry after a clear does not switch operators. Either source is enough:
    # maintenance removes old rows, and a recovery of the database loses the statistics.
    return tx.has_completed(operator.operator_id) or statistics.load(tx, operator.operator_id).has_had_state


def _other_tasks(request: RegisterAttempt, uid: str, *, only_former: bool = False) -> list[str]:
    mine = None if request.owner.task is None else request.owner.task.task_id
    possible = set(task_uids_of(uid))
    declared = ((task, uids[1:] if only_former else uids) for task, uids in (request.dag_uids or {}).items())
    return [task for task, uids in declared if task != mine and not possible.isdisjoint(uids)]


def _require_none_with_state(tx: JobTransaction, request: RegisterAttempt, former: Iterable[OperatorRecord]) -> None:
    for operator in former:
        latest = next(iter(transitions.restorable(tx, operator)), None)
        if latest is not None:
            raise IncompatibleCheckpointError(
                f"Expected operator {operator.uid!r} of job {tx.job.name!r} to have no task but that of "
                f"{request.uid!r}, whose renamed_uids names it, found task {_other_tasks(request, operator.uid)[0]!r} "
                f"with this uid, now or in its own renamed_uids; {request.uid!r} would start empty and write all "
                "output again. Let one task take the operator over, and set allow_non_restored_state=True once for "
                "the other one to start empty.",
                uid=request.uid,
                found_uid=operator.uid,
                checkpoint_id=latest.checkpoint_id,
            )


def _require_one_claim(tx: JobTransaction, request: RegisterAttempt, own: OperatorRecord) -> None:
    claimants = _other_tasks(request, own.uid, only_former=True)
    if not claimants:
        return
    last = tx.attempt(own.operator_id, own.epoch)
    mine, theirs = request.owner.task, None if last is None else last.owner.task
    is_taken = mine is not None and theirs is not None and mine.dag_id == theirs.dag_id and theirs.task_id in claimants
    former = (tx.operator(operator_id_of(uid)) for uid in request.former_uids)
    if is_taken or any(o is not None and transitions.restorable(tx, o) for o in former):
        task_id = None if mine is None else mine.task_id
        raise IncompatibleCheckpointError(
            f"Expected operator {own.uid!r} of job {tx.job.name!r} to be that of one task, found it at {task_id!r}, "
            f"which has this uid, and in the renamed_uids of {claimants[0]!r}; one of them would continue the state of "
            f"the other. Set uid= of each task to the uid whose state it has, or give {task_id!r} a new one.",
            uid=request.uid,
            found_uid=own.uid,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherOperators:
    """Operators of a job that no task of the registering Dag has."""

    gone: tuple[tuple[OperatorRecord, str], ...]
    """Operators that are gone, with the reason as a relative clause."""
    in_other_dags: tuple[OperatorRecord, ...]
    """Operators that another Dag still has."""


def other_operators(tx: JobTransaction, request: RegisterAttempt, dags: KnownDags) -> OtherOperators:
    """
    Return the operators of the job that no task of the registering Dag has.

    :param dags: Tasks of the other Dags that ran operators of the job.
    :raises UnaskedDagsError: if ``dags`` lacks a Dag.
    """
    of_dag = (uid for uids in (request.dag_uids or {}).values() for uid in uids)
    others = tx.operators_besides({*task_uids_of(request.uid), ALIGNED_UID, *request.former_uids, *of_dag})
    gone = _gone(tx, request, others, dags)
    in_use = (o for o, newest in others if newest is not None and _is_elsewhere(request, newest))
    known = {o.uid for o, _ in gone}
    return OtherOperators(gone=gone, in_other_dags=tuple(o for o in in_use if o.uid not in known))


def _require_no_gone_state(tx: JobTransaction, request: RegisterAttempt, dags: KnownDags) -> None:
    possible = (*other_operators(tx, request, dags).gone, *_gone(tx, request, _of_other_shape(tx, request), dags))
    found = ((operator, reason, transitions.restorable(tx, operator)) for operator, reason in possible)
    for gone, reason, checkpoints in found:
        if checkpoints:
            raise _gone_state_error(tx, request, gone, reason, checkpoints[0].checkpoint_id)


def _gone_state_error(
    tx: JobTransaction, request: RegisterAttempt, gone: OperatorRecord, reason: str, checkpoint_id: int
) -> IncompatibleCheckpointError:
    # The uid of a task cannot contain the key of an instance.
    or_uid = "" if "[" in f"{gone.uid}{request.uid}" else f" or uid={gone.uid!r}"
    return IncompatibleCheckpointError(
        f"Expected all operators of job {tx.job.name!r} to be in use when operator {request.uid!r} is added, found "
        f"operator {gone.uid!r} with checkpoint {checkpoint_id}, {reason}. If {request.uid!r} is its new name, set "
        f"renamed_uids={{{gone.uid!r}: {request.uid!r}}}{or_uid}; otherwise all output would be written again. If "
        f"{gone.uid!r} is another step, set allow_non_restored_state=True once to start empty.",
        uid=request.uid,
        found_uid=gone.uid,
        checkpoint_id=checkpoint_id,
    )


def foreign_output(
    tx: JobTransaction, request: RegisterAttempt, operator: OperatorRecord | None, others: OtherOperators
) -> tuple[str, ...]:
    """
    Return the uids of the operators whose output a sink must not join if it is new in a target.

    These are the operators that are gone and, for an operator that has no state yet, those of other Dags: a copy of a
    Dag under another id writes the same rows. ``allow_non_restored_state`` declares that it is no copy.

    :param operator: Operator of the attempt.
    """
    if request.dag_uids is None and request.allow_non_restored_state:
        return ()  # without a Dag, allow_non_restored_state declares that no operator is gone
    in_other_dags = others.in_other_dags if _starts_empty(tx, request, operator, others) else ()
    return tuple(o.uid for o in (*(o for o, _ in others.gone), *in_other_dags))


def shared_state_warning(
    tx: JobTransaction, request: RegisterAttempt, attempt: AttemptRecord, others: OtherOperators, dags: KnownDags
) -> str:
    """
    Return a warning if a task of another Dag may be the same stage, or has the same state; empty without one.

    :param attempt: Attempt of the registration.
    :raises UnaskedDagsError: if ``dags`` lacks a Dag.
    """
    operator, earlier = tx.operator(attempt.operator_id), tx.attempt(attempt.operator_id, attempt.epoch - 1)
    if operator is None or request.dag_uids is None:
        return ""
    if earlier is not None and _is_elsewhere(request, earlier) and not _reason(tx, request, operator, earlier, dags):
        return (
            f"Operator {operator.uid!r} of job {tx.job.name!r} is also that of a task of Dag {earlier.owner.dag_id!r}, "
            "and both continue one state: what one has read, the other does not read. Give one of them another uid= "
            "or job= if they are different stages."
        )
    with_state = (o for o in others.in_other_dags if transitions.restorable(tx, o))
    other = next(with_state, None) if _starts_empty(tx, request, operator, others) else None
    if other is None:
        return ""
    return (
        f"Operator {operator.uid!r} starts empty in job {tx.job.name!r}, where another Dag has operator {other.uid!r}. "
        f"If it is the same stage under a new name, set renamed_uids={{{other.uid!r}: {operator.uid!r}}}, or all "
        "output is written again."
    )


def _starts_empty(
    tx: JobTransaction, request: RegisterAttempt, operator: OperatorRecord | None, others: OtherOperators
) -> bool:
    if operator is None or not others.in_other_dags or request.allow_non_restored_state:
        return False
    return not _has_had_state(tx, operator)


def _gone(
    tx: JobTransaction,
    request: RegisterAttempt,
    others: Iterable[tuple[OperatorRecord, AttemptRecord | None]],
    dags: KnownDags,
) -> tuple[tuple[OperatorRecord, str], ...]:
    found = list(others)
    _require_asked((newest for _, newest in found if newest is not None), request, dags)
    reasons = ((o, _reason(tx, request, o, newest, dags)) for o, newest in found)
    return tuple((o, reason) for o, reason in reasons if reason)


def _of_other_shape(tx: JobTransaction, request: RegisterAttempt) -> Iterator[tuple[OperatorRecord, AttemptRecord]]:
    """Yield the operators of the task from before it was mapped, or from when it was mapped."""
    key = _key_of(request.owner)
    if key is None:
        return
    base = request.uid.removesuffix(key)
    found = [tx.operator(operator_id_of(base))] if key else _instances(tx, base)
    for operator in found:
        newest = None if operator is None else tx.attempt(operator.operator_id, operator.epoch)
        if operator is None or newest is None or operator.uid in request.former_uids:
            continue
        other_key = _key_of(newest.owner)
        if other_key is not None and bool(other_key) is not bool(key):
            yield operator, newest


def _instances(tx: JobTransaction, uid: str) -> list[OperatorRecord | None]:
    return [o for o, _ in tx.operators_besides(frozenset()) if o.uid.startswith(f"{uid}[")]


def _key_of(owner: AttemptOwner) -> str | None:
    """Return the map key of a task in brackets, empty without one; ``None`` outside of Airflow."""
    task = None if owner.task is None else f"{owner.task.dag_id}/{owner.task.task_id}"
    return None if task is None or not owner.logical_task.startswith(task) else owner.logical_task.removeprefix(task)


def _require_asked(attempts: Iterable[AttemptRecord], request: RegisterAttempt, dags: KnownDags) -> None:
    asked = {each.owner.dag_id or "" for each in attempts if _is_elsewhere(request, each)}
    if request.dag_uids is not None and not asked <= dags.keys():
        raise UnaskedDagsError(asked - dags.keys())


def _is_elsewhere(request: RegisterAttempt, newest: AttemptRecord) -> bool:
    return newest.owner.dag_id not in (None, request.owner.dag_id)


def _reason(
    tx: JobTransaction,
    request: RegisterAttempt,
    operator: OperatorRecord,
    newest: AttemptRecord | None,
    dags: KnownDags,
) -> str:
    """Return why an operator counts as gone, as a relative clause; empty if it is in use."""
    if request.dag_uids is None:
        return "whose uid is not that of this script"
    if newest is None or not _is_elsewhere(request, newest):
        is_template = newest is not None and _is_of_template(operator, newest, request.dag_uids)
        return "" if is_template else "whose uid is not that of any task of the Dag"
    _require_asked([newest], request, dags)
    return _reason_elsewhere(operator, newest, dags[newest.owner.dag_id or ""], ignores_pause=is_test_job(tx.job.name))


def _reason_elsewhere(
    operator: OperatorRecord, newest: AttemptRecord, tasks: DagTasks | None, *, ignores_pause: bool
) -> str:
    last = f"which Dag {newest.owner.dag_id!r} ran last"
    if tasks is None:
        return f"{last}, whose current tasks cannot be looked up from here"
    if not tasks.exists:
        return f"{last}, which no longer exists"
    declared = {uid for uids in tasks.uids.values() for uid in uids}
    if declared.isdisjoint(task_uids_of(operator.uid)) and not _is_of_template(operator, newest, tasks.uids):
        return f"{last}, and none of its tasks has this uid in this job any more"
    # Airflow may create a Dag paused, and dag.test() runs it anyway.
    return f"{last}, which is paused" if tasks.is_paused and not ignores_pause else ""


def _is_of_template(operator: OperatorRecord, newest: AttemptRecord, uids: Mapping[str, tuple[str, ...]]) -> bool:
    # An empty tuple means that the uid is a template, which may render to this uid in another run. The id of the task
    # was its uid before it had a template.
    task_id = "" if newest.owner.task is None else newest.owner.task.task_id
    return uids.get(task_id) == () and task_id not in task_uids_of(operator.uid)
