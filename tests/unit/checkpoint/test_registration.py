"""Where an attempt starts, and what happens while somebody is asked whether a task runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AdoptAttempt, AttemptGrant, FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptRecord, AttemptStatus, OnClear
from airflow_provider_statecheck.checkpoint.registration import StartDecision, decide_start
from airflow_provider_statecheck.exceptions import (
    ConcurrentAttemptError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StaleAttemptError,
)
from tests.contracts.operator_uids_contract import registration
from tests.contracts.runs_of_a_job import day
from tests.messages import complete_checkpoint, make_leadership, make_owner, make_registration
from tests.sqlite_rows import new_store

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


JOB = job_id_of("sales")


class Meanwhile:
    """Does something when it is asked for the first time; after that the tasks of some runs run."""

    def __init__(self, *running: AttemptOwner) -> None:
        self.running = [owner.run_id for owner in running]
        self.asked: list[str] = []
        self.act: Callable[[], object] = lambda: None

    def is_running(self, owner: AttemptOwner) -> bool:
        self.asked.append(owner.run_id)
        if len(self.asked) == 1:
            self.act()
        return owner.run_id in self.running


def coordinator_with(liveness: Meanwhile) -> AttemptCoordinator:
    return AttemptCoordinator(new_store(), liveness)


def test_nobody_is_asked_about_a_retry_or_an_attempt_that_ended() -> None:
    liveness = Meanwhile(day(1))
    coordinator = coordinator_with(liveness)
    coordinator.register(make_registration(owner=day(1)))
    grant = coordinator.register(make_registration(owner=day(1)))
    coordinator.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FAILED))
    coordinator.register(make_registration(owner=day(2)))
    assert liveness.asked == []


def test_one_that_came_while_somebody_was_asked_is_asked_about_too() -> None:
    liveness = Meanwhile(day(2))
    coordinator = coordinator_with(liveness)
    coordinator.register(make_registration(owner=day(1)))
    liveness.act = lambda: coordinator.register(make_registration(owner=day(2)))
    with pytest.raises(ConcurrentAttemptError):
        coordinator.register(make_registration(owner=day(3)))
    assert liveness.asked[0] == day(1).run_id
    assert liveness.asked[-1] == day(2).run_id
    assert coordinator.describe(JOB).attempts[-1].owner == day(2)


def test_one_that_was_adopted_while_somebody_was_asked_is_asked_about_again() -> None:
    liveness = Meanwhile()
    coordinator = coordinator_with(liveness)
    attempt = coordinator.register(make_registration(owner=day(1))).attempt
    adopt = AdoptAttempt(attempt=attempt, owner=day(1, label="try 2"))
    liveness.act = lambda: coordinator.adopt(adopt)
    coordinator.register(make_registration(owner=day(2)))
    assert liveness.asked == [day(1).run_id] * 2


def test_one_that_ended_while_somebody_was_asked_is_not_fenced() -> None:
    liveness = Meanwhile()
    coordinator = coordinator_with(liveness)
    attempt = coordinator.register(make_registration(owner=day(1))).attempt
    complete_checkpoint(coordinator, attempt)
    liveness.act = lambda: coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
    assert coordinator.register(make_registration(owner=day(2))).is_restore
    assert coordinator.describe(JOB).attempts[0].status is AttemptStatus.FINISHED


@pytest.mark.parametrize("job_name", ["sales", "test/sales"])
def test_test_runs_have_the_same_rules_for_uids_as_real_jobs(job_name: str) -> None:
    coordinator = coordinator_with(Meanwhile())
    complete_checkpoint(coordinator, coordinator.register(registration("totals", job_name=job_name)).attempt)
    with pytest.raises(IncompatibleCheckpointError, match=f"operators of job '{job_name}' to be in use"):
        coordinator.register(registration("sums", job_name=job_name))
    renamed = registration("sums", job_name=job_name, former_uids=("totals",))
    assert coordinator.register(renamed).uid == "totals"


def test_the_leader_of_aligned_checkpoints_is_no_operator_that_could_be_gone() -> None:
    store = new_store()
    AlignedCheckpoints(store).lead(make_leadership(owner=day(1)))
    assert AttemptCoordinator(store).register(registration("sums")).gone_uids == ()


@pytest.fixture
def coordinator() -> AttemptCoordinator:
    return AttemptCoordinator(new_store())


def instance(index: int, **changes: str) -> AttemptOwner:
    """Return the owner of an attempt of one instance."""
    return make_owner(logical_task="dag/load[oslo]", airflow=(("map_index", str(index)),), **changes)


def worked(coordinator: AttemptCoordinator, status: AttemptStatus | None) -> AttemptGrant:
    """Let the first instance complete a checkpoint and end; ``None`` if it goes on."""
    grant = coordinator.register(make_registration(owner=instance(0)))
    complete_checkpoint(coordinator, grant.attempt)
    if status is not None:
        coordinator.finish(FinishAttempt(attempt=grant.attempt, status=status))
    return grant


@pytest.mark.parametrize("status", [None, AttemptStatus.FINISHED, AttemptStatus.FAILED])
def test_an_instance_with_the_map_key_of_another_one_is_refused(
    coordinator: AttemptCoordinator, status: AttemptStatus | None
) -> None:
    worked(coordinator, status)
    before = coordinator.describe(JOB).attempts
    with pytest.raises(InvalidConfigurationError, match=r"found 'dag/load\[oslo\]' at the instances 0 and 1"):
        coordinator.register(make_registration(owner=instance(1)))
    assert coordinator.describe(JOB).attempts == before


def test_an_instance_does_not_adopt_the_driver_of_another_one(coordinator: AttemptCoordinator) -> None:
    attempt = worked(coordinator, None).attempt
    with pytest.raises(StaleAttemptError, match="register an attempt instead"):
        coordinator.adopt(AdoptAttempt(attempt=attempt, owner=instance(1)))


@pytest.mark.parametrize(
    "changes", [{"clear_marker": "4/1"}, {"run_id": "next", "run_key": "2026-01-02"}], ids=["cleared", "next run"]
)
def test_a_map_key_may_have_another_index_after_a_clear_and_in_another_run(
    coordinator: AttemptCoordinator, changes: dict[str, str]
) -> None:
    worked(coordinator, AttemptStatus.FAILED)
    assert coordinator.register(make_registration(owner=instance(1, **changes))).is_restore
