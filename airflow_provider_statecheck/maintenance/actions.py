"""
Actions of users on the state of a job: previews, requests, and progress.

A request changes rows only. What needs the checkpoint storage is carried out by the running stage, the next attempt, a
command or the maintenance Dag, and the row of the request shows whether this is done. Each request has a key, and a
repeated request returns the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_provider_statecheck.checkpoint import restore_choice
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint, require
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, already_claimed
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OperatorRecord,
    RequestStatus,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction, JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, NoRestorableCheckpointError
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob, RewoundOperator, rewind_in
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints, dispose_in

_KEY = re.compile("[0-9a-f]{32}")
_DELETED_LATER = "The files of the rolled-back checkpoints are deleted after a newer checkpoint completes."
_KINDS = {JobAction.SAVEPOINT: CheckpointType.SAVEPOINT, JobAction.STOP: CheckpointType.SAVEPOINT_SUSPEND}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAction:
    """An action that a user wants to preview or to request. Each action uses one of the identifiers."""

    job_id: JobId
    action: JobAction
    operator_id: OperatorId | None = None
    """Operator of a savepoint, a stop or a withdrawal; for a rewind, ``None`` means all operators."""
    checkpoint_id: int | None = None
    """Checkpoint to restore, or savepoint to dispose of."""
    run_key: str = ""
    """Run before which the job is rewound: its logical date, or its run id if it has none."""
    request_key: str = ""
    """Idempotency key of the page, 32 hexadecimal digits; not used by a preview."""
    requested_by: str = ""
    """Name of the user."""


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
    """Checkpoints that are rolled back, whose work is done again; the newest first."""
    deleted: tuple[AffectedCheckpoint, ...] = ()
    """Checkpoints whose files are deleted."""
    notes: tuple[str, ...] = ()
    """What the user should know before the confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedAction:
    """An action that was requested, and its progress."""

    request_key: str
    action: JobAction
    uid: str | None
    """Uid of the operator; ``None`` for all operators."""
    checkpoint_id: int | None
    run_key: str
    requested_by: str
    requested_at: datetime
    status: RequestStatus
    ended_at: datetime | None
    message: str
    """Outcome, or the reason of a failure."""


class JobActions:
    """
    Previews and requests actions of users.

    :param store: Store of the rows.
    :param savepoints: Savepoints of jobs.
    :param rewinding: Rewinding of jobs.
    """

    def __init__(self, store: JobStore, savepoints: JobSavepoints, rewinding: JobRewinding) -> None:
        self._store = store
        self._savepoints = savepoints
        self._rewinding = rewinding

    def preview(self, wanted: UserAction) -> ActionPreview:
        """
        Return the effect of an action without changing anything.

        :raises CheckpointNotFoundError: There is no such job, operator or checkpoint.
        :raises NoRestorableCheckpointError: The checkpoint cannot be restored, or there is none.
        :raises SnapshotClaimedError: An operator claimed the savepoint.
        :raises ConcurrentAttemptError: A task runs that must not run.
        """
        view = self._store.describe(wanted.job_id)
        if wanted.action is JobAction.REWIND:
            return _rewind_preview(view, self._rewinding.rewind(replace(_rewinding(view, wanted), dry_run=True)))
        if wanted.action is JobAction.DISPOSE:
            savepoint = _savepoint(view, wanted)
            if self._store.claim(savepoint.location) is not None:
                raise already_claimed(savepoint.location)
            return _disposal_preview(view, savepoint)
        return _PREVIEWS[wanted.action](view, wanted)

    def request(self, wanted: UserAction) -> RequestedAction:
        """
        Accept an action; a repeated key returns the first request. Raises as :meth:`preview`.

        :raises InvalidConfigurationError: The key has another form.
        """
        require_request_key(wanted.request_key)
        view = self._store.describe(wanted.job_id)
        if wanted.action in _KINDS:
            return requested_savepoint(view, self._savepoints.request(_savepoint_request(view, wanted)))
        if wanted.action is JobAction.REWIND:
            rewinding = _rewinding(view, wanted)
            # A repeated request does not look at tasks that have started since.
            dead = self._rewinding.dead_attempts(rewinding)
            return self._carry_out(view, wanted, lambda tx: _rewind(tx, wanted, rewinding, dead))
        return self._carry_out(view, wanted, lambda tx: _CHANGES[wanted.action](tx, wanted))

    def _carry_out(
        self, view: JobView, wanted: UserAction, change: Callable[[JobTransaction], ActionRecord]
    ) -> RequestedAction:
        with self._store.transaction(wanted.job_id) as tx:
            return requested_action(view, tx.action(wanted.request_key) or change(tx))


