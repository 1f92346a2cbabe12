"""
Actions of users on the state of a job: previews, requests, and progress.

A request changes rows only. What needs the checkpoint storage is carried out by the running stage, the next attempt, a
command or the maintenance Dag, and the row of the request shows whether this is done. Each request has a key, and a
repeated request returns the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_provider_statecheck.checkpoint import start_decision, transitions
from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.job_removal import request_removal, withdraw_removal
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptRecord,
    CheckpointRequest,
    JobAction,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction, JobView, rolled_back
from airflow_provider_statecheck.gateway.verbs import verbs_of
from airflow_provider_statecheck.maintenance.action_previews import (
    ActionPreview,
    disposal_preview,
    preview_of,
    rewind_preview,
)
from airflow_provider_statecheck.maintenance.action_targets import (
    UserAction,
    chosen_of,
    nothing_chosen,
    operator_of,
    savepoint_of,
    uid_of,
)
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.maintenance.job_restore import JobRestoring
from airflow_provider_statecheck.maintenance.rewind import (
    ForkPoint,
    JobRewinding,
    RewindJob,
    dag_of_fork,
    require_fork_point,
    rewind_in,
)
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints, dispose_in

_KEY = re.compile("[0-9a-f]{32}")
_KINDS = {JobAction.SAVEPOINT: CheckpointType.SAVEPOINT, JobAction.STOP: CheckpointType.SAVEPOINT_SUSPEND}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedAction:
    """An action that was requested, and its progress."""

    request_key: str
    action: JobAction
    uid: str | None
    """Uid of the operator; ``None`` for all operators."""
    checkpoint_id: int | None
    run_key: str
    pointer: str | None = None
    """Savepoint of the whole job that is restored in place; ``None`` for other actions."""
    requested_by: str
    requested_at: datetime
    status: RequestStatus
    ended_at: datetime | None
    message: str
    """Outcome, or the reason of a failure."""
    dag_id: str | None = None
    """Dag of the run that a fork has started; ``None`` for other actions."""


class JobActions:
    """Previews and requests actions of users."""

    def __init__(self, store: JobStore, savepoints: JobSavepoints, rewinding: JobRewinding) -> None:
        self._store = store
        self._savepoints = savepoints
        self._rewinding = rewinding

    def preview(self, wanted: UserAction) -> ActionPreview:
        """
        Return the effect of an action without changing anything.

        :raises CheckpointNotFoundError: if there is no such job, operator or checkpoint.
        :raises NoRestorableCheckpointError: if the checkpoint cannot be restored, or there is none.
        :raises SavepointClaimedError: if an operator claimed the savepoint.
        :raises ConcurrentAttemptError: if a task runs that must not run.
        """
        view = self._store.describe(wanted.job_id)
        if wanted.action is JobAction.REWIND:
            return rewind_preview(view, self._rewinding.rewind(replace(_rewinding(view, wanted), dry_run=True)))
        if wanted.action is JobAction.DISPOSE:
            savepoint = savepoint_of(view, wanted)
            with rolled_back(self._store, wanted.job_id) as tx:
                dispose_in(tx, savepoint.location)
            return disposal_preview(view, savepoint)
        return preview_of(view, wanted)

    def request(self, wanted: UserAction) -> RequestedAction:
        """
        Accept any action but a fork; a repeated key returns the first request. Raises as :meth:`preview`.

        :raises InvalidConfigurationError: if the key has another form.
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

    def fork(self, wanted: UserAction, start: Callable[[ForkPoint], str]) -> RequestedAction:
        """
        Start a run that forks the job; a repeated key returns the first request. Raises as :meth:`preview`.

        :param start: Starts the run and returns its id. To start it exactly once, it works in the transaction of the
            store.
        :raises InvalidConfigurationError: if the key has another form.
        """
        require_request_key(wanted.request_key)
        with self._store.transaction(wanted.job_id) as tx:
            action = tx.action(wanted.request_key) or _fork(tx, wanted, start)
            return requested_action(tx.view(), action)

    def _carry_out(
        self, view: JobView, wanted: UserAction, change: Callable[[JobTransaction], ActionRecord]
    ) -> RequestedAction:
        with self._store.transaction(wanted.job_id) as tx:
            return requested_action(view, tx.action(wanted.request_key) or change(tx))


