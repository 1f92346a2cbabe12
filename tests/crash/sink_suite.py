"""
What every sink must bear: the end of its driver between any two steps, zombies, fall-backs and fresh starts.

A test module subclasses :class:`SinkKills` for its sink::

    class TestDeltaSinkKills(SinkKills):
        factory = "tests.crash.sink_factories:delta"

        @staticmethod
        def read(work: Path) -> pa.Table: ...

The module needs ``pytestmark = pytest.mark.spark``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import METADATA_FILE
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from tests.crash.sink_pipeline import JOB
from tests.crash.sink_steps import PAUSED, RESUME
from tests.crash.tries import SIGKILLED, Tries, wait_until
from tests.shared_spark import shared_session

FAILED = 3
IN_SHORT, IN_LONG = 1, 20
FILES, ROWS_OF_A_FILE, PARTS = 3, 12, 5
EXECUTIONS_OF_A_TEST = 100

GAPS: list[dict[str, Any]] = [
    {"step": "acknowledge", "mode": "kill_after"},
    {"step": "sink.", "mode": "kill"},
    {"step": "commit", "mode": "kill_after"},
    {"step": "write_bytes", "mode": "kill"},
    {"late": False},
    {"step": "write_bytes", "mode": "kill_after"},
    {"step": "sink.", "mode": "kill_after"},
    {"step": "commit", "mode": "kill"},
    {"step": "confirm_commits", "mode": "kill_after"},
    {"late": True},
]
"""Between which two steps a driver ends; ``sink.`` is any call that the factory counts, ``late`` is in a task."""

NUMBERS = [pytest.param(n, marks=[] if n < IN_SHORT else pytest.mark.soak) for n in range(IN_LONG)]


@dataclass
class SinkJob:
    """One job over its tries, and what a reader of its sink sees."""

    tries: Tries
    zombies: Tries
    factory: str
    input: Path
    read: Callable[[Path], pa.Table]
    prepare: Callable[[Path], None]
    calls: list[str] = field(default_factory=list)
    """The steps of a run that nothing went wrong in."""

    @property
    def work(self) -> Path:
        """The folder of the tries."""
        return self.tries.work

    def begin(self) -> None:
        """Begin with nothing."""
        wait_for_abandoned_tasks()
        self.tries.reset(None)
        self.prepare(self.work)

    def run(self, **command: Any) -> int:
        """Run a try and return its exit status."""
        return self.tries.run(**self._command(command))

    def finish(self, **command: Any) -> None:
        """Run a try that has to succeed."""
        assert self.run(**command) == 0, self.error()

    def kill(self, **command: Any) -> None:
        """Run a try that has to be killed."""
        assert self.run(**command) == SIGKILLED, self.error()

    def run_beside_zombie(self, others: Callable[[], None], **command: Any) -> int:
        """
        Run tries while an older one waits at a step, let it go on behind them, and return its exit status.

        :param others: Runs them.
        """
        with ThreadPoolExecutor(1) as pool:
            zombie = pool.submit(self.zombies.run, **self._command(command), pauses=True)
            try:
                wait_until(lambda: (self.work / PAUSED).exists() or zombie.done())
                assert not zombie.done(), self.error()
                others()
            finally:
                (self.work / RESUME).touch()
            return zombie.result()

    def seen(self) -> pa.Table:
        """Return what a reader sees, in one order."""
        table = self.read(self.work).select(["part", "number", "total", "name"])
        return table.sort_by([(name, "ascending") for name in table.column_names])

    def require(self, factor: int = 1) -> None:
        """Compare what a reader sees with what an undisturbed run leaves."""
        expected = expected_rows(self.input, factor)
        assert self.seen().to_pylist() == expected

    def error(self) -> str:
        """Return why the last try failed."""
        return self.tries.error()

    def newest_checkpoint(self) -> CheckpointRecord:
        """Return the one that the next try would restore."""
        return self.tries.live(JOB)[-1]

    def _command(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"pipeline": "sink", "sink": self.factory, "input": str(self.input), "parallelism": 2, **command}


def write_input(folder: Path) -> Path:
    """Write the files of the increments."""
    folder.mkdir()
    for file in range(FILES):
        numbers = list(range(file * ROWS_OF_A_FILE, (file + 1) * ROWS_OF_A_FILE))
        columns = {"part": [n % PARTS for n in numbers], "number": numbers, "quantity": [n * 7 % 11 for n in numbers]}
        pq.write_table(pa.table(columns), folder / f"{file}.parquet")
    return folder


def expected_rows(folder: Path, factor: int) -> list[dict[str, Any]]:
    """Return the output, computed in one go without Spark."""
    totals: defaultdict[int, int] = defaultdict(int)
    rows = []
    for row in pq.read_table(folder).sort_by("number").to_pylist():
        totals[row["part"]] += row["quantity"]
        name = f"{row['part']}-{row['number']}"
        rows.append({"part": row["part"], "number": row["number"], "total": totals[row["part"]] * factor, "name": name})
    return sorted(rows, key=lambda row: (row["part"], row["number"]))


def wait_for_abandoned_tasks() -> None:
    """Wait until Spark runs nothing any more for drivers that have ended."""
    store = shared_session()._jsparkSession.sharedState().statusStore()
    begin = max(0, store.executionsCount() - EXECUTIONS_OF_A_TEST)

    def is_idle() -> bool:
        found = store.executionsList(begin, EXECUTIONS_OF_A_TEST)
        return not any(found.apply(i).completionTime().isEmpty() for i in range(found.size()))

    wait_until(is_idle)


def _kill(dice: random.Random, gap: dict[str, Any], calls: list[str]) -> dict[str, Any]:
    """Return how a driver is to die."""
    if "late" in gap:
        return {"row": dice.randrange(FILES * ROWS_OF_A_FILE), **gap}
    steps = [name for name in calls if name.startswith(gap["step"])] if gap["step"] == "sink." else [gap["step"]]
    # A sink whose factory counts nothing has its commit alone.
    step = dice.choice(steps or ["commit"])
    return {**gap, "step": step, "occurrence": dice.randint(1, calls.count(step))}


class SinkKills:
    """The suite; a subclass says which sink, and how a reader reads."""

    factory: ClassVar[str]
    """``module:function``, called as ``function(work, plan)`` in the driver of each try."""
    first_gap: ClassVar[int] = 0
    """Gap of the first kill. Sinks begin with different ones, so that the short runs together have all."""
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit",)
    """
    Where a zombie waits; also steps of the factory at which no lock is held, such as behind the last look of a commit.
    """

    @staticmethod
    def read(work: Path) -> pa.Table:
        """Return what a reader sees, in any order; only called when something was committed."""
        raise NotImplementedError

    @staticmethod
    def prepare(work: Path) -> None:
        """Make the place of a new job ready, which begins with an empty folder."""

    @pytest.fixture(scope="class")
    @classmethod
    def job(cls, driver_jvm: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkJob]:
        folder = tmp_path_factory.mktemp("sink")
        tries, zombies = (Tries.start(folder / "work", driver_jvm) for _ in range(2))
        job = SinkJob(tries, zombies, cls.factory, write_input(folder / "input"), cls.read, cls.prepare)
        job.begin()
        # More tasks write more files, and make more calls.
        job.finish(parallelism=1)
        job.require()
        job.calls = tries.outcome()["calls"]
        yield job
        tries.close()
        zombies.close()

    @pytest.mark.parametrize("number", NUMBERS)
    def test_driver_that_is_killed_between_any_two_steps_leaves_what_an_undisturbed_one_leaves(
        self, job: SinkJob, number: int
    ) -> None:
        dice = random.Random(number)
        job.begin()
        gap = GAPS[(self.first_gap + number) % len(GAPS)]
        status = job.run(parallelism=dice.choice([1, 2]), **_kill(dice, gap, job.calls))
        assert status == SIGKILLED, job.error()
        if dice.random() < 0.5:
            # It may come to nothing: what was counted is a whole run.
            status = job.run(**_kill(dice, dice.choice(GAPS), job.calls))
            assert status in (0, SIGKILLED), job.error()
        if status == SIGKILLED:
            job.finish(parallelism=dice.choice([1, 2, 3]))
        job.require()

    @pytest.mark.soak
    @pytest.mark.parametrize("occurrence", [1, 2])
    def test_zombie_that_commits_late_changes_nothing(self, job: SinkJob, occurrence: int) -> None:
        for step in self.zombie_steps:
            job.begin()
            status = job.run_beside_zombie(lambda: job.finish(parallelism=1), step=step, occurrence=occurrence)
            assert status == FAILED
            job.require()

    @pytest.mark.soak
    def test_zombie_that_commits_between_two_newer_tries_changes_nothing(self, job: SinkJob) -> None:
        for step in self.zombie_steps:
            job.begin()
            status = job.run_beside_zombie(lambda: job.kill(step="commit", occurrence=2, mode="kill_after"), step=step)
            assert status == FAILED
            job.finish()
            job.require()

    @pytest.mark.soak
    def test_zombie_of_an_earlier_generation_changes_nothing(self, job: SinkJob) -> None:
        for step in self.zombie_steps:
            job.begin()
            status = job.run_beside_zombie(lambda: job.finish(cleared=1, factor=10), step=step, occurrence=2)
            assert status == FAILED
            job.require(factor=10)

    @pytest.mark.soak
    def test_fresh_start_behind_a_success_replaces_its_output(self, job: SinkJob) -> None:
        job.begin()
        job.finish()
        job.finish(cleared=1, factor=10)
        job.require(factor=10)

    @pytest.mark.soak
    def test_fresh_start_behind_half_an_output_that_is_killed_too_replaces_it(self, job: SinkJob) -> None:
        job.begin()
        job.kill(step="commit", occurrence=2, mode="kill_after")
        job.kill(cleared=1, factor=10, step="commit", occurrence=1, mode="kill_after")
        job.finish(cleared=1, factor=10)
        job.require(factor=10)

    @pytest.mark.soak
    def test_fresh_start_whose_first_commit_never_came_replaces_output_nonetheless(self, job: SinkJob) -> None:
        job.begin()
        job.finish()
        job.kill(cleared=1, factor=10, step="commit", occurrence=1, mode="kill")
        job.finish(cleared=1, factor=10)
        job.require(factor=10)

    @pytest.mark.soak
    def test_fall_back_to_an_older_checkpoint_replaces_output_of_newer_ones(self, job: SinkJob) -> None:
        job.begin()
        job.kill(step="commit", occurrence=2, mode="kill_after")
        (Path(job.newest_checkpoint().location.removeprefix("file://")) / METADATA_FILE).write_bytes(b"damaged")
        job.finish()
        job.require()
