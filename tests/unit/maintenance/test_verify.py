from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, StorageError
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier, Verification
from airflow_provider_statecheck.storage.bounds import MOST_PROBLEMS
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, load_document
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_storage
from tests.unit.interpreter import modules_loaded_by
from tests.unit.written_stage import WrittenStage, local_path, parquet
from tests.written_snapshots import flip

LARGE_STATE = "x" * 100_000


@pytest.fixture
def checkpoint(stage: WrittenStage) -> CheckpointRecord:
    """One with two snapshots and a file of state."""
    attempt = stage.attempt()
    snapshots = [stage.snapshot(attempt, name) for name in ("raw", "sessions")]
    return stage.take(attempt, *snapshots, state=LARGE_STATE)


def verify(stage: WrittenStage, checkpoint: CheckpointRecord, *, is_deep: bool = False) -> Verification:
    return CheckpointVerifier(stage.storage, is_deep=is_deep).verify(checkpoint)


def document_of(stage: WrittenStage, checkpoint: CheckpointRecord) -> CheckpointDocument:
    return load_document(stage.storage, checkpoint)


def metadata(stage: WrittenStage, checkpoint: CheckpointRecord) -> Path:
    return local_path(str(checkpoint.metadata_uri))


def state(stage: WrittenStage, checkpoint: CheckpointRecord) -> Path:
    handle = document_of(stage, checkpoint).state
    assert isinstance(handle, FileStateHandle)
    return local_path(handle.uri)


def manifest(stage: WrittenStage, checkpoint: CheckpointRecord) -> Path:
    return local_path(f"{document_of(stage, checkpoint).snapshots[1].uri}/_manifest")


def data(stage: WrittenStage, checkpoint: CheckpointRecord) -> Path:
    return local_path(f"{document_of(stage, checkpoint).snapshots[1].uri}/data/part-1.parquet")


FILES = [metadata, state, manifest, data]
Find = Callable[[WrittenStage, CheckpointRecord], Path]


@pytest.mark.parametrize("is_deep", [False, True])
def test_an_undamaged_checkpoint_is_restorable(stage, checkpoint, is_deep):
    found = verify(stage, checkpoint, is_deep=is_deep)
    assert found == Verification(pointer=checkpoint.location, checkpoint_id=1)
    assert found.is_restorable


@pytest.mark.parametrize("find", FILES)
def test_a_missing_file_is_told(stage, checkpoint, find):
    path = find(stage, checkpoint)
    path.unlink()
    found = verify(stage, checkpoint)
    assert not found.is_restorable
    assert path.name in found.problems[0]


@pytest.mark.parametrize("find", FILES)
def test_a_file_of_another_length_is_told(stage, checkpoint, find):
    path = find(stage, checkpoint)
    path.write_bytes(path.read_bytes()[:-1])
    found = verify(stage, checkpoint)
    assert len(found.problems) == 1
    assert path.name in found.problems[0]


