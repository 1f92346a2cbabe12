"""Waiting in the triggerer, over the real API in another process."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint import messages
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.exceptions import CoordinatorUnavailableError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.http import AsyncJobReader
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.triggers import checkpoint
from airflow_provider_statecheck.triggers.checkpoint import CheckpointCondition, CheckpointTrigger
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_acknowledgement,
    make_owner,
    make_registration,
)
from tests.sqlite_rows import new_store
from tests.unit.worker import ServedJobs

LONG = 2 * 3600.0
FOUND = {"job": "sales", "uid": "aggregate", "checkpoint_id": 1, "pointer": f"memory://base/{job_id_of('sales')}/chk-1"}

A_SERVER_ENDS = 20
"""Looks that may still fail while a killed server's connection closes."""


class Pauses:
    """Does one thing in each pause instead of waiting; one pause too many fails the test."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        assert self._steps, "it was to be found by now"
        self._steps.pop(0)()


@pytest.fixture
def event_after(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a trigger as the triggerer does, with a step in each pause, and return the payload of its one event."""

    def run(trigger: CheckpointTrigger, *steps: Callable[[], object], spare: int = 0) -> Any:
        pauses = Pauses(*steps, *[lambda: None] * spare)
        monkeypatch.setattr(checkpoint, "sleep", pauses)
        events = asyncio.run(_events(_inflated(trigger)))
        assert set(pauses.seconds) <= {trigger.poke_interval}
        assert len(steps) <= len(pauses.seconds) <= len(steps) + spare
        assert len(events) == 1
        return events[0].payload

    return run


async def _events(trigger: CheckpointTrigger) -> list[Any]:
    return [event async for event in trigger.run()]


def _inflated(trigger: CheckpointTrigger) -> CheckpointTrigger:
    """Make the trigger again, as another process does."""
    classpath, kwargs = trigger.serialize()
    module, _, name = classpath.rpartition(".")
    again: CheckpointTrigger = getattr(importlib.import_module(module), name)(**kwargs)
    return again


def _trigger(served: ServedJobs, **changes: Any) -> CheckpointTrigger:
    values: dict[str, Any] = {"job": "sales", "url": served.url, "poke_interval": 7.0}
    values["token"] = changes.get("token") or served.reading_token("sales")
    return CheckpointTrigger(**values | changes)


def _found(payload: Any) -> dict[str, Any]:
    assert payload["status"] == "success", payload
    return {name: payload["checkpoint"][name] for name in FOUND}


def test_a_checkpoint_that_is_there_is_found_at_the_first_look(served: ServedJobs, event_after) -> None:
    served.complete()
    payload = event_after(_trigger(served))
    assert _found(payload) == FOUND
    assert payload["checkpoint"]["completed_at"] == served.clock.now().isoformat()


def test_a_job_that_has_not_begun_is_waited_for(served: ServedJobs, event_after) -> None:
    assert _found(event_after(_trigger(served), served.begin, served.complete)) == FOUND


def test_an_operator_that_the_job_does_not_have_is_told_once(served: ServedJobs, event_after, capfd) -> None:
    served.complete(uid="aggregate")
    trigger = _trigger(served, uid="aggregated")
    assert _found(event_after(trigger, lambda: None, lambda: served.complete(uid="aggregated")))["checkpoint_id"] == 2
    said = "Job 'sales' has no operator 'aggregated' so far; it has 'aggregate'."
    assert capfd.readouterr().out.count(said) == 1


def test_the_whole_condition_is_kept_from_the_worker_to_the_triggerer(served: ServedJobs, event_after) -> None:
    served.complete()
    served.complete()

    def too_old() -> None:
        served.complete()
        served.clock.advance(61)

    trigger = _trigger(served, uid="aggregate", at_least=3, max_age_seconds=60.0)
    assert _found(event_after(trigger, too_old, served.complete))["checkpoint_id"] == 4


def test_age_is_judged_by_the_servers_clock(served: ServedJobs, event_after) -> None:
    """The test's own clock is months away from the server's."""
    served.complete()
    assert _found(event_after(_trigger(served, max_age_seconds=1.0))) == FOUND


