"""Names of steps, and progress of loops and of steps in parts."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError
from airflow_provider_statecheck.state.progress import (
    BadPart,
    Iteration,
    Iterations,
    LoopProgress,
    PartedStep,
    PartProgress,
    ScopedNames,
    StepKey,
    describe,
    keyed,
)

DAYS: StepKey = ((), "days")
HOURS: StepKey = ((("days", "1"),), "hours")
RANKS: StepKey = ((), "ranks")
INNER: StepKey = ((("days", "1"),), "ranks")
STEP = ((("days", "2026-01-01"),), "scored")
LISTED = {"format": 1, "listing": {"names": b"x\x9c\x00", "sizes": b""}, "progress": {"finished": []}}


def test_a_name_is_claimed_once_in_a_scope():
    names = ScopedNames()
    assert names.claim("sessions") == ((), "sessions")
    assert names.claim("Sessions") == ((), "Sessions")
    with pytest.raises(DuplicateNameError, match="'sessions' is used twice"):
        names.claim("sessions")


@pytest.mark.parametrize("name", ["x", "x" * 200, "days[1]/x", " "])
def test_any_text_of_1_to_200_characters_is_a_name(name):
    assert ScopedNames().claim(name) == ((), name)


def test_names_are_apart_by_item_and_free_again_after_it():
    names = ScopedNames()
    names.claim("sessions")
    for item in ("1", "2", "2"):
        with names.inside("days", item) as scope:
            assert names.current == scope == (("days", item),)
            assert names.claim("sessions") == (scope, "sessions")
            with pytest.raises(DuplicateNameError, match=rf"days\[{item}\]/sessions"):
                names.claim("sessions")
    assert names.current == ()
    with pytest.raises(DuplicateNameError):
        names.claim("sessions")


def test_items_nest_and_the_outer_ones_names_stay_taken():
    names = ScopedNames()
    with names.inside("days", "1") as day:
        names.claim("sessions")
        with names.inside("hours", "7") as hour:
            assert hour == (("days", "1"), ("hours", "7"))
            names.claim("sessions")
        assert names.current == day
        with pytest.raises(DuplicateNameError):
            names.claim("sessions")


def test_an_error_in_an_item_leaves_its_scope():
    names = ScopedNames()
    with pytest.raises(RuntimeError), names.inside("days", "1"):
        raise RuntimeError("body")
    assert names.current == ()


@pytest.mark.parametrize("name", [7, None, b"x", "", "x" * 201], ids=repr)
def test_a_name_that_is_no_text_of_1_to_200_characters_is_refused(name: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="name of a step to be text of 1 to 200 characters"):
        ScopedNames().claim(name)


@pytest.mark.parametrize(
    ("item", "key"),
    [
        ("a b", "a b"),
        ("", ""),
        (7, "7"),
        (-1, "-1"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006+00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_text_numbers_dates_and_uuids_are_their_own_key(item, key):
    assert keyed([item], None) == [(key, item)]


@pytest.mark.parametrize("item", [1.5, True, None, b"x", ("a", 1), [1], {"a": 1}, object()])
def test_any_other_item_needs_a_key(item):
    with pytest.raises(InvalidConfigurationError, match="pass key="):
        keyed([item], None)


def test_a_key_is_derived_where_one_is_given_and_must_be_one_itself():
    items = [{"id": 1}, {"id": 2}]
    assert keyed(items, lambda item: item["id"]) == [("1", items[0]), ("2", items[1])]
    with pytest.raises(InvalidConfigurationError):
        keyed(items, lambda item: item)


def test_all_items_are_taken_at_once_in_their_order():
    assert [item for _, item in keyed(iter([3, 1, 2]), None)] == [3, 1, 2]


@pytest.mark.parametrize("items", [["a", "a"], [1, "1"], [date(2026, 1, 1), "2026-01-01"]])
def test_two_items_of_one_key_are_refused(items):
    with pytest.raises(DuplicateNameError, match="Expected a unique key for each item"):
        keyed(items, None)


def test_an_item_is_finished_in_its_own_loop_only():
    progress = LoopProgress()
    progress.finish(DAYS, "1")
    assert progress.is_finished(DAYS, "1")
    assert not progress.is_finished(DAYS, "2")
    assert not progress.is_finished(((), "hours"), "1")
    assert not progress.is_finished(((("days", "1"),), "days"), "1")
    assert progress.finished_items == 1


def test_what_was_finished_inside_an_item_is_forgotten_with_it():
    progress = LoopProgress()
    other: StepKey = ((("days", "2"),), "hours")
    deeper: StepKey = ((("days", "1"), ("hours", "7")), "minutes")
    for loop in (HOURS, deeper, other):
        progress.finish(loop, "7")
    progress.finish(DAYS, "1")
    assert not progress.is_finished(HOURS, "7")
    assert not progress.is_finished(deeper, "7")
    assert progress.is_finished(other, "7")
    assert progress.finished_items == 2


def test_progress_survives_json_and_does_not_depend_on_order():
    one, other = LoopProgress(), LoopProgress()
    for loop, key in [(HOURS, "7"), (DAYS, "3"), (DAYS, "2")]:
        one.finish(loop, key)
    for loop, key in [(DAYS, "2"), (DAYS, "3"), (HOURS, "7")]:
        other.finish(loop, key)
    assert one.encode() == other.encode()
    restored = LoopProgress(json.loads(json.dumps(one.encode())))
    assert restored.encode() == one.encode()
    assert restored.is_finished(HOURS, "7")
    assert restored.is_finished(DAYS, "3")
    assert not restored.is_finished(DAYS, "7")


def test_no_progress_is_an_empty_list():
    assert LoopProgress().encode() == []
    assert LoopProgress().finished_items == 0


def test_a_step_is_described_with_its_items():
    assert describe(((), "x")) == "x"
    assert describe(((("days", "2026-01-01"), ("hours", "7")), "x")) == "days[2026-01-01]/hours[7]/x"


def test_the_newest_step_counts_and_survives_json():
    iterations = Iterations()
    iterations.record(RANKS, Iteration(3, is_converged=False))
    iterations.record(RANKS, Iteration(6, is_converged=True))
    iterations.record(INNER, Iteration(1, is_converged=False))
    restored = Iterations(json.loads(json.dumps(iterations.encode())))
    assert restored.find(RANKS) == Iteration(6, is_converged=True)
    assert restored.find(INNER) == Iteration(1, is_converged=False)
    assert restored.encode() == iterations.encode()


def test_a_loop_goes_with_the_item_around_it_or_when_its_name_is_given_to_something_else():
    iterations = Iterations()
    for loop in (RANKS, INNER):
        iterations.record(loop, Iteration(3, is_converged=False))
    iterations.drop_scope((("days", "1"),))
    assert iterations.find(INNER) is None
    assert iterations.find(RANKS) is not None
    iterations.forget(RANKS)
    iterations.forget(RANKS)
    assert iterations.encode() == []


def parted() -> PartedStep:
    start = PartedStep(fingerprint="f", listed=LISTED, bad=(BadPart(("a.parquet (rows 0 to 9)",), "ValueError: no"),))
    return start.with_part(1, [[0, 10]], 0.25).with_part(3, [[1, 20, 0, 2, 4]], 0.75)


def test_progress_is_equal_after_a_round_trip_through_json():
    progress = PartProgress()
    progress.record(STEP, parted())
    restored = PartProgress(json.loads(json.dumps(progress.encode())))
    assert restored.find(STEP) == parted()
    assert restored.encode() == progress.encode()


def test_parts_without_a_snapshot_are_not_finished():
    limited = parted().limited_to({3, 4})
    assert dict(limited.finished) == {3: [[1, 20, 0, 2, 4]]}
    assert limited.last_number == 3
    assert limited.limited_to(()).last_number == 0


def test_steps_are_dropped_with_their_item_and_when_they_are_not_used():
    progress = PartProgress()
    progress.record(STEP, parted())
    progress.record(((), "other"), parted())
    progress.drop_scope((("days", "2026-01-01"),))
    assert progress.find(STEP) is None
    progress.keep({((), "another")})
    assert progress.encode() == []
