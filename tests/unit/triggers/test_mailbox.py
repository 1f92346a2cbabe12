"""Relaying calls in the triggerer while another trigger waits, over the real API in another process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeCheckpoint, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.exceptions import StaleAttemptError, StorageError
from airflow_provider_statecheck.gateway.http import HttpClient, HttpGateway
from airflow_provider_statecheck.gateway.mailbox.box import Pace
from airflow_provider_statecheck.gateway.mailbox.driver import MailboxGateway
from airflow_provider_statecheck.gateway.mailbox.relay import MailboxRelay
from airflow_provider_statecheck.hooks.connection import open_storage
from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage
from airflow_provider_statecheck.hooks.submitted_stage import DriverAccess, DriverCheckpoints
from airflow_provider_statecheck.spark.driver.mailbox import MailboxHandover
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.triggers import mailbox as mailbox_trigger
from airflow_provider_statecheck.triggers.mailbox import DRIVER_WAITS, RelayingTrigger
from tests.conformance.served import ClaimedTask
from tests.messages import make_acknowledgement, make_owner, make_registration
from tests.unit.worker import ServedJobs

SECONDS = 60


async def until(condition: Callable[[], bool]) -> None:
    """Look at a file, or the output of this process, until something has happened."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - a thread or another process does it
            await asyncio.sleep(0.01)


class Waits(BaseTrigger):
    """Fires when a file is there, and writes what happens to it into files beside that one."""

    def __init__(self, folder: str, answer: str = "done") -> None:
        super().__init__()
        self._folder = Path(folder)
        self._answer = answer

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.Waits", {"folder": str(self._folder), "answer": self._answer}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        (self._folder / "began").write_text(str(self.trigger_id))
        try:
            await until((self._folder / "ended").exists)
        except asyncio.CancelledError:
            (self._folder / "cancelled").touch()
            raise
        if self._answer == "fail":
            raise ValueError("The job is unknown.")
        if self._answer != "nothing":
            yield TriggerEvent({"status": self._answer})

    async def cleanup(self) -> None:
        (self._folder / "cleaned").touch()

    async def on_kill(self) -> None:
        if self._answer == "refuse":
            raise ValueError("The service refuses.")
        (self._folder / "killed").touch()


class NoLooks:
    """A task whose relay does not look, as another process is to."""

    has_carried_all = False

    def __init__(self, relay: MailboxRelay) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class OneLook(NoLooks):
    """A task whose relay looks at its end."""

    def __init__(self, relay: MailboxRelay) -> None:
        self._relay = relay

    def stop(self) -> None:
        self._relay.carry()


class Deferred:
    """A task that has submitted a job with a mailbox, and deferred."""

    def __init__(self, served: ServedJobs, folder: Path, gateway: Any = None) -> None:
        self.folder = folder
        self.served = served
        self.storage = CheckpointStorage.open(str(folder / "checkpoints"))
        self._gateway = gateway
        self.stage = self._stage(NoLooks)
        self.uri = self.stage.open_mailbox()

    def resume(self) -> RelayedStage:
        """Resume the task in a process of its own, which carries the calls that are there."""
        stage = self._stage(OneLook)
        stage.resume()
        with stage.relaying():
            return stage

    def _stage(self, looking: Any) -> RelayedStage:
        client = HttpClient(self.served.url)
        return RelayedStage(
            DriverAccess(self.served.url, self._gateway or HttpGateway(client, ClaimedTask(client))),
            make_registration(storage_base=self.storage.base_uri, owner=make_owner(ti_id="try")),
            DriverSettings(),
            storage=self.storage,
            patience_seconds=SECONDS,
            looking=looking,
        )

    def trigger(self, answer: str = "done", **changes: Any) -> RelayingTrigger:
        """Make the trigger as the triggerer does."""
        access = self.stage.relay_access()
        assert access is not None
        classpath, kwargs = Waits(str(self.folder), answer).serialize()
        made = RelayingTrigger(classpath=classpath, trigger_kwargs=kwargs, access=encode(replace(access, **changes)))
        path, arguments = made.serialize()
        trigger: RelayingTrigger = resolve_name(path)(**arguments)
        trigger.trigger_id = 7
        return trigger

    def begun(self) -> MailboxGateway:
        """Return a process of the driver that has begun."""
        found = MailboxHandover.read(self.uri, {})
        driver = MailboxGateway(found.mailbox, SECONDS, sleep=lambda _: time.sleep(0.02))
        driver.register(found.registration)
        return driver

    def triggered(self, driver: MailboxGateway) -> AcknowledgeCheckpoint:
        """Trigger a checkpoint, and return its acknowledgement."""
        attempt = self.stage.relay_access().newest  # type: ignore[union-attr]
        pending = driver.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        return make_acknowledgement(attempt, pending)

    def checkpoint(self, driver: MailboxGateway) -> int:
        acknowledgement = self.triggered(driver)
        driver.acknowledge(acknowledgement)
        return acknowledgement.checkpoint_id

    def end(self) -> None:
        """End the job, which the other trigger waits for."""
        (self.folder / "ended").touch()

    def has(self, *names: str) -> bool:
        """Return whether these things happened to the other trigger."""
        return all((self.folder / name).exists() for name in names)

    def attempts(self) -> list[AttemptRecord]:
        return list(self.served.coordinator.describe(job_id_of("sales")).attempts)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_trigger, "Pace", lambda **_: Pace(shortest=0.01, longest=0.05))


