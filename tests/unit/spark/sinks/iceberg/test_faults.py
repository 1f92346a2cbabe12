"""The driver dies before or after any call on the catalog, in any history: the table is that of an undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.iceberg import iceberg_ledger
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import OpenTable
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from tests.unit.spark.sinks.iceberg.tables import Attempt, Committables, append_as_somebody_else, create_table, seen_in

FAULTS = [FaultMode.ERROR, FaultMode.REPLY_LOST]
OF_OTHERS = 1000


class DiedError(BaseException):
    """The end of a process: nothing in it is done after that."""


@contextmanager
def planned(plan: FaultPlan) -> Iterator[None]:
    """Count the calls of a sink on its catalog, and let the process end at one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenTable, "load", _counted("load", OpenTable.load, plan))
        patch.setattr(iceberg_ledger, "commit_change", _counted("commit", iceberg_ledger.commit_change, plan))
        yield


def _counted(name: str, call: Callable[..., Any], plan: FaultPlan) -> Callable[..., Any]:
    return lambda *args: plan.carry_out(name, lambda: call(*args), DiedError)  # type: ignore[arg-type]


@dataclass
class Checkpoint:
    id: int
    epoch: int
    key: int
    """The newest of the input that is done."""
    open: dict[int, Committables]


@dataclass
class Job:
    """Its input are the keys from 1; each checkpoint is one of them, and keeps what is not known to be committed."""

    folder: Path
    epoch: int = 0
    generation: int = 1
    next_id: int = 1
    completed: list[Checkpoint] = field(default_factory=list)

    def run(self, until: int) -> None:
        """Run attempts until one succeeds; where the sink refuses what is restored, start over as it says."""
        while True:
            try:
                self.attempt(until)
            except CorruptStateError:
                self.start_over()
            except DiedError:
                continue
            else:
                return

    def attempt(self, until: int) -> None:
        self.epoch += 1
        last = self.completed[-1] if self.completed else None
        restored: dict[str, Any] = {"restored": last.id, "restored_epoch": last.epoch} if last else {}
        attempt = Attempt(self.folder, self.epoch, generation=self.generation, **restored)
        try:
            attempt.open()
            self._go_on(attempt, last, until)
            attempt.finish()
        except DiedError:
            attempt.die()
            raise

    def fall_back(self) -> None:
        """Lose the newest checkpoint for good."""
        self.completed.pop()
        if not self.completed:
            self.generation += 1

    def start_over(self) -> None:
        self.completed.clear()
        self.generation += 1

    def _go_on(self, attempt: Attempt, last: Checkpoint | None, until: int) -> None:
        waiting = dict(last.open) if last else {}
        self._commit(attempt, last, waiting)
        for key in range(last.key + 1 if last else 1, until + 1):
            written = [*attempt.write(key), *attempt.write(subtask=1)]
            waiting = {**waiting, self.next_id: written}
            last = Checkpoint(self.next_id, self.epoch, key, dict(waiting))
            self.next_id += 1
            self.completed.append(last)
            self._commit(attempt, last, waiting)
            waiting = {}

    def _commit(self, attempt: Attempt, last: Checkpoint | None, waiting: dict[int, Committables]) -> None:
        for checkpoint_id in sorted(waiting):
            attempt.commit(checkpoint_id, waiting[checkpoint_id])


def going_on(job: Job) -> int:
    job.run(until=2)
    return 2


def falling_back(job: Job) -> int:
    job.run(until=2)
    job.fall_back()
    job.run(until=2)
    return 2


def starting_over(job: Job) -> int:
    job.run(until=1)
    job.start_over()
    job.run(until=1)
    return 1


def new_job(folder: Path) -> Job:
    create_table(folder)
    append_as_somebody_else(folder, OF_OTHERS)
    return Job(folder)


@pytest.mark.parametrize("mode", FAULTS)
@pytest.mark.parametrize("history", [going_on, falling_back, starting_over])
def test_a_driver_that_dies_at_any_call_changes_nothing_in_the_end(tmp_path, history, mode):
    undisturbed = FaultPlan()
    with planned(undisturbed):
        history(new_job(tmp_path / "undisturbed"))
    assert undisturbed.calls.count("commit") > 2
    for point, name in enumerate(undisturbed.calls, 1):
        if mode is FaultMode.REPLY_LOST and name == "load":
            continue  # whether it or only its reply is lost is the same
        job = new_job(tmp_path / str(point))
        with planned(FaultPlan(point, mode)):
            last = history(job)
        assert seen_in(job.folder) == [*range(1, last + 1), OF_OTHERS], f"{mode} at call {point}, {name}"


steps = st.one_of(
    st.tuples(st.integers(1, 3), st.integers(1, 12), st.sampled_from(FAULTS)),
    st.just("fall back"),
    st.just("start over"),
)


@settings(max_examples=12, deadline=None)
@given(history=st.lists(steps, max_size=5))
def test_after_any_history_the_table_is_that_of_the_last_success(tmp_path_factory, history):
    job = new_job(tmp_path_factory.mktemp("history") / "table")
    for step in history:
        if step == "start over":
            job.start_over()
        elif step == "fall back":
            if job.completed:
                job.fall_back()
        else:
            _try(job, *step)
            # Whatever happened, a reader sees the output up to some checkpoint, and nothing twice.
            seen = seen_in(job.folder)
            assert seen == [*range(1, len(seen)), OF_OTHERS]
    job.run(until=2)
    assert seen_in(job.folder) == [*range(1, job.completed[-1].key + 1), OF_OTHERS]


def _try(job: Job, until: int, point: int, mode: FaultMode) -> None:
    try:
        with planned(FaultPlan(point, mode)):
            job.attempt(until)
    except CorruptStateError:
        job.start_over()
    except DiedError:
        return
