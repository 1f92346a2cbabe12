"""Readers of state notice that a database was restored from a backup, although the job reaches its version again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from airflow_provider_statecheck.api.state_server import StateServerSettings, create_state_app
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.queryable.answers import decode_reply
from airflow_provider_statecheck.queryable.reads import LocalStateClient
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.api.server import ROOT, accepted
from tests.unit.api.test_state_routes import ServedStage


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStage]:
    served = ServedStage(tmp_path)
    with served.api:
        yield served
    served.close()


def copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(target)) as written:
        read.backup(written)


def test_other_state_at_the_same_version_is_read(served: ServedStage, tmp_path: Path) -> None:
    database, backup = tmp_path / "served.db", tmp_path / "backup.db"
    local = LocalStateClient(served.stage.store, CheckpointStorage.open)
    path = served.path("balances", key="ann")

    def complete(value: int) -> tuple[int, RowsVersion]:
        served.api.clock.advance(1)
        served.stage.put("balance", {"ann": value})
        checkpoint_id = served.stage.checkpoint()
        return checkpoint_id, served.stage.store.describe(served.stage.job_id).job.rows_version

    async def read(client: httpx.AsyncClient) -> object:
        response = await client.get(f"{ROOT}{path}", headers={"Authorization": f"Bearer {served.token}"})
        return decode_reply(accepted(response)).value

    async def values(*servers: httpx.AsyncClient) -> list[object]:
        as_of = local.get("sales", "balances", "ann", checkpoint_id=2).value
        return [local.get("sales", "balances", "ann").value, as_of, *[await read(each) for each in servers]]

    async def scenario() -> None:
        api = httpx.AsyncClient(transport=httpx.ASGITransport(served.api.client.app), base_url="http://api")
        app = create_state_app(StateServerSettings(api_url="http://api"), lambda: api, CheckpointStorage.open)
        alone = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://alone")
        async with app.router.lifespan_context(app), alone:
            complete(1)
            copy_database(database, backup)
            lost, known = complete(2)
            assert await values(api, alone) == [2, 2, 2, 2]

            copy_database(backup, database)
            again, restored = complete(3)
            assert (again, restored.number) == (lost, known.number)
            assert await values(api, alone) == [3, 3, 3, 3]

    asyncio.run(scenario())
