from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import JobStatus, RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.store import RECENT
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.gateway.mailbox.box import CallName, Mailbox
from airflow_provider_statecheck.maintenance.gc import CollectedJob, PruneRequest, prune_job
from airflow_provider_statecheck.spark.driver.shipped_files import published_package, published_stage_application
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle, encode_metadata, load_document
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.contracts.maintenance_contract import AIRFLOW
from tests.contracts.runs_of_a_job import AGAIN, day
from tests.messages import make_owner
from tests.unit.storage.keyed_files import state_file
from tests.unit.written_stage import JOB, WrittenStage, collect, local_path, no_storage

CLEAN = {1: "subsumed", 2: "subsumed", 3: "completed"}
DIRTY = {1: "SUBSUMED", 2: "SUBSUMED", 3: "completed"}


def test_what_drivers_left_is_deleted_with_its_snapshots_and_confirmed(stage):
    stage.run()
    before = sum(stage.files().values())
    report = collect(stage)
    assert stage.statuses() == CLEAN
    assert stage.directories() == {"chk-3", "step_2"}
    assert len(report.deleted) == 4
    assert report.deleted_bytes == before - sum(stage.files().values()) > 0
    assert (report.kept, report.problems, report.unreachable) == ([], [], [])


def test_directories_that_hold_nothing_go(stage):
    attempt = stage.run()
    kept = stage.snapshot(stage.attempt("other"), "kept")
    root = local_path(stage.storage.base_uri)
    empty = root / attempt.grant.attempt.job_id / "shared" / "nobody" / "step-1"
    empty.mkdir(parents=True)
    collect(stage, dry_run=True)
    assert empty.exists()
    collect(stage)
    assert all(any(directory.iterdir()) for directory in root.rglob("*") if directory.is_dir())
    assert local_path(kept.uri).exists()


def test_a_job_of_which_nothing_is_left_leaves_no_directory(stage):
    attempt = stage.run()
    request = PruneRequest(job_ids=(attempt.grant.attempt.job_id,))
    prune_job(stage.maintenance, attempt.grant.attempt.job_id, request, CheckpointStorage.open)
    assert list(local_path(stage.storage.base_uri).iterdir()) == []


def test_no_directory_goes_while_an_attempt_may_write_to_it(stage):
    stage.run()
    open_attempt = stage.attempt(uid="other")
    empty = local_path(stage.storage.base_uri) / open_attempt.grant.attempt.job_id / "shared" / "new"
    empty.mkdir()
    collect(stage)
    assert empty.exists()


def test_a_late_file_of_a_checkpoint_goes_however_many_came_after_it(stage):
    """A view holds the newest rows only, and without a row nobody would dare to delete what cannot be read."""
    job = stage.run().grant.attempt.job_id
    collect(stage)
    with stage.store.transaction(job) as tx:
        gone = tx.checkpoint(1)
        for _ in range(RECENT):
            tx.add_checkpoint(replace(gone, checkpoint_id=tx.draw_checkpoint_id(), request_key=new_key()))
    assert 1 not in stage.statuses()
    late = f"{gone.location}/_metadata"
    stage.storage.write_bytes(late, b"half")
    collect(stage)
    assert not stage.storage.exists(late)


def test_a_dry_run_tells_the_same_and_changes_nothing(stage):
    stage.run()
    before = stage.files()
    told = collect(stage, dry_run=True)
    assert (stage.files(), stage.statuses()) == (before, DIRTY)
    assert told.deleted == collect(stage).deleted


def test_many_discards_are_confirmed_in_several_messages(stage, monkeypatch):
    """The API takes messages of a limited size."""
    monkeypatch.setattr("airflow_provider_statecheck.maintenance.gc.IDS_PER_MESSAGE", 1)
    stage.run()
    told: list[Any] = []
    confirm = stage.maintenance.confirm_discards

    def noted(job_id: Any, ids: Any) -> None:
        told.append(ids)
        confirm(job_id, ids)

    monkeypatch.setattr(stage.maintenance, "confirm_discards", noted)
    collect(stage)
    assert (told, stage.statuses()) == ([(1,), (2,)], CLEAN)


