"""Subsumption: which retained checkpoints a new completed checkpoint replaces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.run_order import ends_of_runs


class Retained(Protocol):
    """A completed checkpoint, be it a row or the thing itself."""

    @property
    def properties(self) -> CheckpointProperties:
        """Return whose it is."""
        ...


Checkpoint = TypeVar("Checkpoint", bound=Retained)


def subsumable(checkpoints: Sequence[CompletedCheckpoint], num_retained: int) -> list[CompletedCheckpoint]:
    """
    Return the checkpoints of a completed store that the newest one subsumes, oldest first.

    :param checkpoints: All retained ones, oldest first, the newest among them.
    :param num_retained: How many to keep, at least 1.
    :raises InvalidConfigurationError: for a number below 1.
    """
    return beyond_retention(checkpoints, num_retained)


def beyond_retention(checkpoints: Sequence[Checkpoint], num_retained: int) -> list[Checkpoint]:
    """
    Return what falls out of retention, oldest first.

    The newest stays, and so does the newest that is no savepoint: a savepoint is its owner's, who may delete it, and a
    restore needs one that nobody else can delete. A savepoint with which the job stopped is the exception, for nothing
    comes after it.

    :param checkpoints: All retained ones, oldest first.
    :param num_retained: How many to keep, at least 1; more stay where only such are left that must stay.
    :raises InvalidConfigurationError: for a number below 1.
    """
    require("num_retained", num_retained, lambda number: number >= 1, "at least 1")
    needed = _needed(checkpoints)
    droppable = [c for index, c in enumerate(checkpoints) if index not in needed]
    return droppable[: max(0, len(checkpoints) - num_retained)]


def _needed(checkpoints: Sequence[Retained]) -> set[int]:
    newest = len(checkpoints) - 1
    if newest < 0 or checkpoints[newest].properties.is_synchronous:
        return {newest}
    own = [index for index, c in enumerate(checkpoints) if not c.properties.is_savepoint]
    return {newest, *own[-1:]}


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
