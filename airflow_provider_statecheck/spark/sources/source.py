"""
Contract between a stage and its sources.

A source lists bounded input and cuts it into splits. Its enumerator groups splits into increments, one per Spark job,
and keeps track of finished splits in the state of the stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Split:
    """A unit of input that is read completely or not at all."""

    split_id: str
    """Identical for the same input in every attempt."""
    size_bytes: int | None = None
    """Size of the input; ``None`` if unknown."""


@dataclass(frozen=True, slots=True)
class Increment:
    """The splits that one Spark job of a stage reads."""

    number: int
    """Counted from 1 across all attempts of a stage."""
    splits: tuple[Split, ...]
    size_bytes: int | None = None
    """Size of the input; ``None`` if unknown."""


class SplitEnumerator(Protocol):
    """Plans the increments of one attempt and tracks which splits are finished."""

    @property
    def total_bytes(self) -> int | None:
        """Size of all splits; ``None`` if unknown."""
        ...

    @property
    def finished_bytes(self) -> int | None:
        """Size of the finished splits; ``None`` if unknown."""
        ...

    @property
    def total_splits(self) -> int:
        """Number of files or user-defined splits."""
        ...

    @property
    def finished_splits(self) -> int:
        """Number of files or user-defined splits that are completely finished."""
        ...

    def next_increment(self) -> Increment | None:
        """
        Return the next increment; ``None`` after the last one.

        Increments of one enumerator have no splits in common.

        :raises SourceChangedError: if a file has changed since it was listed.
        """
        ...

    def load(self, increment: Increment) -> DataFrame:
        """
        Return the rows of an increment as a lazy DataFrame; repeated calls return the same rows.

        :raises SourceChangedError: if a file has changed since it was listed.
        """
        ...

    def require_unchanged(self, increment: Increment) -> None:
        """
        Verify that the input of an increment has not changed; called again after the increment was read.

        :raises SourceChangedError: if a file has changed since it was listed.
        """
        ...

    def finish(self, increment: Increment) -> None:
        """Mark an increment as finished; later attempts do not read it again."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return the state for :meth:`Source.open` to resume after the finished increments; plain values only."""
        ...


class Source(Protocol):
    """Input of a stage; pickled with the stage, and therefore without sessions and connections."""

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> SplitEnumerator:
        """
        List the input and plan the unfinished part of it.

        :param spark: The session that reads.
        :param restored: State from :meth:`SplitEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: ``True`` if a new run continues from the state of an earlier run and also reads new input.
        :param storage_options: Options of the filesystem for listing; may contain credentials.
        :raises SourceChangedError: if listed input has changed.
        :raises SourceRestartRequiredError: if it has changed and the source is configured to restart the stage.
        """
        ...
