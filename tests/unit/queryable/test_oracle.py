"""What an oracle reads, and when; where a reader finds its keys is in the contract of queryable state."""

from __future__ import annotations

import sys
from dataclasses import replace
from threading import Event, Thread, current_thread
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.records import OnClear, OperatorRecord
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CoordinatorUnavailableError,
    CorruptStateError,
    StorageError,
    UnknownKvStateIdError,
    UnknownKvStateLocationError,
)
from airflow_provider_statecheck.gateway.time_travel import AsOf
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle, SharedCall
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.job_savepoints import SAVEPOINT_ID, add_row, save_job
from tests.messages import make_owner
from tests.unit.queryable.found_job import JOB, Job, LateStates, named


def test_look_up_in_an_unchanged_job_is_one_check_of_its_version(job):
    job.stage("a", named("x")).checkpoint()
    job.read("x")
    job.rows.reads.clear()
    job.opened.clear()

    assert [job.read("x") for _ in range(3)] == [("a/balance", 1)] * 3
    assert (job.rows.reads, job.opened) == (["unchanged"] * 3, [])


def test_only_stages_with_a_new_checkpoint_are_loaded_again(job):
    first, second = job.stage("a", named("x")), job.stage("b", named("y"))
    first.checkpoint()
    second.checkpoint()
    assert (job.read("x"), job.read("y")) == (("a/balance", 1), ("b/balance", 2))

    second.checkpoint()

    assert (job.read("x"), job.read("y")) == (("a/balance", 1), ("b/balance", 3))
    assert job.opened == ["chk-1", "chk-2", "chk-3"]


def test_forced_refresh_reads_the_rows_although_they_are_unchanged(job):
    job.stage("a", named("x")).checkpoint()
    job.read("x")
    job.rows.reads.clear()

    assert job.read("x", refresh=True) == ("a/balance", 1)
    assert job.rows.reads == ["latest"]


def test_forced_refresh_that_fails_is_made_by_the_next_request(job, monkeypatch):
    job.stage("a", named("x")).checkpoint()
    job.read("x")
    with monkeypatch.context() as patch:
        patch.setattr(job.rows, "latest_checkpoints", unavailable)
        with pytest.raises(CoordinatorUnavailableError):
            job.read("x", refresh=True)
    job.rows.reads.clear()

    job.read("x")
    job.read("x")

    assert job.rows.reads == ["latest", "unchanged"]


def unavailable(*_: Any) -> None:
    raise CoordinatorUnavailableError("no answer")


def test_refresh_that_is_forced_during_another_one_is_not_lost(job):
    job.stage("a", named("x")).checkpoint()
    job.read("x")
    job.rows.reads.clear()
    forced = Thread(target=job.read, args=("x",), kwargs={"refresh": True})

    def force_another() -> None:
        forced.start()
        while not is_blocked(forced):
            pass

    job.rows.after = force_another
    job.read("x", refresh=True)
    forced.join(30)

    assert job.rows.reads == ["latest", "latest"]


def test_rows_of_a_check_that_is_late_do_not_replace_newer_ones(job, monkeypatch):
    stage = job.stage("a", named("x"))
    stage.checkpoint()
    late = job.rows.coordinator.latest_checkpoints(JOB)
    stage.checkpoint()
    assert job.read("x") == ("a/balance", 2)

    read = job.rows.latest_checkpoints
    monkeypatch.setattr(
        job.rows, "latest_checkpoints", lambda job_id, known=None: read(job_id) if known is None else late
    )

    assert job.read("x") == ("a/balance", 2)


def test_rows_of_a_database_that_was_restored_from_a_backup_replace_the_lost_ones(job, monkeypatch):
    stage = job.stage("a", named("x"), num_retained=2)
    stage.checkpoint()
    backup = job.rows.coordinator.latest_checkpoints(JOB)
    stage.checkpoint()
    assert job.read("x") == ("a/balance", 2)

    monkeypatch.setattr(job.rows, "latest_checkpoints", lambda *_: backup)

    assert job.read("x") == ("a/balance", 1)


def test_version_is_that_of_the_rows(job):
    assert job.oracle.version == 0
    stage = job.stage("a", named("x"))
    versions = []
    for _ in range(2):
        stage.checkpoint()
        job.read("x")
        versions.append(job.oracle.version)

    assert 0 < versions[0] < versions[1] == job.store.describe(JOB).job.version


def test_name_that_was_registered_after_open_is_found(job):
    stage = job.stage("a", named("x", "late"), LateStates)
    stage.put("state of late", {"ann": 1})
    stage.checkpoint()

    assert job.read("late") == ("a/balance", 1)
    assert [each.name for each in job.oracle.names()] == ["x", "late"]


