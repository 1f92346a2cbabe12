from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptRecord, AttemptStatus, OnClear
from airflow_provider_statecheck.checkpoint.registration import StartDecision, decide_start
from tests.messages import make_owner, make_registration

CLEARED = make_owner(clear_marker="4/0")
NEXT_RUN = make_owner(run_key="2026-01-02", run_id="scheduled__2026-01-02")
SAME_DATE_NEW_RUN = make_owner(run_id="manual__2026-01-01")


def previous(status: AttemptStatus = AttemptStatus.FAILED) -> AttemptRecord:
    return AttemptRecord(
        job_id=job_id_of("sales"),
        operator_id=operator_id_of("aggregate"),
        epoch=1,
        attempt_key="first",
        generation=1,
        status=status,
        owner=make_owner(),
        start_reason="first attempt",
        restored_from=None,
        storage_base="memory://base",
        num_retained=2,
        checkpoint_timeout_seconds=600.0,
        registered_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def decide(
    status: AttemptStatus, owner: AttemptOwner, on_clear: OnClear = OnClear.RESUME_UNCHANGED, job: str = "sales"
) -> StartDecision:
    return decide_start(previous(status), make_registration(owner=owner, on_clear=on_clear, job_name=job))


def test_the_first_attempt_begins_its_run():
    assert decide_start(None, make_registration()) == StartDecision(False, "first attempt")


@pytest.mark.parametrize("on_clear", OnClear)
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (AttemptStatus.RUNNING, "retry after an attempt that never closed and was probably killed"),
        (AttemptStatus.FINISHED, "retry after an attempt that finished"),
        (AttemptStatus.FAILED, "retry after an attempt that failed"),
        (AttemptStatus.FENCED, "retry after an attempt that was fenced"),
    ],
)
def test_a_retry_restores_whatever_a_clear_would_do(status, reason, on_clear):
    assert decide(status, make_owner(), on_clear) == StartDecision(True, reason)


@pytest.mark.parametrize(
    ("status", "on_clear", "expected"),
    [
        (AttemptStatus.FAILED, OnClear.RESUME_UNCHANGED, StartDecision(True, "cleared before it finished")),
        (AttemptStatus.RUNNING, OnClear.RESUME_UNCHANGED, StartDecision(True, "cleared before it finished")),
        (AttemptStatus.FINISHED, OnClear.RESUME_UNCHANGED, StartDecision(False, "cleared after success")),
        (
            AttemptStatus.FAILED,
            OnClear.RESUME,
            StartDecision(True, "cleared before it finished, and on_clear is resume", verify_fingerprints=False),
        ),
        (
            AttemptStatus.FINISHED,
            OnClear.RESUME,
            StartDecision(True, "cleared after success, and on_clear is resume", verify_fingerprints=False),
        ),
        (
            AttemptStatus.FAILED,
            OnClear.RESTART,
            StartDecision(False, "cleared before it finished, and on_clear is restart"),
        ),
        (
            AttemptStatus.FINISHED,
            OnClear.RESTART,
            StartDecision(False, "cleared after success, and on_clear is restart"),
        ),
    ],
)
def test_a_clear_does_what_on_clear_says(status, on_clear, expected):
    assert decide(status, CLEARED, on_clear) == expected


@pytest.mark.parametrize(
    ("status", "on_clear", "expected"),
    [
        (
            AttemptStatus.RUNNING,
            OnClear.RESUME_UNCHANGED,
            StartDecision(True, "started again after an attempt that never closed and was probably killed"),
        ),
        (
            AttemptStatus.FAILED,
            OnClear.RESUME_UNCHANGED,
            StartDecision(True, "started again after an attempt that failed"),
        ),
        (
            AttemptStatus.FINISHED,
            OnClear.RESUME_UNCHANGED,
            StartDecision(False, "started again after an attempt that finished"),
        ),
        (
            AttemptStatus.FAILED,
            OnClear.RESTART,
            StartDecision(False, "started again after an attempt that failed, and on_clear is restart"),
        ),
    ],
)
def test_the_start_of_a_script_says_how_the_attempt_before_it_ended(status, on_clear, expected):
    script = make_owner(logical_task="script/sales", clear_marker="another start")
    assert decide(status, script, on_clear) == expected


@pytest.mark.parametrize("on_clear", OnClear)
@pytest.mark.parametrize("status", AttemptStatus)
def test_the_state_of_a_job_goes_on_in_its_next_run(status, on_clear):
    assert decide(status, NEXT_RUN, on_clear) == StartDecision(True, "a new run continues the state of the job")


@pytest.mark.parametrize("status", AttemptStatus)
def test_a_new_run_under_an_old_logical_date_begins_it_again(status):
    expected = StartDecision(False, "a new run with the logical date of an earlier run")
    assert decide(status, SAME_DATE_NEW_RUN) == expected


def test_a_second_test_run_of_one_date_is_a_retry():
    assert decide(AttemptStatus.FAILED, SAME_DATE_NEW_RUN, job="test/sales").resumes
