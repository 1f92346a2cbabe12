"""Damaged or missing bytes: a try falls back to the checkpoint before, or stops; it never starts over by itself."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import NoRestorableCheckpointError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, load_document
from tests.soak import rest_in_soak
from tests.spark.tries import PlannedError

JOB = "corruption"
LARGE = 30_000
"""Characters that no metadata file takes in, so that the state gets a file of its own."""
RESULT = {"rows": [0, 2, 4], "sum": 15, "marks": {"first": "f" * LARGE, "second": "s" * LARGE}}


class Stage:
    """One stage in a folder, which writes down what it really computes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.computed: list[str] = []

    def run(self, *, fail: bool = False) -> dict[str, Any]:
        """Take two checkpoints, the second with one snapshot and one mark more, and return the result."""
        self.computed = []
        with StageContext.open(
            self.spark,
            job=JOB,
            checkpoint_dir=str(self.folder / "checkpoints"),
            metadata=f"sqlite:///{self.folder}/state.db",
            num_retained=2,
        ) as checkpoint:
            marks = checkpoint.state.setdefault("marks", {})
            marks["first"] = "f" * LARGE
            first = checkpoint.snapshot("first", self._first)
            marks["second"] = "s" * LARGE

            def build_second() -> Any:
                self.computed.append("second")
                return first.where("id % 2 = 0").coalesce(1)

            second = checkpoint.snapshot("second", build_second)
            if fail:
                raise PlannedError
            return {
                "rows": sorted(row["id"] for row in second.collect()),
                "sum": sum(row["id"] for row in first.collect()),
                "marks": dict(marks),
            }

    def _first(self) -> Any:
        self.computed.append("first")
        return self.spark.range(6).coalesce(1)

    @property
    def storage(self) -> CheckpointStorage:
        return CheckpointStorage.open(str(self.folder / "checkpoints"))

    def view(self) -> JobView:
        return open_gateway(f"sqlite:///{self.folder}/state.db").describe(job_id_of(JOB))

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord:
        return next(c for c in self.view().checkpoints if c.checkpoint_id == checkpoint_id)

    def document(self, checkpoint_id: int) -> CheckpointDocument:
        return load_document(self.storage, self.checkpoint(checkpoint_id))

    def files(self) -> dict[str, bytes]:
        root = self.folder / "checkpoints"
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def failed_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Stage, Path]:
    """A stage that failed with two retained checkpoints, and a copy of its folder."""
    folder = tmp_path_factory.mktemp("corruption")
    stage, copy = Stage(spark, folder / "work"), folder / "copy"
    stage.folder.mkdir()
    with pytest.raises(PlannedError):
        stage.run(fail=True)
    shutil.copytree(stage.folder, copy)
    return stage, copy


@pytest.fixture
def stage(failed_once: tuple[Stage, Path]) -> Stage:
    """Give the stage back as it failed, always under the path that its rows name."""
    stage, copy = failed_once
    shutil.rmtree(stage.folder)
    shutil.copytree(copy, stage.folder)
    return stage


