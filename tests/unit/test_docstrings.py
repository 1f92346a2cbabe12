"""Docstrings say in one way when a function raises an error."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "airflow_provider_statecheck"
RAISES = re.compile(r":raises [\w.]+: *(.*)")
WAYS = ("if ", "unless ", "for ", "as ", "always.")
"""A condition, a value of an argument, a function that is called, and no condition."""


def other_ways(text: str) -> list[str]:
    return [found[0] for found in RAISES.finditer(text) if not found[1].startswith(WAYS)]


def test_an_error_comes_with_its_condition():
    found = [(path.name, line) for path in sorted(PACKAGE.rglob("*.py")) for line in other_ways(path.read_text())]

    assert found == []


def test_other_ways_are_found():
    assert other_ways(":raises A: if x.\n:raises B: the error.\n:raises C: without x.\n:raises D: as :meth:`e`.") == [
        ":raises B: the error.",
        ":raises C: without x.",
    ]
