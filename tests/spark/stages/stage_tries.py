"""Try after try of one stateful stage, with its rows in memory and its bytes on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints, serve_idle
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import StageResult, StageRun
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, load_document
from tests.messages import ManualClock, make_owner, make_registration, make_savepoint_request, source_at
from tests.sqlite_rows import new_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "balances"


@dataclass
class StageTries:
    """One job with one stage."""

    spark: SparkSession
    folder: Path
    clock: Any = field(default_factory=ManualClock)
    require_open: Callable[[], None] | None = None
    """Given for a coordinator whose answers take seconds, as through a mailbox."""

    def __post_init__(self) -> None:
        self.storage = CheckpointStorage.open(f"file://{self.folder}/checkpoints")
        self.store: Any = new_store(self.clock)
        self.coordinator: Any = AttemptCoordinator(self.store)

    @property
    def input(self) -> Path:
        """Return the directory that the stage reads."""
        return self.folder / "input"

    @property
    def output(self) -> Path:
        """Return the directory that the stage writes."""
        return self.folder / "output"

    def write_input(self, *parts: dict[str, list[Any]]) -> None:
        """Add one file for each part."""
        self.input.mkdir(exist_ok=True)
        begin = len(list(self.input.iterdir()))
        for number, part in enumerate(parts, begin):
            pq.write_table(pa.table(part), self.input / f"part-{number:03d}.parquet")

    def run(self, stage: Stage, settings: DriverSettings | None = None, **registration: Any) -> StageResult:
        """Begin a try and run the stage to its end, or to its failure."""
        return StageRun(self.spark, self.attempt(settings, **registration), stage, settings).run()

    def attempt(self, settings: DriverSettings | None = None, **changes: Any) -> StageAttempt:
        """Begin a try."""
        values = {"job_name": JOB, "uid": "stage", "storage_base": self.storage.base_uri} | changes
        registration, config = make_registration(**values), (settings or DriverSettings()).storage_config
        return StageAttempt(
            self.coordinator, self.storage, registration, storage_config=config, require_open=self.require_open
        )

    def savepoint(self, **request: Any) -> str:
        """Take a savepoint of the stage, which does not run, and return its pointer."""
        savepoints = JobSavepoints(self.store)
        [operator] = self.view().operators
        savepoints.request(make_savepoint_request(operator, **request))
        [taken] = serve_idle(savepoints, self.view(), CheckpointStorage.open, f"file://{self.folder}/savepoints")
        assert taken.pointer is not None
        return taken.pointer

    def from_savepoint(self, pointer: str, **how: Any) -> dict[str, Any]:
        """Return how another job registers that begins from a savepoint."""
        source = source_at(self.storage, pointer, "stage", **how)
        return {"restore_from": source, "job_name": "another", "owner": make_owner(run_key="another run")}

    def rows(self) -> list[dict[str, Any]]:
        """Return what a reader of the output sees, in a fixed order."""
        files = sorted(self.output.rglob("part-*.parquet")) if self.output.exists() else []
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        return sorted(rows, key=repr)

    def view(self) -> JobView:
        """Return all that is kept of the job."""
        view: JobView = self.coordinator.describe(job_id_of(JOB))
        return view

    def completed(self) -> list[CheckpointRecord]:
        """Return the completed checkpoints that are retained, oldest first."""
        return [c for c in self.view().checkpoints if c.is_restorable]

    def document(self) -> CheckpointDocument:
        """Return what the newest of them says."""
        return load_document(self.storage, self.completed()[-1])
