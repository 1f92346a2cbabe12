"""
One pipeline, killed in its second half, on every Spark and store: the retry ends right and computes nothing twice.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.connect_server import ConnectServer
from tests.matrix import parts
from tests.matrix.conftest import Task
from tests.matrix.stage import RESULT, RESUMED

QUICK = {("connect", "files")}
CELLS = [(place, store) for place in ("local", "client", "cluster", "connect") for store in ("files", "s3")]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("place", "store"), [pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.soak) for cell in CELLS]
)
def test_killed_pipeline_ends_right_after_a_retry(task: Callable[[str, str], Task], place: str, store: str) -> None:
    stage = task(place, store)
    assert stage.run() != 0, stage.output
    assert stage.run() == 0, stage.output
    assert stage.computed() == RESUMED
    assert ast.literal_eval(stage.result()) == RESULT
    is_on_cluster = (stage.work / "master").read_text().startswith("spark://")
    assert is_on_cluster is (place in ("client", "cluster"))
    attempts = stage.job().attempts
    assert attempts[-1].status is AttemptStatus.FINISHED
    assert attempts[-1].restored_from == 3
    assert stage.job().checkpoints[-1].location.startswith("s3://" if store == "s3" else "file://")


@pytest.mark.soak
@pytest.mark.parametrize(("place", "store"), CELLS)
def test_step_that_is_killed_between_its_parts_ends_right_after_a_retry(
    task: Callable[[str, str], Task], place: str, store: str
) -> None:
    stage = task(place, store)
    (stage.work / "in_parts").touch()
    assert stage.run() != 0, stage.output
    assert stage.run() == 0, stage.output
    assert ast.literal_eval(stage.result()) == parts.RESULT
    called = parts.calls(stage.work)
    assert set(called) == set(parts.RESULT)
    assert called.most_common(1)[0][1] == 2
    assert sum(count - 1 for count in called.values()) <= parts.IN_FLIGHT
    assert stage.job().attempts[-1].restored_from is not None


@pytest.mark.soak
def test_server_that_is_started_anew_under_a_stage_is_named_and_the_retry_goes_on(task, server: ConnectServer) -> None:
    stage: Task = task("connect", "files")
    (stage.work / "victim").write_text(str(server.pid))
    first = stage.start()
    server.wait()
    server.start()
    assert stage.finish(first) != 0
    assert "The Spark Connect server was lost while the stage was running" in stage.output
    assert stage.run() == 0, stage.output
    assert stage.computed() == RESUMED
    assert ast.literal_eval(stage.result()) == RESULT
