"""The jobs of a run, and the end of a run within the transaction that ends it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import DateTime, String, select, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from airflow_provider_statecheck.api.airflow_services import settle_ended_run
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, RequestStatus, SystemClock
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import Caller
from airflow_provider_statecheck.plugins import statecheck as listeners
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.messages import ManualClock, complete_checkpoint, make_owner, make_registration

DATE = datetime(2026, 1, 1, tzinfo=UTC)
NAME = f"nightly/{DATE.isoformat()}"


class Base(DeclarativeBase): ...


class Run(Base):
    """As much of Airflow's table of runs as the end of a run looks at."""

    __tablename__ = "run"
    run_id: Mapped[str] = mapped_column(String(50), primary_key=True)
    dag_id: Mapped[str] = mapped_column(String(50), default="nightly")
    logical_date: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    partition_key: Mapped[str | None] = mapped_column(String(50))
    state: Mapped[str] = mapped_column(String(50), default="running")
    triggered_by: Mapped[str] = mapped_column(String(50), default="timetable")


class EndedRunContract:
    @pytest.fixture
    def clock(self) -> SystemClock:
        return SystemClock()

    @pytest.fixture(autouse=True)
    def _runs(self, engine: Engine) -> None:
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)

    @staticmethod
    def take_checkpoint(store: SqlJobStore, *, name: str = NAME, run_key: str = DATE.isoformat()) -> None:
        coordinator = AttemptCoordinator(store)
        airflow = (("dag_id", "nightly"), ("run_id", "run-1"))
        owner = make_owner(run_key=run_key, run_id="run-1", airflow=airflow)
        attempt = coordinator.register(make_registration(job_name=name, owner=owner)).attempt
        complete_checkpoint(coordinator, attempt)
        coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))

    @staticmethod
    def status(store: SqlJobStore, name: str = NAME) -> CheckpointStatus:
        [checkpoint] = store.describe(job_id_of(name)).checkpoints
        return checkpoint.status

    @staticmethod
    def run(
        session: Session,
        run_id: str = "run-1",
        logical_date: datetime | None = DATE,
        partition_key: str | None = None,
    ) -> Run:
        run = Run(run_id=run_id, logical_date=logical_date, partition_key=partition_key, state="success")
        session.add(run)
        session.flush()
        if logical_date is not None:
            run.logical_date = logical_date.replace(tzinfo=UTC)
        return run

    @pytest.mark.parametrize(
        ("end", "status"), [("commit", CheckpointStatus.SUBSUMED), ("rollback", CheckpointStatus.COMPLETED)]
    )
    def test_it_is_committed_or_rolled_back_with_the_end_of_the_run(
        self, engine: Engine, store: SqlJobStore, end: str, status: CheckpointStatus
    ) -> None:
        self.take_checkpoint(store)
        with Session(engine) as session:
            assert settle_ended_run(self.run(session), JobStatus.FINISHED) == (1,)
            getattr(session, end)()
        assert self.status(store) is status

    def test_a_run_without_a_logical_date_is_known_by_its_id(self, engine: Engine, store: SqlJobStore) -> None:
        self.take_checkpoint(store, name="nightly/run-1", run_key="run-1")
        with Session(engine) as session:
            assert settle_ended_run(self.run(session, logical_date=None), JobStatus.FINISHED) == (1,)

    def test_a_run_of_a_partition_is_known_by_the_key_of_the_partition(
        self, engine: Engine, store: SqlJobStore
    ) -> None:
        self.take_checkpoint(store, name="nightly/eu", run_key="eu")
        with Session(engine) as session:
            run = self.run(session, logical_date=None, partition_key="eu")
            assert settle_ended_run(run, JobStatus.FINISHED) == (1,)

    def test_a_run_ends_nothing_but_its_own_checkpoints(self, engine: Engine, store: SqlJobStore) -> None:
        with Session(engine) as session:
            assert settle_ended_run(self.run(session), JobStatus.FINISHED) == ()
        self.take_checkpoint(store)
        with Session(engine) as session:
            assert settle_ended_run(self.run(session, "manual__1"), JobStatus.FINISHED) == (), "a run of the same date"

    def test_a_run_that_no_session_holds_is_left_to_garbage_collection(
        self, engine: Engine, store: SqlJobStore
    ) -> None:
        self.take_checkpoint(store)
        with Session(engine, expire_on_commit=False) as session:
            run = self.run(session)
            session.expunge(run)
            assert settle_ended_run(run, JobStatus.FINISHED) == ()

    def test_a_savepoint_that_the_run_ends_without_fails_with_its_reason(
        self, engine: Engine, store: SqlJobStore
    ) -> None:
        coordinator = AttemptCoordinator(store)
        owner = make_owner(
            run_key=DATE.isoformat(), run_id="run-1", airflow=(("dag_id", "nightly"), ("run_id", "run-1"))
        )
        registration = make_registration(job_name=NAME, owner=owner, savepoint_at_end=True)
        coordinator.finish(
            FinishAttempt(attempt=coordinator.register(registration).attempt, status=AttemptStatus.FAILED)
        )
        with Session(engine) as session:
            listeners.on_dag_run_failed(self.run(session), "task_failure")
            session.commit()
        [request] = store.describe(job_id_of(NAME)).requests
        assert (request.status, request.failure_message) == (
            RequestStatus.FAILED,
            "not taken before the run ended: the stage did not finish, or has no checkpoint",
        )

    def test_a_statement_that_fails_leaves_the_transaction_usable(
        self, engine: Engine, store: SqlJobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(store: SqlJobStore, _: Any) -> None:
            with Session(store.engine) as inner:
                inner.execute(text("SELECT nothing FROM nowhere"))

        monkeypatch.setattr(SqlJobStore, "describe", refused)
        with Session(engine) as session:
            listeners.on_dag_run_success(self.run(session), "")
            session.commit()
            assert session.scalar(select(Run.state)) == "success"


class TestSqlite(OnSqlite, EndedRunContract): ...


class TestPostgres(OnPostgres, EndedRunContract): ...


@pytest.mark.parametrize(
    ("hook", "msg", "expected"),
    [
        (listeners.on_dag_run_success, "success", JobStatus.FINISHED),
        (listeners.on_dag_run_failed, "task_failure", JobStatus.FAILED),
        (listeners.on_dag_run_failed, "timed_out", JobStatus.FAILED),
        (listeners.on_dag_run_failed, "Dag Run's state was manually set to `failed`.", JobStatus.CANCELED),
    ],
)
def test_a_run_that_somebody_marked_as_failed_was_cancelled(
    monkeypatch: pytest.MonkeyPatch, hook: Any, msg: str, expected: JobStatus
) -> None:
    told = []
    monkeypatch.setattr(
        "airflow_provider_statecheck.api.airflow_services.settle_ended_run", lambda _, how: told.append(how)
    )
    hook(SimpleNamespace(triggered_by="timetable"), msg)
    assert told == [expected]


def test_nothing_is_raised_into_the_scheduler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise CoordinatorError("the database is away")

    monkeypatch.setattr("airflow_provider_statecheck.api.airflow_services.settle_ended_run", fail)
    listeners.on_dag_run_success(SimpleNamespace(triggered_by="timetable"), "")
    listeners.on_dag_run_failed(object(), "")
    assert caplog.text.count("are retained until the next garbage collection") == 2


class Contract:
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
            owner = make_owner(logical_task=f"{dag_id}/{task_id}", airflow=caller.pairs)
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
        owner = make_owner(logical_task="weekly/t", airflow=Caller(dag_id="weekly", run_id="r", task_id="t").pairs)
        AttemptCoordinator(store).register(make_registration(job_name="third", owner=owner))
        assert store.dag_ids(beside="hourly") == {"nightly", "hourly"}
        assert store.dag_ids(beside="weekly") == {"weekly"}
        assert store.dag_ids(beside="never") == frozenset()

    def test_a_removed_job_is_no_longer_listed(self, store: JobStore) -> None:
        with store.transaction(job_id_of("second")) as tx:
            tx.remove_job()
        assert store.jobs_of_run("nightly", "run-1") == (job_id_of("first"),)


class TestJobsOfRunSqlite(OnSqlite, Contract):
    pass


class TestJobsOfRunPostgres(OnPostgres, Contract):
    pass
