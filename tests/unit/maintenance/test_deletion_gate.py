"""Nothing is deleted but what a job wrote itself or rightly claimed, whatever rows and metadata say."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_statecheck
from airflow_provider_statecheck.checkpoint.ids import checkpoint_uri, job_id_of
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, NoRestorableCheckpointError
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.discarding import StorageDiscarder
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle
from tests.sqlite_rows import engine_on, new_engine
from tests.unit.storage.keyed_files import exclusive_file, keyed, take
from tests.unit.written_stage import JOB, WrittenStage, collect

_WRITERS = {
    "gateway/mailbox/box.py",
    "maintenance/gc.py",  # passes deletions on and counts them
    "spark/snapshots/live_snapshots.py",
    "spark/stages/split_job.py",
    "state/writing/canonical.py",
    "storage/discarding.py",
    "storage/orphans.py",
    "storage/aligned_files.py",
    "storage/views/state_streams.py",
    "storage/views/state_files.py",
}
"""Who deletes without the gate: writers that remove what they have just written under a name of their own making."""


def on_database(tmp_path: Path, name: str) -> WrittenStage:
    store = SqlJobStore(new_engine(tmp_path / name))
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")), store=store)


def on_backup(tmp_path: Path) -> WrittenStage:
    """Return a stage on the database that a test has copied."""
    store = SqlJobStore(engine_on(tmp_path / "backup.db"))
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")), store=store)


@pytest.fixture
def restored(tmp_path: Path) -> tuple[WrittenStage, WrittenStage]:
    """A job that has completed one checkpoint, and its rows restored from a backup that was made then."""
    stage = on_database(tmp_path, "rows.db")
    stage.run(checkpoints=1)
    shutil.copyfile(tmp_path / "rows.db", tmp_path / "backup.db")
    return stage, on_backup(tmp_path)


def foreign_files(stage: WrittenStage) -> dict[str, int]:
    """Let a job complete two more checkpoints and return their files, which the backup does not know."""
    before = stage.files()
    attempt = stage.attempt()
    attempt.restore()
    stage.take(attempt, stage.snapshot(attempt, "more"))
    stage.take(attempt, stage.snapshot(attempt, "most"))
    attempt.finish(AttemptStatus.FAILED)
    return {name: size for name, size in stage.files().items() if name not in before}


def test_an_attempt_skips_the_ids_that_the_storage_holds_and_says_so(restored: Any, caplog: Any) -> None:
    lost, stage = restored
    files = foreign_files(lost)
    attempt = stage.attempt()
    assert "contains checkpoint 3, which is not in the database" in caplog.text
    attempt.restore()
    assert stage.take(attempt).checkpoint_id == 4
    attempt.finish(AttemptStatus.FINISHED)
    collect(stage)
    assert files.items() <= stage.files().items()


def test_an_attempt_whose_rows_know_its_storage_is_warned_of_nothing(stage: WrittenStage) -> None:
    stage.run(checkpoints=2)
    assert stage.attempt().grant.warning == ""


def test_a_stage_leaves_alone_the_checkpoints_of_another_coordinator_whose_ids_it_draws(restored: Any) -> None:
    other, stage = restored
    attempt = stage.attempt()
    attempt.restore()
    files = foreign_files(other)
    taken = [attempt.take_checkpoint(CheckpointContent(state={"own": i})) for i in range(3)]
    assert [each and each.checkpoint_id for each in taken] == [None, None, 4]
    attempt.finish(AttemptStatus.FINISHED)
    collect(stage)
    assert files.items() <= stage.files().items()
    assert set(stage.statuses().values()) <= {"aborted", "subsumed", "completed"}


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"format_version": 99}'])
def test_a_checkpoint_of_another_coordinator_stays_although_its_metadata_cannot_be_read(
    restored: Any, damaged: bytes
) -> None:
    other, stage = restored
    attempt = stage.attempt()
    attempt.restore()
    foreign_files(other)
    directory = f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-2"
    stage.storage.write_bytes(f"{directory}/_metadata", damaged, overwrite=True)
    before = stage.storage.list_files(directory)
    assert attempt.take_checkpoint(CheckpointContent(state={"own": 1})) is None
    attempt.finish(AttemptStatus.FINISHED)
    collect(stage)
    assert stage.storage.list_files(directory) == before


def in_progress_at_backup(tmp_path: Path, *, num_retained: int, later: int) -> WrittenStage:
    """Return the rows of a backup that was made while checkpoint 2 was written, after which others were completed."""
    lost = on_database(tmp_path, "rows.db")
    attempt = lost.attempt(num_retained=num_retained)
    snapshots: tuple[SnapshotHandle, ...] = ()
    for number in range(1, 3 + later):
        pending = attempt.begin_checkpoint(60.0)
        assert pending is not None
        if number == 2:
            shutil.copyfile(tmp_path / "rows.db", tmp_path / "backup.db")
        snapshots = (*snapshots, lost.snapshot(attempt, f"s{number}", rows=3))
        assert attempt.complete_checkpoint(pending, CheckpointContent(snapshots=snapshots)) is not None
    return on_backup(tmp_path)


def is_restorable(stage: WrittenStage, checkpoint_id: int) -> bool:
    pointer = checkpoint_uri(stage.storage.base_uri, job_id_of(JOB), checkpoint_id)
    return CheckpointVerifier(stage.storage).verify_pointer(pointer).is_restorable


def test_a_checkpoint_newer_than_a_backup_keeps_what_one_in_progress_then_had_written(tmp_path: Path) -> None:
    stage = in_progress_at_backup(tmp_path, num_retained=3, later=1)
    attempt = stage.attempt(num_retained=3)
    assert attempt.restore() is not None
    assert stage.statuses() == {1: "completed", 2: "aborted"}
    assert is_restorable(stage, 3)
    attempt.finish(AttemptStatus.FINISHED)
    collect(stage)
    assert is_restorable(stage, 3)


def test_the_only_checkpoint_that_can_be_read_stays_if_it_was_in_progress_at_the_backup(tmp_path: Path) -> None:
    stage = in_progress_at_backup(tmp_path, num_retained=1, later=0)
    with pytest.raises(NoRestorableCheckpointError):
        stage.attempt().restore()
    report = collect(stage)
    assert (report.problems, report.deleted) == ([], {})
    assert is_restorable(stage, 2)


def test_what_a_stage_wrote_beside_another_checkpoint_goes(restored: Any) -> None:
    other, stage = restored
    attempt = stage.attempt()
    attempt.restore()
    foreign_files(other)
    directory = f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-2"
    before = stage.storage.list_files(directory)
    large = {"text": "x" * 50_000}
    assert attempt.take_checkpoint(CheckpointContent(state=large)) is None
    assert len(stage.storage.list_files(directory)) == len(before) + 1
    attempt.finish(AttemptStatus.FINISHED)
    assert stage.storage.list_files(directory) == before


def test_state_that_a_stage_wrote_beside_another_checkpoint_stays_while_the_next_one_names_it(restored: Any) -> None:
    other, stage = restored
    attempt = stage.attempt()
    attempt.restore()
    pending = attempt.begin_checkpoint(60.0)
    foreign_files(other)
    before = stage.storage.list_files(pending.location)
    file = exclusive_file(stage.storage, attempt.grant.attempt, pending.checkpoint_id)
    assert attempt.complete_checkpoint(pending, CheckpointContent(operator_states=(keyed(file),))) is None
    assert attempt.begin_checkpoint(60.0) is not None, "the other one has this id too"
    assert CheckpointVerifier(stage.storage, is_deep=True).verify(take(attempt, file)).is_restorable
    take(attempt)
    attempt.finish(AttemptStatus.FINISHED)
    assert stage.storage.list_files(pending.location) == before


def test_metadata_that_names_the_snapshot_of_another_job_deletes_nothing_of_it(stage: WrittenStage) -> None:
    victim = stage.attempt("victim")
    handle = stage.snapshot(victim, "precious")
    stage.take(victim, handle)
    victim.finish(AttemptStatus.FINISHED)
    before = stage.storage.list_files(handle.uri)
    attempt = stage.attempt()
    stage.take(attempt, handle)
    stage.take(attempt)
    attempt.finish(AttemptStatus.FAILED)
    report = collect(stage)
    assert (report.problems, stage.statuses()) == ([], {1: "subsumed", 2: "completed"})
    assert stage.storage.list_files(handle.uri) == before


@pytest.mark.parametrize("where", ["chk-1", "shared", "", "savepoint-000000-000000000000/../chk-1"])
def test_a_checkpoint_of_another_job_cannot_be_claimed(stage: WrittenStage, where: str) -> None:
    stage.run("victim", checkpoints=1)
    before = stage.files()
    pointer = f"{stage.storage.base_uri}/{job_id_of('victim')}/{where}".rstrip("/")
    source = RestoreSource(
        pointer=pointer,
        metadata_uri=f"{pointer}/_metadata",
        metadata_size=1,
        metadata_sha256="0" * 64,
        mode=RestoreMode.CLAIM,
    )
    with pytest.raises(InvalidConfigurationError, match="no_claim"):
        stage.attempt(restore_from=source)
    assert stage.files() == before


def test_a_savepoint_whose_state_is_refused_is_left_to_its_owner(stage: WrittenStage) -> None:
    source, before = _savepoint(stage)
    refusing = stage.attempt("heir", restore_from=source)
    assert refusing.load() is not None
    refusing.finish(AttemptStatus.FAILED, "the state does not fit")
    assert not stage.attempt("heir").grant.is_restore
    assert collect(stage, "heir").deleted == {}
    assert before.items() <= stage.files().items()
    rival = stage.attempt("rival", restore_from=source)
    assert rival.restore() is not None
    claim = stage.store.claim(source.pointer)
    assert claim is not None
    assert claim.job_id == job_id_of("rival")


def _savepoint(stage: WrittenStage) -> tuple[RestoreSource, dict[str, int]]:
    from tests.unit.maintenance.test_gc import written_savepoint

    source, _ = written_savepoint(stage)
    found = stage.source_at(source.pointer)
    assert found is not None
    return replace(found, mode=RestoreMode.CLAIM), stage.files()


@pytest.mark.parametrize(
    ("uri", "is_owned"),
    [
        ("{base}/{job}/chk-1", True),
        ("{base}/{job}/chk-1/_metadata", True),
        ("{base}/{job}/shared/{op}/raw/1-a", True),
        ("s3://elsewhere/{job}/chk-1", True),
        ("{savepoint}", True),
        ("{savepoint}/shared/raw", True),
        ("{savepoint}0", False),
        ("{base}/{job}", False),
        ("{base}/{other}/chk-1", False),
        ("{base}/{other}/shared/{op}/raw/1-a", False),
        ("{base}/savepoint-000000-000000000009", False),
        ("{base}", False),
    ],
)
def test_the_gate_lets_a_job_delete_its_own(stage: WrittenStage, uri: str, is_owned: bool) -> None:
    base, job = stage.storage.base_uri, job_id_of(JOB)
    savepoint = f"{base}/savepoint-000000-000000000001"
    discarder = StorageDiscarder(stage.storage, job, lambda directory: directory == savepoint)
    told = uri.format(base=base, job=job, other="f" * 32, op="a" * 32, savepoint=savepoint)
    assert discarder.owns(told) is is_owned
    if not is_owned:
        with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
            discarder.discard_location(told)


def test_every_deletion_that_follows_rows_passes_the_gate() -> None:
    root = Path(airflow_provider_statecheck.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        calls = (n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
        names = {f.attr for f in calls if isinstance(f, ast.Attribute)}
        found |= {str(path.relative_to(root))} if names & {"delete_directory", "delete_file"} else set()
    assert {name for name in found if not name.startswith("testing/")} == _WRITERS
