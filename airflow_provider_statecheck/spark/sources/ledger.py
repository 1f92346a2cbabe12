"""Which items a source has, in the order in which they are read, and which of them are finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sources.intervals import Intervals
from airflow_provider_statecheck.spark.sources.item import Item


@dataclass(frozen=True, slots=True)
class Partial:
    """What is finished of an item that was cut."""

    groups: Intervals
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Items by their positions."""

    items: tuple[Item, ...]
    finished: Intervals = field(default_factory=Intervals)
    partial: Mapping[int, Partial] = field(default_factory=dict)
    """Only items that are not finished yet."""

    @property
    def total_bytes(self) -> int:
        """Return the size of all items."""
        return sum(item.size_bytes for item in self.items)

    @property
    def finished_bytes(self) -> int:
        """Return the size of what is finished."""
        whole = sum(self.items[i].size_bytes for i in self.finished)
        return whole + sum(part.size_bytes for part in self.partial.values())

    def finish_items(self, positions: Sequence[int]) -> Ledger:
        """Return what is true once some items are finished."""
        gone = set(positions)
        return replace(
            self,
            finished=self.finished.plus((i, i + 1) for i in gone),
            partial={i: part for i, part in self.partial.items() if i not in gone},
        )

    def finish_groups(self, position: int, start: int, end: int, *, count: int, size_bytes: int) -> Ledger:
        """
        Return what is true once some row groups of an item are finished.

        :param count: How many row groups the item has.
        """
        known = self.partial.get(position, Partial(Intervals(), 0))
        groups = known.groups.plus([(start, end)])
        if len(groups) == count:
            return self.finish_items([position])
        return replace(self, partial={**self.partial, position: Partial(groups, known.size_bytes + size_bytes)})

    def carried_to(self, items: Sequence[Item]) -> Ledger:
        """Return what is finished of other items, known by their names."""
        finished = {self.items[i].name for i in self.finished}
        partial = {self.items[i].name: part for i, part in self.partial.items()}
        return Ledger(
            tuple(items),
            Intervals.of(i for i, item in enumerate(items) if item.name in finished),
            {i: partial[item.name] for i, item in enumerate(items) if item.name in partial},
        )

    def progress_state(self) -> dict[str, Any]:
        """Return what is finished, as plain values."""
        return {
            "finished": [list(bound) for bound in self.finished.bounds],
            "partial": [
                [i, [list(bound) for bound in part.groups.bounds], part.size_bytes]
                for i, part in sorted(self.partial.items())
            ],
        }


def restored_ledger(items: tuple[Item, ...], progress: Mapping[str, Any]) -> Ledger:
    """
    Return a ledger from what :meth:`Ledger.progress_state` gave.

    :raises CorruptStateError: if it is not of this form.
    """
    try:
        ledger = Ledger(
            items,
            _intervals(progress["finished"]),
            {int(i): Partial(_intervals(groups), int(size)) for i, groups, size in progress["partial"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStateError(f"Expected the progress of a source, found something else: {error!r}.") from error
    if any(end > len(items) for _, end in ledger.finished.bounds) or any(i >= len(items) for i in ledger.partial):
        raise CorruptStateError(f"Expected the progress of {len(items)} files, found that of more.")
    return ledger


def _intervals(bounds: Any) -> Intervals:
    return Intervals().plus((int(start), int(end)) for start, end in bounds)
