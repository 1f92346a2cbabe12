"""
Where an attempt starts: by the attempt before it, or by the choice of a user.

A user chooses a checkpoint in place of the newest one, or a restore in place from a savepoint of the job. Both are an
open action of the user and a mark in the row of the operator.

Retention keeps a chosen checkpoint. The next registration of the operator takes the choice in the transaction that
grants its attempt: it rolls back the newer checkpoints, ends the action and clears the mark. A registration that fails
changes nothing, and its repetition finds the same choice.

Each registration of the operator takes a restore in place, whatever the attempt would restore otherwise, until an
attempt completes a checkpoint. Each of these attempts opens a new generation, which hides the checkpoints of before.
They are retained until then, and a restore that is undone returns the operator to them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.fencing import is_of_new_run, is_of_same_try
from airflow_provider_statecheck.checkpoint.ids import is_test_job
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.properties import RestoreSource
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    InPlaceRestore,
    JobAction,
    OnClear,
    OperatorRecord,
    RequestStatus,
    TaskState,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    ConcurrentAttemptError,
    NoRestorableCheckpointError,
)


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Start of an attempt and its reason."""

    resumes: bool
    """Whether the attempt restores the newest checkpoint; otherwise its run restarts."""
    reason: str
    is_chosen: bool = False
    """Whether a user chose the checkpoint to restore."""
    source: RestoreSource | None = None
    """Checkpoint or savepoint that a user restores in place of the one that the registration names."""
    first_run: str | None = None
    """Run that started its generation; ``None`` if the run of the attempt starts a new one."""


def decide_start(previous: AttemptRecord | None, request: RegisterAttempt) -> StartDecision:
    """
    Decide by the previous attempt how an attempt starts.

    :param previous: Previous attempt of the operator, or the last one of the same run if that run took the newest
        checkpoint.
    """
    if previous is None:
        return StartDecision(False, "first attempt")
    if not _is_same_run(previous, request):
        return StartDecision(True, "a new run continues the state of the job")
    # Each test run gets a new run id. The logical date identifies the run there, and a second call resumes.
    if previous.owner.run_id != request.owner.run_id and not is_test_job(request.job_name):
        return _after_run_of_same_data(previous, request)
    if is_of_new_run(request.owner, previous.owner) and not is_test_job(request.job_name):
        return StartDecision(False, "a new run with the id of a deleted run")
    # The clear of another task of the run changes the marker, too.
    if is_of_same_try(request.owner, previous.owner) and not is_test_job(request.job_name):
        return StartDecision(True, f"the task continues its try, after an attempt that {_ENDED[previous.status]}")
    if previous.owner.clear_marker != request.owner.clear_marker:
        return _after_clear(previous, request)
    return StartDecision(True, f"retry after an attempt that {_ENDED[previous.status]}")


_ENDED = {
    AttemptStatus.RUNNING: "never closed and was probably killed",
    AttemptStatus.FINISHED: "finished",
    AttemptStatus.FAILED: "failed",
    AttemptStatus.FENCED: "was replaced",
}


def _after_run_of_same_data(previous: AttemptRecord, request: RegisterAttempt) -> StartDecision:
    if not request.owner.is_of_partition:
        return StartDecision(False, "a new run with the logical date of an earlier run")
    reason = f"a new run of the partition of a run whose attempt {_ENDED[previous.status]}"
    if request.on_clear is OnClear.RESTART:
        return StartDecision(False, f"{reason}, and on_clear is restart")
    return StartDecision(previous.status is not AttemptStatus.FINISHED, reason)


def _after_clear(previous: AttemptRecord, request: RegisterAttempt) -> StartDecision:
    status, reason = previous.status, _clear_reason(previous.status, request)
    is_marked = previous.owner.task_state is not TaskState.UNKNOWN
    # The user who clears a task knows why, and the settings of the task do not.
    if is_marked and request.owner.task_state is TaskState.DISCARDED:
        return StartDecision(False, f"{reason}, and its task state was not kept")
    if request.on_clear is OnClear.RESTART:
        return StartDecision(False, f"{reason}, and on_clear is restart")
    if request.on_clear is OnClear.RESUME:
        return StartDecision(True, f"{reason}, and on_clear is resume")
    if is_marked and request.owner.task_state is TaskState.KEPT:
        return StartDecision(True, f"{reason}, and its task state was kept")
    return StartDecision(status is not AttemptStatus.FINISHED, reason)


