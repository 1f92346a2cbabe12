"""Two stages of one job, each with its own rhythm: they share the job's ids and directory and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_statecheck.checkpoint.ids import job_id_of, job_uri, operator_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotManifest
from tests.spark.tries import PlannedError

JOB = "two-operators"
ITEMS = range(1, 8)
RETAINED = {"often": 2, "seldom": 3}
EVERY = {"often": 1, "seldom": 3}


class Job:
    """A job in a folder, with its rows and its bytes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.metadata = f"sqlite:///{folder}/state.db"
        self.storage = CheckpointStorage.open(str(folder / "checkpoints"))
        self.root = job_uri(self.storage.base_uri, job_id_of(JOB)) + "/"
        self.computed: list[str] = []

    def open(self, uid: str) -> StageContext:
        return StageContext.open(
            self.spark,
            job=JOB,
            uid=uid,
            checkpoint_dir=self.storage.base_uri,
            metadata=self.metadata,
            num_retained=RETAINED[uid],
            allow_non_restored_state=True,
        )

    def view(self) -> JobView:
        return open_gateway(self.metadata).describe(job_id_of(JOB))

    def rows(self, uid: str) -> tuple[CheckpointRecord, ...]:
        return self.view().of_operator(operator_id_of(uid))

    def completed(self, uid: str) -> list[int]:
        return [c.checkpoint_id for c in self.rows(uid) if c.is_restorable]

    def files(self) -> set[str]:
        """Return the files of the job, without what Spark's own writer leaves beside its data."""
        names = self.storage.list_files(self.root)
        return {name for name in names if not name.endswith(".crc") and not name.endswith("/_SUCCESS")}

    def named_files(self) -> set[str]:
        """Return the files that completed rows name, by way of their metadata and the manifests of snapshots."""
        uris: set[str] = set()
        for checkpoint in self.view().checkpoints:
            if checkpoint.status is CheckpointStatus.COMPLETED:
                uris |= self._named_by(checkpoint)
        return {uri.removeprefix(self.root) for uri in uris}

    def _named_by(self, checkpoint: CheckpointRecord) -> set[str]:
        document = load_document(self.storage, checkpoint)
        uris = {str(checkpoint.metadata_uri)}
        if isinstance(document.state, FileStateHandle):
            uris.add(document.state.uri)
        for handle in document.snapshots:
            manifest = SnapshotManifest.decode(self.storage.read_bytes(f"{handle.uri}/_manifest"))
            uris |= {f"{handle.uri}/_manifest", *(f"{handle.uri}/data/{file.name}" for file in manifest.files)}
        return uris


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def stage(job: Job, uid: str, checkpoint: StageContext, fail_at: int | None = None) -> Iterator[None]:
    """Work through the items, and stop after each so that another stage has its turn."""

    def builder(name: str, rows: int) -> Callable[[], Any]:
        def build() -> Any:
            job.computed.append(f"{uid} {name}")
            return job.spark.range(rows).coalesce(1)

        return build

    with checkpoint:
        source = checkpoint.snapshot("source", builder("source", 10))
        checkpoint.state.setdefault("filler", uid * (30_000 if uid == "seldom" else 1))
        for item in checkpoint.each("items", ITEMS, every=EVERY[uid]):
            yield
            if item == fail_at:
                raise PlannedError
            job.computed.append(f"{uid} {item}")
            if item % 3 == 0:
                checkpoint.snapshot("part", builder(f"part {item}", item))
            checkpoint.state["sum"] = checkpoint.state.get("sum", 0) + item
        assert checkpoint.state["sum"] == sum(ITEMS)
        assert source.count() == 10


def in_turns(*stages: Iterator[None]) -> None:
    """Let stages go on in turn until each has ended; the first one is always one step ahead."""
    running = list(stages)
    while running:
        for one in list(running):
            try:
                next(one)
            except (StopIteration, PlannedError):
                running.remove(one)


def start(job: Job, fail_at: dict[str, int] | None = None) -> list[Iterator[None]]:
    contexts = {uid: job.open(uid) for uid in ("often", "seldom")}
    return [stage(job, uid, context, (fail_at or {}).get(uid)) for uid, context in contexts.items()]


def check_nothing_was_lost(job: Job, *, ended: bool) -> None:
    view = job.view()
    assert [c.checkpoint_id for c in view.checkpoints] == list(range(1, len(view.checkpoints) + 1))
    assert {c.status for c in view.checkpoints} <= {CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED}
    for uid, num_retained in RETAINED.items():
        newest = [c.checkpoint_id for c in job.rows(uid)][-num_retained:]
        assert job.completed(uid) == newest
        assert len(newest) == num_retained
    if ended:
        assert not any(view.has_open_attempt(operator) for operator in view.operators)


def test_neither_stage_loses_a_checkpoint_and_only_retained_bytes_stay(job):
    in_turns(*start(job))
    # A snapshot each, then items and the parts in them; 3 and 6 have one.
    assert len(job.rows("often")) == 1 + len(ITEMS) + 2
    assert len(job.rows("seldom")) == 1 + 3 + 2
    ids = [[c.checkpoint_id for c in job.rows(uid)] for uid in RETAINED]
    assert max(ids[0][:2]) < max(ids[1]), "the stages did not run side by side"
    check_nothing_was_lost(job, ended=True)
    assert job.files() == job.named_files()


@pytest.mark.soak
@pytest.mark.parametrize("order", [("often", "seldom"), pytest.param(("seldom", "often"), marks=pytest.mark.soak)])
def test_the_order_in_which_they_end_does_not_matter(job, order):
    contexts = {uid: job.open(uid) for uid in order}
    stages = [stage(job, uid, contexts[uid]) for uid in order]
    for one in stages:
        next(one)
    for one in stages:
        assert list(one) == [None] * (len(ITEMS) - 1)
        # What the other one still needs or has pinned is there.
        assert job.named_files() <= job.files()
    check_nothing_was_lost(job, ended=True)
    assert job.files() == job.named_files()


@pytest.mark.soak
def test_each_goes_on_from_its_own_newest_checkpoint_after_both_failed(job):
    in_turns(*start(job, {"often": 5, "seldom": 5}))
    assert job.named_files() <= job.files()
    first = job.computed
    job.computed = []
    newest = {uid: job.completed(uid)[-1] for uid in RETAINED}
    in_turns(*start(job))
    attempts = {a.operator_id: a.restored_from for a in job.view().attempts if a.epoch == 2}
    assert attempts == {operator_id_of(uid): checkpoint_id for uid, checkpoint_id in newest.items()}
    items = [f"{uid} {item}" for uid in RETAINED for item in ITEMS]
    assert [step for step in items if step in first] == [step for step in items if int(step.split()[1]) < 5]
    # One saved each item, the other one the first three.
    again = {"often 5", "often 6", "often 7", "seldom 4", "seldom 5", "seldom 6", "seldom 7"}
    assert {step for step in items if step in job.computed} == again
    assert not [step for step in job.computed if step.endswith("source")]
    check_nothing_was_lost(job, ended=True)
    assert job.files() == job.named_files()


@pytest.mark.soak
def test_one_that_has_failed_keeps_all_that_it_needs_while_the_other_finishes(job):
    in_turns(*start(job, {"seldom": 5}))
    check = job.completed("seldom")
    assert job.named_files() <= job.files()
    in_turns(stage(job, "seldom", job.open("seldom")))
    assert check[-1] in {a.restored_from for a in job.view().attempts}
    assert job.computed.count("seldom source") == 1
    assert job.files() == job.named_files()
