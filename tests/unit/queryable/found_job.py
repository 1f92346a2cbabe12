"""A job whose stages are found by one oracle, with rows that note how they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.queried_stage import QueriedStage
from tests.sqlite_rows import new_store
from tests.written_state import BACKENDS, StatefulJob

JOB = job_id_of("sales")


def named(*names: str) -> list[Any]:
    """Return a state for each queryable name."""
    return [ValueStateDescriptor(f"state of {name}", int, queryable_name=name) for name in names]


@dataclass
class Rows:
    """Rows of a job, which notes how they are read."""

    coordinator: AttemptCoordinator
    reads: list[str] = field(default_factory=list)
    after: Callable[[], None] = lambda: None
    """Called once, after the next read of the newest checkpoints."""

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        found = self.coordinator.latest_checkpoints(job_id, known_version)
        self.reads.append("unchanged" if found is None else "latest")
        after, self.after = self.after, lambda: None
        after()
        return found

    def describe(self, job_id: JobId) -> JobView:
        self.reads.append("describe")
        return self.coordinator.describe(job_id)


class LateStates(StatefulJob):
    """A function that registers its last state after ``open``."""

    def schemas(self) -> Any:
        opened = StatefulJob(self.storage, self.backend, self.descriptors[:-1])
        return opened.schemas()


@dataclass
class Job:
    """A job whose stages are found by one oracle."""

    storage: CheckpointStorage
    store: SqlJobStore = field(default_factory=new_store)
    stages: list[QueriedStage] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    """Checkpoints whose metadata was read."""

    def __post_init__(self) -> None:
        self.rows = Rows(AttemptCoordinator(self.store))
        self.oracle = self.new_oracle()

    def new_oracle(self) -> CheckpointLocationOracle:
        return CheckpointLocationOracle(JOB, self.rows, self.open)

    def open(self, pointer: str) -> CheckpointStorage:
        self.opened.append(pointer.rpartition("/")[2])
        return self.storage

    def stage(self, uid: str, descriptors: Sequence[Any], kind: Any = StatefulJob, **values: Any) -> QueriedStage:
        function = kind(self.storage, BACKENDS["arrow"](), descriptors, job_name="sales", stage=uid)
        self.stages.append(QueriedStage(self.store, (function,), **values))
        self.stages[-1].begin()
        return self.stages[-1]

    def read(self, name: str, oracle: CheckpointLocationOracle | None = None, **values: Any) -> tuple[str, int]:
        """Return the function and the checkpoint that hold a name."""
        location = (oracle or self.oracle).request_kv_state_location(name, **values)
        return location.uid, location.first_address.checkpoint_id

    def damage(self, stage: QueriedStage, checkpoint_id: int) -> None:
        """Overwrite the metadata of a checkpoint."""
        self.storage.write_bytes(f"{stage.pointer(checkpoint_id)}/_metadata", b"damaged", overwrite=True)
