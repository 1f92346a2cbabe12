"""What drivers computed more than once: printed at the end of a run of tests, and recorded for the page of services."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

RESULTS = Path(__file__).with_name("results.json")
"""Written with ``RECORD=1 make soak ARGS="tests/services -n0"``; ``python -m scripts.docs`` makes the table of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWork:
    """What the drivers of a task computed again, all tries together."""

    again: tuple[str, ...]
    lost_seconds: float
    """Time of the pieces that another driver computed again, without that of the last one."""
    work_seconds: float
    """Time of all pieces, each once."""

    @classmethod
    def of(cls, computed: Iterable[str], pieces: Iterable[str]) -> Self:
        """
        Return what the logs of an application say.

        :param computed: Names of steps and items, in the order in which drivers began them.
        :param pieces: Names of pieces of items with their seconds, in the order in which they ended.
        """
        timed = [(name, float(seconds)) for name, _, seconds in (line.rpartition(" ") for line in pieces)]
        kept = dict(timed)
        return cls(
            again=tuple(name for name, times in Counter(computed).items() if times > 1),
            lost_seconds=round(sum(seconds for _, seconds in timed) - sum(kept.values()), 3),
            work_seconds=round(sum(kept.values()), 3),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table that a run prints."""

    operator: str
    trouble: str
    again: str
    lost: str
    work: str


HEAD = Row("operator", "trouble", "computed again", "lost work (s)", "work (s)")


def row_of(operator: str, trouble: str, lost: LostWork) -> Row:
    """Return the line of a case."""
    again = ", ".join(lost.again) or "nothing"
    return Row(operator, trouble, again, f"{lost.lost_seconds:.1f}", f"{lost.work_seconds:.1f}")


def record(operator: str, trouble: str, lost: LostWork) -> None:
    """Record a case over that of the same operator and trouble, if the run is to be recorded."""
    if "RECORD" in os.environ:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known.setdefault(operator, {})[trouble] = asdict(lost)
        ordered = {name: dict(sorted(known[name].items())) for name in sorted(known)}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
