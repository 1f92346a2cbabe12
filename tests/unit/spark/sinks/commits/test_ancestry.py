"""Which checkpoints an attempt goes on from."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.commits.commit_log import Ancestry, History, Start


def test_a_line_goes_back_over_the_attempts_that_took_its_checkpoints():
    history = History({1: Start(1, None), 2: Start(1, 3), 3: Start(1, 3)}, {3: 1, 4: 2})
    assert history.ancestry_of(3, 9) == Ancestry(((3, 9), (1, 3)))


def test_a_line_holds_what_each_attempt_took_up_to_where_the_next_one_began():
    line = Ancestry(((3, 9), (1, 3)))
    assert [line.holds(3, 9), line.holds(3, 10), line.holds(1, 3), line.holds(1, 4), line.holds(2, 1)] == [
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_fresh_start_has_nothing_before_it():
    history = History({1: Start(1, None), 2: Start(2, None)}, {3: 1})
    assert history.ancestry_of(2, 9) == Ancestry(((2, 9),))


def test_a_checkpoint_that_the_sink_never_saw_was_taken_by_the_newest_attempt_that_can_have():
    history = History({1: Start(1, None), 2: Start(1, 5), 3: Start(1, 7)}, {})
    assert history.ancestry_of(3, 9) == Ancestry(((3, 9), (2, 7), (1, 5)))


def test_a_checkpoint_that_the_sink_never_saw_is_of_the_same_generation():
    history = History({1: Start(1, None), 2: Start(2, 7)}, {})
    assert history.ancestry_of(2, 9) == Ancestry(((2, 9),))


def test_a_checkpoint_that_may_go_on_from_output_or_not_is_not_guessed_at():
    history = History({1: Start(1, None), 2: Start(1, 1), 3: Start(1, 3)}, {1: 1, 2: 1})
    with pytest.raises(CorruptStateError, match=r"Expected committables with checkpoint 3, .* follows checkpoint 2"):
        history.ancestry_of(3, 9)


def test_a_line_ends_where_heads_contradict_each_other():
    history = History({1: Start(1, 2)}, {2: 1})
    assert history.ancestry_of(1, 9) == Ancestry(((1, 9),))


def test_a_checkpoint_of_an_attempt_that_wrote_elsewhere_in_between_is_told():
    history = History({1: Start(1, None), 3: Start(1, 9, 2)}, {5: 1})
    with pytest.raises(
        CorruptStateError, match=r"attempt 2, .* checkpoint 9, .* as attempt 1 did, found no record"
    ) as told:
        history.ancestry_of(3, 12)
    assert told.value.checkpoint_id == 9


def test_what_wrote_elsewhere_in_between_is_told_over_later_attempts_too():
    history = History({1: Start(1, None), 3: Start(1, 9, 2), 4: Start(1, 10, 3)}, {5: 1})
    with pytest.raises(CorruptStateError, match="changed in between"):
        history.ancestry_of(4, 12)


@pytest.mark.parametrize(
    "starts",
    [
        {3: Start(2, 9, 2)},
        {3: Start(2, 9, 2), 4: Start(2, 9, 2)},
        {1: Start(1, None), 3: Start(2, 9, 2)},
        {2: Start(2, None), 3: Start(2, 9, 2)},
    ],
    ids=["nothing", "only newer", "another generation", "known"],
)
def test_a_line_may_begin_with_a_checkpoint_that_was_taken_before_the_sink_came(starts):
    assert History(starts, {}).ancestry_of(3, 12) == Ancestry(((3, 12), (2, 9)))
