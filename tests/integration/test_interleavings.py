"""
Three processes work on the same jobs on PostgreSQL, one step at a time in an order that a seed decides.

A step is one statement that reads, one transaction that writes, or one call of the storage, so that anything may happen
between the rows that a garbage collection reads and the files that it deletes. The same seed gives the same steps.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import JOBS
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document
from tests.conformance.databases import own_schema
from tests.integration.interleaving import FOREIGN, NAMED, repeatable_keys, run_process
from tests.messages import ManualClock
from tests.unit.written_stage import WrittenStage, local_path

pytestmark = pytest.mark.db

PROCESSES = ("a", "b", "c")
STEPS = 400
BURSTS = (1, 1, 1, 3, 10, 40, 150)
"""How many steps a process makes before the next one is chosen."""
HOLD = 0.1
BETWEEN_CHECKS = 20
WAIT_SECONDS = 60.0
PAUSES = (1.0, 1.0, 5.0, 30.0)
LONG_PAUSE, OFTEN = 6 * 3600.0, 0.004


@dataclass
class Worker:
    process: SpawnProcess
    pipe: Connection


@dataclass
class Scheduler:
    """Lets one process at a time make a step, and looks at rows and files in between."""

    workers: dict[str, Worker]
    world: World
    chance: random.Random
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=120))
    digest: Any = field(default_factory=hashlib.sha256)
    steps: int = 0
    now: float = 0.0
    held: dict[str, int] = field(default_factory=dict)
    """Until which step a process waits that is about to do what may come too late."""
    seen: dict[str, float] = field(default_factory=dict)
    epochs: set[Any] = field(default_factory=set)
    ids: set[tuple[JobId, int]] = field(default_factory=set)

    def run(self, steps: int) -> None:
        for name in self.workers:
            self.hear(name)
        while self.steps < steps:
            name = self.chance.choice([n for n in PROCESSES if self.held.get(n, 0) <= self.steps] or list(PROCESSES))
            for _ in range(min(self.chance.choice(BURSTS), steps - self.steps)):
                self.step(name)
                if self.is_risky and self.chance.random() < HOLD:
                    self.held[name] = self.steps + self.chance.randrange(50, 300)
                    break

    @property
    def is_risky(self) -> bool:
        """Tell whether the process that just stopped reads rows by which it deletes, or deletes."""
        return self.trace[-1].endswith("SELECT statecheck_checkpoint") or " delete_" in self.trace[-1]

    def step(self, name: str) -> None:
        self.steps += 1
        self.now += LONG_PAUSE if self.chance.random() < OFTEN else self.chance.choice(PAUSES)
        self.workers[name].pipe.send(self.now - self.seen.get(name, 0.0))
        self.seen[name] = self.now
        self.hear(name)
        if self.steps % BETWEEN_CHECKS == 0:
            self.world.check()

    def hear(self, name: str) -> None:
        """Wait until a process stops before its next step."""
        while True:
            assert self.workers[name].pipe.poll(WAIT_SECONDS), f"process {name} does not answer"
            what, *values = self.workers[name].pipe.recv()
            if what == "step":
                self.note(f"{self.steps} {name} {values[0]}")
                return
            assert what != "error", values[0]
            self.take(what, values)

    def take(self, what: str, values: list[Any]) -> None:
        known, given = (self.epochs, values[0]) if what == "epoch" else (self.ids, tuple(values))
        assert given not in known, f"{what} {given} was given out twice"
        known.add(given)

    def note(self, line: str) -> None:
        self.trace.append(line)
        self.digest.update(line.encode())


@dataclass
class World:
    """The rows and files that the processes work on, beside others that are none of their business."""

    url: str
    folder: Path

    def __post_init__(self) -> None:
        self.engine = create_engine(self.url)
        self.store = SqlJobStore(self.engine, ManualClock())
        self.base = CheckpointStorage.open(f"file://{self.folder}/checkpoints")
        self.savepoints = f"file://{self.folder}/savepoints"
        (self.folder / "dead").mkdir()
        with repeatable_keys("foreign"):
            self.foreign = self._plant()

    def _plant(self) -> dict[Path, tuple[int, int]]:
        """Write a job whose rows are in another database, and what users keep beside checkpoints."""
        WrittenStage(self.base).run(FOREIGN)
        other = CheckpointStorage.open(self.savepoints)
        WrittenStage(other).run(FOREIGN)
        for name in (
            f"{job_id_of(NAMED)}-backup/chk-1/_metadata",
            f"{job_id_of(NAMED)}/chk-1000000000/_metadata",
            "notes",
        ):
            self.base.write_bytes(f"{self.base.base_uri}/{name}", b"not ours")
        other.write_bytes(f"{self.savepoints}/savepoint-ffffff-000000000000/_metadata", b"not ours")
        return _files(self.folder)

    def check(self) -> None:
        found = _files(self.folder)
        touched = [path for path, state in self.foreign.items() if found.get(path) != state]
        assert touched == [], "what is none of the jobs' was touched"
        for view in self.views():
            self.check_job(view)

    def check_job(self, view: JobView) -> None:
        unusable = {c.checkpoint_id: c.unusable_reason for c in view.checkpoints if c.unusable_reason is not None}
        assert unusable == {}, f"checkpoints of {view.job.name} could not be restored"
        completed = [c for c in view.checkpoints if c.status is CheckpointStatus.COMPLETED]
        for row in {c.checkpoint_id: c for c in (*completed, *_restored(view))}.values():
            if not self.is_anothers(row):
                self.require_files(row)

    def is_anothers(self, row: CheckpointRecord) -> bool:
        """Tell whether the bytes are another operator's, who claimed a savepoint or restored it without a claim."""
        claim = self.store.claim(row.location)
        own = claim is None or (claim.job_id, claim.operator_id) == (row.job_id, row.operator_id)
        return row.properties.unclaimed or not own

    def require_files(self, row: CheckpointRecord) -> None:
        told = f"checkpoint {row.checkpoint_id} of job {row.job_id} at {row.location}, which is {row.status}"
        try:
            document = load_document(self.base, row)
        except CheckpointNotFoundError as error:
            raise AssertionError(f"{told}, has lost its metadata") from error
        for handle in document.snapshots:
            folder = local_path(handle.uri)
            assert (folder / "_manifest").exists(), f"{told}, has lost {handle.uri}"
            assert len(list((folder / "data").iterdir())) == handle.files, f"{told}, has lost files of {handle.uri}"

    def views(self) -> Iterator[JobView]:
        with self.engine.connect() as connection:
            job_ids = list(connection.scalars(select(JOBS.c.job_id).order_by(JOBS.c.job_id)))
        for job_id in job_ids:
            try:
                yield self.store.describe(JobId(job_id))
            except CheckpointNotFoundError:
                continue


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def _restored(view: JobView) -> list[CheckpointRecord]:
    attempts = (view.current_attempt(operator) for operator in view.operators)
    pinned = {a.restored_from for a in attempts if a is not None and a.status is AttemptStatus.RUNNING}
    return [c for c in view.checkpoints if c.checkpoint_id in pinned]


