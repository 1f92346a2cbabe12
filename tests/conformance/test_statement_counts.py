"""
How many statements checkpoints take: no more for other operators, history or subtasks, linear in aligned operators.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Select, event, insert, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from airflow_provider_statecheck.checkpoint import coordinator
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.job_list import JobSort, JobsPage
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    FinishAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRequest,
    CheckpointStatus,
    RequestStatus,
    SystemClock,
)
from airflow_provider_statecheck.checkpoint.row_removal import BATCH_SIZE, DEFAULT_AGE, ForgettableRows
from airflow_provider_statecheck.checkpoint.store import RECENT, CheckpointPage, EndedCheckpoints
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, UnknownRuns
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.record_rows import RecordTable, keys
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import CHECKPOINTS, METADATA, REQUESTS, Caller
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.aligned_job import AlignedJob, AlignedTask
from tests.conformance.databases import OnPostgres, OnSqlite, traced
from tests.contracts.maintenance_contract import NoTokens
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_acknowledgement,
    make_owner,
    make_registration,
)

CHECKPOINT = CheckpointProperties.for_checkpoint()
MOST_STATEMENTS = {"sqlite": 14, "postgresql": 6}
"""
Begin, fencing and re-checks included. PostgreSQL reads in the statement that locks the job, and writes all rows in one.
"""
MOST_STEPS_PER_OPERATOR = 60
"""They include those for a job; there is one job for ten operators."""


class StatementContract:
    def test_checkpoint_of_one_operator_takes_few_statements(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        stage.checkpoint()
        assert sum(stage.checkpoint().values()) <= MOST_STATEMENTS[engine.dialect.name]

    def test_other_operators_of_the_job_cost_a_checkpoint_nothing(self, engine: Engine) -> None:
        stage = Stage(engine)
        alone = [stage.checkpoint() for _ in range(3)][-1]
        for number in range(20):
            stage.coordinator.register(make_registration(uid=f"operator-{number}"))
        assert stage.checkpoint() == alone

    def test_earlier_checkpoints_cost_a_later_one_nothing(self, engine: Engine) -> None:
        stage = Stage(engine)
        readings = [stage.checkpoint() for _ in range(15)]
        assert readings[3] == readings[14]

    def test_the_latest_checkpoint_is_one_row_in_one_statement(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 2 * RECENT)
        with counted(engine) as statements, fetched(engine) as rows:
            latest = stage.coordinator.latest(stage.attempt.job_id, stage.attempt.operator_id)
        assert latest is not None
        assert (latest.checkpoint_id, len(statements), rows) == (1, 1, [1])

    def test_the_newest_checkpoints_of_all_operators_take_one_statement(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        for number in range(20):
            other = stage.coordinator.register(make_registration(uid=f"operator-{number}")).attempt
            complete_checkpoint(stage.coordinator, other)
        add_history(stage, 2 * RECENT)
        with counted(engine) as statements, fetched(engine) as rows:
            latest = stage.coordinator.latest_checkpoints(stage.attempt.job_id)
        assert latest is not None
        assert (len(latest.checkpoints), len(statements), len(rows)) == (21, 1, 21)

    def test_a_page_of_the_list_of_jobs_takes_two_statements(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 2 * RECENT)
        for number in range(30):
            other = make_registration(job_name=f"job {number}", uid=f"operator {number % 3}")
            complete_checkpoint(stage.coordinator, stage.coordinator.register(other).attempt)
        with counted(engine) as statements:
            listed = stage.store.job_overviews(JobsPage(limit=20, sort=JobSort.SIZE))
        assert (len(listed.jobs), len(statements)) == (20, 2)

    def test_a_run_that_registers_and_ends_updates_the_list_twice(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.coordinator.finish(FinishAttempt(attempt=stage.attempt, status=AttemptStatus.FINISHED))
        with counted(engine) as statements:
            attempt = stage.coordinator.register(make_registration()).attempt
            for _ in range(3):
                stage.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
            stage.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        updates = [s for s in statements if re.search("UPDATE statecheck_job SET [^W]*status=", s)]
        assert len(updates) == 2
        assert not [s for s in statements if "statecheck_job_dag" in s]

    def test_a_changed_version_takes_one_statement_more_than_its_check(self, engine: Engine) -> None:
        stage = Stage(engine)
        known = stage.coordinator.describe(stage.attempt.job_id).job.rows_version
        with counted(engine) as statements:
            assert (
                stage.coordinator.latest_checkpoints(stage.attempt.job_id, known._replace(number=known.number - 1))
                is not None
            )
        assert len(statements) == 1, "besides the read of the version"

    def test_a_view_does_not_grow_with_the_history(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 3 * RECENT)
        with fetched(engine) as rows:
            view = stage.coordinator.describe(stage.attempt.job_id)
        held = [c.checkpoint_id for c in view.checkpoints]
        assert held == [1, *range(FIRST_OLD + 2 * RECENT, FIRST_OLD + 3 * RECENT)], "the live one and the newest"
        assert sum(rows) < RECENT + 10

    def test_rows_are_forgotten_in_batches_that_are_transactions_of_their_own(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 2 * BATCH_SIZE + 1)
        pauses: list[float] = []
        with counted(engine) as statements:
            gone = forget(stage, pauses.append)
        assert len(gone.checkpoint_ids) == 2 * BATCH_SIZE + 1
        assert len(pauses) == 2, "others may write between two batches"
        begun = [s for s in statements if s.startswith("UPDATE statecheck_job")]
        assert len(begun) == 3, "a batch that is not full is the last"
        deleted = [s for s in statements if s.startswith("DELETE FROM statecheck_checkpoint")]
        assert len(deleted) == 3, "one statement for all rows of a batch"

    def test_a_batch_takes_as_many_statements_for_many_rows_as_for_few(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        readings = []
        for count in (2, BATCH_SIZE - 1):
            add_history(stage, count)
            with counted(engine) as statements:
                assert len(forget(stage)) == count
            readings.append(len(statements))
        assert readings[0] == readings[1]

    def test_all_batches_together_look_at_the_whole_history_once(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.coordinator.finish(FinishAttempt(attempt=stage.attempt, status=AttemptStatus.FAILED, message="disk full"))
        stage.attempt = stage.coordinator.register(make_registration()).attempt
        stage.checkpoint()
        add_history(stage, 3 * BATCH_SIZE, runs=20)
        with counted(engine) as statements:
            gone = forget(stage, lambda _: [stage.checkpoint()].clear())
        assert len(gone.checkpoint_ids) == 3 * BATCH_SIZE - 20, "the last of each run stays"
        assert len([s for s in statements if "GROUP BY statecheck_checkpoint.run_key" in s]) == 1
        assert not [s for s in statements if "max(statecheck_checkpoint.ended_at)" in s], (
            "no old row is the last failure"
        )
        assert forget(stage).checkpoint_ids == ()

    def test_a_checkpoint_that_becomes_the_last_of_its_run_between_two_batches_stays(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 2 * BATCH_SIZE, runs=1)
        newest = FIRST_OLD + 2 * BATCH_SIZE - 1

        def roll_back(_: float) -> None:
            with stage.store.transaction(stage.attempt.job_id) as tx:
                record = tx.checkpoint(newest)
                if record is not None:
                    tx.update_checkpoint(replace(record, unusable_reason="rolled back"), expected=record.status)

        gone = forget(stage, roll_back)
        assert newest in gone.checkpoint_ids
        assert newest - 1 not in gone.checkpoint_ids
        assert len(gone) == 2 * BATCH_SIZE - 1

    def test_a_removal_that_was_interrupted_goes_on_at_the_next_call(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 2 * BATCH_SIZE + 1, runs=3)

        def stop(_: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            forget(stage, stop)
        assert len(forget(stage)) == BATCH_SIZE + 1 - 3

    def test_old_checkpoints_that_are_removed_leave_the_last_failure_in_the_list(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 3, status=CheckpointStatus.ABORTED)
        job_id = stage.attempt.job_id
        with stage.store.transaction(job_id) as tx:
            tx.remove_checkpoints((FIRST_OLD,))
            record = tx.checkpoint(FIRST_OLD + 1)
            assert record is not None
            failed = replace(record, failure_reason="x", failure_message="disk full", ended_at=tx.now)
            tx.update_checkpoint(failed, expected=record.status)
        [listed] = stage.store.job_overviews(JobsPage()).jobs
        assert listed.failure == f"checkpoint {FIRST_OLD + 1}: disk full"
        with stage.store.transaction(job_id) as tx:
            tx.remove_checkpoints((FIRST_OLD + 2,))
        assert stage.store.job_overviews(JobsPage()).jobs[0].failure == listed.failure
        with stage.store.transaction(job_id) as tx:
            tx.remove_checkpoints((FIRST_OLD + 1,))
        assert stage.store.job_overviews(JobsPage()).jobs[0].failure is None

    def test_an_attempt_that_finishes_removes_a_bounded_number_of_batches(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(coordinator, "MAX_BATCHES_AT_END", 2)
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 2 * BATCH_SIZE + 1)
        stage.coordinator.finish(FinishAttempt(attempt=stage.attempt, status=AttemptStatus.FAILED))
        page = stage.coordinator.checkpoints(stage.attempt.job_id, CheckpointPage())
        assert len(page) == 2, "the retained one, and the old one that did not fit"

    def test_an_attempt_finishes_although_its_old_rows_cannot_be_removed(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 1)

        def refuse(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("DELETE FROM statecheck_checkpoint"):
                raise OperationalError(statement, {}, RuntimeError("disk full"))

        event.listen(engine, "before_cursor_execute", refuse)
        stage.coordinator.finish(FinishAttempt(attempt=stage.attempt, status=AttemptStatus.FAILED))
        event.remove(engine, "before_cursor_execute", refuse)
        [attempt] = stage.coordinator.describe(stage.attempt.job_id).attempts
        assert attempt.status is AttemptStatus.FAILED

    @pytest.mark.parametrize(
        "name", ["has_completed", "has_ever_completed", "undiscarded", "open", "requests", "forgettable"]
    )
    def test_what_a_checkpoint_reads_has_an_index(self, engine: Engine, name: str) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 2000, generations=50)
        add_requests(stage, 2000)
        query, values, index = INDEXED[name]
        ref = keys(job_id=stage.attempt.job_id, operator_id=stage.attempt.operator_id)
        assert index in plan_of(engine, query(stage), ref | values)

    def test_the_newest_checkpoints_are_found_without_a_look_at_the_history(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        add_history(stage, 2000, generations=50)
        plan = plan_of(engine, statements.LATEST_CHECKPOINTS, keys(job_id=stage.attempt.job_id))
        assert re.search("idx_statecheck_checkpoint_(undiscarded|job_id_operator_id_discarded_at)", plan), plan

    def test_statements_of_an_aligned_checkpoint_are_linear_in_its_operators(self, engine: Engine) -> None:
        one, two, three = (aligned_statements(engine, operators=count) for count in (4, 8, 12))
        assert three - two == two - one > 0

    def test_statements_of_an_aligned_checkpoint_do_not_depend_on_subtasks(self, engine: Engine) -> None:
        assert aligned_statements(engine, subtasks=500) == aligned_statements(engine, subtasks=2)


FIRST_OLD = 1000
"""Ids of history begin here, so that they cannot meet those that are drawn."""

INDEXED: dict[str, tuple[Callable[[Stage], Select[Any]], dict[str, object], str]] = {
    "has_completed": (
        lambda _: statements.HAS_COMPLETED,
        keys(generation=7),
        "idx_statecheck_checkpoint_completed",
    ),
    "has_ever_completed": (lambda _: statements.HAS_EVER_COMPLETED, {}, "idx_statecheck_checkpoint_"),
    "undiscarded": (lambda _: statements.UNDISCARDED_CHECKPOINTS, {}, "idx_statecheck_checkpoint_undiscarded"),
    # SQLite may as well take the index of all rows, in which those that are not discarded lie side by side.
    "open": (lambda _: statements.OPERATOR, {}, "idx_statecheck_checkpoint_"),
    "requests": (lambda _: statements.RECENT_REQUESTS, {}, "idx_statecheck_request_job_id_requested_at"),
    "forgettable": (
        lambda stage: statements.discarded_checkpoints(
            EndedCheckpoints(operator_id=stage.attempt.operator_id, before=datetime(2000, 1, 1, tzinfo=UTC)), 10, 0
        ),
        {},
        "idx_statecheck_checkpoint_job_id_operator_id_discarded_at",
    ),
}


class TestSqlite(OnSqlite, StatementContract):
    def test_a_list_for_a_reader_of_some_dags_looks_at_each_operator_once(self, engine: Engine) -> None:
        stage = Stage(engine)
        for job, operator in itertools.product(range(10), range(10)):
            owner = make_owner(airflow=Caller(dag_id=f"d{job}", run_id="r", task_id="t").pairs)
            stage.coordinator.register(make_registration(job_name=f"job {job}", uid=f"o{operator}", owner=owner))
        page = JobsPage(limit=1, readable_dag_ids=frozenset(f"d{job}" for job in range(1, 10)))
        with steps_of(engine) as steps:
            listed = stage.store.job_overviews(page)
        assert sum(listed.counts.values()) == 9
        assert len(steps) < MOST_STEPS_PER_OPERATOR * 100

    def test_an_unchanged_version_takes_one_statement_that_reads_the_version_alone(self, engine: Engine) -> None:
        stage = Stage(engine)
        known = stage.coordinator.describe(stage.attempt.job_id).job.rows_version
        with traced(engine) as statements:
            assert stage.coordinator.latest_checkpoints(stage.attempt.job_id, known) is None
        [statement] = statements
        assert " ".join(statement.split()).startswith(
            "SELECT statecheck_job.version, statecheck_job.seen_at FROM statecheck_job WHERE"
        )


class TestPostgres(OnPostgres, StatementContract): ...


class Stage:
    """One operator that takes checkpoints as a driver does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = SqlJobStore(engine)
        self.coordinator = AttemptCoordinator(self.store)
        self.attempt: AttemptRef = self.coordinator.register(make_registration()).attempt

    def checkpoint(self) -> dict[str, int]:
        """Complete a checkpoint and return the statements of each call."""
        with counted(self.engine) as trigger:
            pending = self.coordinator.trigger(TriggerCheckpoint(attempt=self.attempt, request_key=new_key()))
        with counted(self.engine) as acknowledge:
            reply = self.coordinator.acknowledge(make_acknowledgement(self.attempt, pending.checkpoint_id))
        gone = tuple(discard.checkpoint_id for discard in reply.effects.discards)
        with counted(self.engine) as confirm:
            self.coordinator.confirm_discards(self.attempt, gone)
        return {"trigger": len(trigger), "acknowledge": len(acknowledge), "confirm": len(confirm)}


