"""Random calls against a simple model: no live segment loses its bytes, and nothing unneeded stays."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, SegmentFileStateHandle
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.file_merging.manager import FileMergingType
from airflow_provider_statecheck.storage.file_merging.stream import FileMergingCheckpointStateOutputStream
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.file_merging.driving import Driver

SUBTASKS = 2
indexes = st.integers(0, SUBTASKS - 1)
scopes = st.sampled_from(CheckpointedStateScope)
modes = st.sampled_from([FaultMode.ERROR, FaultMode.REPLY_LOST])


@dataclass(slots=True)
class Segment:
    handle: SegmentFileStateHandle
    data: bytes
    index: int
    uploaded: int
    last_used: int
    is_durable: bool = False


class MergingMachine(RuleBasedStateMachine):
    """The model is a list of live segments."""

    base: str
    merging_type: FileMergingType
    seen: Counter[str]
    """What happened over all examples: a run in which little happened would show little."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = FaultPlan()
        storage = CheckpointStorage.open(f"{self.base}/{uuid.uuid4().hex}")
        through = faulty_storage(storage, self.plan)
        self.driver = Driver.over(
            storage, through=through, subtasks=SUBTASKS, buffer=5, max_file_size=40, merging_type=self.merging_type
        )
        self.live: list[Segment] = []
        self.streams: list[tuple[FileMergingCheckpointStateOutputStream, int, int, bytes]] = []
        self.checkpoint = 1
        self.count = 0

    @rule(index=indexes, scope=scopes, size=st.integers(0, 30), age=st.integers(0, 2))
    def open(self, index: int, scope: CheckpointedStateScope, size: int, age: int) -> None:
        self.count += 1
        data = b"%d-" % self.count * size
        checkpoint = max(1, self.checkpoint - age)
        stream = self.driver.stream(checkpoint, index, scope)
        try:
            stream.write(data[:7])
            stream.write(data[7:])
        except StorageError:
            stream.close()
        else:
            self.streams.append((stream, index, checkpoint, data))

    @rule(index=indexes, scope=scopes, size=st.integers(1, 30))
    def save(self, index: int, scope: CheckpointedStateScope, size: int) -> None:
        self.open(index, scope, size, 0)
        if self.streams:
            self._book(*self.streams.pop())
        self.make_durable(index)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def book(self, data: Any) -> None:
        self._book(*self.streams.pop(data.draw(st.integers(0, len(self.streams) - 1))))

    def _book(
        self, stream: FileMergingCheckpointStateOutputStream, index: int, checkpoint: int, written: bytes
    ) -> None:
        try:
            handle = stream.close_and_get_handle()
        except StorageError:
            return
        assert (handle is None) == (not written)
        if handle is not None:
            self.live.append(Segment(handle, written, index, checkpoint, checkpoint))

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        self.streams.pop(data.draw(st.integers(0, len(self.streams) - 1)))[0].close()

    @rule(index=indexes)
    def make_durable(self, index: int) -> None:
        try:
            self.driver.durable(self.checkpoint, index)
        except StorageError:
            return
        for segment in self.live:
            named = segment.uploaded <= self.checkpoint <= segment.last_used
            segment.is_durable = segment.is_durable or (segment.index == index and named)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def reuse(self, data: Any) -> None:
        self.checkpoint += data.draw(st.integers(0, 1))
        segment = data.draw(st.sampled_from(self.live))
        if self.driver.manager.could_reuse_previous_state_handle(segment.handle):
            self.driver.manager.reuse_previous_state_handles(self.checkpoint, [segment.handle])
            self.seen["reused"] += segment.last_used < self.checkpoint
            segment.last_used = max(segment.last_used, self.checkpoint)

    @rule()
    def next_checkpoint(self) -> None:
        self.checkpoint += 1

    @rule(index=indexes, age=st.integers(0, 1))
    def abort(self, index: int, age: int) -> None:
        aborted = self.checkpoint - age
        self.driver.aborted(aborted, index)
        before = len(self.live)
        self.live = [s for s in self.live if s.index != index or s.uploaded != aborted or s.last_used > aborted]
        self.seen["aborted"] += before - len(self.live)

    @rule(index=indexes, age=st.integers(0, 3))
    def subsume(self, index: int, age: int) -> None:
        subsumed = self.checkpoint - age
        self.driver.subsumed(subsumed, index)
        before = len(self.live)
        self.live = [s for s in self.live if s.index != index or s.last_used > subsumed]
        self.seen["subsumed"] += before - len(self.live)

    @rule(mode=modes, ahead=st.integers(1, 3))
    def fail_soon(self, mode: FaultMode, ahead: int) -> None:
        self.plan.mode, self.plan.point = mode, len(self.plan.calls) + ahead

    @invariant()
    def no_durable_segment_loses_its_bytes(self) -> None:
        for segment in self.live:
            if segment.is_durable:
                assert self.driver.read(segment.handle) == segment.data
                self.seen["read"] += 1

    @invariant()
    def the_books_have_exactly_the_live_segments(self) -> None:
        found = self.driver.manager.statistics
        assert found.logical_file_count == len(self.live)
        assert found.logical_file_bytes == sum(len(s.data) for s in self.live)
        assert found.physical_file_bytes >= found.logical_file_bytes

    def teardown(self) -> None:
        self.plan.point = None
        for stream, *_ in self.streams:
            stream.close()
        for _ in range(2):  # the second one for a delete that failed
            for index in range(SUBTASKS):
                self.driver.subsumed(self.checkpoint, index)
        self.driver.manager.close()
        assert self.driver.files() == set()


@pytest.mark.parametrize("merging_type", FileMergingType)
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_random_calls_lose_no_live_segment_and_leave_nothing(
    request: pytest.FixtureRequest, kind: str, merging_type: FileMergingType
) -> None:
    storage: CheckpointStorage = request.getfixturevalue(kind)
    seen: Counter[str] = Counter()
    members = {"base": storage.base_uri, "merging_type": merging_type, "seen": seen}
    machine = type("Machine", (MergingMachine,), members)
    options = settings(
        max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(machine, settings=options)
    assert seen["read"] > 1000
    assert min(seen["reused"], seen["aborted"], seen["subsumed"]) > 0
