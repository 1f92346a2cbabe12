"""Which retained checkpoints a new one subsumes: Flink's rule, for whatever has checkpoint properties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.coordination.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.validation import require


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
