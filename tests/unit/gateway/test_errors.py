"""Errors come out of the coordinator's replies as they went in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_statecheck import exceptions
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.gateway import verbs
from airflow_provider_statecheck.gateway.verbs import decode_error, encode_error


def _tree(kind: type[StateCheckError]) -> Iterator[type[StateCheckError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == exceptions.__name__:
            yield from _tree(child)


KINDS = list(_tree(StateCheckError))


def _travel(error: StateCheckError) -> StateCheckError:
    return decode_error(json.loads(json.dumps(encode_error(error), allow_nan=False)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_keeps_class_text_and_facts(kind: type[StateCheckError]) -> None:
    arrived = _travel(kind("Expected a, found b.", epoch=3, uid="x", ratio=0.5, flag=True, nothing=None))
    assert type(arrived) is kind
    assert str(arrived) == "Expected a, found b."
    assert vars(arrived) == {"epoch": 3, "uid": "x", "ratio": 0.5, "flag": True, "nothing": None}
    assert arrived.retryable == kind.retryable


def test_a_class_without_a_code_of_its_own_arrives_as_its_parent() -> None:
    # Another module has such a class, and whether it was imported before must make no difference.
    CheckpointConfig.from_mapping({})
    assert type(_travel(InvalidConfigurationError("Expected a, found b."))) is InvalidConfigurationError
    with pytest.raises(InvalidConfigurationError) as refused:
        CheckpointConfig.from_mapping({"execution.checkpointing.timeout": "1 ms"})
    assert type(_travel(refused.value)) is InvalidConfigurationError


def test_codes_are_told_apart() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("value", [object(), [1], {"a": 1}, (1,), b"x", {1}, float("nan"), float("inf"), Exception()])
def test_a_fact_that_is_no_plain_value_stays_behind(value: Any) -> None:
    assert vars(_travel(CoordinatorError("text", kept=1, left=value))) == {"kept": 1}


def test_a_reason_arrives_as_its_text() -> None:
    sent = exceptions.CheckpointDeclinedError("text", reason=CheckpointFailureReason.IO_EXCEPTION)
    assert _travel(sent).reason == "io_exception"


@pytest.mark.parametrize("code", ["of_a_newer_version", "", None, 7])
def test_an_unknown_code_is_a_coordinator_error_that_is_not_repeated(code: Any) -> None:
    arrived = decode_error({"code": code, "message": "text", "attributes": {"epoch": 1}})
    assert type(arrived) is CoordinatorError
    assert (str(arrived), arrived.epoch, arrived.retryable) == ("text", 1, False)


@pytest.mark.parametrize("attributes", [None, [], "text", 5, [["a", 1]]])
def test_facts_of_another_form_are_left_out(attributes: Any) -> None:
    assert vars(decode_error({"code": "coordinator", "message": "text", "attributes": attributes})) == {}


def test_no_facts_at_all_are_none() -> None:
    assert vars(decode_error({"code": "stale_attempt", "message": "text"})) == {}


def test_a_fact_cannot_take_the_place_of_the_text() -> None:
    arrived = decode_error({"code": "coordinator", "message": "text", "attributes": {"message": "x", "self": "y"}})
    assert str(arrived) == "text"


def test_a_class_that_wants_more_than_was_sent_becomes_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    class Demanding(CoordinatorError):
        def __init__(self, message: str, *, uid: str) -> None:
            super().__init__(message, uid=uid)

    monkeypatch.setitem(verbs._CLASSES, "demanding", Demanding)
    assert type(decode_error({"code": "demanding", "message": "text", "attributes": {"uid": "x"}})) is Demanding
    assert type(decode_error({"code": "demanding", "message": "text"})) is CoordinatorError
