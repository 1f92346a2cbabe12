"""
Restore of a checkpoint that a user chose, in place of the newest one.

The choice is an open action of a user and a mark in the row of the operator. Retention keeps the chosen checkpoint. The
next registration of the operator takes the choice in the transaction that grants its attempt: it rolls back the newer
checkpoints, ends the action and clears the mark. A registration that fails changes nothing, and its repetition finds
the same choice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_statecheck.checkpoint import in_place_restore, transitions
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import NoRestorableCheckpointError

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
        operator = in_place_restore.close(tx, operator, reason)
    in_place_restore.require_undoable(tx, operator)
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
    operator = in_place_restore.undo(tx, operator, reason)
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
