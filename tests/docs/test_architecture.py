"""The page on the architecture: its tree, its rules and the code that it names exist."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

from scripts.docs.architecture import summary_of
from tests.docs.pages import ROOT

PACKAGE = ROOT / "airflow_provider_statecheck"
PAGE = (ROOT / "docs" / "inside" / "architecture.md").read_text()
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts)
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", PAGE)))
_LONGEST_SUMMARY = 95


def names_in_tree() -> list[str]:
    """Return the paths that the tree shows, by the depth of its lines."""
    tree = re.search(r"<!-- generated: tree -->\n+```text\n(.*?)```", PAGE, re.DOTALL)
    assert tree
    paths: list[str] = []
    folders: list[str] = []
    for line in tree[1].splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders[depth:] = [name]
        paths.append("".join(folders))
    return paths


def test_the_tree_shows_each_folder_and_each_file_once():
    folders = {f"{path.parent.relative_to(ROOT)}/" for path in FILES}
    files = {str(path.relative_to(ROOT)) for path in FILES if path.name != "__init__.py"}

    shown = names_in_tree()

    assert len(shown) == len(set(shown))
    assert set(shown) - {"airflow_provider_statecheck/metadata/migrations/"} == folders | files


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_says_in_one_line_what_it_is(path):
    summary = summary_of(path)

    assert len(summary.split()) >= 2
    assert len(summary) <= _LONGEST_SUMMARY


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{path}:{name}" for path, name in NAMED])
def test_code_that_the_page_names_is_there(path: str, name: str):
    definitions = ast.parse((PACKAGE / path).read_text()).body
    for part in name.split("."):
        found = [node for node in definitions if getattr(node, "name", None) == part]
        assert found, f"{path} has no {name}"
        definitions = getattr(found[0], "body", [])


def test_the_page_names_each_hop():
    assert len(NAMED) > 25


def test_modules_import_each_other_in_no_circle_not_even_for_types_or_inside_functions():
    graph = grimp.build_graph("airflow_provider_statecheck", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}

    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")
