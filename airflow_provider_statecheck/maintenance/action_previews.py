"""Previews of actions of users: what an action keeps, rolls back and deletes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint import start_decision
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.job_removal import (
    open_commits,
    open_removal,
    require_removable,
    waiting_removal,
)
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.retention import Owner, custody_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, NoRestorableCheckpointError
from airflow_provider_statecheck.maintenance.action_targets import (
    UserAction,
    chosen_of,
    nothing_chosen,
    operator_of,
    uid_of,
)
from airflow_provider_statecheck.maintenance.rewind import RewoundOperator, require_fork_point

_DELETED_LATER = "The files of the rolled-back checkpoints are deleted after a newer checkpoint completes."
_OTHERS_RESTORE = (
    "Only this operator is not restored from the savepoint of the job any more; its state may then not match that of "
    "the others."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedCheckpoint:
    """Checkpoint in a preview."""

    checkpoint_id: int
    uid: str
    kind: str
    run_key: str
    completed_at: datetime | None
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPreview:
    """Effect of an action on the rows as they are now."""

    action: JobAction
    effect: str
    """What happens, and who carries it out."""
    kept: tuple[AffectedCheckpoint, ...] = ()
    """Checkpoints from which the job continues, or that are copied; the newest first."""
    recomputed: tuple[AffectedCheckpoint, ...] = ()
    """Checkpoints whose work is done again, because they are rolled back or newer than the fork; the newest first."""
    deleted: tuple[AffectedCheckpoint, ...] = ()
    """Checkpoints whose files are deleted."""
    notes: tuple[str, ...] = ()
    """What the user should know before the confirmation."""
    restores: CheckpointSummary | None = None
    """What the run of a fork restores; ``None`` for other actions, or if it is unknown."""
    params: dict[str, Any] | None = None
    """Params of the run of a fork, without the one that names the checkpoint; ``None`` for other actions."""


def preview_of(view: JobView, wanted: UserAction) -> ActionPreview:
    """Return the effect of an action that needs only the rows of the job; raises as ``JobActions.preview``."""
    return _PREVIEWS[wanted.action](view, wanted)


def _savepoint_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    operator = operator_of(view, wanted)
    attempt, newest = view.open_attempt(operator), next(_candidates(view, operator), None)
    if attempt is None and newest is None:
        raise NoRestorableCheckpointError(
            f"Expected a completed checkpoint of operator {operator.uid!r} in job {view.job.name!r} to copy to a "
            "savepoint, found none; run the stage until it completes one.",
            uid=operator.uid,
        )
    if attempt is not None:
        effect = f"{_name(attempt)} copies its next completed checkpoint to a savepoint and continues."
    else:
        effect = (
            "The next 'airflow statecheck gc', the maintenance Dag or the next attempt copies the newest checkpoint "
            "to a savepoint."
        )
    return ActionPreview(action=wanted.action, effect=effect, kept=_affected(view, [newest] if newest else []))


def _stop_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    operator = operator_of(view, wanted)
    attempt = view.open_attempt(operator)
    if attempt is None:
        raise CheckpointNotFoundError(
            f"Expected a running attempt of operator {operator.uid!r} in job {view.job.name!r} to stop, found none; "
            "take a savepoint without stopping.",
            uid=operator.uid,
        )
    return ActionPreview(
        action=wanted.action,
        effect=f"{_name(attempt)} copies its next completed checkpoint to a savepoint and stops. Its task fails "
        f"without a retry.",
        notes=(
            "Clear the task to resume from its last checkpoint, or start another job from the savepoint.",
            "If the savepoint fails, the stage does not stop.",
        ),
    )


def _restore_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    operator, chosen = chosen_of(view, wanted)
    operator = start_decision.with_generation(view, operator, chosen.generation)
    newer = start_decision.newer_checkpoints(operator, view.of_operator(operator.operator_id), chosen.checkpoint_id)
    return ActionPreview(
        action=wanted.action,
        effect=(
            f"The next attempt of operator {operator.uid!r}, whichever run it belongs to, restores checkpoint "
            f"{chosen.checkpoint_id}."
        ),
        kept=_affected(view, [c for c in _candidates(view, operator) if c.checkpoint_id <= chosen.checkpoint_id]),
        recomputed=_affected(view, newer),
        deleted=_affected(view, newer),
        notes=tuple(_restore_notes(view, operator, chosen, newer)),
    )


def _restore_notes(
    view: JobView, operator: OperatorRecord, chosen: CheckpointRecord, newer: Iterable[CheckpointRecord]
) -> Iterator[str]:
    attempt = view.open_attempt(operator)
    if attempt is not None:
        yield f"{_name(attempt)} is running and is not stopped. What it completes from now on is rolled back as well."
    other_runs = dict.fromkeys(c.run_key for c in newer if c.run_key != chosen.run_key)
    if other_runs:
        yield f"The results of these runs are rolled back: {', '.join(other_runs)}. Run them again in their order."
    if operator.next_restore is not None:
        yield f"This replaces the choice of checkpoint {operator.next_restore}."
    restore = start_decision.waiting_restore_in(view, operator)
    if restore is not None:
        yield f"This ends the restore from the savepoint {restore.pointer} of the job for this operator."
    yield "Sinks retract the output that the rolled-back checkpoints committed, or refuse to start if they cannot."
    yield _DELETED_LATER


def _withdrawal_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    if wanted.operator_id is None:
        removal = waiting_removal(view)
        return ActionPreview(
            action=wanted.action, effect=f"The job is kept, which {removal.requested_by} requested to remove."
        )
    operator = operator_of(view, wanted)
    restore = start_decision.waiting_restore_in(view, operator)
    if operator.next_restore is None and restore is None:
        raise nothing_chosen(operator)
    if restore is not None:
        operator = start_decision.before_restore(operator, restore)
    return ActionPreview(
        action=wanted.action,
        effect=f"The next attempt of operator {operator.uid!r} restores its newest checkpoint again.",
        kept=_affected(view, _candidates(view, operator)),
        notes=() if restore is None else (_OTHERS_RESTORE,),
    )


def rewind_preview(view: JobView, rewound: tuple[RewoundOperator, ...]) -> ActionPreview:
    """Return the effect of a rewind."""
    taken_back = [c for each in rewound for c in each.taken_back]
    without_state = [each.uid for each in rewound if each.stands_at is None]
    fenced = [each.fenced for each in rewound if each.fenced is not None]
    notes = [
        "Clear that run and all later runs before another run starts, and run them in order.",
        _DELETED_LATER,
        *(
            f"The choice of checkpoint {each.withdrawn_choice} for operator {each.uid!r} is withdrawn."
            for each in rewound
            if each.withdrawn_choice is not None
        ),
        *(
            f"Operator {each.uid!r} is not restored from the savepoint {each.withdrawn_restore} any more."
            for each in rewound
            if each.withdrawn_restore is not None
        ),
        *(f"Operator {uid!r} then starts without state." for uid in without_state),
        *(f"{_name(attempt)} is replaced; its task is not running." for attempt in fenced),
    ]
    return ActionPreview(
        action=JobAction.REWIND,
        effect=f"Operators that return to their state before the run: {len(rewound)} of {len(view.stages)}.",
        kept=_affected(view, [each.stands_at for each in rewound if each.stands_at is not None]),
        recomputed=_affected(view, taken_back),
        deleted=_affected(view, taken_back),
        notes=tuple(notes),
    )


def disposal_preview(view: JobView, savepoint: CheckpointRecord) -> ActionPreview:
    """Return the effect of disposing of a savepoint."""
    return ActionPreview(
        action=JobAction.DISPOSE,
        effect="The next attempt of the operator, the next 'airflow statecheck gc' or the maintenance Dag deletes the "
        "savepoint.",
        deleted=_affected(view, [savepoint]),
        notes=("Jobs that start from this savepoint afterwards fail.",),
    )


def _candidates(view: JobView, operator: OperatorRecord) -> Iterator[CheckpointRecord]:
    newest_first = reversed(view.of_operator(operator.operator_id))
    return (c for c in newest_first if c.is_usable and c.generation == operator.generation)


def _affected(view: JobView, checkpoints: Iterable[CheckpointRecord]) -> tuple[AffectedCheckpoint, ...]:
    return tuple(
        AffectedCheckpoint(
            checkpoint_id=c.checkpoint_id,
            uid=uid_of(view, c.operator_id) or "",
            kind=c.properties.snapshot_type.value,
            run_key=c.run_key,
            completed_at=c.completed_at,
            size_bytes=c.full_size_bytes,
        )
        for c in checkpoints
    )


def _name(attempt: AttemptRecord) -> str:
    return f"Attempt {attempt.epoch} ({attempt.owner.label})"


def _removal_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    require_removable(view)
    deleted = [c for c in view.checkpoints if c.discarded_at is None and custody_of(view, c).owner is Owner.JOB]
    size = readable_size(sum(c.full_size_bytes for c in deleted))
    effect = (
        "The next run of the maintenance Dag or 'airflow statecheck prune' deletes the files of "
        f"{counted(len(deleted), 'checkpoint')}, up to {size}, and removes the job with its "
        f"{counted(len(view.operators), 'operator')} and {counted(len(view.attempts), 'attempt')}."
    )
    return ActionPreview(
        action=wanted.action,
        effect=effect,
        kept=_affected(view, _savepoints_of_users(view)),
        deleted=_affected(view, reversed(deleted)),
        notes=tuple(_removal_notes(view)),
    )


def _savepoints_of_users(view: JobView) -> list[CheckpointRecord]:
    completed = (c for c in reversed(view.checkpoints) if c.status is CheckpointStatus.COMPLETED)
    return [c for c in completed if custody_of(view, c).owner is Owner.USER]


def _removal_notes(view: JobView) -> Iterator[str]:
    yield "If an attempt starts before, the job is kept and the request fails."
    yield "A later run of the job starts without state. Savepoints stay where they are; note their pointers."
    yield from (f"{each[0].upper()}{each[1:]}; that output is dropped." for each in open_commits(view))
    if any(each.status.is_open for each in view.requests):
        yield (
            "Open requests for savepoints are dropped unless 'airflow statecheck gc' or the maintenance Dag takes them "
            "before."
        )
    earlier = open_removal(view)
    if earlier is not None:
        yield f"This replaces the request of {earlier.requested_by}."


def _fork_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    operator, point = require_fork_point(view, wanted)
    forked = point.checkpoint
    kind = "savepoint" if forked.properties.is_savepoint else "checkpoint"
    newer = (c for c in _candidates(view, operator) if c.checkpoint_id > forked.checkpoint_id)
    return ActionPreview(
        action=wanted.action,
        effect=(
            f"A new run of Dag {point.dag_id!r} works on a copy of {kind} {forked.checkpoint_id} of operator "
            f"{operator.uid!r}, in a job of its own. Job {view.job.name!r} and all of its checkpoints stay as they "
            "are; nothing is deleted."
        ),
        kept=_affected(view, [forked]),
        recomputed=_affected(view, newer),
        notes=tuple(_fork_notes(forked)),
        restores=forked.summary,
    )


def _fork_notes(forked: CheckpointRecord) -> Iterator[str]:
    if not forked.properties.is_savepoint:
        yield (
            "Until the first checkpoint of the fork is complete, newer checkpoints of the job may replace this one. "
            "Take a savepoint first and fork from it if the job runs in the meantime."
        )


_PREVIEWS: dict[JobAction, Callable[[JobView, UserAction], ActionPreview]] = {
    JobAction.SAVEPOINT: _savepoint_preview,
    JobAction.STOP: _stop_preview,
    JobAction.RESTORE: _restore_preview,
    JobAction.WITHDRAW: _withdrawal_preview,
    JobAction.PRUNE: _removal_preview,
    JobAction.FORK: _fork_preview,
}
