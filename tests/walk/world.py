"""A job and what happens to its runs, each step compared with the model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.declared_uids import DagTasks
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.hooks.identity import owner_of
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.runs_of_a_job import RunningTasks
from tests.messages import make_registration
from tests.unit.written_stage import WrittenStage
from tests.walk.attempts import CountingAttempt, visible_rows
from tests.walk.inputs import DirectoryInput, InputOfRuns
from tests.walk.model import CONCURRENT, INCOMPATIBLE, SUPERSEDED, Plan, Run, StageModel

JOB = "orders"
ENDS = ("", "", "", "", "taken over", "read", "written", "completed", "completed", "committed")
"""Where an attempt ends early; empty for a success."""


class Crash(Exception):
    """The end of an attempt that the walk has planned."""


def date_of(day: int) -> datetime:
    """Return the logical date of a day of the walk."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day - 1)


@dataclass(frozen=True, kw_only=True)
class Habits:
    """What happens in a walk besides runs that follow each other, fail, and are retried, cleared and taken back."""

    policies: tuple[str, ...] = ("fail", "restart")
    """Values of ``on_change``, one of which is drawn."""
    dated: tuple[float, ...] = (1.0, 0.7, 0.0)
    """Shares of the runs that have a date, one of which is drawn."""
    of_runs: float = 0.35
    """Share of the walks whose runs read rows of their own instead of a directory."""
    changes: tuple[str, ...] = ("late", "late", "archive", "rewrite", "repair", "restore", "restore")
    """What happens to files of the input."""
    renames: tuple[frozenset[str], ...] = (
        frozenset({"dag_id"}),
        frozenset({"task_id"}),
        frozenset({"dag_id", "task_id"}),
    )
    """Which names change together."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The names under which the stage runs."""

    dag_id: str = "dag"
    task_id: str = "orders"
    former: tuple[str, ...] = ()

    @property
    def uids(self) -> dict[str, tuple[str, ...]]:
        """Return the uids that the Dag declares."""
        return {self.task_id: (self.task_id, *self.former)}


@dataclass
class Tries:
    """What Airflow knows of the task instance of a run."""

    number: int = 0
    max_tries: int = 3
    clear_number: int = 0


