"""A task that Airflow terminates ends at once, wherever it is, and closes its attempt."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.gateway import verbs
from airflow_provider_statecheck.operators.checkpointed import StageTerminatedError
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from airflow_provider_statecheck.spark.driver import readiness
from airflow_provider_statecheck.spark.stages.stage_run import DriverTerminatedError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_owner
from tests.unit.operators.stand_in_spark import Task
from tests.unit.written_stage import WrittenStage

# Airflow kills the task 5 s after it has told it to end.
BOUND_SECONDS = 5.0
FAR_LONGER = 60.0
FAILED, RUNNING = AttemptStatus.FAILED, AttemptStatus.RUNNING


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(f"file://{tmp_path}"))


@pytest.fixture
def spark_task(stage: WrittenStage, monkeypatch: pytest.MonkeyPatch) -> Task:
    return Task(stage, monkeypatch)


class Signal:
    """Sends SIGTERM to the main thread once, when the task has reached a place."""

    def __init__(self) -> None:
        self.sent_at = 0.0
        self.release = threading.Event()

    def __call__(self, *_: Any, **__: Any) -> None:
        """Wait like Spark or a coordinator that does not answer, in any thread, and be told to end meanwhile."""
        if not self.sent_at:
            threading.Thread(target=self._send, daemon=True).start()
        self.release.wait(FAR_LONGER)

    def _send(self) -> None:
        self.sent_at = time.monotonic()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.sent_at


@pytest.fixture
def term() -> Iterator[Signal]:
    before = signal.getsignal(signal.SIGTERM)
    term = Signal()
    yield term
    term.release.set()
    signal.signal(signal.SIGTERM, before)


def end(task: Task, term: Signal, operator: CheckpointedPySparkOperator) -> StageTerminatedError:
    """Execute an operator under Airflow's signal handler until it is terminated, and return the error."""
    signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
    with pytest.raises(StageTerminatedError) as raised:
        operator.execute(task.context())
    assert term.seconds < BOUND_SECONDS
    operator.on_kill()  # does nothing after the end
    return raised.value


def test_while_spark_starts(spark_task: Task, term: Signal) -> None:
    spark_task.start = term
    end(spark_task, term, spark_task.operator(lambda spark, checkpoint: None))
    assert spark_task.stage.attempts() == []


def test_while_the_cluster_is_checked(spark_task: Task, term: Signal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "make_ready", term)
    end(spark_task, term, spark_task.operator(lambda spark, checkpoint: None))
    assert spark_task.session.is_stopped
    assert spark_task.stage.attempts() == []


def test_while_it_waits_for_its_turn(spark_task: Task, term: Signal, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, register = spark_task.stage, spark_task.stage.coordinator.register
    stage.attempt(owner=make_owner(logical_task="dag/other", label="another task"))
    monkeypatch.setattr(UnknownLiveness, "is_running", lambda *_: True)
    refused: list[Any] = []

    def refuse(request: Any) -> Any:
        refused.append(request)
        threading.Thread(target=term, daemon=True).start()
        return register(request)

    monkeypatch.setattr(stage.coordinator, "register", refuse)
    end(spark_task, term, spark_task.operator(lambda spark, checkpoint: None, on_overlap="wait"))
    assert [attempt.status for attempt in stage.attempts()] == [RUNNING]
    assert len(refused) == 1


def test_while_it_restores(spark_task: Task, term: Signal, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = spark_task.stage
    stage.run(checkpoints=1)
    monkeypatch.setattr(stage.coordinator, "confirm_restore", term)
    operator = spark_task.operator(lambda spark, checkpoint: None)
    end(spark_task, term, operator)
    assert [attempt.status for attempt in stage.attempts()] == [FAILED, FAILED]
    assert "StageTerminatedError" in stage.last_attempt().message
    assert "retains checkpoint 1" in (operator.kept or "")


def test_while_the_function_runs(spark_task: Task, term: Signal) -> None:
    def function(spark: Any, checkpoint: Any) -> None:
        checkpoint.state["begun"] = True
        checkpoint.checkpoint()
        while not term.release.is_set():
            term()

    operator = spark_task.operator(function)
    end(spark_task, term, operator)
    assert [attempt.status for attempt in spark_task.stage.attempts()] == [FAILED]
    assert "retains checkpoint 1" in (operator.kept or "")


class Terminating(logging.Handler):
    """A handler of the log that is at work when the task is told to end; handlers go on after any exception."""

    def __init__(self, operator: CheckpointedPySparkOperator, term: Signal) -> None:
        super().__init__()
        self._on_kill: Callable[[], None] = operator.on_kill
        self._term = term

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for" not in record.getMessage():
            return
        self._term.sent_at = time.monotonic()
        try:
            self._on_kill()
        except Exception:
            self.handleError(record)


def test_while_it_logs(spark_task: Task, term: Signal, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_task.stage.attempt(owner=make_owner(logical_task="dag/other", label="another task"))
    monkeypatch.setattr(UnknownLiveness, "is_running", lambda *_: True)
    operator = spark_task.operator(lambda spark, checkpoint: None, on_overlap="wait")
    terminating = Terminating(operator, term)
    monkeypatch.setattr(verbs.log, "info", lambda text, *values: terminating.emit(record_of(text, values)))
    end(spark_task, term, operator)
    assert [attempt.status for attempt in spark_task.stage.attempts()] == [RUNNING]


def record_of(text: str, values: tuple[Any, ...]) -> logging.LogRecord:
    return logging.LogRecord("log", logging.INFO, __file__, 1, text, values, None)


@pytest.mark.parametrize("error", [StageTerminatedError, DriverTerminatedError])
def test_no_code_that_goes_on_after_any_exception_passes_a_signal_over(error: type[BaseException]) -> None:
    with pytest.raises(error), suppress(Exception):
        raise error


def test_while_it_takes_its_last_checkpoint(spark_task: Task, term: Signal, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(spark: Any, checkpoint: Any) -> None:
        checkpoint.state["begun"] = True

    monkeypatch.setattr(spark_task.stage.coordinator, "acknowledge", term)
    end(spark_task, term, spark_task.operator(function))
    assert [attempt.status for attempt in spark_task.stage.attempts()] == [FAILED]


def test_task_that_has_ended_is_not_interrupted(spark_task: Task) -> None:
    operator = spark_task.operator(lambda spark, checkpoint: 7)
    stop: Callable[[], None] = operator.on_kill
    spark_task.session.stop = stop  # type: ignore[method-assign]
    assert operator.execute(spark_task.context()) == 7
    assert spark_task.stage.last_attempt().status is AttemptStatus.FINISHED


def test_task_that_fails_after_the_end_of_its_stage_has_a_failed_attempt(spark_task: Task) -> None:
    """Its result cannot be stored, for instance."""

    def function(spark: Any, checkpoint: Any) -> None:
        checkpoint.state["done"] = True

    operator = spark_task.operator(function)
    operator.execute(spark_task.context())
    operator.fail_after_end(TypeError("not serializable"))
    row = spark_task.stage.last_attempt()
    assert (row.status, row.message) == (FAILED, "TypeError: not serializable")
    assert "retains checkpoint 1" in (operator.kept or "")
