"""No block of a page is silently untested."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from tests.docs.pages import PAGES, all_blocks, blocks_of
from tests.docs.test_shell import LANGUAGES as SHELL
from tests.docs.test_troubleshooting import PAGE as TROUBLESHOOTING

ALL = [block for page in PAGES for block in blocks_of(page)]
TESTED = {"python", "json", "toml", "ini", "text", *SHELL}
DIRECTIVES = {"{toctree}", "{eval-rst}", "{include}"}
"""The build of the site tries these."""
MOST_EXCUSES = 3
WIDEST = 130


def test_every_block_is_in_a_language_that_is_tested():
    assert {block.name: block.language for block in ALL if block.language not in TESTED | DIRECTIVES} == {}


def test_few_blocks_are_excused_and_each_says_why():
    excused = [block for block in ALL if block.excuse is not None]

    assert len(excused) <= MOST_EXCUSES
    assert [block.name for block in excused if len(block.excuse or "") < 20] == []


def test_the_pages_have_blocks_of_the_languages_that_matter():
    """An extractor that finds nothing would pass every other test."""
    found = [block.language for block in ALL]

    assert found.count("python") >= 7
    assert found.count("bash") >= 5
    assert found.count("text") >= 20


@pytest.mark.parametrize(("language", "read"), [("json", json.loads), ("toml", tomllib.loads)])
def test_data_can_be_read(language: str, read: Callable[[str], Any]):
    for block in all_blocks(language):
        assert read(block.code), block.name


def test_texts_fit_on_a_page():
    texts = [block for block in all_blocks("text") if block.page != TROUBLESHOOTING]

    assert [block.name for block in texts if not block.code.strip()] == []
    assert [block.name for block in texts if max(map(len, block.code.splitlines())) > WIDEST] == []
