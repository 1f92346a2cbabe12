"""What a log of commits says about checkpoints, attempts and generations."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.commits.commit_log import (
    ALL_CHECKPOINTS,
    Ancestry,
    CommitLog,
    CommitRange,
    Start,
)


def a_range(epoch: int, first: int, last: int, generation: int = 1) -> CommitRange:
    return CommitRange(generation=generation, epoch=epoch, first=first, last=last)


def a_log() -> CommitLog:
    """Return that of an attempt with three commits."""
    log = CommitLog().begun(1, Start(1))
    for checkpoint_id in (1, 2, 3):
        log = log.adding(1, 1, checkpoint_id)
    return log


def test_commits_of_one_attempt_are_one_range():
    assert a_log().committed == (a_range(1, 1, 3),)


def test_the_size_of_a_log_does_not_follow_the_number_of_checkpoints():
    log = a_log()
    for checkpoint_id in range(4, 1000):
        log = log.adding(1, 1, checkpoint_id)
    assert len(log.encode()) < len(a_log().encode()) + 5


def test_a_log_holds_what_was_committed_and_what_came_before_without_output():
    log = a_log().adding(1, 1, 7)
    assert log.holds(1, 3)
    assert log.holds(1, 5)
    assert not log.holds(1, 8)
    assert not log.holds(2, 3)


def test_the_newest_epoch_is_that_of_the_last_attempt_that_began():
    assert CommitLog().newest_epoch == 0
    assert a_log().begun(4, Start(1, 3, 1)).newest_epoch == 4


def test_what_came_after_the_restored_checkpoint_is_outside_the_line_of_the_new_attempt():
    log = a_log().begun(2, Start(1, 1, 1))
    line = log.ancestry_of(2)
    assert log.outside(line) == (a_range(1, 2, 3),)
    kept = log.retracting(line)
    assert kept.committed == (a_range(1, 1, 1),)
    assert kept.retracted == (a_range(1, 2, 3),)


def test_everything_is_outside_the_line_of_a_fresh_start():
    log = a_log().begun(2, Start(2))
    assert log.outside(log.ancestry_of(2)) == (a_range(1, 1, 3),)


def test_nothing_is_outside_the_line_of_who_restored_the_newest_checkpoint():
    log = a_log().begun(2, Start(1, 3, 1))
    assert log.outside(log.ancestry_of(2)) == ()


def test_a_line_goes_over_an_attempt_that_committed_nothing():
    log = a_log().begun(2, Start(1, 1, 1)).begun(3, Start(1, 5, 2))
    assert log.ancestry_of(3).holds(1, 1)
    assert log.ancestry_of(3).holds(2, 5)
    assert log.outside(log.ancestry_of(3)) == (a_range(1, 2, 3),)


def test_a_line_ends_at_an_attempt_that_is_not_older():
    assert CommitLog().begun(1, Start(1, 2, 7)).ancestry_of(1) == Ancestry(((1, ALL_CHECKPOINTS),))


def a_line_of(epoch: int, *starts: tuple[int, Start]) -> Ancestry:
    log = CommitLog()
    for each in starts:
        log = log.begun(*each)
    return log.ancestry_of(epoch)


def test_a_line_holds_what_each_attempt_took_up_to_where_the_next_one_began():
    line = a_line_of(3, (1, Start(1)), (2, Start(1, 3, 1)), (3, Start(1, 3, 1)))
    assert line == Ancestry(((3, ALL_CHECKPOINTS), (1, 3)))
    assert [line.holds(3, 9), line.holds(1, 3), line.holds(1, 4), line.holds(2, 1)] == [True, True, False, False]


@pytest.mark.parametrize("later", [[], [(4, Start(1, 10, 3))]], ids=["at once", "over a later attempt"])
def test_a_checkpoint_of_an_attempt_that_wrote_elsewhere_in_between_is_told(later):
    starts = [(1, Start(1)), (3, Start(1, 9, 2)), *later]
    with pytest.raises(
        CorruptStateError,
        match=r"attempt 2, .* checkpoint 9, .* as attempt 1 did, found no record .* changed in between",
    ) as told:
        a_line_of(starts[-1][0], *starts)
    assert told.value.checkpoint_id == 9


@pytest.mark.parametrize(
    "starts",
    [[], [(4, Start(2, 9, 2))], [(1, Start(1))], [(2, Start(2))]],
    ids=["nothing", "only newer", "another generation", "known"],
)
def test_a_line_may_begin_with_a_checkpoint_that_was_taken_before_the_sink_came(starts):
    assert a_line_of(3, *starts, (3, Start(2, 9, 2))) == Ancestry(((3, ALL_CHECKPOINTS), (2, 9)))


def test_a_restored_checkpoint_whose_attempt_is_unknown_is_not_guessed_at():
    with pytest.raises(ValueError, match="found checkpoint 3 of attempt None"):
        Start(1, 3)
    text = a_log().begun(2, Start(1, 3, 1)).encode().replace("[1,3,1]", "[1,3,null]")
    with pytest.raises(CorruptStateError, match="Expected the log of a sink"):
        CommitLog.decode(text, "a log")


def test_a_log_survives_being_written_as_text():
    log = a_log().begun(2, Start(1, 1, 1))
    log = log.retracting(log.ancestry_of(2)).adding(1, 2, 4)
    assert CommitLog.decode(log.encode(), "a log") == log
    assert CommitLog.decode(CommitLog().encode(), "a log") == CommitLog()


def test_a_log_remembers_what_cannot_be_taken_back():
    log = a_log().adding(1, 1, 4, is_retractable=False).adding(1, 1, 5, is_retractable=False).adding(1, 1, 6)
    assert [(each.first, each.last, each.is_retractable) for each in log.committed] == [
        (1, 3, True),
        (4, 5, False),
        (6, 6, True),
    ]
    assert CommitLog.decode(log.encode(), "a log") == log
    back = log.begun(2, Start(1, 4, 1))
    assert [each.is_retractable for each in back.outside(back.ancestry_of(2))] == [False, True]


def test_generations_whose_output_was_replaced_are_forgotten():
    log = a_log().begun(2, Start(1, 3, 1)).begun(3, Start(2))
    assert log.retracting(log.ancestry_of(3)).starts == {3: Start(2)}
    assert log.retracting(log.ancestry_of(3)).retracted == ()
    assert log.retracting(log.ancestry_of(3)).forgotten == 2


def test_a_generation_with_output_is_kept():
    log = a_log().begun(2, Start(1, 1, 1))
    kept = log.retracting(log.ancestry_of(2))
    assert (set(kept.starts), kept.forgotten) == ({1, 2}, 0)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format_version": 9}', a_log().encode()[:-2]])
def test_text_that_is_no_log_is_told(text):
    with pytest.raises(CorruptStateError, match="Expected the log of a sink of format 2 in a log"):
        CommitLog.decode(text, "a log")
