"""Two stores that fail now and then, against a dictionary."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from airflow_provider_statecheck.checkpoint.attempt_coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.handle_store import LeasedStateHandleStore
from airflow_provider_statecheck.checkpoint.state_handles import ResourceVersion, StatePointer
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    HandleExistsError,
    HandleNotFoundError,
    ResourceVersionError,
    StorageError,
)
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from airflow_provider_statecheck.testing.handle_faults import FaultyHandleRows, FaultyStates
from airflow_provider_statecheck.testing.memory_handles import InMemoryHandleRows, InMemoryStates
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore
from airflow_provider_statecheck.testing.messages import make_registration
from airflow_provider_statecheck.testing.state_handle_store_contract import JOB

NAMES = st.sampled_from(["a", "b"])
CLIENTS = st.sampled_from([0, 1])
FAULTS = st.none() | st.tuples(
    st.integers(1, 4), st.sampled_from([FaultMode.ERROR, FaultMode.REPLY_LOST]), st.integers(1, 2)
)
Fault = tuple[int, FaultMode, int] | None
INJECTED = (CommitStateUnknownError, CoordinatorUnavailableError, StorageError)


class Handles(RuleBasedStateMachine):
    """The dictionary holds what each name may be; after an unknown outcome the store itself is asked."""

    def __init__(self) -> None:
        super().__init__()
        jobs = InMemoryJobStore()
        attempt = AttemptCoordinator(jobs).register(make_registration()).attempt
        self.plan = FaultPlan()
        self.rows = InMemoryHandleRows(jobs, JOB)
        self.states = InMemoryStates()
        faulty = FaultyHandleRows(self.rows, self.plan), FaultyStates(self.states, self.plan)
        self.clients = [LeasedStateHandleStore(*faulty, attempt) for _ in range(2)]
        self.model: dict[str, tuple[bytes, int]] = {}
        self.locks: set[tuple[str, int]] = set()
        self.count = 0

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
        self.locks = {key for key in self.locks if key[0] in self.model}

    @rule(name=NAMES, client=CLIENTS, fault=FAULTS)
    def add(self, name: str, client: int, fault: Fault) -> None:
        self.count += 1
        before, after = self.model.get(name), (str(self.count).encode(), 0)
        self.injecting(fault)
        try:
            self.clients[client].add_and_lock(name, after[0])
        except HandleExistsError:
            assert before is not None
        except CommitStateUnknownError:
            self.observe(name, before, after)
            if self.model.get(name) == after:
                self.locks.add((name, client))
        except INJECTED:
            assert fault is not None
            self.observe(name, before)
        else:
            assert before is None
            self.model[name] = after
            self.locks.add((name, client))

    @rule(name=NAMES, client=CLIENTS, stale=st.booleans(), fault=FAULTS)
    def replace(self, name: str, client: int, stale: bool, fault: Fault) -> None:
        self.count += 1
        before = self.model.get(name)
        version = before[1] if before else 0
        after = (str(self.count).encode(), version + 1)
        self.injecting(fault)
        try:
            self.clients[client].replace(name, ResourceVersion(version + stale), after[0])
        except HandleNotFoundError:
            assert before is None
        except ResourceVersionError:
            assert before is not None
            assert stale
        except INJECTED:
            assert fault is not None
            self.observe(name, before, after)
        else:
            assert before is not None
            assert not stale
            self.model[name] = after

    @rule(name=NAMES, client=CLIENTS, fault=FAULTS)
    def remove(self, name: str, client: int, fault: Fault) -> None:
        before = self.model.get(name)
        self.injecting(fault)
        try:
            is_gone = self.clients[client].release_and_try_remove(name)
        except INJECTED:
            assert fault is not None
            self.observe(name, before, None)
            self.injecting(None)
            self.clients[client].release(name)
            self.locks.discard((name, client))
        else:
            self.locks.discard((name, client))
            assert is_gone is ((name, 1 - client) not in self.locks)
            if is_gone:
                self.model.pop(name, None)

    @rule(name=NAMES, client=CLIENTS)
    def get(self, name: str, client: int) -> None:
        self.injecting(None)
        try:
            state = self.clients[client].get_and_lock(name).retrieve_state()
        except HandleNotFoundError:
            assert name not in self.model
        else:
            assert state == self.model[name][0]
            self.locks.add((name, client))

    @rule(client=CLIENTS)
    def release_all(self, client: int) -> None:
        self.injecting(None)
        self.clients[client].release_all()
        self.locks = {key for key in self.locks if key[1] != client}

    @invariant()
    def every_handle_has_its_state_and_its_version(self) -> None:
        self.injecting(None)
        for name in ("a", "b"):
            version = self.clients[0].exists(name)
            assert version.value == self.model.get(name, (b"", -1))[1]
        live = [StatePointer.decode(row.handle) for row in self.rows.read() if not row.is_deleting]
        assert [self.states.retrieve(pointer) for pointer in live] == [s for _, (s, _) in sorted(self.model.items())]


TestHandles = Handles.TestCase
TestHandles.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