def test_a_restarted_api_server_is_waited_for(served: ServedJobs, event_after) -> None:
    def restart() -> None:
        served.restart_server()
        served.complete()

    assert _found(event_after(_trigger(served), restart, spare=A_SERVER_ENDS)) == FOUND


def test_a_lost_reply_is_a_warning_and_asked_for_again(served: ServedJobs, event_after, capfd) -> None:
    served.complete()
    trigger = _trigger(served)
    served.lose_replies()
    assert _found(event_after(trigger, lambda: None, spare=A_SERVER_ENDS)) == FOUND
    assert "Retrying in 7.0 s" in capfd.readouterr().out


def test_no_server_is_a_warning_and_asked_again(served: ServedJobs, event_after, capfd) -> None:
    trigger = _trigger(served, url="http://127.0.0.1:9")
    with pytest.raises(AssertionError, match="found by now"):
        event_after(trigger, lambda: None)
    assert capfd.readouterr().out.count("found no server") == 2


def test_missing_tables_are_waited_for(served: ServedJobs, event_after, capfd) -> None:
    served.complete()
    trigger = _trigger(served)
    migrate = served.drop_tables()
    assert _found(event_after(trigger, migrate, spare=A_SERVER_ENDS)) == FOUND
    assert "airflow db migrate" in capfd.readouterr().out


def test_a_token_that_expired_in_an_outage_sends_the_task_for_another(served: ServedJobs, event_after) -> None:
    payload = event_after(_trigger(served, deadline=1234.5), lambda: served.clock.advance(15 * 60))
    assert payload == {"status": "expired", "deadline": 1234.5}


