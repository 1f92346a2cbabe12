"""Which runs are merged while a snapshot is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_GROWTH = 1.0
_MOST_SPACE = 2.0


class Sized(Protocol):
    """What is known of a run without reading it."""

    @property
    def raw_bytes(self) -> int:
        """Return how large its rows are."""
        ...

    @property
    def deletions(self) -> int:
        """Return how many of its rows only say that something older is gone."""
        ...

    @property
    def num_rows(self) -> int:
        """Return how many rows it has."""
        ...


def runs_to_merge(new_bytes: int, new_deletions: int, runs: Sequence[Sized]) -> int:
    """
    Return how many of the newest runs are written again together with what is new.

    A run takes part if what is new, and the runs that take part already, are as large as it is: so there are at most about
    as many runs as the logarithm of the state, and a row is written again only a few times. All take part if they would
    otherwise be more than twice the state that they stand for.

    :param new_bytes: How large the new rows are.
    :param new_deletions: How many of them only say that something is gone.
    :param runs: The newest first.
    """
    merged, count = new_bytes, 0
    for run in runs:
        if run.raw_bytes > _GROWTH * merged:
            break
        merged, count = merged + run.raw_bytes, count + 1
    return len(runs) if _takes_too_much(new_bytes, new_deletions, runs) else count


def _takes_too_much(new_bytes: int, new_deletions: int, runs: Sequence[Sized]) -> bool:
    if not runs:
        return False
    oldest = runs[-1]
    gone = new_deletions + sum(run.deletions for run in runs[:-1])
    living = oldest.raw_bytes * max(0.0, 1 - gone / max(1, oldest.num_rows))
    return new_bytes + sum(run.raw_bytes for run in runs) > _MOST_SPACE * living
