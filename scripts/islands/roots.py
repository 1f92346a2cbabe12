"""Where other programs and users start."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.islands.code import Definition, Kind, Module
from scripts.islands.names import Names
from scripts.islands.reach import Reach

# Airflow and its api-server load the modules below these packages and find their contents themselves.
_LOADED_BY_AIRFLOW = ("operators", "decorators", "sensors", "triggers", "plugins", "cli", "api")
_REPORTED = (Kind.FUNCTION, Kind.CLASS, Kind.METHOD)
_TEMPLATES = (".html", ".jinja", ".jinja2", ".j2", ".mako")
_ATTRIBUTE = re.compile(r"\.([A-Za-z_]\w*)")
_PAGES = ("docs/**/*.md", "README.md")
_ON_PAGE = re.compile(r"[.`]([A-Za-z_]\w*)")


def reach_of(names: Names, package: Path, listed: Iterable[Definition]) -> Reach:
    """
    Return what the roots reach.

    :param listed: The definitions in the file of roots.
    """
    reach = Reach(names, _attributes_in_templates(package), _on_pages(package.parent))
    for module in names.modules.values():
        if _is_loaded(module, package.name):
            reach.start_from(each for name, each in module.definitions.items() if "." not in name)
    reach.start_from(each for text in _entry_points(package) for each in names.in_text(text))
    reach.hand_to_users([*_exported(names, names.modules[package.name]), *listed])
    reach.spread()
    return reach


def _is_loaded(module: Module, package: str) -> bool:
    top, *below = module.name.split(".")
    return top != package or "migrations" in below or (bool(below) and below[0] in _LOADED_BY_AIRFLOW)


def _exported(names: Names, module: Module) -> Iterator[Definition]:
    """Yield what the package exports: the names in ``__all__``."""
    for definition in (each for name, each in module.definitions.items() if name == "__all__"):
        for node in (node for statement in definition.statements for node in ast.walk(statement)):
            if isinstance(node, ast.Constant):
                yield from names.meant(module, str(node.value))


def _attributes_in_templates(package: Path) -> Iterator[str]:
    for path in package.rglob("*"):
        if path.suffix in _TEMPLATES:
            yield from _ATTRIBUTE.findall(path.read_text(encoding="utf-8"))


def _on_pages(project: Path) -> Iterator[str]:
    """Yield the names that the documentation marks as code or calls."""
    for page in (page for pattern in _PAGES for page in project.glob(pattern)):
        yield from _ON_PAGE.findall(page.read_text(encoding="utf-8"))


def _entry_points(package: Path) -> list[str]:
    settings = package.parent / "pyproject.toml"
    project = tomllib.loads(settings.read_text(encoding="utf-8")).get("project", {}) if settings.exists() else {}
    return [str(project.get(key)) for key in ("scripts", "gui-scripts", "entry-points")]


def reported(names: Names, package: Path, listed: Iterable[Definition]) -> Iterator[Definition]:
    """Yield the dead functions, classes and methods of the package; a dead class includes its methods."""
    live = reach_of(names, package, listed).live
    for module in names.modules.values():
        if _must_be_live(module, package.name):
            for each in module.definitions.values():
                if each.kind in _REPORTED and each not in live and (each.owner is None or each.owner in live):
                    yield each


def _must_be_live(module: Module, package: str) -> bool:
    """Return whether a module is in the package, and not in its test utilities."""
    top, *below = module.name.split(".")
    return top == package and not {"testing", "tests"} & {*below}
