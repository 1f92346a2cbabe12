"""A Dag run of three stages, of which a savepoint of the whole job is taken and restored: in place and as a fork."""

from __future__ import annotations

import os
from collections import Counter as Bag
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.files.sink import committed_files
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document
from tests.airflow.examples import ROOT, Examples

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.soak]

SUCCESS = "success"
MOST_COLLECTIONS = 20
OUTPUTS = ("payments", "report", "audit")
SECOND, THIRD = 10, 20
"""Numbers of the first payments in the second and the third file, which are the second and the third increment."""


class Pipelines(Examples):
    """Runs the pipelines of the tests, whose stages wait at gates."""

    @override
    def prepare(self) -> None:
        for country, number in (("de", 0), ("de", SECOND), ("fr", THIRD)):
            folder = self.work / "input" / country
            folder.mkdir(parents=True, exist_ok=True)
            numbers = range(number, number + 10)
            table = pa.table({"account": [f"{country}{n % 3}" for n in numbers], "number": list(numbers)})
            pq.write_table(table, folder / f"{number}.parquet")

    @override
    def _environment(self) -> dict[str, str]:
        dags = {"AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "tests" / "airflow" / "dags"), "STAGE_WORK": str(self.work)}
        return super()._environment() | dags

    @contextmanager
    def closed_gates(self, *numbers: int) -> Iterator[int]:
        """Let the stage wait at some payments, and return what tells that it has reached one."""
        for name in ("reached", *(f"gate-{number}" for number in numbers)):
            os.mkfifo(self.work / name)
        # Its own writer keeps the pipe from telling its end whenever the stage has written.
        reached = os.open(self.work / "reached", os.O_RDWR | os.O_NONBLOCK)
        try:
            yield reached
        finally:
            os.close(reached)
            for name in ("reached", *(f"gate-{number}" for number in numbers)):
                (self.work / name).unlink(missing_ok=True)

    @contextmanager
    def at_next_gate(self, reached: int) -> Iterator[None]:
        """
        Do something while the stage waits at a payment.

        Which one is first follows from the order of the mapped tasks.
        """
        self.wait_for(reached)
        gate = self.work / f"gate-{int(os.read(reached, 10))}"
        try:
            yield
        finally:
            with gate.open("w"):
                gate.unlink()

    def collected_savepoint(self, job: str) -> CheckpointRecord:
        """Let garbage collection take the savepoint of a job, and return it when it is complete."""
        for _ in range(MOST_COLLECTIONS):
            self.statecheck("gc", f"test/{job}", "--yes")
            taken = [c for c in self.job(job).checkpoints if c.properties.is_savepoint and c.completed_at is not None]
            if taken:
                return taken[0]
        raise AssertionError(f"Expected a complete savepoint of job {job}, found none:\n{self.log}")

    def committed(self, job: str, output: str, up_to: float = inf) -> Bag[str]:
        """Return the rows that the checkpoints of a job up to one have committed."""
        files = (f for f in committed_files(str(self.work / job / output)) if f.checkpoint_id <= up_to)
        tables = (pq.ParquetFile(file.uri.removeprefix("file://")).read() for file in files)
        return Bag(repr(row) for table in tables for row in table.to_pylist())

    def outputs(self, job: str) -> dict[str, Bag[str]]:
        """Return the rows that the stages of a job have committed."""
        return {output: self.committed(job, output) for output in OUTPUTS}


@pytest.fixture(scope="module")
def pipelines(airflow_db: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    running = Pipelines(airflow_db, tmp_path_factory.mktemp("pipelines"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def undisturbed(pipelines: Pipelines) -> dict[str, Bag[str]]:
    """What a run gives that is neither stopped nor put back."""
    assert pipelines.run("undisturbed") == SUCCESS, pipelines.log
    return pipelines.outputs("undisturbed")


def test_a_run_that_is_put_back_and_a_fork_give_the_output_of_an_undisturbed_run(
    pipelines: Pipelines, undisturbed: dict[str, Bag[str]]
) -> None:
    with pipelines.closed_gates(SECOND, THIRD) as reached:
        pipelines.start("disturbed")
        # The mapped stage has ended, its reader runs, and the third stage waits.
        with pipelines.at_next_gate(reached):
            pipelines.statecheck("savepoint", "test/disturbed", "--no-wait")
        with pipelines.at_next_gate(reached):
            pipelines.statecheck("gc", "test/disturbed", "--yes")
            (pipelines.work / "wrong").touch()
        assert pipelines.end() == SUCCESS, pipelines.log
    (pipelines.work / "wrong").unlink()
    assert pipelines.outputs("disturbed")["report"] != undisturbed["report"]
    [savepoint] = [c for c in pipelines.job("disturbed").checkpoints if c.properties.is_savepoint]
    document = load_document(CheckpointStorage.open(savepoint.location), savepoint)
    cut = {member.uid: member.checkpoint_id for member in document.members}
    assert set(cut) == {"load[de]", "load[fr]", "report"}

    printed = pipelines.statecheck("restore", "test/disturbed", "--from", savepoint.location, "--yes")
    assert "airflow tasks clear disturbed" in printed
    assert pipelines.run("disturbed") == SUCCESS, pipelines.log
    assert pipelines.outputs("disturbed") == undisturbed

    assert pipelines.run("rehearsal", pointer=savepoint.location) == SUCCESS, pipelines.log
    found = {
        "payments": pipelines.committed("disturbed", "payments") + pipelines.committed("rehearsal", "payments"),
        "report": pipelines.committed("disturbed", "report", cut["report"])
        + pipelines.committed("rehearsal", "report"),
        "audit": pipelines.committed("rehearsal", "audit"),
    }
    assert found == undisturbed


def test_a_job_that_was_stopped_with_a_savepoint_goes_on_from_there_and_can_be_put_back_to_it(
    pipelines: Pipelines, undisturbed: dict[str, Bag[str]]
) -> None:
    with pipelines.closed_gates(SECOND) as reached:
        pipelines.start("suspended")
        with pipelines.at_next_gate(reached):
            pipelines.statecheck("savepoint", "test/suspended", "--stop", "suspend", "--no-wait")
        savepoint = pipelines.collected_savepoint("suspended")
        assert pipelines.end() == "failed", pipelines.log
    assert f"stopped with a savepoint of its job, as requested: {savepoint.location}" in pipelines.log
    document = load_document(CheckpointStorage.open(savepoint.location), savepoint)
    [report] = [member for member in document.members if member.uid == "report"]
    job = pipelines.job("suspended")
    assert {operator.uid for operator in job.operators} == {"load[de]", "load[fr]", "report", ALIGNED_UID}
    [tried] = [a for a in job.attempts if a.operator_id == report.operator_id]
    newest = [c for c in job.of_operator(tried.operator_id) if c.is_restorable][-1]
    assert (tried.status, report.checkpoint_id) == (AttemptStatus.FAILED, newest.checkpoint_id)

    assert pipelines.run("suspended") == SUCCESS, pipelines.log
    assert pipelines.outputs("suspended") == undisturbed
    pipelines.statecheck("restore", "test/suspended", "--from", savepoint.location, "--yes")
    assert pipelines.run("suspended") == SUCCESS, pipelines.log
    assert pipelines.outputs("suspended") == undisturbed