class World:
    """One walk, which a seed determines."""

    def __init__(self, folder: Path, seed: int, habits: Habits = Habits()) -> None:
        self.habits = habits
        self.chance = random.Random(seed)
        self.history: list[str] = []
        self.target = folder / "output"
        self.liveness = RunningTasks()
        self.rows = WrittenStage(CheckpointStorage.open(f"file://{folder}/checkpoints"))
        self.coordinator = AttemptCoordinator(self.rows.store, self.liveness, self)
        policy = self.chance.choice(habits.policies)
        of_runs = self.chance.random() < habits.of_runs
        self.input: Any = (
            InputOfRuns(self.chance, policy)
            if of_runs
            else DirectoryInput(folder / "input", self.chance, policy, habits.changes)
        )
        self.model = StageModel(restarts_on_change=policy == "restart")
        self.task = Task()
        self.tries: dict[str, Tries] = {}
        self.runs: list[Run] = []
        self.instances = itertools.count(1)
        self.dated = self.chance.choice(habits.dated)
        self.say(f"source {'of runs' if of_runs else 'directory'}, on_change={policy}, {self.dated:.0%} with a date")

    def tasks_of(self, dag_id: str, job_name: str) -> DagTasks | None:
        """Return the tasks of a Dag; only the Dag with the present name exists."""
        return DagTasks(exists=dag_id == self.task.dag_id, uids=self.task.uids)

    def say(self, text: str) -> None:
        """Record what happens."""
        self.history.append(text)

    # --- steps

    def act(self) -> None:
        """Take a step and compare what readers see with the model."""
        self.rows.clock.advance(1)
        steps: list[tuple[Callable[[], None], int]] = [
            (self.next_run, 40),
            (self.again, 30),
            (self.earlier, 6),
            (self.same_data, 5),
            (self.created_again, 4),
            (self.change_input, 12),
            (self.rewind, 6),
            (self.rename, 4),
        ]
        step = self.chance.choices([s for s, _ in steps], [w for _, w in steps])[0]
        if self.runs or step == self.next_run:
            step()
        self.compare()

    def next_run(self) -> None:
        """Let a run begin that is newer than all before."""
        self.attempt(self.new_run())

    def new_run(self) -> Run:
        """Return a run that is newer than all before."""
        number = len(self.runs) + 1
        day = max((r.order or 0 for r in self.runs), default=0) + self.chance.choice((1, 1, 1, 2))
        if self.chance.random() < self.dated:
            run = Run(run_id=f"scheduled__{number}", day=day)
        elif self.chance.random() < 0.5:
            run = Run(run_id=f"manual__{number}")
        else:
            partition_day = day if self.chance.random() < 0.5 else None
            run = Run(run_id=f"partition__{number}", partition=f"p{number}", partition_day=partition_day)
        self.runs.append(run)
        self.say(self.input.arrive(day))
        return run

    def again(self) -> None:
        """Retry a run, or clear it: mostly the newest one."""
        newest = self.model.chain[-1].run if self.model.chain else self.runs[-1]
        run = newest if self.chance.random() < 0.7 else self.chance.choice(self.runs)
        if self.model.has_finished(run) or self.chance.random() < 0.4:
            self.clear(run)
        else:
            self.attempt(run)

    def clear(self, run: Run, **how: Any) -> None:
        """Clear the task of a run, while it runs or after its end."""
        tries = self.tries.setdefault(run.run_id, Tries())
        if self.chance.random() < 0.3:
            tries.clear_number += 1
        else:
            tries.max_tries += 1
        on_clear = self.chance.choice(("resume_unchanged", "resume_unchanged", "resume", "restart"))
        self.attempt(run, cleared=True, on_clear=on_clear, **how)

    def earlier(self) -> None:
        """Let a run begin whose date is before that of another run, as a backfill does."""
        days = {r.day for r in self.runs if r.day is not None}
        missing = sorted(set(range(1, max(days, default=1))) - days)
        if missing:
            day = self.chance.choice(missing)
            run = Run(run_id=f"backfill__{day}", day=day)
            self.runs.append(run)
            self.attempt(run)

    def same_data(self) -> None:
        """Let a new run begin with the date or the partition of an old one."""
        known = [r for r in self.runs if r.key != r.run_id]
        if known:
            run = replace(self.chance.choice(known[-2:]), run_id=f"again_{len(self.runs)}")
            self.runs.append(run)
            self.attempt(run)

    def created_again(self) -> None:
        """Delete a run, and create it again with its id."""
        run = self.chance.choice(self.runs[-2:])
        if self.tries.get(run.run_id, Tries()).number:
            self.tries[run.run_id] = Tries()
            self.attempt(run, created_again=True)

    def change_input(self) -> None:
        """Let something happen to the input."""
        self.say(self.input.change(max((r.day or 0 for r in self.runs), default=1)))

    def rewind(self) -> None:
        """Take back a run and those after it."""
        run = self.chance.choice(self.runs)
        before = list(self.model.chain)
        key = run.key if run.day is None else date_of(run.day).isoformat()
        codes = self.model.rewind(run)
        found = ""
        try:
            JobRewinding(self.rows.store, self.liveness).rewind(RewindJob(job_id=job_id_of(JOB), run_key=key))
        except StateCheckError as error:
            found = error.code
            self.say(f"  {error}")
        self.say(f"rewind before {run}: {found or 'done'}, {len(before)} -> {len(self.model.chain)}")
        if not before and found == "checkpoint_not_found":
            return
        assert found in codes if codes else not found, f"rewind: expected {set(codes) or 'no error'}, found {found!r}"

    def rename(self) -> None:
        """Give the Dag, the task or both another name, first without ``renamed_uids``."""
        if not self.model.chain:
            return
        number = len(self.history)
        changes = self.chance.choice(self.habits.renames)
        before, run = self.task, self.new_run()
        dag_id = f"dag_{number}" if "dag_id" in changes else before.dag_id
        task_id = f"task_{number}" if "task_id" in changes else before.task_id
        self.task = replace(before, dag_id=dag_id, task_id=task_id)
        self.say(f"renamed: {self.task}")
        if "task_id" in changes:
            self.task = replace(self.task, former=())
            self.refused(run, frozenset({INCOMPATIBLE}))
            self.task = replace(self.task, former=(before.task_id, *before.former))
        self.attempt(run)

    # --- an attempt

    def register(self, run: Run, on_clear: str = "resume_unchanged") -> StageAttempt:
        """Register the next try of a run as the operator does."""
        tries = self.tries.setdefault(run.run_id, Tries())
        tries.number += 1
        task = self.task
        date = None if run.day is None else date_of(run.day)
        partition_date = None if run.partition_day is None else date_of(run.partition_day)
        context = {
            "ti": SimpleNamespace(
                dag_id=task.dag_id,
                task_id=task.task_id,
                id=f"instance {next(self.instances)}",
                map_index=-1,
                max_tries=tries.max_tries,
                try_number=tries.number,
            ),
            "dag_run": SimpleNamespace(
                run_id=run.run_id,
                logical_date=date,
                partition_key=run.partition,
                partition_date=partition_date,
                clear_number=tries.clear_number,
            ),
        }
        registration = make_registration(
            job_name=JOB,
            uid=task.task_id,
            owner=owner_of(context, None),
            storage_base=self.rows.storage.base_uri,
            on_clear=OnClear(on_clear),
            retained_runs=1000,
            former_uids=task.former,
            dag_uids=task.uids,
            allow_non_restored_state=False,
        )
        return StageAttempt(self.coordinator, self.rows.storage, registration)

    def refused(self, run: Run, codes: frozenset[str]) -> None:
        """Require that a run is refused at its registration, and that this changes nothing."""
        before, found = self.rows_of_job(), ""
        try:
            found = f"a start: {self.register(run).grant.start_reason}"
        except StateCheckError as error:
            self.say(f"  refused: {error}")
            found = error.code
        assert found in codes, f"{run}: expected a refusal with {set(codes)}, found {found}"
        assert self.rows_of_job() == before, "a refusal has changed rows"

    def rows_of_job(self) -> Any:
        """Return the rows that a refusal must leave as they are."""
        try:
            view = self.coordinator.describe(job_id_of(JOB))
        except StateCheckError:
            return None
        return view.operators, view.attempts, view.checkpoints

    def attempt(
        self, run: Run, *, cleared: bool = False, on_clear: str = "resume_unchanged", created_again: bool = False
    ) -> None:
        """Let a run try, to its success or to an end that is drawn, and follow it with the model."""
        model = self.model
        how = f"{' cleared, ' + on_clear if cleared else ''}{' created again' if created_again else ''}"
        self.say(f"{run}{how}")
        kept = model.register(run, cleared=cleared, on_clear=on_clear, created_again=created_again)
        if isinstance(kept, frozenset):
            self.refused(run, kept)
            return
        attempt = self.register(run, on_clear)
        self.say(
            f"  epoch {attempt.grant.attempt.epoch}: {attempt.grant.start_reason}; {kept} checkpoints are in force"
        )
        model.registered(run, kept)
        body = self.body(run, attempt)
        end = self.chance.choice(ENDS)
        try:
            plan = self.open_source(run, body)
            if plan is not None:
                self.follow(run, body, plan, end)
        except Crash as crash:
            self.say(f"  ends {end!r}")
            if self.chance.random() < 0.5:
                attempt.fail(crash)

    def body(self, run: Run, attempt: StageAttempt) -> Any:
        """Return what the attempt does."""
        stage = Stage(self.task.task_id).source(self.input.source(run)).sink(ParquetSink(str(self.target)))
        return CountingAttempt(attempt, stage, self.input.read)

    def open_source(self, run: Run, body: Any) -> Plan | None:
        """
        Open the source and return the plan of the model that the attempt has chosen, or ``None`` if it is refused.
        """
        permitted = self.model.plans(run, self.input.files(run))
        try:
            body.open_source()
        except StateCheckError as error:
            self.say(f"  refused: {error.code}: {error}")
            body.attempt.fail(error)
            refusal = error.code
        else:
            numbers = [0, *(taken.number for taken in self.model.chain)]
            found = [plan for plan in permitted.plans if numbers[plan.kept] == (body.restored_id or 0)]
            assert found, f"expected {permitted}, found a start from checkpoint {body.restored_id}"
            return found[0]
        assert refusal in permitted.codes, f"expected {permitted}, found {refusal}"
        return None

    def follow(self, run: Run, body: Any, plan: Plan, end: str) -> None:
        """Follow the work of an attempt."""
        model, left, taken = self.model, plan.left, None
        rivals = 0
        for event, value in body.work(lambda: self.chance.random() < 0.7):
            if event == "taken over":
                taken = model.take_over(run, plan)
            elif event == "read":
                expected, left = left[: self.input.per_increment], left[self.input.per_increment :]
                assert value == expected, f"expected to read {expected}, found {value}"
                assert taken is not None
                taken = model.read(taken, expected)
            elif event == "completed":
                assert taken is not None
                model.complete(replace(taken, number=value))
            elif event == "committed":
                model.commit()
            if event == end and self.chance.random() < 0.7:
                raise Crash(end)
            if self.chance.random() < 0.05 and not rivals:
                rivals += 1
                self.meet(run)
        assert not left, f"{run} has not read {left}"
        model.finish(run)
        self.say(f"  finished with {len(model.shown)} rows")

    def meet(self, run: Run) -> None:
        """Let another run try while one works."""
        others = [r for r in self.runs if not r.is_same(run)]
        if not others:
            return
        other = self.chance.choice(others)
        self.say(f"  meanwhile {other}")
        chain = self.model.chain
        is_newest = bool(chain) and other.is_same(chain[-1].run)
        is_past = any(other.is_same(taken.run) or other.is_before(taken.run) for taken in chain)
        codes = {SUPERSEDED} if is_past and not is_newest else {CONCURRENT}
        self.liveness.let_run(run.run_id)
        self.refused(other, frozenset(codes))
        self.liveness.let_run()

    def compare(self) -> None:
        """Compare what readers see with the model."""
        found, expected = visible_rows(self.target), sorted(self.model.shown)
        missing, more = list(expected), []
        for row in found:
            missing.remove(row) if row in missing else more.append(row)
        assert found == expected, f"rows that are missing: {missing}; rows that must not be there: {more}"
