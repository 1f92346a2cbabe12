"""Decision whether an attempt restores the state of its operator or restarts its run."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.fencing import is_of_new_run, is_of_same_try
from airflow_provider_statecheck.checkpoint.ids import is_test_job
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.properties import RestoreSource
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, OnClear, TaskState


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
