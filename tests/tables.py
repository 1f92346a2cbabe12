"""Tables that a run of tests prints at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any, TypeVar

import pytest

R = TypeVar("R")

_TABLES = pytest.StashKey[dict[str, list[Any]]]()


def table_of(config: pytest.Config, title: str, head: R) -> list[R]:
    """
    Return the lines of a table, to which tests add theirs.

    :param head: Its first line, a dataclass of texts as the others are.
    """
    return config.stash.setdefault(_TABLES, {}).setdefault(title, [head])


def print_tables(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print all tables that have more than their head."""
    for title, rows in config.stash.get(_TABLES, {}).items():
        if len(rows) > 1:
            reporter.section(title)
            for line in _aligned(rows):
                reporter.write_line(line)


def _aligned(rows: list[Any]) -> Iterator[str]:
    cells = [astuple(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
