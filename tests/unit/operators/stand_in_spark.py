"""A session that stands in for Spark around a function that uses none, and the operator that runs it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.hooks.spark import SessionTarget
from airflow_provider_statecheck.operators import checkpointed
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from tests.unit.operators.test_registration import make_context
from tests.unit.written_stage import JOB, WrittenStage


class StandInSession:
    """What the operator needs of a session in local mode."""

    def __init__(self) -> None:
        self.conf = SimpleNamespace(get=lambda *_: "local[1]")
        self.sparkContext = SimpleNamespace(cancelAllJobs=lambda: None, environment={}, pythonExec="python")
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Task:
    """A task whose coordinator is that of a written stage, in a process that starts no Spark."""

    def __init__(self, stage: WrittenStage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = stage
        self.session = StandInSession()
        self.start: Callable[[], Any] = lambda: self.session
        monkeypatch.setattr(transport, "airflow_gateway", lambda: stage.coordinator)
        monkeypatch.setattr(transport, "is_orm_open", lambda: False)
        monkeypatch.setattr(checkpointed, "push_link", lambda *_: None)
        monkeypatch.setattr(SessionTarget, "check_environment", lambda _: None)
        monkeypatch.setattr(SessionTarget, "start", lambda *_: self.start())

    def operator(self, function: Callable[..., Any], **arguments: Any) -> CheckpointedPySparkOperator:
        """Return the operator of a function."""
        values = {"task_id": "task", "job": JOB, "uid": "aggregate", "checkpoint_dir": self.stage.storage.base_uri}
        return CheckpointedPySparkOperator(python_callable=function, **values | arguments)

    @staticmethod
    def context(**changes: Any) -> dict[str, Any]:
        """Return the context of a try."""
        return {**make_context(**changes), "outlet_events": {}}
