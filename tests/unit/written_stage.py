"""A stage without Spark: attempts as a driver lives them, with Parquet files as Spark would write them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import MANIFEST_FILE, epoch_name, job_id_of, shared_uri, slug
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StorageError
from airflow_provider_statecheck.maintenance.actions import JobActions
from airflow_provider_statecheck.maintenance.gc import CollectedJob, collect_job
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.maintenance.rewind import JobRewinding
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle
from airflow_provider_statecheck.storage.snapshot_manifest import build_manifest
from tests.contracts.maintenance_contract import KnownRuns, NoTokens
from tests.messages import ManualClock, make_registration, make_savepoint_request, source_at
from tests.sqlite_rows import new_store
from tests.written_snapshots import spark_schema

JOB = "sales"


@dataclass
class WrittenStage:
    """Rows in a store, bytes below one checkpoint directory."""

    storage: CheckpointStorage
    clock: Any = field(default_factory=ManualClock)
    store: JobStore = None  # type: ignore[assignment]  # a new one

    def __post_init__(self) -> None:
        given: JobStore | None = vars(self)["store"]
        self.store = given or new_store(self.clock)
        self.coordinator = AttemptCoordinator(self.store)
        self.runs = KnownRuns()
        self.savepoints = JobSavepoints(self.store)
        self.rewinding = JobRewinding(self.store, UnknownLiveness())
        self.actions = JobActions(self.store, self.savepoints, self.rewinding)
        self.maintenance = JobMaintenance(self.store, self.runs, NoTokens(), self.clock)

    def attempt(self, job: str = JOB, *, driver: Mapping[str, Any] | None = None, **changes: Any) -> StageAttempt:
        """
        Begin an attempt that retains one checkpoint.

        :param driver: Other arguments of the attempt, such as its clock.
        :param changes: Fields of the registration.
        """
        values = {"job_name": job, "storage_base": self.storage.base_uri, "num_retained": 1} | changes
        return StageAttempt(self.coordinator, self.storage, make_registration(**values), **driver or {})

    def snapshot(self, attempt: StageAttempt, name: str, rows: int = 1000) -> SnapshotHandle:
        """Write a snapshot of two files."""
        grant = attempt.grant
        root = shared_uri(self.storage.base_uri, grant.attempt.job_id, grant.attempt.operator_id)
        uri = f"{root}/{slug(name)}/{epoch_name(grant.attempt.epoch)}"
        for part in range(2):
            self.storage.write_bytes(f"{uri}/data/part-{part}.parquet", parquet(rows, part))
        manifest = build_manifest(self.storage, f"{uri}/data", spark_schema({"n": "long", "text": "string"}))
        data = manifest.encode()
        self.storage.write_bytes(f"{uri}/{MANIFEST_FILE}", data)
        return SnapshotHandle(
            name=name,
            uri=uri,
            manifest_size=len(data),
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=manifest.size_bytes,
            rows=manifest.rows,
            files=len(manifest.files),
            fingerprint="f1",
            epoch=grant.attempt.epoch,
            seconds=1.0,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )

    @staticmethod
    def take(attempt: StageAttempt, *snapshots: SnapshotHandle, state: Any = None) -> CheckpointRecord:
        """Complete a checkpoint; what it subsumes stays, as after a driver that died right then."""
        attempt.cleaner.discard = lambda *_: ()  # type: ignore[method-assign]
        state = {"done": state if state is not None else []}
        taken = attempt.take_checkpoint(CheckpointContent(snapshots=snapshots, state=state))
        assert taken is not None
        return taken

    def run(self, job: str = JOB, checkpoints: int = 3, **changes: Any) -> StageAttempt:
        """Let an attempt take checkpoints with one snapshot each, of which the last is retained, and fail."""
        attempt = self.attempt(job, **changes)
        for i in range(checkpoints):
            self.take(attempt, self.snapshot(attempt, f"step {i}"))
        attempt.finish(AttemptStatus.FAILED)
        return attempt

    def attempts(self, job: str = JOB) -> list[AttemptRecord]:
        """Return the rows of the attempts of a job, oldest first; none if there is no job."""
        try:
            found = self.coordinator.describe(job_id_of(job)).attempts
        except CheckpointNotFoundError:
            return []
        return sorted(found, key=lambda attempt: attempt.epoch)

    def last_attempt(self, job: str = JOB) -> AttemptRecord:
        """Return the row of the newest attempt."""
        return self.attempts(job)[-1]

    def source_at(self, pointer: str, **changes: Any) -> Any:
        """
        Return what a new attempt restores from a snapshot, without a claim.

        ``None`` if the snapshot has no part of it.
        """
        return source_at(self.storage, pointer, **changes)

    def request_savepoint(self, attempt: StageAttempt, target: str) -> None:
        """Request a savepoint, which the attempt takes with its next checkpoint."""
        self.savepoints.request(make_savepoint_request(attempt.grant.attempt, target=target))

    def files(self) -> dict[str, int]:
        """Return every file and its size."""
        return self.storage.list_files(self.storage.base_uri)

    def directories(self, job: str = JOB) -> set[str]:
        """Return the checkpoints and snapshots of a job that have files."""
        parts = [name.split("/") for name in self.files() if name.startswith(job_id_of(job))]
        return {"/".join(p[1:2] if p[1].startswith("chk-") else [p[3].rsplit("-", 1)[0]]) for p in parts}

    def statuses(self, job: str = JOB) -> dict[int, str]:
        """Return how each checkpoint's row stands; an ended one is upper case until its bytes are confirmed gone."""
        rows = self.coordinator.describe(job_id_of(job)).checkpoints
        return {c.checkpoint_id: c.status.upper() if c.awaits_discard else c.status.value for c in rows}


def parquet(rows: int, part: int = 0, *, checksums: bool = True) -> bytes:
    """Return a file as Spark writes it: with a checksum for each page."""
    buffer = io.BytesIO()
    numbers = pyarrow.table({"_c0": list(range(part, part + rows)), "_c1": [f"row {i}" for i in range(rows)]})
    options = {"write_page_checksum": checksums, "compression": "none", "use_dictionary": False}
    pyarrow.parquet.write_table(numbers, buffer, **options)
    return buffer.getvalue()


def local_path(uri: str) -> Path:
    """Return the local file behind a URI."""
    return Path(uri.removeprefix("file://"))


def collect(
    stage: WrittenStage, job: str = JOB, *, opener: Any = CheckpointStorage.open, **options: Any
) -> CollectedJob:
    """Collect the garbage of a job."""
    return collect_job(stage.maintenance, job_id_of(job), opener, **options)


def no_storage(base: str) -> CheckpointStorage:
    """Open no storage: it does not answer."""
    raise StorageError("The storage is away.")
