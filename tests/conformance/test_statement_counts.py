"""How many statements checkpoints take: no more for other operators, history or subtasks, linear in aligned operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.attempt_coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, ConfirmDiscards, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.metadata.models import Base
from airflow_provider_statecheck.metadata.sql_handles import SqlHandleRows
from airflow_provider_statecheck.metadata.sql_id_counter import SqlCheckpointIDCounter
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.aligned_job import JOB, AlignedJob, AlignedTask
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.messages import make_acknowledgement, make_registration
from tests.conformance.databases import OnPostgres, OnSqlite

CHECKPOINT = CheckpointProperties.for_checkpoint()
MOST_STATEMENTS = {"trigger": 6, "acknowledge": 8, "confirm": 4}
"""A call that needs more has to say why."""


class StatementContract:
    def test_checkpoint_of_one_operator_takes_few_statements(self, engine: Engine) -> None:
        stage = Stage(engine)
        stage.checkpoint()
        stage.checkpoint()
        assert all(stage.checkpoint()[call] <= most for call, most in MOST_STATEMENTS.items())

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

    def test_statements_of_an_aligned_checkpoint_are_linear_in_its_operators(self, engine: Engine) -> None:
        one, two, three = (aligned_statements(engine, operators=count) for count in (4, 8, 12))
        assert three - two == two - one > 0

    def test_statements_of_an_aligned_checkpoint_do_not_depend_on_subtasks(self, engine: Engine) -> None:
        assert aligned_statements(engine, subtasks=500) == aligned_statements(engine, subtasks=2)


class TestSqlite(OnSqlite, StatementContract): ...


class TestPostgres(OnPostgres, StatementContract): ...


class Stage:
    """One operator that takes checkpoints as a driver does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.coordinator = AttemptCoordinator(SqlJobStore(engine))
        self.attempt: AttemptRef = self.coordinator.register(make_registration()).attempt

    def checkpoint(self) -> dict[str, int]:
        """Complete a checkpoint and return the statements of each call."""
        with counted(self.engine) as trigger:
            pending = self.coordinator.trigger(TriggerCheckpoint(attempt=self.attempt, request_key=new_key()))
        with counted(self.engine) as acknowledge:
            reply = self.coordinator.acknowledge(make_acknowledgement(self.attempt, pending.checkpoint_id))
        gone = tuple(discard.checkpoint_id for discard in reply.effects.discards)
        with counted(self.engine) as confirm:
            self.coordinator.confirm_discards(
                ConfirmDiscards(job_id=self.attempt.job_id, checkpoint_ids=gone, attempt=self.attempt)
            )
        return {"trigger": len(trigger), "acknowledge": len(acknowledge), "confirm": len(confirm)}


def aligned_statements(engine: Engine, *, operators: int = 1, subtasks: int = 2) -> int:
    """Return the statements of the second aligned checkpoint of a new job."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    clock = ManualClock()
    tasks = tuple(AlignedTask(f"o{n}", parallelism=subtasks, max_parallelism=512) for n in range(operators))
    job = AlignedJob(
        SqlJobStore(engine, clock),
        lambda: SqlHandleRows(engine, JOB, ALIGNED_OPERATOR_ID, clock),
        lambda: SqlCheckpointIDCounter(engine, JOB, clock),
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


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """Collect the statements that an engine runs."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)