def local(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def metadata_of(stage: Stage, checkpoint_id: int) -> Path:
    uri = stage.checkpoint(checkpoint_id).metadata_uri
    assert uri is not None
    return local(uri)


def snapshot_of(stage: Stage, checkpoint_id: int, name: str) -> Path:
    return local(next(handle.uri for handle in stage.document(checkpoint_id).snapshots if handle.name == name))


def manifest_of(stage: Stage, checkpoint_id: int, name: str = "second") -> Path:
    return snapshot_of(stage, checkpoint_id, name) / "_manifest"


def state_of(stage: Stage, checkpoint_id: int) -> Path:
    state = stage.document(checkpoint_id).state
    assert isinstance(state, FileStateHandle)
    return local(state.uri)


def data_of(stage: Stage, checkpoint_id: int, name: str = "second") -> Path:
    (file,) = (snapshot_of(stage, checkpoint_id, name) / "data").glob("*.parquet")
    return file


FIND: dict[str, Callable[[Stage, int], Path]] = {"metadata": metadata_of, "manifest": manifest_of, "state": state_of}


def flip(path: Path, position: float) -> bytes:
    """Change one bit of one byte, at a fraction of the file's length; return what was there before."""
    before = path.read_bytes()
    index = min(int(len(before) * position), len(before) - 1)
    path.write_bytes(before[:index] + bytes([before[index] ^ 1]) + before[index + 1 :])
    return before


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


def check_falls_back(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """The next try starts from checkpoint 1, says why, and ends as if nothing had happened."""
    with caplog.at_level(logging.ERROR):
        assert stage.run() == RESULT
    assert stage.computed == ["second"]
    (message,) = errors(caplog)
    assert message.startswith("Checkpoint 2 cannot be restored; falling back to an older one: ")
    assert stage.view().attempts[-1].restored_from == 1
    assert stage.checkpoint(2).unusable_reason is not None


@pytest.mark.parametrize("position", rest_in_soak([0.0, 0.01, 0.5, 1.0], 0.5), ids=["first", "early", "middle", "last"])
@pytest.mark.parametrize("which", FIND)
def test_one_changed_byte_falls_back_to_the_checkpoint_before(stage, caplog, which, position):
    flip(FIND[which](stage, 2), position)
    check_falls_back(stage, caplog)


def test_a_try_that_fell_back_keeps_two_usable_checkpoints_and_fails_over_to_them(stage, caplog):
    flip(metadata_of(stage, 2), 0.5)
    with pytest.raises(PlannedError):
        stage.run(fail=True)
    assert [c.checkpoint_id for c in stage.view().checkpoints if c.is_restorable] == [1, 2, 3]
    flip(metadata_of(stage, 3), 0.5)
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        assert stage.run() == RESULT
    assert [message.split()[1] for message in errors(caplog)] == ["3", "2"]


def check_stops(stage: Stage) -> NoRestorableCheckpointError:
    """A try stops before it computes, deletes or completes anything."""
    before, rows = stage.files(), stage.view().checkpoints
    with pytest.raises(NoRestorableCheckpointError) as raised:
        stage.run()
    assert stage.computed == []
    assert stage.files() == before
    assert stage.view().checkpoints == rows
    return raised.value


@pytest.mark.parametrize("which", rest_in_soak(["metadata", "state"], "state"))
def test_with_both_damaged_a_stage_stops_and_a_repaired_file_restores_again(stage, caplog, which):
    paths = {i: FIND[which](stage, i) for i in (1, 2)}
    intact = {i: flip(path, 0.5) for i, path in paths.items()}
    for _ in range(2):
        error = check_stops(stage)
        assert error.checkpoint_ids == (2, 1)
        assert "checkpoint 2: " in str(error)
        assert "checkpoint 1: " in str(error)
    paths[1].write_bytes(intact[1])
    with caplog.at_level(logging.ERROR), pytest.raises(PlannedError):
        stage.run(fail=True)
    assert stage.computed == ["second"]
    assert stage.view().attempts[-1].restored_from == 1
    assert stage.checkpoint(2).unusable_reason is not None
    # The newest of all is damaged now, and the one that could not be used before is whole again.
    flip(metadata_of(stage, 3), 0.5)
    paths[2].write_bytes(intact[2])
    assert stage.run() == RESULT
    assert stage.computed == []
    assert stage.view().attempts[-1].restored_from == 2


@pytest.mark.parametrize("find", [manifest_of, data_of])
def test_a_snapshot_that_every_checkpoint_names_is_computed_anew_when_it_is_damaged(stage, caplog, find):
    find(stage, 2, "first").unlink()
    with caplog.at_level(logging.ERROR):
        assert stage.run() == RESULT
    assert stage.computed == ["first", "second"]
    assert errors(caplog)[-1].startswith("Snapshot 'first' is damaged and will be recomputed: ")
    assert stage.view().attempts[-1].restored_from == 2


def test_a_stage_that_has_lost_its_whole_folder_stops_until_it_is_told_to_start_over(stage):
    shutil.rmtree(stage.folder / "checkpoints")
    check_stops(stage)
    checkpoint = StageContext.open(
        stage.spark,
        job=JOB,
        checkpoint_dir=str(stage.folder / "checkpoints"),
        metadata=f"sqlite:///{stage.folder}/state.db",
        on_clear="restart",
    )
    assert not checkpoint.is_restored()
    checkpoint.fail(PlannedError())
