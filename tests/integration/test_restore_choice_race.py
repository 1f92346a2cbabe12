"""Attempts that register at the same moment for one chosen checkpoint, on a database that really lets two writers in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant
from airflow_provider_statecheck.checkpoint.records import JobAction, RequestStatus
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.actions import JobActions
from airflow_provider_statecheck.maintenance.rewind import JobRewinding
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from tests.conformance.databases import own_schema
from tests.messages import complete_checkpoint, make_registration

pytestmark = [pytest.mark.db, pytest.mark.soak]

ROUNDS, WRITERS = 60, 3
WAIT_SECONDS = 60.0


@pytest.fixture
def stores(postgres_url: str) -> Iterator[list[SqlJobStore]]:
    """One store for each writer, with an engine of its own, over the same rows."""
    with ExitStack() as stack:
        url = stack.enter_context(own_schema(postgres_url))
        engines = [create_engine(url) for _ in range(WRITERS)]
        for engine in engines:
            stack.callback(engine.dispose)
        yield [SqlJobStore(engine) for engine in engines]


def test_one_of_the_attempts_takes_the_choice_and_none_restores_a_newer_checkpoint(stores: list[SqlJobStore]) -> None:
    start = threading.Barrier(WRITERS)

    def registered(store: SqlJobStore, job: str) -> AttemptGrant:
        start.wait(WAIT_SECONDS)
        return AttemptCoordinator(store).register(make_registration(job_name=job))

    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(ROUNDS):
            job = f"job-{number}"
            key = _choose(stores[0], job)
            racing = [pool.submit(registered, store, job) for store in stores]
            grants = sorted((each.result(WAIT_SECONDS) for each in racing), key=lambda g: g.attempt.epoch)
            assert [[c.checkpoint_id for c in g.candidates] for g in grants] == [[1], *[[1]] * (WRITERS - 1)]
            assert ["chose" in g.start_reason for g in grants] == [True, *[False] * (WRITERS - 1)]
            view = stores[0].describe(job_id_of(job))
            assert [a.is_restore_chosen for a in view.attempts] == [False, *[True] * WRITERS]
            (action,) = view.actions
            assert (action.request_key, action.status) == (key, RequestStatus.COMPLETED)
            assert action.message == "attempt 2 restores checkpoint 1"


def test_a_choice_that_meets_a_registration_is_taken_by_it_or_by_the_next_one(stores: list[SqlJobStore]) -> None:
    start = threading.Barrier(2)
    coordinator = AttemptCoordinator(stores[1])
    taken = {True: 0, False: 0}

    def registered(job: str) -> AttemptGrant:
        start.wait(WAIT_SECONDS)
        return coordinator.register(make_registration(job_name=job))

    def chosen(job: str) -> None:
        start.wait(WAIT_SECONDS)
        _actions(stores[0]).request(_restore(job))

    with ThreadPoolExecutor(2) as pool:
        for number in range(ROUNDS):
            job = f"met-{number}"
            _two_checkpoints(stores[0], job)
            choosing, registering = pool.submit(chosen, job), pool.submit(registered, job)
            choosing.result(WAIT_SECONDS)
            first = registering.result(WAIT_SECONDS)
            second = coordinator.register(make_registration(job_name=job))
            is_first = "chose" in first.start_reason
            taken[is_first] += 1
            assert [c.checkpoint_id for c in first.candidates] == ([1] if is_first else [2, 1])
            assert [c.checkpoint_id for c in second.candidates] == [1]
            assert ("chose" in second.start_reason) is not is_first
            with pytest.raises(StaleAttemptError):
                complete_checkpoint(coordinator, first.attempt)
    assert sum(taken.values()) == ROUNDS


def _two_checkpoints(store: SqlJobStore, job: str) -> None:
    coordinator = AttemptCoordinator(store)
    grant = coordinator.register(make_registration(job_name=job))
    for _ in range(2):
        complete_checkpoint(coordinator, grant.attempt)


def _choose(store: SqlJobStore, job: str) -> str:
    _two_checkpoints(store, job)
    return _actions(store).request(_restore(job)).request_key


def _actions(store: SqlJobStore) -> JobActions:
    return JobActions(store, JobSavepoints(store), JobRewinding(store, UnknownLiveness()))


def _restore(job: str) -> UserAction:
    return UserAction(
        job_id=job_id_of(job),
        action=JobAction.RESTORE,
        operator_id=operator_id_of("aggregate"),
        checkpoint_id=1,
        request_key=new_key(),
        requested_by="anna",
    )
