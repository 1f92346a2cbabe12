"""Each name that users call or implement has an example that a test runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.docs.pages import ROOT, all_blocks

POINTS = ROOT / "scripts" / "extension_points.txt"
PACKAGE = "airflow_provider_statecheck."


def listed() -> list[str]:
    lines = (line.partition("#")[0].strip() for line in POINTS.read_text().splitlines())
    return [line for line in lines if line]


def examples() -> Iterator[str]:
    """Yield the Python blocks of pages that run, and the Dags."""
    yield from (block.code for block in all_blocks("python") if block.excuse is None)
    yield from (path.read_text() for path in (ROOT / "dags").glob("*.py"))


def used_names(code: str) -> Iterator[str]:
    """Yield the full names that a program imports, or uses as an attribute of an imported module."""
    bound: dict[str, str] = {}
    nodes = list(ast.walk(ast.parse(code)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            bound.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    yield from bound.values()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
            yield f"{bound[node.value.id]}.{node.attr}"


def test_each_extension_point_has_an_example():
    shown = {name for code in examples() for name in used_names(code)}

    assert [name for name in listed() if name not in shown] == []


def test_names_are_sorted_within_their_subject_and_listed_once():
    subjects = [[line for line in block.splitlines() if line[0] != "#"] for block in POINTS.read_text().split("\n\n")]

    assert subjects == [sorted(set(names)) for names in subjects]
    assert len(listed()) == len(set(listed()))
    assert all(name.startswith(PACKAGE) for name in listed())