def require_request_key(key: str) -> None:
    """
    Require the form of the key of a request.

    :raises InvalidConfigurationError: The key has another form.
    """
    require("request_key", key, lambda k: bool(_KEY.fullmatch(k)), "32 hexadecimal digits")


def requested_actions(view: JobView) -> tuple[RequestedAction, ...]:
    """Return the requested actions and savepoints of a job, the newest first."""
    actions = (requested_action(view, each) for each in view.actions)
    savepoints = (requested_savepoint(view, each) for each in view.requests if each.properties.is_savepoint)
    return tuple(sorted((*actions, *savepoints), key=lambda a: (a.requested_at, a.request_key), reverse=True))


def requested_action(view: JobView, action: ActionRecord) -> RequestedAction:
    """Return the row of an action with the uid of its operator."""
    return RequestedAction(
        request_key=action.request_key,
        action=action.action,
        uid=_uid(view, action.operator_id),
        checkpoint_id=action.checkpoint_id,
        run_key=action.run_key,
        requested_by=action.requested_by,
        requested_at=action.requested_at,
        status=action.status,
        ended_at=action.ended_at,
        message=action.message,
    )


def requested_savepoint(view: JobView, request: SnapshotRequest) -> RequestedAction:
    """Return the row of a savepoint request as an action."""
    stops = request.properties.snapshot_type is CheckpointType.SAVEPOINT_SUSPEND
    return RequestedAction(
        request_key=request.request_key,
        action=JobAction.STOP if stops else JobAction.SAVEPOINT,
        uid=_uid(view, request.operator_id),
        checkpoint_id=request.checkpoint_id,
        run_key="",
        requested_by=request.requested_by,
        requested_at=request.requested_at,
        status=request.status,
        ended_at=request.ended_at,
        message=request.failure_message,
    )


def _savepoint_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    operator = _operator(view, wanted)
    attempt, newest = _running(view, operator), next(_candidates(view, operator), None)
    if attempt is None and newest is None:
        raise NoRestorableCheckpointError(
            f"Expected a completed checkpoint of operator {operator.uid!r} in job {view.job.name!r} to copy to a savepoint, "
            f"found none; run the stage until it completes one.",
            uid=operator.uid,
        )
    if attempt is not None:
        effect = f"{_name(attempt)} copies its next completed checkpoint to a savepoint and continues."
    else:
        effect = (
            "The next 'airflow statecheck gc', the maintenance Dag or the next attempt copies the newest checkpoint to a "
            "savepoint."
        )
    return ActionPreview(action=wanted.action, effect=effect, kept=_affected(view, [newest] if newest else []))


def _stop_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    operator = _operator(view, wanted)
    attempt = _running(view, operator)
    if attempt is None:
        raise CheckpointNotFoundError(
            f"Expected a running attempt of operator {operator.uid!r} in job {view.job.name!r} to stop, found none; take a "
            f"savepoint without stopping.",
            uid=operator.uid,
        )
    return ActionPreview(
        action=wanted.action,
        effect=f"{_name(attempt)} copies its next completed checkpoint to a savepoint and stops. Its task fails without a retry.",
        notes=(
            "Clear the task to resume from its last checkpoint, or start another job from the savepoint.",
            "If the savepoint fails, the stage does not stop.",
        ),
    )


def _restore_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    operator, chosen = _chosen(view, wanted)
    newer = restore_choice.newer_checkpoints(operator, view.of_operator(operator.operator_id), chosen.checkpoint_id)
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
    attempt = _running(view, operator)
    if attempt is not None:
        yield f"{_name(attempt)} is running and is not stopped. What it completes from now on is rolled back as well."
    other_runs = dict.fromkeys(c.run_key for c in newer if c.run_key != chosen.run_key)
    if other_runs:
        yield f"The results of these runs are rolled back: {', '.join(other_runs)}. Run them again in their order."
    if operator.next_restore is not None:
        yield f"This replaces the choice of checkpoint {operator.next_restore}."
    yield "Sinks retract the output that the rolled-back checkpoints committed, or refuse to start if they cannot."
    yield _DELETED_LATER


