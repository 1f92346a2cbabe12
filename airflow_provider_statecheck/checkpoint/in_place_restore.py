"""
Restore of an operator in place, from a savepoint of its job.

The restore is an open action of a user and a mark in the row of the operator. Each registration of the operator takes
it, whatever the attempt would restore otherwise, until an attempt completes a checkpoint. Each of these attempts opens
a new generation, which hides the checkpoints of before. They are retained until then, and a restore that is undone
returns the operator to them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptRecord,
    CheckpointStatus,
    InPlaceRestore,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, ConcurrentAttemptError

log = logging.getLogger(__name__)


def begin(tx: JobTransaction, operator: OperatorRecord, action: ActionRecord) -> OperatorRecord:
    """
    Let the attempts of an operator take a restore until one of them completes a checkpoint.

    :param operator: Operator without a choice and without another restore in place.
    """
    tx.save_action(action)
    operator = replace(operator, in_place_restore=action.request_key)
    tx.save_operator(operator)
    return operator


def waiting(tx: JobTransaction, operator: OperatorRecord) -> InPlaceRestore | None:
    """Return the restore that the next attempt of an operator takes, or ``None``."""
    action = _action(tx, operator)
    return None if action is None else action.restore


def waiting_in(view: JobView, operator: OperatorRecord) -> InPlaceRestore | None:
    """Return the restore that the next attempt of an operator takes, or ``None``."""
    key = operator.in_place_restore
    return next((a.restore for a in view.actions if a.request_key == key), None)


def require_none_waiting(view: JobView, operators: Iterable[OperatorRecord]) -> None:
    """
    Require operators whose checkpoints are the state that their next attempts restore.

    :raises CheckpointDeclinedError: if one of them has not yet restored what a restore in place has requested.
    """
    waiting = next((operator.uid for operator in operators if operator.in_place_restore is not None), None)
    if waiting is not None:
        raise CheckpointDeclinedError(
            f"Expected job {view.job.name!r} to have no restore in place to carry out, found that stage {waiting!r} "
            "has completed no checkpoint since; run its task first, or withdraw the restore on the page of the job."
        )


def complete(tx: JobTransaction, operator: OperatorRecord, attempt: AttemptRecord) -> None:
    """End the restore that an attempt of an operator has taken, with the completion of its first checkpoint."""
    action = _action(tx, operator)
    if action is not None and action.restore is not None:
        message = _outcome(attempt, action.restore)
        transitions.end_action(tx, action, RequestStatus.COMPLETED, message)
        log.info("Job %s operator %s: %s", tx.job.name, operator.uid, message)
    tx.save_operator(replace(operator, in_place_restore=None))


def close(tx: JobTransaction, operator: OperatorRecord, reason: str) -> OperatorRecord:
    """
    End the restore of an operator, if there is one, and keep what its attempts have restored.

    :param reason: Why it ended, for display.
    """
    if operator.in_place_restore is None:
        return operator
    action = _action(tx, operator)
    if action is not None:
        transitions.end_action(tx, action, RequestStatus.FAILED, reason)
    operator = replace(operator, in_place_restore=None)
    tx.save_operator(operator)
    return operator


def undo(tx: JobTransaction, operator: OperatorRecord, reason: str) -> OperatorRecord:
    """
    End the restore of an operator, if there is one, and return the operator to its checkpoints of before.

    No attempt that has taken the restore may run.

    :param reason: Why it ended, for display.
    """
    restore = waiting(tx, operator)
    operator = close(tx, operator, reason)
    if restore is None or restore.earlier_generation == operator.generation:
        return operator
    earlier = before(operator, restore)
    _end_adoptions(tx, earlier)
    # Without a checkpoint, the next attempt must start without state instead of failing to restore.
    operator = earlier if transitions.restorable(tx, earlier) else operator
    tx.save_operator(operator)
    return operator


def before(operator: OperatorRecord, restore: InPlaceRestore) -> OperatorRecord:
    """Return an operator with the checkpoints that it had before a restore."""
    return replace(operator, generation=restore.earlier_generation, first_run=restore.earlier_first_run)


def with_generation(view: JobView, operator: OperatorRecord, generation: int) -> OperatorRecord:
    """Return an operator as the choice of a checkpoint finds it: before the restore that the choice ends, if any."""
    restore = waiting_in(view, operator)
    return before(operator, restore) if restore is not None and restore.earlier_generation == generation else operator


def require_undoable(tx: JobTransaction, operator: OperatorRecord) -> None:
    """
    Require that no attempt that has taken the restore of an operator is running.

    :raises ConcurrentAttemptError: if one is.
    """
    attempt = None if operator.in_place_restore is None else transitions.open_attempt(tx, operator)
    if attempt is None:
        return
    restore = waiting(tx, operator)
    if restore is not None and attempt.generation > restore.earlier_generation:
        raise ConcurrentAttemptError(
            f"Expected no running attempt that restores operator {operator.uid!r} of job {tx.job.name!r} from the "
            f"savepoint {restore.pointer}, found {attempt.owner.label}; wait until its first checkpoint is complete, "
            "or stop it.",
            holder=attempt.owner.label,
        )


def _action(tx: JobTransaction, operator: OperatorRecord) -> ActionRecord | None:
    # The rows of actions are removed with their job, the row of the operator is not.
    return None if operator.in_place_restore is None else tx.action(operator.in_place_restore)


def _outcome(attempt: AttemptRecord, restore: InPlaceRestore) -> str:
    if restore.source is None:
        return f"attempt {attempt.epoch} started without state, which {restore.pointer} does not contain"
    return f"attempt {attempt.epoch} restored its member of {restore.pointer}"


def _end_adoptions(tx: JobTransaction, operator: OperatorRecord) -> None:
    # The generation is used again. A completed row would prove that it has had a checkpoint.
    for checkpoint in tx.open_checkpoints(operator.operator_id):
        if checkpoint.generation > operator.generation and checkpoint.is_restorable:
            undone = replace(checkpoint, status=CheckpointStatus.ABORTED, completed_at=None, ended_at=tx.now)
            tx.update_checkpoint(undone, expected=CheckpointStatus.COMPLETED)
