"""
End of an attempt: its status, its message, and the last line of its log.

The status of an attempt is that of its task.

Some errors are no failures. Airflow skips a task that raises ``AirflowSkipException``, and a process that calls
``sys.exit(0)`` has succeeded. Who judges the error depends on the process: Airflow in a task, where also
``sys.exit(0)`` is a failure, else the process that started this one, which sees the exit status only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any

from airflow_provider_statecheck.checkpoint.fencing import is_named_after_run, is_retry_of
from airflow_provider_statecheck.checkpoint.ids import OperatorId, is_test_job
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, OpenEffects, RegisterAttempt
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, CheckpointRecord, OnClear
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import text_of
from airflow_provider_statecheck.spark.status_log import describe_content
from airflow_provider_statecheck.storage.uris import redact

_AIRFLOW = "airflow.sdk"
_AIRFLOW_ERRORS = "airflow.sdk.exceptions"
# The trigger of another run is raised when the work of the task is done.
_SUCCESSFUL = ("AirflowSkipException", "DownstreamTasksSkipped", "DagRunTriggerException")
_LEAVING = ("TaskDeferred", "AirflowRescheduleException", "TaskAwaitingInput")
_EXIT_STATUSES = 256


def is_success(error: BaseException) -> bool:
    """Return whether an error ends the task or process without a failure, as a skip does."""
    if _runs_in_a_task():
        return isinstance(error, _airflow_errors(_SUCCESSFUL))
    return isinstance(error, SystemExit) and _is_exit_of_success(error.code)


def message_of(error: BaseException) -> str:
    """Return the message of an attempt that ends with an error."""
    text = f"{type(error).__name__}: {text_of(error)}"
    if _runs_in_a_task() and isinstance(error, _airflow_errors(_LEAVING)):
        return f"{text} (the task left without an end, and resumes from its last checkpoint when it returns)"
    return text


def _is_exit_of_success(code: object) -> bool:
    # Python prints any other value and exits with 1; the system keeps the last byte of a number.
    return code is None or (isinstance(code, int) and code % _EXIT_STATUSES == 0)


def _runs_in_a_task() -> bool:
    # This package runs without Airflow too; a task has loaded it.
    airflow: Any = sys.modules.get(_AIRFLOW)
    if airflow is None:
        return False
    try:
        airflow.get_current_context()
    except RuntimeError:
        return False
    return True


def _airflow_errors(names: tuple[str, ...]) -> tuple[type[BaseException], ...]:
    # Versions of Airflow differ in the errors that they have.
    errors = sys.modules.get(_AIRFLOW_ERRORS)
    return tuple(kind for name in names if (kind := getattr(errors, name, None)) is not None)


def retained_line(registration: RegisterAttempt, latest: CheckpointRecord | None, *, is_readable: bool = True) -> str:
    """
    Return the last line of a failed attempt: the checkpoint that the next try restores.

    :param latest: The newest restorable checkpoint, or the snapshot from which the attempt should have started and the
        next try starts; ``None`` if there is neither.
    :param is_readable: Whether the attempt could read it, or did not try to.
    """
    name = registration.job_name
    if latest is None:
        return f"Job {name!r} retains no checkpoint: none was completed; the next try starts from the beginning."
    if latest.is_adoption:
        return (
            f"Job {name!r} retains no checkpoint of its own: none was completed; the next try starts from "
            f"{redact(latest.location)}."
        )
    if not is_readable:
        return (
            f"Job {name!r} retains checkpoint {latest.checkpoint_id}, which could not be read; the next try reads it "
            f"again. Restore pointer: {latest.location}"
        )
    return (
        f"Job {name!r} retains checkpoint {latest.checkpoint_id}: {describe_content(latest)}. "
        f"{_resumption(registration)}. Restore pointer: {latest.location}"
    )


def _resumption(registration: RegisterAttempt) -> str:
    is_restart = registration.on_clear is OnClear.RESTART
    if registration.owner.is_script:
        return f"The next try{' without on_clear=restart' if is_restart else ''} resumes from it"
    if is_restart:
        return "The next try resumes from it; a cleared task restarts its run"
    return "The next try resumes from it, also if the task is cleared"


def fenced_line(job_name: str, epoch: int, newer_epoch: int) -> str:
    """Return the last line of a fenced attempt, which is not retried."""
    return (
        f"Attempt {newer_epoch} of job {job_name!r} has replaced attempt {epoch}, whose new checkpoints are rejected "
        "(fenced)."
    )


def leftover_line(registration: RegisterAttempt, effects: OpenEffects, deleted: Container[int]) -> str | None:
    """
    Return a line about files that a finished attempt leaves and that are unused after its run.

    :param effects: The checkpoints that the end of the attempt retained or discarded.
    :param deleted: Ids of the discarded checkpoints whose files are deleted.
    :return: ``None`` if no file is left.
    """
    name = registration.job_name
    ends_with_run = is_named_after_run(name, registration.owner)
    retained = [c.checkpoint_id for c in effects.retained if ends_with_run and not c.properties.is_savepoint]
    undeleted = [c.checkpoint_id for c in effects.discards if c.checkpoint_id not in deleted]
    left = sorted({*retained, *undeleted})
    if not left:
        return None
    when = " after the end of the run" if retained else ""
    command = "prune --test-jobs" if is_test_job(name) else "gc --all"
    return (
        f"Job {name!r} leaves {'checkpoint' if len(left) == 1 else 'checkpoints'} {', '.join(map(str, left))} below "
        f"{redact(registration.storage_base)}. 'airflow statecheck {command}' or the Dag statecheck_maintenance "
        f"deletes unneeded files{when}."
    )


def latest_retained(view: JobView, operator_id: OperatorId) -> CheckpointRecord | None:
    """Return the newest checkpoint of an operator that a retry can restore."""
    generations = {o.operator_id: o.generation for o in view.operators}
    restorable = [
        c for c in view.of_operator(operator_id) if c.is_restorable and c.generation == generations.get(operator_id)
    ]
    return restorable[-1] if restorable else None


def stopping_savepoint(view: JobView, attempt: AttemptRef) -> str | None:
    """Return the location of the savepoint that suspended an attempt or its whole job, ``None`` if none did."""
    row = next((a for a in view.attempts if (a.operator_id, a.epoch) == (attempt.operator_id, attempt.epoch)), None)
    checkpoints = view.of_operator(attempt.operator_id)
    completed = [c for c in checkpoints if c.epoch == attempt.epoch and c.completed_at]
    if row is None or row.status is AttemptStatus.FINISHED or not completed:
        return None
    generations = {c.generation for c in checkpoints if c.completed_at}
    earlier = [a for a in view.attempts if is_retry_of(row, a, generations.__contains__)]
    should_stop = [partial(each.should_stop_with, checkpoints=checkpoints) for each in earlier]
    own = (c for c in checkpoints if _has_stopped(c, row, should_stop))
    of_job = (c for c in view.checkpoints_of_job if _has_held(c, row, completed[-1], should_stop))
    return next((c.location for c in (*own, *of_job)), None)


_ShouldStop = Callable[[CheckpointRecord], bool]
"""Tells whether an earlier attempt should have stopped with a savepoint."""


def _has_stopped(savepoint: CheckpointRecord, attempt: AttemptRecord, should_stop: Iterable[_ShouldStop]) -> bool:
    """Return whether an attempt has stopped with a completed savepoint that it or an earlier attempt should take."""
    completed = savepoint.completed_at
    if savepoint.properties.snapshot_type is not CheckpointType.SAVEPOINT_SUSPEND or completed is None:
        return False
    if savepoint.epoch == attempt.epoch:
        return attempt.ended_at is None or completed <= attempt.ended_at
    return any(should(savepoint) for should in should_stop)


def _has_held(
    savepoint: CheckpointRecord, attempt: AttemptRecord, newest: CheckpointRecord, should_stop: Iterable[_ShouldStop]
) -> bool:
    """
    Return whether an attempt has stopped after its newest checkpoint with a completed savepoint of its job.

    It has waited for the savepoint, or is the retry of one that has, or that ran or had failed when it was triggered.
    """
    if savepoint.properties.snapshot_type is not CheckpointType.SAVEPOINT_SUSPEND or not newest.is_after(savepoint):
        return False
    if savepoint.completed_at is None or newest.completed_at is None:
        return False
    if newest.completed_at > savepoint.completed_at:
        return any(should(savepoint) for should in should_stop)
    return attempt.ended_at is None or attempt.ended_at >= savepoint.completed_at
