"""
Contract of sinks as a test suite, for the sinks of this package and for your own.

Subclass :class:`SinkContract`, create the sink and read its output::

    class TestMySink(SinkContract):
        steps = (*LOG_STEPS, *transaction_steps(MySink))

        def sink(self, target, **settings):
            return MySink(target, **settings)

        def read(self, target):
            return [row.key for row in rows_of(target)]

The suite runs attempts in this process, without Spark. It ends them before and after each of the steps, loses replies,
lets superseded attempts go on, falls back to older checkpoints and starts over. Afterwards, readers have to see the
output of an undisturbed run.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa  # noqa: TID253 - only tests import this module
import pytest
from typing_extensions import override

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    StaleAttemptError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.commits import committer
from airflow_provider_statecheck.spark.sinks.commits.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.sink import Sink, SinkContext, SinkTaskContext, SinkWriter
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string())])
"""Arrow schema of the output of the suite."""
Step = tuple[Any, str]
"""A class or module, and the name of its function."""
Committables = list[dict[str, Any]]
LOG_STEPS: tuple[Step, ...] = (
    (CommitFiles, "claim"),
    (CommitFiles, "write"),
    (CommitFiles, "write_publication"),
    (CommitFiles, "prune"),
    (CommitFiles, "forget_attempts_before"),
)
"""Steps of the commit log of a :class:`~airflow_provider_statecheck.TwoPhaseCommitSink`."""
_JOB, _UID = "balances", "stage/sink"
_POSITIONS = 3


def transaction_steps(sink: type[Any]) -> tuple[Step, ...]:
    """Return the steps of a subclass of :class:`~airflow_provider_statecheck.TwoPhaseCommitSink`."""
    names = ("begin_transaction", "write", "pre_commit", "commit_transaction", "abort_transaction")
    return tuple((sink, name) for name in names)


class Killed(BaseException):
    """The end of the process of an attempt, within the process of the test."""


@dataclass(slots=True)
class StepPlan(FaultPlan):
    """
    Plan that ends an attempt at a step, or lets others go ahead of it.

    :param meanwhile: Function that runs before the step, instead of a fault.
    """

    meanwhile: Callable[[], None] | None = None
    is_dead: bool = False
    """Whether the attempt has ended: no step has an effect any more."""

    @override
    def carry_out(self, name: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        if self.is_dead:
            raise Killed(name)
        if self.meanwhile is None:
            return FaultPlan.carry_out(self, name, call, error)
        self.calls.append(name)
        if len(self.calls) == self.point:
            meanwhile, self.meanwhile = self.meanwhile, None
            self.point = None
            meanwhile()
        return call()

    @override
    def kill(self) -> None:
        self.is_dead = True
        raise Killed


class SinkAttempt:
    """
    One attempt that owns a sink, until it is dropped like a process that dies.

    :param sink: New sink.
    :param epoch: Epoch of the attempt.
    :param restored: Restored checkpoint, ``None`` for a fresh start.
    :param more: Further fields of the context.
    """

    def __init__(
        self,
        sink: Sink,
        epoch: int,
        *,
        restored: int | None = None,
        generation: int = 1,
        job: str = _JOB,
        schema: pa.Schema | None = SCHEMA,
        **more: Any,
    ) -> None:
        self.sink = sink
        self.epoch = epoch
        self.context = SinkContext(
            **{
                "job_id": job_id_of(job),
                "job_name": job,
                "uid": _UID,
                "operator_id": operator_id_of("stage"),
                "epoch": epoch,
                "generation": generation,
                "restored_checkpoint_id": restored,
                "is_fresh": restored is None,
                "schema": schema,
                **more,
            }
        )

    def open(self) -> Self:
        """Open the sink."""
        self.sink.open(self.context)
        return self

    def task(self, subtask: int = 0, schema: pa.Schema = SCHEMA) -> SinkWriter:
        """Return the writer of a task."""
        context = SinkTaskContext(subtask=subtask, epoch=self.epoch, task_id=new_key(), schema=schema)
        # As Spark sends the sink to a task.
        return pickle.loads(pickle.dumps(self.sink)).writer(context)  # type: ignore[no-any-return]  # noqa: S301

    def write_table(self, table: pa.Table, subtask: int = 0) -> Committables:
        """Write a table in a task, and return its committables as they return from a checkpoint."""
        writer = self.task(subtask, table.schema)
        try:
            writer.write(table)
            return list(json.loads(json.dumps(writer.prepare_commit())))
        except Exception:
            writer.abort()
            raise

    def write(self, *keys: int, subtask: int = 0, name: str = "name", schema: pa.Schema = SCHEMA) -> Committables:
        """Write rows in a task, and return its committables as they return from a checkpoint."""
        return self.write_table(table_of(keys, schema, name), subtask)

    def commit(self, checkpoint_id: int, committables: Committables) -> None:
        """Commit a checkpoint."""
        self.sink.commit(checkpoint_id, committables)

    def add(self, checkpoint_id: int, *keys: int, name: str = "name") -> Committables:
        """Write rows and commit them."""
        committables = self.write(*keys, name=name)
        self.commit(checkpoint_id, committables)
        return committables

    def finish(self) -> None:
        """Close the sink after a success."""
        self.sink.close(succeeded=True)


def table_of(keys: Sequence[int], schema: pa.Schema = SCHEMA, name: str = "name") -> pa.Table:
    """Return rows with the keys; columns other than ``key`` and ``name`` are null."""
    return pa.Table.from_pylist([{"key": key, "name": f"{name} {key}"} for key in keys], schema)


@dataclass
class SinkJob:
    """
    A job whose attempts may end at any step, and its checkpoints.

    Its input are the positions from 1. Each checkpoint adds the row of one position, written by the first of two tasks.

    :param new_attempt: Function that returns an unopened attempt for an epoch, a restored checkpoint and a generation.
    """

    new_attempt: Callable[..., SinkAttempt]
    epoch: int = 0
    generation: int = 1
    next_id: int = 1
    completed: list[_Checkpoint] = field(default_factory=list)

    def expected(self) -> list[int]:
        """Return the keys of a successful run of this generation."""
        return [self._key(position) for position in range(1, _POSITIONS + 1)]

    def run(self) -> None:
        """Run attempts until one succeeds; start over if the sink refuses the restored checkpoint."""
        for _ in range(5 * _POSITIONS):
            try:
                self.attempt()
            except (CorruptStateError, CoordinatorError):
                self.start_over()
            except StorageError:
                continue
            else:
                return
        raise AssertionError("no attempt succeeds")

    def attempt(self, until: int = _POSITIONS) -> None:
        """Run one attempt, which may raise what a fault raises."""
        self.epoch += 1
        last = self.completed[-1] if self.completed else None
        restored = {"restored": last.id, "restored_epoch": last.epoch} if last else {}
        attempt = self.new_attempt(self.epoch, generation=self.generation, **restored).open()
        for checkpoint in self.completed:
            self._commit(attempt, checkpoint)
        for position in range((last.position if last else 0) + 1, until + 1):
            self._take(attempt, position)
        if until == _POSITIONS:
            attempt.finish()

    def fall_back(self, count: int) -> None:
        """Lose the newest checkpoints."""
        del self.completed[max(0, len(self.completed) - count) :]
        if not self.completed:
            self.start_over()

    def start_over(self) -> None:
        """Begin a new generation."""
        self.completed.clear()
        self.generation += 1

    def _take(self, attempt: SinkAttempt, position: int) -> None:
        written = [*attempt.write(self._key(position)), *attempt.write(subtask=1)]
        checkpoint = _Checkpoint(self.next_id, self.epoch, position, written)
        self.next_id += 1
        self.completed.append(checkpoint)
        self._commit(attempt, checkpoint)

    def _commit(self, attempt: SinkAttempt, checkpoint: _Checkpoint) -> None:
        if not checkpoint.is_confirmed:
            attempt.commit(checkpoint.id, checkpoint.committables)
            checkpoint.is_confirmed = True

    def _key(self, position: int) -> int:
        return self.generation * 1000 + position


@dataclass
class _Checkpoint:
    id: int
    epoch: int
    position: int
    committables: Committables
    is_confirmed: bool = False


class SinkContract:
    """Contract of every sink."""

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
                patch.setattr(owner, name, _counted(getattr(owner, name), name, plan))
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

    @pytest.mark.parametrize("mode", list(FaultMode))
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

    @pytest.mark.parametrize("mode", [FaultMode.KILL, FaultMode.KILL_AFTER, FaultMode.REPLY_LOST])
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
                job.attempt(dice.randint(1, _POSITIONS))
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

    def test_attempt_of_a_lower_epoch_cannot_open(self, target: Any) -> None:
        self.opened(target, 2)
        with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
            self.opened(target, 1)

    def test_superseded_attempt_cannot_commit_or_finish(self, target: Any) -> None:
        zombie = self.opened(target, 1)
        zombie.add(1, 1)
        late = zombie.write(2)
        self.opened(target, 2, 1).add(2, 3)
        with pytest.raises(StaleAttemptError):
            zombie.commit(2, late)
        with pytest.raises(StaleAttemptError):
            zombie.finish()
        assert self.seen(target) == [1, 3]

    def test_failed_attempt_leaves_its_output_to_the_next_one(self, target: Any) -> None:
        first = self.opened(target, 1)
        written = first.write(1)
        first.sink.close(succeeded=False)
        second = self.opened(target, 2, 1)
        second.commit(1, written)
        second.finish()
        assert self.seen(target) == [1]

    # --- Commits

    def test_output_is_invisible_before_its_commit(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        attempt.add(1, 1)
        attempt.write(2)
        assert self.seen(target) == [1]

    def test_output_of_a_failed_task_is_never_committed(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        lost, won = attempt.write(1), attempt.write(1)
        assert lost != won
        attempt.commit(1, won)
        attempt.finish()
        assert self.seen(target) == [1]
        assert not self.leftovers(target)

    def test_repeated_commit_changes_nothing(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        written = attempt.add(1, 1)
        attempt.commit(1, written)
        again = self.opened(target, 2, 1)
        again.commit(1, written)
        again.finish()
        assert self.seen(target) == [1]

    def test_repeated_commit_with_other_output_is_refused(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        attempt.add(1, 1)
        with pytest.raises(CorruptStateError, match="same output with each commit of checkpoint 1"):
            attempt.add(1, 2, 3)
        assert self.seen(target) == [1]

    def test_several_open_commits_are_made_in_their_order(self, target: Any) -> None:
        first = self.opened(target, 1)
        one, two = first.write(1), first.write(2)
        second = self.opened(target, 2, 2)
        second.commit(1, one)
        second.commit(2, two)
        second.add(3, 3)
        second.finish()
        assert self.seen(target) == [1, 2, 3]

    def test_checkpoints_without_rows_keep_the_output(self, target: Any) -> None:
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2)
        second = self.opened(target, 2, 2)
        second.commit(3, [])
        second.add(4, 4)
        second.finish()
        assert self.seen(target) == [1, 4]

    def test_opening_twice_is_opening_once(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        second = self.opened(target, 2, 1).open()
        second.add(2, 2)
        assert self.seen(target) == [1, 2]

    def test_attempt_cannot_change_its_restored_checkpoint_after_a_commit(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        self.opened(target, 2, 1).add(2, 2)
        with pytest.raises(CoordinatorError, match="keep its restored checkpoint"):
            self.opened(target, 2, None, 2)

    # --- Fallback

    def test_fallback_replaces_newer_output_with_its_first_commit(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        for checkpoint in (1, 2, 3):
            first.add(checkpoint, checkpoint)
        second = self.opened(target, 2, 1)
        assert self.seen(target) == [1, 2, 3]
        second.add(4, 40)
        assert self.seen(target) == [1, 40]

    def test_fallback_without_a_commit_removes_newer_output_at_its_end(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        self.opened(target, 2, 1).finish()
        assert self.seen(target) == [1]

    def test_output_that_waits_for_its_replacement_can_still_be_restored(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        self.opened(target, 2, 1)
        third = self.opened(target, 3, 2)
        third.add(3, 3)
        third.finish()
        assert self.seen(target) == [1, 2, 3]

    def test_checkpoint_whose_output_was_replaced_cannot_be_restored(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        self.opened(target, 2, 1).add(3, 3)
        with pytest.raises(CorruptStateError, match=r"output of checkpoint 2 .* replaced"):
            self.opened(target, 3, 2)
        assert self.seen(target) == [1, 3]

    def test_restored_checkpoint_continues_the_attempt_that_took_it(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        late = self.opened(target, 2, 1).write(3)
        third = self.opened(target, 3, 3, restored_epoch=2)
        third.commit(3, late)
        assert self.seen(target) == [1, 3]
        third.add(4, 4)
        assert self.seen(target) == [1, 3, 4]

    @pytest.mark.parametrize("restored_epoch", [1, None])
    def test_start_from_a_savepoint_of_an_earlier_generation_keeps_the_output_up_to_there(
        self, target: Any, restored_epoch: int | None
    ) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        for checkpoint in (1, 2, 3, 4):
            first.add(checkpoint, checkpoint)
        second = self.opened(target, 2, 2, 2, restored_epoch=restored_epoch)
        second.add(5, 50)
        second.finish()
        assert self.seen(target) == [1, 2, 50]
        third = self.opened(target, 3, 5, 2, restored_epoch=2)
        third.add(6, 60)
        third.finish()
        assert self.seen(target) == [1, 2, 50, 60]

    @pytest.mark.parametrize("open_checkpoints", [0, 1, 2])
    def test_start_from_a_savepoint_whose_output_was_not_committed_continues_to_its_end(
        self, target: Any, open_checkpoints: int
    ) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        late = {checkpoint: first.write(checkpoint) for checkpoint in range(1, open_checkpoints + 1)}
        second = self.opened(target, 2, 2, 2, restored_epoch=1)
        for checkpoint, committables in late.items():
            second.commit(checkpoint, committables)
        second.add(3, 3)
        second.finish()
        third = self.opened(target, 3, 3, 2, restored_epoch=2)
        third.add(4, 4)
        third.finish()
        assert self.seen(target) == [*late, 3, 4]

    def test_fallback_to_a_checkpoint_without_rows_replaces_nothing_before_its_first_commit(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        empty = first.add(2)
        first.add(3, 3)
        second = self.opened(target, 2, 2, restored_epoch=1)
        second.commit(2, empty)
        assert self.seen(target) == [1, 3]
        second.add(4, 4)
        assert self.seen(target) == [1, 4]

    def test_checkpoint_of_an_attempt_that_wrote_elsewhere_is_refused(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        with pytest.raises(CorruptStateError, match="found no record of it"):
            self.opened(target, 3, 2, restored_epoch=2)

    def test_start_that_needs_a_retraction_is_refused_if_the_sink_cannot(self, target: Any) -> None:
        if self.can_retract:
            pytest.skip("the sink retracts output")
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        for arguments in ((2, 1), (2, None, 2)):
            with pytest.raises(EnvironmentNotReadyError, match="cannot be rolled back"):
                self.opened(target, *arguments)
        assert self.seen(target) == [1, 2]

    # --- Fresh starts

    def test_fresh_start_replaces_earlier_output_with_its_first_commit(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        second = self.opened(target, 2, None, 2)
        assert self.seen(target) == [1, 2]
        second.add(3, 30)
        assert self.seen(target) == [30]
        second.add(4, 40)
        assert self.seen(target) == [30, 40]

    def test_fresh_start_without_output_ends_with_an_empty_target(self, target: Any) -> None:
        self._require_retraction()
        self.opened(target, 1).add(1, 1)
        self.opened(target, 2, None, 2).finish()
        assert self.seen(target) == []

    def test_fresh_start_that_fails_leaves_earlier_output(self, target: Any) -> None:
        self._require_retraction()
        self.opened(target, 1).add(1, 1)
        second = self.opened(target, 2, None, 2)
        second.write(2)
        second.sink.close(succeeded=False)
        assert self.seen(target) == [1]

    def test_fresh_start_is_refused_with_earlier_output_if_the_sink_is_told_so(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        with pytest.raises(EnvironmentNotReadyError, match="on_earlier_output is 'refuse'"):
            self.opened(target, 2, None, 2, on_earlier_output="refuse")
        self.opened(target, 3, 1, on_earlier_output="refuse").add(2, 2)
        assert self.seen(target) == [1, 2]

    def test_checkpoint_of_an_earlier_start_cannot_be_restored_after_its_output_was_replaced(self, target: Any) -> None:
        self._require_retraction()
        self.opened(target, 1).add(1, 1)
        self.opened(target, 2, None, 2).add(2, 2)
        with pytest.raises(CorruptStateError, match="output of checkpoint 1"):
            self.opened(target, 3, 1, restored_epoch=1)
        assert self.seen(target) == [2]

    # --- Other jobs and stages

    @pytest.mark.parametrize("other", [{"job": "other"}, {"uid": "other/sink"}], ids=["jobs", "stages"])
    def test_sinks_that_share_a_target_keep_their_output_apart(self, target: Any, other: dict[str, str]) -> None:
        ours, theirs = self.opened(target, 1), self.opened(target, 1, **other)
        ours.add(1, 1)
        theirs.add(1, 10)
        staged = theirs.write(11)
        if self.can_retract:
            ours = self.opened(target, 2, None, 2)
            ours.add(2, 2)
        ours.finish()
        theirs.commit(2, staged)
        theirs.finish()
        assert self.seen(target) == [2 if self.can_retract else 1, 10, 11]

    def test_committed_output_of_a_forked_savepoint_stays_with_its_job(self, target: Any) -> None:
        theirs = self.opened(target, 1, job="other")
        written = theirs.add(1, 10)
        ours = self.opened(target, 1)
        ours.commit(1, written)
        ours.add(2, 2)
        ours.finish()
        assert self.seen(target) == [2, 10]

    def test_uncommitted_output_of_a_forked_savepoint_is_refused(self, target: Any) -> None:
        theirs = self.opened(target, 1, job="other")
        written = theirs.write(10)
        ours = self.opened(target, 1)
        with pytest.raises(IncompatibleCheckpointError, match="Run that job until it succeeds"):
            ours.commit(1, written)
        theirs.commit(1, written)
        ours.commit(1, written)
        assert self.seen(target) == [10]

    def test_target_with_output_of_a_removed_stage_is_refused(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        with pytest.raises(EnvironmentNotReadyError, match="renamed_uids"):
            self.opened(target, 2, uid="renamed/sink", gone_uids=(_UID,))
        both = self.opened(target, 3, 1, gone_uids=("other/sink",))
        both.add(2, 2)
        assert self.seen(target) == [1, 2]

    def test_schema_that_does_not_fit_earlier_output_is_refused_before_any_work(self, target: Any) -> None:
        if self.other_schema is None:
            pytest.skip("the destination accepts any schema")
        self.opened(target, 1).add(1, 1)
        with pytest.raises(UnsupportedStateError, match=r"fit|incompatible"):
            self.opened(target, 2, 1, schema=self.other_schema)
        self.opened(target, 3, 1).add(2, 2)
        assert self.seen(target) == [1, 2]

    def test_sink_that_is_not_open_says_so(self, target: Any) -> None:
        attempt = self.attempt(target, 1)
        with pytest.raises(CoordinatorError, match="open it"):
            attempt.write(1)
        with pytest.raises(CoordinatorError, match="open it"):
            attempt.commit(1, [])


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _counted(function: Any, name: str, plan: StepPlan) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        return plan.carry_out(name, lambda: function(*args, **kwargs), StorageError)

    return counted
