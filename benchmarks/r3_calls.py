"""Calls of the function of R3 over all tries, as marks in the file of R1's marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.r1_marks import TRY, Mark, mark, marks_after

_CALLED = "called"


def note_call(file: str, ids: Any) -> None:
    """
    Record that a call of the function ended.

    :param file: File of marks; lines of several processes do not mix, because each is appended by one write.
    :param ids: Ids of the rows of the call.
    """
    if len(ids) == 0:  # a batch whose rows are all in the checkpoint
        return
    ends = np.flatnonzero(np.diff(ids) != 1)
    firsts, lasts = np.r_[0, ends + 1], np.r_[ends, len(ids) - 1]
    ranges = ",".join(f"{ids[first]}-{ids[last]}" for first, last in zip(firsts, lasts, strict=True))
    mark(file, f"{_CALLED} {ranges}")


class Processed:
    """
    Moment at which a number of rows is processed.

    :param rows: Number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._left = rows
        self._position = 0

    def is_over(self, file: Path) -> bool:
        """Return whether a running program with this file of marks has passed the moment."""
        # Reading the file from its beginning each time would take processor time from the program.
        marks, self._position = marks_after(file, self._position)
        self._left -= sum(last - first + 1 for each in marks for first, last in _ranges(each))
        return self._left <= 0


def calls_per_try(marks: list[Mark], rows: int) -> list[Any]:
    """
    Return the number of calls of each row, an array for each try.

    :param marks: Marks of a run.
    :param rows: Number of rows; their ids are smaller.
    """
    tries: list[Any] = []
    for each in marks:
        if each.name == TRY:
            tries.append(np.zeros(rows, dtype=np.int64))
        for first, last in _ranges(each):
            tries[-1][first : last + 1] += 1
    return tries


def repeated_rows(marks: list[Mark], rows: int, *, resumes: bool) -> int:
    """
    Return how many rows more than one try processed, after a check of the calls.

    :param marks: Marks of a run.
    :param rows: Number of rows.
    :param resumes: Whether a later try must continue the work of the earlier one, instead of processing all rows.
    :raises RuntimeError: if a try processed a row twice, no try processed it, or the last try processed the wrong rows.
    """
    tries = calls_per_try(marks, rows)
    counts = Counter(int(most) for most in (calls.max() for calls in tries))
    total = sum(tries)
    again = int(tries[-1].sum())
    is_right = again < rows if resumes and len(tries) > 1 else again == rows
    if max(counts) > 1 or total.min() < 1 or not is_right:
        raise RuntimeError(
            f"Expected that each try calls the function at most once for each of {rows} rows, found {counts} as the "
            f"most calls of a row per try, {total.min()} as the fewest in total, and {again} rows in the last try."
        )
    return int((total > 1).sum())


def _ranges(each: Mark) -> Iterator[tuple[int, int]]:
    kind, _, ranges = each.name.partition(" ")
    if kind == _CALLED:
        for found in ranges.split(","):
            first, _, last = found.partition("-")
            yield int(first), int(last)