@pytest.mark.parametrize("name", ["chk-0", f"chk-{'9' * 20}"])
def test_a_directory_whose_number_is_no_id_is_no_checkpoint(stage, name):
    stray = f"{stage.storage.base_uri}/{job_id_of(JOB)}/{name}/_metadata"
    stage.run()
    stage.storage.write_bytes(stray, b"stray")
    attempt = stage.attempt()
    assert (attempt.grant.warning, attempt.restore() is None) == ("", False)
    attempt.finish(AttemptStatus.FINISHED)
    assert collect(stage).problems == []
    assert stage.storage.exists(stray)


def test_a_second_collection_finds_nothing(stage):
    stage.run()
    collect(stage)
    assert collect(stage) == CollectedJob(job=JOB)


@pytest.mark.parametrize(("end", "goes"), [(JobStatus.FINISHED, True), (JobStatus.FAILED, False), (None, False)])
def test_what_does_not_stay_after_its_run_goes_with_its_snapshots(stage, end, goes):
    job = "nightly/2026-01-01"
    attempt = stage.attempt(job, owner=make_owner(run_key="2026-01-01", run_id="run-1", airflow=AIRFLOW))
    stage.take(attempt, stage.snapshot(attempt, "raw"))
    attempt.finish(AttemptStatus.FINISHED)
    if end is not None:
        stage.runs.ended["run-1"] = end
    before = stage.maintenance.describe(job_id_of(job))
    told = collect(stage, job, dry_run=True)
    assert (stage.maintenance.describe(job_id_of(job)), stage.directories(job)) == (before, {"chk-1", "raw"})
    deleted = collect(stage, job).deleted
    assert (told.deleted, bool(deleted)) == (deleted, goes)
    assert stage.statuses(job) == ({1: "subsumed"} if goes else {1: "completed"})
    assert stage.directories(job) == (set() if goes else {"chk-1", "raw"})


def written_savepoint(stage: WrittenStage) -> tuple[RestoreSource, SnapshotHandle]:
    """Write a savepoint with a snapshot in its directory, as another job left it."""
    other = stage.attempt("other job")
    taken = stage.take(other, stage.snapshot(other, "raw"))
    other.finish(AttemptStatus.FINISHED)
    [handle] = load_document(stage.storage, taken).snapshots
    pointer = f"{stage.storage.base_uri}/savepoint-0123ab-0123456789ab"
    inside = replace(handle, uri=f"{pointer}/{handle.uri.rsplit('/', 1)[1]}")
    for name in stage.storage.list_files(handle.uri):
        stage.storage.write_bytes(f"{inside.uri}/{name}", stage.storage.read_bytes(f"{handle.uri}/{name}"))
    uri = f"{pointer}/_metadata"
    data = encode_metadata(replace(load_document(stage.storage, taken), snapshots=(inside,)), uri=uri)
    stage.storage.write_bytes(uri, data)
    digest = hashlib.sha256(data).hexdigest()
    source = RestoreSource(
        pointer=pointer, metadata_uri=uri, metadata_size=len(data), metadata_sha256=digest, mode=RestoreMode.CLAIM
    )
    return source, inside


def test_a_claimed_savepoint_goes_when_nothing_in_it_is_used_any_more(stage):
    source, inside = written_savepoint(stage)

    def left() -> set[str]:
        return {name.split("/")[0] for name in stage.storage.list_files(source.pointer)}

    attempt = stage.attempt(restore_from=source)
    assert attempt.restore() is not None
    stage.take(attempt, inside)
    attempt.finish(AttemptStatus.FAILED)
    report = collect(stage)
    assert (report.problems, len(report.kept)) == ([], 1)
    assert left() == {inside.uri.rsplit("/", 1)[1]}
    retry = stage.attempt(restore_from=source)
    assert retry.restore() is not None
    stage.take(retry)
    retry.finish(AttemptStatus.FAILED)
    report = collect(stage)
    assert (report.problems, report.kept, left()) == ([], [], set())
    assert set(stage.statuses().values()) == {"subsumed", "completed"}


class _KilledError(BaseException):
    """Stands for the end of a process."""


