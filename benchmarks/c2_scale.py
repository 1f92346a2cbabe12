"""
C2: growth of the coordinators with the operators of a job and the subtasks of an operator, on PostgreSQL.

The peer is the expected complexity. The number of statements of a checkpoint is independent of the subtasks, and of the
other operators of the job for a checkpoint of one operator. It is linear in the operators of an aligned checkpoint.
Times are compared with 1 s.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from benchmarks.measure import Result, seconds
from benchmarks.postgres import postgres
from tests.aligned_job import AlignedJob, AlignedTask
from tests.messages import ManualClock, make_acknowledgement, make_registration

LIMIT_SECONDS = 1.0
_CHECKPOINT = CheckpointProperties.for_checkpoint()


@dataclass
class Reading:
    """Cost of checkpoints of one size."""

    statements: float
    """Number of statements per checkpoint."""
    completions: list[float] = field(default_factory=list)
    """Durations in seconds of the acknowledgements that complete a checkpoint."""

    @property
    def p99(self) -> float:
        """The 99th percentile of the completions."""
        return sorted(self.completions)[int(0.99 * (len(self.completions) - 1) + 0.999)]


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure each dimension at its sizes, from small to large."""
    rounds = 20 if quick else 200
    jobs = (1, 10, 50) if quick else (1, 100, 1_000)
    operators = (5, 20) if quick else (10, 100, 1_000)
    subtasks = (2, 200) if quick else (2, 10_000)
    with tempfile.TemporaryDirectory(dir=work) as folder, postgres(Path(folder)) as url:
        single = {size: _with_tables(url, partial(_of_one, operators=size, rounds=rounds)) for size in jobs}
        aligned = {size: _with_tables(url, partial(_aligned, operators=size, rounds=3)) for size in operators}
        parallel = {size: _with_tables(url, partial(_aligned, subtasks=size, rounds=20)) for size in subtasks}
    per_operator = {size: replace(reading, statements=reading.statements / size) for size, reading in aligned.items()}
    return [
        *_results("one operator's checkpoint, operators in its job", "per checkpoint", single),
        *_results("aligned checkpoint, operators", "per operator", per_operator),
        *_results("aligned checkpoint, subtasks of its operator", "per checkpoint", parallel),
    ]


def _results(case: str, per: str, readings: dict[int, Reading]) -> list[Result]:
    (small, few), *_, (large, many) = readings.items()
    sizes: dict[str, Any] = {
        str(size): {"statements " + per: reading.statements, "p99 of completion (s)": reading.p99}
        for size, reading in readings.items()
    }
    name = f"{case}: {small:,} → {large:,}"
    pairs = [[many.statements, few.statements]]
    growth = Result(
        id="C2", case=f"{name}, statements {per}", ours=many.statements, peer=few.statements, unit="statements",
        ratio=few.statements / many.statements, goal=1.0, pairs=pairs, sizes=sizes,
    )  # fmt: skip
    time = Result(
        id="C2", case=f"{case}: {large:,}, p99 of completion vs the limit", ours=many.p99, peer=LIMIT_SECONDS, unit="s",
        ratio=LIMIT_SECONDS / many.p99, goal=1.0, pairs=[[each, LIMIT_SECONDS] for each in many.completions],
        sizes=sizes,
    )  # fmt: skip
    return [growth, time]


def _with_tables(url: str, measure: Callable[[Engine], Reading]) -> Reading:
    engine = create_engine(url)
    METADATA.create_all(engine)
    try:
        return measure(engine)
    finally:
        METADATA.drop_all(engine)
        engine.dispose()


def _of_one(engine: Engine, *, operators: int, rounds: int) -> Reading:
    store = SqlJobStore(engine)
    coordinator = AttemptCoordinator(store)
    attempt = coordinator.register(make_registration()).attempt
    _add_operators(store, attempt, operators - 1)
    for _ in range(3):
        _checkpoint(coordinator, attempt)
    with counted(engine) as statements:
        completions = [_checkpoint(coordinator, attempt) for _ in range(rounds)]
    return Reading(len(statements) / rounds, completions)


def _add_operators(store: SqlJobStore, attempt: AttemptRef, count: int) -> None:
    with store.transaction(attempt.job_id) as tx:
        operator, running = tx.operator(attempt.operator_id), tx.attempt(attempt.operator_id, attempt.epoch)
        assert operator is not None
        assert running is not None
        for uid in (f"operator-{number}" for number in range(count)):
            tx.save_operator(replace(operator, operator_id=operator_id_of(uid), uid=uid))
            tx.save_attempt(replace(running, operator_id=operator_id_of(uid), attempt_key=new_key()))


def _checkpoint(coordinator: AttemptCoordinator, attempt: AttemptRef) -> float:
    pending = coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    replies: list[Any] = []
    message = make_acknowledgement(attempt, pending.checkpoint_id)
    took = seconds(lambda: replies.append(coordinator.acknowledge(message)))
    discarded = tuple(discard.checkpoint_id for discard in replies[0].effects.discards)
    coordinator.confirm_discards(attempt, discarded)
    return took


def _aligned(engine: Engine, *, rounds: int, operators: int = 1, subtasks: int = 1) -> Reading:
    tasks = tuple(AlignedTask(f"operator-{number}", parallelism=subtasks) for number in range(operators))
    for task in tasks:
        task.max_parallelism = max(task.max_parallelism, subtasks)
    clock = ManualClock()
    job = AlignedJob(
        SqlJobStore(engine, clock),
        CheckpointStorage.open(f"memory://c2/{operators}-{subtasks}"),
        clock,
        tasks=tasks,
    )
    coordinator = job.coordinator()
    completions = []
    with counted(engine) as statements:
        for checkpoint_id in range(1, rounds + 1):
            coordinator.trigger_checkpoint(_CHECKPOINT)
            took = [_acknowledge(job, coordinator, task, checkpoint_id, subtasks) for task in tasks]
            completions.append(took[-1])
    assert job.status(rounds) == "completed"
    coordinator.shutdown()
    return Reading(len(statements) / rounds, completions)


def _acknowledge(
    job: AlignedJob, coordinator: CheckpointCoordinator, task: AlignedTask, checkpoint_id: int, subtasks: int
) -> float:
    message = job.acknowledgement(task, checkpoint_id, state=spread(job.state(task, checkpoint_id), subtasks))
    return seconds(lambda: coordinator.receive_acknowledge_message(message))


def spread(state: OperatorState, subtasks: int) -> OperatorState:
    """Return a state of an operator in which every subtask has the state of the first one."""
    return replace(state, subtask_states=dict.fromkeys(range(subtasks), state.subtask_states[0]))


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """Collect the statements that an engine executes."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)
