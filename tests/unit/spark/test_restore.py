"""Restores of the newest intact checkpoint, and the verification of state files."""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    OperatorState,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.exceptions import NoRestorableCheckpointError, StorageError
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier, verify_job
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.restore import RestoredStage, StateVerifier
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle, encode_metadata, load_document
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_storage
from tests.messages import make_savepoint_request, present
from tests.unit.storage.documents import make_document
from tests.unit.written_stage import JOB, WrittenStage, local_path

LARGE_STATE = "x" * 100_000


class Written:
    """Two checkpoints: the first with the snapshot ``raw``, the second with ``sessions`` and a larger state too."""

    def __init__(self, folder: Path) -> None:
        self.stage = WrittenStage(CheckpointStorage.open(str(folder)))
        self.attempt = self.stage.attempt(num_retained=2)
        self.raw, self.sessions = (self.stage.snapshot(self.attempt, name) for name in ("raw", "sessions"))
        self.first = self.stage.take(self.attempt, self.raw)
        self.second = self._second()

    def _second(self) -> CheckpointRecord:
        pending = present(self.attempt.begin_checkpoint(600.0))
        content = CheckpointContent(
            snapshots=(self.raw, self.sessions), state={"done": LARGE_STATE}, operator_states=(self._function(),)
        )
        return present(self.attempt.complete_checkpoint(pending, content))

    def _function(self) -> OperatorState:
        """Return the state of a function: an Arrow IPC file."""
        sink = io.BytesIO()
        table = pa.table({"key": range(1000)})
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self.function_uri = f"{self.stage.storage.base_uri}/{job_id_of(JOB)}/shared/function/1-{new_key()}"
        self.stage.storage.write_bytes(self.function_uri, sink.getvalue())
        handle = FileStateHandle(self.function_uri, len(sink.getvalue()), hashlib.sha256(sink.getvalue()).hexdigest())
        return OperatorState(
            uid="sum", operator_id=operator_id_of("sum"), parallelism=1, max_parallelism=1, coordinator_state=handle
        )

    def restore(self) -> RestoredStage:
        """Begin the next attempt."""
        return present(self.next_attempt().restore())

    def next_attempt(self) -> StageAttempt:
        return self.stage.attempt(num_retained=2)

    def fail(self, *damaged: SnapshotHandle) -> None:
        uris = tuple(handle.uri for handle in damaged)
        ref = self.attempt.grant.attempt
        self.stage.coordinator.finish(FinishAttempt(attempt=ref, status=AttemptStatus.FAILED, damaged_snapshots=uris))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "base")


def metadata(written: Written) -> Path:
    return local_path(str(written.second.metadata_uri))


def state(written: Written) -> Path:
    handle = load_document(written.stage.storage, written.second).state
    assert isinstance(handle, FileStateHandle)
    return local_path(handle.uri)


def manifest(written: Written) -> Path:
    return local_path(f"{written.sessions.uri}/_manifest")


def function(written: Written) -> Path:
    return local_path(written.function_uri)


def data(written: Written, snapshot: SnapshotHandle | None = None) -> Path:
    return local_path(f"{(snapshot or written.sessions).uri}/data/part-1.parquet")


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def last(path: Path) -> None:
    flip(path, -1)


