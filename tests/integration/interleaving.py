"""What one of several processes does to the jobs of a database, stopped before each step until it is let go."""

from __future__ import annotations

import random
import threading
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint, RestoreSource, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    RunSupersededError,
    SavepointClaimedError,
    StaleAttemptError,
    StateCheckError,
)
from airflow_provider_statecheck.maintenance.disposal import dispose
from airflow_provider_statecheck.maintenance.gc import CollectedJob, PrunedJob, PruneRequest, collect_job, prune_job
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, UnknownRuns
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from airflow_provider_statecheck.maintenance.savepoints import serve_idle
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle, decode_metadata
from airflow_provider_statecheck.storage.pointers import find_source
from airflow_provider_statecheck.testing.faults import STORAGE_CALLS
from tests.messages import ManualClock, make_owner
from tests.unit.written_stage import WrittenStage

NAMED, OF_TESTS = "sales", "test/returns"
COPIES = tuple(f"copy {number}" for number in range(3))
JOBS = (NAMED, OF_TESTS, *COPIES)
OPERATORS = ("orders", "customers")
FOREIGN = "foreign"
"""A job of another database in the same checkpoint directory."""

_WRITES = ("INSERT", "UPDATE", "DELETE", "WITH")
"""On PostgreSQL, the first statement of a call and the one that writes several rows begin with ``WITH``."""
_LOCKS = (" FOR UPDATE", " FOR SHARE")
_REFUSALS = (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    NoRestorableCheckpointError,
    RunSupersededError,
    SavepointClaimedError,
    StaleAttemptError,
)
"""What a step may answer to somebody who comes too late."""


@dataclass
class Turns:
    """
    Stops this process before each step that others may see, and tells what it is about to do.

    Within a transaction that has written it does not stop: others would wait for the database, not for their turn.
    """

    pipe: Connection
    clock: ManualClock
    is_writing: bool = False

    def stop(self, step: str) -> None:
        """Wait for the turn."""
        # What a thread reads beside this one is the attempt's own.
        if self.is_writing or threading.current_thread() is not threading.main_thread():
            return
        self.pipe.send(("step", step))
        passed = self.pipe.recv()
        if passed is None:
            raise SystemExit
        self.clock.advance(passed)

    def tell(self, what: str, *values: Any) -> None:
        """Say what came of a step, so that it can be compared with what others were given."""
        self.pipe.send((what, *values))

    def watch(self, engine: Engine) -> Engine:
        """Make every statement outside of a writing transaction a step, and such a transaction as a whole."""

        def execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            self.stop(f"sql {' '.join(statement.split()[:1])} {_table_of(statement)}")
            self.is_writing = self.is_writing or statement.startswith(_WRITES) or statement.endswith(_LOCKS)

        def end(_connection: Any) -> None:
            self.is_writing = False

        event.listen(engine, "before_cursor_execute", execute)
        event.listen(engine, "commit", end)
        event.listen(engine, "rollback", end)
        return engine


def _table_of(statement: str) -> str:
    return next((word for word in statement.split() if word.startswith("statecheck_")), "").partition(".")[0]


class SteppedStorage:
    """A storage of which each call is a step."""

    def __init__(self, storage: CheckpointStorage, turns: Turns) -> None:
        self._storage = storage
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._storage, name)
        if name not in STORAGE_CALLS:
            return attribute

        def stepped(uri: str, *args: Any, **kwargs: Any) -> Any:
            self._turns.stop(f"{name} {uri.removeprefix(self._storage.base_uri)}")
            return attribute(uri, *args, **kwargs)

        return stepped


class ToldCoordinator:
    """A coordinator that tells which epochs and ids it gave."""

    def __init__(self, coordinator: AttemptCoordinator, turns: Turns) -> None:
        self._coordinator = coordinator
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def register(self, request: Any) -> Any:
        grant = self._coordinator.register(request)
        self._turns.tell("epoch", grant.attempt)
        return grant

    def trigger(self, request: Any) -> Any:
        pending = self._coordinator.trigger(request)
        self._turns.tell("id", request.attempt.job_id, pending.checkpoint_id)
        return pending


