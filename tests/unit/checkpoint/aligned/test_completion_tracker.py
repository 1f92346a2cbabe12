"""What a receiver makes of notifications that are repeated, late or lost."""

from __future__ import annotations

from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.aligned.notifications import CompletionTracker


def make_tracker(*taken: int, latest: int = 0) -> CompletionTracker:
    tracker = CompletionTracker(latest)
    for checkpoint_id in taken:
        tracker.took(checkpoint_id)
    return tracker


def test_a_completion_is_that_of_all_earlier_checkpoints():
    tracker = make_tracker(3, 1, 2, 4)
    assert tracker.complete(3) == (1, 2, 3)
    assert tracker.latest_completed_id == 3


def test_a_completion_that_is_told_again_is_nothing_new():
    tracker = make_tracker(1)
    assert tracker.complete(1) == (1,)
    assert tracker.complete(1) == ()


def test_a_late_completion_of_an_earlier_checkpoint_is_nothing_new():
    tracker = make_tracker(1, 2)
    tracker.complete(2)
    assert tracker.complete(1) == ()
    assert tracker.latest_completed_id == 2


def test_a_completion_counts_though_the_receiver_took_no_part():
    tracker = make_tracker(1)
    assert tracker.complete(5) == (1,)


def test_an_aborted_snapshot_is_thrown_away_once_and_never_completed():
    tracker = make_tracker(1, 2)
    assert tracker.aborted(1)
    assert not tracker.aborted(1)
    assert tracker.complete(2) == (2,)


def test_an_abort_of_what_was_never_taken_throws_nothing_away():
    assert not make_tracker(1).aborted(2)


def test_an_abort_that_comes_after_a_later_completion_throws_nothing_away():
    tracker = make_tracker(1, 2)
    tracker.complete(2)
    assert not tracker.aborted(1)


def test_a_snapshot_that_is_taken_after_a_later_completion_is_over_already():
    tracker = make_tracker(latest=5)
    tracker.took(5)
    assert tracker.complete(6) == ()


@given(st.lists(st.tuples(st.sampled_from(["took", "complete", "aborted"]), st.integers(1, 6))))
def test_no_snapshot_is_settled_twice(events):
    """Whatever is told in whatever order, no snapshot is both completed and thrown away, or one of them twice."""
    tracker = CompletionTracker()
    settled: list[int] = []
    taken: set[int] = set()
    for what, checkpoint_id in events:
        if what == "took" and checkpoint_id not in taken:
            taken.add(checkpoint_id)
            tracker.took(checkpoint_id)
        elif what == "complete":
            settled += tracker.complete(checkpoint_id)
        elif what == "aborted" and tracker.aborted(checkpoint_id):
            settled.append(checkpoint_id)
    assert len(settled) == len(set(settled))
    assert set(settled) <= taken
