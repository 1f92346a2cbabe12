"""Queryable state by way of the hook: in a process with Airflow's database, and in a task without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions.context import Context
from airflow.sdk.execution_time.context import set_current_context

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
)
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook
from airflow_provider_statecheck.queryable.client import QueryableStateClient
from airflow_provider_statecheck.queryable.reads import LocalStateClient
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.queried_stage import QueriedStage
from tests.unit.state.serializers.record_types import Point
from tests.unit.worker import ServedJobs
from tests.written_state import BACKENDS, StatefulJob

PLACE = ValueStateDescriptor("place", Point, queryable_name="places")
VISITS = MapStateDescriptor("visits", Point, int, queryable_name="visits")


def stage_of(jobs: ServedJobs, folder: Path, job: str = "sales") -> QueriedStage:
    storage = CheckpointStorage.open((folder / "checkpoints").as_uri())
    written = StatefulJob(storage, BACKENDS["arrow"](), [PLACE, VISITS], job_name=job)
    stage = QueriedStage(jobs.store, (written,), num_retained=2)
    stage.begin()
    return stage


@pytest.fixture(params=["in_worker", "with_database"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueriedStage]:
    stage = stage_of(request.getfixturevalue(request.param), tmp_path)
    yield stage
    stage.close()


def test_a_task_reads_the_newest_value_of_a_key_by_name(stage: QueriedStage) -> None:
    hook = StatecheckHook()
    for x in (1, 2):
        stage.put("place", {"ann": Point(x, "a"), "bo": Point(7)})
        stage.state("ann", "visits").put(Point(x, "a"), 3)
        checkpoint_id = stage.checkpoint()
        reply = hook.query_state("sales", "places", "ann")
        assert (reply.value, reply.checkpoint_id) == ({"x": x, "label": "a"}, checkpoint_id)
    assert hook.query_state("sales", "places", "ann", checkpoint_id=1).value["x"] == 1
    assert hook.query_state("sales", "visits", "ann", user_key=Point(2, "a")).value == 3
    many = hook.query_states("sales", "places", ["ann", "cy", "bo"]).found
    assert {key: each["x"] for key, each in many.items()} == {"ann": 2, "bo": 7}
    assert hook.state_client().get_kv_state("sales", "places", "ann", PLACE).value() == Point(2, "a")


@pytest.mark.parametrize(
    ("process", "client"), [("in_worker", QueryableStateClient), ("with_database", LocalStateClient)]
)
def test_a_process_with_the_database_needs_no_server(
    request: pytest.FixtureRequest, process: str, client: type[Any]
) -> None:
    request.getfixturevalue(process)
    hook = StatecheckHook()
    assert isinstance(hook.state_client(), client)
    assert hook.state_client() is hook.state_client()


def test_a_name_means_the_job_of_test_runs_in_a_task_that_dag_test_runs(
    with_database: ServedJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operators use that job there, and so does the sensor."""
    stage = stage_of(with_database, tmp_path, job="test/sales")
    stage.put("place", {"ann": Point(1)})
    stage.checkpoint()
    hook = StatecheckHook()
    with pytest.raises(CheckpointNotFoundError):
        hook.query_state("sales", "places", "ann")
    with set_current_context(Context()):
        for job in ("sales", "test/sales", stage.job_id):
            assert hook.query_state(job, "places", "ann").value["x"] == 1
        assert [each.name for each in hook.queryable_names("sales")] == ["places", "visits"]
    stage.close()


def test_a_reply_that_is_lost_with_its_server_is_asked_for_again(in_worker: ServedJobs, tmp_path: Path) -> None:
    stage = stage_of(in_worker, tmp_path)
    stage.put("place", {"ann": Point(1)})
    stage.checkpoint()
    in_worker.lose_replies()
    assert StatecheckHook().query_state("sales", "places", "ann").value["x"] == 1
    stage.close()
