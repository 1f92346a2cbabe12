"""
Faults and superseded attempts at every step of a sink.

:class:`SinkFaults` counts the steps of a job and runs it again once for each step: an attempt ends there, loses a
    reply, or
waits while a newer attempt goes ahead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError, StateCheckError, StorageError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once import committer
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import CommitFiles
from airflow_provider_statecheck.spark.connectors.sink import Sink
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, InProcessPlan, Killed
from airflow_provider_statecheck.testing.sink_attempts import POSITIONS, SinkAttempt, SinkJob

# Before a step, the destination is as it was after the previous step, where KILL_AFTER ends an attempt.
_KILL = pytest.param(FaultMode.KILL, marks=pytest.mark.soak)
Step = tuple[Any, str]
"""A class or module, and the name of its function."""
LOG_STEPS: tuple[Step, ...] = (
    (CommitFiles, "claim"),
    (CommitFiles, "write"),
    (CommitFiles, "write_publication"),
    (CommitFiles, "prune"),
    (CommitFiles, "forget_attempts_before"),
)
"""Steps of the commit log of a :class:`~airflow_provider_statecheck.TwoPhaseCommitSink`."""


def transaction_steps(sink: type[Any]) -> tuple[Step, ...]:
    """Return the steps of a subclass of :class:`~airflow_provider_statecheck.TwoPhaseCommitSink`."""
    names = ("begin_transaction", "write", "pre_commit", "commit_transaction", "abort_transaction")
    return tuple((sink, name) for name in names)


@dataclass(slots=True)
class StepPlan(InProcessPlan):
    """
    Plan that ends an attempt at a step, or lets others go ahead of it.

    :param meanwhile: Function that runs before the step, instead of a fault.
    """

    meanwhile: Callable[[], None] | None = None

    @override
    def carry_out(self, name: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        if self.meanwhile is None:
            return InProcessPlan.carry_out(self, name, call, error)
        self.calls.append(name)
        if len(self.calls) == self.point:
            meanwhile, self.meanwhile = self.meanwhile, None
            self.point = None
            meanwhile()
        return call()


def counted(function: Any, name: str, plan: FaultPlan) -> Any:
    """Return a function as a step of a plan; an injected error is a ``StorageError``."""

    def step(*args: Any, **kwargs: Any) -> Any:
        return plan.carry_out(name, lambda: function(*args, **kwargs), StorageError)

    return step


class SinkFaults:
    """The sink under test, and what a fault at any step of it must not change."""

    # A killed task leaves its temporary directory to the interpreter.
    pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

    steps: ClassVar[Sequence[Step]] = ()
    """Functions at which attempts end: those that write to the destination, in tasks and on the driver."""
    zombie_steps: ClassVar[Sequence[Step] | None] = None
    """Steps at which a superseded attempt may wait because it holds no lock; by default all of :attr:`steps`."""
    can_retract: ClassVar[bool] = True
    """Whether the sink replaces output; if not, the suite requires that it refuses to."""
    other_schema: ClassVar[Any] = None
    """Arrow schema that the destination refuses after output of :data:`SCHEMA`; ``None`` if it accepts any."""

    def new_target(self, folder: Path) -> Any:
        """Return an empty target for a sink; by default the path of a missing directory."""
        return str(folder / "target")

    def relative_target(self, target: Any) -> Any:
        """Return an absolute local path relative to its folder, and ``None`` for any other target."""
        return Path(target).name if isinstance(target, str) and Path(target).is_absolute() else None

    def sink(self, target: Any, **settings: Any) -> Sink:
        """
        Return a new sink for a target.

        :param settings: Nothing, or ``on_earlier_output``.
        """
        raise NotImplementedError

    def read(self, target: Any) -> Sequence[int]:
        """Return the keys that a reader of the target sees, in any order; empty for a target without output."""
        raise NotImplementedError

    def leftovers(self, target: Any) -> Sequence[str]:
        """Return the names of staged output; the suite requires none after a success."""
        return ()

    def versions(self, target: Any) -> Sequence[Sequence[int]]:
        """Return the keys that readers of earlier versions of the target see; empty for a target without versions."""
        return ()

    # --- Utilities

    @pytest.fixture
    def target(self, tmp_path: Path) -> Any:
        return self.new_target(tmp_path)

    @pytest.fixture(autouse=True)
    def _without_pauses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(committer, "pause", lambda _: None)
        monkeypatch.setattr(file_operations, "PARALLEL_CALLS", 1)  # so that a number is always the same call

    def attempt(
        self, target: Any, epoch: int, restored: int | None = None, generation: int = 1, **more: Any
    ) -> SinkAttempt:
        """Return an attempt that has not opened its sink."""
        settings = {name: more.pop(name) for name in ("on_earlier_output",) if name in more}
        return SinkAttempt(self.sink(target, **settings), epoch, restored=restored, generation=generation, **more)

    def opened(self, target: Any, *args: Any, **more: Any) -> SinkAttempt:
        """Return an attempt that has opened its sink."""
        return self.attempt(target, *args, **more).open()

    def job(self, target: Any) -> SinkJob:
        """Return a job that writes to a target."""
        return SinkJob(lambda epoch, **more: self.attempt(target, epoch, **more))

    def seen(self, target: Any) -> list[int]:
        """Return the keys that a reader sees, in order."""
        return sorted(self.read(target))

    @contextmanager
    def planned(self, plan: StepPlan, steps: Sequence[Step] | None = None) -> Iterator[StepPlan]:
        """Count the steps and let one fail."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in self.steps if steps is None else steps:
                patch.setattr(owner, name, counted(getattr(owner, name), name, plan))
            yield plan

    def count(self, folder: Path, run: Callable[[Any], Any], steps: Sequence[Step] | None = None) -> int:
        """Return the number of steps of a run without faults."""
        folder.mkdir()
        with self.planned(StepPlan(), steps) as plan:
            run(self.new_target(folder))
        assert plan.calls, "the sink counts no steps; name them in `steps`"
        return len(plan.calls)

    def _retract(self, target: Any, point: int | None, commits: bool) -> tuple[int, str]:
        """
        Fall back behind checkpoint 2 while a newer attempt restores that checkpoint.

        :return: Number of steps, and whether the newer attempt restored the checkpoint or was refused.
        """
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        newer = ["absent"]

        def overtake() -> None:
            newer[0] = "refused"
            with suppress(CorruptStateError):
                self._add_and_finish(self.opened(target, 3, 2, restored_epoch=1), 4)
                newer[0] = "restored"

        steps = self.steps if self.zombie_steps is None else self.zombie_steps
        with self.planned(StepPlan(point, meanwhile=overtake), steps) as plan, suppress(Exception):
            attempt = self.opened(target, 2, 1, restored_epoch=1)
            if commits:
                attempt.add(3, 30)
            attempt.finish()
        return len(plan.calls), newer[0]

    @staticmethod
    def _add_and_finish(attempt: SinkAttempt, key: int) -> None:
        attempt.add(key, key)
        attempt.finish()

    def _require_retraction(self) -> None:
        if not self.can_retract:
            pytest.skip("the sink cannot retract output")

    # --- Faults

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST, FaultMode.KILL_AFTER, _KILL])
    def test_fault_at_any_step_leaves_the_output_of_an_undisturbed_run(self, tmp_path: Path, mode: FaultMode) -> None:
        count = self.count(tmp_path / "count", lambda target: self.job(target).run())
        for point in range(1, count + 1):
            target = self.new_target(_made(tmp_path / str(point)))
            job = self.job(target)
            with self.planned(StepPlan(point, mode)), suppress(Killed, StateCheckError):
                job.attempt()
            job.run()
            assert self.seen(target) == job.expected(), f"a fault at step {point} ({mode})"
            assert job.generation == 1, f"a fault at step {point} ({mode}) prevented the restore"
            assert not self.leftovers(target)

    @pytest.mark.parametrize("mode", [FaultMode.REPLY_LOST, FaultMode.KILL_AFTER, _KILL])
    def test_fault_at_any_step_of_a_fresh_start_leaves_the_output_of_the_fresh_start(
        self, tmp_path: Path, mode: FaultMode
    ) -> None:
        self._require_retraction()

        def two_generations(target: Any, plan: StepPlan) -> SinkJob:
            job = self.job(target)
            job.run()
            job.start_over()
            with self.planned(plan), suppress(Killed, StateCheckError):
                job.attempt()
            return job

        plan = StepPlan()
        two_generations(self.new_target(_made(tmp_path / "count")), plan)
        for point in range(1, len(plan.calls) + 1):
            target = self.new_target(_made(tmp_path / str(point)))
            job = two_generations(target, StepPlan(point, mode))
            job.run()
            assert self.seen(target) == job.expected(), f"a fault at step {point} ({mode})"

    @pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 40))])
    def test_any_history_of_faults_fallbacks_and_fresh_starts_leaves_the_output_of_the_last_run(
        self, tmp_path: Path, seed: int
    ) -> None:
        self._require_retraction()
        dice = random.Random(seed)  # noqa: S311 - a reproducible history
        target = self.new_target(tmp_path)
        job = self.job(target)
        for _ in range(12):
            plan = StepPlan(dice.randint(1, 12), dice.choice(list(FaultMode)))
            with self.planned(plan), suppress(Killed, StateCheckError):
                job.attempt(dice.randint(1, POSITIONS))
            if dice.random() < 0.3:
                job.fall_back(dice.randint(1, 2))
            elif dice.random() < 0.1:
                job.start_over()
        job.run()
        assert self.seen(target) == job.expected()
        for keys in self.versions(target):
            first = min(keys, default=1)
            assert sorted(keys) == list(range(first, first + len(keys))), "a version mixes or repeats output"

    # --- Superseded attempts

    @pytest.mark.parametrize("is_fresh", [False, True])
    def test_superseded_attempt_that_goes_on_at_any_step_changes_nothing(self, tmp_path: Path, is_fresh: bool) -> None:
        if is_fresh:
            self._require_retraction()
        steps = self.steps if self.zombie_steps is None else self.zombie_steps
        count = self.count(tmp_path / "count", lambda target: self.job(target).run(), steps)
        for point in range(1, count + 1):
            target = self.new_target(_made(tmp_path / str(point)))
            zombie, newer = self.job(target), self.job(target)

            def overtake(zombie: SinkJob = zombie, newer: SinkJob = newer) -> None:
                newer.epoch, newer.next_id = zombie.epoch, zombie.next_id
                newer.completed = [replace(each, is_confirmed=False) for each in zombie.completed]
                if is_fresh:
                    newer.start_over()
                newer.run()

            # Any error may end it, also one of the store.
            with self.planned(StepPlan(point, meanwhile=overtake), steps), suppress(Exception):
                zombie.attempt()
            newer.run()
            assert self.seen(target) == newer.expected(), f"an attempt that goes on at step {point}"

    @pytest.mark.parametrize("commits", [True, False])
    def test_superseded_attempt_that_retracts_at_any_step_changes_nothing(self, tmp_path: Path, commits: bool) -> None:
        self._require_retraction()
        count, _ = self._retract(self.new_target(_made(tmp_path / "count")), None, commits)
        assert count
        for point in range(1, count + 1):
            target = self.new_target(_made(tmp_path / str(point)))
            _, newer = self._retract(target, point, commits)
            expected = [1, 2, 4] if newer == "restored" else [1, 5, *([30] if commits else [])]
            if newer == "refused":
                taken = {"restored": 3, "restored_epoch": 2} if commits else {"restored": 1, "restored_epoch": 1}
                self._add_and_finish(self.opened(target, 4, **taken), 5)
            assert self.seen(target) == expected, f"an attempt that goes on at step {point}"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