def _withdrawal_preview(view: JobView, wanted: UserAction) -> ActionPreview:
    operator = _operator(view, wanted)
    if operator.next_restore is None:
        raise _nothing_chosen(operator)
    return ActionPreview(
        action=wanted.action,
        effect=f"The next attempt of operator {operator.uid!r} restores its newest checkpoint again.",
        kept=_affected(view, _candidates(view, operator)),
    )


def _rewind_preview(view: JobView, rewound: tuple[RewoundOperator, ...]) -> ActionPreview:
    taken_back = [c for each in rewound for c in each.taken_back]
    without_state = [each.uid for each in rewound if each.stands_at is None]
    fenced = [each.fenced for each in rewound if each.fenced is not None]
    notes = [
        "Clear that run and all later runs before another run starts, and run them in order.",
        _DELETED_LATER,
        *(
            f"The choice of checkpoint {o.next_restore} for operator {o.uid!r} is withdrawn."
            for o in _with_choice(view, rewound)
        ),
        *(f"Operator {uid!r} then starts without state." for uid in without_state),
        *(f"{_name(attempt)} is fenced; its task is not running." for attempt in fenced),
    ]
    return ActionPreview(
        action=JobAction.REWIND,
        effect=f"{len(rewound)} of {len(view.operators)} operators return to their state before the run.",
        kept=_affected(view, [each.stands_at for each in rewound if each.stands_at is not None]),
        recomputed=_affected(view, taken_back),
        deleted=_affected(view, taken_back),
        notes=tuple(notes),
    )


def _with_choice(view: JobView, rewound: tuple[RewoundOperator, ...]) -> list[OperatorRecord]:
    uids = {each.uid for each in rewound}
    return [o for o in view.operators if o.uid in uids and o.next_restore is not None]


def _disposal_preview(view: JobView, savepoint: CheckpointRecord) -> ActionPreview:
    return ActionPreview(
        action=JobAction.DISPOSE,
        effect="The next attempt of the operator, the next 'airflow statecheck gc' or the maintenance Dag deletes the savepoint.",
        deleted=_affected(view, [savepoint]),
        notes=("Jobs that start from this savepoint afterwards fail.",),
    )


def _savepoint_request(view: JobView, wanted: UserAction) -> RequestSavepoint:
    return RequestSavepoint(
        job_id=wanted.job_id,
        operator_id=_operator(view, wanted).operator_id,
        request_key=wanted.request_key,
        kind=_KINDS[wanted.action],
        requested_by=wanted.requested_by,
    )


def _choose(tx: JobTransaction, wanted: UserAction) -> ActionRecord:
    operator, _ = _chosen(tx.view(), wanted)
    action = _row(tx, wanted, operator.operator_id)
    restore_choice.choose(tx, operator, action)
    return action


def _withdraw(tx: JobTransaction, wanted: UserAction) -> ActionRecord:
    operator = _operator(tx.view(), wanted)
    if operator.next_restore is None:
        raise _nothing_chosen(operator)
    action = replace(_row(tx, wanted, operator.operator_id), checkpoint_id=operator.next_restore)
    restore_choice.withdraw(tx, operator, f"withdrawn by {wanted.requested_by}")
    return _completed(tx, action)


def _rewind(
    tx: JobTransaction, wanted: UserAction, rewinding: RewindJob, dead: tuple[AttemptRecord, ...]
) -> ActionRecord:
    rewound = rewind_in(tx, rewinding, dead)
    taken_back = sum(len(each.taken_back) for each in rewound)
    return _completed(tx, _row(tx, wanted, wanted.operator_id), f"{taken_back} checkpoints rolled back")


def _dispose(tx: JobTransaction, wanted: UserAction) -> ActionRecord:
    savepoint = _savepoint(tx.view(), wanted)
    dispose_in(tx, savepoint.location)
    action = _row(tx, wanted, savepoint.operator_id)
    tx.save_action(action)
    return action


def _row(tx: JobTransaction, wanted: UserAction, operator_id: OperatorId | None) -> ActionRecord:
    return ActionRecord(
        job_id=wanted.job_id,
        request_key=wanted.request_key,
        action=wanted.action,
        operator_id=operator_id,
        checkpoint_id=wanted.checkpoint_id,
        run_key=wanted.run_key,
        requested_by=wanted.requested_by,
        requested_at=tx.now,
    )