@dataclass(frozen=True)
class LivingTasks:
    """Knows of each task whether it runs: one that is killed leaves a file."""

    folder: Path

    def is_running(self, owner: AttemptOwner) -> bool:
        return not (self.folder / owner.label).exists()

    def is_last_try(self, owner: AttemptOwner) -> bool:
        return self.is_running(owner)

    def earlier_run_of(self, owner: AttemptOwner) -> str | None:
        return None

    def kill(self, label: str) -> None:
        (self.folder / label).touch()


@dataclass
class Process:
    """Stages that begin, save, die and are replaced, and all that maintenance does, in any order."""

    url: str
    folder: Path
    name: str
    chance: random.Random
    turns: Turns
    attempts: int = field(default=0)

    @cached_property
    def stage(self) -> WrittenStage:
        store = SqlJobStore(self.turns.watch(create_engine(self.url)), self.turns.clock)
        stage = WrittenStage(self.open(self.base), self.turns.clock, store)
        stage.coordinator = ToldCoordinator(AttemptCoordinator(store, self.tasks), self.turns)  # type: ignore[assignment]
        stage.maintenance = JobMaintenance(store, UnknownRuns(), SqlTokenStore(store.engine), self.turns.clock)
        return stage

    @property
    def base(self) -> str:
        return f"file://{self.folder}/checkpoints"

    @property
    def savepoints(self) -> str:
        return f"file://{self.folder}/savepoints"

    @property
    def tasks(self) -> LivingTasks:
        return LivingTasks(self.folder / "dead")

    def open(self, base: str) -> Any:
        return SteppedStorage(CheckpointStorage.open(base), self.turns)

    def work(self) -> None:
        """Do one thing after the other until the scheduler has seen enough."""
        actions = (self.run, self.collect, self.prune, self.rewind, self.ask, self.dispose, self.copy)
        while True:
            action = self.chance.choices(actions, (12, 6, 2, 2, 2, 1, 2))[0]
            self.turns.stop(f"--- {action.__name__}")
            with suppress(*_REFUSALS):
                action()

    def run(self) -> None:
        self.attempt(self.chance.choice((NAMED, NAMED, OF_TESTS)), self.chance.choice(OPERATORS))

    def attempt(self, job: str, uid: str, restore_from: RestoreSource | None = None) -> None:
        """Live the life of a stage: it restores, saves, and ends well, badly or without a word."""
        owner = self.owner(uid)
        attempt = self.stage.attempt(
            job, uid=uid, owner=owner, restore_from=restore_from, num_retained=self.chance.choice((1, 2))
        )
        try:
            self.live(attempt)
        except StaleAttemptError:
            raise
        except StateCheckError as error:
            # What a replaced attempt reads and writes may be swept under its hands; nobody else's may.
            self.require_replaced(attempt, error)
        finally:
            self.tasks.kill(owner.label)

    def live(self, attempt: StageAttempt) -> None:
        restored = attempt.restore()
        handles = list(restored.document.snapshots) if restored else []
        pinned = {handle.uri for handle in handles}
        if restored and restored.checkpoint.properties.unclaimed:
            # Its owner may delete it at any time, so a stage writes anew what it needs of it.
            handles = []
        for number in range(self.chance.randrange(4)):
            handles = [*handles[-2:], self.snapshot(attempt, f"step {number}")]
            pinned |= {handle.uri for handle in handles}
            attempt.take_checkpoint(CheckpointContent(snapshots=tuple(handles), pinned=frozenset(pinned)))
        if self.chance.random() < 0.7:
            attempt.finish(self.chance.choice((AttemptStatus.FINISHED, AttemptStatus.FAILED)))

    def snapshot(self, attempt: StageAttempt, name: str) -> SnapshotHandle:
        """Write a snapshot, or name one of a job that is none of ours, as a task might that means harm."""
        if self.chance.random() < 0.05:
            return self.chance.choice(self.foreign)
        return self.stage.snapshot(attempt, name, rows=3)

    @cached_property
    def foreign(self) -> tuple[SnapshotHandle, ...]:
        folder = self.folder / "checkpoints" / job_id_of(FOREIGN)
        newest = max(folder.glob("chk-*/_metadata"))
        return decode_metadata(newest.read_bytes(), uri=newest.as_uri()).snapshots

    def require_replaced(self, attempt: StageAttempt, error: StateCheckError) -> None:
        with suppress(StaleAttemptError, CheckpointNotFoundError):
            self.stage.coordinator.trigger(TriggerCheckpoint(attempt=attempt.grant.attempt, request_key=new_key()))
            raise AssertionError(f"An attempt that nobody replaced failed: {error!r}") from error

    def owner(self, uid: str) -> AttemptOwner:
        self.attempts += 1
        day = self.turns.clock.now().date()
        return make_owner(
            logical_task=f"sales/{uid}",
            run_key=str(day),
            run_id=f"run {day}",
            clear_marker=self.chance.choice(("1/1", "1/1", "1/1", "2/2")),
            label=f"{self.name}-{self.attempts}",
        )

    def collect(self) -> None:
        job_id = job_id_of(self.chance.choice(JOBS))
        serve_idle(self.stage.savepoints, self.view(job_id), self.open, self.savepoints)
        collected = collect_job(self.stage.maintenance, job_id, self.open)
        _require_no_problem(collected)

    def prune(self) -> None:
        job_id = job_id_of(self.chance.choice(JOBS))
        request = self.chance.choice(
            (
                PruneRequest(older_than=timedelta(days=1)),
                PruneRequest(older_than=timedelta(days=1), test_jobs=True),
                PruneRequest(job_ids=(job_id_of(OF_TESTS), *map(job_id_of, COPIES))),
            )
        )
        pruned = prune_job(self.stage.maintenance, job_id, request, self.open)
        _require_no_problem(pruned)

    def rewind(self) -> None:
        day = self.turns.clock.now().date() - timedelta(days=self.chance.randrange(3))
        assert self.stage.store is not None
        rewinding = JobRewinding(self.stage.store, self.tasks)
        rewinding.rewind(RewindJob(job_id=job_id_of(self.chance.choice(JOBS)), run_key=str(day)))

    def ask(self) -> None:
        request = RequestSavepoint(
            job_id=job_id_of(self.chance.choice(JOBS)),
            operator_id=operator_id_of(self.chance.choice(OPERATORS)),
            request_key=new_key(),
            target=self.savepoints,
        )
        self.stage.savepoints.request(request)

    def dispose(self) -> None:
        found = self.taken_savepoints()
        if found:
            pointer = self.chance.choice(found).location
            dispose(self.stage.savepoints, self.stage.maintenance, self.open, pointer)

    def copy(self) -> None:
        """Let a job begin from a savepoint of another, which it may make its own."""
        found = self.taken_savepoints()
        if not found:
            return
        row = self.chance.choice(found)
        uid = next(uid for uid in OPERATORS if operator_id_of(uid) == row.operator_id)
        source = find_source(
            self.open(self.savepoints),
            row.location,
            uid=uid,
            mode=self.chance.choice((RestoreMode.CLAIM, RestoreMode.NO_CLAIM)),
            renamed_uids={},
            allow_non_restored_state=False,
        )
        with suppress(InvalidConfigurationError):
            self.attempt(self.chance.choice(COPIES), uid, source)

    def taken_savepoints(self) -> list[CheckpointRecord]:
        rows = self.view(job_id_of(self.chance.choice(JOBS))).checkpoints
        return [
            c for c in rows if c.location.startswith(self.savepoints) and c.is_restorable is False and not c.ended_at
        ]

    def view(self, job_id: Any) -> JobView:
        return self.stage.coordinator.describe(job_id)


def _require_no_problem(done: CollectedJob | PrunedJob) -> None:
    # Another process may have removed the job meanwhile.
    problems = [problem for problem in done.problems if "There is no job" not in problem]
    assert problems == [], f"maintenance of {done.job}: {problems}"
    assert done.unreachable == [], f"maintenance of {done.job}: {done.unreachable}"


def run_process(url: str, folder: str, seed: int, name: str, pipe: Connection) -> None:
    """Work until the pipe says that it is enough, and tell of any error."""
    chance = random.Random(f"{seed} {name}")
    process = Process(url, Path(folder), name, chance, Turns(pipe, ManualClock()))
    try:
        with repeatable_keys(f"{seed} {name} keys"):
            process.work()
    except Exception:
        pipe.send(("error", traceback.format_exc()))


@contextmanager
def repeatable_keys(seed: str) -> Iterator[None]:
    """Make the same random keys each time."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4))
        yield