@pytest.fixture
def deferred(in_worker: ServedJobs, tmp_path: Path) -> Deferred:
    return Deferred(in_worker, tmp_path)


async def fired(trigger: RelayingTrigger) -> list[Any]:
    return [event.payload async for event in trigger.run()]


def event_of(trigger: RelayingTrigger, meanwhile: Callable[[], object]) -> list[Any]:
    """Run a trigger to its end, and something else in a thread beside it."""

    async def run() -> list[Any]:
        doing = asyncio.create_task(asyncio.to_thread(meanwhile))
        events = await asyncio.wait_for(fired(trigger), SECONDS)
        await doing
        return events

    return asyncio.run(run())


def test_calls_are_carried_until_the_other_trigger_fires(deferred: Deferred) -> None:
    def drive() -> None:
        assert deferred.checkpoint(deferred.begun()) == 1
        deferred.end()

    assert event_of(deferred.trigger(), drive) == [{"status": "done"}]
    assert [each.status for each in deferred.attempts()] == [AttemptStatus.RUNNING]
    assert (deferred.folder / "began").read_text() == "7"
    assert not deferred.has("cancelled")


def test_a_new_driver_process_begins_with_the_token_of_the_task(deferred: Deferred) -> None:
    process = threading.Thread(target=deferred.begun)

    def drive() -> None:
        deferred.begun()
        process.start()

    assert event_of(deferred.trigger(), drive) == [DRIVER_WAITS]
    assert deferred.has("cancelled")  # while the task is deferred, as a trigger may end the job of a task that is not
    assert [each.epoch for each in deferred.attempts()] == [1]
    access = deferred.resume().relay_access()
    process.join(SECONDS)
    assert [each.status for each in deferred.attempts()] == [AttemptStatus.FENCED, AttemptStatus.RUNNING]
    assert access is not None
    assert (access.opened.epoch, access.newest.epoch) == (1, 2)


def test_a_triggerer_that_is_restarted_carries_the_calls_of_before(deferred: Deferred) -> None:
    async def restarted() -> list[Any]:
        first = asyncio.create_task(fired(deferred.trigger()))
        driver = await asyncio.to_thread(deferred.begun)
        first.cancel()
        await asyncio.wait([first])
        call = asyncio.create_task(asyncio.to_thread(deferred.checkpoint, driver))
        second = asyncio.create_task(fired(deferred.trigger()))
        assert await asyncio.wait_for(call, SECONDS) == 1
        deferred.end()
        return await second

    assert asyncio.run(restarted()) == [{"status": "done"}]


