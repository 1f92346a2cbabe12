"""What stands in for Airflow around one try of a task: its context, its credentials, its database out of reach."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time import task_runner

from airflow_provider_statecheck.gateway.http import HttpClient
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.plugins import statecheck as listeners
from tests.conformance.api_process import SECRET

DAG_ID, TASK_ID, RUN_ID = "dag", "submit", "run"


class FileStateStore:
    """Airflow's task state store, which outlives a try."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str, default: Any = None) -> Any:
        return self._read().get(key, default)

    def set(self, key: str, value: Any, **_: Any) -> None:
        self._path.write_text(json.dumps({**self._read(), key: value}))

    def delete(self, key: str) -> None:
        self._path.write_text(json.dumps({k: v for k, v in self._read().items() if k != key}))

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._path.read_text())) if self._path.exists() else {}


class TrustedTask:
    """Credentials that the test's server believes."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def obtain(self) -> str:
        caller = {"dag_id": DAG_ID, "run_id": RUN_ID, "task_id": TASK_ID}
        return str(self._client.post("token", {"ti_id": json.dumps(caller), "secret": SECRET})["token"])


def context_of(work: Path, try_number: int, max_tries: int) -> dict[str, Any]:
    tries = {"max_tries": max_tries, "try_number": try_number}
    names = {"id": f"try {try_number}", "dag_id": DAG_ID, "run_id": RUN_ID, "task_id": TASK_ID, "map_index": -1}
    ti = SimpleNamespace(**names, **tries)
    ti.stats_tags, ti.start_date = {}, datetime.now(UTC)
    ti.xcom_push = ti.xcom_pull = lambda **_: None
    dag_run = SimpleNamespace(logical_date=None, run_id=RUN_ID, clear_number=0)
    return {
        "ti": ti,
        "task_instance": ti,
        "dag": None,
        "dag_run": dag_run,
        "run_id": RUN_ID,
        "task_state_store": FileStateStore(work / "store.json"),
        "outlet_events": {},
    }


def execute_as_a_worker_would(
    operator: Any, work: Path, try_number: int, max_tries: int, resume: Mapping[str, Any] | None = None
) -> Any:
    """
    Execute an operator in this process, which Airflow's database is blocked in from now on.

    :param resume: Method and arguments with which a deferred task is resumed.
    """
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = "airflow-db-not-allowed:///"
    transport.task_credentials = lambda client, _: TrustedTask(client)  # type: ignore[assignment]
    task_runner.SUPERVISOR_COMMS = SimpleNamespace(send=lambda message: None)  # type: ignore[assignment]
    signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())  # as Airflow's task runner does
    context: Any = context_of(work, try_number, max_tries)
    try:
        if resume is None:
            return operator.execute(context)
        return operator.resume_execution(resume["next_method"], resume["next_kwargs"], context)
    except TaskDeferred:
        raise
    except BaseException as error:
        listeners.on_task_instance_failed(SimpleNamespace(task=operator), error)
        raise