def _clear_reason(status: AttemptStatus, request: RegisterAttempt) -> str:
    if request.owner.is_script:
        return f"started again after an attempt that {_ENDED[status]}"
    return "cleared after success" if status is AttemptStatus.FINISHED else "cleared before it finished"


def _is_same_run(previous: AttemptRecord, request: RegisterAttempt) -> bool:
    return previous.owner.run_key == request.owner.run_key


log = logging.getLogger(__name__)


def newer_checkpoints(
    operator: OperatorRecord, checkpoints: Iterable[CheckpointRecord], checkpoint_id: int
) -> tuple[CheckpointRecord, ...]:
    """
    Return the checkpoints that a restore of a chosen one rolls back, newest first.

    :param checkpoints: Checkpoints of the operator, oldest first.
    :raises NoRestorableCheckpointError: if the chosen checkpoint is not retained, or cannot be read.
    """
    rows = {c.checkpoint_id: c for c in checkpoints}
    chosen = rows.get(checkpoint_id)
    if chosen is None or not _is_candidate(operator, chosen) or chosen.unusable_reason is not None:
        raise _not_restorable(operator, checkpoint_id, chosen)
    return tuple(c for i, c in reversed(rows.items()) if i > checkpoint_id and _is_candidate(operator, c))


def choose(tx: JobTransaction, operator: OperatorRecord, choice: ActionRecord) -> None:
    """
    Let the next attempt of an operator restore the checkpoint of an action. An earlier choice or restore in place ends.

    :raises NoRestorableCheckpointError: if the checkpoint is not retained, or cannot be read.
    :raises ConcurrentAttemptError: if the checkpoint is from before a restore in place that a running attempt has
        taken.
    """
    reason = f"replaced by the choice of checkpoint {choice.checkpoint_id}"
    chosen = tx.checkpoint(choice.checkpoint_id or 0)
    if chosen is not None and chosen.generation == operator.generation:
        operator = close_in_place(tx, operator, reason)
    require_undoable(tx, operator)
    operator = withdraw(tx, operator, reason)
    _newer(tx, operator, choice)
    tx.save_action(choice)
    tx.save_operator(replace(operator, next_restore=choice.checkpoint_id))


def withdraw(tx: JobTransaction, operator: OperatorRecord, reason: str) -> OperatorRecord:
    """
    End the choice or the restore in place of an operator, if there is one.

    The next attempt then restores the newest checkpoint; after a restore in place, that of before it.

    :param reason: Why it ended, for display.
    :return: The operator without a choice.
    """
    operator = undo_in_place(tx, operator, reason)
    if operator.next_restore is None:
        return operator
    choice = _open_choice(tx, operator)
    if choice is not None:
        transitions.end_action(tx, choice, RequestStatus.FAILED, reason)
    operator = replace(operator, next_restore=None)
    tx.save_operator(operator)
    return operator


def roll_back_to_choice(tx: JobTransaction, operator: OperatorRecord) -> ActionRecord | None:
    """
    Roll back the checkpoints that are newer than the chosen one.

    :return: The choice, which the caller passes to :func:`take`; ``None`` if there is none.
    :raises NoRestorableCheckpointError: if the chosen checkpoint is not retained any more, or cannot be read.
    """
    choice = None if operator.next_restore is None else _open_choice(tx, operator)
    if choice is not None:
        transitions.roll_back_runs(tx, operator, _newer(tx, operator, choice))
    return choice


def take(tx: JobTransaction, operator: OperatorRecord, choice: ActionRecord) -> OperatorRecord:
    """
    End a choice as carried out by the new attempt of an operator.

    :param operator: Operator with the epoch of the attempt, which the caller saves.
    """
    message = f"attempt {operator.epoch} restores checkpoint {choice.checkpoint_id}"
    transitions.end_action(tx, choice, RequestStatus.COMPLETED, message)
    log.info("Job %s operator %s: %s, chosen by %s", tx.job.name, operator.uid, message, choice.requested_by)
    return replace(operator, next_restore=None)


def _newer(tx: JobTransaction, operator: OperatorRecord, choice: ActionRecord) -> tuple[CheckpointRecord, ...]:
    return newer_checkpoints(operator, tx.open_checkpoints(operator.operator_id), choice.checkpoint_id or 0)


def _open_choice(tx: JobTransaction, operator: OperatorRecord) -> ActionRecord | None:
    choices = (a for a in tx.open_actions(operator.operator_id) if a.action is JobAction.RESTORE and a.restore is None)
    return next(choices, None)


