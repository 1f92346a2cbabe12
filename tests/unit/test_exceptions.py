from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

from airflow_provider_statecheck import exceptions
from airflow_provider_statecheck.exceptions import StateCheckError


def _subclasses(parent: type[StateCheckError]) -> Iterator[type[StateCheckError]]:
    for child in parent.__subclasses__():
        if child.__module__ == exceptions.__name__:
            yield child
            yield from _subclasses(child)


ERRORS: list[type[StateCheckError]] = [StateCheckError, *_subclasses(StateCheckError)]


class WithRequiredKeyword(StateCheckError):
    """What a user may derive: an error that cannot be made from its message alone."""

    code = "with_required_keyword"

    def __init__(self, message: str, *, uid: str) -> None:
        super().__init__(message, uid=uid)


def _parents_drawn() -> dict[str, str | None]:
    """Each class of the tree at the top of the module, with the class under which it is drawn."""
    drawn: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (exceptions.__doc__ or "").splitlines():
        name = line.split()[0] if line.strip() else ""
        if not name.endswith("Error"):
            continue
        depth = len(line) - len(line.lstrip())
        above = [(other, parent) for other, parent in above if other < depth]
        drawn[name] = above[-1][1] if above else None
        above.append((depth, name))
    return drawn


@pytest.mark.parametrize("error_class", ERRORS, ids=lambda error_class: error_class.__name__)
@pytest.mark.parametrize(
    "send", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_an_error_keeps_class_message_and_attributes_on_its_way_to_another_process(error_class, send):
    error = error_class("Expected a, found b; do c.", checkpoint_id=41, uri="file:///x")

    arrived = send(error)

    assert type(arrived) is error_class
    assert str(arrived) == str(error)
    assert arrived.args == error.args
    assert (arrived.checkpoint_id, arrived.uri) == (41, "file:///x")


def test_an_error_with_a_required_keyword_arrives_too():
    """By default it could be pickled but not read back."""
    arrived = pickle.loads(pickle.dumps(WithRequiredKeyword("Expected a, found b; do c.", uid="load")))

    assert type(arrived) is WithRequiredKeyword
    assert (str(arrived), vars(arrived)["uid"]) == ("Expected a, found b; do c.", "load")


def test_an_error_keeps_its_notes_on_its_way_to_another_process():
    error = StateCheckError("Expected a, found b; do c.")
    error.add_note("while restoring")

    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while restoring"]


@pytest.mark.parametrize("error_class", ERRORS, ids=lambda error_class: error_class.__name__)
def test_an_error_is_named_as_one_and_can_be_pickled_by_its_name(error_class):
    assert error_class.__name__.endswith("Error")
    assert getattr(exceptions, error_class.__name__) is error_class


@pytest.mark.parametrize("error_class", ERRORS, ids=lambda error_class: error_class.__name__)
def test_no_error_mixes_in_a_builtin_that_loses_its_message_when_pickled(error_class):
    assert not issubclass(error_class, OSError)


def test_no_two_errors_have_one_code():
    codes = [vars(error_class).get("code") for error_class in ERRORS]

    assert None not in codes
    assert len(set(codes)) == len(ERRORS)


def test_the_tree_drawn_at_the_top_is_the_tree():
    parents = {
        error_class.__name__: next((base.__name__ for base in error_class.__bases__ if base in ERRORS), None)
        for error_class in ERRORS
    }

    assert _parents_drawn() == parents
