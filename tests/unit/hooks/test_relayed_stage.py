"""What a task does for a driver that calls through a mailbox, over a coordinator in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, OnClear, Transport
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.gateway.mailbox.box import CallName, Fence, Mailbox
from airflow_provider_statecheck.gateway.mailbox.driver import MailboxGateway
from airflow_provider_statecheck.gateway.mailbox.relay import MailboxRelay
from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage, RelayThread
from airflow_provider_statecheck.hooks.submitted_stage import DriverAccess
from airflow_provider_statecheck.spark.driver.mailbox import MailboxContent, MailboxHandover
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_storage
from tests.messages import ManualClock, make_acknowledgement, make_owner, make_registration
from tests.sqlite_rows import new_store

SECRET = "a secret of the storage"


class Gateway(AttemptCoordinator):
    """A coordinator that gives tokens."""

    def token_of(self, attempt: AttemptRef) -> str:
        return f"token of attempt {attempt.epoch}"


class Task:
    """Tries of one task, whose relays look when a driver waits."""

    def __init__(self, folder: Path) -> None:
        self.gateway: Any = Gateway(new_store(ManualClock()))
        self.storage: Any = CheckpointStorage.open(str(folder))
        self.relays: list[MailboxRelay] = []
        self.sleep: Callable[[float], object] = time.sleep

    def begin(self, number: int = 1, on_clear: OnClear = OnClear.RESUME_UNCHANGED, **of_owner: Any) -> RelayedStage:
        """Begin a try."""
        owner = make_owner(**{"try_number": number, "ti_id": f"try-{number}", "label": f"try {number}"} | of_owner)
        return RelayedStage(
            DriverAccess("http://api", self.gateway),
            make_registration(storage_base=self.storage.base_uri, owner=owner, on_clear=on_clear),
            DriverSettings(storage_options={"secret": SECRET}, tolerable_failed_checkpoints=3),
            storage=self.storage,
            patience_seconds=60.0,
            looking=self._looking,
            sleep=self.sleep,
        )

    def _looking(self, relay: MailboxRelay) -> Any:
        self.relays.append(relay)
        return Looks(relay)

    def driver(self, uri: str) -> MailboxGateway:
        """Return a process of the driver that has begun."""
        found = MailboxHandover.read(uri, {})
        driver = MailboxGateway(found.mailbox, found.patience_seconds, sleep=lambda _: self.relays[-1].carry())
        driver.register(found.registration)
        return driver

    def statuses(self) -> list[AttemptStatus]:
        """Return the statuses of the attempts."""
        return [each.status for each in self.gateway.describe(job_id_of("sales")).attempts]


class Looks:
    """Looks only at the end."""

    def __init__(self, relay: MailboxRelay) -> None:
        self._relay = relay
        self.has_carried_all = False

    def start(self) -> None: ...

    def stop(self) -> None:
        """Look for the last time."""
        self._relay.carry()
        self.has_carried_all = True


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


def written_acknowledgement(task: Task, uri: str, driver: MailboxGateway, attempt: AttemptRef) -> None:
    """Let a driver trigger a checkpoint, write its acknowledgement, and be killed."""
    pending = driver.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    message = make_acknowledgement(attempt, pending)
    Mailbox.at(uri, {}).post(CallName(9, driver.instance), {"verb": "acknowledge", "message": encode(message)})


def ref_of(task: Task, epoch: int) -> AttemptRef:
    view = task.gateway.describe(job_id_of("sales"))
    return AttemptRef(job_id=view.job.job_id, operator_id=view.operators[0].operator_id, epoch=epoch)


def test_handover_has_neither_a_token_nor_options_of_the_storage(task: Task) -> None:
    uri = task.begin().open_mailbox()
    [handover] = [each for each in task.storage.list_files(uri) if each.startswith("handover")]
    text = task.storage.read_bytes(f"{uri}/{handover}").decode()
    assert "token" not in text
    assert SECRET not in text
    found = MailboxHandover.read(uri, {"key": "AKDRIVER"})
    assert found.driver.tolerable_failed_checkpoints == 3
    assert found.driver.storage_options == {"key": "AKDRIVER"}


def test_attempt_knows_how_its_driver_calls(task: Task) -> None:
    uri = task.begin().open_mailbox()
    task.driver(uri)
    task.driver(uri)
    task.begin(2).register()
    of_attempts = [each.owner.transport for each in task.gateway.describe(job_id_of("sales")).attempts]
    assert of_attempts == [Transport.MAILBOX, Transport.MAILBOX, Transport.HTTP]


def test_driver_that_is_started_again_under_a_later_try_calls_through_the_mailbox(task: Task) -> None:
    uri = task.begin().open_mailbox()
    task.driver(uri)
    task.begin(2).adopt_running()
    task.driver(uri)
    assert task.gateway.describe(job_id_of("sales")).attempts[-1].owner.transport is Transport.MAILBOX


def test_retry_completes_what_the_dead_driver_had_acknowledged(task: Task) -> None:
    uri = task.begin().open_mailbox()
    written_acknowledgement(task, uri, task.driver(uri), ref_of(task, 1))
    task.begin(2).open_mailbox()
    view = task.gateway.describe(job_id_of("sales"))
    assert [c.status for c in view.checkpoints] == [CheckpointStatus.COMPLETED]
    assert view.attempts[-1].restored_from == 1
    assert Mailbox.at(uri, {}).fenced() == Fence(epoch=2, is_closed=True)


def test_retry_lets_a_driver_that_lives_complete_the_checkpoint_on_its_way(task: Task) -> None:
    uri = task.begin().open_mailbox()
    driver, attempt = task.driver(uri), ref_of(task, 1)
    pending = driver.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))

    def acknowledge(_: float) -> None:
        message = encode(make_acknowledgement(attempt, pending))
        Mailbox.at(uri, {}).post(CallName(9, driver.instance), {"verb": "acknowledge", "message": message})

    task.sleep = acknowledge
    task.begin(2).open_mailbox()
    assert task.gateway.describe(job_id_of("sales")).attempts[-1].restored_from == 1


def test_retry_does_not_wait_long_for_the_checkpoint_of_a_driver_that_is_dead(task: Task) -> None:
    uri = task.begin().open_mailbox()
    task.driver(uri).trigger(TriggerCheckpoint(attempt=ref_of(task, 1), request_key=new_key()))
    slept: list[float] = []
    task.sleep = slept.append
    task.begin(2).open_mailbox()
    assert 5 < sum(slept) <= 10
    [checkpoint] = task.gateway.describe(job_id_of("sales")).checkpoints
    assert checkpoint.status is CheckpointStatus.ABORTED


def test_retry_that_cannot_complete_what_was_acknowledged_does_not_begin(task: Task, monkeypatch) -> None:
    uri = task.begin().open_mailbox()
    written_acknowledgement(task, uri, task.driver(uri), ref_of(task, 1))
    message = {"attempt": encode(ref_of(task, 99)), "checkpoint_ids": []}
    Mailbox.at(uri, {}).post(CallName(2, "f" * 32), {"verb": "confirm_discards", "message": message})

    def fail(*_: object) -> None:
        raise CoordinatorError("Expected an answer of the coordinator, found a page of a proxy.")

    with monkeypatch.context() as patch:
        patch.setattr(task.gateway, "acknowledge", fail)
        with pytest.raises(CoordinatorError):
            task.begin(2).open_mailbox()
    task.begin(3).open_mailbox()
    assert task.gateway.describe(job_id_of("sales")).attempts[-1].restored_from == 1


@pytest.mark.parametrize(
    ("of_try", "reason"),
    [
        ({"number": 2}, "retry after an attempt that never closed and was probably killed"),
        ({"number": 2, "clear_marker": "cleared"}, "cleared before it finished, and on_clear is restart"),
        ({"number": 1, "ti_id": "created again"}, "a new run with the id of a deleted run"),
    ],
)
def test_calls_that_are_carried_first_do_not_change_how_a_task_starts(
    task: Task, of_try: dict[str, Any], reason: str
) -> None:
    uri = task.begin().open_mailbox()
    written_acknowledgement(task, uri, task.driver(uri), ref_of(task, 1))
    task.begin(on_clear=OnClear.RESTART, **of_try).open_mailbox()
    view = task.gateway.describe(job_id_of("sales"))
    assert [c.epoch for c in view.checkpoints] == [1]
    assert view.attempts[-1].start_reason == reason


def test_forged_call_does_not_keep_a_retry_from_its_start(task: Task) -> None:
    uri = task.begin().open_mailbox()
    task.driver(uri)
    message = {"attempt": encode(ref_of(task, 99)), "checkpoint_ids": []}
    Mailbox.at(uri, {}).post(CallName(2, "f" * 32), {"verb": "confirm_discards", "message": message})
    assert task.begin(2).open_mailbox().endswith("/2")


def test_handover_that_was_changed_does_not_keep_a_retry_from_its_start(task: Task, caplog) -> None:
    uri = task.begin().open_mailbox()
    task.storage.write_bytes(f"{uri}/handover.json", b"{}", overwrite=True)
    assert task.begin(2).open_mailbox().endswith("/2")
    assert "is left as it is" in caplog.text


def test_driver_with_a_token_is_adopted_by_a_task_without_access_to_the_storage(task: Task) -> None:
    task.begin().register()
    task.storage = faulty_storage(task.storage, FaultPlan(point=1, times=99))
    task.begin(2).adopt_running()
    assert [each.owner.label for each in task.gateway.describe(job_id_of("sales")).attempts] == ["try 2"]


def test_retry_that_reconnects_carries_on_the_calls_of_the_driver(task: Task) -> None:
    uri = task.begin().open_mailbox()
    driver = task.driver(uri)
    retry = task.begin(2)
    retry.adopt_running()
    assert len(task.relays) == 2
    assert driver.trigger(TriggerCheckpoint(attempt=ref_of(task, 1), request_key=new_key())).checkpoint_id == 1
    with retry.relaying():
        pass
    retry.close(AttemptStatus.FINISHED)
    assert task.statuses() == [AttemptStatus.FINISHED]
    assert task.storage.list_files(uri) == {}


def test_retry_reconnects_to_a_driver_that_its_platform_started_again(task: Task) -> None:
    uri = task.begin().open_mailbox()
    task.driver(uri)
    second = task.driver(uri)
    task.begin(2).adopt_running()
    assert len(task.relays) == 2
    assert second.trigger(TriggerCheckpoint(attempt=ref_of(task, 2), request_key=new_key())).checkpoint_id == 1


def test_driver_that_was_started_again_is_followed_and_closed_with_its_own_attempt(task: Task, caplog) -> None:
    stage = task.begin()
    uri = stage.open_mailbox()
    task.driver(uri)
    task.driver(uri)
    stage.close(AttemptStatus.FAILED, "killed")
    assert task.statuses() == [AttemptStatus.FENCED, AttemptStatus.FAILED]


def test_deferred_task_finds_its_mailbox_without_a_listing(task: Task, monkeypatch) -> None:
    first = task.begin()
    first.open_mailbox()
    access = first.relay_access()
    assert access is not None
    resumed = task.begin()
    monkeypatch.setattr(Mailbox, "all_of", lambda *_: pytest.fail("listed"))
    resumed.resume({"epoch": access.opened.epoch, "opened_by": access.registration.attempt_key})
    assert resumed.relay_access() == access


def test_new_process_is_waited_for_within_a_bound(task: Task) -> None:
    uri = task.begin().open_mailbox()
    task.driver(uri)
    pauses: list[float] = []
    task.sleep = pauses.append
    resumed = task.begin()
    resumed.resume(None)
    relay, waiting = task.relays[-1], [True, True, False]
    relay.look = lambda: 1  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MailboxRelay, "has_waiting_driver", property(lambda _: waiting.pop(0)))
        resumed.let_begin()
    assert (waiting, len(pauses)) == ([], 2)
    relay.look = lambda: None  # type: ignore[method-assign]
    resumed.let_begin()
    assert 60 < sum(pauses) < 90


def test_attempt_with_a_token_has_no_mailbox_to_carry(task: Task) -> None:
    task.begin().register()
    task.begin(2).adopt_running()
    assert task.relays == []


@pytest.mark.parametrize("status", [AttemptStatus.FINISHED, AttemptStatus.FAILED])
def test_mailboxes_of_all_tries_go_with_the_attempt(task: Task, status: AttemptStatus) -> None:
    task.begin().open_mailbox()
    stage = task.begin(2)
    with stage.relaying():
        stage.open_mailbox()
    stage.close(status)
    assert [name for name in task.storage.list_files(task.storage.base_uri) if "/mail/" in name] == []


def test_mailbox_whose_calls_could_not_be_carried_stays(task: Task) -> None:
    stage = task.begin()
    uri = stage.open_mailbox()
    stage.close(AttemptStatus.FAILED)
    assert Mailbox.at(uri, {}).is_open


def test_mailbox_of_an_attempt_that_the_task_could_not_close_stays(task: Task, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise CoordinatorError("Expected an answer of the coordinator, found a page of a proxy.")

    stage = task.begin()
    with stage.relaying():
        uri = stage.open_mailbox()
    monkeypatch.setattr(task.gateway, "finish", fail)
    stage.close(AttemptStatus.FAILED)
    assert Mailbox.at(uri, {}).is_open


def test_thread_looks_until_it_is_stopped_and_once_more(task: Task) -> None:
    looked, first = [], threading.Event()

    class Relay:
        def look(self) -> None:
            looked.append(1)
            first.set()

    looking = RelayThread(Relay())  # type: ignore[arg-type]
    looking.start()
    assert first.wait(30)
    looking.stop()
    assert (len(looked) >= 2, looking.has_carried_all) == (True, False)


def test_content_of_another_version_is_told(task: Task) -> None:
    uri = task.begin().open_mailbox()
    task.storage.write_bytes(f"{uri}/handover.json", b'{"registration": {}}', overwrite=True)
    with pytest.raises(Exception, match="a handover of this version"):
        MailboxContent.of(Mailbox.at(uri, {}))
