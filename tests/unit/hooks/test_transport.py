from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.hooks.transport import airflow_gateway, is_orm_open


def test_a_task_under_a_scheduler_is_refused_with_what_works_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    assert not is_orm_open()
    with pytest.raises(EnvironmentNotReadyError, match="airflow tasks test"):
        airflow_gateway()


def test_elsewhere_the_database_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////tmp/x.db")
    assert is_orm_open()
