from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_statecheck import exceptions
from airflow_provider_statecheck.exceptions import StateCheckError, causes_of, errors_before, shown_errors, text_of


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


# Errors that followed each other


def linked(**links: str) -> tuple[Exception, ...]:
    """Return the errors a, b and c; ``a_cause="b"`` makes b the cause of a, and ``a_context="c"`` c its context."""
    errors = {name: ValueError(name) for name in "abc"}
    for link, name in links.items():
        origin, kind = link.split("_")
        setattr(errors[origin], f"__{kind}__", errors[name])
    return tuple(errors.values())


def names(errors: Iterator[BaseException]) -> str:
    return "".join(map(str, errors))


@pytest.mark.parametrize("walk", [errors_before, causes_of, shown_errors])
@pytest.mark.parametrize("links", [{"a_cause": "b", "b_cause": "a"}, {"a_cause": "b", "b_cause": "c", "c_cause": "b"}])
def test_errors_that_followed_each_other_in_a_circle_are_returned_once(walk, links):
    found = names(walk(linked(**links)[0]))

    assert found == "ab" + ("c" if "c_cause" in links else "")


def test_a_circle_of_errors_that_were_being_handled_ends():
    first = linked(a_context="b", b_context="a")[0]

    assert names(errors_before(first)) == names(shown_errors(first)) == "ab"


def test_an_error_with_a_cause_and_a_context_followed_both():
    first = linked(a_cause="b", a_context="c")[0]

    assert names(errors_before(first)) == "abc"
    assert names(causes_of(first)) == names(shown_errors(first)) == "ab"


def test_a_context_is_no_cause_and_is_not_shown_once_it_is_suppressed():
    first = linked(a_context="b")[0]
    assert names(causes_of(first)) == "a"
    assert names(shown_errors(first)) == "ab"

    first.__suppress_context__ = True

    assert names(shown_errors(first)) == "a"
    assert names(errors_before(first)) == "ab"


def test_the_text_of_an_error_that_has_none_is_that_of_what_prevents_it():
    class OfDeadJvm(Exception):
        def __str__(self) -> str:
            raise ConnectionError("the JVM is gone")

    assert text_of(OfDeadJvm()) == "the JVM is gone"


LINKS = {"__cause__", "__context__"}


def walks_in(code: str) -> list[int]:
    """Return the lines on which code goes from error to error, in a loop or by a call of itself."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.While | ast.For):
            found |= _loads(node)
        elif isinstance(node, ast.FunctionDef):
            calls = (n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func) == node.name)
            found |= {line for call in calls for line in _loads(call)}
    return sorted(found)


def _loads(node: ast.AST) -> set[int]:
    """Return the lines below a node that read a link of an error, except to set that of another."""
    if isinstance(node, ast.Assign) and all(
        LINKS & {getattr(t, "attr", "") for t in ast.walk(t)} for t in node.targets
    ):
        return set()
    own = {node.lineno} if isinstance(node, ast.Attribute) and node.attr in LINKS else set()
    return own.union(*map(_loads, ast.iter_child_nodes(node)))


@pytest.mark.parametrize(
    "code",
    [
        "while error:\n  error = error.__cause__ or error.__context__",
        "while (cause := chain[-1].__cause__) is not None: chain.append(cause)",
        "for _ in range(20):\n  link = link.__context__",
        "def walk(error):\n  yield error\n  yield from walk(error.__cause__)",
    ],
)
def test_a_walk_from_error_to_error_is_found(code):
    assert walks_in(code)


@pytest.mark.parametrize("code", ["raise error from found.__cause__", "for e in chain: e.__cause__ = ids[e.__cause__]"])
def test_the_use_of_one_link_is_no_walk(code):
    assert not walks_in(code)


def test_only_this_module_goes_from_error_to_error():
    """Each walk of its own forgets circles, or that an error has a cause and a context."""
    own = Path(exceptions.__file__)
    found = {
        f"{path.relative_to(own.parent)}:{line}"
        for path in own.parent.rglob("*.py")
        for line in walks_in(path.read_text())
    }

    assert not found, "use errors_before, causes_of or shown_errors"
