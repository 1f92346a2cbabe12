"""A try may die before or after any call to the coordinator or the sink: the output is there once in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnClear
from airflow_provider_statecheck.checkpoint.transitions import close_abandoned
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CoordinatorUnavailableError,
    IncompatibleCheckpointError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.executor.node_run import StateCapture
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.sink_commits import SinkCommits
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import StageRun
from airflow_provider_statecheck.spark.stages.stage_state import RestoredStageState
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_owner, make_registration
from tests.unit.spark.stages.loop_without_spark import (
    LoopWithoutSpark,
    RecordedSink,
    Splits,
    numbers_in,
    open_sink,
    staged,
)
from tests.unit.written_stage import JOB, WrittenStage

INCREMENTS, EMPTY = 3, 2


class Killed(BaseException):
    """The driver is gone."""


@dataclass
class Faults:
    """Counts calls; at one of them the driver dies, or only its reply is lost."""

    at: Mapping[int, str] = field(default_factory=dict)
    calls: int = 0
    is_dead: bool = False

    def around(self, call: Callable[[], Any]) -> Any:
        self.require_alive()
        self.calls += 1
        fault = self.at.get(self.calls, "")
        if fault.endswith("before"):
            self._strike(fault)
        result = call()
        if fault.endswith("after"):
            self._strike(fault)
        return result

    def require_alive(self) -> None:
        if self.is_dead:
            raise Killed

    def _strike(self, fault: str) -> None:
        if fault.startswith("lost"):
            raise CoordinatorUnavailableError("planned")
        self.is_dead = True
        raise Killed


class FaultyGateway:
    def __init__(self, gateway: Any, faults: Faults) -> None:
        self._gateway = gateway
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._gateway, name)
        return lambda *arguments: self._faults.around(lambda: method(*arguments))


class FaultySink(ParquetSink):
    def __init__(self, target: Path, faults: Faults) -> None:
        super().__init__(str(target))
        self._faults = faults

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        self._faults.around(lambda: super(FaultySink, self).commit(checkpoint_id, committables))


@dataclass
class Tries:
    """Try after try of one stage that gives the number of each of its increments but one."""

    folder: Path

    def __post_init__(self) -> None:
        self.written = WrittenStage(CheckpointStorage.open(f"file://{self.folder}/checkpoints"))
        self.target = self.folder / "output"

    def run(self, faults: Faults) -> None:
        """Run one try as ``StageRun`` does."""
        registration = make_registration(job_name=JOB, storage_base=self.written.storage.base_uri)
        gateway: Any = FaultyGateway(self.written.coordinator, faults)
        attempt = StageAttempt(gateway, self.written.storage, registration)
        restored = RestoredStageState(attempt, attempt.restore())
        sink = FaultySink(self.target, faults)
        open_sink(sink, attempt, restored)
        commits = SinkCommits(sink, attempt, restored.open_commits)
        if restored.checkpoint_id is not None and commits.has_open:
            commits.commit(restored.checkpoint_id)
        finished = (restored.source or {}).get("finished", 0)
        loop = LoopWithoutSpark(attempt, sink, job=self._job(sink, attempt, faults), finished=finished)
        if finished < INCREMENTS:
            loop.run(INCREMENTS, commits)
        commits.end()
        sink.close(True)
        attempt.finish(AttemptStatus.FINISHED)

    def until_success(self, faults: Faults) -> list[int]:
        """Run tries, of which only the first has faults, and return what a reader sees."""
        for each in (faults, Faults(), Faults()):
            try:
                self.run(each)
            except (Killed, CoordinatorError):
                continue
            return numbers_in(self.target)
        raise AssertionError("a try without faults failed")

    def _job(self, sink: ParquetSink, attempt: StageAttempt, faults: Faults) -> Any:
        def job(increment: int, _: StateCapture) -> Sequence[TaskReport]:
            faults.require_alive()
            if increment == EMPTY:
                return []
            return [TaskReport(vertex=0, subtask=0, committables=staged(sink, attempt, increment), rows=1)]

        return job


@pytest.mark.parametrize("fault", ["killed before", "killed after", "lost before", "lost after"])
def test_output_is_there_once_wherever_a_try_ends(tmp_path: Path, fault: str) -> None:
    undisturbed = Faults()
    Tries(tmp_path / "undisturbed").run(undisturbed)
    expected = [number for number in range(1, INCREMENTS + 1) if number != EMPTY]
    found = {
        call: Tries(tmp_path / str(call)).until_success(Faults({call: fault}))
        for call in range(1, undisturbed.calls + 1)
    }
    assert found == dict.fromkeys(found, expected)
    assert len(found) > 4 * INCREMENTS


@dataclass
class EmptySource:
    """A source without rows, which calls a function while it lists."""

    while_listing: Callable[[], None]

    def open(self, *_: object, **__: object) -> Splits:
        self.while_listing()
        return Splits(0)


@pytest.mark.parametrize(("is_fenced", "left"), [(False, []), (True, [1, 3])], ids=["in force", "fenced"])
def test_a_fresh_attempt_without_rows_retracts_earlier_output_only_if_it_is_in_force(
    tmp_path: Path, is_fenced: bool, left: list[int]
) -> None:
    tries = Tries(tmp_path)
    tries.run(Faults())
    attempt = tries.written.attempt(on_clear=OnClear.RESTART, owner=make_owner(clear_marker="cleared"))

    def fence() -> None:
        assert tries.written.store is not None
        with tries.written.store.transaction(job_id_of(JOB)) as tx:
            record = tx.attempt(attempt.grant.attempt.operator_id, attempt.grant.attempt.epoch)
            assert record is not None
            close_abandoned(tx, record)

    source: Any = EmptySource(fence if is_fenced else lambda: None)
    run = StageRun(None, attempt, Stage("aggregate").source(source).sink(ParquetSink(str(tries.target))))  # type: ignore[arg-type]
    with pytest.raises(StaleAttemptError) if is_fenced else nullcontext():
        run.run()
    assert numbers_in(tries.target) == left


@pytest.mark.parametrize(("is_open", "drops"), [(True, False), (True, True), (False, False)])
def test_sink_with_an_open_commit_is_missed_unless_its_output_may_be_dropped(
    tmp_path: Path, is_open: bool, drops: bool
) -> None:
    written = WrittenStage(CheckpointStorage.open(f"file://{tmp_path}/checkpoints"))
    first = written.attempt()
    first.restore()
    with pytest.raises(StorageError) if is_open else nullcontext():
        LoopWithoutSpark(first, RecordedSink(error=StorageError("away") if is_open else None)).run(1)
    first.finish(AttemptStatus.FAILED)
    stage: Any = Stage("aggregate").source(EmptySource(lambda: None)).map(lambda row: row, output="number bigint")
    run = StageRun(None, written.attempt(), stage, DriverSettings(allow_non_restored_state=drops))  # type: ignore[arg-type]
    is_missed = is_open and not drops
    with pytest.raises(IncompatibleCheckpointError, match="add the sink until") if is_missed else nullcontext():
        run.run()
    assert written.attempt().grant.effects.commits == ((1,) if is_missed else ())