def require_request_key(key: str) -> None:
    """
    Require the form of the key of a request.

    :raises InvalidConfigurationError: if the key has another form.
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
        uid=uid_of(view, action.operator_id),
        checkpoint_id=action.checkpoint_id,
        run_key=action.run_key,
        pointer=None if action.restore is None else action.restore.pointer,
        requested_by=action.requested_by,
        requested_at=action.requested_at,
        status=action.status,
        ended_at=action.ended_at,
        message=action.message,
        dag_id=dag_of_fork(view, action),
    )


def requested_savepoint(view: JobView, request: CheckpointRequest) -> RequestedAction:
    """Return the row of a savepoint request as an action."""
    stops = request.properties.snapshot_type is CheckpointType.SAVEPOINT_SUSPEND
    return RequestedAction(
        request_key=request.request_key,
        action=JobAction.STOP if stops else JobAction.SAVEPOINT,
        uid=uid_of(view, request.operator_id),
        checkpoint_id=request.checkpoint_id,
        run_key="",
        requested_by=request.requested_by,
        requested_at=request.requested_at,
        status=request.status,
        ended_at=request.ended_at,
        message=request.failure_message,
    )


def _savepoint_request(view: JobView, wanted: UserAction) -> RequestSavepoint:
    return RequestSavepoint(
        job_id=wanted.job_id,
        operator_id=operator_of(view, wanted).operator_id,
        request_key=wanted.request_key,
        kind=_KINDS[wanted.action],
        requested_by=wanted.requested_by,
    )


def _choose(tx: JobTransaction, wanted: UserAction) -> ActionRecord:
    operator, _ = chosen_of(tx.view(), wanted)
    action = _row(tx, wanted, operator.operator_id)
    start_decision.choose(tx, operator, action)
    return action


def _withdraw(tx: JobTransaction, wanted: UserAction) -> ActionRecord:
    if wanted.operator_id is None:
        withdraw_removal(tx, wanted.requested_by)
        return _completed(tx, _row(tx, wanted, None), "the job is kept")
    operator = operator_of(tx.view(), wanted)
    if operator.next_restore is None and operator.in_place_restore is None:
        raise nothing_chosen(operator)
    start_decision.require_undoable(tx, operator)
    action = replace(_row(tx, wanted, operator.operator_id), checkpoint_id=operator.next_restore)
    start_decision.withdraw(tx, operator, f"withdrawn by {wanted.requested_by}")
    return _completed(tx, action)


def _fork(tx: JobTransaction, wanted: UserAction, start: Callable[[ForkPoint], str]) -> ActionRecord:
    operator, point = require_fork_point(tx.view(), wanted)
    run_id = start(point)
    action = replace(_row(tx, wanted, operator.operator_id), run_key=run_id)
    return _completed(tx, action, f"run {run_id} of Dag {point.dag_id} started")


def _rewind(
    tx: JobTransaction, wanted: UserAction, rewinding: RewindJob, dead: tuple[AttemptRecord, ...]
) -> ActionRecord:
    rewound = rewind_in(tx, rewinding, dead)
    taken_back = sum(len(each.taken_back) for each in rewound)
    return _completed(tx, _row(tx, wanted, wanted.operator_id), f"{counted(taken_back, 'checkpoint')} rolled back")


def _dispose(tx: JobTransaction, wanted: UserAction) -> ActionRecord:
    savepoint = savepoint_of(tx.view(), wanted)
    dispose_in(tx, savepoint.location)
    action = _row(tx, wanted, savepoint.operator_id)
    tx.save_action(action)
    return action


def _prune(tx: JobTransaction, wanted: UserAction) -> ActionRecord:
    action = _row(tx, wanted, None)
    request_removal(tx, action)
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
    return transitions.end_action(tx, action, RequestStatus.COMPLETED, message)


_CHANGES: dict[JobAction, Callable[[JobTransaction, UserAction], ActionRecord]] = {
    JobAction.RESTORE: _choose,
    JobAction.WITHDRAW: _withdraw,
    JobAction.DISPOSE: _dispose,
    JobAction.PRUNE: _prune,
}


def _rewinding(view: JobView, wanted: UserAction) -> RewindJob:
    uid = None if wanted.operator_id is None else operator_of(view, wanted).uid
    return RewindJob(job_id=wanted.job_id, run_key=wanted.run_key, uid=uid)


MAINTENANCE = verbs_of(JobMaintenance, "maintenance")
SAVEPOINTS = verbs_of(JobSavepoints, "savepoints")
RESTORES = verbs_of(JobRestoring, "savepoints", "restoring")
ALIGNED = verbs_of(AlignedCheckpoints, "aligned")
