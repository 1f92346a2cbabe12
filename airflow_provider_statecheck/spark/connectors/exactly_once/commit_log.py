"""
Commit log of a sink: the attempts that wrote to its destination, and the committed checkpoints.

The log changes together with the output. Its size depends on the number of attempts, not on the number of checkpoints.
An attempt starts from a checkpoint of an earlier attempt, or fresh. If it restores an older checkpoint, the newer
checkpoints of earlier attempts form an abandoned branch, and their output is retracted.

If a sink goes on at another place, an attempt has a log at both. It takes the starts of earlier attempts into the new
log, and leaves a link to the new place in the old one. Output that is abandoned later is found through these links.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.exceptions import CorruptStateError

FORMAT_VERSION = 2
_START: Any = tuple[int, int | None, int | None]
ALL_CHECKPOINTS = sys.maxsize
"""Checkpoint id above all ids of an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLog:
    """An immutable version of the log."""

    starts: Mapping[int, Start] = field(default_factory=lambda: MappingProxyType({}))
    """Starts of the attempts by epoch."""
    committed: tuple[CommitRange, ...] = ()
    """Ranges with output in the destination, in commit order."""
    retracted: tuple[CommitRange, ...] = ()
    """Ranges whose output was replaced; their checkpoints can no longer be restored."""
    forgotten: int = 0
    """Newest epoch that was removed from the log because all output of its generation was replaced."""
    elsewhere: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """
    Attempts without output of their own here, with the place that they went on to from here; empty for no such place.
    """
    unsettled: tuple[str, ...] = ()
    """Other places with output that is to be retracted before the next commit."""

    @property
    def newest_epoch(self) -> int:
        """The epoch of the attempt that owns the destination, 0 if there is none."""
        return max(self.starts, default=0)

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Return whether the output of a checkpoint is committed."""
        return any(each.holds(epoch, checkpoint_id) for each in self.committed)

    def has_written(self, epoch: int) -> bool:
        """Return whether an attempt has had its output here, even if it had none or it was replaced."""
        return (epoch in self.starts and epoch not in self.elsewhere) or epoch <= self.forgotten

    def knows(self, epoch: int, checkpoint_id: int) -> bool:
        """Return whether the output of a checkpoint was ever committed."""
        ranges = (*self.committed, *self.retracted)
        return epoch <= self.forgotten or any(each.holds(epoch, checkpoint_id) for each in ranges)

    def names(self, generation: int, checkpoint_id: int) -> bool:
        """Return whether a checkpoint that is known by its generation and id is within a committed range."""
        return any(
            each.generation == generation and each.first <= checkpoint_id <= each.last for each in self.committed
        )

    def ancestry_of(self, epoch: int) -> Ancestry:
        """
        Return the ancestry of all checkpoints that an attempt will take.

        :raises CorruptStateError: if output of the ancestry is missing.
        """
        segments = [(epoch, ALL_CHECKPOINTS)]
        while (start := self.starts.get(segments[-1][0])) is not None and start.origin is not None:
            if start.origin[0] >= segments[-1][0]:
                break  # the database of the job was lost, and epochs began again
            self._require_known_taker(start)
            segments.append(start.origin)
        return Ancestry(tuple(segments))

    def begun(self, epoch: int, start: Start, goes_on_at: str | None = None) -> Self:
        """
        Return the log after an attempt has taken ownership of the destination.

        :param goes_on_at: Place of its own output; ``None`` if it is this one.
        """
        begun = replace(self, starts=MappingProxyType({**self.starts, epoch: start}))
        if goes_on_at is None:
            return begun
        return replace(begun, elsewhere=MappingProxyType({**self.elsewhere, epoch: goes_on_at}))

    def following(self, former: CommitLog) -> Self:
        """Return the log with the attempts in that of the place where the sink was before."""
        others = {epoch: start for epoch, start in former.starts.items() if epoch not in self.starts}
        return replace(
            self,
            starts=MappingProxyType({**others, **self.starts}),
            elsewhere=MappingProxyType({**dict.fromkeys(others, ""), **self.elsewhere}),
        )

    def abandoned_places(self, ancestry: Ancestry) -> tuple[str, ...]:
        """Return the other places that may have output outside an ancestry."""
        epochs = {epoch for epoch, _ in ancestry.segments}
        links = (place for epoch, place in self.elsewhere.items() if place and epoch not in epochs)
        return tuple(dict.fromkeys((*self.unsettled, *links)))

    def outside(self, ancestry: Ancestry) -> tuple[CommitRange, ...]:
        """Return the parts of the committed ranges outside an ancestry."""
        lasts = _last_checkpoints(ancestry)
        parts = (replace(each, first=max(each.first, lasts.get(each.epoch, 0) + 1)) for each in self.committed)
        return tuple(each for each in parts if each.first <= each.last)

    def retracting(self, ancestry: Ancestry) -> Self:
        """Return the log after the output outside an ancestry was retracted."""
        removed = self.outside(ancestry)
        left = replace(
            self,
            committed=within(self.committed, ancestry),
            retracted=(*self.retracted, *removed),
            elsewhere=self._links_within(ancestry),
            unsettled=(),
        )
        return left._without_old_generations(ancestry)

    def adding(self, generation: int, epoch: int, checkpoint_id: int, *, is_retractable: bool = True) -> Self:
        """Return the log after the output of one more checkpoint was committed."""
        new = CommitRange(
            generation=generation, epoch=epoch, first=checkpoint_id, last=checkpoint_id, is_retractable=is_retractable
        )
        last_range = self.committed[-1:]
        if last_range and replace(last_range[0], first=checkpoint_id, last=checkpoint_id) == new:
            return replace(self, committed=(*self.committed[:-1], replace(last_range[0], last=checkpoint_id)))
        return replace(self, committed=(*self.committed, new))

    def encode(self) -> str:
        """Return the log as text; equal logs encode to equal texts."""
        document = {
            "format_version": FORMAT_VERSION,
            "starts": {str(epoch): astuple(start) for epoch, start in self.starts.items()},
            "committed": encode(self.committed),
            "retracted": encode(self.retracted),
            "forgotten": self.forgotten,
        }
        # Most sinks never move, and older versions know no such fields.
        if self.elsewhere:
            document["elsewhere"] = {str(epoch): place for epoch, place in self.elsewhere.items()}
        if self.unsettled:
            document["unsettled"] = list(self.unsettled)
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
                starts=MappingProxyType({int(n): Start(*decode(_START, s)) for n, s in document["starts"].items()}),
                committed=decode(tuple[CommitRange, ...], document["committed"]),
                retracted=decode(tuple[CommitRange, ...], document["retracted"]),
                forgotten=decode(int, document["forgotten"]),
                elsewhere=MappingProxyType(
                    {int(n): decode(str, place) for n, place in document.get("elsewhere", {}).items()}
                ),
                unsettled=decode(tuple[str, ...], document.get("unsettled", [])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected the log of a sink of format {FORMAT_VERSION} in {where}, found {text[:100]!r}; restore the "
                "log from a backup, use the version of airflow-provider-statecheck that wrote it, or delete the "
                "output of the sink together with its log and start over."
            ) from error

    def _links_within(self, ancestry: Ancestry) -> Mapping[int, str]:
        epochs = {epoch for epoch, _ in ancestry.segments}
        return MappingProxyType({n: place if n in epochs else "" for n, place in self.elsewhere.items()})

    def _require_known_taker(self, start: Start) -> None:
        # Without this check, the output of older attempts would look like an abandoned branch and be retracted.
        taker = start.taken_by
        older = [n for n, each in self.starts.items() if n < (taker or 0) and each.generation == start.generation]
        if older and taker not in self.starts:
            raise CorruptStateError(
                f"Expected attempt {taker}, which took the restored checkpoint {start.restored}, to have written to "
                f"this destination, as attempt {max(older)} did, found no record of it; the sink was changed in "
                f"between and changed back, and output is missing. Restore a checkpoint of attempt {max(older)}, "
                "choose another destination, or start over.",
                checkpoint_id=start.restored,
            )

    def _without_old_generations(self, ancestry: Ancestry) -> Self:
        # Nothing can be restored from attempts of an older generation after all their output was replaced, except what
        # the running attempt itself continues from.
        ancestors = [self.starts[epoch] for epoch, _ in ancestry.segments if epoch in self.starts]
        generations = {each.generation for each in (*ancestors, self.starts[self.newest_epoch])}
        oldest = min(generations | {each.generation for each in self.committed})
        kept = {epoch: start for epoch, start in self.starts.items() if start.generation >= oldest}
        return replace(
            self,
            starts=MappingProxyType(kept),
            retracted=tuple(each for each in self.retracted if each.epoch in kept),
            forgotten=max({self.forgotten, *self.starts} - set(kept)),
            elsewhere=MappingProxyType({epoch: place for epoch, place in self.elsewhere.items() if epoch in kept}),
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Output of one checkpoint."""

    generation: int
    epoch: int
    """Attempt that took the checkpoint; a later attempt may commit it."""
    checkpoint_id: int
    committables: tuple[Any, ...]
    """Committables of the tasks."""
    owner: str = field(default="", compare=False)
    """Job and sink, for error messages about a record of the output."""

    @property
    def files(self) -> list[Any]:
        """The files of all tasks."""
        return [file for task in self.committables for file in task.files]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """A change from one log to the next, with its effects on the output."""

    before: CommitLog
    after: CommitLog
    publication: Publication | None = None
    retracted: tuple[CommitRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Start of an attempt; only a fresh start has no restored checkpoint."""

    generation: int
    restored: int | None = None
    """Restored checkpoint."""
    taken_by: int | None = None
    """Epoch of the attempt that took the restored checkpoint."""

    def __post_init__(self) -> None:
        # Without the attempt, all output of older attempts would look like an abandoned branch and be retracted.
        if (self.restored is None) != (self.taken_by is None):
            raise ValueError(
                "Expected the restored checkpoint together with the attempt that took it, found checkpoint "
                f"{self.restored} of attempt {self.taken_by}."
            )

    @property
    def origin(self) -> tuple[int, int] | None:
        """The attempt that took the restored checkpoint, and this checkpoint; ``None`` for a fresh start."""
        return None if self.restored is None or self.taken_by is None else (self.taken_by, self.restored)


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A checkpoint and all checkpoints that it builds on."""

    segments: tuple[tuple[int, int], ...]
    """Pairs of an epoch and the last checkpoint of that attempt in the ancestry, newest first."""

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Return whether the ancestry contains a checkpoint that an attempt took."""
        return any(epoch == taker and checkpoint_id <= last for taker, last in self.segments)


def within(ranges: Iterable[CommitRange], ancestry: Ancestry) -> tuple[CommitRange, ...]:
    """Return the parts of ranges inside an ancestry."""
    last_by_epoch = _last_checkpoints(ancestry)
    parts = (replace(each, last=min(each.last, last_by_epoch.get(each.epoch, 0))) for each in ranges)
    return tuple(each for each in parts if each.first <= each.last)


def _last_checkpoints(ancestry: Ancestry) -> dict[int, int]:
    last_by_epoch: dict[int, int] = {}
    for epoch, last in ancestry.segments:
        last_by_epoch[epoch] = max(last, last_by_epoch.get(epoch, 0))
    return last_by_epoch
