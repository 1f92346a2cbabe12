"""
Chart of ``docs/reference/benchmarks.md``: all ratios on one scale with their goals and the limit of each workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from xml.sax.saxutils import escape

LIMITS = {
    "C1": "PostgreSQL's plans of what the peer does not read, and SQLAlchemy",
    "C2": "PostgreSQL's commits, one per operator for aligned checkpoints",
    "C3": "the same read by the driver of the database alone",
    "D1": "the imports of the operators that ours extend",
    "F1": "the fsync of the disk",
    "G1": "time in line with the rows",
    "I1": "the changed bytes",
    "I2": "the changed bytes, each written once",
    "K1": "two Spark jobs, and a task for each file",
    "K2": "Python's function call for each row",
    "M1": "one part of a file and the changes since the last snapshot",
    "O1": "the same stage without checkpoints",
    "Q1": "RocksDB on a local disk, in C++",
    "Q2": "FastAPI without any work",
    "R1": "the undisturbed job, and a start of Spark",
    "R2": "one Spark job, and the files that its first rows need",
    "R3": "the undisturbed step, and a start of Spark",
    "S1": "Spark's own writer, the disk, and the object store",
    "T1": "one listing of the storage for each look",
    "U1": "FastAPI and the templates of the pages",
    "W1": "Arrow from Python to the JVM",
}
WIDTH, LEFT, RIGHT = 900, 16, 150
_HEAD, _ROW, _BAR = 30, 34, 10
_COLORS = {True: "#2a9d6f", False: "#d9663d", None: "#8a94a3"}
_VERDICTS = {True: "goal reached", False: "goal not reached", None: "no goal"}
_GRID, _TEXT, _PALE = "#dde1e7", "#1f2933", "#65707f"


@dataclass(frozen=True, slots=True)
class Scale:
    """Logarithmic scale from left to right."""

    low: int
    high: int

    @classmethod
    def of(cls, results: Sequence[dict[str, Any]]) -> Scale:
        """Return a scale that contains all ratios and goals."""
        values = [result[name] for result in results for name in ("ratio", "goal") if result[name]]
        return cls(math.floor(math.log10(min(values, default=0.1))), math.ceil(math.log10(max(values, default=10.0))))

    def x(self, value: float) -> float:
        """Return the x coordinate of a value."""
        share = (math.log10(value) - self.low) / max(self.high - self.low, 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def chart(results: Sequence[dict[str, Any]]) -> str:
    """
    Return an SVG with a bar for each result.

    :param results: Contents of the result files, grouped by workload.
    """
    scale = Scale.of(results)
    parts: list[str] = []
    y = 2 * _HEAD
    for name, group in groupby(results, key=lambda result: str(result["id"])):
        parts.extend(_heading(name, y))
        y += _HEAD
        for result in group:
            parts.extend(_bar(result, scale, y))
            y += _ROW
    frame = [*_opening(y + _HEAD), *_legend(), *_grid(scale, y)]
    return "\n".join([*frame, *parts, "</svg>"]) + "\n"


def _opening(height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">'
    )
    yield "<title>Ratios of the benchmarks, larger is better</title>"
    # A white background makes the chart readable on dark pages.
    yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'


def _legend() -> Iterator[str]:
    yield _text(LEFT, 20, "Ratio of peer to ours; above 1 ours is better. The black line is the goal.", weight="bold")
    for place, (met, color) in enumerate(_COLORS.items()):
        x = LEFT + 130 * place
        yield f'<rect x="{x}" y="30" width="{_BAR}" height="{_BAR}" fill="{color}"/>'
        yield _text(x + 16, 39, _VERDICTS[met])


def _grid(scale: Scale, bottom: int) -> Iterator[str]:
    for power in range(scale.low, scale.high + 1):
        x, color = scale.x(10.0**power), _PALE if power == 0 else _GRID
        yield f'<line x1="{x:.1f}" y1="{2 * _HEAD}" x2="{x:.1f}" y2="{bottom}" stroke="{color}"/>'
        yield _text(x, bottom + 18, f"{10.0**power:g}x", color=_PALE, anchor="middle")


def _heading(name: str, y: int) -> Iterator[str]:
    limit = f": the limit is {LIMITS[name]}" if name in LIMITS else ""
    yield f'<rect x="0" y="{y + 4}" width="{WIDTH}" height="{_HEAD - 10}" fill="#f2f4f7"/>'
    yield _text(LEFT, y + 18, f"{name}{limit}", weight="bold")


def _bar(result: dict[str, Any], scale: Scale, y: int) -> Iterator[str]:
    one, end, top = scale.x(1.0), scale.x(result["ratio"]), y + 17
    goal = result["goal"]
    wanted = "" if goal is None else f" (goal {goal:.3g})"
    yield _text(LEFT, y + 12, str(result["case"]))
    yield _text(WIDTH - 10, top + 9, f"{result['ratio']:.3g}x{wanted}", anchor="end")
    x, width, color = min(one, end), max(abs(end - one), 1.0), _COLORS[result["met"]]
    yield f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{color}"/>'
    if goal is not None:
        at, bottom = scale.x(goal), top + _BAR + 2
        yield f'<line x1="{at:.1f}" y1="{top - 2}" x2="{at:.1f}" y2="{bottom}" stroke="#000000" stroke-width="2"/>'


def _text(
    x: float, y: float, content: str, *, color: str = _TEXT, anchor: str = "start", weight: str = "normal"
) -> str:
    place = f'x="{x:.1f}" y="{y}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(content)}</text>"