def _is_candidate(operator: OperatorRecord, checkpoint: CheckpointRecord) -> bool:
    return checkpoint.is_restorable and checkpoint.generation == operator.generation


def _not_restorable(
    operator: OperatorRecord, checkpoint_id: int, found: CheckpointRecord | None
) -> NoRestorableCheckpointError:
    return NoRestorableCheckpointError(
        f"Expected checkpoint {checkpoint_id}, chosen for the next attempt of operator {operator.uid!r}, to be one "
        f"that it can restore, found {_state_of(operator, found)}; withdraw the choice or choose another checkpoint on "
        "the page of the job.",
        checkpoint_ids=(checkpoint_id,),
    )


def _state_of(operator: OperatorRecord, found: CheckpointRecord | None) -> str:
    if found is None:
        return "none"
    if found.status is not CheckpointStatus.COMPLETED:
        return f"a checkpoint that is {found.status.value}"
    if found.generation != operator.generation:
        return "one from before a fresh start"
    return f"one that could not be read: {found.unusable_reason}" if found.unusable_reason else "a savepoint"


def begin_in_place(tx: JobTransaction, operator: OperatorRecord, action: ActionRecord) -> OperatorRecord:
    """
    Let the attempts of an operator take a restore until one of them completes a checkpoint.

    :param operator: Operator without a choice and without another restore in place.
    """
    tx.save_action(action)
    operator = replace(operator, in_place_restore=action.request_key)
    tx.save_operator(operator)
    return operator


def waiting_restore(tx: JobTransaction, operator: OperatorRecord) -> InPlaceRestore | None:
    """Return the restore that the next attempt of an operator takes, ``None`` without one; for a transaction."""
    action = _action(tx, operator)
    return None if action is None else action.restore


def waiting_restore_in(view: JobView, operator: OperatorRecord) -> InPlaceRestore | None:
    """Return the restore that the next attempt of an operator takes, ``None`` without one; for a view of rows."""
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


def complete_in_place(tx: JobTransaction, operator: OperatorRecord, attempt: AttemptRecord) -> None:
    """End the restore that an attempt of an operator has taken, with the completion of its first checkpoint."""
    action = _action(tx, operator)
    if action is not None and action.restore is not None:
        message = _outcome(attempt, action.restore)
        transitions.end_action(tx, action, RequestStatus.COMPLETED, message)
        log.info("Job %s operator %s: %s", tx.job.name, operator.uid, message)
    tx.save_operator(replace(operator, in_place_restore=None))


def close_in_place(tx: JobTransaction, operator: OperatorRecord, reason: str) -> OperatorRecord:
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


def undo_in_place(tx: JobTransaction, operator: OperatorRecord, reason: str) -> OperatorRecord:
    """
    End the restore of an operator, if there is one, and return the operator to its checkpoints of before.

    No attempt that has taken the restore may run.

    :param reason: Why it ended, for display.
    """
    restore = waiting_restore(tx, operator)
    operator = close_in_place(tx, operator, reason)
    if restore is None or restore.earlier_generation == operator.generation:
        return operator
    earlier = before_restore(operator, restore)
    _end_adoptions(tx, earlier)
    # Without a checkpoint, the next attempt must start without state instead of failing to restore.
    operator = earlier if transitions.restorable(tx, earlier) else operator
    tx.save_operator(operator)
    return operator


def before_restore(operator: OperatorRecord, restore: InPlaceRestore) -> OperatorRecord:
    """Return an operator with the checkpoints that it had before a restore."""
    return replace(operator, generation=restore.earlier_generation, first_run=restore.earlier_first_run)


def with_generation(view: JobView, operator: OperatorRecord, generation: int) -> OperatorRecord:
    """Return an operator as the choice of a checkpoint finds it: before the restore that the choice ends, if any."""
    restore = waiting_restore_in(view, operator)
    return (
        before_restore(operator, restore)
        if restore is not None and restore.earlier_generation == generation
        else operator
    )


def require_undoable(tx: JobTransaction, operator: OperatorRecord) -> None:
    """
    Require that no attempt that has taken the restore of an operator is running.

    :raises ConcurrentAttemptError: if one is.
    """
    attempt = None if operator.in_place_restore is None else transitions.open_attempt(tx, operator)
    if attempt is None:
        return
    restore = waiting_restore(tx, operator)
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