def test_state_files_are_searched_for_an_unknown_name_once_per_checkpoint(job, monkeypatch):
    stage = job.stage("a", named("x"))
    stage.checkpoint()
    searched = counted(job, monkeypatch)

    for _ in range(3):
        with pytest.raises(UnknownKvStateLocationError, match="'x'"):
            job.read("unknown")
    assert searched == ["a/balance"]

    stage.checkpoint()
    job.read("x")
    assert searched == ["a/balance"], "the name was not late, so the next checkpoint need not be searched"


def test_stage_with_a_late_name_is_searched_when_its_next_checkpoint_is_loaded(job, monkeypatch):
    late, other = job.stage("a", named("x", "late"), LateStates), job.stage("b", named("y"))
    late.put("state of late", {"ann": 1})
    late.checkpoint()
    other.checkpoint()
    job.read("late")
    searched = counted(job, monkeypatch)

    late.checkpoint()
    other.checkpoint()

    assert job.read("late") == ("a/balance", 3)
    assert searched == ["a/balance"]


def counted(job: Job, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that notes the functions whose state files are searched for names."""
    searched: list[str] = []
    complete = CheckpointStates.complete

    def noted(states: CheckpointStates, function: Any) -> Any:
        searched.append(function.operator.uid)
        return complete(states, function)

    monkeypatch.setattr(CheckpointStates, "complete", noted)
    return searched


def test_unreadable_checkpoint_hides_the_names_of_its_own_stage_only(job):
    job.stage("a", named("x")).checkpoint()
    damaged = job.stage("b", named("y"))
    job.damage(damaged, damaged.checkpoint())

    assert job.read("x") == ("a/balance", 1)
    depths = {depth_of_error(job, "y") for _ in range(3)}
    assert len(depths) == 1, "an error that is raised again does not grow"
    assert [each.name for each in job.oracle.names()] == ["x"]

    damaged.checkpoint()
    assert job.read("y") == ("b/balance", 3)


def depth_of_error(job: Job, name: str) -> int:
    with pytest.raises(CorruptStateError) as raised:
        job.read(name)
    return len(raised.traceback)


def test_checkpoint_that_is_subsumed_before_it_is_loaded_gives_the_newer_one(job):
    stage = job.stage("a", named("x"))
    stage.checkpoint()
    job.rows.after = lambda: stage.checkpoint() and None

    assert job.read("x") == ("a/balance", 2)


def test_lost_metadata_is_an_error_of_its_stage_until_the_next_checkpoint(job):
    job.stage("a", named("x")).checkpoint()
    lost = job.stage("b", named("y"))
    lost.checkpoint()
    job.storage.delete_file(f"{lost.pointer(2)}/_metadata")

    with pytest.raises(UnknownKvStateIdError):
        job.read("y")
    assert job.read("x") == ("a/balance", 1)

    lost.checkpoint()
    assert job.read("y") == ("b/balance", 3)


def test_failure_of_the_storage_is_not_remembered(job: Job) -> None:
    job.stage("a", named("x")).checkpoint()
    failures = [StorageError("no answer")]

    def open_storage(pointer: str) -> CheckpointStorage:
        if failures:
            raise failures.pop()
        return job.storage

    oracle = CheckpointLocationOracle(JOB, job.rows, open_storage)
    with pytest.raises(StorageError):
        job.read("x", oracle)
    assert job.read("x", oracle) == ("a/balance", 1)


def test_earlier_checkpoint_is_loaded_once(job):
    stage = job.stage("a", named("x"), num_retained=3)
    for _ in range(3):
        stage.checkpoint()

    found = [job.read("x", as_of=AsOf(checkpoint_id=2)) for _ in range(3)]

    assert found == [("a/balance", 2)] * 3
    assert job.opened == ["chk-3", "chk-2"]
    assert job.rows.reads.count("describe") == 1


def test_name_is_found_as_of_a_time_in_the_stage_that_owned_it_then(job):
    for uid, name in (("a", "y"), ("b", "x")):
        job.stage(uid, named(name), num_retained=2).checkpoint()
    then = job.store.describe(JOB).checkpoints[-1].completed_at
    first = job.stages[0]
    first.written[0].descriptors = named("x")
    first.begin()
    first.checkpoint()

    assert job.read("x") == ("a/balance", 3)
    assert job.read("x", as_of=AsOf(at=then)) == ("b/balance", 2)


def test_stage_that_began_anew_is_not_served_as_of_a_time_after_that(job):
    stage = job.stage("a", named("x"), num_retained=2)
    stage.checkpoint()
    before = job.store.describe(JOB).checkpoints[-1].completed_at
    stage.begin(on_clear=OnClear.RESTART, owner=make_owner(clear_marker="again"))

    with pytest.raises(UnknownKvStateLocationError):
        job.read("x")
    with pytest.raises(CheckpointNotFoundError):
        job.read("x", as_of=AsOf(at=job.store.describe(JOB).read_at))
    assert job.read("x", as_of=AsOf(at=before)) == ("a/balance", 1)


def test_names_of_a_stage_follow_its_uid(job):
    stage = job.stage("old", named("x"))
    stage.checkpoint()
    assert job.read("x") == ("old/balance", 1)

    rename(job, job.store.describe(JOB).operators[0], "new[7]")

    assert job.read("x[7]") == ("new[7]/balance", 1)


def rename(job: Job, operator: OperatorRecord, uid: str) -> None:
    with job.store.transaction(JOB) as transaction:
        transaction.save_operator(replace(operator, uid=uid))


def test_callers_that_arrive_during_a_call_share_the_next_one():
    began, may_end, calls = Event(), Event(), list[int]()

    def call() -> None:
        calls.append(len(calls) + 1)
        began.set()
        assert may_end.wait(30)

    shared = SharedCall(call)
    first = Thread(target=shared)
    first.start()
    assert began.wait(30)
    seen: list[int] = []

    def arrive() -> None:
        shared()
        seen.append(len(calls))

    later = [Thread(target=arrive) for _ in range(8)]
    for each in later:
        each.start()
    while not all(map(is_blocked, later)):
        pass
    may_end.set()
    for each in (first, *later):
        each.join(30)

    assert calls == [1, 2]
    assert seen == [2] * 8, "a call that began before does not count"


def is_blocked(thread: Thread) -> bool:
    """Return whether a thread waits for a call or for its turn to make one."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name in ("wait", "_run")


def test_refusal_of_one_caller_is_not_that_of_the_others_who_share_its_call():
    began, may_end = Event(), Event()
    outcomes: dict[str, list[str]] = {"revoked": [], "valid": []}

    def call() -> None:
        began.set()
        assert may_end.wait(30)
        if current_thread().name == "revoked":
            raise AccessDeniedError("revoked")

    shared = SharedCall(call)

    def arrive() -> None:
        try:
            shared()
        except AccessDeniedError:
            outcomes[current_thread().name].append("refused")
        else:
            outcomes[current_thread().name].append("answered")

    first = Thread(target=shared)
    first.start()
    assert began.wait(30)
    later = [Thread(target=arrive, name=name) for name in ("revoked", "valid", "valid")]
    for each in later:
        each.start()
        while not is_blocked(each):
            pass
    may_end.set()
    for each in (first, *later):
        each.join(30)

    assert outcomes == {"revoked": ["refused"], "valid": ["answered"] * 2}


def test_error_of_a_call_is_raised_and_not_kept():
    errors: list[Exception] = [CoordinatorUnavailableError("no answer")]

    def call() -> None:
        while errors:
            raise errors.pop()

    shared = SharedCall(call)
    with pytest.raises(CoordinatorUnavailableError):
        shared()
    shared()


def save_whole_job(job: Job, target: str) -> str:
    """Save the newest checkpoint of each stage as a savepoint of the whole job, and return its pointer."""
    latest = job.rows.coordinator.latest_checkpoints(JOB)
    assert latest is not None
    pointer = save_job(job.storage, latest.checkpoints, target)
    add_row(job.store, job.storage, pointer)
    # The storage of a checkpoint may read the checkpoint.
    job.storage = job.storage.allowing(pointer)
    return pointer


@pytest.mark.parametrize("by", ["id", "pointer"])
def test_states_are_found_in_their_part_of_a_savepoint_of_the_whole_job(job, tmp_path, by):
    stages = job.stage("a", named("x")), job.stage("b", named("y"))
    for stage in stages:
        stage.checkpoint()
    pointer = save_whole_job(job, f"file://{tmp_path}/savepoints")
    as_of = AsOf(pointer=pointer) if by == "pointer" else AsOf(checkpoint_id=SAVEPOINT_ID)
    for stage in stages:
        stage.checkpoint()

    assert job.read("x", as_of=as_of) == ("a/balance", SAVEPOINT_ID)
    assert job.read("y", as_of=as_of) == ("b/balance", SAVEPOINT_ID)
    assert [each.uid for each in job.oracle.names(as_of=as_of)] == ["a/balance", "b/balance"]


def test_the_past_of_a_job_is_that_of_its_stages_and_not_a_savepoint_of_the_whole_job(job, tmp_path):
    job.stage("a", named("x")).checkpoint()
    save_whole_job(job, f"file://{tmp_path}/savepoints")
    now = job.rows.describe(JOB).read_at

    assert job.read("x", as_of=AsOf(at=now)) == ("a/balance", 1)
    assert [each.checkpoint_id for each in job.oracle.names(as_of=AsOf(at=now))] == [1]
