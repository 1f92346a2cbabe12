"""Clients and the stand-alone server of queryable state over the api-server, all in this process."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings, strategies as st

from airflow_provider_statecheck.api.state_reads import MAX_PREVIEWS_AT_ONCE, MAX_READS_AT_ONCE
from airflow_provider_statecheck.api.state_server import StateServerSettings, create_state_app
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    UnknownKvStateLocationError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.queryable import preview
from airflow_provider_statecheck.queryable.answers import decode_reply
from airflow_provider_statecheck.queryable.client import AsyncQueryableStateClient
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.queryable.reads import LocalStateClient
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.api.served_stage import COMPOSITE, DESCRIPTORS, RECEIPT, ServedStage, refused
from tests.unit.api.server import ROOT, accepted
from tests.unit.api.test_content_routes import ServedContents


@pytest.fixture
def served(served: ServedStage) -> ServedStage:
    served.stage.put("balance", {"ann": 1})
    served.stage.checkpoint()
    return served


class AloneServer:
    """A server that counts its calls of the api-server."""

    def __init__(self, api: Any, open_storage: OpenStorage = CheckpointStorage.open, **settings: Any) -> None:
        self.calls = 0
        self._api = api
        client = httpx.AsyncClient(transport=httpx.ASGITransport(self._counted))
        self._app = create_state_app(
            StateServerSettings(api_url="http://api", **settings), lambda: client, open_storage
        )

    def get(self, *paths: str, token: str | bytes) -> list[httpx.Response]:
        """Send requests one after the other."""
        return asyncio.run(self._replies(paths, token if isinstance(token, bytes) else token.encode()))

    async def _replies(self, paths: tuple[str, ...], token: bytes) -> list[httpx.Response]:
        transport = httpx.ASGITransport(self._app)
        async with (
            self._app.router.lifespan_context(self._app),
            httpx.AsyncClient(transport=transport, base_url="http://alone") as client,
        ):
            headers = {b"Authorization": b"Bearer " + token}
            return [await client.get(f"{ROOT}{path}", headers=headers) for path in paths]

    async def _counted(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        await self._api(scope, receive, send)


def test_unusable_connection_is_a_reason_to_ask_another_server(served: ServedStage) -> None:
    def opened(_: str) -> CheckpointStorage:
        raise InvalidConfigurationError("Expected a connection 'aws', found none; create it.")

    alone = AloneServer(served.api.client.app, opened)
    (reply,) = alone.get(served.path("balances", key="ann"), token=served.token)
    message = refused(reply, 503, "environment_not_ready")
    assert "connection 'aws'" in message
    assert "correct the option --storage-conn-id of serve-state" in message
    assert "[statecheck]" not in message


def test_request_above_the_rate_costs_no_call_of_the_api_server(served: ServedStage) -> None:
    path, calls = served.path("balances", key="ann"), []
    for count in (1, 4):
        alone = AloneServer(served.api.client.app, requests_per_second=0.001)
        first, *others = alone.get(*[path] * count, token=served.token)
        accepted(first)
        for reply in others:
            refused(reply, 429, "request_limit")
        calls.append(alone.calls)
    assert calls[0] == calls[1]


@pytest.mark.parametrize(
    ("job_id", "token", "status", "code"),
    [
        (None, b"\xe9", 403, "access_denied"),
        ("..%3F", b"any", 404, "checkpoint_not_found"),
        ("A" * 32, b"any", 404, "checkpoint_not_found"),
    ],
)
def test_impossible_job_or_token_is_refused_without_a_call_of_the_api_server(
    served: ServedStage, job_id: str | None, token: bytes, status: int, code: str
) -> None:
    alone = AloneServer(served.api.client.app)
    (reply,) = alone.get(served.path("balances", job_id=job_id, key="ann"), token=token)
    refused(reply, status, code)
    assert alone.calls == 0


def test_contents_are_served(tmp_path: Path) -> None:
    served = ServedContents(tmp_path)
    with served.api:
        first = served.take("sessions", items=("a",))
        served.take("visits")
        alone, job = AloneServer(served.api.client.app), f"/v1/jobs/{served.job_id}"
        token = served.api.reading_token(served.job_id)
        listed, rows = alone.get(
            f"{job}/snapshots", f"{job}/snapshots/sessions?checkpoint_id={first}&limit=1", token=token
        )
        assert accepted(listed) == accepted(served.get("snapshots"))
        assert accepted(rows)["rows"] == [[0, "row 0"]]
    served.api.engine.dispose()


def test_previews_that_take_long_stop_no_read_of_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, end, at_once = Semaphore(0), Event(), list[int]()

    def decoding(*_: Any, **__: Any) -> bytes:
        at_once.append(1)
        running.release()
        end.wait()
        at_once.pop()
        return b'{"columns": [], "rows": [], "has_more": false}'

    async def scenario(served: ServedContents) -> None:
        token = {"Authorization": f"Bearer {served.api.reading_token(served.job_id)}"}
        job = f"{ROOT}/v1/jobs/{served.job_id}"
        transport = httpx.ASGITransport(served.api.client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=token) as client:
            wanted = range(2 * MAX_READS_AT_ONCE)
            previews = [asyncio.create_task(client.get(f"{job}/snapshots/sessions")) for _ in wanted]
            try:
                for _ in range(MAX_PREVIEWS_AT_ONCE):
                    assert await asyncio.to_thread(running.acquire, timeout=30)
                accepted(await asyncio.wait_for(client.get(f"{job}/snapshots"), 30))
                assert len(at_once) == MAX_PREVIEWS_AT_ONCE
            finally:
                end.set()
                replies = await asyncio.gather(*previews)
            assert [reply.status_code for reply in replies] == [200 for _ in wanted]

    monkeypatch.setattr(preview, "run_bounded", decoding)
    served = ServedContents(tmp_path)
    with served.api:
        served.take("sessions")
        asyncio.run(scenario(served))
    served.api.engine.dispose()


def test_reads_that_hang_stop_no_other_route(tmp_path: Path) -> None:
    opening, end = [Event() for _ in range(MAX_READS_AT_ONCE)], Event()
    waiting = iter(opening)

    def hanging(pointer: str) -> CheckpointStorage:
        next(waiting).set()
        end.wait()
        return CheckpointStorage.open(pointer)

    async def scenario(served: ServedContents) -> None:
        token = {"Authorization": f"Bearer {served.api.reading_token(served.job_id)}"}
        job = f"{ROOT}/v1/jobs/{served.job_id}"
        transport = httpx.ASGITransport(served.api.client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=token) as client:
            reads = [asyncio.create_task(client.get(f"{job}/snapshots")) for _ in range(50)]
            try:
                for each in opening:
                    await asyncio.wait_for(asyncio.to_thread(each.wait), 30)
                accepted(await asyncio.wait_for(client.get(f"{job}/latest"), 30))
            finally:
                end.set()
                for read in reads[MAX_READS_AT_ONCE:]:
                    read.cancel()
                await asyncio.gather(*reads, return_exceptions=True)

    served = ServedContents(tmp_path, open_storage=hanging)
    with served.api:
        served.take("sessions")
        asyncio.run(scenario(served))
    served.api.engine.dispose()


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


ANY_TEXT = st.text(st.sampled_from("./ab%\\?#;[]\n\té😀\x7f\u2028\ud800") | st.characters(), max_size=8)
# Hypothesis also draws strings that the modules contain, and the stage has a state of this name.
NAMES = ANY_TEXT.filter(lambda name: name != "balances")


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
        as_of = local.get("sales", "balances", "ann", checkpoint_id=3).value
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