def test_what_a_killed_writer_left_of_a_file_of_state_goes_with_its_attempt(stage, monkeypatch):
    def die(*_: Any) -> None:
        raise _KilledError

    attempt = stage.attempt()
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", die)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a process that is killed removes nothing
        with pytest.raises(_KilledError):
            state_file(stage.storage, attempt.grant.attempt)
    (left,) = stage.files()
    assert collect(stage).deleted == {}
    attempt.finish(AttemptStatus.FAILED)
    assert sum(collect(stage).deleted.values()) == len(b"state")
    assert (left.endswith(".tmp"), stage.files()) == (True, {})


def test_orphans_go_although_the_savepoint_that_was_restored_without_a_claim_is_deleted(stage):
    source, _ = written_savepoint(stage)
    attempt = stage.attempt(restore_from=replace(source, mode=RestoreMode.NO_CLAIM), num_retained=2)
    assert attempt.restore() is not None
    stage.take(attempt)
    orphan = stage.snapshot(attempt, "orphan")
    attempt.finish(AttemptStatus.FAILED)
    stage.storage.delete_directory(source.pointer)
    report = collect(stage)
    assert (list(report.deleted), report.kept) == ([orphan.uri], [])


def test_orphans_of_ended_attempts_go(stage):
    dead = stage.attempt()
    orphan = stage.snapshot(dead, "orphan")
    dead.finish(AttemptStatus.FAILED)
    assert list(collect(stage).deleted) == [orphan.uri]


def test_mailboxes_go_hours_after_the_newest_attempt_of_their_operator_has_ended(stage):
    """A driver that its platform starts again looks for its mailbox after its attempt has ended."""
    ended, running = stage.run(), stage.attempt("other")
    later = replace(ended.grant.attempt, epoch=ended.grant.attempt.epoch + 1)
    boxes = [Mailbox(stage.storage, ref) for ref in (ended.grant.attempt, later, running.grant.attempt)]
    for box in boxes:
        box.open({})
        box.post(CallName(1, "a" * 32), {})
    collect(stage)
    stage.clock.advance(6 * 3600)
    collect(stage, dry_run=True)
    assert [box.is_open for box in boxes] == [True, True, True]
    collect(stage)
    assert [len(stage.storage.list_files(box.uri)) for box in boxes] == [0, 2, 2]


def test_packages_stay_as_drivers_that_are_started_again_load_them(stage):
    ended = stage.run().grant.attempt
    packages = [published_package(stage.storage), published_stage_application(stage.storage)]
    stage.clock.advance(365 * 24 * 3600)
    collect(stage)
    prune_job(stage.maintenance, ended.job_id, PruneRequest(job_ids=(ended.job_id,)), CheckpointStorage.open)
    assert [local_path(uri).exists() for uri in packages] == [True, True]
    assert [path.name for path in local_path(stage.storage.base_uri).iterdir()] == ["packages"]


def test_nothing_goes_while_the_newest_attempt_of_an_operator_has_not_ended(stage):
    """It may still read a snapshot that no checkpoint names any more."""
    stage.run()
    running = stage.attempt()
    stage.take(running, stage.snapshot(running, "handed out"))
    stage.take(running)
    before = stage.files()
    report = collect(stage)
    assert stage.files() == before
    assert report.kept == [
        "operator 'aggregate': attempt 2 (dag.task) has not ended; it pins checkpoint 3",
    ]
    running.finish(AttemptStatus.FAILED)
    assert len(collect(stage).deleted) == 8


def test_another_operator_of_the_job_is_collected_beside_one_that_runs(stage):
    stage.run(uid="other")
    stage.attempt()
    report = collect(stage)
    assert len(report.deleted) == 4
    assert len(report.kept) == 1


def test_an_attempt_that_registers_in_between_loses_nothing(stage):
    """The rows were read before it came; what it restored and what it writes stay."""
    stage.run()
    late: list[Any] = []

    def open_late(base: str) -> CheckpointStorage:
        attempt = stage.attempt()
        restored = attempt.restore()
        late.extend([attempt, restored, stage.snapshot(attempt, "new")])
        return CheckpointStorage.open(base)

    collect(stage, opener=open_late)
    attempt, restored, new = late
    assert {h.uri for h in restored.document.snapshots} <= {local_uri(stage, f) for f in stage.files()}
    stage.take(attempt, *restored.document.snapshots, new)
    attempt.finish(AttemptStatus.FINISHED)
    assert stage.attempt().restore() is not None