def aligned_statements(engine: Engine, *, operators: int = 1, subtasks: int = 2) -> int:
    """Return the statements of the second aligned checkpoint of a new job."""
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    clock = ManualClock()
    tasks = tuple(AlignedTask(f"o{n}", parallelism=subtasks, max_parallelism=512) for n in range(operators))
    job = AlignedJob(
        SqlJobStore(engine, clock),
        CheckpointStorage.open(f"memory://{new_key()}"),
        clock,
        tasks=tasks,
    )
    coordinator = job.coordinator()
    readings = [completed_statements(engine, job, coordinator, number, subtasks) for number in (1, 2)]
    coordinator.shutdown()
    return readings[-1]


def completed_statements(
    engine: Engine, job: AlignedJob, coordinator: CheckpointCoordinator, checkpoint_id: int, subtasks: int
) -> int:
    """Complete an aligned checkpoint and return its statements."""
    messages = [acknowledgement(job, task, checkpoint_id, subtasks) for task in job.tasks]
    with counted(engine) as statements:
        coordinator.trigger_checkpoint(CHECKPOINT)
        for message in messages:
            coordinator.receive_acknowledge_message(message)
    assert job.status(checkpoint_id) == "completed"
    return len(statements)


def acknowledgement(job: AlignedJob, task: AlignedTask, checkpoint_id: int, subtasks: int) -> Any:
    """Return the message of a task each of whose subtasks has the same state."""
    state = job.state(task, checkpoint_id)
    states = dict.fromkeys(range(subtasks), state.subtask_states[0])
    return job.acknowledgement(task, checkpoint_id, state=replace(state, subtask_states=states))


