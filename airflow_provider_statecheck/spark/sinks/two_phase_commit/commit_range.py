"""Checkpoints of one attempt whose output is in a destination, as one range however many there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from airflow_provider_statecheck.spark.sinks.line import Line


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


def within(ranges: Iterable[CommitRange], line: Line) -> tuple[CommitRange, ...]:
    """Return the parts of ranges that a line holds."""
    ends = _ends(line)
    cut = (replace(each, last=min(each.last, ends.get(each.epoch, 0))) for each in ranges)
    return tuple(each for each in cut if each.first <= each.last)


def outside(ranges: Iterable[CommitRange], line: Line) -> tuple[CommitRange, ...]:
    """Return the parts of ranges that a line does not hold."""
    ends = _ends(line)
    cut = (replace(each, first=max(each.first, ends.get(each.epoch, 0) + 1)) for each in ranges)
    return tuple(each for each in cut if each.first <= each.last)


def _ends(line: Line) -> dict[int, int]:
    ends: dict[int, int] = {}
    for epoch, last in line.segments:
        ends[epoch] = max(last, ends.get(epoch, 0))
    return ends
