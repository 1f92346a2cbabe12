"""Savepoints of whole jobs by the hook, in a task that reaches the rows over the API of another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, RequestStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointExpiredError,
    ConcurrentAttemptError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook
from airflow_provider_statecheck.hooks.transport import job_savepoints
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.api_process import RUNNING_FILE
from tests.contracts.runs_of_a_job import AGAIN, day
from tests.unit.worker import ServedJobs
from tests.unit.written_stage import JOB, WrittenStage


@pytest.fixture
def stage(in_worker: ServedJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenStage:
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", tmp_path.as_uri())
    return WrittenStage(CheckpointStorage.open(tmp_path.as_uri()), in_worker.clock, in_worker.store)


def work(stage: WrittenStage, number: int, **changes: Any) -> None:
    """Let both stages take a checkpoint in the run of a day."""
    for uid in ("count", "load"):
        task = {"dag_id": "nightly", "task_id": uid, "run_id": day(number).run_id, "map_index": "-1"}
        owner = day(number, logical_task=f"nightly/{uid}", airflow=tuple(task.items()), **changes)
        attempt = stage.attempt(uid=uid, owner=owner, num_retained=3, retained_runs=3)
        stage.take(attempt, stage.snapshot(attempt, f"{uid} of day {number}"))
        attempt.finish(AttemptStatus.FINISHED)


@pytest.fixture
def pointer(stage: WrittenStage, tmp_path: Path) -> str:
    """A savepoint of the first day, after which both stages have worked on."""
    work(stage, 1)
    pointer = StatecheckHook().savepoint(JOB, target=f"{tmp_path.as_uri()}/savepoints", timeout=0)
    work(stage, 2)
    return pointer


def actions(stage: WrittenStage) -> Any:
    return stage.coordinator.describe(job_id_of(JOB)).actions


def test_a_target_on_an_unknown_filesystem_is_refused_before_the_request(stage: WrittenStage) -> None:
    work(stage, 1)
    with pytest.raises(InvalidConfigurationError, match="found 's4'"):
        StatecheckHook().savepoint(JOB, target="s4://lake/savepoints", timeout=0)
    assert stage.coordinator.describe(job_id_of(JOB)).requests == ()


@pytest.mark.parametrize("timeout", [float("nan"), -1.0])
def test_a_timeout_that_is_none_is_refused_before_the_request(
    stage: WrittenStage, tmp_path: Path, timeout: float
) -> None:
    work(stage, 1)
    with pytest.raises(InvalidConfigurationError, match="Expected timeout to be a number of seconds, 0 or more"):
        StatecheckHook().savepoint(JOB, target=tmp_path.as_uri(), timeout=timeout)
    assert stage.coordinator.describe(job_id_of(JOB)).requests == ()


def test_a_restore_says_what_changes_and_which_tasks_run_again(stage: WrittenStage, pointer: str) -> None:
    dry = StatecheckHook().restore(JOB, pointer, dry_run=True)
    assert actions(stage) == ()

    restored = StatecheckHook().restore(JOB, pointer)

    assert restored == dry
    assert {each.uid: [c.checkpoint_id for c in each.taken_back] for each in restored.operators} == {
        "count": [4],
        "load": [5],
    }
    first, second = day(1).run_key, day(2).run_key
    assert restored.tasks_to_run == (f"airflow tasks clear nightly -t '^(count|load)$' -s {first} -e {second}",)
    again = stage.attempt(uid="load", owner=day(2, logical_task="nightly/load", clear_marker=AGAIN))
    found = again.restore()
    assert found is not None
    assert [handle.name for handle in found.document.snapshots] == ["load of day 1"]
    again.finish(AttemptStatus.FAILED)


def test_a_restore_whose_replies_are_lost_is_carried_out_once(
    stage: WrittenStage, pointer: str, in_worker: ServedJobs
) -> None:
    in_worker.lose_replies()
    restored = StatecheckHook().restore(JOB, pointer)
    assert [each.uid for each in restored.operators] == ["count", "load"]
    assert [each.restore.pointer for each in actions(stage)] == [pointer, pointer]
    assert {each.requested_by for each in actions(stage)} == {"task dag.task of run run"}


def test_a_restore_is_refused_while_a_task_of_the_job_runs(stage: WrittenStage, pointer: str, tmp_path: Path) -> None:
    (tmp_path / RUNNING_FILE).write_text(day(3).run_id)
    running = stage.attempt(uid="load", owner=day(3, logical_task="nightly/load"))
    for dry_run in (True, False):
        with pytest.raises(ConcurrentAttemptError, match="no running task"):
            StatecheckHook().restore(JOB, pointer, dry_run=dry_run)
    assert actions(stage) == ()
    running.finish(AttemptStatus.FINISHED)


@pytest.mark.parametrize("stop", ["suspend", "terminate"])
def test_a_savepoint_stops_the_job(stage: WrittenStage, tmp_path: Path, stop: Any) -> None:
    target = f"{tmp_path.as_uri()}/savepoints"
    pauses: list[float] = []

    def take_savepoint(seconds: float) -> None:
        pauses.append(seconds)
        job_savepoints().take(job_id_of(JOB))

    running = stage.attempt(driver={"pause": take_savepoint})
    with pytest.raises(CheckpointExpiredError, match="it awaits aggregate"):
        StatecheckHook().savepoint(JOB, target=target, stop=stop, timeout=0)
    stage.clock.advance(1)
    if stop == "suspend":
        with pytest.raises(StoppedWithSavepointError, match=f"{target}/savepoint-"):
            stage.take(running)
        running.finish(AttemptStatus.FAILED)
    else:
        stage.take(running)
        running.finish(AttemptStatus.FINISHED)
        take_savepoint(0)
    assert len(pauses) == 1
    [request] = stage.coordinator.describe(job_id_of(JOB)).requests
    assert (request.status, request.properties.is_terminate) == (RequestStatus.COMPLETED, stop == "terminate")
    assert StatecheckHook().savepoint(JOB, target=target, stop=stop, timeout=0).startswith(target)


def test_another_stop_is_refused(stage: WrittenStage, pointer: str) -> None:
    stop: Any = "now"
    with pytest.raises(InvalidConfigurationError, match="found 'now'"):
        StatecheckHook().savepoint(JOB, stop=stop)


def test_a_savepoint_of_another_job_is_refused(stage: WrittenStage, pointer: str) -> None:
    stage.run("other", checkpoints=1)
    with pytest.raises(IncompatibleCheckpointError, match="found one of job 'sales'"):
        StatecheckHook().restore("other", pointer)
