"""Subsumption of retained checkpoints by newer ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.run_order import ends_of_runs


class Retained(Protocol):
    """Completed checkpoint, as a row or as an object."""

    @property
    def properties(self) -> CheckpointProperties:
        """Return the properties, which determine the owner."""
        ...


Checkpoint = TypeVar("Checkpoint", bound=Retained)


def beyond_retention(checkpoints: Sequence[Checkpoint], num_retained: int) -> list[Checkpoint]:
    """
    Return the checkpoints beyond retention, oldest first.

    The newest checkpoint is always retained, and so is the newest one that is not a savepoint: the user may delete a
    savepoint, and a restore needs a checkpoint that only the job can delete. No such checkpoint is needed after a savepoint
    that stops the job.

    :param checkpoints: Retained checkpoints, oldest first.
    :param num_retained: Number of checkpoints to retain, at least 1; exceeded if more must be retained.
    :raises InvalidConfigurationError: for a number below 1.
    """
    require("num_retained", num_retained, lambda number: number >= 1, "at least 1")
    required = _required_indexes(checkpoints)
    candidates = [c for index, c in enumerate(checkpoints) if index not in required]
    return candidates[: max(0, len(checkpoints) - num_retained)]


def _required_indexes(checkpoints: Sequence[Retained]) -> set[int]:
    newest = len(checkpoints) - 1
    if newest < 0 or checkpoints[newest].properties.is_synchronous:
        return {newest}
    own = [index for index, c in enumerate(checkpoints) if not c.properties.is_savepoint]
    return {newest, *own[-1:]}


def subsumed_by_retention(
    completed: Sequence[CheckpointRecord], num_retained: int, retained_runs: int
) -> list[CheckpointRecord]:
    """
    Return the completed checkpoints of an operator that retention subsumes.

    - Unusable checkpoints do not count, which leaves `num_retained` usable ones as fallbacks. They are subsumed when all
      retained checkpoints are newer.
    - Checkpoints of earlier generations are subsumed by the first checkpoint of a later generation.
    - Savepoints neither count nor are subsumed, unless the operator was restored from them.
    - Checkpoints with an open commit are retained in addition.

    :param completed: Completed checkpoints of the operator, oldest first.
    :param num_retained: Number of usable checkpoints to retain, at least 1.
    :param retained_runs: Number of earlier runs whose last usable checkpoint is retained in addition.
    """
    own = [c for c in completed if c.is_restorable]
    if not own:
        return []
    generation = own[-1].generation
    usable = [c for c in own if c.unusable_reason is None and c.generation == generation]
    ends = _ends_of_earlier_runs(usable, retained_runs)
    beyond = (c for c in beyond_retention(usable, num_retained) if not c.awaits_commit)
    subsumed = {c.checkpoint_id for c in beyond if c.checkpoint_id not in ends}
    oldest_retained = next((c.checkpoint_id for c in usable if c.checkpoint_id not in subsumed), 0) if subsumed else 0
    return [c for c in own if _is_subsumed(c, generation, subsumed, oldest_retained)]


def _ends_of_earlier_runs(usable: Sequence[CheckpointRecord], retained_runs: int) -> set[int]:
    return {c.checkpoint_id for c in islice(ends_of_runs(usable[::-1]), 1, 1 + retained_runs)}


def _is_subsumed(checkpoint: CheckpointRecord, generation: int, subsumed: set[int], oldest_retained: int) -> bool:
    if checkpoint.generation < generation or checkpoint.checkpoint_id in subsumed:
        return True
    return checkpoint.unusable_reason is not None and checkpoint.checkpoint_id < oldest_retained
