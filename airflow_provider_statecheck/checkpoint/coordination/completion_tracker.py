"""What a receiver of notifications makes of those that are repeated, late or lost."""

from __future__ import annotations


class CompletionTracker:
    """
    Tells a receiver which of its snapshots an end of a checkpoint is about, each of them once.

    A completion stands for that of all earlier checkpoints, since theirs may have been lost. A receiver whose later
    snapshots carry on what an aborted one had staged does not pass aborts on: the next completion covers it.

    :param latest_completed_id: The checkpoint that the receiver was restored from, 0 for none.
    """

    def __init__(self, latest_completed_id: int = 0) -> None:
        self.latest_completed_id = latest_completed_id
        """The latest checkpoint known to be complete."""
        self._open: set[int] = set()

    def took(self, checkpoint_id: int) -> None:
        """Note that the receiver has saved its part of a checkpoint; one that is known to be over is not noted."""
        if checkpoint_id > self.latest_completed_id:
            self._open.add(checkpoint_id)

    def complete(self, checkpoint_id: int) -> tuple[int, ...]:
        """Return the snapshots that are complete with this one and were not before, the oldest first."""
        self.latest_completed_id = max(self.latest_completed_id, checkpoint_id)
        completed = tuple(sorted(taken for taken in self._open if taken <= checkpoint_id))
        self._open.difference_update(completed)
        return completed

    def aborted(self, checkpoint_id: int) -> bool:
        """Tell whether a snapshot is to be thrown away now; not if it was before, or was never taken, or is complete."""
        if checkpoint_id not in self._open:
            return False
        self._open.remove(checkpoint_id)
        return True
