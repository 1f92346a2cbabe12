"""Aligned checkpoints against a simple model: two coordinators, takeovers, failures and time in any order."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_statecheck.checkpoint.records import CheckpointStatus, RequestStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.flink.contents import private_states
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.testing.faults import FaultMode, InProcessPlan
from tests.aligned_job import CHECKPOINT, JOB, SAVEPOINT, future_of
from tests.conformance.test_aligned_checkpoints import faulty, is_loadable, on_sqlite

TERMINAL = {CheckpointStatus.COMPLETED, CheckpointStatus.ABORTED}


class AlignedMachine(RuleBasedStateMachine):
    """What the rows say is compared with what they said before and with the bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp())
        self.stack = ExitStack()
        self.job = self.stack.enter_context(on_sqlite(self.folder))
        self.plan = InProcessPlan(mode=FaultMode.REPLY_LOST)
        self.coordinators: list[CheckpointCoordinator] = [self.job.coordinator(), faulty(self.job, self.plan)]
        self.ended: dict[int, CheckpointStatus] = {}
        self.calls: dict[str, int] = {}
        self.latest = 0
        self.last: Any = None

    def teardown(self) -> None:
        self.stack.close()
        shutil.rmtree(self.folder)

    @rule(who=st.integers(0, 1), is_savepoint=st.booleans())
    def trigger(self, who: int, is_savepoint: bool) -> None:
        coordinator = self.coordinators[who]
        future = coordinator.trigger_checkpoint(SAVEPOINT if is_savepoint else CHECKPOINT)
        self.calls[future.request_key] = 0
        future.add_done_callback(self._count)

    @rule(who=st.integers(0, 1), task=st.integers(0, 1), back=st.integers(0, 3), again=st.booleans())
    def acknowledge(self, who: int, task: int, back: int, again: bool) -> None:
        rows = self._rows()
        if not rows:
            return
        row = rows[max(0, len(rows) - 1 - back)]
        text = "again" if again else ""
        state = self.job.state(self.job.tasks[task], row.checkpoint_id, text, row.location)
        message = self.job.acknowledgement(self.job.tasks[task], row.checkpoint_id, state=state)
        self.last = message
        self._try(lambda: self.coordinators[who].receive_acknowledge_message(message))

    @precondition(lambda self: self.last is not None)
    @rule(who=st.integers(0, 1))
    def send_again(self, who: int) -> None:
        self._try(lambda: self.coordinators[who].receive_acknowledge_message(self.last))

    @rule(who=st.integers(0, 1), task=st.integers(0, 1), back=st.integers(0, 3))
    def decline(self, who: int, task: int, back: int) -> None:
        rows = self._rows()
        if rows:
            number = rows[max(0, len(rows) - 1 - back)].checkpoint_id
            message = self.job.decline(self.job.tasks[task], number)
            self._try(lambda: self.coordinators[who].receive_decline_message(message))

    @rule(ahead=st.integers(1, 12), fault=st.sampled_from([FaultMode.ERROR, FaultMode.REPLY_LOST]))
    def plan_a_fault(self, ahead: int, fault: FaultMode) -> None:
        self.plan.point, self.plan.mode = len(self.plan.calls) + ahead, fault

    @rule(seconds=st.sampled_from([1, 70, 700]), who=st.integers(0, 1))
    def pass_time(self, seconds: int, who: int) -> None:
        self.job.pass_time(seconds)
        self._try(self.coordinators[who].tick)

    @rule(is_new_leader=st.booleans())
    def restart(self, is_new_leader: bool) -> None:
        if is_new_leader:
            self.job.lead()
        self.plan.point = None
        self.coordinators = [self.job.coordinator(), faulty(self.job, self.plan)]

    @invariant()
    def ids_grow(self) -> None:
        ids = [row.checkpoint_id for row in self._rows()]
        assert ids == sorted(set(ids))

    @invariant()
    def each_checkpoint_ends_once(self) -> None:
        for row in self._rows():
            status = CheckpointStatus.COMPLETED if row.status is CheckpointStatus.SUBSUMED else row.status
            if status in TERMINAL:
                assert self.ended.setdefault(row.checkpoint_id, status) is status

    @invariant()
    def each_future_ends_at_most_once(self) -> None:
        assert all(count <= 1 for count in self.calls.values())

    @invariant()
    def latest_never_goes_back_and_is_whole(self) -> None:
        latest = max(is_loadable(self.job), default=0)
        assert latest >= self.latest
        self.latest = latest

    @invariant()
    def savepoints_are_whole(self) -> None:
        reader = self.coordinators[0]
        for request in self.job.jobs.describe(JOB).requests:
            if request.properties.is_savepoint and request.status is RequestStatus.COMPLETED:
                future = future_of(reader, request.request_key)
                for stream in private_states(future.result(0).operator_states.values()):
                    assert isinstance(stream, FileStateHandle)
                    assert self.job.storage.exists(stream.uri)

    def _rows(self) -> tuple[Any, ...]:
        return self.job.jobs.describe(JOB).checkpoints

    def _count(self, future: Any) -> None:
        self.calls[future.request_key] += 1

    def _try(self, call: Any) -> None:
        try:
            call()
        except StateCheckError:
            return


SHORT = settings(max_examples=6, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))

TestAligned = AlignedMachine.TestCase
TestAligned.settings = SHORT


class LongAlignedMachine(AlignedMachine):
    """The same machine for a longer run."""


TestAlignedAtLength = pytest.mark.soak(LongAlignedMachine.TestCase)
TestAlignedAtLength.settings = settings(SHORT, max_examples=50)
