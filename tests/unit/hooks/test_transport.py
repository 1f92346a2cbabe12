from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.hooks.transport import airflow_gateway, is_orm_open


def test_the_database_is_open_outside_of_a_scheduled_task(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:///airflow.db")
    assert is_orm_open()


def test_a_process_without_database_and_without_task_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    with pytest.raises(EnvironmentNotReadyError, match="running task"):
        airflow_gateway()
