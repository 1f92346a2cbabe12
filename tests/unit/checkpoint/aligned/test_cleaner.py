"""Discarding checkpoints in the background."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_provider_statecheck.checkpoint.aligned.cleaner import CheckpointsCleaner
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import DiscardPlan
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import OperatorSubtaskState
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.testing.aligned_job import HeldExecutor, InlineExecutor
from tests.unit.checkpoint.aligned.completed import (
    RecordingDiscarder,
    completed,
    file,
    incremental,
    keyed,
    operator_list,
    operator_state,
)


def whole(checkpoint_id: int, **changes):
    """Make a checkpoint that has every kind of state."""
    subtask = OperatorSubtaskState(
        managed_operator=(operator_list(checkpoint_id),),
        managed_keyed=(incremental(checkpoint_id, {"1.sst": file("shared/1")}),),
        raw_keyed=(keyed(checkpoint_id),),
    )
    state = operator_state(subtask, coordinator_state=file(f"own-{checkpoint_id}/coordinator"))
    return completed(checkpoint_id, state, **changes)


PRIVATE = ["coordinator", "list", "wal", "meta", "keyed"]


@pytest.fixture
def discarder() -> RecordingDiscarder:
    return RecordingDiscarder()


@pytest.fixture
def cleaner(discarder) -> CheckpointsCleaner:
    return CheckpointsCleaner(discarder, InlineExecutor())


def test_metadata_goes_first_then_private_state_then_the_directory(cleaner, discarder):
    cleaner.clean_checkpoint(whole(1), True)
    states = [f"state own-1/{name}" for name in PRIVATE]
    assert discarder.calls == ["metadata chk-1/_metadata", *states, "location chk-1"]


def test_state_in_the_directory_goes_with_it(cleaner, discarder):
    subtask = OperatorSubtaskState(managed_operator=(replace(operator_list(1), stream=file("chk-1/list")),))
    cleaner.clean_checkpoint(completed(1, operator_state(subtask)), True)
    assert discarder.calls == ["metadata chk-1/_metadata", "location chk-1"]


def test_shared_state_is_not_touched(cleaner, discarder):
    cleaner.clean_checkpoint(whole(1), True)
    assert not any("shared" in call for call in discarder.calls)


def test_one_that_is_kept_loses_nothing_and_the_log_says_where_it_is(cleaner, discarder, caplog):
    followed = []
    with caplog.at_level("INFO"):
        cleaner.clean_checkpoint(whole(1), False, lambda: followed.append(1))
    assert discarder.calls == []
    assert followed == [1]
    assert "Checkpoint 1 is retained at memory://base/chk-1" in caplog.text


@pytest.mark.parametrize("is_parallel", [True, False])
@pytest.mark.parametrize("failing", ["metadata chk-1/_metadata", "state own-1/wal", "location chk-1"])
def test_one_failed_delete_does_not_stop_the_others(discarder, failing, is_parallel, caplog):
    cleaner = CheckpointsCleaner(discarder, InlineExecutor(), is_parallel=is_parallel)
    discarder.failing = {failing}
    followed = []
    cleaner.clean_checkpoint(whole(1), True, lambda: followed.append(cleaner.cleanings))
    assert len(discarder.calls) == 2 + len(PRIVATE)
    assert discarder.calls[-1] == "location chk-1"
    assert followed == [0]
    assert "1 deletes of checkpoint 1 failed" in caplog.text


def test_errors_are_reported_once(cleaner, discarder, caplog):
    discarder.failing = {f"state own-1/{name}" for name in PRIVATE}
    cleaner.clean_checkpoint(whole(1), True)
    assert [r.getMessage() for r in caplog.records] == [
        f"5 deletes of checkpoint 1 failed, the first with: injected at state own-1/{PRIVATE[0]}"
    ]


def test_it_is_told_when_nothing_is_left_and_only_then(discarder):
    gone = []
    cleaner = CheckpointsCleaner(discarder, InlineExecutor(), discarded=lambda c: gone.append(c.checkpoint_id))
    discarder.failing = {"state own-2/wal"}
    for number, goes in ((1, True), (2, True), (3, False)):
        cleaner.clean_checkpoint(whole(number), goes)
    assert gone == [1]


def test_private_state_is_deleted_at_the_same_time(discarder):
    executor = HeldExecutor()
    CheckpointsCleaner(discarder, executor).clean_checkpoint(whole(1), True)
    executor.run_next()
    assert len(executor.held) == len(PRIVATE)


def test_one_after_the_other_where_that_is_wanted(discarder):
    executor = HeldExecutor()
    CheckpointsCleaner(discarder, executor, is_parallel=False).clean_checkpoint(whole(1), True)
    executor.run_next()
    assert executor.held == []
    assert discarder.calls[0] == "metadata chk-1/_metadata"
    assert discarder.calls[-1] == "location chk-1"


def test_cleanings_in_progress_are_counted(discarder):
    executor = HeldExecutor()
    cleaner = CheckpointsCleaner(discarder, executor)
    counts = []
    for number in (1, 2):
        cleaner.clean_checkpoint(whole(number), number == 1, lambda: counts.append(cleaner.cleanings))
    assert cleaner.cleanings == 2
    executor.run_all()
    # What follows a cleaning finds it ended: the one that is kept ends first.
    assert counts == [1, 0]


def test_many_cleanings_fit_on_one_thread(discarder):
    with ThreadPoolExecutor(1) as executor:
        cleaner = CheckpointsCleaner(discarder, executor)
        for number in range(1, 20):
            cleaner.clean_checkpoint(whole(number), True)
        assert cleaner.close(timeout_seconds=60)
    assert len(discarder.calls) == 19 * (2 + len(PRIVATE))


def test_what_follows_a_cleaning_may_fail(cleaner, caplog):
    def fail() -> None:
        raise ValueError("not my day")

    cleaner.clean_checkpoint(whole(1), True, fail)
    assert cleaner.cleanings == 0
    assert cleaner.close(timeout_seconds=0)
    assert "not my day" in caplog.text


def test_what_follows_a_cleaning_may_ask_for_another(cleaner, discarder):
    cleaner.clean_checkpoint(whole(1), True, lambda: cleaner.clean_checkpoint(whole(2), True))
    assert "location chk-2" in discarder.calls


class TestSubsumed:
    def test_they_are_cleaned_below_the_lowest_valid_one_unless_in_use(self, cleaner, discarder):
        for number in (4, 1, 2, 3):
            cleaner.add_subsumed(completed(number))
        cleaner.clean_subsumed(4, {2})
        assert [c for c in discarder.calls if c.startswith("location")] == ["location chk-1", "location chk-3"]
        assert [c.checkpoint_id for c in cleaner.subsumed] == [2, 4]

    def test_they_go_when_they_are_not_in_use_any_more(self, cleaner, discarder):
        cleaner.add_subsumed(completed(2))
        cleaner.clean_subsumed(4, {2})
        assert discarder.calls == []
        cleaner.clean_subsumed(4, set())
        cleaner.clean_subsumed(4, set())
        assert discarder.calls == ["metadata chk-2/_metadata", "location chk-2"]

    def test_one_whose_owner_keeps_it_leaves_the_queue_and_stays(self, cleaner, discarder):
        cleaner.add_subsumed(completed(1, properties=CheckpointProperties.for_unclaimed_snapshot()))
        cleaner.clean_subsumed(2, set())
        assert discarder.calls == []
        assert cleaner.subsumed == ()

    def test_what_is_left_of_one_goes_with_the_next_cleaning(self, cleaner, discarder):
        cleaner.add_subsumed(completed(1))
        discarder.failing = {"location chk-1"}
        cleaner.clean_subsumed(2, set())
        assert [c.checkpoint_id for c in cleaner.subsumed] == [1]
        discarder.failing = set()
        cleaner.clean_subsumed(2, set())
        assert cleaner.subsumed == ()

    def test_what_follows_runs_after_each(self, cleaner):
        followed = []
        for number in (1, 2):
            cleaner.add_subsumed(completed(number))
        cleaner.clean_subsumed(3, set(), lambda: followed.append(cleaner.cleanings))
        assert len(followed) == 2


class TestUnfinished:
    def test_a_pending_one_goes_without_metadata(self, cleaner, discarder):
        cleaner.clean(DiscardPlan(states=(file("chk-7/a"),), location="memory://base/chk-7"), "pending checkpoint 7")
        assert discarder.calls == ["state chk-7/a", "location chk-7"]

    def test_late_state_goes_alone(self, cleaner, discarder):
        cleaner.clean(DiscardPlan(states=(file("chk-7/a"),)), "a late acknowledgement")
        assert discarder.calls == ["state chk-7/a"]

    def test_nothing_to_delete_is_success(self, cleaner, discarder):
        followed = []
        cleaner.clean(DiscardPlan(), "nothing", lambda: followed.append(1))
        assert (discarder.calls, followed) == ([], [1])


class TestClosing:
    def test_it_waits_for_what_is_in_progress(self, discarder):
        executor = HeldExecutor()
        cleaner = CheckpointsCleaner(discarder, executor)
        followed = []
        cleaner.clean_checkpoint(completed(1), True, lambda: followed.append(1))
        assert not cleaner.close(timeout_seconds=0)
        waiting = threading.Thread(target=cleaner.close)
        waiting.start()
        executor.run_all()
        waiting.join(timeout=60)
        assert not waiting.is_alive()
        assert followed == [1]

    def test_nothing_more_is_accepted(self, cleaner, discarder):
        cleaner.add_subsumed(completed(1))
        cleaner.close()
        for call in (
            lambda: cleaner.clean_checkpoint(completed(2), True),
            lambda: cleaner.clean_subsumed(5, set()),
            lambda: cleaner.clean(DiscardPlan(location="memory://base/chk-9"), "pending"),
        ):
            with pytest.raises(CoordinatorError, match="closed"):
                call()
        assert discarder.calls == []
        assert [c.checkpoint_id for c in cleaner.subsumed] == [1]

    def test_an_executor_that_ended_before_leaves_no_cleaning_open(self, discarder, caplog):
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        cleaner = CheckpointsCleaner(discarder, executor)
        followed = []
        cleaner.clean_checkpoint(whole(1), True, lambda: followed.append(1))
        assert followed == [1]
        assert cleaner.close(timeout_seconds=0)
        assert "failed" in caplog.text