def test_a_job_that_is_removed_and_begun_anew_in_between_loses_nothing_of_its_successor(stage):
    """Epochs, generations and ids go on; else the rows read before would name what the successor writes."""
    stage.run("test/sales")
    stage.run("test/sales")
    late: list[Any] = []

    def open_late(base: str) -> CheckpointStorage:
        request = PruneRequest(test_jobs=True)
        assert prune_job(stage.maintenance, job_id_of("test/sales"), request, CheckpointStorage.open).is_removed
        attempt = stage.attempt("test/sales")
        for name in ("step 0", "step 1"):
            stage.take(attempt, stage.snapshot(attempt, name))
        late.append(stage.files())
        return CheckpointStorage.open(base)

    collect(stage, "test/sales", opener=open_late)
    assert stage.files() == late[0]
    restored = stage.attempt("test/sales").restore()
    assert restored is not None
    assert restored.checkpoint.checkpoint_id == 8


def test_what_a_driver_left_that_died_on_its_last_try_is_collected(stage):
    attempt = stage.attempt()
    orphan = stage.snapshot(attempt, "orphan")
    stage.clock.advance(5 * 24 * 3600)
    before = stage.maintenance.describe(job_id_of(JOB))
    assert collect(stage, dry_run=True).kept
    assert stage.maintenance.describe(job_id_of(JOB)) == before
    assert collect(stage).deleted == {}, "one look is not enough"
    assert list(collect(stage).deleted) == [orphan.uri]


def test_what_a_run_took_before_it_begins_again_stays_while_it_fails(stage):
    for number, marker in ((1, "1/1"), (2, "1/1"), (2, AGAIN)):
        attempt = stage.attempt(owner=day(number, clear_marker=marker))
        if marker != AGAIN:
            stage.take(attempt, stage.snapshot(attempt, f"day {number}"))
        attempt.finish(AttemptStatus.FAILED if marker == AGAIN else AttemptStatus.FINISHED)
    assert stage.statuses() == {1: "completed", 2: "SUBSUMED"}
    collect(stage)
    assert stage.directories() == {"chk-1", "chk-2", "day_1", "day_2"}
    again = stage.attempt(owner=day(2, clear_marker=AGAIN))
    stage.take(again, stage.snapshot(again, "day 2 anew"))
    again.finish(AttemptStatus.FINISHED)
    collect(stage)
    assert stage.directories() == {"chk-1", "chk-3", "day_1", "day_2_anew"}


def test_what_a_run_took_before_it_began_again_is_not_missed_once_it_is_gone(stage):
    for number, marker in ((1, "1/1"), (2, "1/1"), (2, AGAIN)):
        attempt = stage.attempt(owner=day(number, clear_marker=marker))
        if marker != AGAIN:
            stage.take(attempt, stage.snapshot(attempt, f"day {number}"))
        attempt.finish(AttemptStatus.FINISHED)
    collect(stage)
    assert stage.directories() == {"chk-1", "day_1"}
    failing = stage.attempt(owner=day(3))
    stage.snapshot(failing, "orphan")
    failing.finish(AttemptStatus.FAILED)
    report = collect(stage)
    assert (report.kept, report.skipped, report.problems) == ([], [], [])
    assert stage.directories() == {"chk-1", "day_1"}


def test_retained_metadata_in_a_new_directory_is_read_with_that_directorys_credentials(stage, tmp_path, monkeypatch):
    """The storage of the old directory has others, or none."""
    stage.run()
    moved = WrittenStage(CheckpointStorage.open(str(tmp_path / "moved")), stage.clock, stage.store)
    moved.run(checkpoints=2)
    read = CheckpointStorage.read_bytes

    def only_own(self: CheckpointStorage, uri: str) -> bytes:
        if not uri.startswith(f"{self.base_uri}/"):
            raise StorageError(f"{self.base_uri} has no credentials for {uri}.")
        return read(self, uri)

    monkeypatch.setattr(CheckpointStorage, "read_bytes", only_own)
    report = collect(stage)
    assert (report.unreachable, report.problems) == ([], [])
    assert stage.files() == {}


def local_uri(stage: WrittenStage, file: str) -> str:
    return f"{stage.storage.base_uri}/{file.partition('/data/')[0].removesuffix('/_manifest')}"