def _completed(tx: JobTransaction, action: ActionRecord, message: str = "") -> ActionRecord:
    completed = replace(action, status=RequestStatus.COMPLETED, ended_at=tx.now, message=message)
    tx.save_action(completed)
    return completed


_PREVIEWS: dict[JobAction, Callable[[JobView, UserAction], ActionPreview]] = {
    JobAction.SAVEPOINT: _savepoint_preview,
    JobAction.STOP: _stop_preview,
    JobAction.RESTORE: _restore_preview,
    JobAction.WITHDRAW: _withdrawal_preview,
}
_CHANGES: dict[JobAction, Callable[[JobTransaction, UserAction], ActionRecord]] = {
    JobAction.RESTORE: _choose,
    JobAction.WITHDRAW: _withdraw,
    JobAction.DISPOSE: _dispose,
}


def _rewinding(view: JobView, wanted: UserAction) -> RewindJob:
    uid = None if wanted.operator_id is None else _operator(view, wanted).uid
    return RewindJob(job_id=wanted.job_id, run_key=wanted.run_key, uid=uid)


def _operator(view: JobView, wanted: UserAction) -> OperatorRecord:
    # The coordinator of aligned checkpoints takes its savepoints and restores in its own program.
    operators = (o for o in view.operators if o.operator_id != ALIGNED_OPERATOR_ID)
    found = next((o for o in operators if o.operator_id == wanted.operator_id), None)
    if found is None:
        raise CheckpointNotFoundError(
            f"Expected an operator of job {view.job.name!r}, found {wanted.operator_id!r}; name one of its stages."
        )
    return found


def _checkpoint(view: JobView, wanted: UserAction) -> CheckpointRecord:
    found = next((c for c in view.checkpoints if c.checkpoint_id == wanted.checkpoint_id), None)
    if found is None:
        raise CheckpointNotFoundError(
            f"Expected a retained checkpoint of job {view.job.name!r}, found {wanted.checkpoint_id!r}; name a retained one.",
            checkpoint_id=wanted.checkpoint_id,
        )
    return found


def _chosen(view: JobView, wanted: UserAction) -> tuple[OperatorRecord, CheckpointRecord]:
    checkpoint = _checkpoint(view, wanted)
    return _operator(view, replace(wanted, operator_id=checkpoint.operator_id)), checkpoint


def _savepoint(view: JobView, wanted: UserAction) -> CheckpointRecord:
    checkpoint = _checkpoint(view, wanted)
    is_own = checkpoint.properties.is_savepoint and not checkpoint.properties.unclaimed
    if not is_own or checkpoint.status is not CheckpointStatus.COMPLETED:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint.checkpoint_id} of job {view.job.name!r} to be a completed savepoint, found "
            f"{checkpoint.properties.snapshot_type.value} that is {checkpoint.status.value}; name a savepoint.",
            checkpoint_id=checkpoint.checkpoint_id,
        )
    return checkpoint


def _nothing_chosen(operator: OperatorRecord) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(
        f"Expected a checkpoint that was chosen for the next attempt of operator {operator.uid!r}, found none; an attempt has "
        f"restored it, or the choice was withdrawn.",
        uid=operator.uid,
    )


def _running(view: JobView, operator: OperatorRecord) -> AttemptRecord | None:
    return view.current_attempt(operator) if view.has_open_attempt(operator) else None


def _candidates(view: JobView, operator: OperatorRecord) -> Iterator[CheckpointRecord]:
    newest_first = reversed(view.of_operator(operator.operator_id))
    restorable = (c for c in newest_first if c.is_restorable and c.generation == operator.generation)
    return (c for c in restorable if c.unusable_reason is None)


def _affected(view: JobView, checkpoints: Iterable[CheckpointRecord]) -> tuple[AffectedCheckpoint, ...]:
    return tuple(
        AffectedCheckpoint(
            checkpoint_id=c.checkpoint_id,
            uid=_uid(view, c.operator_id) or "",
            kind=c.properties.snapshot_type.value,
            run_key=c.run_key,
            completed_at=c.completed_at,
            size_bytes=c.full_size_bytes,
        )
        for c in checkpoints
    )


def _uid(view: JobView, operator_id: OperatorId | None) -> str | None:
    return next((o.uid for o in view.operators if o.operator_id == operator_id), None)


def _name(attempt: AttemptRecord) -> str:
    return f"Attempt {attempt.epoch} ({attempt.owner.label})"
