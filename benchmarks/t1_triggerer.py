"""
T1: 200 mailboxes in one triggerer, each looked into once a second, on local files and on S3.

The peers are limits: 0.2 s by which other triggers may be late, from which on Airflow's triggerer warns of one that
blocks it, and 2 s between two looks into a mailbox. The 99th percentiles are compared with them. No driver calls, so
each look is one listing; the coordinator's API runs in another process.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.gateway.http import HttpClient, HttpGateway
from airflow_provider_statecheck.gateway.mailbox.box import Mailbox, Pace
from airflow_provider_statecheck.hooks import connection
from airflow_provider_statecheck.hooks.relayed_stage import RelayAccess
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.triggers import mailbox as mailbox_trigger
from airflow_provider_statecheck.triggers.mailbox import RelayingTrigger
from benchmarks.measure import Result
from tests.conformance.served import ApiProcess, ClaimedTask
from tests.messages import make_owner, make_registration
from tests.object_store import KEY, SECRET, running_object_store
from tests.unit.worker import ServedJobs

MAILBOXES = 200
LATE_SECONDS = 0.2
BETWEEN_LOOKS_SECONDS = 2.0
_PROBE_SECONDS = 0.05
_EVERY_SECOND = Pace(shortest=1.0, longest=1.0)


class Endless(BaseTrigger):
    """Never fires."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path; there are no arguments."""
        return f"{__name__}.Endless", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait without end."""
        await asyncio.Event().wait()
        yield TriggerEvent(None)


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure both stores."""
    count, duration = (20, 10.0) if quick else (MAILBOXES, 60.0)
    results = _on(str(work / "checkpoints"), {}, "local files", count, duration)
    with running_object_store() as store:
        options = {"key": KEY, "secret": SECRET, "endpoint_url": store.direct_url}
        return results + _on(f"s3://{store.bucket}/t1", options, "S3", count, duration)


def _on(base: str, options: dict[str, Any], store: str, count: int, duration: float) -> list[Result]:
    storage = CheckpointStorage.open(base, **options)
    sizes = {"mailboxes": count, "seconds": duration}
    with _served() as url, patch.object(connection, "_options_of", lambda *_: options):
        triggers = [_trigger(url, storage, f"operator {number}") for number in range(count)]
        late, gaps = asyncio.run(_watched(triggers, duration))
    return [
        _result(f"{store}: other triggers are late by, p99 vs the limit", late, LATE_SECONDS, sizes),
        _result(f"{store}: between two looks, p99 vs the limit", gaps, BETWEEN_LOOKS_SECONDS, sizes),
    ]


@contextmanager
def _served() -> Iterator[str]:
    process = ApiProcess()
    with tempfile.TemporaryDirectory() as folder:
        jobs = ServedJobs(process, Path(folder))
        process.serve(Path(folder))
        yield process.url
        jobs.close()
        process.close()


def _trigger(url: str, storage: CheckpointStorage, uid: str) -> RelayingTrigger:
    client = HttpClient(url)
    gateway = HttpGateway(client, ClaimedTask(client))
    registration = make_registration(storage_base=storage.base_uri, owner=make_owner(), uid=uid)
    attempt = gateway.register(registration).attempt
    Mailbox(storage, attempt).open({})
    access = RelayAccess(
        registration=registration, opened=attempt, newest=attempt, url=url, token=gateway.token_of(attempt)
    )
    classpath, kwargs = Endless().serialize()  # type: ignore[no-untyped-call]
    return RelayingTrigger(
        classpath=classpath, trigger_kwargs=kwargs, access=encode(access), storage_conn_id="of the benchmark"
    )


async def _watched(triggers: list[RelayingTrigger], duration: float) -> tuple[list[float], list[float]]:
    looks: dict[str, list[float]] = {}
    listing = Mailbox.listing

    def noted(box: Mailbox) -> Any:
        found = listing(box)
        looks.setdefault(box.uri, []).append(time.monotonic())
        return found

    with patch.object(Mailbox, "listing", noted), patch.object(mailbox_trigger, "Pace", lambda: _EVERY_SECOND):
        running = [asyncio.create_task(_first_event(trigger)) for trigger in triggers]
        await asyncio.sleep(5.0)
        late = await _lateness(duration)
        for each in running:
            each.cancel()
        await asyncio.wait(running)
    steady = [times[3:] for times in looks.values()]
    return late, [after - before for times in steady for before, after in itertools.pairwise(times)]


async def _first_event(trigger: RelayingTrigger) -> None:
    async for _ in trigger.run():
        return


async def _lateness(duration: float) -> list[float]:
    late, end = [], time.monotonic() + duration
    while time.monotonic() < end:
        before = time.monotonic()
        await asyncio.sleep(_PROBE_SECONDS)
        late.append(time.monotonic() - before - _PROBE_SECONDS)
    return late


def _result(case: str, readings: list[float], limit: float, sizes: dict[str, Any]) -> Result:
    ours = sorted(readings)[int(len(readings) * 0.99)]
    return Result(
        id="T1",
        case=case,
        ours=ours,
        peer=limit,
        unit="s",
        ratio=limit / ours,
        goal=1.0,
        pairs=[[ours, limit]],
        sizes=sizes,
    )