@pytest.mark.parametrize("find", [metadata, state, manifest])
def test_a_flipped_byte_is_told_of_what_has_a_checksum(stage, checkpoint, find):
    path = find(stage, checkpoint)
    flip(path, path.stat().st_size // 2)
    assert path.name in verify(stage, checkpoint).problems[0]


def page_positions(path: Path) -> list[int]:
    """Return some positions in the pages; their headers have no checksum, and some bits of them no meaning."""
    group = pyarrow.parquet.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    spans = [(c.data_page_offset, c.data_page_offset + c.total_compressed_size) for c in columns]
    return [position for start, end in spans for position in (*range(start + 100, end, 997), end - 1)]


def test_a_flipped_byte_in_any_page_is_told_by_a_deep_look(stage, checkpoint):
    path = data(stage, checkpoint)
    whole = path.read_bytes()
    positions = page_positions(path)
    assert len(positions) > 20
    for position in positions:
        flip(path, position)
        assert verify(stage, checkpoint).is_restorable, "its length is as it was"
        found = verify(stage, checkpoint, is_deep=True)
        assert len(found.problems) == 1, position
        assert "snapshot 'sessions'" in found.problems[0]
        assert "part-1.parquet" in found.problems[0]
        path.write_bytes(whole)


def test_a_changed_footer_is_told(stage, checkpoint):
    path = data(stage, checkpoint)
    flip(path, path.stat().st_size - 20)
    assert "footer" in verify(stage, checkpoint).problems[0]


def test_another_file_of_the_same_length_is_told(stage, checkpoint):
    path = data(stage, checkpoint)
    other = parquet(1000, 2)
    assert len(other) == path.stat().st_size
    path.write_bytes(other)
    assert "footer" in verify(stage, checkpoint).problems[0]


def test_all_that_is_wrong_is_told(stage, checkpoint):
    for find in (state, manifest, data):
        find(stage, checkpoint).unlink()
    first = document_of(stage, checkpoint).snapshots[0]
    local_path(f"{first.uri}/data/part-0.parquet").unlink()
    found = verify(stage, checkpoint)
    assert [("raw" in p, "sessions" in p) for p in found.problems] == [(False, False), (True, False), (False, True)]


def test_a_storage_that_does_not_answer_is_an_error_wherever_it_fails(stage, checkpoint):
    """It says nothing about the checkpoint, least of all that it is damaged."""
    plan = FaultPlan()
    CheckpointVerifier(faulty_storage(stage.storage, plan), is_deep=True).verify(checkpoint)
    calls = len(plan.calls)
    assert {"read_verified", "list_files", "read_range"} <= set(plan.calls)
    for point in range(1, calls + 1):
        verifier = CheckpointVerifier(faulty_storage(stage.storage, FaultPlan(point)), is_deep=True)
        with pytest.raises(StorageError, match="Injected fault"):
            verifier.verify(checkpoint)


def test_a_snapshot_of_several_checkpoints_is_read_once(stage):
    attempt = stage.attempt(num_retained=2)
    handle = stage.snapshot(attempt, "raw")
    taken = [stage.take(attempt, handle) for _ in range(2)]
    plan = FaultPlan()
    verifier = CheckpointVerifier(faulty_storage(stage.storage, plan), is_deep=True)
    assert all(verifier.verify(each).is_restorable for each in taken)
    assert plan.calls.count("list_files") == 1


def test_files_that_only_spark_can_read_are_no_damage_and_are_told(stage, checkpoint, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise pyarrow.ArrowNotImplementedError("a type of Spark's own")

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", refuse)
    found = verify(stage, checkpoint, is_deep=True)
    assert found.is_restorable
    assert len(found.unchecked) == 4


@pytest.mark.parametrize("kind", [pyarrow.ArrowException, pyarrow.ArrowMemoryError, pyarrow.ArrowKeyError, OSError])
def test_whatever_the_reader_says_of_a_damaged_page_is_a_problem(stage, checkpoint, monkeypatch, kind):
    def refuse(*_: Any, **__: Any) -> None:
        raise kind("malformed")

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", refuse)
    found = verify(stage, checkpoint, is_deep=True)
    assert (len(found.problems), found.unchecked) == (4, ())


SECRET_URI = "s3://KEY:SECRET@bucket/part-0.parquet"


@pytest.mark.parametrize("kind", [pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError])
def test_no_text_about_pages_shows_a_password(stage, checkpoint, monkeypatch, kind):
    def refuse(*_: Any, **__: Any) -> None:
        raise kind(SECRET_URI)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", refuse)
    found = verify(stage, checkpoint, is_deep=True)
    for text in (*found.problems, *found.unchecked):
        assert "s3://***@bucket" in text
        assert "SECRET" not in text


@pytest.mark.parametrize("step", ["load_document", "read_values", "read_manifest"])
def test_no_text_about_metadata_state_or_manifests_shows_a_password(stage, checkpoint, monkeypatch, step):
    def refuse(*_: Any, **__: Any) -> None:
        raise CorruptStateError(SECRET_URI)

    monkeypatch.setattr(f"airflow_provider_statecheck.maintenance.verify.{step}", refuse)
    found = verify(stage, checkpoint)
    assert found.problems
    assert all("s3://***@bucket" in text and "SECRET" not in text for text in found.problems)


@pytest.mark.parametrize("suffix", ["", "/", "/_metadata"])
def test_a_pointer_is_verified_without_a_row(stage, checkpoint, suffix):
    verifier = CheckpointVerifier(stage.storage)
    found = verifier.verify_pointer(checkpoint.location + suffix)
    assert (found.checkpoint_id, found.is_restorable) == (1, True)
    flip(metadata(stage, checkpoint), 200)
    assert not verifier.verify_pointer(checkpoint.location + suffix).is_restorable


def test_a_pointer_to_nothing_is_an_error(stage, checkpoint):
    with pytest.raises(CheckpointNotFoundError):
        CheckpointVerifier(stage.storage).verify_pointer(f"{checkpoint.location}9")


def test_a_checkpoint_that_was_moved_verifies_where_it_is(stage, checkpoint, tmp_path):
    moved = tmp_path / "moved"
    local_path(stage.storage.base_uri).rename(moved)
    pointer = checkpoint.location.replace(stage.storage.base_uri, f"file://{moved}")
    assert CheckpointVerifier(stage.storage, is_deep=True).verify_pointer(pointer).is_restorable
    row = replace(checkpoint, location=pointer, metadata_uri=f"{pointer}/_metadata")
    assert verify(stage, row).is_restorable


def test_verifying_loads_no_pyspark():
    loaded = modules_loaded_by("import airflow_provider_statecheck.maintenance.verify")
    assert not {name.partition(".")[0] for name in loaded} & {"pyspark", "py4j", "pyarrow", "airflow"}


def test_after_a_hundred_problems_no_more_snapshots_are_read(stage: WrittenStage) -> None:
    """Otherwise metadata of the largest size would cost the time of a hundred thousand reads, and the memory."""
    attempt = stage.attempt()
    handle = stage.snapshot(attempt, "raw")
    missing = [replace(handle, name=f"raw {number}", uri=f"{handle.uri}-{number}") for number in range(MOST_PROBLEMS)]
    found = verify(stage, stage.take(attempt, handle, *missing, replace(missing[0], name="never read")))
    assert len(found.problems) == MOST_PROBLEMS + 1
    assert found.problems[-1] == f"Snapshots that were not read after {MOST_PROBLEMS} problems: 1."
    assert not any("never read" in problem for problem in found.problems)
