"""Which completed checkpoints of one operator a new one subsumes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from airflow_provider_statecheck.checkpoint.coordination.subsumption import beyond_retention
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.run_order import ends_of_runs


def subsumed_by_retention(
    completed: Sequence[CheckpointRecord], num_retained: int, retained_runs: int
) -> list[CheckpointRecord]:
    """
    Return the checkpoints that fall out of retention.

    A checkpoint that a restore could not use takes no place from a usable one, so that a fall-back always has as many
    usable ones as were asked for; it goes when the oldest retained one is newer. Those of an earlier generation go with
    the first one of a later generation, for nothing restores from them any more. A savepoint is no part of this: it takes
    no place and never goes, unless it was restored here. One that a sink has not committed stays beyond their number.

    :param completed: All completed checkpoints of one operator, oldest first.
    :param num_retained: How many usable ones to keep, at least 1.
    :param retained_runs: Beside them, of how many earlier runs to keep the last usable one.
    """
    own = [c for c in completed if c.is_restorable]
    if not own:
        return []
    generation = own[-1].generation
    usable = [c for c in own if c.unusable_reason is None and c.generation == generation]
    kept = _ends_of_earlier_runs(usable, retained_runs)
    beyond = (c for c in beyond_retention(usable, num_retained) if not c.awaits_commit)
    falling = {c.checkpoint_id for c in beyond if c.checkpoint_id not in kept}
    oldest_retained = next((c.checkpoint_id for c in usable if c.checkpoint_id not in falling), 0) if falling else 0
    return [c for c in own if _goes(c, generation, falling, oldest_retained)]


def _ends_of_earlier_runs(usable: Sequence[CheckpointRecord], retained_runs: int) -> set[int]:
    return {c.checkpoint_id for c in islice(ends_of_runs(usable[::-1]), 1, 1 + retained_runs)}


def _goes(checkpoint: CheckpointRecord, generation: int, falling: set[int], oldest_retained: int) -> bool:
    if checkpoint.generation < generation or checkpoint.checkpoint_id in falling:
        return True
    return checkpoint.unusable_reason is not None and checkpoint.checkpoint_id < oldest_retained
