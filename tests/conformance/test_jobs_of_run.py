"""The jobs of a Dag run, over each store."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.metadata.tables import Caller
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.messages import ManualClock, make_owner, make_registration


class Contract:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture(autouse=True)
    def _work(self, store: JobStore, clock: ManualClock) -> None:
        for job, dag_id, run_id, task_id in (
            ("first", "nightly", "run-1", "features"),
            ("first", "nightly", "run-1", "report"),
            ("second", "nightly", "run-1", "features"),
            ("first", "hourly", "run-2", "features"),
            ("of another run", "nightly", "run-2", "features"),
        ):
            clock.advance(1)
            caller = Caller(dag_id=dag_id, run_id=run_id, task_id=task_id)
            owner = make_owner(logical_task=f"{dag_id}/{task_id}", airflow=caller.coordinates)
            uid = f"{dag_id}.{task_id}"
            AttemptCoordinator(store).register(make_registration(job_name=job, uid=uid, owner=owner))
        AttemptCoordinator(store).register(make_registration(job_name="of a script", owner=make_owner(label="run-1")))

    def test_jobs_of_a_run_are_listed_once_and_the_most_recently_active_first(self, store: JobStore) -> None:
        assert store.jobs_of_run("nightly", "run-1") == (job_id_of("first"), job_id_of("second"))
        assert store.jobs_of_run("hourly", "run-2") == (job_id_of("first"),)

    def test_a_run_without_attempts_has_no_jobs(self, store: JobStore) -> None:
        assert store.jobs_of_run("hourly", "run-1") == ()
        assert store.jobs_of_run("nightly", "run-%") == ()

    def test_the_dags_of_all_jobs_are_known(self, store: JobStore) -> None:
        assert store.dag_ids() == {"nightly", "hourly"}

    def test_the_dags_beside_a_dag_are_those_of_its_jobs(self, store: JobStore) -> None:
        owner = make_owner(
            logical_task="weekly/t", airflow=Caller(dag_id="weekly", run_id="r", task_id="t").coordinates
        )
        AttemptCoordinator(store).register(make_registration(job_name="third", owner=owner))
        assert store.dag_ids(beside="hourly") == {"nightly", "hourly"}
        assert store.dag_ids(beside="weekly") == {"weekly"}
        assert store.dag_ids(beside="never") == frozenset()

    def test_a_removed_job_is_no_longer_listed(self, store: JobStore) -> None:
        with store.transaction(job_id_of("second")) as tx:
            tx.remove_job()
        assert store.jobs_of_run("nightly", "run-1") == (job_id_of("first"),)


class TestSqlite(OnSqlite, Contract):
    pass


class TestPostgres(OnPostgres, Contract):
    pass
