"""Both ends of a mailbox: what waits, what is refused, and what is left to another one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    StaleAttemptError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.gateway.mailbox.box import CallName, Fence, Mailbox, Pace
from airflow_provider_statecheck.gateway.mailbox.driver import MailboxGateway
from airflow_provider_statecheck.gateway.mailbox.relay import MailboxRelay
from airflow_provider_statecheck.gateway.mailbox.waiting import WaitingCalls
from airflow_provider_statecheck.gateway.verbs import MAX_BODY_BYTES
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_gateway, faulty_storage
from tests.messages import ManualClock, make_registration
from tests.sqlite_rows import new_store

FORGED = CallName(1, "f" * 32)
REQUEST = make_registration()


class Mail:
    """A mailbox, the task that has opened it, and what a driver sees of time."""

    def __init__(self, folder: Path) -> None:
        self.coordinator: Any = AttemptCoordinator(new_store(ManualClock()))
        self.storage = CheckpointStorage.open(str(folder))
        self.attempt = self.coordinator.register(REQUEST).attempt
        self.box = Mailbox(self.storage, self.attempt)
        self.box.open({})
        self.relay = self.new_relay(self.coordinator)
        self.pauses: list[float] = []

    def new_relay(self, gateway: Any, attempt: AttemptRef | None = None) -> MailboxRelay:
        """Return another relay of the mailbox."""
        return MailboxRelay(self.box, gateway, REQUEST, attempt or self.attempt)

    def driver(
        self, relay: MailboxRelay | None = None, storage: Any = None, patience_seconds: float = 60.0
    ) -> MailboxGateway:
        """Return a new process of the driver, whose relay looks while it waits."""

        def wait(seconds: float) -> None:
            self.pauses.append(seconds)
            (relay or self.relay).carry()

        mailbox = Mailbox(storage or self.storage, self.attempt)
        return MailboxGateway(mailbox, patience_seconds, sleep=wait, monotonic=lambda: sum(self.pauses))

    def begun(self) -> MailboxGateway:
        """Return a process that has its attempt."""
        driver = self.driver()
        driver.register(REQUEST)
        return driver

    def forge(self, content: bytes, name: CallName = FORGED) -> None:
        """Write a file that no driver has written."""
        self.storage.write_bytes(f"{self.box.uri}/calls/{name.file}", content)

    def statuses(self) -> list[AttemptStatus]:
        """Return the statuses of the attempts."""
        return [each.status for each in self.coordinator.describe(job_id_of("sales")).attempts]


class Waiting:
    """A relay whose server is up or down, and its clock."""

    def __init__(self, mail: Mail) -> None:
        self.seconds = 0.0
        self.sent: list[float] = []
        self._mail = mail
        self._reason = ""
        self._calls = WaitingCalls(self.sent.append, lambda: self.seconds)
        self._relay = MailboxRelay(mail.box, self, REQUEST, mail.attempt, waiting=self._calls)  # type: ignore[arg-type]
        self._number = 0

    def call(self) -> None:
        """Write a call."""
        self._number += 1
        message = TriggerCheckpoint(attempt=self._mail.attempt, request_key=new_key())
        self._mail.forge(forged_call("trigger", message), CallName(self._number, "a" * 32))

    def look(self, *, is_up: bool, reason: str = "the server is down") -> None:
        """Let the relay look."""
        self._reason = "" if is_up else reason
        self._relay.look()

    def trigger(self, request: TriggerCheckpoint) -> Any:
        """Answer, if the server is up."""
        if self._reason:
            raise CoordinatorUnavailableError(self._reason)
        return self._mail.coordinator.trigger(request)


@pytest.fixture
def mail(tmp_path: Path) -> Mail:
    return Mail(tmp_path)


def trigger(driver: Any, attempt: AttemptRef) -> int:
    return int(driver.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key())).checkpoint_id)


def forged_call(verb: str, message: Any) -> bytes:
    return json.dumps({"verb": verb, "message": encode(message)}).encode()


class TestDriver:
    def test_pauses_between_two_looks_grow_from_half_a_second_to_five(self) -> None:
        pace = Pace()
        pauses = [pace.pause() for _ in range(12)]
        assert (pauses[0], pauses[-1]) == (0.5, 5.0)
        assert pauses == sorted(pauses)
        assert pace.pause(is_busy=True) == 0.5

    def test_driver_that_gets_no_answer_fails_after_its_patience_and_says_where_its_call_is(self, mail: Mail) -> None:
        driver = mail.begun()
        mail.relay.carry = lambda: 0  # type: ignore[method-assign]
        before = sum(mail.pauses)
        with pytest.raises(CommitStateUnknownError, match=rf"call 'trigger' in the mailbox {mail.box.uri} within 60 s"):
            trigger(driver, mail.attempt)
        assert 60 <= sum(mail.pauses) - before <= 66

    def test_log_of_a_driver_says_once_that_a_call_waits(self, mail: Mail, caplog) -> None:
        mail.relay.carry = lambda: 0  # type: ignore[method-assign]
        with pytest.raises(CommitStateUnknownError):
            mail.driver(patience_seconds=600.0).register(REQUEST)
        told = [each.getMessage() for each in caplog.records if "has waited" in each.getMessage()]
        [line] = told
        assert line.startswith(f"The call 'register' has waited for 60 s in the mailbox {mail.box.uri}; its task")
        assert line.endswith("fails after 600 s.")

    def test_call_that_was_given_up_is_carried_by_the_next_relay(self, mail: Mail) -> None:
        driver = mail.begun()
        mail.relay.carry = lambda: 0  # type: ignore[method-assign]
        with pytest.raises(CommitStateUnknownError):
            trigger(driver, mail.attempt)
        mail.new_relay(mail.coordinator).carry()
        assert len(mail.coordinator.describe(job_id_of("sales")).checkpoints) == 1

    def test_driver_waits_on_while_its_storage_fails(self, mail: Mail) -> None:
        plan = FaultPlan(point=1, times=7)
        driver = mail.driver(storage=faulty_storage(mail.storage, plan, ("write_bytes", "read_limited", "exists")))
        assert driver.register(REQUEST).attempt == mail.attempt
        assert len(plan.calls) > 7

    def test_half_of_an_answer_is_read_again(self, mail: Mail) -> None:
        driver = mail.begun()
        answer = f"{mail.box.uri}/answers/{CallName(2, driver.instance).file}"
        mail.storage.write_bytes(answer, b'{"reply":')

        def publish() -> int:
            mail.storage.write_bytes(answer, b'{"reply": null}', overwrite=True)
            return 1

        mail.relay.carry = publish  # type: ignore[method-assign]
        before = len(mail.pauses)
        driver.confirm_discards(mail.attempt, ())
        assert len(mail.pauses) == before + 1

    @pytest.mark.parametrize("is_closed", [True, False])
    def test_replaced_driver_is_told_by_a_file_before_it_writes_metadata(self, mail: Mail, is_closed: bool) -> None:
        driver = mail.begun()
        driver.require_open()
        mail.box.fence(2, is_closed=is_closed)
        with pytest.raises(StaleAttemptError, match="replaced by attempt 2") as told:
            driver.require_open()
        assert told.value.current_epoch == 2

    def test_driver_whose_mailbox_is_gone_ends_at_its_next_look(self, mail: Mail) -> None:
        driver = mail.begun()
        mail.box.remove()
        with pytest.raises(StaleAttemptError, match="it was removed, as the task of this driver has ended"):
            trigger(driver, mail.attempt)
        assert mail.storage.list_files(mail.box.uri) == {}

    def test_process_without_an_attempt_begins_beside_a_fence_of_its_predecessor(self, mail: Mail) -> None:
        mail.begun()
        mail.box.fence(2, is_closed=False)
        assert mail.begun().instance != ""

    def test_fence_of_a_later_try_is_kept(self, mail: Mail) -> None:
        mail.box.fence(3, is_closed=True)
        mail.box.fence(4, is_closed=False)
        assert mail.box.fenced() == Fence(epoch=3, is_closed=True)

    def test_answers_that_were_read_are_deleted_with_their_calls(self, mail: Mail) -> None:
        driver = mail.begun()
        for _ in range(5):
            trigger(driver, mail.attempt)
        listing = mail.box.listing()
        assert {name.number for name in listing.calls} == {name.number for name in listing.answers} == {6}

    def test_uri_that_is_none_of_a_mailbox_is_refused(self) -> None:
        with pytest.raises(InvalidConfigurationError, match="Expected the URI of a mailbox"):
            Mailbox.at("s3://lake/checkpoints", {})


class TestInstances:
    def test_second_process_gets_an_attempt_of_its_own_and_the_first_one_is_shut_out(self, mail: Mail) -> None:
        first, second = mail.begun(), mail.driver()
        later = second.register(REQUEST).attempt
        assert (later.epoch, mail.statuses()) == (2, [AttemptStatus.FENCED, AttemptStatus.RUNNING])
        assert trigger(second, later) == 1
        with pytest.raises(StaleAttemptError):
            trigger(first, mail.attempt)

    def test_relay_that_takes_over_registers_no_third_attempt(self, mail: Mail) -> None:
        mail.begun()
        second = mail.driver()
        later = second.register(REQUEST).attempt
        for name in mail.box.listing().answers:
            mail.storage.delete_file(f"{mail.box.uri}/answers/{name.file}")
        mail.new_relay(mail.coordinator, later).carry()
        assert len(mail.statuses()) == 2

    def test_calls_of_the_first_process_are_carried_before_the_second_begins(self, mail: Mail) -> None:
        mail.begun()
        pending = mail.coordinator.trigger(TriggerCheckpoint(attempt=mail.attempt, request_key=new_key()))
        message = {"attempt": encode(mail.attempt), "checkpoint_id": pending.checkpoint_id, "reason": "unspecified"}
        mail.forge(json.dumps({"verb": "decline", "message": message}).encode(), CallName(9, "f" * 32))
        mail.driver().register(REQUEST)
        answer = mail.box.answer(CallName(9, "f" * 32))
        assert "reply" in answer

    def test_of_two_processes_that_wait_the_one_that_started_first_begins_first(self, mail: Mail) -> None:
        later, earlier = (
            MailboxGateway(mail.box, 60.0, started_ns=started).instance for started in (2 * 10**18, 10**18)
        )
        for instance in (later, earlier):
            mail.box.post(CallName(1, instance), json.loads(forged_call("register", REQUEST)))
        mail.relay.carry()
        assert mail.box.first_instance(later) == earlier

    def test_process_does_not_begin_before_a_call_of_the_earlier_one_that_fails(self, mail: Mail) -> None:
        first, second = mail.begun(), mail.driver()
        message = {"attempt": encode(mail.attempt), "checkpoint_ids": []}
        earlier, begin = CallName(2, first.instance), CallName(1, second.instance)
        mail.box.post(earlier, {"verb": "confirm_discards", "message": message})
        mail.box.post(begin, json.loads(forged_call("register", REQUEST)))
        relay = mail.new_relay(faulty_gateway(mail.coordinator, FaultPlan(point=1)))
        with pytest.raises(CommitStateUnknownError):
            relay.carry()
        assert mail.box.answer(begin) is None
        assert relay.carry() == 2
        assert "reply" in mail.box.answer(earlier)


class TestRelay:
    @pytest.mark.parametrize(
        ("verb", "change", "expected"),
        [
            ("confirm_discards", {"job_id": job_id_of("other")}, "in its mailbox, found one of operator"),
            ("confirm_discards", {"operator_id": "0" * 32}, "in its mailbox, found one of operator"),
            ("adopt", {}, "Expected a call of an attempt, found 'adopt'"),
            ("jobs", {}, "Expected a call of an attempt, found 'jobs'"),
            ("gc", {}, "Expected a call of an attempt, found 'gc'"),
            ("__init__", {}, "Expected a call of an attempt, found '__init__'"),
            ("trigger", {}, "Expected a value in request_key of the call 'trigger'"),
        ],
    )
    def test_call_that_no_driver_of_this_task_makes_is_refused(
        self, mail: Mail, verb: str, change: dict[str, Any], expected: str
    ) -> None:
        message = {"attempt": encode(replace(mail.attempt, **change)), "checkpoint_ids": []}
        mail.forge(json.dumps({"verb": verb, "message": message}).encode())
        assert mail.relay.carry() == 1
        assert expected in mail.box.answer(FORGED)["error"]["message"]

    def test_another_job_is_not_read(self, mail: Mail) -> None:
        mail.coordinator.register(make_registration(job_name="salaries"))
        mail.forge(forged_call("describe", {"job_id": job_id_of("salaries")}))
        mail.relay.carry()
        assert mail.box.answer(FORGED)["error"]["code"] == "invalid_configuration"

    def test_what_a_forged_registration_says_is_that_of_the_task(self, mail: Mail) -> None:
        mail.begun()
        mail.forge(forged_call("register", make_registration(job_name="salaries", uid="all", num_retained=9)))
        mail.relay.carry()
        assert {job.name for job in mail.coordinator.jobs()} == {"sales"}

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[]", b"null", b'{"verb": 1, "message": 1}', b"[" * 5000, b"[" * 300 + b"]" * 300],
        ids=["empty", "torn", "list", "null", "of other types", "open brackets", "nested"],
    )
    def test_file_that_is_no_call_keeps_no_call_from_being_carried(self, mail: Mail, content: bytes, caplog) -> None:
        mail.forge(content)
        with caplog.at_level(logging.WARNING):
            assert trigger(mail.begun(), mail.attempt) == 1
        assert len([each for each in caplog.messages if "could not be read" in each]) == 1, "it is told once"

    def test_call_above_the_limit_is_not_read(self, mail: Mail) -> None:
        mail.forge(b'{"verb": "describe", "message": {"job_id": "' + b"a" * MAX_BODY_BYTES + b'"}}')
        assert mail.relay.carry() == 0
        assert trigger(mail.begun(), mail.attempt) == 1

    def test_torn_call_is_carried_once_it_is_whole(self, mail: Mail) -> None:
        whole = forged_call("describe", {"job_id": mail.attempt.job_id})
        mail.forge(whole[:20])
        assert mail.relay.carry() == 0
        mail.storage.write_bytes(f"{mail.box.uri}/calls/{FORGED.file}", whole, overwrite=True)
        assert mail.relay.carry() == 1

    def test_files_with_other_names_are_no_calls(self, mail: Mail) -> None:
        mail.storage.write_bytes(f"{mail.box.uri}/calls/.{FORGED.file}.{'0' * 32}.tmp", b"half")
        mail.storage.write_bytes(f"{mail.box.uri}/calls/deeper/{FORGED.file}", b"{}")
        assert mail.relay.carry() == 0

    @pytest.mark.parametrize(
        "error",
        [
            AccessDeniedError("Expected the token of the task that runs, found that of an earlier try."),
            CoordinatorUnavailableError("Expected the api-server, found none."),
            CoordinatorError("Expected an answer of the coordinator, found a page of a proxy."),
        ],
    )
    def test_call_whose_outcome_is_unknown_is_left_without_an_answer(self, mail: Mail, error: StateCheckError) -> None:
        driver = mail.begun()

        class Refusing:
            def __getattr__(self, name: str) -> Any:
                def fail(*_: Any, **__: Any) -> None:
                    raise error

                return fail

        refusing = mail.new_relay(Refusing())
        mail.box.post(
            CallName(2, driver.instance), json.loads(forged_call("describe", {"job_id": mail.attempt.job_id}))
        )
        with pytest.raises(StateCheckError):
            refusing.carry()
        assert mail.box.answer(CallName(2, driver.instance)) is None
        assert mail.relay.carry() == 1

    def test_one_call_that_fails_does_not_hold_up_the_others(self, mail: Mail) -> None:
        mail.begun()
        for number in (2, 3):
            call = json.loads(forged_call("describe", {"job_id": mail.attempt.job_id}))
            mail.box.post(CallName(number, "f" * 32), call)
        relay = mail.new_relay(faulty_gateway(mail.coordinator, FaultPlan(point=1)))
        with pytest.raises(CommitStateUnknownError):
            relay.carry()
        assert len(mail.box.listing().answers) == 2

    def test_call_of_an_attempt_that_another_task_registered_is_left_to_it(self, mail: Mail) -> None:
        mail.begun()
        later = mail.coordinator.register(replace(REQUEST, attempt_key=new_key())).attempt
        message = {"attempt": encode(later), "checkpoint_ids": []}
        mail.box.post(CallName(2, "f" * 32), {"verb": "confirm_discards", "message": message})
        with pytest.raises(StateCheckError, match="registered by another task"):
            mail.relay.carry()
        assert mail.new_relay(mail.coordinator, later).carry() == 1

    def test_call_that_cannot_be_sent_does_not_hold_up_the_others(self, mail: Mail) -> None:
        class Sending:
            def confirm_discards(self, **arguments: Any) -> None:
                mail.coordinator.confirm_discards(**arguments)

            def describe(self, **_: Any) -> None:
                raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

        mail.begun()
        mail.box.post(CallName(0, "f" * 32), json.loads(forged_call("describe", {"job_id": mail.attempt.job_id})))
        message = {"attempt": encode(mail.attempt), "checkpoint_ids": []}
        mail.box.post(CallName(2, "a" * 32), {"verb": "confirm_discards", "message": message})
        assert mail.new_relay(Sending()).carry() == 1

    def test_any_number_of_calls_that_are_left_to_others_does_not_hold_up_the_driver(self, mail: Mail) -> None:
        driver = mail.begun()
        message = {"attempt": encode(replace(mail.attempt, epoch=99)), "checkpoint_ids": []}
        for number in range(2, 302):
            mail.box.post(CallName(number, "0" * 32), {"verb": "confirm_discards", "message": message})
        name = CallName(400, driver.instance)
        mail.box.post(name, json.loads(forged_call("describe", {"job_id": mail.attempt.job_id})))
        with pytest.raises(StateCheckError, match="registered by another task"):
            mail.relay.carry()
        assert mail.relay.carry() == 1
        assert mail.box.answer(name) is not None

    def test_two_relays_give_one_answer(self, mail: Mail) -> None:
        driver = mail.begun()
        name = CallName(2, driver.instance)
        mail.box.reply(name, {"reply": None})
        mail.box.reply(name, {"error": {"code": "stale_attempt", "message": "later"}})
        assert mail.box.answer(name) == {"reply": None}


class TestWaiting:
    """What the log and the metrics of a task tell about calls that wait."""

    @pytest.fixture
    def waiting(self, mail: Mail) -> Waiting:
        return Waiting(mail)

    def test_reason_is_told_at_once_and_every_five_minutes_with_the_age_of_the_oldest_call(
        self, waiting: Waiting, caplog
    ) -> None:
        waiting.call()
        for _ in range(62):
            waiting.look(is_up=False)
            waiting.seconds += 10
        assert [each.getMessage() for each in caplog.records] == [
            f"Calls of the driver wait in the mailbox, the oldest for {age} s: the server is down"
            for age in (0, 300, 600)
        ]

    def test_another_reason_is_told_at_once(self, waiting: Waiting, caplog) -> None:
        waiting.call()
        waiting.look(is_up=False)
        waiting.seconds += 1
        waiting.look(is_up=False, reason="the server is full")
        assert caplog.records[-1].getMessage().endswith("the oldest for 1 s: the server is full")

    def test_age_of_the_oldest_call_is_sent_until_calls_are_carried_again(self, waiting: Waiting, caplog) -> None:
        caplog.set_level(logging.INFO)
        waiting.look(is_up=True)
        waiting.call()
        waiting.look(is_up=False)
        waiting.seconds += 30
        waiting.call()
        waiting.look(is_up=False)
        waiting.look(is_up=True)
        waiting.look(is_up=True)
        assert waiting.sent == [0.0, 30.0, 0.0]
        assert caplog.records[-1].getMessage() == "Calls of the driver in the mailbox are carried again."

    def test_storage_that_cannot_be_listed_lets_known_calls_grow_older(self, waiting: Waiting, monkeypatch) -> None:
        waiting.call()
        waiting.look(is_up=False)
        waiting.seconds += 30

        def fail(_: Mailbox) -> None:
            raise StorageError("the store is down")

        monkeypatch.setattr(Mailbox, "listing", fail)
        waiting.look(is_up=True)
        assert waiting.sent == [0.0, 30.0]
