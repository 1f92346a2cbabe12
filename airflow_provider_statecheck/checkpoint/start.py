"""Whether an attempt goes on from the newest checkpoint or begins its run again: clear is not retry."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.ids import is_test_job
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, OnClear


@dataclass(frozen=True, slots=True)
class StartDecision:
    """How an attempt starts, and why."""

    goes_on: bool
    """Whether from the newest checkpoint, not from where the state stood before the run."""
    reason: str
    verify_fingerprints: bool = True


def decide_start(previous: AttemptRecord | None, request: RegisterAttempt) -> StartDecision:
    """
    Decide how an attempt starts.

    :param previous: The attempt of the same operator before this one; the newest of its own run, where it was that run
        which took the newest checkpoint.
    :param request: The registration.
    """
    if previous is None:
        return StartDecision(False, "first attempt")
    if _is_rerun_of_old_date(previous, request):
        return StartDecision(False, "a new run under the logical date of an earlier one")
    if not _is_same_run(previous, request):
        return StartDecision(True, "the job's state goes on in a new run")
    if previous.owner.clear_marker != request.owner.clear_marker:
        return _after_clear(previous.status, request)
    return StartDecision(True, f"retry after an attempt that {_ENDED[previous.status]}")


_ENDED = {
    AttemptStatus.RUNNING: "never closed and was probably killed",
    AttemptStatus.FINISHED: "finished",
    AttemptStatus.FAILED: "failed",
    AttemptStatus.FENCED: "was fenced",
}


def _after_clear(status: AttemptStatus, request: RegisterAttempt) -> StartDecision:
    what = _what_happened(status, request)
    if request.on_clear is OnClear.RESTART:
        return StartDecision(False, f"{what}, and on_clear is restart")
    if request.on_clear is OnClear.RESUME:
        return StartDecision(True, f"{what}, and on_clear is resume", verify_fingerprints=False)
    return StartDecision(status is not AttemptStatus.FINISHED, what)


def _what_happened(status: AttemptStatus, request: RegisterAttempt) -> str:
    if request.owner.is_script:
        return f"started again after an attempt that {_ENDED[status]}"
    return "cleared after success" if status is AttemptStatus.FINISHED else "cleared before it finished"


def _is_same_run(previous: AttemptRecord, request: RegisterAttempt) -> bool:
    return previous.owner.run_key == request.owner.run_key


def _is_rerun_of_old_date(previous: AttemptRecord, request: RegisterAttempt) -> bool:
    # A test run gets a new run id each time; there the logical date alone is the run, so that a second call resumes.
    if is_test_job(request.job_name):
        return False
    return _is_same_run(previous, request) and previous.owner.run_id != request.owner.run_id
