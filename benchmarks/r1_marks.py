"""When the programs of R1 came to what, as they say themselves, over all tries."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

TRY, BEGIN, END = "try", "begin", "end"


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that a program came to."""

    name: str
    at: float
    """By the clock of the machine, which its processes share."""


def mark(file: str, name: str) -> None:
    """Note that a point is reached."""
    with Path(file).open("a") as marks:
        marks.write(json.dumps({"name": name, "at": time.time()}) + "\n")


def marks_in(file: Path) -> list[Mark]:
    """Return what was noted so far."""
    if not file.exists():
        return []
    # A line without its end is still being written.
    return [Mark(**json.loads(line)) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment in a run: so many seconds after a mark, so that what came before may take longer this time."""

    after: str
    seconds: float

    @classmethod
    def at(cls, share: float, marks: list[Mark]) -> Moment:
        """
        Return the moment at which a share of the time was over that a run took.

        :param marks: Of a run that nothing disturbed.
        """
        own = [each for each in marks if each.name != TRY]
        moment = own[0].at + share * (own[-1].at - own[0].at)
        last = [each for each in own if each.at <= moment][-1]
        return cls(last.name, moment - last.at)

    def is_over(self, marks: list[Mark]) -> bool:
        """Tell whether a run that is under way has come so far."""
        return any(each.name == self.after and time.time() >= each.at + self.seconds for each in marks)
