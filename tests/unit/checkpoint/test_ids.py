"""Ids of jobs and operators, and the paths of their files."""

from __future__ import annotations

import re

import pytest

from airflow_provider_statecheck.checkpoint.ids import (
    JobId,
    OperatorId,
    checkpoint_id_of,
    checkpoint_uri,
    epoch_name,
    epoch_of,
    given_job_id,
    is_test_job,
    is_uri,
    job_id_of,
    job_uri,
    new_key,
    operator_id_of,
    shared_uri,
    slug,
)
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


@pytest.mark.parametrize(("derive", "what"), [(job_id_of, "job"), (operator_id_of, "uid"), (given_job_id, "job")])
@pytest.mark.parametrize("name", [None, 5, b"sales", "\ud800"])
def test_what_is_no_text_is_refused(derive, what, name):
    with pytest.raises(InvalidConfigurationError, match=f"Expected a {what} that is text in UTF-8, found"):
        derive(name)


@pytest.mark.parametrize("derive", [job_id_of, given_job_id])
@pytest.mark.parametrize("name", ["s3://key:secret@lake/chk-1", "a://b"])
def test_a_uri_is_no_name_of_a_job(derive, name):
    with pytest.raises(InvalidConfigurationError, match="Expected the name of a job, found a URI") as refused:
        derive(name)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["nightly/manual://1", "a:/b", "://b", "a://"])
def test_a_name_that_no_command_takes_for_a_uri_is_one(name):
    assert not is_uri(name)
    assert given_job_id(name) == job_id_of(name)


@pytest.mark.parametrize(("name", "expected"), [("test/sales", True), ("sales", False), ("sales/test/", False)])
def test_a_test_job_is_known_by_its_namespace(name, expected):
    assert is_test_job(name) is expected


def test_keys_are_new_each_time_and_fit_their_column():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {32}


JOB, OPERATOR = JobId("a" * 32), OperatorId("b" * 32)


@pytest.mark.parametrize("base", ["s3://bucket/base", "s3://bucket/base/"])
def test_every_place_lies_below_the_job(base):
    root = f"s3://bucket/base/{JOB}"
    assert job_uri(base, JOB) == root
    assert checkpoint_uri(base, JOB, 7) == f"{root}/chk-7"
    assert shared_uri(base, JOB, OPERATOR) == f"{root}/shared/{OPERATOR}"


@pytest.mark.parametrize("name", ["sessions", "a b", "../../etc", "ä€", "...", "x" * 200, "_metadata", "a/b\\c:d"])
def test_a_slug_is_safe_on_every_filesystem(name):
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", slug(name))


def test_a_slug_is_always_the_same_for_one_name():
    assert slug("sessions", (("days", "2026-01-01"),)) == slug("sessions", (("days", "2026-01-01"),))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a b", ()), ("a_b", ())),
        (("x", ()), ("x", (("days", "1"),))),
        (("x", (("days", "1"),)), ("x", (("days", "2"),))),
        (("x", (("days", "1"),)), ("x", (("hours", "1"),))),
        (("x" * 100 + "1", ()), ("x" * 100 + "2", ())),
        (("Ä", ()), ("Ö", ())),
    ],
)
def test_what_a_slug_folds_together_is_kept_apart(one, other):
    assert slug(*one) != slug(*other)


def test_the_epoch_of_a_writer_can_be_read_from_its_names():
    names = {epoch_name(12) for _ in range(10)}
    assert len(names) == 10
    assert {epoch_of(name) for name in names} == {12}


@pytest.mark.parametrize(
    "name", ["_metadata", "12", f"12-{'g' * 32}", f"12-{'a' * 31}", f"x-{'a' * 32}", f"-1-{'a' * 32}", ""]
)
def test_any_other_name_has_no_epoch(name):
    assert epoch_of(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chk-7", 7),
        ("chk-120", 120),
        ("chk-", None),
        ("chk-x", None),
        ("chk--1", None),
        ("old-chk-7", None),
        ("shared", None),
        ("taskowned", None),
    ],
)
def test_only_the_directory_of_a_checkpoint_has_an_id(name, expected):
    assert checkpoint_id_of(name) == expected