def footer(path: Path) -> None:
    """Change a byte of the footer that leaves the file as long and as readable as it was."""
    content = path.read_bytes()
    flip(path, len(content) - 8 - int.from_bytes(content[-8:-4], "little") // 2)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def beside(path: Path) -> None:
    """Add a file that the manifest does not list."""
    shutil.copy(path, path.with_name(f"part-99999-{path.name}"))


Find = Callable[[Written], Path]
Damage = Callable[[Path], None]
NOTICED: list[tuple[Find, Damage]] = [
    *((find, damage) for find in (metadata, state, manifest) for damage in (middle, last, cut, Path.unlink)),
    *((data, damage) for damage in (footer, last, cut, beside, Path.unlink)),
    # The blocks of such a file have checksums of their own, which are verified when a block is read.
    *((function, damage) for damage in (cut, Path.unlink)),
]


@pytest.mark.parametrize(
    ("find", "damage"), NOTICED, ids=[f"{find.__name__}-{damage.__name__}" for find, damage in NOTICED]
)
def test_damage_makes_a_restore_fall_back_to_the_checkpoint_before(written, caplog, find, damage):
    damage(find(written))
    with caplog.at_level(logging.ERROR):
        restored = written.restore()
    assert restored.checkpoint.checkpoint_id == written.first.checkpoint_id
    assert [each.checkpoint_id for each in restored.skipped] == [written.second.checkpoint_id]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("Checkpoint 2 cannot be restored; falling back to an older one: ")


@pytest.mark.parametrize("damage", [footer, cut, Path.unlink])
def test_a_damaged_snapshot_that_every_checkpoint_names_is_left_out_of_the_newest(written, caplog, damage):
    damage(data(written, written.raw))
    with caplog.at_level(logging.ERROR):
        restored = written.restore()
    assert restored.checkpoint.checkpoint_id == written.second.checkpoint_id
    assert restored.state["done"] == LARGE_STATE
    assert list(restored.manifests) == [written.sessions.uri]
    assert restored.damaged == (written.raw,)
    assert "Snapshot 'raw' is damaged and will be recomputed" in caplog.text


def test_without_readable_metadata_there_is_nothing_to_leave_out_of(written):
    for checkpoint in (written.first, written.second):
        middle(local_path(str(checkpoint.metadata_uri)))
    attempt = written.next_attempt()
    with pytest.raises(NoRestorableCheckpointError) as raised:
        attempt.restore()
    assert raised.value.checkpoint_ids == (2, 1)


def test_a_snapshot_that_an_earlier_attempt_could_not_read_is_left_out_of_the_newest(written, caplog):
    written.fail(written.raw)
    with caplog.at_level(logging.ERROR):
        restored = written.restore()
    assert restored.checkpoint.checkpoint_id == written.second.checkpoint_id
    assert (restored.skipped, restored.damaged) == ((), (written.raw,))
    assert caplog.records == []


def test_one_changed_page_is_not_looked_for(written):
    """Pages are verified when they are read; a restore would have to read all of them."""
    flip(data(written), 200)
    restored = written.restore()
    assert restored.checkpoint.checkpoint_id == written.second.checkpoint_id


DATA = b"some state"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def problems(storage: Any, stream: Any, *, is_deep: bool = False) -> list[str]:
    state = OperatorState(
        uid="sum", operator_id=operator_id_of("sum"), parallelism=1, max_parallelism=1, coordinator_state=stream
    )
    return StateVerifier(storage, is_deep=is_deep).problems(make_document(operator_states=(state,)))


def state_file(stage: WrittenStage, data: bytes = DATA) -> str:
    uri = f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-1/1-{new_key()}"
    stage.storage.write_bytes(uri, data)
    return uri


def segment(uri: str, start: int, length: int, sha256: str = "") -> SegmentFileStateHandle:
    return SegmentFileStateHandle(uri, start, length, CheckpointedStateScope.SHARED, "segment", sha256)


@pytest.mark.parametrize("is_deep", [False, True])
def test_what_is_there_and_unchanged_is_no_problem(stage, is_deep):
    uri = state_file(stage)
    for stream in (
        FileStateHandle(uri, len(DATA), digest(DATA)),
        FileStateHandle(uri, len(DATA)),
        segment(uri, 5, 5, digest(DATA[5:])),
        ByteStreamStateHandle("inline", DATA),
    ):
        assert problems(stage.storage, stream, is_deep=is_deep) == []


def test_a_missing_file_is_told_with_its_operator(stage):
    (told,) = problems(stage.storage, FileStateHandle(f"{stage.storage.base_uri}/gone", 1))
    assert told.startswith("state of operator 'sum': ")
    assert "gone" in told


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_a_file_of_another_size_is_told(stage, size):
    (told,) = problems(stage.storage, FileStateHandle(state_file(stage), size))
    assert f"Expected {size} bytes" in told


@pytest.mark.parametrize(("start", "length"), [(5, 6), (-1, 3), (11, 0)])
def test_a_segment_must_lie_within_its_file(stage, start, length):
    assert len(problems(stage.storage, segment(state_file(stage), start, length))) == 1


def test_changed_bytes_are_told_by_a_deep_look(stage):
    uri = state_file(stage)
    for stream in (FileStateHandle(uri, len(DATA), digest(b"other")), segment(uri, 0, 4, digest(b"others"))):
        assert problems(stage.storage, stream) == []
        (told,) = problems(stage.storage, stream, is_deep=True)
        assert "changed after they were written" in told


def test_a_storage_that_does_not_answer_says_nothing_about_the_state(stage):
    uri = state_file(stage)
    with pytest.raises(StorageError):
        problems(
            faulty_storage(stage.storage, FaultPlan(1)), FileStateHandle(uri, len(DATA), digest(DATA)), is_deep=True
        )


def completed(stage: WrittenStage) -> CheckpointRecord:
    attempt = stage.attempt()
    return stage.take(attempt, stage.snapshot(attempt, "raw"))


def test_operator_states_are_part_of_the_verification(stage):
    row = completed(stage)
    document = load_document(stage.storage, row)
    gone = FileStateHandle(f"{row.location}/1-{'0' * 32}", 1)
    state = OperatorState(
        uid="sum", operator_id=operator_id_of("sum"), parallelism=1, max_parallelism=1, coordinator_state=gone
    )
    data = encode_metadata(replace(document, operator_states=(state,)), uri=str(row.metadata_uri))
    local_path(str(row.metadata_uri)).write_bytes(data)
    row = replace(row, metadata_size=len(data), metadata_sha256=digest(data))
    (told,) = CheckpointVerifier(stage.storage).verify(row).problems
    assert "state of operator 'sum'" in told


@pytest.mark.parametrize("change", [{"checkpoint_id": 7}, {"operator_id": operator_id_of("other")}])
def test_metadata_that_is_not_that_of_its_row_is_told(stage, change):
    row = completed(stage)
    document = replace(load_document(stage.storage, row), **change)
    data = encode_metadata(document, uri=str(row.metadata_uri))
    local_path(str(row.metadata_uri)).write_bytes(data)
    row = replace(row, metadata_size=len(data), metadata_sha256=digest(data))
    (told,) = CheckpointVerifier(stage.storage).verify(row).problems
    assert "match its database row" in told


def test_savepoints_of_the_job_are_verified_where_they_are_asked_for(stage, tmp_path):
    attempt = stage.attempt()
    ref = attempt.grant.attempt
    stage.savepoints.request(make_savepoint_request(ref, target=f"file://{tmp_path}/saved"))
    stage.take(attempt, stage.snapshot(attempt, "raw"))
    view = stage.maintenance.describe(ref.job_id)
    assert len(list(verify_job(stage.maintenance, view, CheckpointStorage.open))) == 1
    found = list(verify_job(stage.maintenance, view, CheckpointStorage.open, with_savepoints=True))
    assert [v.is_restorable for v in found] == [True, True]
    next(local_path(found[1].pointer).glob("shared/*/*/data/part-0.parquet")).unlink()
    found = list(verify_job(stage.maintenance, view, CheckpointStorage.open, with_savepoints=True))
    assert [v.is_restorable for v in found] == [True, False]
    assert "part-0.parquet" in found[1].problems[0]
