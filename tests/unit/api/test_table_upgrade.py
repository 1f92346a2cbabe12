"""The start of an api-server brings the tables up to date, and succeeds whatever comes of that."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from airflow.utils import session as sessions

from airflow_provider_statecheck.api import table_upgrade
from airflow_provider_statecheck.api.table_upgrade import TableUpgrade

LOGGER = table_upgrade.log.name


def messages_after(kind: str) -> list[str]:
    """Return the kinds of the messages that the server behind the middleware gets."""
    passed: list[str] = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    unused: Any = None
    anyio.run(lambda: TableUpgrade(server)({"type": kind}, unused, unused))
    return passed


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the sessions that are opened, each of which fails."""
    opened: list[str] = []

    def fail(**_: Any) -> None:
        opened.append("session")
        raise PermissionError("permission denied for schema public")

    monkeypatch.setattr(sessions, "create_session", fail)
    return opened


def test_a_server_starts_although_its_tables_cannot_be_created(
    opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert messages_after("lifespan") == ["lifespan"]
    assert opened == ["session"]
    assert "run 'airflow db migrate' as a user of the database" in caplog.text
    assert "permission denied for schema public" in caplog.text


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_requests_do_not_look_at_the_tables(opened: list[str], kind: str) -> None:
    assert messages_after(kind) == [kind]
    assert opened == []


def test_a_server_that_may_not_migrate_opens_nothing(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__STATECHECK__MIGRATE_ON_START", "False")
    assert messages_after("lifespan") == ["lifespan"]
    assert opened == []


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_db")
def test_tables_of_this_version_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        assert messages_after("lifespan") == ["lifespan"]
    assert [record.getMessage() for record in caplog.records if record.name == LOGGER] == []
