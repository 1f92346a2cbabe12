"""
Commit log of a sink with two-phase commit, and the contract of its destination.

The log is stored in the destination and changes together with the output. Its size depends on the number of attempts,
not on the number of checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, Self

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.ledger import ALL_CHECKPOINTS, Ancestry, History, Start

FORMAT_VERSION = 1


class CommitDestination(Protocol):
    """A destination that stores a commit log together with its output."""

    @property
    def name(self) -> str:
        """Name of the destination for error messages, without credentials."""
        ...

    def log_of(self, lineage: str) -> CommitLog:
        """Return the log of a lineage; empty if the sink never wrote."""
        ...

    def load(self, epoch: int) -> CommitLog:
        """
        Return the log after all its recorded effects are complete.

        :param epoch: Attempt that loads the log. Afterwards, unlogged changes of older attempts have no effect.
        """
        ...

    def apply(self, epoch: int, change: LogChange) -> bool:
        """
        Apply a change with its effects, unless the log has changed in the meantime.

        A transactional destination applies the log and the effects atomically. Other destinations write the log first,
        and :meth:`load` completes missing effects.

        :param epoch: Attempt that applies the change.
        :return: Whether the change was applied; ``False`` if the log differs from :attr:`LogChange.before`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLog:
    """An immutable version of the log."""

    starts: Mapping[int, Start] = field(default_factory=lambda: MappingProxyType({}))
    """Starts of the attempts by epoch."""
    committed: tuple[CommitRange, ...] = ()
    """Ranges with output in the destination, in commit order."""
    retracted: tuple[CommitRange, ...] = ()
    """Ranges whose output was replaced; their checkpoints can no longer be restored."""

    @property
    def newest_epoch(self) -> int:
        """Return the epoch of the attempt that owns the destination, 0 if there is none."""
        return max(self.starts, default=0)

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Return whether the output of a checkpoint is committed."""
        return any(each.holds(epoch, checkpoint_id) for each in self.committed)

    def ancestry_of(self, epoch: int, checkpoint_id: int = ALL_CHECKPOINTS) -> Ancestry:
        """
        Return the ancestry of a checkpoint, by default of all checkpoints that an attempt will take.

        :raises CorruptStateError: if the ancestry is unknown.
        """
        taken = {n: each.epoch for each in (*self.retracted, *self.committed) for n in (each.first, each.last)}
        return History(self.starts, taken).ancestry_of(epoch, checkpoint_id)

    def begun(self, epoch: int, start: Start) -> Self:
        """Return the log after an attempt has taken ownership of the destination."""
        return replace(self, starts=MappingProxyType({**self.starts, epoch: start}))

    def outside(self, ancestry: Ancestry) -> tuple[CommitRange, ...]:
        """Return the committed ranges outside an ancestry."""
        return outside(self.committed, ancestry)

    def retracting(self, ancestry: Ancestry) -> Self:
        """Return the log after the output outside an ancestry was retracted."""
        removed = self.outside(ancestry)
        return replace(self, committed=within(self.committed, ancestry), retracted=(*self.retracted, *removed))

    def adding(self, generation: int, epoch: int, checkpoint_id: int, *, is_retractable: bool = True) -> Self:
        """Return the log after the output of one more checkpoint was committed."""
        new = CommitRange(
            generation=generation, epoch=epoch, first=checkpoint_id, last=checkpoint_id, is_retractable=is_retractable
        )
        last_range = self.committed[-1:]
        if last_range and (last_range[0].epoch, last_range[0].is_retractable) == (epoch, is_retractable):
            return replace(self, committed=(*self.committed[:-1], replace(last_range[0], last=checkpoint_id)))
        return replace(self, committed=(*self.committed, new))

    def encode(self) -> str:
        """Return the log as text; equal logs encode to equal texts."""
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
        Return the log that :meth:`encode` encoded.

        :param where: Location of the log for error messages.
        :raises CorruptStateError: if the text is damaged, or has another format.
        """
        try:
            document = json.loads(text)
            if document["format_version"] != FORMAT_VERSION:
                raise ValueError(document["format_version"])  # noqa: TRY301 - reported below with other invalid documents
            return cls(
                starts=MappingProxyType({int(n): _start(each) for n, each in document["starts"].items()}),
                committed=tuple(CommitRange.from_json(each) for each in document["committed"]),
                retracted=tuple(CommitRange.from_json(each) for each in document["retracted"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected the log of a sink of format {FORMAT_VERSION} in {where}, found {text[:100]!r}; restore the log from "
                "a backup, or use the version of airflow-provider-statecheck that wrote it."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRange:
    """A range of committed checkpoints that one attempt took."""

    generation: int
    epoch: int
    first: int
    last: int
    is_retractable: bool = True
    """Whether the output can be rolled back."""

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Return whether the range covers a checkpoint, including earlier checkpoints of the attempt without output."""
        return self.epoch == epoch and checkpoint_id <= self.last

    def to_json(self) -> dict[str, int]:
        """Return the range as plain JSON values; omits default values to keep the text of older logs unchanged."""
        document = asdict(self)
        return {**document, "is_retractable": 0} if not document.pop("is_retractable") else document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """
        Return the range that :meth:`to_json` encoded.

        :raises KeyError: if a field is missing; a wrong value raises ``TypeError`` or ``ValueError``.
        """
        numbers = {name: int(document[name]) for name in ("generation", "epoch", "first", "last")}
        return cls(**numbers, is_retractable=bool(document.get("is_retractable", True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """A change from one log to the next, with its effects on the output."""

    before: CommitLog
    after: CommitLog
    publication: Publication | None = None
    retracted: tuple[CommitRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Output of one checkpoint."""

    generation: int
    epoch: int
    """Attempt that took the checkpoint; a later attempt may commit it."""
    checkpoint_id: int
    committables: tuple[Any, ...]
    """Committables of the tasks."""


def within(ranges: Iterable[CommitRange], ancestry: Ancestry) -> tuple[CommitRange, ...]:
    """Return the parts of ranges inside an ancestry."""
    last_by_epoch = _last_checkpoints(ancestry)
    parts = (replace(each, last=min(each.last, last_by_epoch.get(each.epoch, 0))) for each in ranges)
    return tuple(each for each in parts if each.first <= each.last)


def outside(ranges: Iterable[CommitRange], ancestry: Ancestry) -> tuple[CommitRange, ...]:
    """Return the parts of ranges outside an ancestry."""
    last_by_epoch = _last_checkpoints(ancestry)
    parts = (replace(each, first=max(each.first, last_by_epoch.get(each.epoch, 0) + 1)) for each in ranges)
    return tuple(each for each in parts if each.first <= each.last)


def _last_checkpoints(ancestry: Ancestry) -> dict[int, int]:
    last_by_epoch: dict[int, int] = {}
    for epoch, last in ancestry.segments:
        last_by_epoch[epoch] = max(last, last_by_epoch.get(epoch, 0))
    return last_by_epoch


def _start(document: Any) -> Start:
    generation, restored, taken_by = document
    return Start(
        int(generation),
        None if restored is None else int(restored),
        None if taken_by is None else int(taken_by),
    )
