"""Verifying the files of operators' state, and metadata against its row."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    OperatorState,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier, verify_job
from airflow_provider_statecheck.spark.restore import StateVerifier
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import encode_metadata, load_document
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_storage
from tests.unit.storage.documents import make_document
from tests.unit.written_stage import JOB, WrittenStage, local_path

DATA = b"some state"


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def problems(storage: Any, stream: Any, *, is_deep: bool = False) -> list[str]:
    state = OperatorState(
        uid="sum", operator_id=operator_id_of("sum"), parallelism=1, max_parallelism=1, coordinator_state=stream
    )
    return StateVerifier(storage, is_deep=is_deep).problems(make_document(operator_states=(state,)))


def written(stage: WrittenStage, data: bytes = DATA) -> str:
    uri = f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-1/1-{new_key()}"
    stage.storage.write_bytes(uri, data)
    return uri


def segment(uri: str, start: int, length: int, sha256: str = "") -> SegmentFileStateHandle:
    return SegmentFileStateHandle(uri, start, length, CheckpointedStateScope.SHARED, "segment", sha256)


@pytest.mark.parametrize("is_deep", [False, True])
def test_what_is_there_and_unchanged_is_no_problem(stage, is_deep):
    uri = written(stage)
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
    (told,) = problems(stage.storage, FileStateHandle(written(stage), size))
    assert f"Expected {size} bytes" in told


@pytest.mark.parametrize(("start", "length"), [(5, 6), (-1, 3), (11, 0)])
def test_a_segment_must_lie_within_its_file(stage, start, length):
    assert len(problems(stage.storage, segment(written(stage), start, length))) == 1


def test_changed_bytes_are_told_by_a_deep_look(stage):
    uri = written(stage)
    for stream in (FileStateHandle(uri, len(DATA), digest(b"other")), segment(uri, 0, 4, digest(b"others"))):
        assert problems(stage.storage, stream) == []
        (told,) = problems(stage.storage, stream, is_deep=True)
        assert "changed after they were written" in told


def test_a_storage_that_does_not_answer_says_nothing_about_the_state(stage):
    uri = written(stage)
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
    assert "match its row" in told


def test_savepoints_of_the_job_are_verified_where_they_are_asked_for(stage, tmp_path):
    attempt = stage.attempt()
    ref = attempt.grant.attempt
    stage.savepoints.request(
        RequestSavepoint(
            job_id=ref.job_id, operator_id=ref.operator_id, request_key=new_key(), target=f"file://{tmp_path}/saved"
        )
    )
    stage.take(attempt, stage.snapshot(attempt, "raw"))
    view = stage.maintenance.describe(ref.job_id)
    assert len(list(verify_job(stage.maintenance, view, CheckpointStorage.open))) == 1
    found = list(verify_job(stage.maintenance, view, CheckpointStorage.open, with_savepoints=True))
    assert [v.is_restorable for v in found] == [True, True]
    next(local_path(found[1].pointer).glob("shared/*/*/data/part-0.parquet")).unlink()
    found = list(verify_job(stage.maintenance, view, CheckpointStorage.open, with_savepoints=True))
    assert [v.is_restorable for v in found] == [True, False]
    assert "part-0.parquet" in found[1].problems[0]
