"""Tree of the package and rules of its imports, as the code and ``pyproject.toml`` have them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.docs.tables import code, table

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "airflow_provider_statecheck"
_MIGRATIONS = _PACKAGE / "metadata" / "migrations"
_DESCRIPTION_COLUMN = 34


def package_tree() -> str:
    """Return the folders and files of the package, each with the first line of its docstring."""
    return "\n".join(("```text", *_tree(_PACKAGE, depth=0), "```"))


def layers_list() -> str:
    """Return the layers of the package, from top to bottom."""
    layers = next(contract for contract in _contracts() if contract["type"] == "layers")["layers"]
    existing = (_existing(layer) for layer in layers)
    return "\n".join(f"{number}. {', '.join(map(code, names))}" for number, names in enumerate(existing, start=1))


def import_rules_table() -> str:
    """Return the table of the imports that are forbidden in addition to those against the layers."""
    rules = (contract for contract in _contracts() if contract["type"] == "forbidden")
    return table(("Rule", "Folders", "Must not import"), (_rule(contract) for contract in rules))


def summary_of(path: Path) -> str:
    """Return the first line of the docstring of a module or package, without markup; empty if it has none."""
    source = path / "__init__.py" if path.is_dir() else path
    docstring = (ast.get_docstring(ast.parse(source.read_text())) or "").strip()
    first_line, _, _ = docstring.partition("\n")
    return re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", lambda found: found[1] or found[2], first_line).rstrip(".")


def _tree(folder: Path, depth: int) -> Iterator[str]:
    yield _line(f"{folder.name}/", summary_of(folder), depth)
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path == _MIGRATIONS:
            yield _line(f"{path.name}/", "Alembic migrations of the tables, one file for each change", depth + 1)
        elif (path / "__init__.py").exists():
            yield from _tree(path, depth + 1)
        elif path.suffix == ".py" and path.name != "__init__.py":
            yield _line(path.name, summary_of(path), depth + 1)


def _line(name: str, summary: str, depth: int) -> str:
    return f"{'  ' * depth + name:{_DESCRIPTION_COLUMN}} {summary}"


def _contracts() -> list[dict[str, Any]]:
    config = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    contracts: list[dict[str, Any]] = config["tool"]["importlinter"]["contracts"]
    return contracts


def _existing(layer: str) -> list[str]:
    # A name in parentheses is a folder that may be missing.
    names = (name.strip(" ()") for name in layer.split("|"))
    return [name for name in names if (_PACKAGE / name).exists() or (_PACKAGE / f"{name}.py").exists()]


def _rule(contract: dict[str, Any]) -> tuple[str, str, str]:
    folders = (name.removeprefix(f"{_PACKAGE.name}.") for name in contract["source_modules"])
    return contract["name"], ", ".join(map(code, folders)), ", ".join(map(code, contract["forbidden_modules"]))
