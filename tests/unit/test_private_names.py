"""Tests see what users and other modules see; Ruff's SLF001 holds it for attributes, this file for the other ways."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGE = "airflow_provider_statecheck"


def private_names_in(source: str, of_package: frozenset[str]) -> Iterator[str]:
    """Return the private names of the package that a test imports or replaces."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("setattr", "delattr", "object"):
            texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            yield from (name for text in texts if is_private(name := text.rpartition(".")[2]) and name in of_package)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def names_of_package() -> frozenset[str]:
    trees = (ast.parse(file.read_text()) for file in (TESTS.parent / PACKAGE).rglob("*.py"))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    fields = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return frozenset(functions | variables | fields)


def test_no_test_imports_or_replaces_a_private_name_of_the_package() -> None:
    known = names_of_package() - NAMES_OF_LIBRARIES
    found = [
        f"{file.relative_to(TESTS)}: {name}"
        for file in sorted(TESTS.rglob("*.py"))
        for name in private_names_in(file.read_text(), known)
    ]
    assert found == []


NAMES_OF_LIBRARIES = frozenset({"_gateway", "_get_hook"})


def test_both_ways_are_found() -> None:
    source = """
from airflow_provider_statecheck.spark.restore import _load
monkeypatch.setattr(module, "_close", None)
monkeypatch.setattr("airflow_provider_statecheck.lazy._close", None)
monkeypatch.setattr(module, "_unknown", None)
"""
    assert list(private_names_in(source, frozenset({"_close"}))) == ["_load", "_close", "_close"]