@contextmanager
def interleaved(postgres_url: str, folder: Path, seed: int) -> Iterator[Scheduler]:
    """Start the processes, each stopped before its first step."""
    spawn = multiprocessing.get_context("spawn")
    folder.mkdir()
    with own_schema(postgres_url) as url, pytest.MonkeyPatch.context() as patch:
        # Sets must be walked in the same order each time.
        patch.setenv("PYTHONHASHSEED", "0")
        world = World(url, folder)
        workers = {}
        for name in PROCESSES:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=run_process, args=(url, str(folder), seed, name, theirs))
            process.start()
            workers[name] = Worker(process, ours)
        try:
            yield Scheduler(workers, world, random.Random(seed))
        finally:
            for worker in workers.values():
                worker.process.terminate()
                worker.process.join()
            world.engine.dispose()


def play(postgres_url: str, folder: Path, seed: int, steps: int) -> Scheduler:
    """Make so many steps; an error says how to make them again."""
    with interleaved(postgres_url, folder, seed) as scheduler:
        try:
            scheduler.run(steps)
        except AssertionError as error:
            last = "\n".join(scheduler.trace)
            raise AssertionError(f"seed {seed}, step {scheduler.steps}: {error}\n{last}") from error
        scheduler.world.check()
    return scheduler


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.soak)])
@pytest.mark.parametrize("steps", [STEPS, pytest.param(20 * STEPS, marks=pytest.mark.soak)])
def test_no_order_of_steps_loses_a_file_or_touches_a_foreign_one(
    postgres_url: str, tmp_path: Path, seed: int, steps: int
) -> None:
    done = play(postgres_url, tmp_path / "world", seed, steps)
    assert len(done.epochs) > steps / 300
    assert len(done.ids) > steps / 300


@pytest.mark.soak
def test_a_seed_gives_the_same_steps_again(postgres_url: str, tmp_path: Path) -> None:
    first, second = (play(postgres_url, tmp_path / name, 3, 150) for name in ("first", "second"))
    assert first.digest.hexdigest() == second.digest.hexdigest()
