"""Every page, its links and its blocks."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.pages import PAGES, ROOT, all_blocks, blocks_of, name_of
from tests.docs.test_shell import LANGUAGES as SHELL
from tests.docs.test_troubleshooting import PAGE as TROUBLESHOOTING

PAGE = """\
# A page

```python
1
```

- in a list

  ```bash
  make test
  ```

<!-- untested: needs a cluster of two machines -->
```python
2
```

~~~
no language
~~~

    indented

<!-- another comment -->
```{toctree}
a
```
"""


def test_every_block_is_found_wherever_it_stands(tmp_path: Path):
    (tmp_path / "page.md").write_text(PAGE)
    found = [(block.line, block.language, block.code) for block in blocks_of(tmp_path / "page.md")]

    assert found == [
        (3, "python", "1\n"),
        (9, "bash", "make test\n"),
        (14, "python", "2\n"),
        (18, "text", "no language\n"),
        (22, "text", "indented\n"),
        (25, "{toctree}", "a\n"),
    ]


def test_an_excuse_is_that_of_the_block_right_after_it(tmp_path: Path):
    (tmp_path / "page.md").write_text(PAGE)
    excuses = [block.excuse for block in blocks_of(tmp_path / "page.md")]

    assert excuses == [None, None, "needs a cluster of two machines", None, None, None]


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


def test_only_what_contradicts_the_other_requirements_is_needed_by_a_block():
    # Databricks Connect has another pyspark, and Google's client needs that of Spark 4.0.
    clients = {"databricks.connect", "google.cloud.managed_spark_connect"}
    assert {block.needs for block in ALL} == {None, "airflow.providers.google", *clients}


def test_the_pages_have_blocks_of_the_languages_that_matter():
    """An extractor that finds nothing would pass every other test."""
    found = [block.language for block in ALL]

    assert found.count("python") >= 7
    assert found.count("bash") >= 5
    assert found.count("text") >= 20


def test_what_the_pages_import_of_the_package_is_there():
    imported = {
        (node.module or "", name.name)
        for block in all_blocks("python")
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_provider_statecheck")
        for name in node.names
    }

    assert len(imported) > 50
    assert sorted(each for each in imported if not _is_there(*each)) == []


def _is_there(module: str, name: str) -> bool:
    if name in dir(import_module(module)):
        return True  # what provides it may be missing
    try:
        import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize(("language", "read"), [("json", json.loads), ("toml", tomllib.loads)])
def test_data_can_be_read(language: str, read: Callable[[str], Any]):
    for block in all_blocks(language):
        assert read(block.code), block.name


def test_texts_fit_on_a_page():
    texts = [block for block in all_blocks("text") if block.page != TROUBLESHOOTING]

    assert [block.name for block in texts if not block.code.strip()] == []
    assert [block.name for block in texts if max(map(len, block.code.splitlines())) > WIDEST] == []


def test_the_list_of_decisions_names_each_one():
    decisions = ROOT / "docs" / "inside" / "adr"

    assert [link for link in links_of(decisions / "README.md") if link[0].isdigit()] == sorted(
        path.name for path in decisions.glob("[0-9]*.md")
    )
