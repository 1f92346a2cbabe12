from __future__ import annotations

import socket
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk.execution_time import comms, task_runner
from airflow.sdk.execution_time.comms import CommsDecoder

from airflow_provider_statecheck.exceptions import CoordinatorError, EnvironmentNotReadyError, StateCheckError
from airflow_provider_statecheck.gateway.http import HttpClient
from airflow_provider_statecheck.gateway.verbs import CHALLENGE_KEY
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.hooks.transport import TaskCredentials, airflow_gateway, is_orm_open


def test_the_database_is_open_outside_of_a_scheduled_task(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:///airflow.db")
    assert is_orm_open()


def test_a_process_without_database_and_without_task_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    with pytest.raises(EnvironmentNotReadyError, match="running task"):
        airflow_gateway()


@pytest.mark.parametrize("heard", [False, True], ids=["before the request", "after the request"])
def test_a_task_whose_supervisor_ended_gets_an_error_of_the_coordinator(monkeypatch, heard: bool) -> None:
    ours, supervisor = socket.socketpair()
    if heard:
        supervisor.shutdown(socket.SHUT_WR)
    else:
        supervisor.close()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", CommsDecoder(socket=ours), raising=False)
    credentials = TaskCredentials(HttpClient("http://127.0.0.1:1"), uuid.uuid4())
    with pytest.raises(CoordinatorError, match="supervisor of the task"):
        credentials.obtain()


def test_without_a_state_store_of_tasks_the_challenge_is_one_of_the_rendered_fields(monkeypatch) -> None:
    """As in Airflow 3.2."""
    sent: list[Any] = []
    task = BashOperator(task_id="features", bash_command="echo 1")
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=sent.append), raising=False)
    monkeypatch.delattr(comms, "SetTaskStateStore")
    monkeypatch.setattr(transport, "running_context", lambda: {"ti": SimpleNamespace(task=task)})
    with pytest.raises(StateCheckError):
        TaskCredentials(HttpClient("http://127.0.0.1:1"), uuid.uuid4()).obtain()
    [message] = sent
    assert message.rendered_fields.pop(CHALLENGE_KEY)
    assert message.rendered_fields["bash_command"] == "echo 1"
