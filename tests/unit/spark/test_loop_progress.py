from __future__ import annotations

import json
from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError
from airflow_provider_statecheck.spark.loop_progress import LoopProgress, keyed
from airflow_provider_statecheck.spark.scope import StepKey

DAYS: StepKey = ((), "days")
HOURS: StepKey = ((("days", "1"),), "hours")


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
