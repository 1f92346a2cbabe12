"""A pipeline of stages without Spark, whose attempts, savepoints, restores and forks follow each other at random."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, RestoreMode
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OnClear,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorUnavailableError,
    CorruptStateError,
    StateCheckError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.disposal import dispose
from airflow_provider_statecheck.maintenance.gc import PruneRequest, collect_job, prune_job
from airflow_provider_statecheck.maintenance.job_restore import JobRestoring, RestoreJob, read_savepoint
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
from airflow_provider_statecheck.maintenance.rewind import RewindJob
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink, committed_files
from airflow_provider_statecheck.spark.connectors.sink import SinkTaskContext, lineage_of
from airflow_provider_statecheck.spark.connectors.stage_output.source import StageOutputReader, StageOutputSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.endpoints import Endpoints
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import StageRun
from airflow_provider_statecheck.spark.stages.stage_state import PLACE, SINK, driver_state
from airflow_provider_statecheck.spark.stages.starting import start_of
from airflow_provider_statecheck.state.reading.checkpoint_contents import source_ledger
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE
from airflow_provider_statecheck.state.source_items import SOURCE
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document, read_values
from airflow_provider_statecheck.storage.pointers import find_source, resolve_checkpoint
from tests.messages import make_owner
from tests.unit.written_stage import WrittenStage

SCHEMA = pa.schema([("position", pa.int64()), ("version", pa.int64())])
PARTS = 3
POLICIES = ("fail", "fail", "restart")
Row = tuple[int, int]
"""Position in the input, and how often the first stage had written rows before."""
WRITER, READER, LAST, MAPPED = "writer", "reader", "last", "copy[d/e %]"
UPSTREAM = {READER: WRITER, LAST: READER, MAPPED: WRITER}
UIDS = (WRITER, READER, LAST, MAPPED)


def day_of(run: str) -> int:
    """Return the day of a run."""
    return int(run[8:10])


@functools.lru_cache(10_000)
def rows_in(uri: str) -> list[Row]:
    """Return the rows of a file of output, which never changes."""
    return [(row["position"], row["version"]) for row in pq.ParquetFile(uri.removeprefix("file://")).read().to_pylist()]


def load_rows(_: StageOutputReader, uris: Sequence[str]) -> list[Row]:
    return [row for uri in uris for row in rows_in(uri)]


@dataclass
class Life:
    """A job of the pipeline: its directories, and how far its runs have come."""

    world: World
    job: str
    pointer: str = ""
    """Savepoint from which the stages start; empty for the first job."""
    days: dict[str, int] = field(default_factory=dict)
    clears: dict[str, int] = field(default_factory=dict)
    live: dict[str, tuple[Any, Iterator[None]]] = field(default_factory=dict)
    first_version: int = 0
    members: set[str] = field(default_factory=set)
    ended: dict[str, list[Row] | None] = field(default_factory=dict)
    unwarned: set[str] = field(default_factory=set)
    savepoints: list[str] = field(default_factory=list)

    def target(self, uid: str) -> str:
        name = "".join(c if c.isalnum() else "-" for c in uid)
        return f"{self.world.folder}/{self.job}/{name}"

    @property
    def job_id(self) -> Any:
        return job_id_of(self.job)

    def view(self) -> JobView:
        return self.world.stage.coordinator.describe(self.job_id)

    def exists(self) -> bool:
        try:
            self.view()
        except CheckpointNotFoundError:
            return False
        return True

    def stage(self, uid: str, day: int) -> Stage:
        if uid == WRITER:
            names = [f"{n:06d}" for n in range(PARTS * day)]
            source: Any = DataFrameSource(names, self.world.load_input)
        else:
            source = StageOutputSource(
                self.target(UPSTREAM[uid]),
                checkpoints_per_increment=self.world.chance.choice((1, 1, 2)),
                on_change=self.world.on_change[uid],
            )
        return Stage(uid).source(source).sink(ParquetSink(self.target(uid)))

    def begin(self, uid: str) -> None:
        chance = self.world.chance
        known = uid in self.days
        choice = chance.choices(("next", "retry", "clear", "restart", "resume", "earlier"), self.world.habits)[0]
        if not known:
            self.days[uid], choice = self.first_day(uid), "next"
        elif choice == "next":
            self.days[uid] += 1
        elif choice == "earlier":
            self.days[uid] = max(1, self.days[uid] - 1)
        if choice in ("clear", "restart", "resume", "earlier"):
            self.clears[uid] = self.clears.get(uid, 0) + 1
        on_clear = {"restart": OnClear.RESTART, "resume": OnClear.RESUME}.get(choice, OnClear.RESUME_UNCHANGED)
        self.world.say(f"{self.job} {uid} begins day {self.days[uid]} ({choice})")
        zombie = self.live.pop(uid, None)
        if zombie is not None and chance.random() < 0.5:
            self.world.zombies.append((uid, zombie[1]))
        body = Body(self, uid, self.days[uid], on_clear)
        self.live[uid] = (body, body.work())
        self.step(uid)

    def first_day(self, uid: str) -> int:
        return max([1, *self.days.values()])

    def step(self, uid: str) -> None:
        body, work = self.live[uid]
        try:
            next(work)
        except StopIteration:
            del self.live[uid]
            self.world.say(f"{self.job} {uid} finished")
            body.require_complete()
        except StateCheckError as error:
            del self.live[uid]
            self.world.fails(self, uid, error)
            if body.attempt is not None and self.world.chance.random() < 0.8:
                body.attempt.fail(error)
            if isinstance(error, CorruptStateError) and "restored in place" in body.attempt.grant.start_reason:
                self.world.refused(self, uid, error)

    def fail(self, uid: str) -> None:
        body, _ = self.live.pop(uid)
        self.world.say(f"{self.job} {uid} fails")
        try:
            if body.attempt is not None:
                body.attempt.fail(RuntimeError("planned"))
        except StateCheckError as error:
            self.world.say(f"  {error}")

    def visible(self, uid: str) -> list[Row]:
        path = Path(self.target(uid))
        if not path.exists():
            return []
        return [row for file in committed_files(str(path)) for row in rows_in(file.uri)]


class Body:
    """What an attempt does, step by step."""

    def __init__(self, life: Life, uid: str, day: int, on_clear: OnClear) -> None:
        self.life, self.uid, self.day, self.on_clear = life, uid, day, on_clear
        self.attempt: Any = None
        self.rows: list[Row] = []
        self.base: list[Row] = []

    def owner(self) -> Any:
        date = f"2026-01-{self.day:02d}T00:00:00+00:00"
        clear = self.life.clears.get(self.uid, 0)
        return make_owner(
            logical_task=f"dag/{self.uid}",
            run_key=date,
            run_id=f"scheduled {date}",
            clear_marker=f"{clear}",
            label=f"{self.uid} {self.day}",
        )

    def source(self) -> Any:
        life = self.life
        if not life.pointer:
            return None
        return find_source(
            life.world.stage.storage.allowing(life.pointer),
            life.pointer,
            uid=self.uid,
            mode=RestoreMode.NO_CLAIM,
            renamed_uids={},
            allow_non_restored_state=True,
        )

    def work(self) -> Iterator[None]:
        world, chance = self.life.world, self.life.world.chance
        self.attempt = world.stage.attempt(
            self.life.job,
            uid=self.uid,
            owner=self.owner(),
            on_clear=self.on_clear,
            restore_from=self.source(),
            num_retained=chance.choice((1, 2, 3)),
            retained_runs=world.retained_runs,
            driver={"pause": world.pause},
        )
        world.say(
            f"  epoch {self.attempt.grant.attempt.epoch} generation {self.attempt.grant.generation}: "
            f"{self.attempt.grant.start_reason}"
        )
        stage = self.life.stage(self.uid, self.day)
        run = StageRun(None, self.attempt, stage)  # type: ignore[arg-type]
        endpoints = Endpoints(None, self.attempt, stage, DriverSettings())  # type: ignore[arg-type]
        yield
        start = start_of(self.attempt, stage.input, endpoints.open_source)
        restored, enumerator = start.state, start.enumerator
        if start.loaded is not None and restored.checkpoint_id is not None:
            own = start.loaded.state.get("rows", {})
            self.rows = [tuple(r) for r in own["rows"]]
            self.base = [tuple(r) for r in own["base"]]
            if restored.is_of_other_job:
                self.base = list(self.rows)
        elif start.loaded is not None:
            world.say(f"  {self.uid} starts over, because its source changed")
        yield
        first = enumerator.next_increment()
        with ExitStack() as closing:
            is_left = first is None and self.attempt.begins_from_savepoint and restored.checkpoint_id is not None
            taken = replace(start, loaded=None) if is_left else start
            commits = run.take_over(closing, taken, None, SCHEMA if first else None)
            yield
            increment = first
            while increment is not None:
                rows: Any = enumerator.load(increment)
                following = enumerator.next_increment()
                yield
                pending = self.attempt.begin_checkpoint(None) if following is None or chance.random() < 0.7 else None
                yield
                commits.stage(self.write(stage.output, rows))
                self.rows += rows
                yield
                enumerator.require_unchanged(increment)
                enumerator.finish(increment)
                if pending is not None:
                    commits.assign(pending.checkpoint_id)
                    yield
                    completed = self.complete(pending, enumerator, commits)
                    if completed is None and following is None:
                        pending = self.attempt.begin_checkpoint(None)
                        completed = self.complete(pending, enumerator, commits)
                        assert completed is not None
                    if completed is not None:
                        world.taken(self, completed)
                    yield
                    if completed is not None:
                        yield from self.commit(stage.output, commits, completed)
                increment = following
            commits.end()
            yield
            if first is None:
                self.attempt.require_current()
        yield
        self.attempt.finish(AttemptStatus.FINISHED)

    def complete(self, pending: Any, enumerator: Any, commits: Any) -> CheckpointRecord | None:
        # Others may take it as a member while the stage waits.
        self.life.world.checkpoints[self.life.job, pending.checkpoint_id] = list(self.rows)
        try:
            found: CheckpointRecord | None = self.attempt.complete_checkpoint(
                pending, self.content(pending, enumerator, commits)
            )
        except StoppedWithSavepointError:
            if commits.has_open:
                commits.commit(pending.checkpoint_id)
            raise
        return found

    def commit(self, sink: Any, commits: Any, completed: CheckpointRecord) -> Iterator[None]:
        if self.life.world.chance.random() < 0.2:
            # The driver commits, and dies before it confirms.
            for checkpoint_id, committables in commits.encode().items():
                if checkpoint_id != PLACE:
                    sink.commit(int(checkpoint_id), committables)
            yield
        if commits.has_open:
            commits.commit(completed.checkpoint_id)
        yield

    def write(self, sink: Any, rows: list[Row]) -> list[Any]:
        context = SinkTaskContext(subtask=0, epoch=self.attempt.grant.attempt.epoch, task_id=new_key(), schema=SCHEMA)
        writer = sink.writer(context)
        if rows:
            writer.write(pa.Table.from_pylist([{"position": p, "version": v} for p, v in rows], SCHEMA))
        return list(writer.prepare_commit())

    def content(self, pending: Any, enumerator: Any, commits: Any) -> CheckpointContent:
        values = {"checkpoint": pending.checkpoint_id, "run": self.owner().run_key, "now_ms": 0}
        return CheckpointContent(
            state={STAGE: values, "rows": {"rows": self.rows, "base": self.base}},
            operator_states=(
                driver_state(f"{self.uid}/{SOURCE}", enumerator.snapshot()),
                driver_state(f"{self.uid}/{SINK}", commits.encode()),
            ),
            has_commit=commits.has_open,
            counts={},
        )

    def require_complete(self) -> None:
        """A stage that has finished has committed what its state says."""
        mine = sorted(self.rows)
        assert sorted([*self.base, *self.life.visible(self.uid)]) == mine, f"{self.life.job} {self.uid}"
        if self.uid == WRITER:
            assert [p for p, _ in mine] == list(range(max(PARTS * self.day, len(mine)))), mine


class World:
    """Jobs, and what happens to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.stage = WrittenStage(self.open(f"file://{folder}/checkpoints"))
        self.target = f"file://{folder}/savepoints"
        assert self.stage.store is not None
        self.service = WholeJobSavepoints(
            rows=AlignedCheckpoints(self.stage.store),
            maintenance=self.stage.maintenance,
            savepoints=self.stage.savepoints,
            open_storage=CheckpointStorage.open,
            directory=self.target,
            pause=lambda _: None,
        )
        self.restoring = JobRestoring(self.stage.store, UnknownLiveness())
        self.version = self.pauses = 0
        self.retained_runs = self.chance.choice((1, 3))
        self.on_change = {uid: self.chance.choice(POLICIES) for uid in UIDS}
        self.habits = self.chance.choice(((8, 4, 1, 0, 0, 0), (6, 6, 1, 1, 1, 0), (5, 4, 2, 1, 1, 1)))
        self.lives = [Life(self, "sales")]
        self.zombies: list[Any] = []
        self.log: list[str] = []
        self.checkpoints: dict[tuple[str, int], list[Row]] = {}
        self.known: set[str] = set()

    def open(self, base: str) -> CheckpointStorage:
        return CheckpointStorage.open(base).allowing(locations=[f"file://{self.folder}"])

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def load_input(self, _: object, name: str) -> Any:
        """Return the row at a position of the input, in a version of its own, so that each output of it differs."""
        return [(int(name), self.next_version())]

    def say(self, text: str) -> None:
        self.log.append(text)

    def pause(self, _: float) -> None:
        """Let another process take savepoints while a stage waits, until the task of the stage is ended."""
        self.pauses += 1
        if self.pauses % 3 == 0:
            raise CoordinatorUnavailableError("The task was ended while it waited.")
        for life in self.lives:
            self.take(life)

    def fails(self, life: Life, uid: str, error: StateCheckError) -> None:
        self.say(f"{life.job} {uid}: {type(error).__name__}: {error}")

    def refused(self, life: Life, uid: str, error: StateCheckError) -> None:
        assert uid not in life.unwarned, f"no warning told of {error}"

    def taken(self, body: Body, checkpoint: CheckpointRecord) -> None:
        self.checkpoints[body.life.job, checkpoint.checkpoint_id] = list(body.rows)
        self.say(f"{body.life.job} {body.uid} checkpoint {checkpoint.checkpoint_id}: {len(body.rows)} rows")

    # Steps

    def act(self) -> None:
        self.stage.clock.advance(1)
        life = self.chance.choice(self.lives)
        actions: list[tuple[Callable[[Life], None], int]] = [
            (self.advance, 60),
            (self.begin, 22),
            (self.fail, 3),
            (self.kill, 2),
            (self.request, 6),
            (self.take, 12),
            (self.settle, 6),
            (self.restore, 5),
            (self.rewind, 2),
            (self.choose, 2),
            (self.collect, 4),
            (self.prune, 1),
            (self.fork, 2),
            (self.zombie, 4),
            (self.dispose, 1),
            (self.withdraw, 1),
        ]
        action = self.chance.choices([a for a, _ in actions], [w for _, w in actions])[0]
        try:
            action(life)
        except StateCheckError as error:
            self.say(f"{life.job} {action.__name__}: {type(error).__name__}: {error}")
        self.check()

    def advance(self, life: Life) -> None:
        if life.live:
            uid = self.chance.choice(sorted(life.live))
            for _ in range(self.chance.choice((1, 3, 10, 40))):
                if uid in life.live:
                    life.step(uid)

    def begin(self, life: Life) -> None:
        free = [u for u in UIDS if u not in life.live]
        free = [u for u in free if u == WRITER or self.has_output(life, UPSTREAM[u])]
        uid = self.chance.choice(free or list(UIDS)) if self.chance.random() < 0.97 else self.chance.choice(UIDS)
        life.begin(uid)

    def has_output(self, life: Life, uid: str) -> bool:
        return Path(life.target(uid)).exists()

    def fail(self, life: Life) -> None:
        if life.live:
            life.fail(self.chance.choice(sorted(life.live)))

    def kill(self, life: Life) -> None:
        if life.live:
            uid = self.chance.choice(sorted(life.live))
            self.say(f"{life.job} {uid} is killed")
            life.live.pop(uid)

    def zombie(self, _: Life) -> None:
        if self.zombies:
            uid, work = self.chance.choice(self.zombies)
            try:
                for _number in range(5):
                    next(work)
            except (StopIteration, StateCheckError) as error:
                self.say(f"zombie {uid}: {type(error).__name__}: {error}")
                self.zombies = [z for z in self.zombies if z[1] is not work]

    def request(self, life: Life) -> None:
        if life.exists():
            kind = self.chance.choice(
                (
                    CheckpointType.SAVEPOINT,
                    CheckpointType.SAVEPOINT,
                    CheckpointType.SAVEPOINT_TERMINATE,
                    CheckpointType.SAVEPOINT_SUSPEND,
                )
            )
            self.service.request(life.view(), request_key=new_key(), kind=kind)
            self.say(f"{life.job} requests {kind.name}")

    def take(self, life: Life) -> None:
        if life.exists():
            awaited = self.service.take(life.job_id)
            self.say(f"{life.job} savepoint awaits {awaited}")

    def settle(self, life: Life) -> None:
        """Let the stages that a savepoint awaits work until they have given their members."""
        if not life.exists():
            return
        for _ in range(4):
            for uid in self.service.take(life.job_id):
                if uid not in life.live:
                    life.begin(uid)
                for _ in range(30):
                    if uid in life.live:
                        life.step(uid)
            self.stage.clock.advance(1)

    def restore(self, life: Life) -> None:
        if not life.savepoints or (life.live and self.chance.random() < 0.8):
            return
        pointer = self.chance.choice(life.savepoints[-3:])
        savepoint = read_savepoint(CheckpointStorage.open, pointer, life.view().job)
        # Nobody knows whether the tasks run, so they are fenced.
        done = self.restoring.restore(RestoreJob(job_id=life.job_id, savepoint=savepoint, requested_by="walk"))
        self.say(
            f"{life.job} restored in place from {pointer[-12:]}: "
            f"{[(o.uid, o.member.checkpoint_id if o.member else None) for o in done.operators]}"
        )
        life.unwarned = {each.uid for each in done.operators if not each.warning}
        # A stage without a member starts without state, whatever its job has started from.
        life.members -= {each.uid for each in done.operators if each.member is None}
        for each in done.operators:
            if each.member is not None and each.member.run:
                life.days[each.uid] = day_of(each.member.run)
            life.clears[each.uid] = life.clears.get(each.uid, 0) + 1
        if self.chance.random() < 0.5:
            life.live.clear()

    def rewind(self, life: Life) -> None:
        if life.exists() and life.days and self.chance.random() < 0.5:
            uid = self.chance.choice((None, *UIDS))
            day = self.chance.randint(1, max(life.days.values()))
            rewound = self.stage.rewinding.rewind(
                RewindJob(job_id=life.job_id, run_key=f"2026-01-{day:02d}T00:00:00+00:00", uid=uid)
            )
            self.say(
                f"{life.job} rewinds {uid} before {day}: "
                f"{[(r.uid, [c.checkpoint_id for c in r.taken_back]) for r in rewound]}"
            )
            for each in rewound:
                if each.uid in life.days:
                    life.days[each.uid] = min(life.days[each.uid], day)
                    life.clears[each.uid] = life.clears.get(each.uid, 0) + 1

    def choose(self, life: Life) -> None:
        if life.exists() and self.chance.random() < 0.5:
            rows = [c for c in life.view().checkpoints if c.is_restorable]
            if rows:
                row = self.chance.choice(rows)
                wanted = UserAction(
                    job_id=life.job_id,
                    action=JobAction.RESTORE,
                    checkpoint_id=row.checkpoint_id,
                    request_key=new_key(),
                    requested_by="walk",
                )
                self.stage.actions.request(wanted)
                self.say(f"{life.job} chooses {row.checkpoint_id}")

    def withdraw(self, life: Life) -> None:
        if life.exists():
            uid = self.chance.choice(UIDS)
            wanted = UserAction(
                job_id=life.job_id,
                action=JobAction.WITHDRAW,
                operator_id=operator_id_of(uid),
                request_key=new_key(),
                requested_by="walk",
            )
            self.stage.actions.request(wanted)
            self.say(f"{life.job} withdraws for {uid}")

    def collect(self, life: Life) -> None:
        if life.exists():
            collected = collect_job(self.stage.maintenance, life.job_id, CheckpointStorage.open)
            assert collected.problems == [], collected.problems

    def prune(self, life: Life) -> None:
        if life.exists():
            prune_job(self.stage.maintenance, life.job_id, PruneRequest(), CheckpointStorage.open)
            self.say("pruned")

    def dispose(self, life: Life) -> None:
        if life.savepoints and self.chance.random() < 0.3:
            pointer = life.savepoints[0]
            dispose(self.stage.savepoints, self.stage.maintenance, CheckpointStorage.open, pointer)
            life.savepoints.remove(pointer)
            self.say(f"disposed of {pointer[-12:]}")

    def fork(self, life: Life) -> None:
        if len(self.lives) >= 4:
            return
        if life.savepoints and self.chance.random() < 0.7:
            name, pointer = f"fork{len(self.lives)}", self.chance.choice(life.savepoints)
            forked = Life(self, name, pointer=pointer, first_version=self.version)
            self.say(f"{name} forks {life.job} at {pointer[-12:]}")
            storage = CheckpointStorage.open(pointer)
            document, _ = resolve_checkpoint(storage, pointer).read()
            for member in document.members:
                forked.days[member.uid] = day_of(member.run)
                forked.members.add(member.uid)
            self.lives.append(forked)

    def end(self) -> None:
        """Let every job that can go on come to its end without a fault."""
        self.zombies.clear()
        for life in self.lives:
            life.live.clear()
            for uid in (WRITER, READER, LAST, MAPPED):
                if uid == WRITER or self.has_output(life, UPSTREAM[uid]):
                    self.finish(life, uid)

    def finish(self, life: Life, uid: str) -> None:
        life.days[uid] = max(life.days.values(), default=0) + 1
        body = Body(life, uid, life.days[uid], OnClear.RESUME_UNCHANGED)
        try:
            for _ in body.work():
                self.stage.clock.advance(1)
        except StateCheckError as error:
            self.fails(life, uid, error)
            life.ended[uid] = None
            return
        body.require_complete()
        life.ended[uid] = body.rows
        above = life.ended.get(UPSTREAM.get(uid, ""))
        if life.pointer and uid not in life.members:
            above = None  # it reads only what this job commits
        assert above is None or sorted(body.rows) == sorted(above), f"{life.job} {uid}: {body.rows} of {above}"

    # Invariants

    def check(self) -> None:
        for life in self.lives:
            if not life.exists():
                continue
            view = life.view()
            for uid in UIDS:
                self.require_prefix(life, uid)
            self.find_savepoints(life, view)

    def require_prefix(self, life: Life, uid: str) -> None:
        positions = sorted(p for p, _ in life.visible(uid))
        start = positions[0] if positions else 0
        assert positions == list(range(start, start + len(positions))), f"{life.job} {uid} shows {life.visible(uid)}"

    def find_savepoints(self, life: Life, view: JobView) -> None:
        rows = [
            c
            for c in view.checkpoints
            if c.operator_id == ALIGNED_OPERATOR_ID and c.status is CheckpointStatus.COMPLETED
        ]
        for row in rows:
            if row.location not in self.known:
                self.known.add(row.location)
                life.savepoints.append(row.location)
                self.require_consistent(life, row)
        failed = [r for r in view.requests if r.operator_id == ALIGNED_OPERATOR_ID and r.status is RequestStatus.FAILED]
        for request in failed:
            if request.request_key not in self.known:
                self.known.add(request.request_key)
                self.say(f"{life.job} savepoint failed: {request.failure_message}")

    def require_consistent(self, life: Life, row: CheckpointRecord) -> None:
        document = load_document(CheckpointStorage.open(row.location), row)
        members = {member.uid: member for member in document.members}
        self.say(
            f"{life.job} savepoint {row.location[-12:]}: "
            f"{[(u, p.checkpoint_id, p.generation) for u, p in members.items()]}"
        )
        states = {uid: self.state_of(row.location, uid) for uid in members}
        for uid, up in UPSTREAM.items():
            if uid in members and states[uid]["rows"]:
                mine, theirs = states[uid], states.get(up)
                own = [tuple(r) for r in mine["rows"]]
                left = {r for r in own if r[1] <= life.first_version}
                assert theirs is not None or set(own) == left, f"{uid} has read {up}, which has no member"
                if theirs is not None:
                    missing = set(own) - {tuple(r) for r in theirs["rows"]}
                    assert not missing, f"{life.job}: {uid} has read {sorted(missing)}, which {up} does not have"
        self.log_refs(life, row, members)

    def state_of(self, pointer: str, uid: str) -> dict[str, Any]:
        storage = CheckpointStorage.open(pointer)
        document, _ = resolve_checkpoint(storage, pointer).read()
        member = next(p for p in document.members if p.uid == uid)
        return dict(read_values(storage, member)["rows"])

    def log_refs(self, life: Life, row: CheckpointRecord, members: Any) -> None:
        """Listed output is in the member of its stage."""
        storage = CheckpointStorage.open(row.location)
        for uid, up in UPSTREAM.items():
            if uid not in members:
                continue
            ledger = source_ledger(storage, members[uid])
            lineage = lineage_of(life.job_id, f"{up}/{SINK}")
            listed = [
                int(i.name.rpartition("/")[2])
                for i in (ledger.items if ledger else ())
                if i.name.startswith(f"{lineage}/")
            ]
            if listed:
                assert up in members, f"{uid} has listed {listed} of {up}, which has no member"
                assert max(listed) <= members[up].checkpoint_id, (uid, up, listed)
                held = {tuple(r) for r in self.state_of(row.location, up)["rows"]}
                for number in listed:
                    taken = {tuple(r) for r in self.checkpoints[life.job, number]}
                    assert taken <= held, (
                        f"{life.job}: {uid} lists {number} of {up}, which its member {members[up].checkpoint_id} does "
                        "not have"
                    )