def test_a_trigger_that_is_cancelled_cancels_the_other_one_and_ends_no_attempt(deferred: Deferred) -> None:
    async def cancelled() -> None:
        trigger = deferred.trigger()
        running = asyncio.create_task(fired(trigger))
        await until(lambda: deferred.has("began"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await trigger.cleanup()

    asyncio.run(cancelled())
    assert deferred.has("cancelled", "cleaned")
    assert [each.status for each in deferred.attempts()] == [AttemptStatus.RUNNING]


def test_a_user_who_ends_the_task_ends_the_job_and_the_attempt(deferred: Deferred) -> None:
    asyncio.run(deferred.trigger().on_kill())
    assert deferred.has("killed")
    [attempt] = deferred.attempts()
    assert (attempt.status, attempt.message) == (
        AttemptStatus.FAILED,
        "The task was ended by a user while it was deferred.",
    )


@pytest.mark.parametrize(
    ("is_answering", "seconds", "status"),
    [(True, SECONDS, CheckpointStatus.COMPLETED), (False, 0.1, CheckpointStatus.ABORTED)],
    ids=["driver that answers", "driver that does not"],
)
def test_a_checkpoint_on_its_way_is_waited_for_before_the_job_ends(
    deferred: Deferred, monkeypatch, is_answering: bool, seconds: float, status: CheckpointStatus
) -> None:
    monkeypatch.setattr(mailbox_trigger, "COMPLETION_SECONDS", seconds)

    async def ended() -> None:
        running = asyncio.create_task(fired(deferred.trigger()))
        driver = await asyncio.to_thread(deferred.begun)
        acknowledgement = await asyncio.to_thread(deferred.triggered, driver)
        running.cancel()
        await asyncio.wait([running])
        ending = [deferred.trigger().on_kill()]
        if is_answering:
            ending.append(asyncio.to_thread(driver.acknowledge, acknowledgement))
        await asyncio.gather(*ending)

    asyncio.run(ended())
    assert deferred.has("killed")
    view = deferred.served.coordinator.describe(job_id_of("sales"))
    assert [each.status for each in view.attempts] == [AttemptStatus.FAILED]
    assert [each.status for each in view.checkpoints] == [status]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the warnings of the trigger."""
    warnings: list[str] = []
    monkeypatch.setattr(mailbox_trigger.log, "warning", lambda text, *values: warnings.append(text % values))
    return warnings


def test_an_attempt_that_cannot_be_closed_is_told(deferred: Deferred, told: list[str]) -> None:
    asyncio.run(deferred.trigger(url="http://127.0.0.1:9").on_kill())
    assert deferred.has("killed")
    assert [each.partition(",")[0] for each in told] == ["The attempt could not be closed"]


def test_a_server_that_does_not_answer_is_given_up_after_the_timeout(deferred: Deferred, told: list[str]) -> None:
    async def kill(url: str) -> None:
        async with asyncio.timeout(SECONDS / 4):
            await deferred.trigger(url=url, timeout_seconds=0.1).on_kill()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(kill(f"http://127.0.0.1:{silent.getsockname()[1]}"))
    assert deferred.has("killed")
    assert [each.partition(",")[0] for each in told] == ["The attempt could not be closed"]


def test_the_attempt_is_closed_although_the_job_cannot_be_ended(deferred: Deferred) -> None:
    with pytest.raises(ValueError, match="The service refuses"):
        asyncio.run(deferred.trigger("refuse").on_kill())
    assert [each.status for each in deferred.attempts()] == [AttemptStatus.FAILED]


def test_a_mailbox_that_cannot_be_opened_at_once_is_opened_later(
    deferred: Deferred, monkeypatch, told: list[str]
) -> None:
    failures = [RuntimeError("The connection 'lake' isn't defined"), StorageError("No answer.")]

    def open_at_last(*arguments: Any) -> CheckpointStorage:
        if failures:
            raise failures.pop(0)
        return open_storage(*arguments)

    def drive() -> None:
        deferred.begun()
        deferred.end()

    monkeypatch.setattr(mailbox_trigger, "open_storage", open_at_last)
    assert event_of(deferred.trigger(), drive) == [{"status": "done"}]
    assert [each.partition(":")[0] for each in told] == ["The mailbox could not be opened, trying again"] * 2


def test_checkpoints_that_cannot_be_read_stop_no_relay(deferred: Deferred, monkeypatch) -> None:
    def fail(_: DriverCheckpoints) -> None:
        raise ValueError("an answer of a proxy")

    def drive() -> None:
        deferred.begun()
        deferred.end()

    monkeypatch.setattr(DriverCheckpoints, "log_new", fail)
    assert event_of(deferred.trigger(), drive) == [{"status": "done"}]


def test_what_fails_the_other_trigger_fails_this_one(deferred: Deferred) -> None:
    deferred.end()
    with pytest.raises(ValueError, match="The job is unknown"):
        asyncio.run(fired(deferred.trigger("fail")))


def test_a_trigger_that_ends_without_an_event_gives_none(deferred: Deferred) -> None:
    deferred.end()
    assert asyncio.run(fired(deferred.trigger("nothing"))) == []


def test_calls_wait_while_the_server_is_away(deferred: Deferred, monkeypatch) -> None:
    looks: list[int | None] = []
    look = MailboxRelay.look

    def noted(relay: MailboxRelay) -> int | None:
        looks.append(look(relay))
        return looks[-1]

    async def outage() -> list[Any]:
        away = asyncio.create_task(fired(deferred.trigger(url="http://127.0.0.1:9")))
        call = asyncio.create_task(asyncio.to_thread(deferred.begun))
        await until(lambda: None in looks)
        away.cancel()
        back = asyncio.create_task(fired(deferred.trigger()))
        await asyncio.wait_for(call, SECONDS)
        deferred.end()
        return await back

    monkeypatch.setattr(MailboxRelay, "look", noted)
    assert asyncio.run(outage()) == [{"status": "done"}]


def test_the_replaced_attempt_of_a_task_is_told_to_its_driver(deferred: Deferred) -> None:
    def drive() -> None:
        driver = deferred.begun()
        deferred.served.begin()
        with pytest.raises(StaleAttemptError):
            deferred.checkpoint(driver)
        deferred.end()

    assert event_of(deferred.trigger(), drive) == [{"status": "done"}]


def test_the_token_is_shown_nowhere(deferred: Deferred, capfd) -> None:
    token = deferred.stage.relay_access().token  # type: ignore[union-attr]
    assert token
    trigger = deferred.trigger()
    assert token not in repr(trigger)
    event_of(trigger, deferred.end)
    assert token not in capfd.readouterr().out


@contextmanager
def stuck_looks(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[threading.Semaphore]:
    """Let each look wait as it does for a storage that does not answer."""
    stuck, released = threading.Semaphore(0), threading.Event()

    def look(_: MailboxRelay) -> int | None:
        stuck.release()
        assert released.wait(SECONDS)
        return None

    monkeypatch.setattr(MailboxRelay, "look", look)
    yield stuck
    released.set()


def test_a_storage_that_does_not_answer_stops_no_other_trigger(deferred: Deferred, monkeypatch) -> None:
    async def beside() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(fired(deferred.trigger())) for _ in range(20)]
            await asyncio.to_thread(stuck.acquire)
            others: list[Awaitable[Any]] = [asyncio.to_thread(lambda: "answered") for _ in range(40)]
            answers = await asyncio.wait_for(asyncio.gather(*others), SECONDS)
            deferred.end()
        return [answers, [each.result() for each in running]]

    with stuck_looks(monkeypatch, 20) as stuck:
        answers, events = asyncio.run(beside())
    assert set(answers) == {"answered"}
    assert events == [[{"status": "done"}]] * 20


def test_with_the_database_a_new_driver_process_begins_at_once(with_database: ServedJobs, tmp_path: Path) -> None:
    deferred = Deferred(with_database, tmp_path, with_database.coordinator)

    def drive() -> None:
        deferred.begun()
        deferred.begun()
        deferred.end()

    assert event_of(deferred.trigger(), drive) == [{"status": "done"}]
    assert [each.status for each in deferred.attempts()] == [AttemptStatus.FENCED, AttemptStatus.RUNNING]
