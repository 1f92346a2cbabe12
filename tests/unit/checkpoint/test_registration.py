"""Where an attempt starts, and what happens while somebody is asked whether a task runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.declared_uids import DagTasks
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus, OnClear, TaskState
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    ConcurrentAttemptError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StaleAttemptError,
)
from tests.contracts.operator_uids_contract import owner_of_task, registration
from tests.contracts.runs_of_a_job import CurrentDags, day, rows_of
from tests.messages import complete_checkpoint, make_leadership, make_owner, make_registration
from tests.sqlite_rows import new_store

JOB = job_id_of("sales")


@pytest.fixture
def coordinator() -> AttemptCoordinator:
    return AttemptCoordinator(new_store())


@pytest.mark.parametrize(
    ("status", "on_clear", "restores", "reason"),
    [
        (None, OnClear.RESUME_UNCHANGED, True, "that never closed and was probably killed"),
        (AttemptStatus.FAILED, OnClear.RESUME_UNCHANGED, True, "that failed"),
        (AttemptStatus.FINISHED, OnClear.RESUME_UNCHANGED, False, "that finished"),
        (AttemptStatus.FAILED, OnClear.RESTART, False, "that failed, and on_clear is restart"),
    ],
)
def test_the_start_of_a_script_says_how_the_attempt_before_it_ended(
    coordinator: AttemptCoordinator, status: AttemptStatus | None, on_clear: OnClear, restores: bool, reason: str
) -> None:
    first, second = (make_owner(logical_task="script/sales", clear_marker=start) for start in ("one", "another"))
    attempt = coordinator.register(make_registration(owner=first)).attempt
    complete_checkpoint(coordinator, attempt)
    if status is not None:
        coordinator.finish(FinishAttempt(attempt=attempt, status=status))
    grant = coordinator.register(make_registration(owner=second, on_clear=on_clear))
    assert (grant.is_restore, grant.start_reason) == (restores, f"started again after an attempt {reason}")


def test_numbers_of_retained_checkpoints_and_runs_may_be_of_numpy(coordinator: AttemptCoordinator) -> None:
    request = make_registration(num_retained=np.int64(3), retained_runs=np.int32(0))
    coordinator.register(request)
    (attempt,) = coordinator.describe(JOB).attempts
    assert (attempt.num_retained, attempt.retained_runs) == (3, 0)
    assert {type(attempt.num_retained), type(encode(request)["num_retained"])} == {int}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *product(("num_retained", "retained_runs"), (True, 2.0, "2", None)),
        # It would count as true.
        ("allow_non_restored_state", "no"),
    ],
)
def test_a_setting_of_another_type_is_refused(coordinator: AttemptCoordinator, setting: str, value: object) -> None:
    with pytest.raises(InvalidConfigurationError, match=setting):
        coordinator.register(make_registration(**{setting: value}))


def test_the_retry_of_a_fenced_attempt_says_so() -> None:
    coordinator = coordinator_with(Meanwhile())
    complete_checkpoint(coordinator, coordinator.register(make_registration(owner=day(1))).attempt)
    coordinator.register(make_registration(owner=day(2)))
    grant = coordinator.register(make_registration(owner=day(1)))
    assert (grant.is_restore, grant.start_reason) == (True, "retry after an attempt that was replaced")


@pytest.mark.parametrize(
    ("number", "status", "restores", "reason"),
    [
        (1, AttemptStatus.FINISHED, False, "a new run with the id of a deleted run"),
        (2, AttemptStatus.FINISHED, False, "a new run with the id of a deleted run"),
        (3, AttemptStatus.FINISHED, True, "retry after an attempt that finished"),
        (1, AttemptStatus.FAILED, False, "a new run with the id of a deleted run"),
        (3, AttemptStatus.FAILED, True, "retry after an attempt that failed"),
    ],
)
def test_a_run_that_is_deleted_and_created_again_with_its_id_starts_again(
    coordinator: AttemptCoordinator, number: int, status: AttemptStatus, restores: bool, reason: str
) -> None:
    def of_try(number: int) -> AttemptOwner:
        return instance(0, label=f"task dag.load of run scheduled__2026-01-01, try {number}")

    attempt = coordinator.register(make_registration(owner=of_try(2))).attempt
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=status))
    grant = coordinator.register(make_registration(owner=of_try(number)))
    assert (grant.is_restore, grant.start_reason) == (restores, reason)


@pytest.mark.parametrize("status", [None, AttemptStatus.FINISHED, AttemptStatus.FAILED])
def test_a_task_that_comes_back_within_its_try_goes_on(
    coordinator: AttemptCoordinator, status: AttemptStatus | None
) -> None:
    owner = instance(0, label="task dag.load of run scheduled__2026-01-01, try 2", ti_id="0193")
    attempt = coordinator.register(make_registration(owner=owner)).attempt
    complete_checkpoint(coordinator, attempt)
    if status is not None:
        coordinator.finish(FinishAttempt(attempt=attempt, status=status))
    # Another task of the run was cleared meanwhile.
    grant = coordinator.register(make_registration(owner=replace(owner, clear_marker="3/1")))
    assert grant.is_restore
    assert grant.start_reason.startswith("the task continues its try, after an attempt that ")


@pytest.mark.parametrize("number", [1, 2])
def test_a_new_run_with_the_id_of_a_deleted_run_has_other_task_instances(
    coordinator: AttemptCoordinator, number: int
) -> None:
    before, after = (
        instance(0, label=f"task dag.load of run scheduled__2026-01-01, try {each}", ti_id=ti_id)
        for each, ti_id in ((2, "0193"), (number, "0194"))
    )
    complete_checkpoint(coordinator, coordinator.register(make_registration(owner=before)).attempt)
    grant = coordinator.register(make_registration(owner=after))
    assert (grant.is_restore, grant.start_reason) == (False, "a new run with the id of a deleted run")


def test_a_task_that_was_cleared_while_it_was_away_starts_again(coordinator: AttemptCoordinator) -> None:
    label = "task dag.load of run scheduled__2026-01-01, try {}"
    before = instance(0, label=label.format(1), ti_id="0193", clear_marker="0/0")
    attempt = coordinator.register(make_registration(owner=before)).attempt
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
    cleared = instance(0, label=label.format(2), ti_id="0194", clear_marker="1/1")
    grant = coordinator.register(make_registration(owner=cleared))
    assert (grant.is_restore, grant.start_reason) == (False, "cleared after success")


CLEARED = "9/9"


@pytest.mark.parametrize(
    ("status", "found", "on_clear", "restores", "reason"),
    [
        (AttemptStatus.FAILED, TaskState.DISCARDED, OnClear.RESUME_UNCHANGED, False, "its task state was not kept"),
        (AttemptStatus.FAILED, TaskState.DISCARDED, OnClear.RESUME, False, "its task state was not kept"),
        (AttemptStatus.FINISHED, TaskState.DISCARDED, OnClear.RESUME_UNCHANGED, False, "its task state was not kept"),
        (AttemptStatus.FAILED, TaskState.KEPT, OnClear.RESUME_UNCHANGED, True, "its task state was kept"),
        (AttemptStatus.FINISHED, TaskState.KEPT, OnClear.RESUME_UNCHANGED, True, "its task state was kept"),
        (AttemptStatus.FINISHED, TaskState.KEPT, OnClear.RESTART, False, "on_clear is restart"),
        (AttemptStatus.FAILED, TaskState.PRESENT, OnClear.RESUME_UNCHANGED, True, "cleared before it finished"),
        (AttemptStatus.FINISHED, TaskState.PRESENT, OnClear.RESUME_UNCHANGED, False, "cleared after success"),
        (AttemptStatus.FAILED, TaskState.UNKNOWN, OnClear.RESUME_UNCHANGED, True, "cleared before it finished"),
    ],
)
def test_a_cleared_task_starts_as_the_user_chose_for_its_task_state(
    coordinator: AttemptCoordinator,
    status: AttemptStatus,
    found: TaskState,
    on_clear: OnClear,
    restores: bool,
    reason: str,
) -> None:
    first = make_owner(task_state=TaskState.DISCARDED)
    attempt = coordinator.register(make_registration(owner=first)).attempt
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=status))
    cleared = make_owner(task_state=found, clear_marker=CLEARED)
    grant = coordinator.register(make_registration(owner=cleared, on_clear=on_clear))
    assert grant.is_restore is restores
    assert grant.start_reason.endswith(reason)


def test_a_missing_marker_is_no_choice_where_no_earlier_try_wrote_one(coordinator: AttemptCoordinator) -> None:
    attempt = coordinator.register(make_registration(owner=make_owner())).attempt
    complete_checkpoint(coordinator, attempt)
    cleared = make_owner(task_state=TaskState.DISCARDED, clear_marker=CLEARED)
    assert coordinator.register(make_registration(owner=cleared)).start_reason == "cleared before it finished"


def test_a_missing_marker_is_no_choice_in_a_retry(coordinator: AttemptCoordinator) -> None:
    attempt = coordinator.register(make_registration(owner=make_owner(task_state=TaskState.DISCARDED))).attempt
    complete_checkpoint(coordinator, attempt)
    assert coordinator.register(make_registration(owner=make_owner(task_state=TaskState.DISCARDED))).is_restore


@pytest.mark.parametrize("is_later_try_known", [True, False], ids=["delayed", "of a new run"])
def test_a_try_after_a_later_one_is_refused_unless_its_run_was_created_again(is_later_try_known: bool) -> None:
    delayed, later = (instance(0, label=f"task dag.load of run monday, try {number}") for number in (1, 2))
    coordinator = coordinator_with(Meanwhile(*([later] if is_later_try_known else [])))
    attempt = coordinator.register(make_registration(owner=later)).attempt
    complete_checkpoint(coordinator, attempt)
    if not is_later_try_known:
        assert not coordinator.register(make_registration(owner=delayed)).is_restore
        return
    with pytest.raises(StaleAttemptError, match=r"try 1 after task dag\.load of run monday, try 2"):
        coordinator.register(make_registration(owner=delayed))
    assert coordinator.describe(JOB).attempts[-1].is_running


def test_a_test_run_of_an_existing_run_resumes_each_time(coordinator: AttemptCoordinator) -> None:
    owner = instance(0, label="task dag.load of run scheduled__2026-01-01, try 2")
    attempt = coordinator.register(make_registration(job_name="test/sales", owner=owner)).attempt
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
    grant = coordinator.register(make_registration(job_name="test/sales", owner=owner))
    assert (grant.is_restore, grant.start_reason) == (True, "retry after an attempt that finished")


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

    def is_last_try(self, owner: AttemptOwner) -> bool:
        return self.is_running(owner)

    def earlier_run_of(self, owner: AttemptOwner) -> str | None:
        return None


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
    liveness.act = lambda: coordinator.adopt(attempt, day(1, label="try 2"))
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


@pytest.mark.parametrize(("job_name", "is_refused"), [("sales", True), ("test/sales", False)])
def test_dags_that_are_paused_run_in_the_namespace_of_tests(job_name: str, is_refused: bool) -> None:
    dags = CurrentDags()
    dags.put("orders", "totals", is_paused=True)
    coordinator = AttemptCoordinator(new_store(), dags=dags)
    complete_checkpoint(coordinator, coordinator.register(registration("totals", job_name=job_name)).attempt)
    added = registration("sums", owner=owner_of_task("sums", dag_id="books"), job_name=job_name)
    if not is_refused:
        assert "another Dag has operator 'totals'" in coordinator.register(added).warning
        return
    with pytest.raises(IncompatibleCheckpointError, match="which is paused"):
        coordinator.register(added)


class AskedDags(CurrentDags):
    """Writes to the job while it is asked, which waits for an open transaction."""

    def __init__(self, store: JobStore) -> None:
        super().__init__()
        self._store = store
        self.asked: list[tuple[str, str]] = []

    def tasks_of(self, dag_id: str, job_name: str) -> DagTasks | None:
        self.asked.append((dag_id, job_name))
        with self._store.transaction(JOB):
            return super().tasks_of(dag_id, job_name)


def test_dags_are_looked_up_once_and_outside_of_the_transaction() -> None:
    store = new_store()
    dags = AskedDags(store)
    coordinator = AttemptCoordinator(store, dags=dags)
    for dag_id in ("orders", "books"):
        dags.put(dag_id, f"of_{dag_id}")
        owner = owner_of_task(f"of_{dag_id}", dag_id=dag_id)
        request = registration(f"of_{dag_id}", owner=owner, allow_non_restored_state=True)
        complete_checkpoint(coordinator, coordinator.register(request).attempt)
    dags.asked.clear()
    coordinator.register(registration("added", owner=owner_of_task("added", dag_id="third")))
    assert dags.asked == [("books", "sales"), ("orders", "sales")]


def test_the_leader_of_aligned_checkpoints_is_no_operator_that_could_be_gone() -> None:
    store = new_store()
    AlignedCheckpoints(store).lead(make_leadership(owner=day(1)))
    assert AttemptCoordinator(store).register(registration("sums")).gone_uids == ()


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
        coordinator.adopt(attempt, instance(1))


@pytest.mark.parametrize("status", [None, AttemptStatus.FINISHED, AttemptStatus.FAILED])
def test_an_instance_with_the_map_key_of_another_one_is_refused_although_it_alone_was_cleared(
    status: AttemptStatus | None,
) -> None:
    coordinator = coordinator_with(Meanwhile(instance(0)))
    worked(coordinator, status)
    before = rows_of(coordinator.describe(JOB))
    with pytest.raises(InvalidConfigurationError, match=r"found 'dag/load\[oslo\]' at the instances 0 and 1"):
        coordinator.register(make_registration(owner=instance(1, clear_marker="4/1")))
    assert rows_of(coordinator.describe(JOB)) == before


@pytest.mark.parametrize(
    "changes", [{"clear_marker": "4/1"}, {"run_id": "next", "run_key": "2026-01-02"}], ids=["cleared", "next run"]
)
def test_a_map_key_may_have_another_index_after_a_clear_and_in_another_run(
    coordinator: AttemptCoordinator, changes: dict[str, str]
) -> None:
    worked(coordinator, AttemptStatus.FAILED)
    assert coordinator.register(make_registration(owner=instance(1, **changes))).is_restore
