"""Which completed checkpoints of one operator a new one subsumes."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord


def subsumed_by_retention(completed: Sequence[CheckpointRecord], num_retained: int) -> list[CheckpointRecord]:
    """
    Return the checkpoints that fall out of retention.

    A checkpoint that a restore could not use takes no place from a usable one, so that a fall-back always has as many
    usable ones as were asked for; it goes when the oldest retained one is newer. Those of an earlier generation go with
    the first one of a later generation, for nothing restores from them any more.

    :param completed: All completed checkpoints of one operator, oldest first.
    :param num_retained: How many usable ones to keep, at least 1.
    """
    if not completed:
        return []
    generation = completed[-1].generation
    usable = [c for c in completed if c.unusable_reason is None and c.generation == generation]
    oldest_retained = usable[-num_retained].checkpoint_id if len(usable) > num_retained else 0
    return [c for c in completed if c.generation < generation or c.checkpoint_id < oldest_retained]
