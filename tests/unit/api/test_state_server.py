"""The stand-alone server of queryable state over the api-server, both in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from airflow_provider_statecheck.api.state_reads import MAX_READS_AT_ONCE
from airflow_provider_statecheck.api.state_server import StateServerSettings, create_state_app
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.api.served_stage import ServedStage, refused
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
