"""
Contract of a two-phase commit's destination, and the log of its commits.

It is stored in the destination itself, with the output, so that nobody can add output without it. Its size follows the number
of attempts, not that of checkpoints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, Self

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.ledger import Ancestry, History, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRange:
    """The checkpoints from one to another that an attempt took and whose output was committed."""

    generation: int
    epoch: int
    first: int
    last: int
    is_retractable: bool = True
    """Whether it was committed in a way that can be taken back."""

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Tell whether a checkpoint belongs to it, or came before its last one and had no output."""
        return self.epoch == epoch and checkpoint_id <= self.last

    def to_json(self) -> dict[str, int]:
        """Return it as plain values, without what holds for most, so that the text of older logs stays as it was."""
        document = asdict(self)
        return {**document, "is_retractable": 0} if not document.pop("is_retractable") else document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """
        Return what :meth:`to_json` gave.

        :raises KeyError: if it is something else; also TypeError or ValueError.
        """
        numbers = {name: int(document[name]) for name in ("generation", "epoch", "first", "last")}
        return cls(**numbers, is_retractable=bool(document.get("is_retractable", True)))


def within(ranges: Iterable[CommitRange], line: Ancestry) -> tuple[CommitRange, ...]:
    """Return the parts of ranges that a line holds."""
    ends = _ends(line)
    cut = (replace(each, last=min(each.last, ends.get(each.epoch, 0))) for each in ranges)
    return tuple(each for each in cut if each.first <= each.last)


def outside(ranges: Iterable[CommitRange], line: Ancestry) -> tuple[CommitRange, ...]:
    """Return the parts of ranges that a line does not hold."""
    ends = _ends(line)
    cut = (replace(each, first=max(each.first, ends.get(each.epoch, 0) + 1)) for each in ranges)
    return tuple(each for each in cut if each.first <= each.last)


def _ends(line: Ancestry) -> dict[int, int]:
    ends: dict[int, int] = {}
    for epoch, last in line.segments:
        ends[epoch] = max(last, ends.get(epoch, 0))
    return ends


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

    def line_to(self, epoch: int, checkpoint_id: int = ALL) -> Ancestry:
        """
        Return the line that ends at a checkpoint; by default that of all an attempt will take.

        :raises CorruptStateError: if it cannot be told what the line holds.
        """
        taken = {n: each.epoch for each in (*self.retracted, *self.committed) for n in (each.first, each.last)}
        return History(self.starts, taken).line_to(epoch, checkpoint_id)

    def begun(self, epoch: int, start: Start) -> Self:
        """Return the log with an attempt that has the destination from now on."""
        return replace(self, starts=MappingProxyType({**self.starts, epoch: start}))

    def outside(self, line: Ancestry) -> tuple[CommitRange, ...]:
        """Return the output that is there and not part of a line."""
        return outside(self.committed, line)

    def retracting(self, line: Ancestry) -> Self:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The output of one checkpoint."""

    generation: int
    epoch: int
    """The attempt that took the checkpoint, which need not be the one that commits it."""
    checkpoint_id: int
    committables: tuple[Any, ...]
    """What its tasks handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """One step from a log to the next, with what it does to the output."""

    before: CommitLog
    after: CommitLog
    publication: Publication | None = None
    retracted: tuple[CommitRange, ...] = ()


class CommitDestination(Protocol):
    """Keeps a log of commits beside the output that it tells of."""

    @property
    def name(self) -> str:
        """The destination, fit to be shown."""
        ...

    def log_of(self, lineage: str) -> CommitLog:
        """Return the log of any sink as it stands; that of a sink which never wrote is empty."""
        ...

    def load(self, epoch: int) -> CommitLog:
        """
        Return the log, with all output there that it tells of.

        :param epoch: The attempt that asks. Changes of an older one that are not in the log yet never have an effect.
        """
        ...

    def apply(self, epoch: int, change: LogChange) -> bool:
        """
        Make a change with its effects, unless the log is another one than before.

        Where the destination can do several things in one step, all are done or none; elsewhere the log is first, and
        whoever loads it does what is missing.

        :param epoch: The attempt that asks.
        :return: Whether it is done; ``False`` if somebody else changed the log.
        """
        ...
