from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from airflow.sdk.execution_time import task_runner

from airflow_provider_statecheck.gateway.mailbox.box import Pace
from airflow_provider_statecheck.hooks import relayed_stage, transport
from tests.stand_in_task import TrustedTask


@pytest.fixture
def in_worker(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a worker, whose task the server believes, and whose relay looks often."""
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    monkeypatch.setenv("AIRFLOW_CONN_STATECHECK_DEFAULT", json.dumps({"conn_type": "statecheck", "host": api}))
    monkeypatch.setattr(transport, "task_credentials", lambda client, _: TrustedTask(client))
    monkeypatch.setattr(relayed_stage, "Pace", lambda: Pace(shortest=0.01, longest=0.05))
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=lambda _: None), raising=False)
