"""The same job with the operator of each service: undisturbed, its driver or its worker killed, and deferred."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.optional_providers import is_importable
from tests.services.kinds import KINDS, Kind
from tests.services.operated import OperatedTask
from tests.services.task import RESUMED
from tests.services.worker import DEFERRED

UNDISTURBED = ["numbers", "item a", "item b", "item c"]
ENDED = [AttemptStatus.FAILED, AttemptStatus.FINISHED]

SHORT = ("livy", True)
"""What does not wait for the long runs: an operator, and whether it defers."""


def parameter(kind: Kind, *more: object, is_short: bool = False) -> Any:
    """Return the parameters of a case."""
    is_missing = pytest.mark.skipif(not is_importable(kind.operator), reason="Google's provider is missing")
    name = "-".join(map(str, (kind.name, *more)))
    return pytest.param(kind, *more, id=name, marks=[is_missing] if is_short else [is_missing, pytest.mark.soak])


EACH = pytest.mark.parametrize("kind", list(map(parameter, KINDS)))

Report = Callable[[OperatedTask, str], None]
Make = Callable[..., OperatedTask]


@pytest.fixture
def make(request: pytest.FixtureRequest, api: str, connections, drivers, tmp_path: Path) -> Iterator[Make]:
    """Make the task of a test with the operator of a kind."""
    made: list[OperatedTask] = []
    contexts: list[Any] = []

    def make(kind: Kind, trouble: str, **arguments: Any) -> OperatedTask:
        contexts.append(kind.serve(connections, drivers))
        contexts[0].__enter__()
        given = {**kind.arguments(tmp_path, trouble), "checkpoint_dir": str(tmp_path / "checkpoints"), **arguments}
        made.append(OperatedTask(tmp_path, api, kind.operator, given))
        return made[0]

    yield make
    for task in made:
        task.close()
    drivers.close()
    for context in contexts:
        context.__exit__(None, None, None)


def statuses(task: OperatedTask) -> list[AttemptStatus]:
    return [each.status for each in task.job.attempts]


def require_success(task: OperatedTask, computed: list[str]) -> None:
    assert (task.work / "result").read_text() == "300"
    assert task.computed == computed
    assert task.mail == []


@pytest.mark.parametrize("deferrable", [False, True])
@EACH
def test_undisturbed_job_computes_everything_once(make: Make, report: Report, kind: Kind, deferrable: bool) -> None:
    task = make(kind, "none", deferrable=deferrable)
    assert task.run() == 0, task.log
    require_success(task, UNDISTURBED)
    report(task, "undisturbed")
    assert statuses(task) == [AttemptStatus.FINISHED]


@pytest.mark.parametrize(
    ("kind", "deferrable"),
    [
        parameter(kind, deferrable, is_short=(kind.name, deferrable) == SHORT)
        for kind in KINDS
        for deferrable in (False, True)
    ],
)
def test_driver_that_is_killed_goes_on_in_the_retry(make: Make, report: Report, kind: Kind, deferrable: bool) -> None:
    task = make(kind, "kill driver", deferrable=deferrable)
    assert task.run() != 0
    assert task.run() == 0, task.log
    require_success(task, RESUMED)
    report(task, "driver killed")
    assert statuses(task) == ENDED


@EACH
def test_worker_that_is_killed_leaves_its_driver_to_the_retry(make: Make, report: Report, kind: Kind) -> None:
    task = make(kind, "wait", deferrable=False)
    worker = task.start()
    task.wait_until((task.work / "trouble-a").exists)
    for item in "abc":
        (task.work / f"go-{item}").touch()
    task.kill(worker)
    assert task.run() == 0, task.log
    computed = task.computed
    assert (task.work / "result").read_text() == "300"
    assert task.mail == []
    report(task, "worker killed")
    if kind.reconnects:
        assert computed == UNDISTURBED
        assert statuses(task) == [AttemptStatus.FINISHED]
    else:
        assert len(computed) <= 2 * len(UNDISTURBED)
        assert statuses(task)[-1] is AttemptStatus.FINISHED


@EACH
def test_triggerer_that_is_killed_leaves_the_calls_to_the_next_one(make: Make, report: Report, kind: Kind) -> None:
    task = make(kind, "wait", deferrable=True)
    assert task.end_of(task.start()) == DEFERRED, task.log
    triggerer = task.defer()
    task.wait_until((task.work / "trouble-a").exists)
    task.kill(triggerer)
    for item in "abc":
        (task.work / f"go-{item}").touch()
    assert task.end_of(task.defer()) == 0, task.log
    assert task.end_of(task.resume()) == 0, task.log
    require_success(task, UNDISTURBED)
    report(task, "triggerer killed")
    assert statuses(task) == [AttemptStatus.FINISHED]


@EACH
def test_driver_that_its_platform_starts_again_restores_in_the_same_try(
    make: Make, report: Report, kind: Kind, drivers
) -> None:
    task = make(kind, "wait", deferrable=True)
    assert task.end_of(task.start()) == DEFERRED, task.log
    triggerer = task.defer()
    (task.work / "go-a").touch()
    task.wait_until(lambda: (task.work / "trouble-b").exists() and task.has_completed_an_item)
    [number] = drivers.running()
    drivers.replace(number)
    (task.work / "go-c").touch()
    assert task.end_of(triggerer) == 0, task.log
    status = task.end_of(task.resume())
    while status == DEFERRED:
        assert task.end_of(task.defer()) == 0, task.log
        status = task.end_of(task.resume())
    assert status == 0, task.log
    require_success(task, RESUMED)
    report(task, "driver started again")
    assert statuses(task) == [AttemptStatus.FENCED, AttemptStatus.FINISHED]


@EACH
def test_task_that_is_ended_cancels_its_job_and_goes_on_when_it_runs_again(
    make: Make, report: Report, kind: Kind, drivers
) -> None:
    task = make(kind, "wait", deferrable=False)
    worker = task.start()
    (task.work / "go-a").touch()
    task.wait_until(lambda: (task.work / "trouble-b").exists() and task.has_completed_an_item)
    worker.terminate()
    assert task.end_of(worker) != 0
    assert drivers.running() == []
    assert statuses(task) == [AttemptStatus.FAILED]
    (task.work / "go-c").touch()
    assert task.run() == 0, task.log
    require_success(task, RESUMED)
    report(task, "task ended")
    assert statuses(task) == ENDED
