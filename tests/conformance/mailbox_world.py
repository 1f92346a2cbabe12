"""
One walk of tries, relays and drivers around mailboxes, with the classes of production and a crash at any call.

A driver that waits for an answer lets the world go on: relays look, tries end and begin, processes are killed, and
other programs write into the mailbox. All of it follows from a seed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
)
from airflow_provider_statecheck.exceptions import AccessDeniedError, StateCheckError
from airflow_provider_statecheck.gateway.mailbox.box import Mailbox
from airflow_provider_statecheck.gateway.mailbox.driver import MailboxGateway
from airflow_provider_statecheck.gateway.mailbox.relay import MailboxRelay
from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage
from airflow_provider_statecheck.hooks.submitted_stage import DriverAccess
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.driver.mailbox import MailboxContent
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import InlineStateHandle, load_document
from airflow_provider_statecheck.testing.faults import (
    Counted,
    FaultMode,
    InProcessPlan,
    Killed,
    faulty_gateway,
    faulty_storage,
)
from tests.messages import make_owner, make_registration
from tests.sqlite_rows import new_store

JOB, UID = "sales", "aggregate"
PATIENCE_SECONDS = 60.0
DEEPEST = 4
CALLS = ("write_bytes", "read_limited", "list_files", "list_directories", "exists", "delete_file", "delete_directory")
KILLS = (FaultMode.KILL, FaultMode.KILL_AFTER)
GARBAGE = (b"", b"{", b"[]", b'{"verb": "adopt", "message": {}}', b'{"verb": "jobs", "message": {}}', b"[" * 9999)


class TaskGateway:
    """The gateway of one try, to which the coordinator gives tokens only while the try is the newest one."""

    def __init__(self, world: MailboxWorld, number: int) -> None:
        self._world = world
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.coordinator, name)

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """Register an attempt of the newest try."""
        self._prove()
        return self._world.coordinator.register(request)

    def adopt(self, attempt: AttemptRef, owner: AttemptOwner) -> None:
        """Give an attempt to the newest try."""
        self._prove()
        self._world.coordinator.adopt(attempt, owner)

    def _prove(self) -> None:
        if self._number != self._world.newest_try:
            raise AccessDeniedError("Expected a task instance that runs, found an earlier try.")

    def token_of(self, attempt: AttemptRef) -> str:
        return f"token of attempt {attempt.epoch}"


class LateListings(Counted):
    """A storage whose listings may be those of an earlier time."""

    def __init__(self, storage: Any, chance: random.Random) -> None:
        super().__init__(storage, InProcessPlan(), (), StateCheckError)
        self._chance = chance
        self._listed: dict[str, dict[str, int]] = {}

    def list_files(self, uri: str) -> dict[str, int]:
        """Return the files of a directory, now or at an earlier time."""
        earlier = self._listed.get(uri)
        found: dict[str, int] = self._target.list_files(uri)
        self._listed[uri] = found
        return earlier if earlier is not None and self._chance.random() < 0.2 else found


class Looks:
    """A relay that looks when the world says so."""

    def __init__(self, relay: MailboxRelay) -> None:
        self.has_carried_all = False
        self.relay = relay

    def start(self) -> None: ...

    def stop(self) -> None:
        """Look for the last time."""
        self.relay.carry()
        self.has_carried_all = True


class Try:
    """One try of the task, in a process of its own."""

    def __init__(self, world: MailboxWorld, number: int, *, is_safe: bool) -> None:
        self.plan = world.plan(is_safe=is_safe)
        self.looks: list[Looks] = []
        storage: Any = world.storage if is_safe else LateListings(world.storage, world.chance)
        self.stage = RelayedStage(
            DriverAccess("", faulty_gateway(TaskGateway(world, number), self.plan)),
            world.registration(number),
            DriverSettings(),
            storage=faulty_storage(storage, self.plan, CALLS),
            patience_seconds=PATIENCE_SECONDS,
            looking=self._looking,
        )

    def _looking(self, relay: MailboxRelay) -> Looks:
        self.looks.append(Looks(relay))
        return self.looks[-1]


class Driver:
    """One process of a driver, which counts as its stage would work."""

    def __init__(self, world: MailboxWorld, uri: str, *, is_safe: bool = False) -> None:
        self._world = world
        self.plan = world.plan(is_safe=is_safe)
        storage = faulty_storage(world.storage, self.plan, CALLS)
        mailbox = Mailbox(storage, Mailbox.at(uri, {}).attempt)
        content = MailboxContent.of(mailbox)
        self.gateway = MailboxGateway(mailbox, PATIENCE_SECONDS, sleep=self._wait, monotonic=lambda: world.seconds)
        self.attempt = StageAttempt(
            self.gateway, storage, content.registration, require_open=self.gateway.require_open, pause=world.go_on
        )
        restored = self.attempt.restore()
        self.count = 0 if restored is None else _count_in(world.storage, restored.checkpoint)
        world.require_restored(self.attempt.grant.attempt.epoch, self.count)

    def work(self) -> None:
        """Take a checkpoint of one more."""
        state = {"count": self.count + 1, "instance": self.gateway.instance}
        if self.attempt.take_checkpoint(CheckpointContent(state=state)) is not None:
            self._world.told[self.attempt.grant.attempt.epoch] = self.count + 1
        self.count += 1

    def _wait(self, seconds: float) -> None:
        if self.plan.is_dead:
            raise Killed
        self._world.go_on(seconds)
        if self.plan.is_dead:
            raise Killed


class MailboxWorld:
    """One walk, which a seed determines."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.storage: Any = CheckpointStorage.open(str(folder / "checkpoints"))
        self.store = new_store()
        self.coordinator = AttemptCoordinator(self.store)
        self.newest_try = 0
        self.history: list[str] = []
        self.seconds = 0.0
        self.told: dict[int, int] = {}
        """What each attempt was told to be complete."""
        self._uri = ""
        self._tries: list[Try] = []
        self._drivers: list[Driver] = []
        self._number = 0
        self._depth = 0

    def plan(self, *, is_safe: bool = False) -> InProcessPlan:
        """Return when a process is killed, if it is."""
        is_killed = not is_safe and self.chance.random() < 0.5
        return InProcessPlan(point=self.chance.randrange(1, 40) if is_killed else None, mode=self.chance.choice(KILLS))

    def registration(self, number: int) -> Any:
        """Return what a try registers."""
        return make_registration(
            job_name=JOB,
            uid=UID,
            storage_base=self.storage.base_uri,
            owner=make_owner(try_number=number, ti_id=f"try-{number}"),
        )

    def walk(self, steps: int) -> None:
        """Let things happen, then let a try and a driver that nothing disturbs end the work."""
        self._begin_try()
        for _ in range(steps):
            self._step()
        self._end()

    def go_on(self, seconds: float) -> None:
        """Let time pass, and others work, while a process waits."""
        self.seconds += seconds
        if self._depth < DEEPEST and self.chance.random() < 0.3:
            self._step()
        else:
            self._look()

    def _step(self) -> None:
        self._depth += 1
        actions: list[tuple[int, Callable[[], None]]] = [
            (6, self._look),
            (6, self._work),
            (3, self._start_driver),
            (1, self._kill_driver),
            (1, self._begin_try),
            (1, self._write_garbage),
        ]
        [action] = self.chance.choices([each for _, each in actions], [weight for weight, _ in actions])
        self._said(action.__name__.lstrip("_"))
        action()
        self._depth -= 1
        self._require_sound()

    def _look(self) -> None:
        # Also those of earlier tries, whose processes live on.
        alive = [each for each in self._tries if each.looks and not each.plan.is_dead]
        if alive:
            relaying = self.chance.choice([alive[-1], self.chance.choice(alive)])
            self._surviving(relaying.looks[-1].relay.carry)

    def _work(self) -> None:
        idle = [each for each in self._drivers if not each.plan.is_dead]
        if idle:
            self._as_driver(self.chance.choice(idle))

    def _as_driver(self, driver: Driver) -> None:
        # A process does one thing at a time.
        self._drivers.remove(driver)
        if self._surviving(driver.work) and not driver.plan.is_dead:
            self._drivers.append(driver)

    def _start_driver(self) -> None:
        if self._uri:
            uri = self._uri
            self._surviving(lambda: self._drivers.append(Driver(self, uri)))

    def _kill_driver(self) -> None:
        if self._drivers:
            driver = self._drivers.pop()
            driver.plan.is_dead = True

    def _begin_try(self, *, is_safe: bool = False) -> None:
        self._number += 1
        self.newest_try = self._number
        begun = Try(self, self._number, is_safe=is_safe)
        if self.chance.random() < 0.6:
            # Airflow starts a try when the earlier one has ended, or does not answer.
            for each in self._tries:
                each.plan.is_dead = True
        if not is_safe and self.chance.random() < 0.3:
            self._surviving(begun.stage.adopt_running)
        if not begun.looks:
            self._surviving(lambda: setattr(self, "_uri", begun.stage.open_mailbox()))
        self._tries.append(begun)

    def _write_garbage(self) -> None:
        if self._uri:
            name = f"{self.chance.getrandbits(128):032x}-{self.chance.randrange(1, 9):08}.json"
            self.storage.write_bytes(f"{self._uri}/calls/{name}", self.chance.choice(GARBAGE))

    def _surviving(self, action: Callable[[], object]) -> bool:
        """Return whether a process is not told to end, and not killed."""
        depth = self._depth
        try:
            action()
        except Killed:
            self._said("killed")
            return False
        except StateCheckError as error:
            self._said(f"{type(error).__name__}: {error}"[:200])
            return False
        finally:
            self._depth = depth
        return True

    def _end(self) -> None:
        acknowledged = self._acknowledged()
        self._begin_try(is_safe=True)
        self._require_kept(acknowledged)
        for plan in [each.plan for each in self._tries[:-1]] + [each.plan for each in self._drivers]:
            plan.is_dead = True
        self._depth = DEEPEST
        last = Driver(self, self._uri, is_safe=True)
        last.work()
        last.attempt.finish(AttemptStatus.FINISHED)
        self._tries[-1].looks[-1].stop()
        self._tries[-1].stage.close(AttemptStatus.FINISHED)
        self._require_sound()
        assert [path for path in self._files() if "/mail/" in path] == []

    def _acknowledged(self) -> set[int]:
        """Return the checkpoints of the newest attempt whose acknowledgement waits in a mailbox."""
        newest = self._newest_epoch()
        found = set()
        for mailbox in Mailbox.all_of(self.storage, self._ref(0)):
            listing = mailbox.listing()
            for name in listing.calls.keys() - listing.answers:
                call = self._surviving_call(mailbox, name)
                if call.get("verb") == "acknowledge" and call["message"]["attempt"]["epoch"] == newest:
                    found.add(call["message"]["checkpoint_id"])
        return found

    def _surviving_call(self, mailbox: Mailbox, name: Any) -> dict[str, Any]:
        try:
            call = mailbox.call(name)
        except StateCheckError:
            return {}
        return call if isinstance(call, dict) else {}

    def _require_kept(self, acknowledged: set[int]) -> None:
        rows = {c.checkpoint_id: c.status for c in self._checkpoints()}
        lost = {i for i in acknowledged if rows[i] in (CheckpointStatus.ABORTED, CheckpointStatus.PENDING)}
        assert lost == set(), "a call that was written is lost"

    def require_restored(self, epoch: int, count: int) -> None:
        """Require that a driver begins with all that any attempt was told to be complete."""
        if epoch < self._newest_epoch():
            return  # replaced while it waited for its answer
        assert count >= max(self.told.values(), default=0), "an attempt begins before what an earlier one has completed"

    def _require_sound(self) -> None:
        instances = defaultdict(set)
        for row in self._checkpoints():
            if row.status is CheckpointStatus.COMPLETED:
                assert self.storage.exists(row.metadata_uri), f"the metadata of checkpoint {row.checkpoint_id} is gone"
                instances[row.epoch].add(_state_of(self.storage, row)["instance"])
        assert [epoch for epoch, found in instances.items() if len(found) > 1] == [], "two instances of one epoch"

    def _checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return self.coordinator.describe(job_id_of(JOB)).checkpoints if self._newest_epoch() else ()

    def _newest_epoch(self) -> int:
        known = [job.job_id for job in self.coordinator.jobs()]
        return self.coordinator.describe(job_id_of(JOB)).operators[0].epoch if known else 0

    def _ref(self, epoch: int) -> AttemptRef:
        return AttemptRef(job_id=job_id_of(JOB), operator_id=operator_id_of(UID), epoch=epoch)

    def _files(self) -> list[str]:
        return [f"/{path}" for path in self.storage.list_files(self.storage.base_uri)]

    def _said(self, text: str) -> None:
        self.history.append(f"{'  ' * self._depth}{text}")


def _state_of(storage: CheckpointStorage, row: CheckpointRecord) -> dict[str, Any]:
    state = load_document(storage, row).state
    assert isinstance(state, InlineStateHandle)
    return dict(state.value)


def _count_in(storage: CheckpointStorage, row: CheckpointRecord) -> int:
    return int(_state_of(storage, row)["count"])
