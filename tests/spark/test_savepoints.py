"""Savepoints of stages on Spark: what another job begins from is not computed again, wherever its bytes are now."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import SystemClock
from airflow_provider_statecheck.exceptions import StoppedWithSavepointError
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from airflow_provider_statecheck.spark import checkpoint_writer
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.maintenance_contract import KnownRuns, NoTokens
from tests.spark.tries import PlannedError

LIMIT_SECONDS = 60.0
ITEMS = ["monday", "tuesday", "wednesday"]


class Pipeline:
    """A stage with a snapshot, a loop and a value, in jobs of any name, that notes what it computes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.metadata = f"sqlite:///{folder}/state.db"
        self.store = SqlJobStore(open_engine(self.metadata))
        self.savepoints = JobSavepoints(self.store)
        self.computed: list[str] = []
        self.items = ITEMS

    def run(self, job: str, **settings: Any) -> list[int]:
        """Run the stage to its end, unless it is stopped."""
        self.computed = []
        options = {"checkpoint_dir": str(self.folder / "checkpoints"), "metadata": self.metadata}
        with StageContext.open(self.spark, job=job, **options | settings) as checkpoint:
            orders = checkpoint.snapshot("orders", self._orders)
            for day in checkpoint.each("days", self.items):
                self.computed.append(day)
                checkpoint.state["days"] = [*checkpoint.state.get("days", []), day]
                if len(self.computed) == 2:
                    self.while_running()
            return [row.n for row in orders.orderBy("n").collect()] + [len(checkpoint.state["days"])]

    def while_running(self) -> None:
        """Do nothing; a test puts something in its place."""

    def ask(self, job: str, **changes: Any) -> None:
        """Ask for a savepoint of the stage."""
        values = {"job_id": job_id_of(job), "operator_id": operator_id_of("stage"), "request_key": new_key()}
        self.savepoints.request(RequestSavepoint(**values | {"target": f"file://{self.folder}/savepoints"} | changes))

    def job_savepoints(self) -> WholeJobSavepoints:
        """Return the service that takes savepoints of whole jobs."""
        return WholeJobSavepoints(
            rows=AlignedCheckpoints(self.store),
            maintenance=JobMaintenance(self.store, KnownRuns(), NoTokens(), SystemClock()),
            savepoints=self.savepoints,
            open_storage=CheckpointStorage.open,
            directory=f"file://{self.folder}/savepoints",
            pause=lambda _: threading.Event().wait(0.01),
        )

    def savepoint(self) -> Path:
        """Return the only savepoint there is."""
        [found] = (self.folder / "savepoints").iterdir()
        return found

    def _orders(self) -> Any:
        self.computed.append("orders")
        return self.spark.range(5).withColumnRenamed("id", "n")


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path)


def stopped(pipeline: Pipeline) -> Path:
    """Let a stage stop after one of three days, and return its savepoint."""
    pipeline.while_running = lambda: pipeline.ask("first", kind=CheckpointType.SAVEPOINT_SUSPEND)  # type: ignore[method-assign]
    with pytest.raises(StoppedWithSavepointError):
        pipeline.run("first")
    assert pipeline.computed == ["orders", "monday"]
    pipeline.while_running = lambda: None  # type: ignore[method-assign]
    return pipeline.savepoint()


@pytest.mark.parametrize("claim_mode", [pytest.param("no_claim", marks=pytest.mark.soak), "claim"])
def test_a_job_that_begins_from_a_savepoint_computes_only_what_is_left(pipeline: Pipeline, claim_mode: str) -> None:
    savepoint = stopped(pipeline).as_uri()
    found = pipeline.run("heir", run="of another day", from_savepoint=savepoint, claim_mode=claim_mode)
    assert found == [0, 1, 2, 3, 4, 3]
    assert pipeline.computed == ["tuesday", "wednesday"]


def test_a_callable_stops_with_a_savepoint_of_its_job_in_the_middle_of_a_loop(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "PAUSE_SECONDS", 0.01)
    service, key, job_id = pipeline.job_savepoints(), new_key(), job_id_of("first")
    with ThreadPoolExecutor(1) as other_process:
        calls: list[Future[str]] = []

        def ask() -> None:
            service.request(
                service.maintenance.describe(job_id), kind=CheckpointType.SAVEPOINT_SUSPEND, request_key=key
            )
            calls.append(other_process.submit(service.pointer_of, job_id, key, LIMIT_SECONDS))

        pipeline.while_running = ask  # type: ignore[method-assign]
        with pytest.raises(StoppedWithSavepointError) as stop:
            pipeline.run("first")
        assert calls[0].result(LIMIT_SECONDS) == stop.value.pointer == pipeline.savepoint().as_uri()
    assert pipeline.computed == ["orders", "monday"]
    pipeline.while_running = lambda: None  # type: ignore[method-assign]
    for job, settings in {"heir": {"from_savepoint": stop.value.pointer}, "first": {}}.items():
        assert pipeline.run(job, **settings) == [0, 1, 2, 3, 4, 3]
        assert pipeline.computed == ["tuesday", "wednesday"]


def test_an_unclaimed_savepoint_may_be_deleted_after_the_first_checkpoint(pipeline: Pipeline) -> None:
    def fail() -> None:
        raise PlannedError

    savepoint = stopped(pipeline)
    pipeline.while_running = fail  # type: ignore[method-assign]
    with pytest.raises(PlannedError):
        pipeline.run("heir", run="of another day", from_savepoint=savepoint.as_uri())
    shutil.rmtree(savepoint)
    pipeline.while_running = lambda: None  # type: ignore[method-assign]
    assert pipeline.run("heir", run="of another day") == [0, 1, 2, 3, 4, 3]
    assert pipeline.computed == ["wednesday"]
