"""Timestamps of the progress of R1's programs, over all tries."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

TRY, BEGIN, END = "try", "begin", "end"


@dataclass(frozen=True, slots=True)
class Mark:
    """Point in the progress of a program."""

    name: str
    at: float
    """Time in seconds since the epoch."""


def mark(file: str, name: str) -> None:
    """Record that a point was reached."""
    with Path(file).open("a") as marks:
        marks.write(json.dumps({"name": name, "at": time.time()}) + "\n")


def marks_in(file: Path) -> list[Mark]:
    """Return the marks recorded so far."""
    return marks_after(file, 0)[0]


def marks_after(file: Path, position: int) -> tuple[list[Mark], int]:
    """
    Return the marks after a position in the file, and the position after them.

    :param file: File of marks.
    :param position: Number of bytes, zero or what an earlier call returned.
    """
    if not file.exists():
        return [], position
    with file.open("rb") as marks:
        marks.seek(position)
        # A line without a newline is incomplete.
        lines = [line for line in marks.read().splitlines(keepends=True) if line.endswith(b"\n")]
    return [Mark(**json.loads(line)) for line in lines], position + sum(map(len, lines))


@dataclass(frozen=True, slots=True)
class Moment:
    """Moment in a run, relative to a mark, which makes it independent of the duration of earlier steps."""

    after: str
    seconds: float
    """Seconds after the mark."""

    @classmethod
    def at(cls, share: float, marks: list[Mark]) -> Moment:
        """
        Return the moment at a share of the duration of a run.

        :param share: Share between 0 and 1.
        :param marks: Marks of an undisturbed run.
        """
        steps = [each for each in marks if each.name != TRY]
        moment = steps[0].at + share * (steps[-1].at - steps[0].at)
        last = [each for each in steps if each.at <= moment][-1]
        return cls(last.name, moment - last.at)

    def is_over(self, file: Path) -> bool:
        """Return whether a running program has passed this moment."""
        return any(each.name == self.after and time.time() >= each.at + self.seconds for each in marks_in(file))
