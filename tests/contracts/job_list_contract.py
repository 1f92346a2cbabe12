"""
What holds for the list of jobs; a subclass gives the fixture ``store``.

Random histories compare the list with a plain computation over the views of all jobs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.job_list import (
    JobList,
    JobOverview,
    JobSort,
    JobsPage,
    ListedStatus,
    failure_of_attempt,
    failure_of_checkpoint,
    status_of,
)
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.row_removal import DEFAULT_AGE
from airflow_provider_statecheck.checkpoint.store import JobStore, JobView
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RetireJob
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from tests.contracts.maintenance_contract import KnownRuns, MaintenanceContract, NoTokens
from tests.contracts.runs_of_a_job import JOB, day
from tests.job_savepoints import copy_checkpoint
from tests.messages import ManualClock, complete_checkpoint, make_leadership, make_owner, make_registration, present
from tests.soak import rest_in_soak


def owned_by(dag_id: str | None, **changes: Any) -> AttemptOwner:
    """Return the owner of an attempt of a Dag, or of a script for ``None``."""
    if dag_id is None:
        return make_owner(**{"logical_task": "script/x", "label": "script"} | changes)
    coordinates = (("dag_id", dag_id), ("run_id", "r"), ("task_id", "t"), ("map_index", "-1"))
    return make_owner(**{"logical_task": f"{dag_id}/t", "airflow": coordinates} | changes)


def names(listed: JobList) -> list[str]:
    return [overview.name for overview in listed.jobs]


class JobListContract:
    """What holds for the list of jobs, whatever keeps the rows."""

    @pytest.fixture(autouse=True)
    def _parts(self, store: JobStore) -> None:
        self.rows = store
        self.coordinator = AttemptCoordinator(store)

    def begin(self, name: str = "sales", dag_id: str | None = "daily", **changes: Any) -> Any:
        """Register an attempt and return it."""
        registration = make_registration(**{"job_name": name, "owner": owned_by(dag_id)} | changes)
        return self.coordinator.register(registration).attempt

    def only(self, **page: Any) -> JobOverview:
        [overview] = self.rows.job_overviews(JobsPage(**page)).jobs
        return overview

    # --- one job

    def test_a_running_job_is_listed_with_its_newest_checkpoint(self, clock: ManualClock) -> None:
        attempt = self.begin()
        for size in (700, 900):
            clock.advance(60)
            complete_checkpoint(self.coordinator, attempt, full_size_bytes=size)
        assert self.only() == JobOverview(
            job_id=JOB,
            name="sales",
            status=ListedStatus.RUNNING,
            seen_at=clock.now(),
            operators=1,
            dag_ids=("daily",),
            checkpoint_id=2,
            completed_at=clock.now(),
            full_size_bytes=900,
            earlier_size_bytes=700,
        )

    def test_the_earlier_size_is_one_of_the_same_operator(self, clock: ManualClock) -> None:
        for uid, size in (("a", 10), ("b", 500), ("a", 20)):
            attempt = self.begin(uid=uid)
            complete_checkpoint(self.coordinator, attempt, full_size_bytes=size)
            clock.advance(1)
        overview = self.only()
        assert (overview.operators, overview.full_size_bytes, overview.earlier_size_bytes) == (2, 20, 10)

    @pytest.mark.parametrize(
        ("ends", "status"),
        [
            ([AttemptStatus.FINISHED, AttemptStatus.FINISHED], ListedStatus.FINISHED),
            ([AttemptStatus.FAILED, AttemptStatus.FINISHED], ListedStatus.FAILED),
            ([AttemptStatus.FAILED, None], ListedStatus.RUNNING),
        ],
    )
    def test_the_status_is_that_of_all_operators(self, ends: list[AttemptStatus | None], status: ListedStatus) -> None:
        attempts = [self.begin(uid=f"operator {number}") for number in range(len(ends))]
        for attempt, end in zip(attempts, ends, strict=True):
            if end is not None:
                self.coordinator.finish(FinishAttempt(attempt=attempt, status=end))
        assert self.only().status is status

    def test_a_failed_attempt_is_the_last_failure_also_after_a_retry(self, clock: ManualClock) -> None:
        failed = self.begin()
        self.coordinator.finish(
            FinishAttempt(attempt=failed, status=AttemptStatus.FAILED, message="disk\nfull " + "x" * 999)
        )
        failed_at = clock.now()
        clock.advance(60)
        retry = self.begin()
        complete_checkpoint(self.coordinator, retry)
        overview = self.only()
        assert (overview.status, overview.failed_at) == (ListedStatus.RUNNING, failed_at)
        failure = present(overview.failure)
        assert (failure[:13], len(failure)) == ("disk full xxx", 300)

    def test_a_killed_driver_and_a_declined_checkpoint_are_failures(self, clock: ManualClock) -> None:
        self.begin()
        clock.advance(60)
        retry = self.begin()
        assert (self.only().failed_at, self.only().failure) == (
            clock.now(),
            "attempt 1 was replaced or abandoned before it ended",
        )
        clock.advance(60)
        pending = self.coordinator.trigger(TriggerCheckpoint(attempt=retry, request_key=new_key()))
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        self.coordinator.decline(
            DeclineCheckpoint(attempt=retry, checkpoint_id=pending.checkpoint_id, reason=reason, message="no space")
        )
        overview = self.only()
        assert (overview.failed_at, overview.failure) == (clock.now(), "checkpoint 1: no space")

    def test_a_job_that_was_removed_is_not_listed_until_it_runs_again(self, clock: ManualClock) -> None:
        attempt = self.begin()
        complete_checkpoint(self.coordinator, attempt)
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED, message="disk full"))
        MaintenanceContract.remove(JobMaintenance(self.rows, KnownRuns(), NoTokens(), clock), JOB)
        assert self.rows.job_overviews(JobsPage()) == JobList(jobs=(), counts={})
        self.begin(dag_id="weekly")
        overview = self.only()
        assert (overview.status, overview.dag_ids) == (ListedStatus.RUNNING, ("weekly",))
        assert (overview.checkpoint_id, overview.failed_at) == (None, None)

    def test_an_operator_that_never_registers_again_after_a_removal_does_not_hide_the_job(
        self, clock: ManualClock
    ) -> None:
        attempts = [self.begin(), self.begin(uid="gone")]
        for attempt in attempts:
            complete_checkpoint(self.coordinator, attempt)
            self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        MaintenanceContract.remove(JobMaintenance(self.rows, KnownRuns(), NoTokens(), clock), JOB)
        self.begin()
        overview = self.only(readable_dag_ids=frozenset(["daily"]))
        assert (overview.operators, overview.is_of_unknown_dag) == (1, False)
        assert not self.rows.describe(JOB).is_of_unknown_dag

    def test_a_savepoint_of_the_whole_job_does_not_hide_the_job(self) -> None:
        self.begin()
        owner = make_owner(airflow=())
        AlignedCheckpoints(self.rows).lead(make_leadership(job_name=self.rows.describe(JOB).job.name, owner=owner))
        assert not self.only(readable_dag_ids=frozenset(["daily"])).is_of_unknown_dag
        assert not self.rows.describe(JOB).is_of_unknown_dag

    def test_who_takes_a_savepoint_of_the_whole_job_makes_it_neither_running_nor_failed(self) -> None:
        self.coordinator.finish(FinishAttempt(attempt=self.begin(), status=AttemptStatus.FINISHED))
        owner = make_owner(airflow=())
        for _ in range(2):
            AlignedCheckpoints(self.rows).lead(make_leadership(owner=owner))
        overview = self.only()
        assert (overview.status, overview.failed_at) == (ListedStatus.FINISHED, None)

    def test_who_takes_a_savepoint_of_the_whole_job_is_no_operator_of_it(self) -> None:
        self.begin()
        AlignedCheckpoints(self.rows).lead(make_leadership(owner=make_owner(airflow=())))
        assert self.only().operators == 1

    def test_the_failures_of_a_program_with_its_own_coordinator_count_until_a_stage_begins(self) -> None:
        for _ in range(2):
            AlignedCheckpoints(self.rows).lead(make_leadership())
        overview = self.only()
        assert (overview.status, overview.failure) == (
            ListedStatus.RUNNING,
            "attempt 1 was replaced or abandoned before it ended",
        )
        self.coordinator.finish(FinishAttempt(attempt=self.begin(), status=AttemptStatus.FINISHED))
        overview = self.only()
        assert (overview.status, overview.failed_at, overview.failure) == (ListedStatus.FINISHED, None, None)

    def test_a_rewound_job_is_listed_with_the_checkpoint_of_the_run_before(self, clock: ManualClock) -> None:
        for number in (1, 2):
            attempt = self.begin(owner=day(number), retained_runs=2)
            complete_checkpoint(self.coordinator, attempt, full_size_bytes=number * 100)
            self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
            clock.advance(60)
        assert (self.only().checkpoint_id, self.only().earlier_size_bytes) == (2, 100)
        JobRewinding(self.rows, UnknownLiveness()).rewind(RewindJob(job_id=JOB, run_key=day(2).run_key))
        assert (self.only().checkpoint_id, self.only().full_size_bytes) == (1, 100)

    def test_a_checkpoint_that_a_restore_skipped_is_not_listed(self, clock: ManualClock) -> None:
        attempt = self.begin(num_retained=2)
        for _ in range(2):
            complete_checkpoint(self.coordinator, attempt)
        retry = self.begin(num_retained=2)
        skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum differs"),)
        self.coordinator.confirm_restore(ConfirmRestore(attempt=retry, checkpoint_id=1, skipped=skipped))
        assert self.only().checkpoint_id == 1

    def test_the_times_of_a_clock_that_was_ahead_are_corrected(self, clock: ManualClock) -> None:
        clock.advance(86_400)
        attempt = self.begin()
        complete_checkpoint(self.coordinator, attempt)
        retry = self.begin()
        clock.advance(-86_400)
        self.coordinator.trigger(TriggerCheckpoint(attempt=retry, request_key=new_key()))
        assert (self.only().completed_at, self.only().failed_at) == (clock.now(), clock.now())

    # --- filters and permissions

    def test_jobs_are_found_by_a_part_of_the_name_with_any_characters(self) -> None:
        for name in ("Sales_EU", "salesXeu", "100%", "größe/ÄRGER"):
            self.begin(name)
        texts = ("ES_e", "0%", "GRÖ", "grö", "ÄRGER", "rger")
        found = {text: names(self.rows.job_overviews(JobsPage(name=text))) for text in texts}
        assert found == {
            "ES_e": ["Sales_EU"],
            "0%": ["100%"],
            "GRÖ": ["größe/ÄRGER"],
            "grö": ["größe/ÄRGER"],
            "ÄRGER": ["größe/ÄRGER"],
            "rger": ["größe/ÄRGER"],
        }

    def test_jobs_of_test_runs_are_listed_on_request(self) -> None:
        for name in ("test/sales", "testing", "Test/sales"):
            self.begin(name)
        assert names(self.rows.job_overviews(JobsPage())) == ["Test/sales", "testing"]
        listed = names(self.rows.job_overviews(JobsPage(with_test_jobs=True)))
        assert sorted(listed) == ["Test/sales", "test/sales", "testing"]

    def test_a_job_is_hidden_unless_all_its_dags_are_readable(self) -> None:
        for name, dag_id in (("both", "daily"), ("both", "weekly"), ("one", "daily"), ("script", None)):
            self.begin(name, dag_id, uid=f"of {dag_id}")

        def listed(*readable: str) -> tuple[list[str], dict[ListedStatus, int]]:
            found = self.rows.job_overviews(JobsPage(readable_dag_ids=frozenset(readable)))
            return names(found), found.counts

        assert listed() == ([], {})
        assert listed("weekly", "unknown") == ([], {})
        assert listed("daily") == (["one"], {ListedStatus.RUNNING: 1})
        assert listed("daily", "weekly") == (["both", "one"], {ListedStatus.RUNNING: 2})
        assert names(self.rows.job_overviews(JobsPage())) == ["both", "one", "script"]
        assert names(self.rows.job_overviews(JobsPage(dag_id="weekly"))) == ["both"]
        unreadable = JobsPage(dag_id="weekly", readable_dag_ids=frozenset(["daily"]))
        assert self.rows.job_overviews(unreadable) == JobList(jobs=(), counts={})

    def test_the_operator_of_a_script_belongs_to_the_dag_after_which_the_job_is_named(self) -> None:
        for name in ("daily/2026-01-01", "sales", "daily_sales"):
            self.begin(name, "daily")
            self.begin(name, None, uid="script")
        readable = frozenset(["daily"])
        assert names(self.rows.job_overviews(JobsPage(readable_dag_ids=readable))) == ["daily/2026-01-01"]

    def test_a_thousand_readable_dags_are_no_problem(self) -> None:
        self.begin()
        readable = frozenset(["daily", *(f"dag {number}" for number in range(5_000))])
        assert self.only(readable_dag_ids=readable).name == "sales"

    # --- pages

    def test_a_job_that_changes_between_two_pages_hides_no_other(self, clock: ManualClock) -> None:
        attempts = {}
        for name in "abcd":
            attempts[name] = self.begin(name)
            clock.advance(1)
            complete_checkpoint(self.coordinator, attempts[name])
        page = JobsPage(sort=JobSort.COMPLETED_AT, descending=True, limit=2)
        first = self.rows.job_overviews(page)
        complete_checkpoint(self.coordinator, attempts["c"])
        second = self.rows.job_overviews(replace(page, after=first.following))
        assert (names(first), names(second), second.following) == (["d", "c"], ["b", "a"], None)

    @pytest.mark.parametrize("after", ["", "x", "WyJuYW1lIl0=", "WzEsMiwzXQ==", "Ä", "W1tbW1tb" * 500])
    def test_a_position_of_another_order_is_refused(self, after: str) -> None:
        with pytest.raises(InvalidConfigurationError, match="request the first page again"):
            JobsPage(after=after)

    def test_positions_are_refused_that_databases_cannot_compare(self) -> None:
        page = JobsPage(sort=JobSort.SIZE)
        wrong: list[tuple[Any, Any]] = [
            (2**63, "a"),
            (1, "a\0"),
            ("1", "a"),
            (True, "a"),
            (1, None),
            (1, 1),
            (None, ["a"]),
        ]
        for value, name in wrong:
            with pytest.raises(InvalidConfigurationError):
                replace(page, after=page.following(value, name))
        with pytest.raises(InvalidConfigurationError):
            replace(page, after=JobsPage().following("a", "a"))
        others: list[Any] = [1, None, ["a"], {}]
        for other in others:
            with pytest.raises(InvalidConfigurationError):
                JobsPage(after=JobsPage().following(other, "a"))

    # --- all together

    @pytest.mark.parametrize("seed", rest_in_soak(range(8), 0))
    def test_the_list_equals_a_computation_over_the_views_of_all_jobs(self, clock: ManualClock, seed: int) -> None:
        chance = random.Random(seed)
        history = History(self.rows, clock, chance)
        for _ in range(5):
            history.run(20)
            expected = [overview_of(self.rows.describe(job.job_id)) for job in self.rows.jobs()]
            for page in chance.sample([*lists()], 12):
                assert_listed(self.rows, page, expected)


def overview_of(view: JobView) -> JobOverview:
    epochs = {operator.operator_id: operator.epoch for operator in view.operators}
    attempts = view.attempts_of_stages
    newest = _newest_checkpoint(view)
    failures = (*map(failure_of_attempt, attempts), *map(failure_of_checkpoint, view.checkpoints))
    last = max(filter(None, failures), default=None)
    return JobOverview(
        job_id=view.job.job_id,
        name=view.job.name,
        status=status_of(a.status for a in attempts if a.epoch == epochs[a.operator_id]),
        seen_at=view.job.seen_at,
        operators=len({a.operator_id for a in attempts}),
        dag_ids=view.dag_ids,
        is_of_unknown_dag=view.is_of_unknown_dag,
        checkpoint_id=None if newest is None else newest.checkpoint_id,
        completed_at=None if newest is None else newest.completed_at,
        full_size_bytes=None if newest is None else newest.full_size_bytes,
        earlier_size_bytes=None if newest is None else _earlier_size(view, newest),
        failed_at=None if last is None else last[0],
        failure=None if last is None else last[1],
    )


def _newest_checkpoint(view: JobView) -> CheckpointRecord | None:
    generations = {operator.operator_id: operator.generation for operator in view.operators}
    current = (c for c in view.checkpoints if c.is_usable and c.generation == generations[c.operator_id])
    return max(current, key=_completion_order, default=None)


def _earlier_size(view: JobView, newest: CheckpointRecord) -> int | None:
    earlier = (
        c
        for c in view.of_operator(newest.operator_id)
        if c.completed_at is not None
        and c.generation == newest.generation
        and (not c.properties.is_savepoint or c.properties.unclaimed)
        and _completion_order(c) < _completion_order(newest)
    )
    last = max(earlier, key=_completion_order, default=None)
    return None if last is None else last.full_size_bytes


def _completion_order(checkpoint: CheckpointRecord) -> tuple[datetime, int]:
    assert checkpoint.completed_at is not None
    return checkpoint.completed_at, checkpoint.checkpoint_id


def lists() -> Iterator[JobsPage]:
    """Return each order with each of some filters."""
    readable = (None, frozenset(["a"]), frozenset(["a", "b"]), frozenset[str]())
    matching: list[dict[str, Any]] = [{"readable_dag_ids": dags} for dags in readable]
    matching += [{"status": status} for status in ListedStatus]
    matching += [{"dag_id": "a"}, {"dag_id": "b", "readable_dag_ids": readable[2]}, {"name": "S/"}]
    for sort, descending, values in product(JobSort, (False, True), matching):
        yield JobsPage(sort=sort, descending=descending, with_test_jobs=len(values) == 1, limit=3, **values)


def assert_listed(store: JobStore, page: JobsPage, overviews: list[JobOverview]) -> None:
    """Compare the pages of a list with a plain computation."""
    matching = [overview for overview in overviews if is_readable(overview, page) and is_wanted(overview, page)]
    counts = Counter(overview.status for overview in matching)
    expected = [overview for overview in matching if page.status in (None, overview.status)]
    listed = [*pages(store, page)]
    assert {each.name: each for part in listed for each in part.jobs} == {each.name: each for each in expected}
    values = [sort_value(overview, page.sort) for part in listed for overview in part.jobs]
    assert len(values) == len(expected), "no job is on two pages"
    present = [value for value in values if value[0] is not None]
    assert [value for value in values if value[0] is None] == sorted(values[len(present) :]), "those without come last"
    by_name = sorted(present, key=lambda value: value[1])
    assert present == sorted(by_name, key=lambda value: value[0], reverse=page.descending)
    assert all(part.counts == counts for part in listed)


def pages(store: JobStore, page: JobsPage) -> Iterator[JobList]:
    """Follow the pages of a list to the last one."""
    while True:
        listed = store.job_overviews(page)
        assert len(listed.jobs) <= page.limit
        yield listed
        if listed.following is None:
            return
        assert len(listed.jobs) == page.limit
        page = replace(page, after=listed.following)


def is_readable(overview: JobOverview, page: JobsPage) -> bool:
    """Return whether the reader of a page may see a job."""
    readable = page.readable_dag_ids
    return readable is None or (not overview.is_of_unknown_dag and set(overview.dag_ids) <= readable)


def is_wanted(overview: JobOverview, page: JobsPage) -> bool:
    """Return whether a job matches the other filters of a page, except for its status."""
    return (
        (page.with_test_jobs or not overview.name.startswith("test/"))
        and (page.name is None or page.name.lower() in overview.name.lower())
        and (page.dag_id is None or page.dag_id in overview.dag_ids)
    )


def sort_value(overview: JobOverview, sort: JobSort) -> tuple[Any, str]:
    """Return the value by which a job is sorted, and its name."""
    value = {
        JobSort.NAME: overview.name,
        JobSort.COMPLETED_AT: overview.completed_at,
        JobSort.SIZE: overview.full_size_bytes,
        JobSort.STATUS: [*ListedStatus].index(overview.status),
        JobSort.FAILED_AT: overview.failed_at,
    }[sort]
    return value, overview.name


class History:
    """
    Random calls to a few jobs, of stages, users and maintenance. Calls that are refused change nothing.

    :param store: The store of the jobs.
    :param clock: Its clock.
    :param chance: Source of the choices.
    """

    NAMES = ("sales/eu", "Sales/us", "a/2026-01-01", "test/a/2026", "Zählung", "b")

    def __init__(self, store: JobStore, clock: ManualClock, chance: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._coordinator = AttemptCoordinator(store)
        self._grants: list[AttemptGrant] = []
        self._calls: tuple[tuple[Callable[[], object], int], ...] = (
            (self._register, 6),
            (self._complete, 8),
            (self._discard, 3),
            (self._decline, 2),
            (self._trigger, 2),
            (self._finish, 4),
            (self._restore, 3),
            (self._save, 2),
            (self._rewind, 1),
            (self._wait, 3),
            (self._forget, 2),
            (self._remove, 1),
            (self._close, 1),
            (self._lead, 1),
            (self._correct_clock, 1),
        )

    def run(self, count: int) -> None:
        """Make some calls."""
        calls, weights = zip(*self._calls, strict=True)
        for call in self._chance.choices(calls, weights, k=count):
            self._clock.advance(self._chance.choice((0, 1, 30)))
            try:
                call()
            except StateCheckError:
                continue

    def _register(self) -> None:
        name, uid = self._chance.choice(self.NAMES), self._chance.choice(("one", "two"))
        run = f"2026-01-0{self._chance.randint(1, 4)}"
        owner = owned_by(
            self._chance.choice(("a", "a", "b", "c", None)),
            run_key=run,
            clear_marker=self._chance.choice(("0", "0", "1")),
        )
        owner = replace(owner, run_id=run)
        dead = self._store.describe(job_id_of(name)).attempts if name in self._names() else ()
        for attempt in dead:
            if attempt.status is AttemptStatus.RUNNING and self._chance.random() < 0.7:
                owner = replace(attempt.owner, clear_marker=owner.clear_marker)
        registration = make_registration(
            job_name=name, uid=uid, owner=owner, retained_runs=2, num_retained=self._chance.choice((1, 3))
        )
        self._grants.append(self._coordinator.register(registration))

    def _complete(self) -> None:
        complete_checkpoint(self._coordinator, self._grant().attempt, full_size_bytes=self._chance.randint(1, 4) * 100)

    def _trigger(self) -> None:
        self._coordinator.trigger(TriggerCheckpoint(attempt=self._grant().attempt, request_key=new_key()))

    def _decline(self) -> None:
        attempt = self._grant().attempt
        pending = self._coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        reason = self._chance.choice(
            (CheckpointFailureReason.CHECKPOINT_DECLINED, CheckpointFailureReason.ATTEMPT_ENDED)
        )
        self._coordinator.decline(
            DeclineCheckpoint(attempt=attempt, checkpoint_id=pending.checkpoint_id, reason=reason, message="declined")
        )

    def _discard(self) -> None:
        attempt = self._grant().attempt
        reply = complete_checkpoint(self._coordinator, attempt)
        gone = tuple(discard.checkpoint_id for discard in reply.effects.discards)
        self._coordinator.confirm_discards(attempt, gone)

    def _finish(self) -> None:
        status = self._chance.choice((AttemptStatus.FINISHED, AttemptStatus.FAILED))
        message = self._chance.choice(("", "disk full"))
        self._coordinator.finish(FinishAttempt(attempt=self._grant().attempt, status=status, message=message))

    def _restore(self) -> None:
        grant = self._grant()
        if not grant.candidates:
            return
        chosen = self._chance.randrange(len(grant.candidates))
        skipped = tuple(
            SkippedCheckpoint(checkpoint_id=c.checkpoint_id, reason="damaged") for c in grant.candidates[:chosen]
        )
        restored = grant.candidates[chosen].checkpoint_id
        self._coordinator.confirm_restore(
            ConfirmRestore(attempt=grant.attempt, checkpoint_id=restored, skipped=skipped)
        )

    def _save(self) -> None:
        attempt = self._grant().attempt
        copy_checkpoint(self._store, attempt.job_id, attempt.operator_id)

    def _rewind(self) -> None:
        run = f"2026-01-0{self._chance.randint(1, 4)}"
        JobRewinding(self._store, UnknownLiveness()).rewind(RewindJob(job_id=self._job(), run_key=run))

    def _wait(self) -> None:
        self._clock.advance(self._chance.choice((timedelta(hours=2), DEFAULT_AGE)).total_seconds())

    def _forget(self) -> None:
        self._maintenance().forget(self._job(), DEFAULT_AGE.total_seconds())

    def _remove(self) -> None:
        request, maintenance = RetireJob(job_id=self._job(), is_named=True), self._maintenance()
        if not maintenance.retire(request):
            MaintenanceContract.confirm_all(maintenance, request.job_id)
            maintenance.remove(request)

    def _close(self) -> None:
        self._maintenance().close_abandoned(self._job())

    def _lead(self) -> None:
        name = self._chance.choice(self.NAMES)
        AlignedCheckpoints(self._store).lead(make_leadership(job_name=name, owner=owned_by("a")))

    def _correct_clock(self) -> None:
        hours, attempt = timedelta(hours=self._chance.choice((1, 24))), self._grant().attempt
        self._clock.advance(hours.total_seconds())
        complete_checkpoint(self._coordinator, attempt)
        self._clock.advance(-hours.total_seconds())
        self._coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))

    def _maintenance(self) -> JobMaintenance:
        return JobMaintenance(self._store, KnownRuns(), NoTokens(), self._clock)

    def _grant(self) -> AttemptGrant:
        if not self._grants or self._chance.random() < 0.1:
            self._register()
        return self._chance.choice(self._grants[-4:])

    def _job(self) -> JobId:
        if not self._store.jobs():
            self._register()
        return self._chance.choice(self._store.jobs()).job_id

    def _names(self) -> set[str]:
        return {job.name for job in self._store.jobs()}
