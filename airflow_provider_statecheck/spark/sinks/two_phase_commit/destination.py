"""What the driver's half of a two-phase commit asks of the place where output and log lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_statecheck.spark.sinks.two_phase_commit.commit_log import CommitLog
from airflow_provider_statecheck.spark.sinks.two_phase_commit.commit_range import CommitRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The output of one checkpoint."""

    generation: int
    epoch: int
    """The attempt that took the checkpoint, which need not be the one that commits it."""
    checkpoint_id: int
    committables: tuple[Any, ...]
    """What its tasks handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """One step from a log to the next, with what it does to the output."""

    before: CommitLog
    after: CommitLog
    publication: Publication | None = None
    retracted: tuple[CommitRange, ...] = ()


class CommitDestination(Protocol):
    """Keeps a log of commits beside the output that it tells of."""

    @property
    def name(self) -> str:
        """The destination, fit to be shown."""
        ...

    def log_of(self, lineage: str) -> CommitLog:
        """Return the log of any sink as it stands; that of a sink which never wrote is empty."""
        ...

    def load(self, epoch: int) -> CommitLog:
        """
        Return the log, with all output there that it tells of.

        :param epoch: The attempt that asks. Changes of an older one that are not in the log yet never have an effect.
        """
        ...

    def apply(self, epoch: int, change: LogChange) -> bool:
        """
        Make a change with its effects, unless the log is another one than before.

        Where the destination can do several things in one step, all are done or none; elsewhere the log is first, and
        whoever loads it does what is missing.

        :param epoch: The attempt that asks.
        :return: Whether it is done; ``False`` if somebody else changed the log.
        """
        ...
