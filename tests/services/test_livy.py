"""A driver that Livy runs, submitted with the hook of Airflow's provider."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.apache.livy.hooks.livy import BatchState, LivyHook
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.payloads.livy import batch_with
from tests.services.kinds import serve_livy
from tests.services.task import RESUMED, Task


@pytest.fixture
def hook(connections, drivers) -> LivyHook:
    serve_livy(connections, drivers)
    return LivyHook()


def params_of(task: Task) -> dict[str, Any]:
    return {"file": task.script, "args": task.arguments, "conf": {"spark.speculation": "false"}, "py_files": None}


def ended(task: Task, hook: LivyHook, batch: int) -> BatchState:
    task.wait_until(lambda: hook.get_batch_state(batch) in hook.TERMINAL_STATES)
    return hook.get_batch_state(batch)


@pytest.mark.soak
def test_batch_that_is_killed_goes_on_in_the_next_try(task: Task, hook: LivyHook) -> None:
    task.trouble = "kill driver"
    with task.next_try(AttemptStatus.FAILED) as additions:
        batch = hook.post_batch(**batch_with(params_of(task), additions))
        assert ended(task, hook, batch) is BatchState.DEAD
    with task.next_try() as additions:
        batch = hook.post_batch(**batch_with(params_of(task), additions))
        assert ended(task, hook, batch) is BatchState.SUCCESS, hook.get_batch_logs(batch, 0, 1000)["log"]
    assert task.computed == RESUMED
    assert [each.status for each in task.attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert "/airflow_provider_statecheck-" in task.imported_from
    hook.dump_batch_logs(batch)


@pytest.mark.soak
def test_deleted_batch_is_gone_and_its_driver_has_ended(task: Task, hook: LivyHook, drivers) -> None:
    task.trouble = "wait"
    with task.next_try(AttemptStatus.FAILED) as additions:
        batch = hook.post_batch(**batch_with(params_of(task), additions))
        task.wait_until((task.work / "trouble-a").exists)
        assert hook.get_batch_state(batch) is BatchState.RUNNING
        hook.delete_batch(batch)
    with pytest.raises(AirflowException, match="Unable to fetch batch"):
        hook.get_batch(batch)
    assert drivers.state(batch) == "cancelled"
