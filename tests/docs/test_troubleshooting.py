"""Every code of an error has its section, and every text that a section quotes is one that the code raises."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import airflow_provider_statecheck
from airflow_provider_statecheck import exceptions
from airflow_provider_statecheck.exceptions import StateCheckError
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "operate" / "troubleshooting.md"
ERRORS = {
    kind.code: kind
    for kind in vars(exceptions).values()
    if isinstance(kind, type) and issubclass(kind, StateCheckError)
}
PACKAGE = Path(airflow_provider_statecheck.__file__).parent
_FEWEST_FIXED = 15
"""A template with less fixed text would fit anything."""


class Section(NamedTuple):
    code: str
    first_words: str
    texts: list[str]


def sections() -> list[Section]:
    tokens = MarkdownIt("commonmark").parse(PAGE.read_text())
    starts = [i for i, token in enumerate(tokens) if token.type == "heading_open" and token.tag == "h3"]
    ends = [*starts[1:], len(tokens)]
    return [_section(tokens[start:end]) for start, end in zip(starts, ends, strict=True)]


def _section(tokens: list[Token]) -> Section:
    heading, first = [token.content for token in tokens if token.type == "inline"][:2]
    return Section(heading.strip("`"), first, [token.content for token in tokens if token.type == "fence"])


QUOTES = [(section.code, " ".join(text.split())) for section in sections() for text in section.texts]


class Template(NamedTuple):
    kind: str
    pattern: re.Pattern[str]


@cache
def templates() -> list[Template]:
    """Return the messages of all errors that the package makes, with holes where values go."""
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [found for function in functions for found in _templates_in(function)]


def _templates_in(function: ast.FunctionDef) -> Iterator[Template]:
    texts = dict(_named_texts(function))
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and call.args and (kind := _kind_of(call)):
            # A change of a source is reported as what was found, and the remedy.
            messages = call.args[:2] if _name_of(call.func) == "change_error" else call.args[:1]
            parts = [part for each in messages for part in (*_parts(texts.get(_name_of(each), each)), None)][:-1]
            if sum(map(len, filter(None, parts))) >= _FEWEST_FIXED:
                text = "".join(".*" if part is None else re.escape(part) for part in parts)
                yield Template(kind, re.compile(text, re.DOTALL))


def _kind_of(call: ast.Call) -> str:
    name = _name_of(call.func)
    return "SourceChangedError" if name == "change_error" else name if name.endswith("Error") else ""


def _named_texts(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _parts(node: ast.expr) -> Iterator[str | None]:
    if isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _parts(value)
    else:
        yield node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def test_every_code_has_one_section_and_every_section_has_a_code():
    assert sorted(section.code for section in sections()) == sorted(ERRORS)


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.code)
def test_a_section_names_its_class_and_whether_a_retry_may_help(section: Section):
    kind = ERRORS[section.code]

    assert section.first_words.startswith(f"`{kind.__name__}`")
    assert ("retryable" in section.first_words.partition(":")[0]) is kind.retryable


@pytest.mark.parametrize(("code", "text"), QUOTES, ids=[f"{code}-{text[:40]}" for code, text in QUOTES])
def test_a_quoted_text_is_one_that_the_code_raises_for_this_error(code: str, text: str):
    assert ERRORS[code].__name__ in {each.kind for each in templates() if each.pattern.fullmatch(text)}


def test_every_error_that_the_package_raises_has_a_quoted_text():
    raised = {each.kind for each in templates()} & {kind.__name__ for kind in ERRORS.values()}

    assert raised <= {ERRORS[code].__name__ for code, _ in QUOTES}
