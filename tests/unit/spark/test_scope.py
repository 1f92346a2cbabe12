from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError
from airflow_provider_statecheck.spark.scope import ScopedNames, describe


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


def test_a_step_is_described_with_its_items():
    assert describe(((), "x")) == "x"
    assert describe(((("days", "2026-01-01"), ("hours", "7")), "x")) == "days[2026-01-01]/hours[7]/x"


@pytest.mark.parametrize("name", [7, None, b"x", "", "x" * 201], ids=repr)
def test_a_name_that_is_no_text_of_sensible_length_is_refused(name: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="name of a step"):
        ScopedNames().claim(name)
