"""Clients over the routes themselves: keys, names, checkpoints and errors, also after a restore of the database."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings, strategies as st

from airflow_provider_statecheck.api.state_server import StateServerSettings, create_state_app
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.configuration import StateServingSettings
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    InvalidConfigurationError,
    RequestLimitError,
    UnknownKeyOrNamespaceError,
    UnknownKvStateLocationError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.queryable.answers import decode_reply
from airflow_provider_statecheck.queryable.client import AsyncQueryableStateClient
from airflow_provider_statecheck.queryable.reads import LocalStateClient
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.api.served_stage import COMPOSITE, DESCRIPTORS, RECEIPT, ServedStage
from tests.unit.api.server import ROOT, accepted

URL = "http://api"


def asked(served: ServedStage, method: str, *arguments: Any, token: str | None = None, **options: Any) -> Any:
    """Call a method of a client that reaches the app in this process."""

    async def ask() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served.api.client.app)) as http:
            client = AsyncQueryableStateClient(
                URL, token or served.token, client=http, retries=RetryPolicy(deadline_seconds=0.0)
            )
            return await getattr(client, method)(*arguments, **options)

    return asyncio.run(ask())


def test_a_name_may_have_any_character(served: ServedStage) -> None:
    served.stage.put("total", {"ann": 8})
    served.stage.checkpoint()
    assert asked(served, "get", "sales", "totals[eu]/net 100%", "ann").value == 8
    assert "totals[eu]/net 100%" in {each.name for each in asked(served, "names", "sales")}


NAMES = st.text(st.sampled_from("./ab%\\?#;[]\n\té😀\x7f\u2028\ud800") | st.characters(), max_size=8)
# Hypothesis also draws strings that the modules contain, and the stage has a state of this name.
NAMES = NAMES.filter(lambda name: name != "balances")


def test_any_name_that_a_state_can_have_reaches_the_server(served: ServedStage) -> None:
    served.stage.checkpoint()

    @given(NAMES)
    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @example(".")
    @example("..")
    @example("a/../b")
    @example("a\nb")
    @example("..[oslo]")
    @example("%2e%2e")
    def is_asked_for(name: str) -> None:
        try:
            ValueStateDescriptor("balance", int, queryable_name=name)
        except InvalidConfigurationError as error:
            expected: Any = pytest.raises(InvalidConfigurationError, match=re.escape(str(error)))
        else:
            expected = pytest.raises(UnknownKvStateLocationError, match=re.escape(repr(name)))
        with expected:
            asked(served, "get", "sales", name, "ann")

    is_asked_for()


def test_a_text_is_no_date_and_no_number_although_it_is_in_a_url(served: ServedStage) -> None:
    stage = served.make("shops", DESCRIPTORS, keys=COMPOSITE)
    stage.put("balance", {RECEIPT: 5})
    stage.state(RECEIPT, "prices").put("2026-01-31", 3)
    stage.checkpoint()
    token = served.api.reading_token(stage.job_id)
    for place in range(1, len(RECEIPT)):
        key = (*RECEIPT[:place], str(RECEIPT[place]), *RECEIPT[place + 1 :])
        with pytest.raises(UnsupportedStateError):
            asked(served, "get", "shops", "balances", key, token=token)
    with pytest.raises(UnsupportedStateError):
        asked(served, "get", "shops", "prices", RECEIPT, user_key=date(2026, 1, 31), token=token)


@pytest.mark.parametrize(
    ("job", "name", "key", "options", "error"),
    [
        ("sales", "balances", "nobody", {}, UnknownKeyOrNamespaceError),
        ("sales", "balances", "ann", {"namespace": "eu"}, UnknownKeyOrNamespaceError),
        ("sales", "balance", "ann", {}, UnknownKvStateLocationError),
        ("sales", "balances", 7, {}, UnsupportedStateError),
        ("sales", "balances", ("ann", 1), {}, InvalidConfigurationError),
        ("sales", "balances", "ann", {"user_key": 1}, InvalidConfigurationError),
        ("sales", "balances", "ann", {"checkpoint_id": 9}, CheckpointNotFoundError),
        ("another", "balances", "ann", {}, AccessDeniedError),
    ],
)
def test_an_error_of_the_server_is_raised_by_the_client(
    served: ServedStage, job: str, name: str, key: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    served.stage.put("balance", {"ann": 1})
    served.stage.checkpoint()
    with pytest.raises(error):
        asked(served, "get", job, name, key, **options)


def test_a_caller_that_is_too_fast_learns_when_to_come_back(tmp_path: Path) -> None:
    served = ServedStage(tmp_path, state_settings=StateServingSettings(state_requests_per_second=1.0))
    with served.api:
        served.stage.put("balance", {"ann": 1})
        served.stage.checkpoint()
        assert asked(served, "get", "sales", "balances", "ann").value == 1
        with pytest.raises(RequestLimitError) as caught:
            asked(served, "get", "sales", "balances", "ann")
    assert caught.value.retry_after_seconds == pytest.approx(1.0)
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
