"""The status of an attempt is that of its task or process, however that ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped, TaskDeferred
from airflow.sdk.execution_time.context import set_current_context

from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    CoordinatorError,
    InvalidConfigurationError,
    OpenCommitError,
    StageExitError,
)
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.endings import is_success, message_of
from airflow_provider_statecheck.spark.stages.stage_run import StageRun
from airflow_provider_statecheck.state.backends import FsStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_owner
from tests.unit.operators import stages_of_test
from tests.unit.written_stage import WrittenStage

FAILED, FINISHED = AttemptStatus.FAILED, AttemptStatus.FINISHED
NO_SESSION: Any = None


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(f"file://{tmp_path}"))


@pytest.fixture
def in_a_task() -> Iterator[None]:
    with set_current_context({}):
        yield


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


PROCESS = [
    (SystemExit(), FINISHED),
    (SystemExit(0), FINISHED),
    (SystemExit(False), FINISHED),
    (SystemExit(256), FINISHED),  # the system keeps one byte
    (SystemExit(1), FAILED),
    (SystemExit(-1), FAILED),
    (SystemExit(""), FAILED),
    (SystemExit("no input"), FAILED),
    (SystemExit(1, 2), FAILED),
    (KeyboardInterrupt(), FAILED),
    (ValueError("no"), FAILED),
    # The process exits with 1.
    (AirflowSkipException("no data"), FAILED),
]
TASK = [
    (AirflowSkipException("no data"), FINISHED),
    (AirflowSkipException(), FINISHED),
    (DownstreamTasksSkipped(tasks=["next"]), FINISHED),
    (AirflowFailException("no"), FAILED),
    (TaskDeferred(trigger=None, method_name="again"), FAILED),
    (SystemExit(0), FAILED),
    (KeyboardInterrupt(), FAILED),
    (ValueError("no"), FAILED),
]


def run(checkpoint: StageContext, error: BaseException | None = None) -> None:
    with checkpoint:
        checkpoint.state["count"] = 3
        if error is not None:
            raise error


def end_by(stage: WrittenStage, error: BaseException) -> AttemptRecord:
    with pytest.raises(type(error)) as raised:
        run(StageContext(NO_SESSION, stage.attempt()), error)
    assert raised.value is error
    return stage.last_attempt()


@pytest.mark.parametrize(("error", "status"), PROCESS, ids=repr)
def test_attempt_of_a_process_has_the_status_of_its_exit(
    stage: WrittenStage, error: BaseException, status: Any
) -> None:
    row = end_by(stage, error)
    assert (row.status, row.message.partition(":")[0]) == (status, type(error).__name__)


@pytest.mark.usefixtures("in_a_task")
@pytest.mark.parametrize(("error", "status"), TASK, ids=repr)
def test_attempt_of_a_task_has_the_status_that_airflow_gives_the_task(
    stage: WrittenStage, error: BaseException, status: Any
) -> None:
    row = end_by(stage, error)
    assert (row.status, row.message.partition(":")[0]) == (status, type(error).__name__)


@pytest.mark.usefixtures("in_a_task")
def test_skip_saves_what_the_stage_has_done(stage: WrittenStage) -> None:
    with contextlib.suppress(AirflowSkipException), StageContext(NO_SESSION, stage.attempt()) as checkpoint:
        for item in checkpoint.each("days", [1, 2, 3], every=10):
            if item == 3:
                raise AirflowSkipException("no data")
    with StageContext(NO_SESSION, stage.attempt()) as retry:
        assert list(retry.each("days", [1, 2, 3])) == [3]


@pytest.mark.usefixtures("in_a_task")
def test_task_that_was_skipped_starts_over_after_a_clear_like_one_that_succeeded(stage: WrittenStage) -> None:
    end_by(stage, AirflowSkipException("no data"))
    cleared = stage.attempt(owner=make_owner(clear_marker="another"))
    assert (cleared.grant.is_restore, cleared.grant.start_reason) == (False, "cleared after success")


@pytest.mark.usefixtures("in_a_task")
@pytest.mark.parametrize("end", [None, AirflowSkipException("no data")], ids=repr)
def test_last_checkpoint_that_fails_closes_the_attempt_as_failed(
    stage: WrittenStage, monkeypatch: Any, end: Any
) -> None:
    checkpoint = StageContext(NO_SESSION, stage.attempt())
    monkeypatch.setattr(checkpoint, "checkpoint", raising(CheckpointDeclinedError("full")))
    with pytest.raises(CheckpointDeclinedError):
        run(checkpoint, end)
    row = stage.last_attempt()
    assert (row.status, row.message) == (FAILED, "CheckpointDeclinedError: full")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("no")], ids=repr)
def test_error_in_the_restore_closes_the_attempt(stage: WrittenStage, monkeypatch: Any, error: BaseException) -> None:
    stage.run(checkpoints=1)
    attempt = stage.attempt()
    monkeypatch.setattr(attempt, "load", raising(error))
    with pytest.raises(type(error)):
        StageContext(NO_SESSION, attempt)
    assert (stage.last_attempt().status, stage.last_attempt().epoch) == (FAILED, 2)


@pytest.mark.parametrize("code", [None, 0, 1])
def test_stage_whose_code_exits_has_not_ended(stage: WrittenStage, code: Any) -> None:
    """Its process would succeed without the rest of the input."""

    def exit_(_: Any) -> Any:
        sys.exit(code)

    with pytest.raises(StageExitError, match=r"found sys\.exit\("):
        StageRun(NO_SESSION, stage.attempt(), stages_of_test.stage).run(exit_)
    assert stage.last_attempt().status is FAILED


@pytest.mark.parametrize(
    ("name", "paths"), [("checkpoint_dir", ("s3://lake/c",)), ("savepoint_dir", (None, "s3://lake/s"))]
)
def test_stage_whose_backend_names_other_directories_than_its_task_fails(
    stage: WrittenStage, name: str, paths: tuple[Any, ...]
) -> None:
    declared = replace(stages_of_test.stage, state_backend=FsStateBackend(*paths))
    with pytest.raises(
        InvalidConfigurationError, match=f"Expected {name} of the task to be .*, s3://lake/.*; pass {name}="
    ):
        StageRun(NO_SESSION, stage.attempt(), declared).run()
    assert stage.last_attempt().status is FAILED


@pytest.mark.usefixtures("in_a_task")
def test_stage_is_skipped_like_a_function(stage: WrittenStage) -> None:
    def skip(_: Any) -> Any:
        raise AirflowSkipException("no data")

    with pytest.raises(AirflowSkipException):
        StageRun(NO_SESSION, stage.attempt(), stages_of_test.stage).run(skip)
    row = stage.last_attempt()
    assert (row.status, row.message) == (FINISHED, "AirflowSkipException: no data")


@pytest.mark.usefixtures("in_a_task")
def test_stage_with_output_that_is_not_committed_cannot_be_skipped(stage: WrittenStage, monkeypatch: Any) -> None:
    attempt, finish = stage.attempt(), StageAttempt.finish

    def refuse(self: StageAttempt, status: AttemptStatus, *arguments: Any) -> None:
        if status is FINISHED:
            raise OpenCommitError("open")
        finish(self, status, *arguments)

    monkeypatch.setattr(StageAttempt, "finish", refuse)
    with pytest.raises(OpenCommitError), attempt.ending():
        raise AirflowSkipException("no data")
    assert stage.last_attempt().status is FAILED


def test_coordinator_that_is_away_hides_no_error(stage: WrittenStage, monkeypatch: Any) -> None:
    attempt = stage.attempt()
    monkeypatch.setattr(stage.coordinator, "finish", lambda _: raising(CoordinatorError("away"))())
    with pytest.raises(KeyboardInterrupt), attempt.ending():
        raise KeyboardInterrupt


class UnreadableError(Exception):
    """An error of Java whose JVM has died."""

    def __str__(self) -> str:
        raise ConnectionRefusedError("no JVM")


def test_error_whose_text_is_lost_closes_the_attempt_too(stage: WrittenStage) -> None:
    assert end_by(stage, UnreadableError()).message == "UnreadableError: no JVM"


@pytest.mark.usefixtures("in_a_task")
def test_attempt_of_a_task_that_leaves_says_that_it_goes_on() -> None:
    text = message_of(TaskDeferred(trigger=None, method_name="again"))
    assert text.endswith("resumes from its last checkpoint when it returns)")


def test_airflow_that_has_no_such_error_makes_nothing_a_success(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "airflow.sdk.exceptions", SimpleNamespace())
    with set_current_context({}):
        assert not is_success(AirflowSkipException("no data"))
