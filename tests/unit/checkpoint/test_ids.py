from __future__ import annotations

import re

import pytest

from airflow_provider_statecheck.checkpoint.ids import is_test_job, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@pytest.mark.parametrize("derive", [job_id_of, operator_id_of])
def test_an_id_is_32_hex_characters_that_depend_on_the_name_alone(derive):
    assert re.fullmatch(r"[0-9a-f]{32}", derive("sales"))
    assert derive("sales") == derive("sales")
    assert derive("sales") != derive("Sales")


def test_ids_never_change_between_releases():
    assert job_id_of("sales") == "e04eb29020eaa961e99d3162635e9fe9"


@pytest.mark.parametrize("derive", [job_id_of, operator_id_of])
@pytest.mark.parametrize("name", ["x", "x" * 500, "ä/€ b", " x "])
def test_any_text_of_1_to_500_characters_is_a_name(derive, name):
    assert len(derive(name)) == 32


@pytest.mark.parametrize(("derive", "what"), [(job_id_of, "job"), (operator_id_of, "uid")])
@pytest.mark.parametrize("name", ["", "  ", "\n", "x" * 501])
def test_an_empty_or_too_long_name_is_refused(derive, what, name):
    with pytest.raises(InvalidConfigurationError, match=f"Expected a {what} of 1 to 500 characters, found {len(name)}"):
        derive(name)


@pytest.mark.parametrize(("name", "expected"), [("test/sales", True), ("sales", False), ("sales/test/", False)])
def test_a_test_job_is_known_by_its_namespace(name, expected):
    assert is_test_job(name) is expected


def test_keys_are_new_each_time_and_fit_their_column():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {32}
