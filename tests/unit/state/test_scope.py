from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError
from airflow_provider_statecheck.state.progress import ScopedNames, keyed


def test_a_name_is_claimed_once_in_a_scope():
    names = ScopedNames()
    assert names.claim("sessions") == ((), "sessions")
    assert names.claim("Sessions") == ((), "Sessions")
    with pytest.raises(DuplicateNameError, match="'sessions' is used twice"):
        names.claim("sessions")


@pytest.mark.parametrize("name", ["x", "x" * 200, "days[1]/x", " "])
def test_any_text_of_1_to_200_characters_is_a_name(name):
    assert ScopedNames().claim(name) == ((), name)


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_an_empty_or_too_long_name_is_refused(name):
    with pytest.raises(InvalidConfigurationError, match="1 to 200 characters"):
        ScopedNames().claim(name)


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
def test_a_name_that_is_no_text_of_sensible_length_is_refused(name: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="name of a step"):
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
