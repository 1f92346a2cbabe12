"""State of a savepoint, in the savepoint and in the job that begins from it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import epoch_of, job_id_of, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreMode, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    OperatorState,
    SegmentFileStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StorageError
from airflow_provider_statecheck.maintenance.gc import collect_job
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.stages.stage_state import RestoredStageState, copy_borrowed_files
from airflow_provider_statecheck.state.writing.canonical import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    decode_metadata,
    load_document,
    state_uris,
)
from airflow_provider_statecheck.storage.pointers import WrittenSavepoint
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.messages import source_at
from tests.unit.storage.keyed_files import files_left, keyed, state_file, take, uris, write
from tests.unit.written_stage import JOB, WrittenStage, local_path

MODES = [FaultMode.ERROR, FaultMode.REPLY_LOST]


@pytest.fixture
def taken(stage: WrittenStage) -> CheckpointRecord:
    """A checkpoint of an ended attempt with two files of state."""
    attempt = stage.attempt()
    files = [state_file(stage.storage, attempt.grant.attempt, bytes([i]) * 50) for i in range(2)]
    completed = take(attempt, *files, has_commit=True)
    attempt.finish(AttemptStatus.FAILED)
    return completed


def save(stage: WrittenStage, taken: CheckpointRecord, directory: str, storage: Any = None) -> WrittenSavepoint:
    return write_savepoint(
        storage or stage.storage,
        replace(load_document(stage.storage, taken), has_commit=True),
        directory=directory,
        checkpoint_id=9,
        properties=CheckpointProperties.for_savepoint(savepoint_format=SavepointFormat.NATIVE),
    )


def contents(storage: CheckpointStorage, document: CheckpointDocument) -> list[bytes]:
    files = [s for state in document.operator_states for s in streams_of(state) if isinstance(s, FileStateHandle)]
    return [storage.read_verified(f.uri, size=f.size, sha256=f.sha256) for f in files]


class TestSavepoint:
    def test_it_holds_the_files_of_keyed_state_and_can_be_moved(
        self, stage: WrittenStage, taken: CheckpointRecord, tmp_path: Path
    ) -> None:
        directory = new_savepoint_uri(stage.storage.base_uri, taken.job_id)
        written = save(stage, taken, directory)
        stage.storage.delete_directory(taken.location)
        for uri in files_left(stage.storage, JOB):
            stage.storage.delete_file(uri)
        moved = local_path(directory).rename(tmp_path / "elsewhere")
        uri = f"file://{moved}/_metadata"
        storage = stage.storage.allowing(uri)
        document = decode_metadata(storage.read_bytes(uri), uri=uri)
        assert contents(storage, document) == [b"\x00" * 50, b"\x01" * 50]
        assert (document.relocatable, document.has_commit, written.state_size_bytes) == (True, False, 100)
        assert CheckpointVerifier(stage.storage, is_deep=True).verify_pointer(f"file://{moved}").is_restorable

    @pytest.mark.parametrize("mode", MODES)
    def test_one_that_fails_at_any_call_has_no_metadata_and_another_can_be_taken(
        self, stage: WrittenStage, taken: CheckpointRecord, mode: FaultMode
    ) -> None:
        plan = FaultPlan()
        copying = ("copy_file", "write_bytes")
        save(stage, taken, new_savepoint_uri(stage.storage.base_uri, taken.job_id), counted(stage, plan, copying))
        assert plan.calls == ["copy_file", "copy_file", "write_bytes"]
        for point in range(1, 4):
            directory = new_savepoint_uri(stage.storage.base_uri, taken.job_id)
            with pytest.raises(StorageError):
                save(stage, taken, directory, counted(stage, FaultPlan(point, mode), copying))
            is_whole = point == 3 and mode is FaultMode.REPLY_LOST
            assert stage.storage.exists(f"{directory}/_metadata") is is_whole
        again = new_savepoint_uri(stage.storage.base_uri, taken.job_id)
        save(stage, taken, again)
        assert CheckpointVerifier(stage.storage, is_deep=True).verify_pointer(again).is_restorable


def counted(stage: WrittenStage, plan: FaultPlan, names: tuple[str, ...]) -> Any:
    from airflow_provider_statecheck.testing.faults import Counted

    return Counted(stage.storage, plan, names, StorageError)


class TestBorrowing:
    @pytest.fixture
    def savepoint(self, stage: WrittenStage, taken: CheckpointRecord) -> str:
        directory = new_savepoint_uri(stage.storage.base_uri, taken.job_id)
        save(stage, taken, directory)
        return directory

    def begin(
        self, stage: WrittenStage, savepoint: str, mode: RestoreMode = RestoreMode.NO_CLAIM
    ) -> tuple[StageAttempt, tuple[OperatorState, ...]]:
        """Begin an attempt of another job from the savepoint, and return it with the restored states."""
        attempt = stage.attempt("heir", restore_from=source_at(stage.storage, savepoint, mode=mode))
        restored = attempt.restore()
        assert restored is not None
        return attempt, restored.document.operator_states

    def test_a_checkpoint_after_a_restore_without_a_claim_names_copies_only(
        self, stage: WrittenStage, savepoint: str
    ) -> None:
        before = stage.storage.list_files(savepoint)
        attempt, states = self.begin(stage, savepoint)
        owned = copy_borrowed_files(stage.storage, states, attempt.grant.attempt)
        files = [s for s in streams_of(owned[0]) if isinstance(s, FileStateHandle)]
        first = take(attempt, *files)
        assert sum(file.size for file in files) == 100
        take(attempt)
        attempt.finish(AttemptStatus.FINISHED)
        collect_job(stage.maintenance, job_id_of("heir"), CheckpointStorage.open)
        assert stage.storage.list_files(savepoint) == before
        assert files_left(stage.storage, "heir") == set()
        assert first.properties.snapshot_type.value == "full_checkpoint"

    def test_copies_are_equal_belong_to_the_attempt_and_outlive_the_savepoint(
        self, stage: WrittenStage, savepoint: str
    ) -> None:
        source = source_at(stage.storage, savepoint, mode=RestoreMode.NO_CLAIM)
        attempt = stage.attempt("heir", restore_from=source)
        owned = RestoredStageState(attempt, attempt.restore()).functions
        completed = take(attempt, *(s for s in streams_of(owned[0]) if isinstance(s, FileStateHandle)))
        stage.storage.delete_directory(savepoint)
        document = load_document(stage.storage, completed)
        assert contents(stage.storage, document) == [b"\x00" * 50, b"\x01" * 50]
        assert {epoch_of(uri.rpartition("/")[2]) for uri in state_uris(document.operator_states)} == {1}
        assert CheckpointVerifier(stage.storage, is_deep=True).verify(completed).is_restorable

    def test_a_claimed_savepoint_is_named_where_it_lies_and_goes_with_the_last_that_names_it(
        self, stage: WrittenStage, savepoint: str
    ) -> None:
        attempt, states = self.begin(stage, savepoint, RestoreMode.CLAIM)
        files = list(states[0].subtask_states[0].managed_keyed[0].shared)
        take(attempt, files[0][1])
        attempt.finish(AttemptStatus.FAILED)
        collect_job(stage.maintenance, job_id_of("heir"), CheckpointStorage.open)
        assert {f"{savepoint}/{name}" for name in stage.storage.list_files(savepoint)} == uris(files[0][1])
        retry, _ = self.begin(stage, savepoint, RestoreMode.CLAIM)
        take(retry)
        retry.finish(AttemptStatus.FAILED)
        collect_job(stage.maintenance, job_id_of("heir"), CheckpointStorage.open)
        assert not stage.storage.exists(savepoint)

    def test_copies_that_no_checkpoint_names_go_when_the_attempt_has_ended(
        self, stage: WrittenStage, savepoint: str
    ) -> None:
        attempt, states = self.begin(stage, savepoint)
        copy_borrowed_files(stage.storage, states, attempt.grant.attempt)
        assert len(files_left(stage.storage, "heir")) == 2
        attempt.finish(AttemptStatus.FAILED)
        collect_job(stage.maintenance, job_id_of("heir"), CheckpointStorage.open)
        assert files_left(stage.storage, "heir") == set()

    def test_own_files_and_state_in_its_handle_are_not_copied(self, stage: WrittenStage) -> None:
        ref = stage.attempt().grant.attempt
        own, inline = state_file(stage.storage, ref), ByteStreamStateHandle("n", b"inline")
        before = stage.files()
        owned = copy_borrowed_files(stage.storage, [keyed(own, inline)], ref)
        assert (owned, stage.files()) == ((keyed(own, inline),), before)

    @pytest.mark.parametrize(
        "place",
        ["{base}/{other}/shared/{op}/state", "{elsewhere}/{job}/shared/{op}/state", "{base}/{job}/chk-1"],
        ids=["another job", "the job of the same name in another directory", "the directory of a checkpoint"],
    )
    def test_whatever_is_not_shared_state_of_this_very_operator_is_copied(
        self, stage: WrittenStage, tmp_path: Path, place: str
    ) -> None:
        ref = stage.attempt().grant.attempt
        ids = {"job": ref.job_id, "other": job_id_of("other"), "op": ref.operator_id}
        directory = place.format(base=stage.storage.base_uri, elsewhere=f"file://{tmp_path}/elsewhere", **ids)
        foreign = write(stage.storage, f"{directory}/1-{'0' * 32}")
        owned = copy_borrowed_files(stage.storage.allowing(directory), [keyed(foreign, foreign)], ref)
        copy, named_again = state_uris(owned)
        assert copy == named_again
        assert copy.startswith(f"{stage.storage.base_uri}/{ref.job_id}/shared/{ref.operator_id}/")

    def test_part_of_a_merged_file_becomes_a_file_of_its_own(self, stage: WrittenStage) -> None:
        ref = stage.attempt().grant.attempt
        whole = write(stage.storage, f"{stage.storage.base_uri}/savepoint-012345-0123456789ab/1-{'0' * 32}", b"abcdef")
        digest = hashlib.sha256(b"cd").hexdigest()
        parts = [
            SegmentFileStateHandle(whole.uri, start, 2, CheckpointedStateScope.SHARED, "s", sha256)
            for start, sha256 in ((0, ""), (2, digest))
        ]
        owned = copy_borrowed_files(stage.storage, [keyed(*parts)], ref)
        first, second = (s for s in streams_of(owned[0]) if isinstance(s, FileStateHandle))
        assert stage.storage.read_bytes(first.uri) == b"ab"
        assert stage.storage.read_verified(second.uri, size=2, sha256=second.sha256) == b"cd"

    def test_a_file_that_its_owner_deleted_is_an_error(self, stage: WrittenStage) -> None:
        ref = stage.attempt().grant.attempt
        with pytest.raises(CheckpointNotFoundError):
            copy_borrowed_files(
                stage.storage.allowing("file:///gone/savepoint"),
                [keyed(FileStateHandle("file:///gone/savepoint/1-a", 1))],
                ref,
            )

    @pytest.mark.parametrize("mode", MODES)
    def test_copying_that_fails_at_any_call_is_made_good_by_the_next(
        self, stage: WrittenStage, savepoint: str, mode: FaultMode
    ) -> None:
        attempt, states = self.begin(stage, savepoint)
        copying = ("copy_file",)
        for point in (1, 2):
            for uri in files_left(stage.storage, "heir"):
                stage.storage.delete_file(uri)
            plan = FaultPlan(point, mode)
            with pytest.raises(StorageError):
                copy_borrowed_files(counted(stage, plan, copying), states, attempt.grant.attempt)
            owned = copy_borrowed_files(counted(stage, plan, copying), states, attempt.grant.attempt)
            copied_before = point - (mode is FaultMode.ERROR)
            assert len(plan.calls) == point + 2 - copied_before, "only what is missing is copied"
            assert files_left(stage.storage, "heir") == set(state_uris(owned))


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_verification_finds_a_damaged_file_of_keyed_state(
    stage: WrittenStage, taken: CheckpointRecord, damage: str
) -> None:
    path = local_path(min(files_left(stage.storage, JOB)))
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"?" * (49 if damage == "cut" else 50))
    shallow = CheckpointVerifier(stage.storage).verify(taken)
    deep = CheckpointVerifier(stage.storage, is_deep=True).verify(taken)
    assert shallow.is_restorable is (damage == "changed")
    assert "state of operator 'aggregate/balance'" in deep.problems[0]


def test_a_file_that_several_checkpoints_name_is_read_once(stage: WrittenStage) -> None:
    attempt = stage.attempt(num_retained=3)
    file = state_file(stage.storage, attempt.grant.attempt)
    taken = [take(attempt, file) for _ in range(3)]
    plan = FaultPlan()
    verifier = CheckpointVerifier(faulty_storage(stage.storage, plan), is_deep=True)
    assert all(verifier.verify(each).is_restorable for each in taken)
    assert plan.calls.count("read_range") == 1
