"""Every test and file that the tables of rules name is there."""

from __future__ import annotations

import re
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGES = sorted(
    [
        *(ROOT / "docs" / "inside" / "rules").glob("*.md"),
        *(ROOT / "docs" / f"{name}.md" for name in ("operate/security", "reference/runs", "reference/state-handles")),
    ]
)
SECURITY = ROOT / "docs" / "operate" / "security.md"
_PATH = re.compile(r"`([\w/]+\.py(?:::\w+)?)`")
_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"(?:Test\w+|\w+)")
_PLACES = ("tests", "tests/unit", "tests/unit/checkpoint", "tests/unit/storage", "airflow_provider_statecheck")


@cache
def names_of_tests() -> frozenset[str]:
    folders = (ROOT / "tests", ROOT / "airflow_provider_statecheck" / "testing")
    texts = [file.read_text() for folder in folders for file in folder.rglob("*.py")]
    return frozenset(name for text in texts for name in re.findall(r"(?:def|class) (\w+)", text))


@cache
def names_of_modules() -> frozenset[str]:
    return frozenset(
        file.stem for place in ("tests", "airflow_provider_statecheck") for file in (ROOT / place).rglob("*.py")
    )


def rows_with_tests(page: Path) -> list[str]:
    """Return the lines of each table whose head says that its last column has tests."""
    rows, has_tests, before = list[str](), False, ""
    for line in page.read_text().splitlines():
        if line.startswith("|--"):
            has_tests = _last_of(before).startswith("Test")
        elif line.startswith("|") and before.startswith("|") and has_tests:
            rows.append(line)
        before = line
    return rows


def named_in(page: Path) -> list[tuple[str, str]]:
    """Return what stands in code in the last column of each such line, with the line."""
    return [(name, row) for row in rows_with_tests(page) for name in _CODE.findall(_last_of(row))]


def _last_of(row: str) -> str:
    return row.rstrip(" |").rpartition(" | ")[2]


def is_there(name: str) -> bool:
    if name.endswith((".py", "/")) or ".py::" in name:
        path, _, test = name.partition("::")
        exists = any((ROOT / place / path).exists() for place in _PLACES) or Path(path).stem in names_of_modules()
        return exists and (not test or is_there(test))
    parts = [part for part in re.split(r"::|\.", re.sub(r"\[.*", "", name)) if part]
    return all(part in names_of_modules() or _is_test(part) for part in parts)


def _is_test(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and bool({name, f"test_{name}"} & names_of_tests())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_table_of_rules_names_is_there(page: Path) -> None:
    named = named_in(page)
    assert named, f"{page.name} names no test"
    missing = sorted({name for name, _ in named if not is_there(name)})
    assert missing == []


def test_every_test_that_the_threat_model_names_is_in_the_file_that_it_names_and_no_line_is_without_one() -> None:
    rows = rows_with_tests(SECURITY)
    assert [row for row in rows if not _PATH.search(_last_of(row))] == []
    named = [found for row in rows for found in _PATH.findall(_last_of(row))]
    missing = [name for name in named if not _is_in_its_file(name)]
    assert missing == []


def test_every_section_about_protections_names_its_tests() -> None:
    sections = re.findall(r"^## (.+)$", SECURITY.read_text(), re.MULTILINE)
    begin, end = sections.index("Token exchange"), sections.index("Tests of these sections")
    listed = {cells[0].partition("]")[0].lstrip("[") for cells in cells_of(SECURITY, "Section")[1:]}
    assert listed == {*sections[begin:end]}


def _is_in_its_file(name: str) -> bool:
    path, _, test = name.partition("::")
    file = ROOT / "tests" / path
    return file.exists() and (not test or bool(re.search(rf"(?:def|class) {test}\b", file.read_text())))


def cells_of(page: Path, first_column: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this head, its head first."""
    lines = page.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    rows = takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows if not row.startswith("|--")]


def test_each_kind_of_saved_work_has_a_tested_rule_for_each_kind_of_change() -> None:
    (_, *changes), *rows = cells_of(ROOT / "docs" / "operate" / "recovery.md", "Saved work")
    expected = {(row[0], change): cell for row in rows for change, cell in zip(changes, row[1:], strict=True)}
    _, *rules = cells_of(ROOT / "docs" / "inside" / "rules" / "kept.md", "Saved work")
    results = {(work, change): result for work, change, result, _ in rules}
    assert len(rules) == len(results)
    assert results.keys() == expected.keys()
    assert {pair: result for pair, result in results.items() if not result.startswith(expected[pair])} == {}
