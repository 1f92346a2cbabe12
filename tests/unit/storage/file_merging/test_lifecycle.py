"""What lives, and what goes with which notification."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.file_merging.conftest import Make
from tests.unit.storage.file_merging.driving import ACROSS, EXCLUSIVE, WITHIN, Driver, subtask


def test_subsuming_deletes_the_files_that_only_older_checkpoints_named(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    old, new = driver.saved(b"old", 1), driver.saved(b"new", 2)
    driver.subsumed(1)
    assert driver.files() == {new.uri}
    assert old.uri != new.uri


def test_completion_deletes_nothing(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    handles = {driver.saved(b"old", 1).uri, driver.saved(b"new", 2).uri}
    driver.manager.notify_checkpoint_complete(subtask(), 2)
    assert driver.files() == handles


def test_an_open_file_without_segments_is_kept_for_reuse(make_local: Make) -> None:
    driver = make_local(merging_type=ACROSS)
    first = driver.saved(b"first", 1)
    driver.subsumed(1)
    assert driver.files() == {first.uri}
    assert driver.saved(b"second", 2).uri == first.uri


def test_a_file_goes_with_its_last_segment_only(make_local: Make) -> None:
    driver = make_local(merging_type=ACROSS, max_file_size=4, max_space_amplification=float("inf"))
    driver.saved(b"ab", 1)
    kept = driver.saved(b"cdef", 2)
    driver.subsumed(1)
    assert driver.read(kept) == b"cdef"
    driver.subsumed(2)
    assert driver.files() == set()


def test_what_a_later_checkpoint_names_outlives_the_one_that_wrote_it(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    reused, dropped = driver.saved(b"reused", 1), driver.saved(b"other", 1, index=1)
    driver.manager.reuse_previous_state_handles(2, [reused])
    driver.subsumed(1)
    driver.subsumed(1, index=1)
    assert driver.files() == {reused.uri}
    assert dropped.uri != reused.uri
    driver.subsumed(2)
    assert driver.files() == set()


def test_last_used_only_grows(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    handle = driver.saved(b"x", 1)
    driver.manager.reuse_previous_state_handles(5, [handle])
    driver.manager.reuse_previous_state_handles(3, [handle])
    driver.subsumed(4)
    assert driver.read(handle) == b"x"


def test_reusing_what_is_gone_is_an_error_and_notes_nothing(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    gone, kept = driver.saved(b"gone", 1), driver.saved(b"kept", 2)
    driver.subsumed(1)
    with pytest.raises(CoordinatorError, match="could_reuse"):
        driver.manager.reuse_previous_state_handles(3, [kept, gone])
    driver.subsumed(2)
    assert driver.files() == set()


def test_subsuming_concerns_one_subtask_only(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    driver.saved(b"mine", index=0)
    theirs = driver.saved(b"theirs", index=1)
    driver.subsumed(1, index=0)
    assert driver.manager.statistics.logical_file_count == 1
    assert driver.read(theirs) == b"theirs"
    driver.subsumed(1, index=1)
    assert driver.files() == set()


def test_an_abort_concerns_what_was_uploaded_in_that_checkpoint_only(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    older, aborted, newer = (driver.saved(b"x", checkpoint) for checkpoint in (1, 2, 3))
    driver.aborted(2)
    assert driver.files() == {older.uri, newer.uri}
    assert aborted.uri not in driver.files()


def test_an_abort_keeps_what_a_newer_checkpoint_names(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    handle = driver.saved(b"x", 1)
    driver.manager.reuse_previous_state_handles(2, [handle])
    driver.aborted(1)
    assert driver.read(handle) == b"x"


def test_a_lost_abort_is_made_up_for_by_a_later_subsumption(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    driver.saved(b"abort of this one is lost", 1)
    driver.saved(b"subsumed", 2)
    kept = driver.saved(b"kept", 3)
    driver.subsumed(2)
    assert driver.files() == {kept.uri}


def test_lost_subsumptions_are_made_up_for_by_a_later_one(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    for checkpoint in range(1, 6):
        driver.saved(b"x", checkpoint)
    driver.subsumed(5)
    assert driver.files() == set()
    assert driver.manager.statistics.logical_file_count == 0


def test_a_late_stream_of_a_subsumed_checkpoint_is_cleaned_by_the_next_subsumption(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    stream = driver.stream(1)
    stream.write(b"late")
    driver.subsumed(1)
    driver.subsumed(1, index=1)
    assert stream.close_and_get_handle() is not None
    driver.durable(1)
    driver.subsumed(2)
    assert driver.files() == set()


def test_notifications_may_come_twice_and_of_checkpoints_nobody_knows(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    kept = driver.saved(b"kept", 3)
    driver.saved(b"x", 2)
    for _ in range(2):
        driver.aborted(2)
        driver.aborted(99)
        driver.subsumed(1)
        driver.manager.notify_checkpoint_complete(subtask(7), 99)
    assert driver.files() == {kept.uri}
    assert driver.manager.statistics.logical_file_count == 1


def test_a_file_is_deleted_once(local: CheckpointStorage) -> None:
    plan = FaultPlan()
    driver = Driver.over(local, through=faulty_storage(local, plan), merging_type=WITHIN)
    driver.saved(b"x", 1)
    for _ in range(3):
        driver.subsumed(1)
    assert plan.calls.count("delete_file") == 1


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_delete_that_fails_hinders_no_other_and_is_tried_again(storage: CheckpointStorage, mode: FaultMode) -> None:
    plan = FaultPlan(None, mode)
    driver = Driver.over(storage, through=faulty_storage(storage, plan), merging_type=WITHIN)
    driver.saved(b"one", 1)
    driver.saved(b"two", 2)
    plan.point = len(plan.calls) + 1
    driver.subsumed(2)
    assert plan.calls.count("delete_file") == 2
    assert len(driver.files()) == (1 if mode is FaultMode.ERROR else 0)
    driver.subsumed(2)
    assert driver.files() == set()


def test_a_checkpoint_ends_when_every_subtask_released_it(make_local: Make) -> None:
    driver = make_local(merging_type=WITHIN)
    reused = driver.saved(b"x", 1, scope=EXCLUSIVE)
    driver.manager.reuse_previous_state_handles(2, [reused])
    driver.subsumed(1, index=0)
    assert driver.saved(b"late", 1, index=1, scope=EXCLUSIVE).uri == reused.uri
    driver.subsumed(1, index=0)
    driver.subsumed(1, index=1)
    assert driver.saved(b"later", 1, index=1, scope=EXCLUSIVE).uri != reused.uri


def test_a_checkpoint_ends_with_its_last_segment(make_local: Make) -> None:
    driver = make_local(merging_type=WITHIN)
    driver.saved(b"x", 1, scope=EXCLUSIVE)
    driver.aborted(1, index=0)
    assert driver.files() == set()


def test_a_subtask_that_went_holds_up_no_checkpoint(make_local: Make) -> None:
    driver = make_local(merging_type=WITHIN)
    reused = driver.saved(b"x", 1, scope=EXCLUSIVE)
    driver.manager.reuse_previous_state_handles(2, [reused])
    driver.subsumed(1, index=0)
    driver.manager.unregister_subtask(subtask(1))
    assert driver.saved(b"later", 1, scope=EXCLUSIVE).uri != reused.uri


def test_segments_of_a_subtask_that_went_go_when_another_hears_of_it(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    driver.saved(b"x", 1, index=1)
    kept = driver.saved(b"y", 2, index=1)
    driver.manager.unregister_subtask(subtask(1))
    assert len(driver.files()) == 2
    driver.subsumed(1, index=0)
    assert driver.files() == {kept.uri}


def test_subtasks_one_after_the_other_share_a_file_within_a_checkpoint(make_local: Make) -> None:
    driver = make_local(merging_type=WITHIN, subtasks=1)
    first = driver.saved(b"x", 1, index=0, scope=EXCLUSIVE)
    driver.manager.unregister_subtask(subtask(0))
    driver.manager.register_subtask(subtask(1))
    assert driver.saved(b"y", 1, index=1, scope=EXCLUSIVE).uri == first.uri


def test_statistics_count_files_and_segments_with_their_bytes(make_local: Make) -> None:
    driver = make_local(merging_type=ACROSS, max_space_amplification=float("inf"))
    driver.saved(b"abc", 1)
    driver.saved(b"de", 2)
    driver.subsumed(1)
    found = driver.manager.statistics
    assert (found.physical_file_count, found.physical_file_bytes) == (1, 5)
    assert (found.logical_file_count, found.logical_file_bytes) == (1, 2)
    assert found.amplification == 2.5
