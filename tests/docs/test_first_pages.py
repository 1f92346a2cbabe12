"""The README and the pages for users: short, with a tested example, and with figures that have a source."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts.docs.pages import generated
from tests.docs.pages import FOR_USERS, README, ROOT, Block, blocks_of, has_what_it_needs, name_of, runs_alone
from tests.docs.test_first_minutes import FOLLOWED
from tests.unit.test_packaging import PROJECT

PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
MOST_WORDS = 1200
MOST_LINES = 120
BY_NAME = {"killed"}
"""Outputs that ``test_first_minutes`` compares."""
RUNNING = [Path(__file__).with_name(name) for name in ("test_python.py", "test_first_minutes.py")]
_REGION = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_FIGURE = re.compile(r"\d+(?:\.\d+)?\s*(?:%|x\b|times\b|s\b|seconds\b|GB\b|MB\b)")


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


@pytest.mark.parametrize("page", [page for page in FOR_USERS if page != README], ids=name_of)
def test_a_page_has_at_most_so_many_words(page: Path) -> None:
    assert len(page.read_text().split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_its_purpose_and_has_an_example(page: Path) -> None:
    heading, _, text = page.read_text().partition("\n\n")

    assert heading.startswith("# ")
    assert text[0].isalpha(), f"{page.name} begins with {text[:20]!r} instead of a sentence"
    assert [block for block in blocks_of(page) if block.language in ("python", "bash")]


def is_tried(block: Block) -> bool:
    """Tell whether ``make test`` runs a block, checks it or compares it, or the page says why not."""
    if block.fragment or block.excuse or not has_what_it_needs(block):
        return True
    if block.language == "text":
        return block.output == "above" or block.output in BY_NAME
    if block.language == "python":
        return block.page in FOLLOWED if block.file else runs_alone(block)
    return block.language in ("bash", "ini", "json", "toml")  # test_shell and test_pages check these


def test_make_test_runs_the_code_of_these_pages() -> None:
    """A mark that leaves one of these tests to ``make soak`` would leave blocks without a run."""
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not soak", *map(str, RUNNING)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    ).stdout
    with_python = [page for page in FOR_USERS if any(map(runs_alone, blocks_of(page)))]

    assert [page for page in with_python if f"test_every_block_of_a_page_runs[{name_of(page)}]" not in collected] == []
    assert len(re.findall("test_first_minutes.py::test_the_", collected)) == 3


@pytest.mark.parametrize("page", FOR_USERS, ids=name_of)
def test_each_block_is_run_or_says_that_it_is_a_fragment(page: Path) -> None:
    assert [block.name for block in blocks_of(page) if not is_tried(block)] == []


def test_the_readme_is_short_and_installs_in_its_first_lines() -> None:
    lines = README.read_text().splitlines()

    assert len(lines) <= MOST_LINES
    assert [line for line in lines[:15] if line.startswith(("pip install", "export ", "airflow db migrate"))]
    assert lines.index("airflow db migrate") < 15


def test_figures_of_the_readme_come_from_results_of_benchmarks() -> None:
    text = README.read_text()

    assert generated(text) == text
    assert _FIGURE.findall(_REGION.sub("", prose(README))) == []
    for region in _REGION.findall(text):
        sources = re.findall(r"\((benchmarks/results/\w+\.json)\)", region)
        assert sources
        assert all((ROOT / source).is_file() for source in sources)


def test_what_has_not_been_released_has_a_short_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()

    assert len(text[text.index("## [0.1.0]") :].splitlines()) <= 40


def test_the_workflow_calls_the_commands_of_every_change_on_each_supported_python() -> None:
    [workflow] = (ROOT / ".github" / "workflows").glob("*.yaml")
    job = yaml.safe_load(workflow.read_text())["jobs"]["checks"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    prefix = "Programming Language :: Python :: "
    supported = [each.removeprefix(prefix) for each in PROJECT["classifiers"] if each.startswith(prefix)]

    assert commands == [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert job["strategy"]["matrix"]["python"] == supported
    assert commands == [line for line in README.read_text().splitlines() if line in commands]


def test_the_forms_of_issues_are_valid() -> None:
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yaml"):
        content = yaml.safe_load(form.read_text())
        assert {"name", "description", "body"} <= set(content)
        assert all(each["type"] in ("markdown", "textarea", "input") for each in content["body"])
