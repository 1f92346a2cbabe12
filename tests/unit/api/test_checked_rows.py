"""Rows of jobs whose version was checked: who may share a check, how old its result may be, and what is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import Request

from airflow_provider_statecheck.api import checked_rows
from airflow_provider_statecheck.api.checked_rows import (
    GRANT_SECONDS,
    CheckedRows,
    JobGrant,
    RememberedAccess,
    SharedCalls,
)
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.records import JobRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import AccessDeniedError, CoordinatorError, CoordinatorUnavailableError

JOB = job_id_of("sales")
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ROW = JobRecord(job_id=JOB, name="sales", version=1, next_checkpoint_id=1, seen_at=_NOW, created_at=_NOW)


class Api:
    """The api-server: a version, the tokens that may read, and replies that a test can hold back."""

    def __init__(self) -> None:
        self.version = 1
        self.seen_at = _NOW
        self.allowed = {"ann", "ben"}
        self.is_away = False
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self, job_id: JobId, token: str, known_version: RowsVersion | None) -> LatestCheckpoints | None:
        self.calls.append(token)
        if self.is_away:
            raise CoordinatorUnavailableError("away")
        if token not in self.allowed:
            raise AccessDeniedError("denied")
        found = LatestCheckpoints(
            job=replace(_ROW, version=self.version, seen_at=self.seen_at), operators=(), checkpoints=()
        )
        await self.gate.wait()
        return None if found.job.rows_version == known_version else found


class Rows:
    """Jobs of version 2, which notes the known version of each read."""

    def __init__(self) -> None:
        self.reads: list[tuple[JobId, int | None]] = []

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        self.reads.append((job_id, None if known_version is None else known_version.number))
        job = JobRecord(job_id=job_id, name="sales", version=2, next_checkpoint_id=1, seen_at=_NOW, created_at=_NOW)
        found = LatestCheckpoints(job=job, operators=(), checkpoints=())
        return None if known_version == job.rows_version else found

    def describe(self, job_id: JobId) -> JobView:
        raise AssertionError("Expected no view of a whole job.")


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


Scenario = Callable[[Api, Clock], Coroutine[Any, Any, None]]


def in_loop(scenario: Scenario) -> Callable[[], None]:
    """Return the test of a scenario with a new server and clock."""

    def test() -> None:
        async def made() -> None:
            await scenario(Api(), Clock())

        asyncio.run(made())

    return test


def checks_of(api: Api, clock: Clock, staleness: float = 0.0) -> CheckedRows:
    return CheckedRows(Rows(), api.read, max_staleness_seconds=staleness, now=clock)


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def version(found: Awaitable[LatestCheckpoints]) -> int:
    return (await found).job.version


@in_loop
async def test_each_request_sees_the_version_at_its_arrival(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock)
    for api.version in (1, 2, 2, 3):
        assert await version(checks.check(JOB, "ann")) == api.version


@in_loop
async def test_equal_version_of_a_restored_database_is_another_one(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock)
    for api.seen_at in (_NOW, _NOW + timedelta(seconds=1)):
        assert (await checks.check(JOB, "ann")).job.seen_at == api.seen_at


@in_loop
async def test_concurrent_requests_of_authorized_callers_share_the_next_check(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock)
    for token in ("ann", "ben"):
        await checks.check(JOB, token)
    api.calls.clear()
    api.gate.clear()
    first = asyncio.create_task(version(checks.check(JOB, "ann")))
    await settle()
    api.version = 2  # the running check may already have read the old version
    later = [asyncio.create_task(version(checks.check(JOB, token))) for token in ("ben", "ann", "ben")]
    await settle()
    api.gate.set()

    assert await first == 1
    assert await asyncio.gather(*later) == [2, 2, 2]
    assert len(api.calls) == 2


@in_loop
async def test_the_check_of_one_caller_authorizes_no_other(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock, staleness=60.0)
    await checks.check(JOB, "ann")

    with pytest.raises(AccessDeniedError):
        await checks.check(JOB, "eve")
    assert api.calls == ["ann", "eve"]


@in_loop
async def test_a_caller_of_one_job_is_not_authorized_for_another(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock, staleness=60.0)
    await checks.check(JOB, "ann")
    api.allowed.clear()

    with pytest.raises(AccessDeniedError):
        await checks.check(job_id_of("another"), "ann")


@in_loop
async def test_a_shared_check_that_is_refused_fails_only_the_caller_of_its_token(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock)
    for token in ("ann", "ben"):
        await checks.check(JOB, token)
    api.allowed.remove("ann")
    replies = await asyncio.gather(*(checks.check(JOB, token) for token in ("ann", "ben")), return_exceptions=True)

    assert isinstance(replies[0], AccessDeniedError)
    assert isinstance(replies[1], LatestCheckpoints)


@in_loop
async def test_a_refusal_is_not_remembered(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock)
    with pytest.raises(AccessDeniedError):
        await checks.check(JOB, "eve")
    api.allowed.add("eve")

    assert await version(checks.check(JOB, "eve")) == 1


@in_loop
async def test_a_revoked_caller_is_refused_at_its_next_check(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock, staleness=60.0)
    await checks.check(JOB, "ann")
    api.allowed.clear()
    clock.seconds += GRANT_SECONDS

    with pytest.raises(AccessDeniedError):
        await checks.check(JOB, "ann")


@in_loop
async def test_an_answer_is_at_most_as_stale_as_allowed(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock, staleness=2.0)
    await checks.check(JOB, "ann")
    api.version = 2
    clock.seconds += 1.9
    assert await version(checks.check(JOB, "ann")) == 1
    clock.seconds += 0.1
    assert await version(checks.check(JOB, "ann")) == 2


@in_loop
async def test_while_the_api_is_away_only_a_recent_check_answers(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock, staleness=2.0)
    await checks.check(JOB, "ann")
    api.is_away = True
    assert await version(checks.check(JOB, "ann")) == 1
    clock.seconds += 2.0
    with pytest.raises(CoordinatorUnavailableError):
        await checks.check(JOB, "ann")
    api.is_away, api.version = False, 2
    assert await version(checks.check(JOB, "ann")) == 2


@in_loop
async def test_a_check_that_began_earlier_does_not_replace_the_result_of_a_later_one(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock)
    api.gate.clear()
    slow = asyncio.create_task(version(checks.check(JOB, "ann")))
    await settle()
    clock.seconds += 1.0
    api.version = 2
    fast_gate, api.gate = api.gate, asyncio.Event()
    api.gate.set()
    assert await version(checks.check(JOB, "ben")) == 2
    fast_gate.set()

    assert await slow == 2


@in_loop
async def test_a_reply_without_checkpoints_to_a_first_check_is_an_error(api: Api, clock: Clock) -> None:
    async def nothing(*_: Any) -> None:
        return None

    with pytest.raises(CoordinatorError, match="found none in the reply"):
        await CheckedRows(Rows(), nothing).check(JOB, "ann")


@in_loop
async def test_a_caller_that_goes_away_does_not_cancel_the_shared_call(api: Api, clock: Clock) -> None:
    calls, gate = SharedCalls(), asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return "done"

    leaving, staying = (asyncio.create_task(calls.join("key", slow)) for _ in range(2))
    await settle()
    leaving.cancel()
    await settle()
    gate.set()

    assert await staying == "done"


def test_job_that_was_checked_least_recently_is_evicted_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = map(job_id_of, ("first", "second", "third"))
    monkeypatch.setattr(checked_rows, "MAX_JOBS", 2)
    rows = Rows()
    checked = CheckedRows(rows)

    async def check(*job_ids: JobId) -> None:
        for job_id in job_ids:
            await checked.check(job_id)

    asyncio.run(check(first, second, first, third))
    assert rows.reads == [(first, None), (second, None), (first, 2), (third, None)]

    rows.reads.clear()
    found = [checked.latest_checkpoints(job_id, RowsVersion(1, _NOW)) for job_id in (first, second, third)]
    assert [latest and latest.job.job_id for latest in found] == [first, second, third]
    assert rows.reads == [(second, 1)], "the others are those of the last check"

    rows.reads.clear()
    asyncio.run(check(second))
    assert rows.reads == [(second, None)]


@in_loop
async def test_what_was_read_again_is_not_followed_by_an_older_check(api: Api, clock: Clock) -> None:
    checks = checks_of(api, clock, staleness=60.0)
    assert await version(checks.check(JOB, "ann")) == 1
    newer = checks.latest_checkpoints(JOB)
    assert newer is not None
    assert newer.job.version == 2
    assert checks.latest_checkpoints(JOB, newer.job.rows_version) is None
    assert await version(checks.check(JOB, "ann")) == 2


class Sessions:
    """Access with a cookie, which may be in any of the headers."""

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        if request.cookies.get("session") != "of ann":
            raise AccessDeniedError("Expected a session, found none; log in.")
        return JobGrant(caller=f"ann in {job_id}")


def request_with(*cookies: bytes, authorization: bytes | None = None) -> Request:
    headers = [(b"cookie", each) for each in cookies]
    if authorization is not None:
        headers.append((b"authorization", authorization))
    return Request({"type": "http", "method": "GET", "path": "/", "headers": headers})


@pytest.mark.parametrize(
    "request_of_another",
    [
        request_with(b"theme=dark"),
        request_with(b"theme=dark", b"session=of ben"),
        request_with(b"theme=darksession=of ann"),
        request_with(b"theme=dark", authorization=b"session=of ann"),
        request_with(),
    ],
)
def test_permission_is_remembered_for_all_credentials_of_a_request(request_of_another: Request) -> None:
    access = RememberedAccess(Sessions())
    asyncio.run(access.require(request_with(b"theme=dark", b"session=of ann"), JOB))
    with pytest.raises(AccessDeniedError):
        asyncio.run(access.require(request_of_another, JOB))