class Waiting:
    """Lets the server's time and the trigger's own pass in each pause."""

    def __init__(self, served: ServedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
        self._served = served
        self.seconds: list[float] = []
        self.at_last: Callable[[], object] = served.complete
        monkeypatch.setattr(checkpoint, "sleep", self._sleep)
        monkeypatch.setattr(checkpoint, "monotonic", lambda: sum(self.seconds))

    async def _sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._served.clock.advance(seconds)
        if sum(self.seconds) >= LONG:
            self.at_last()


@pytest.mark.parametrize("poke_interval", [60.0, 250.0, 400.0, 7200.0])
def test_the_token_is_renewed_before_it_expires_however_rarely_the_trigger_looks(
    served: ServedJobs, monkeypatch: pytest.MonkeyPatch, poke_interval: float
) -> None:
    trigger = _inflated(_trigger(served, poke_interval=poke_interval))
    waiting = Waiting(served, monkeypatch)
    assert _found(asyncio.run(_events(trigger))[0].payload) == FOUND
    assert LONG <= sum(waiting.seconds) < LONG + 2 * poke_interval
    assert max(waiting.seconds) <= 300


def test_a_triggerer_that_is_restarted_goes_on_with_the_same_token(
    served: ServedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Airflow keeps of a trigger cannot be changed by it."""
    trigger = _trigger(served, poke_interval=100.0)

    class RestartedError(Exception):
        pass

    def restart() -> None:
        raise RestartedError

    Waiting(served, monkeypatch).at_last = restart
    with pytest.raises(RestartedError):
        asyncio.run(_events(_inflated(trigger)))
    Waiting(served, monkeypatch)
    assert _found(asyncio.run(_events(_inflated(trigger)))[0].payload) == FOUND


def test_a_server_that_is_away_when_the_token_is_renewed_is_asked_again(
    served: ServedJobs, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    trigger, waiting = _inflated(_trigger(served, poke_interval=100.0)), Waiting(served, monkeypatch)
    renewals: list[float] = []

    async def away_at_first(self: AsyncJobReader) -> None:
        renewals.append(sum(waiting.seconds))
        if len(renewals) == 1:
            raise CoordinatorUnavailableError("Expected the coordinator's API, found no server.")
        await renew(self)

    renew = AsyncJobReader.renew
    monkeypatch.setattr(AsyncJobReader, "renew", away_at_first)
    assert _found(asyncio.run(_events(trigger))[0].payload) == FOUND
    assert renewals[1] - renewals[0] == trigger.poke_interval
    assert "Retrying the renewal" in capfd.readouterr().out


def test_the_wait_ends_when_its_task_does(served: ServedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    token = served.reading_token("sales")
    Waiting(served, monkeypatch)
    served.end_tasks()
    payload = asyncio.run(_events(_trigger(served, token=token)))[0].payload
    assert payload["status"] == "error"
    assert "runs or is deferred" in payload["message"]


@pytest.mark.parametrize("job", ["another job", None], ids=["of another job", "unknown"])
def test_a_refused_token_ends_the_wait(served: ServedJobs, event_after, job: str | None) -> None:
    token = "one-that-nobody-gave" if job is None else served.reading_token(job)
    payload = event_after(_trigger(served, token=token))
    assert payload["status"] == "error"
    assert token not in payload["message"]


def test_another_server_ends_the_wait(served: ServedJobs, event_after) -> None:
    payload = event_after(_trigger(served, url=f"{served.url}/somewhere"))
    assert payload["status"] == "error"
    assert "[statecheck] api_url" in payload["message"]


def test_the_token_is_in_the_arguments_and_nowhere_else(served: ServedJobs, event_after, caplog, capfd) -> None:
    trigger = _trigger(served)
    token = trigger.serialize()[1]["token"]
    served.lose_replies()
    with caplog.at_level(logging.DEBUG):
        payload = event_after(trigger, served.complete, spare=A_SERVER_ENDS)
    logged = capfd.readouterr()
    access = transport.ReadingAccess(url="u", token=token)
    for shown in (trigger, str(trigger), access, payload, caplog.text, logged.out, logged.err):
        assert token not in repr(shown)
    assert "Retrying in" in logged.out
    assert "token=***" in repr(trigger)


def test_where_the_database_is_open_the_coordinator_is_asked_in_a_thread(with_database, event_after) -> None:
    payload = event_after(CheckpointTrigger(job="sales"), with_database.complete)
    assert _found(payload) == FOUND


def test_without_token_and_database_the_wait_ends_at_once(event_after, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    monkeypatch.setenv("AIRFLOW_CONN_STATECHECK_DEFAULT", '{"conn_type": "statecheck", "host": "http://127.0.0.1:9"}')
    assert "running task" in event_after(CheckpointTrigger(job="sales"))["message"]


def test_a_look_leaves_the_event_loop_to_others(served: ServedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def others_turn(_: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(checkpoint, "sleep", others_turn)
    trigger, turns = _trigger(served), 0

    async def others() -> None:
        nonlocal turns
        while turns < 100:
            turns += 1
            await asyncio.sleep(0)
        served.complete()

    async def both() -> Any:
        return (await asyncio.gather(_events(trigger), others()))[0]

    assert _found(asyncio.run(both())[0].payload) == FOUND


class Job:
    """One job and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.coordinator = AttemptCoordinator(new_store(self.clock))

    def begin(self, uid: str = "aggregate") -> AttemptRef:
        return self.coordinator.register(make_registration(uid=uid)).attempt

    def find(self, **condition: Any) -> dict[str, Any] | None:
        return CheckpointCondition(job="sales", **condition).find(self.coordinator.describe(job_id_of("sales")))

    def found_id(self, **condition: Any) -> int | None:
        found = self.find(**condition)
        return None if found is None else found["checkpoint_id"]


@pytest.fixture
def job() -> Job:
    return Job()


def test_what_is_found_says_where_a_restore_starts(job: Job) -> None:
    complete_checkpoint(job.coordinator, job.begin())
    assert job.find() == {
        "job": "sales",
        "uid": "aggregate",
        "checkpoint_id": 1,
        "pointer": f"memory://base/{job_id_of('sales')}/chk-1",
        "completed_at": job.clock.now().isoformat(),
    }


def test_a_job_without_a_completed_checkpoint_is_waited_for(job: Job) -> None:
    attempt = job.begin()
    assert job.find() is None
    job.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    assert job.find() is None


def test_what_is_found_has_no_credentials(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "require_no_credentials", lambda *_: None)  # as earlier versions registered attempts
    attempt = job.coordinator.register(make_registration(storage_base="s3://key:secret@lake/checkpoints")).attempt
    complete_checkpoint(job.coordinator, attempt)
    found = job.find()
    assert found is not None
    assert found["pointer"] == f"s3://***@lake/checkpoints/{job_id_of('sales')}/chk-1"


def test_the_newest_one_is_found_and_none_that_was_subsumed(job: Job) -> None:
    attempt = job.begin()
    for _ in range(4):
        complete_checkpoint(job.coordinator, attempt)
    assert job.found_id() == 4


def test_only_the_operator_that_was_named_counts(job: Job) -> None:
    complete_checkpoint(job.coordinator, job.begin("first"))
    assert job.found_id(uid="second") is None
    complete_checkpoint(job.coordinator, job.begin("second"))
    assert (job.found_id(uid="first"), job.found_id(uid="second"), job.found_id()) == (1, 2, 2)


def test_an_older_id_than_asked_for_does_not_count(job: Job) -> None:
    attempt = job.begin()
    complete_checkpoint(job.coordinator, attempt)
    assert (job.found_id(at_least=1), job.found_id(at_least=2)) == (1, None)
    complete_checkpoint(job.coordinator, attempt)
    assert job.found_id(at_least=2) == 2


def test_age_is_counted_from_the_completion_to_the_coordinators_now(job: Job) -> None:
    attempt, minute = job.begin(), timedelta(minutes=1)
    pending = job.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    job.clock.advance(50)
    job.coordinator.acknowledge(make_acknowledgement(attempt, pending.checkpoint_id))
    job.clock.advance(60)
    assert job.found_id(max_age=minute) == 1
    job.clock.advance(1)
    assert job.found_id(max_age=minute) is None, "although nothing has happened in the job since"


def test_a_clock_that_goes_back_makes_nothing_too_old(job: Job) -> None:
    complete_checkpoint(job.coordinator, job.begin())
    job.clock.advance(-3600)
    assert job.found_id(max_age=timedelta(seconds=1)) == 1


def test_a_younger_one_with_a_lower_id_is_found_where_the_newest_is_too_old(job: Job) -> None:
    first, second = job.begin("first"), job.begin("second")
    slow = job.coordinator.trigger(TriggerCheckpoint(attempt=first, request_key=new_key()))
    complete_checkpoint(job.coordinator, second)
    job.clock.advance(120)
    job.coordinator.acknowledge(make_acknowledgement(first, slow.checkpoint_id))
    assert (job.found_id(), job.found_id(max_age=timedelta(seconds=60))) == (2, 1)


def test_one_from_before_a_fresh_start_does_not_count(job: Job) -> None:
    complete_checkpoint(job.coordinator, job.begin())
    restart = make_registration(owner=make_owner(clear_marker="cleared"), on_clear=OnClear.RESTART)
    fresh = job.coordinator.register(restart).attempt
    assert job.found_id() is None
    complete_checkpoint(job.coordinator, fresh)
    assert job.found_id() == 2


def test_one_that_a_restore_could_not_use_does_not_count(job: Job) -> None:
    attempt = job.begin()
    complete_checkpoint(job.coordinator, attempt)
    complete_checkpoint(job.coordinator, attempt)
    skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum"),)
    job.coordinator.confirm_restore(ConfirmRestore(attempt=job.begin(), checkpoint_id=1, skipped=skipped))
    assert job.found_id() == 1


@pytest.mark.parametrize(
    "condition", [{"job": " "}, {"uid": ""}, {"at_least": 0}, {"max_age": timedelta(0)}], ids=lambda c: next(iter(c))
)
def test_a_condition_out_of_its_range_is_refused(condition: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigurationError):
        CheckpointCondition(**{"job": "sales"} | condition)


def test_a_condition_says_what_it_is() -> None:
    awaited = CheckpointCondition(job="sales", uid="a", at_least=3, max_age=timedelta(hours=1))
    assert str(awaited) == "a completed checkpoint of operator 'a' of job 'sales', id 3 or later, at most 1:00:00 old"
