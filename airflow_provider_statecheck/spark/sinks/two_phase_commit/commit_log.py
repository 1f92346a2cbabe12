"""
What a destination knows of one sink: the attempts that had it, and whose output is there.

It is stored in the destination itself, with the output, so that nobody can add output without it. Its size follows the number
of attempts, not that of checkpoints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.line import History, Line, Start
from airflow_provider_statecheck.spark.sinks.two_phase_commit.commit_range import CommitRange, outside, within

FORMAT_VERSION = 1
ALL = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLog:
    """One state of the log."""

    starts: Mapping[int, Start] = field(default_factory=lambda: MappingProxyType({}))
    """How each attempt began, by epoch."""
    committed: tuple[CommitRange, ...] = ()
    """Whose output is there, in the order in which it came."""
    retracted: tuple[CommitRange, ...] = ()
    """Whose output was replaced; these checkpoints cannot be restored any more."""

    @property
    def newest_epoch(self) -> int:
        """Return the attempt that has the destination; 0 if there was none."""
        return max(self.starts, default=0)

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Tell whether the output of a checkpoint is committed."""
        return any(each.holds(epoch, checkpoint_id) for each in self.committed)

    def line_to(self, epoch: int, checkpoint_id: int = ALL) -> Line:
        """
        Return the line that ends at a checkpoint; by default that of all an attempt will take.

        :raises CorruptStateError: if it cannot be told what the line holds.
        """
        taken = {n: each.epoch for each in (*self.retracted, *self.committed) for n in (each.first, each.last)}
        return History(self.starts, taken).line_to(epoch, checkpoint_id)

    def begun(self, epoch: int, start: Start) -> Self:
        """Return the log with an attempt that has the destination from now on."""
        return replace(self, starts=MappingProxyType({**self.starts, epoch: start}))

    def outside(self, line: Line) -> tuple[CommitRange, ...]:
        """Return the output that is there and not part of a line."""
        return outside(self.committed, line)

    def retracting(self, line: Line) -> Self:
        """Return the log without the output that is not part of a line."""
        gone = self.outside(line)
        return replace(self, committed=within(self.committed, line), retracted=(*self.retracted, *gone))

    def adding(self, generation: int, epoch: int, checkpoint_id: int, *, is_retractable: bool = True) -> Self:
        """Return the log with the output of one more checkpoint."""
        new = CommitRange(
            generation=generation, epoch=epoch, first=checkpoint_id, last=checkpoint_id, is_retractable=is_retractable
        )
        newest = self.committed[-1:]
        if newest and (newest[0].epoch, newest[0].is_retractable) == (epoch, is_retractable):
            return replace(self, committed=(*self.committed[:-1], replace(newest[0], last=checkpoint_id)))
        return replace(self, committed=(*self.committed, new))

    def encode(self) -> str:
        """Return it as text, the same for the same log."""
        starts = {
            str(epoch): [start.generation, start.restored, start.taken_by] for epoch, start in self.starts.items()
        }
        document = {
            "format_version": FORMAT_VERSION,
            "starts": starts,
            "committed": [each.to_json() for each in self.committed],
            "retracted": [each.to_json() for each in self.retracted],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str, where: str) -> Self:
        """
        Return what :meth:`encode` gave.

        :param where: What was read, to say so.
        :raises CorruptStateError: if it is something else.
        """
        try:
            document = json.loads(text)
            if document["format_version"] != FORMAT_VERSION:
                raise ValueError(document["format_version"])  # noqa: TRY301 - told below with all the other ways
            return cls(
                starts=MappingProxyType({int(n): _start(each) for n, each in document["starts"].items()}),
                committed=tuple(CommitRange.from_json(each) for each in document["committed"]),
                retracted=tuple(CommitRange.from_json(each) for each in document["retracted"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected the log of a sink of format {FORMAT_VERSION} in {where}, found {text[:100]!r}; somebody changed it, or "
                "another version wrote it."
            ) from error


def _start(document: Any) -> Start:
    generation, restored, taken_by = document
    return Start(
        int(generation),
        None if restored is None else int(restored),
        None if taken_by is None else int(taken_by),
    )
