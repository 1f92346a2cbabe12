"""Links between files lead somewhere, in the repository too, where nobody builds a site."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.pages import PAGES, ROOT, name_of


def tokens_of(page: Path) -> list[Token]:
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    return [*tokens, *(child for token in tokens for child in token.children or ())]


def links_of(page: Path) -> list[str]:
    return [str(token.attrs["href"]) for token in tokens_of(page) if token.type == "link_open"]


def anchors_of(page: Path) -> set[str]:
    """Return the names that a host of repositories gives to headings, as the site does."""
    tokens = tokens_of(page)
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings_that_there_are(page: Path):
    inside = [link for link in map(urlsplit, links_of(page)) if not link.scheme]
    targets = [((page.parent / unquote(link.path)).resolve() if link.path else page, link.fragment) for link in inside]

    assert [str(path) for path, _ in targets if not path.is_file() or ROOT not in path.parents] == []
    assert [(path.name, anchor) for path, anchor in targets if anchor and anchor not in anchors_of(path)] == []


def test_the_list_of_decisions_names_each_one():
    decisions = ROOT / "docs" / "adr"

    assert [link for link in links_of(decisions / "README.md") if link[0].isdigit()] == sorted(
        path.name for path in decisions.glob("[0-9]*.md")
    )
