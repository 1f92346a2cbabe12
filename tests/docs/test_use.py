"""What a reader finds on each page for users: short, with an example first, and its terms explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.pages import ROOT, blocks_of, name_of

FOLDERS = {name: sorted((ROOT / "docs" / name).glob("*.md")) for name in ("start", "use", "services", "operate")}
PAGES = [*FOLDERS["use"], *FOLDERS["services"]]
WITH_TERMS = [page for pages in FOLDERS.values() for page in pages]
MOST_WORDS = 1200
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
TERMS = {
    "attempt": "attempts?",
    "coordinator": "coordinator",
    "epoch": "epochs?",
    "fence": "fence[sd]?",
    "fingerprint": "fingerprints?",
    "generation": "generations?",
    "increment": "increments?",
    "key group": "key groups?",
    "ledger": "ledgers?",
    "lineage": "lineages?",
    "orphan": "orphans?",
    "retract": "retract(?:s|ed|ion)?",
    "savepoint": "savepoints?",
    "subsume": "subsume[sd]?",
    "subtask": "subtasks?",
    "uid": "uids?",
    "zombie": "zombies?",
}
"""Terms of the glossary that have no other meaning on a page, and their forms."""
OF_OPERATORS = {"row": "rows?"}
"""Terms that mean something else on pages for authors of Dags: there, rows are those of their data."""


def terms_of_the_glossary() -> set[str]:
    return set(re.findall(r"^\| ([^|]+?) \|", GLOSSARY.read_text(), re.MULTILINE))


def texts_of(page: Path) -> Iterator[tuple[str, bool]]:
    """Return the texts of a page outside of headings and code, each with whether it is in a link or defined there."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "inline" and not (before and before.type == "heading_open"):
            yield from _texts(token.children or [])


def _texts(children: list[Token]) -> Iterator[tuple[str, bool]]:
    depth = 0
    for child in children:
        depth += child.nesting if child.type in ("link_open", "link_close", "em_open", "em_close") else 0
        if child.type == "text":
            yield child.content, depth > 0


def is_linked(page: Path, form: str) -> bool:
    """Tell whether a term is in a link where it occurs first; a page without the term has nothing to explain."""
    pattern = re.compile(rf"(?<![\w-]){form}(?![\w-])", re.IGNORECASE)
    return next((in_link for text, in_link in texts_of(page) if pattern.search(text)), True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short(page: Path):
    assert len(page.read_text().split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_its_purpose_and_an_example(page: Path):
    before_first_section = page.read_text().split("\n## ")[0]
    block = min(blocks_of(page), key=lambda block: block.line)

    assert re.match(r"[A-Z`]", before_first_section.splitlines()[2])
    assert block.line <= before_first_section.count("\n")


@pytest.mark.parametrize("page", WITH_TERMS, ids=name_of)
def test_a_term_is_linked_or_defined_where_it_occurs_first(page: Path):
    terms = TERMS | OF_OPERATORS if page in FOLDERS["operate"] else TERMS

    assert [term for term, form in terms.items() if not is_linked(page, form)] == []


def test_the_glossary_has_each_of_these_terms():
    assert (TERMS | OF_OPERATORS).keys() - terms_of_the_glossary() == set()


def test_a_term_in_a_heading_or_in_code_is_no_occurrence(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# Epochs\n\n`epoch` and [the epoch](glossary.md) before another epoch\n\n```text\nepoch\n```\n")
    assert is_linked(page, "epochs?")
    page.write_text("# Epochs\n\n| An epoch |\n|---|\n| [epoch](glossary.md) |\n")
    assert not is_linked(page, "epochs?")


def test_the_index_has_each_page_in_the_part_of_its_folder():
    parts = re.split(r"^## ", (ROOT / "docs" / "index.md").read_text(), flags=re.MULTILINE)[1:]
    named = {part.splitlines()[0].lower(): set(re.findall(r"\]\((\w+/[\w/-]+\.md)\)", part)) for part in parts}

    assert list(named) == ["start", "use", "services", "operate", "reference", "inside"]
    for folder, pages in named.items():
        assert {page.partition("/")[0] for page in pages} == {folder}
        assert {f"{folder}/{page.name}" for page in (ROOT / "docs" / folder).glob("*.md")} <= pages
