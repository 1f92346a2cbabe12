"""Try after try of one stage in this process, and what they left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_statecheck.checkpoint.ids import job_id_of, job_uri
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.driver import attempts
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

JOB = "context"


class PlannedError(Exception):
    """Ends a try."""


class Stopwatch:
    """A clock for durations that moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Disk:
    """A storage on which each file takes some time to be written, and which tells how much is free."""

    def __init__(self, storage: CheckpointStorage, tries: Tries) -> None:
        self._storage = storage
        self._tries = tries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def allowing(self, *uris: str | None, **options: Any) -> Disk:
        return Disk(self._storage.allowing(*uris, **options), self._tries)

    def write_bytes(self, uri: str, data: bytes, **options: Any) -> None:
        self._tries.monotonic.seconds += self._tries.seconds_per_file
        self._storage.write_bytes(uri, data, **options)

    def free_bytes(self) -> int | None:
        return self._tries.free_bytes


class Tries:
    """Opens one try after another of one job, and counts what is really computed."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.metadata = f"sqlite:///{folder}/state.db"
        self.checkpoints = folder / "checkpoints"
        self.monotonic = Stopwatch()
        self.seconds_per_file = 0.0
        self.free_bytes: int | None = None
        self.computed: list[str] = []

    def open(self, *, overhead_budget: float | None = None, **changes: Any) -> StageContext:
        settings: dict[str, Any] = {
            "job": JOB,
            "checkpoint_dir": str(self.checkpoints),
            "metadata": self.metadata,
        }
        with patch.object(attempts, "CheckpointStorage", SimpleNamespace(open=self._open_disk)):
            attempt, _ = attempts.open_attempt(self.spark, **settings | changes)
        return StageContext(self.spark, attempt, overhead_budget=overhead_budget, monotonic=self.monotonic)

    def _open_disk(self, *args: Any, **options: Any) -> Disk:
        return Disk(CheckpointStorage.open(*args, **options), self)

    @contextmanager
    def failing(self, **changes: Any) -> Iterator[StageContext]:
        """A try that fails, at its end if not before."""
        with suppress(PlannedError), self.open(**changes) as checkpoint:
            yield checkpoint
            raise PlannedError

    def take_computed(self) -> list[str]:
        """Return what was computed since the last call."""
        taken, self.computed = self.computed, []
        return taken

    def builder(self, name: str, rows: int = 3) -> Callable[[], DataFrame]:
        def build() -> DataFrame:
            self.computed.append(name)
            return self.spark.range(rows).coalesce(1)

        return build

    def view(self) -> JobView:
        return open_gateway(self.metadata).describe(job_id_of(JOB))

    def completed(self) -> int:
        """Return how many checkpoints were ever completed."""
        return sum(c.completed_at is not None for c in self.view().checkpoints)

    def snapshots(self) -> int:
        """Return how many snapshots are on storage."""
        return sum(name.endswith("/_manifest") for name in self.files())

    def files(self) -> set[str]:
        storage = CheckpointStorage.open(str(self.checkpoints))
        return set(storage.list_files(job_uri(storage.base_uri, job_id_of(JOB))))


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.collect())
