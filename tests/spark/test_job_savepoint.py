"""A pipeline of three stages that is put back to a savepoint of the whole job, with a real Spark."""

from __future__ import annotations

from collections import Counter as Bag
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.records import RequestStatus
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.maintenance.job_restore import JobRestoring, JobSavepoint, RestoreJob, read_savepoint
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink, committed_files
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.connectors.stage_output.source import StageOutputSource
from airflow_provider_statecheck.spark.stages.stage import Count, Stage, Sum
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.maintenance_contract import KnownRuns, NoTokens
from tests.messages import make_owner, source_at
from tests.spark.stages.stage_tries import JOB, StageTries

FIRST, SECOND = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"


def payments(number: int) -> dict[str, list[Any]]:
    """Ten payments of three accounts, numbered in their order."""
    numbers = range(number * 10, number * 10 + 10)
    return {"account": [f"{n % 3:03d}" for n in numbers], "number": list(numbers), "amount": [1] * 10}


@dataclass
class Pipeline:
    """``extract`` writes what ``report`` reads; ``copy[de]`` is an instance of a mapped task. One job has them all."""

    tries: StageTries
    on_commit: dict[str, Any] = field(default_factory=dict)
    job: str = JOB
    pointer: str = ""
    """Savepoint from which the stages of another job start."""

    def __post_init__(self) -> None:
        self.tries.coordinator = CommitWatch(self.tries.coordinator, self.on_commit)
        self.service = WholeJobSavepoints(
            rows=AlignedCheckpoints(self.tries.store),
            maintenance=JobMaintenance(self.tries.store, KnownRuns(), NoTokens(), self.tries.clock),
            savepoints=JobSavepoints(self.tries.store),
            open_storage=CheckpointStorage.open,
            directory=f"file://{self.tries.folder}/savepoints",
        )

    def extract(self, run: str) -> None:
        source = ParquetSource(str(self.tries.input), files_per_increment=1)
        summed = Stage("extract").source(source).key_by("account")
        stage = summed.aggregate(number=Sum("number"), amount=Count(), emit="changes")
        self._run("extract", stage.sink(ParquetSink(str(self.output("extract")))), run)

    def report(self, run: str) -> None:
        source = StageOutputSource(str(self.output("extract")), checkpoints_per_increment=1)
        counted = Stage("report").source(source).key_by("account")
        stage = counted.aggregate(n=Count(), total=Sum("number"), emit="changes")
        self._run("report", stage.sink(ParquetSink(str(self.output("report")))), run)

    def copy(self, run: str) -> None:
        source = ParquetSource(str(self.tries.input), files_per_increment=2)
        counted = Stage("copy").source(source).key_by("account")
        stage = counted.aggregate(n=Count(), emit="changes")
        self._run("copy[de]", stage.sink(ParquetSink(str(self.output("copy")))), run)

    def _run(self, uid: str, stage: Any, run: str) -> None:
        self.clear += 1
        owner = make_owner(logical_task=uid, run_key=run, run_id=run, clear_marker=str(self.clear))
        self.tries.run(stage, job_name=self.job, uid=uid, owner=owner, restore_from=self._member(uid))

    clear: int = 0

    def _member(self, uid: str) -> Any:
        return source_at(self.tries.storage.allowing(self.pointer), self.pointer, uid) if self.pointer else None

    def output(self, name: str) -> Any:
        return self.tries.folder / self.job / name

    def take_savepoint_while_reporting(self) -> JobSavepoint:
        """
        Run the first day, take a savepoint in the middle of ``report``, run the second day, and return the savepoint.
        """
        key, commits = new_key(), 0

        def go_on() -> None:
            nonlocal commits
            commits += 1
            if commits == 1:
                self.service.request(self.tries.view(), request_key=key)
            # Another process takes what is there, while the stage runs.
            self.tries.clock.advance(1)
            self.service.take(job_id_of(JOB))

        self.on_commit["report"] = go_on
        first_day(self)
        self.on_commit.clear()
        self.tries.write_input(payments(3))
        second_day(self)
        view = self.tries.view()
        [request] = [r for r in view.requests if r.request_key == key]
        assert request.status is RequestStatus.COMPLETED, request.failure_message
        [savepoint] = [c for c in view.checkpoints if c.checkpoint_id == request.checkpoint_id]
        return read_savepoint(CheckpointStorage.open, savepoint.location, view.job)

    def outputs(self) -> dict[str, Bag[str]]:
        """Return the rows of each output without an order; of ``copy``, the last row of each account."""
        found = {name: Bag(map(repr, self._rows(name))) for name in ("extract", "report")}
        # A stage without a member reads the later input in its first run, so its increments differ.
        last = {row["account"]: row for row in sorted(self._rows("copy"), key=lambda row: row["n"])}
        return found | {"copy": Bag(map(repr, last.values()))}

    def committed(self, name: str, up_to: float = inf) -> Bag[str]:
        """Return the rows that the checkpoints up to one have committed."""
        files = (file for file in committed_files(str(self.output(name))) if file.checkpoint_id <= up_to)
        tables = (pq.ParquetFile(file.uri.removeprefix("file://")).read() for file in files)
        return Bag(repr(row) for table in tables for row in table.to_pylist())

    def _rows(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = ds.dataset(self.output(name), format="parquet").to_table().to_pylist()
        return rows


class CommitWatch:
    """A coordinator that calls back when the sink of a stage has committed."""

    def __init__(self, coordinator: Any, on_commit: dict[str, Any]) -> None:
        self._coordinator = coordinator
        self._on_commit = on_commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def confirm_commits(self, attempt: Any, *arguments: Any) -> Any:
        """Confirm, then call back."""
        effects = self._coordinator.confirm_commits(attempt, *arguments)
        for uid, callback in self._on_commit.items():
            if attempt.operator_id == operator_id_of(uid):
                callback()
        return effects


def pipeline(spark: Any, folder: Any) -> Pipeline:
    folder.mkdir()
    return Pipeline(StageTries(spark, folder))


def first_day(running: Pipeline) -> None:
    running.tries.write_input(payments(0), payments(1), payments(2))
    running.extract(FIRST)
    running.report(FIRST)
    running.copy(FIRST)


def second_day(running: Pipeline) -> None:
    running.extract(SECOND)
    running.report(SECOND)
    running.copy(SECOND)


@pytest.fixture
def undisturbed(spark: Any, tmp_path: Any) -> dict[str, Bag[str]]:
    running = pipeline(spark, tmp_path / "undisturbed")
    first_day(running)
    running.tries.write_input(payments(3))
    second_day(running)
    return running.outputs()


def test_a_pipeline_that_was_put_back_gives_the_output_of_an_undisturbed_one(
    spark: Any, tmp_path: Any, undisturbed: dict[str, Bag[str]]
) -> None:
    running = pipeline(spark, tmp_path / "disturbed")
    restored = running.take_savepoint_while_reporting()
    # The mapped stage had not begun: it is not in the savepoint, and starts without state.
    assert {member.uid: member.run for member in restored.members} == {"extract": FIRST, "report": FIRST}
    JobRestoring(running.tries.store, UnknownLiveness()).restore(
        RestoreJob(job_id=job_id_of(JOB), savepoint=restored, requested_by="a test")
    )
    assert running.outputs() == undisturbed, "only the first commits retract"

    running.report(FIRST)
    running.copy(FIRST)
    between = running.outputs()["report"]
    assert between != undisturbed["report"], "the second day is not there yet"
    second_day(running)
    assert running.outputs() == undisturbed

    again = new_key()
    running.service.request(running.tries.view(), request_key=again)
    request, _ = running.service.wait_for(job_id_of(JOB), again, 0)
    assert request.status is RequestStatus.COMPLETED, "a pipeline with readers has savepoints after a restore, too"


@pytest.mark.soak
def test_a_pipeline_that_is_restored_into_another_job_in_the_middle_of_a_run_completes_the_output(
    spark: Any, tmp_path: Any, undisturbed: dict[str, Bag[str]]
) -> None:
    first = pipeline(spark, tmp_path / "first")
    savepoint = first.take_savepoint_while_reporting()
    first.tries.storage = first.tries.storage.allowing(locations=[first.tries.folder.as_uri()])
    fork = Pipeline(first.tries, job="fork", pointer=savepoint.pointer)
    fork.extract(SECOND)
    # What the first job had listed and not read is in its own directory.
    fork.report(SECOND)
    cut = {member.uid: member.checkpoint_id for member in savepoint.members}
    for name in ("extract", "report"):
        assert first.committed(name, cut[name]) + fork.committed(name) == undisturbed[name]
