"""Stores of several attempts that fail now and then, against a dictionary."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.state_handle_store import LeasedStateHandleStore
from airflow_provider_statecheck.checkpoint.state_pointers import ResourceVersion, StatePointer
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    HandleExistsError,
    HandleNotFoundError,
    ResourceVersionError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from airflow_provider_statecheck.testing.memory_store import InMemoryHandleRows, InMemoryJobStore, InMemoryStates
from airflow_provider_statecheck.testing.messages import make_registration
from tests.contracts.handle_faults import FaultyHandleRows, FaultyStates
from tests.contracts.state_handle_store_contract import JOB

NAMES = st.sampled_from(["a", "b"])
CLIENTS = st.sampled_from([0, 1, 2])
LEASE = 60.0
FAULTS = st.none() | st.tuples(
    st.integers(1, 4), st.sampled_from([FaultMode.ERROR, FaultMode.REPLY_LOST]), st.integers(1, 2)
)
Fault = tuple[int, FaultMode, int] | None
INJECTED = (CommitStateUnknownError, CoordinatorUnavailableError, StorageError)


@dataclass(frozen=True, eq=False)
class Client:
    """One store and the epoch of its attempt; no two are equal."""

    epoch: int
    store: LeasedStateHandleStore[bytes]


class Handles(RuleBasedStateMachine):
    """The dictionary holds what each name may be; after an unknown outcome the store itself is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        jobs = InMemoryJobStore(self.clock)
        self.coordinator = AttemptCoordinator(jobs)
        self.attempt = self.coordinator.register(make_registration()).attempt
        self.plan = FaultPlan()
        self.rows = InMemoryHandleRows(jobs, JOB)
        self.states = InMemoryStates()
        self.clients = [self.open() for _ in range(3)]
        self.model: dict[str, tuple[bytes, int]] = {}
        self.locks: dict[tuple[str, Client], float] = {}
        self.seconds = 0.0
        self.count = 0

    def open(self) -> Client:
        """Return another store of the newest attempt."""
        faulty = FaultyHandleRows(self.rows, self.plan), FaultyStates(self.states, self.plan)
        return Client(self.attempt.epoch, LeasedStateHandleStore(*faulty, self.attempt, lease_seconds=LEASE))

    def leads(self, client: Client) -> bool:
        return client.epoch == self.attempt.epoch

    def lock(self, name: str, client: Client) -> None:
        self.locks[(name, client)] = self.seconds + LEASE

    def is_in_use(self, name: str, client: Client) -> bool:
        """Tell whether another client's lock has not lapsed."""
        return any(n == name and c != client and until > self.seconds for (n, c), until in self.locks.items())

    def forget_locks(self) -> None:
        self.locks = {key: until for key, until in self.locks.items() if key[0] in self.model}

    def injecting(self, fault: Fault) -> None:
        self.plan.calls.clear()
        self.plan.point, self.plan.mode, self.plan.times = fault or (None, FaultMode.ERROR, 1)

    def observe(self, name: str, *allowed: tuple[bytes, int] | None) -> None:
        """Take over what a failed call left, which has to be one of what it may leave."""
        self.injecting(None)
        row = next((r for r in self.rows.read() if r.name == name and not r.is_deleting), None)
        found = row and (self.states.retrieve(StatePointer.decode(row.handle)), row.version)
        assert found in allowed
        self.model.pop(name, None)
        if found is not None:
            self.model[name] = found
        self.forget_locks()

    @rule(client=CLIENTS, is_newer=st.booleans())
    def begin(self, client: int, is_newer: bool) -> None:
        """A store begins, of a new attempt or the present one; the locks of the one that it replaces live on for a while."""
        if is_newer:
            self.attempt = self.coordinator.register(make_registration()).attempt
        self.clients[client] = self.open()

    @rule(seconds=st.sampled_from([LEASE, LEASE - 1, 1.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.seconds += seconds

    @rule(name=NAMES, client=CLIENTS, fault=FAULTS)
    def add(self, name: str, client: int, fault: Fault) -> None:
        self.count += 1
        mine = self.clients[client]
        before, after = self.model.get(name), (str(self.count).encode(), 0)
        self.injecting(fault)
        try:
            mine.store.add_and_lock(name, after[0])
        except HandleExistsError:
            assert before is not None
        except StaleAttemptError:
            assert not self.leads(mine)
        except CommitStateUnknownError:
            self.observe(name, before, after)
            if self.model.get(name) == after:
                self.lock(name, mine)
        except INJECTED:
            assert fault is not None
            self.observe(name, before)
        else:
            assert before is None
            assert self.leads(mine)
            self.model[name] = after
            self.lock(name, mine)

    @rule(name=NAMES, client=CLIENTS, stale=st.booleans(), fault=FAULTS)
    def replace(self, name: str, client: int, stale: bool, fault: Fault) -> None:
        self.count += 1
        mine, before = self.clients[client], self.model.get(name)
        version = before[1] if before else 0
        after = (str(self.count).encode(), version + 1)
        self.injecting(fault)
        try:
            mine.store.replace(name, ResourceVersion(version + stale), after[0])
        except HandleNotFoundError:
            assert before is None
        except ResourceVersionError:
            assert before is not None
            assert stale
        except StaleAttemptError:
            assert not self.leads(mine)
        except INJECTED:
            assert fault is not None
            self.observe(name, before, after if self.leads(mine) else before)
        else:
            assert before is not None
            assert not stale
            assert self.leads(mine)
            self.model[name] = after

    @rule(name=NAMES, client=CLIENTS, fault=FAULTS)
    def remove(self, name: str, client: int, fault: Fault) -> None:
        mine, before = self.clients[client], self.model.get(name)
        is_absent = self.rows.find(name) is None
        self.injecting(fault)
        try:
            is_gone = mine.store.release_and_try_remove(name)
        except INJECTED:
            assert fault is not None
            self.observe(name, before, None if self.leads(mine) and not self.is_in_use(name, mine) else before)
            mine.store.release(name)
            self.locks.pop((name, mine), None)
        else:
            self.locks.pop((name, mine), None)
            assert is_gone is (is_absent or (self.leads(mine) and not self.is_in_use(name, mine)))
            if is_gone:
                self.model.pop(name, None)
                self.forget_locks()

    @rule(client=CLIENTS)
    def clear(self, client: int) -> None:
        self.injecting(None)
        try:
            self.clients[client].store.clear_entries()
        except StaleAttemptError:
            assert not self.leads(self.clients[client])
        else:
            assert self.leads(self.clients[client])
            self.model.clear()
            self.locks.clear()

    @rule(name=NAMES, client=CLIENTS)
    def get(self, name: str, client: int) -> None:
        self.injecting(None)
        try:
            state = self.clients[client].store.get_and_lock(name).retrieve_state()
        except HandleNotFoundError:
            assert name not in self.model
        else:
            assert state == self.model[name][0]
            self.lock(name, self.clients[client])

    @rule(client=CLIENTS)
    def release_all(self, client: int) -> None:
        self.injecting(None)
        self.clients[client].store.release_all()
        self.locks = {key: until for key, until in self.locks.items() if key[1] != self.clients[client]}

    @rule(client=CLIENTS)
    def renew_locks(self, client: int) -> None:
        self.injecting(None)
        self.clients[client].store.renew_locks()
        for name, holder in self.locks:
            if holder == self.clients[client]:
                self.lock(name, holder)

    @invariant()
    def every_handle_has_its_state_and_its_version(self) -> None:
        self.injecting(None)
        for name in ("a", "b"):
            version = self.clients[0].store.exists(name)
            assert version.value == self.model.get(name, (b"", -1))[1]
        live = [StatePointer.decode(row.handle) for row in self.rows.read() if not row.is_deleting]
        assert [self.states.retrieve(pointer) for pointer in live] == [s for _, (s, _) in sorted(self.model.items())]


TestHandles = Handles.TestCase
TestHandles.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