def test_no_snapshot_goes_where_a_retained_checkpoint_cannot_be_read(stage):
    stage.run()
    snapshots = {f for f in stage.files() if "/shared/" in f}
    row = stage.coordinator.describe(job_id_of(JOB)).checkpoints[-1]
    local_path(row.metadata_uri).write_bytes(b"damaged")
    report = collect(stage)
    assert {f for f in stage.files() if "/shared/" in f} == snapshots
    assert report.kept == ["snapshots of operator 'aggregate': a retained checkpoint of it cannot be read"]


def test_every_directory_that_a_job_ever_had_is_collected(stage, tmp_path):
    stage.run()
    moved = WrittenStage(CheckpointStorage.open(str(tmp_path / "moved")), stage.clock, stage.store)
    moved.run(checkpoints=2)
    report = collect(stage)
    assert stage.statuses() == {1: "subsumed", 2: "subsumed", 3: "subsumed", 4: "subsumed", 5: "completed"}
    assert stage.files() == {}
    assert len(report.deleted) == 8


def test_storage_that_does_not_answer_is_told_and_leaves_everything_open(stage):
    stage.run()
    report = collect(stage, opener=no_storage)
    assert "The storage is away." in report.unreachable[0]
    assert stage.statuses() == DIRTY


def test_one_of_two_directories_that_does_not_answer_leaves_the_other_to_be_collected(stage, tmp_path):
    stage.run()
    moved = WrittenStage(CheckpointStorage.open(str(tmp_path / "moved")), stage.clock, stage.store)
    moved.run(checkpoints=2)

    def half(base: str) -> CheckpointStorage:
        if base == stage.storage.base_uri:
            raise StorageError("The old one is away.")
        return CheckpointStorage.open(base)

    report = collect(stage, opener=half)
    assert len(report.unreachable) == 1
    assert stage.statuses() == {1: "SUBSUMED", 2: "SUBSUMED", 3: "SUBSUMED", 4: "subsumed", 5: "completed"}


def test_a_checkpoint_that_cannot_be_deleted_is_told_and_the_others_go(stage, monkeypatch):
    stage.run()
    delete = CheckpointStorage.delete_file

    def stuck(self: CheckpointStorage, uri: str) -> None:
        if "/chk-1/" in uri:
            raise StorageError("denied")
        delete(self, uri)

    monkeypatch.setattr(CheckpointStorage, "delete_file", stuck)
    monkeypatch.setattr("airflow_provider_statecheck.storage.orphans.OrphanSearch.ended", lambda _: ())
    report = collect(stage)
    assert report.problems == ["checkpoint 1 of operator 'aggregate' could not be deleted"]
    assert stage.statuses() == CLEAN | {1: "SUBSUMED"}


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_collection_that_fails_at_any_call_is_made_good_by_the_next(stage, mode, tmp_path):
    def opener(base: str) -> Any:
        return faulty_storage(CheckpointStorage.open(base), plan)

    plan = FaultPlan()
    stage.run("counted")
    collect(stage, "counted", opener=opener)
    assert len(plan.calls) > 10
    for point in range(1, len(plan.calls) + 1):
        job = f"job {point}"
        stage.run(job)
        plan = FaultPlan(point, mode)
        collect(stage, job, opener=opener)
        plan = FaultPlan()
        collect(stage, job)
        assert (stage.statuses(job), point) == (CLEAN, point)
        assert stage.directories(job) == {"chk-3", "step_2"}
        assert stage.attempt(job).restore() is not None


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_an_orphan_that_cannot_be_deleted_keeps_no_other(stage: WrittenStage, kind: str) -> None:
    dead = stage.attempt()
    for number in range(2):
        if kind == "file":
            state_file(stage.storage, dead.grant.attempt, b"%d" % number)
        else:
            stage.snapshot(dead, f"orphan {number}", rows=3)
    dead.finish(AttemptStatus.FAILED)
    plan = FaultPlan(1)
    report = collect(stage, opener=lambda base: faulty_storage(CheckpointStorage.open(base), plan, [f"delete_{kind}"]))
    assert (len(report.problems), len(report.deleted), report.unreachable) == (1, 1, [])
    assert collect(stage).problems == []
    assert stage.files() == {}
