"""Figures and picture of the README, from the results of the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
WIDTH, HEIGHT = 860, 206
_LEFT, _RIGHT, _BAR = 16, 70, 30
_NOTICEABLE_PERCENT = 1


class Colors(NamedTuple):
    """Colors of a picture."""

    back: str
    text: str
    pale: str
    first_try: str
    repeated: str
    resumed: str


LIGHT = Colors("#ffffff", "#1f2328", "#59636e", "#c8d1da", "#d9663d", "#2a9d6f")
DARK = Colors("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#e07a55", "#3fb984")


def figures_list() -> str:
    """Return what a retry saves, what checkpoints cost, and how the peers compare, as a list in Markdown."""
    ours, peer = _retry("ours"), _retry("SparkSubmitOperator")
    lines = (
        (
            f"**Saved by a retry.** A step in parts of {ours.undisturbed:.0f} s is killed after "
            f"{_killed_at():.0%} of its rows: the retry takes {ours.last_try:.0f} s, and starting over "
            f"{peer.last_try:.0f} s ({_source('R3')})."
        ),
        (
            f"**Cost without a failure.** {_overhead('R3', 'undisturbed vs a plain write')} for the step above, "
            f"{_overhead('O1', 'checkpoints at the automatic interval')} for a [stage](docs/use/stages.md) of a "
            f'minute, which takes one checkpoint with `checkpoint_interval="auto"` ({_source("O1")}), and '
            f"{_overhead('R1', 'undisturbed vs SparkSubmitOperator')} for a job that saves "
            f"all rows after four of five shuffles ({_source('R1')}): save steps that take long, not all."
        ),
        (
            "**Against peers.** A keyed Python function runs "
            f"{_ratio('K2', 'l_suppkey vs transformWithStateInPandas')} times as fast as `transformWithStateInPandas` "
            f"with 10 thousand keys ({_source('K2')}). Killed and resumed, in units of its own undisturbed time, the "
            f"step above is "
            f"{_ratio('R3', 'killed at 90% and retried, in undisturbed times vs Daft')} times as fast as Daft and "
            f"{_ratio('R3', 'killed at 90% and retried, in undisturbed times vs Ray Data')} times as fast as Ray Data."
        ),
    )
    return "\n".join(f"- {line}" for line in lines)


class Retry(NamedTuple):
    """Seconds of one side of R3."""

    undisturbed: float
    killed: float
    last_try: float
    repeated: float
    """Share of the rows that both tries processed."""


def _retry(side: str) -> Retry:
    sizes = _results("R3")[0]["sizes"][side]
    names = ("undisturbed", "killed", "last try", "processed twice")
    return Retry(*(median(sizes[name]) for name in names))


def _killed_at() -> float:
    share: float = _results("R3")[0]["sizes"]["killed at"]
    return share


def _results(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _case(name: str, start: str) -> float:
    [ratio] = [float(each["ratio"]) for each in _results(name) if each["case"].startswith(start)]
    return ratio


def _ratio(name: str, start: str) -> str:
    return f"{_case(name, start):.2g}" if _case(name, start) >= 2 else f"{_case(name, start):.2f}"


def _overhead(name: str, start: str) -> str:
    percent = 100 / _case(name, start) - 100
    return f"{percent:.0f} %" if percent >= _NOTICEABLE_PERCENT else "nothing measurable"


def _source(name: str) -> str:
    return f"[{name}](benchmarks/results/{name}.json)"


def retry_picture(colors: Colors) -> str:
    """Return an SVG with a killed task on a time axis, restarted from the beginning and resumed."""
    ours, peer = _retry("ours"), _retry("SparkSubmitOperator")
    scale = (WIDTH - _LEFT - _RIGHT) / max(ours.killed, peer.killed)
    rows = ((peer, "Without checkpoints", colors.repeated), (ours, "With checkpoints", colors.resumed))
    body = [part for n, row in enumerate(rows) for part in _row(*row, 70 + n * 66, scale, colors)]
    title = f"A Spark task, killed after {_killed_at():.0%} of its rows, and its retry"
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
                f'height="{HEIGHT}" '
                'font-family="system-ui, sans-serif" font-size="14" role="img">'
            ),
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{colors.back}"/>',
            _text(_LEFT, 32, title, colors.text, 'font-weight="bold" font-size="16"'),
            *body,
            _text(_LEFT, HEIGHT - 12, "Measured in R3 of benchmarks/results; shorter is better.", colors.pale),
            "</svg>\n",
        ]
    )


def _row(side: Retry, name: str, color: str, y: int, scale: float, colors: Colors) -> Iterator[str]:
    first = side.killed - side.last_try
    middle, end = _LEFT + first * scale, _LEFT + side.killed * scale
    yield _text(_LEFT, y - 8, f"{name}: done after {side.killed:.0f} s", colors.text)
    yield _bar(_LEFT, middle - 2, y, colors.first_try)
    yield _bar(middle + 2, end, y, color)
    yield _text(_LEFT + 8, y + 20, f"try 1: {first:.0f} s, then kill -9", colors.text)
    after = f"retry: {side.last_try:.0f} s, repeats {side.repeated:.0%} of the rows"
    fits = (end - middle) > 8 * len(after)
    yield _text((middle if fits else end) + 10, y + 20, after, "#ffffff" if fits else colors.text)


def _bar(start: float, end: float, y: int, color: str) -> str:
    return f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{_BAR}" rx="3" fill="{color}"/>'


def _text(x: float, y: int, content: str, color: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{color}" {more}>{escape(content)}</text>'
