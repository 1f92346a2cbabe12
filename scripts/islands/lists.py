"""
The list of the names that users call or implement.

Each line is a full name. A ``#`` starts a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.islands.code import Definition, Kind
from scripts.islands.names import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The definitions in the list."""

    places: dict[Definition, str] = field(default_factory=dict)
    """The file and line of each."""
    errors: list[str] = field(default_factory=list)
    """One for each line that is to be corrected."""


def read_roots(path: Path, names: Names) -> Listed:
    """Return the definitions that a file of roots lists."""
    listed = Listed()
    for place, full_name in _lines(path):
        found = {each for each in names.find(full_name) if each.kind is not Kind.BODY}
        if not found:
            listed.errors.append(
                f"{place}: expected the full name of a function or class, found {full_name}; correct it"
            )
        listed.places.update(dict.fromkeys(found, place))
    return listed


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines with content, each with its file and number."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if content := line.partition("#")[0].strip():
            yield f"{path}:{number}", content