def add_history(
    stage: Stage,
    count: int,
    *,
    generations: int = 1,
    runs: int = 0,
    status: CheckpointStatus = CheckpointStatus.SUBSUMED,
) -> None:
    """
    Add checkpoints of an unknown run, or of several runs in turn, that ended two months ago and whose bytes are gone.
    """
    [model] = stage.coordinator.checkpoints(stage.attempt.job_id, CheckpointPage(limit=1))
    past = model.triggered_at - timedelta(days=60)
    ended = replace(
        model,
        epoch=0,
        run_key="",
        status=status,
        completed_at=past,
        ended_at=past,
        discarded_at=past,
    )
    first = max(FIRST_OLD, model.checkpoint_id + 1)
    values = CHECKPOINTS.values_of(ended)
    rows = [
        values
        | {"checkpoint_id": first + n, "request_key": new_key(), "generation": model.generation + n % generations}
        | ({"run_key": f"run {n % runs}"} if runs else {})
        for n in range(count)
    ]
    with stage.engine.begin() as connection:
        connection.execute(insert(CHECKPOINTS.table), rows)


def add_requests(stage: Stage, count: int) -> None:
    """Add requests for checkpoints that have ended."""
    now = datetime.now(UTC)
    asked = CheckpointRequest(
        job_id=stage.attempt.job_id,
        request_key="",
        operator_id=stage.attempt.operator_id,
        properties=CHECKPOINT,
        requested_at=now,
        ended_at=now,
        status=RequestStatus.COMPLETED,
    )
    with stage.engine.begin() as connection:
        each = (replace(asked, request_key=new_key(), requested_at=now - timedelta(seconds=n)) for n in range(count))
        rows = [REQUESTS.values_of(request) for request in each]
        connection.execute(insert(REQUESTS.table), rows)


