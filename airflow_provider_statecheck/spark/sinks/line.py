"""
Which checkpoints an attempt goes on from.

Each attempt begins at a checkpoint of an earlier one, or with nothing. Where an attempt falls back to an older checkpoint,
the newer ones of before are a dead branch: their output is not part of what the attempt will have written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_statecheck.exceptions import CorruptStateError


@dataclass(frozen=True, slots=True)
class Start:
    """How an attempt began."""

    generation: int
    restored: int | None
    """The checkpoint that it restored, ``None`` for a fresh start."""
    taken_by: int | None = None
    """The epoch of the attempt that took it, ``None`` where nobody said so."""


@dataclass(frozen=True, slots=True)
class Line:
    """A checkpoint with all those before it, by the attempts that took them."""

    segments: tuple[tuple[int, int], ...]
    """Epochs, the newest first, each with the last of its checkpoints that counts."""

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Tell whether a checkpoint that an attempt took is part of the line."""
        return any(epoch == of and checkpoint_id <= last for of, last in self.segments)


@dataclass(frozen=True, slots=True)
class History:
    """How attempts began, and which of them took which checkpoint."""

    starts: Mapping[int, Start]
    """By epoch."""
    taken: Mapping[int, int]
    """Epochs by checkpoint, as far as the sink has seen the checkpoint."""

    def line_to(self, epoch: int, checkpoint_id: int) -> Line:
        """
        Return the line that ends at a checkpoint.

        :param epoch: The attempt that took it.
        :raises CorruptStateError: if it cannot be told what the line holds.
        """
        segments = [(epoch, checkpoint_id)]
        start = self.starts.get(epoch)
        while start is not None and start.restored is not None:
            self._require_known_taker(start)
            before = start.taken_by or self._taker(start.restored, segments[-1][0])
            if before is None or before >= segments[-1][0]:
                break
            segments.append((before, start.restored))
            start = self.starts.get(before)
        return Line(tuple(segments))

    def _require_known_taker(self, start: Start) -> None:
        # Where nothing is known of before, the line may end; else the output of older attempts would seem to be a dead branch.
        taker = start.taken_by
        if taker is None or taker in self.starts:
            return
        older = [n for n, each in self.starts.items() if n < taker and each.generation == start.generation]
        if older:
            raise CorruptStateError(
                f"Expected that attempt {taker}, which took the restored checkpoint {start.restored}, had this sink with this "
                f"destination, as attempt {max(older)} had, found nothing of it there; the sink was changed in between and changed "
                f"back, so output is missing. Restore a checkpoint of attempt {max(older)}, choose another destination, or start "
                "over.",
                checkpoint_id=start.restored,
            )

    def _taker(self, checkpoint_id: int, before: int) -> int | None:
        known = self.taken.get(checkpoint_id)
        if known is not None:
            return known
        newest = max(self._candidates(checkpoint_id, before), default=None)
        if newest is not None:
            self._require_unambiguous(newest, checkpoint_id)
        return newest

    def _candidates(self, checkpoint_id: int, before: int) -> list[int]:
        generation = self.starts[before].generation
        return [
            epoch
            for epoch, start in self.starts.items()
            if epoch < before and start.generation == generation and (start.restored or 0) < checkpoint_id
        ]

    def _require_unambiguous(self, epoch: int, checkpoint_id: int) -> None:
        began = self.starts[epoch].restored or 0
        doubtful = _between(self.taken, epoch, began, checkpoint_id)
        if doubtful:
            raise CorruptStateError(
                f"Expected committables with checkpoint {checkpoint_id}, found none; so it is not known whether it goes on "
                f"from checkpoint {doubtful[0]}, whose output is there. Restore from checkpoint {doubtful[-1]}, or start over.",
                checkpoint_id=checkpoint_id,
            )


def _between(taken: Mapping[int, int], epoch: int, after: int, until: int) -> list[int]:
    found: Iterable[int] = (n for n, taker in taken.items() if taker < epoch and after < n <= until)
    return sorted(found)
