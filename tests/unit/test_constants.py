"""Names of modules: each is bound once, so that no constant stands for another one of the same name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path for folder in ("airflow_provider_statecheck", "scripts", "tests") for path in (ROOT / folder).rglob("*.py")
)


def bound_twice(source: str) -> list[str]:
    """Return the names that the statements of a module bind more than once, outside of conditions."""
    counts = Counter(name for statement in ast.parse(source).body for name in bound_by(statement))
    return [name for name, count in counts.items() if count > 1 and name not in ("_", "__all__")]


def bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds."""
    if isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and not statement.decorator_list:
        yield statement.name


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("A = 1\nB: int = 2\nA = 3\n", ["A"]),
        ("def f(): ...\nclass f: ...\n", ["f"]),
        ("A = 1\nif A:\n    B = 1\nelse:\n    B = 2\n", []),
        ("@overload\ndef f(): ...\ndef f(): ...\n", []),
    ],
)
def test_what_is_bound_twice_is_found(source: str, expected: list[str]) -> None:
    assert bound_twice(source) == expected


def test_each_name_of_a_module_is_bound_once() -> None:
    found = {str(path.relative_to(ROOT)): names for path in MODULES if (names := bound_twice(path.read_text()))}
    assert found == {}