def forget(stage: Stage, pause: Callable[[float], None] = lambda _: None) -> ForgettableRows:
    """Forget what is older than a month."""
    maintenance = JobMaintenance(SqlJobStore(stage.engine), UnknownRuns(), NoTokens(), SystemClock(), pause)
    return maintenance.forget(stage.attempt.job_id, DEFAULT_AGE.total_seconds())


def plan_of(engine: Engine, query: Select[Any], values: dict[str, object]) -> str:
    """Return how the database would run a query, which on PostgreSQL it decides by what it knows of the tables."""
    is_sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        if not is_sqlite:
            connection.execute(text("ANALYZE statecheck_checkpoint, statecheck_request"))
            # The tables are so small here that reading them whole is nearly as cheap.
            connection.execute(text("SET enable_seqscan = off"))
        sql = query.params(**values).compile(engine, compile_kwargs={"literal_binds": True, "render_postcompile": True})
        explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
        return "\n".join(str(row[-1]) for row in connection.execute(text(f"{explain} {sql}".replace(":", "\\:"))))


@contextmanager
def fetched(engine: Engine) -> Iterator[list[int]]:
    """Collect how many rows each query of checkpoints gives."""
    rows: list[int] = []
    read = RecordTable.read

    def count(table: RecordTable[Any], values: Any) -> Any:
        if table is CHECKPOINTS:
            rows.append(1)
        return read(table, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordTable, "read", count)
        yield rows


@contextmanager
def steps_of(engine: Engine) -> Iterator[list[int]]:
    """Collect the steps of the programs that SQLite makes of statements, which follow the rows it looks at."""
    steps: list[int] = []

    def watch(connection: Any, *_: object) -> None:
        connection.set_progress_handler(lambda: steps.append(1), 1)

    event.listen(engine, "checkout", watch)
    yield steps
    event.remove(engine, "checkout", watch)


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """Collect the statements that an engine runs."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)
