"""Contract between a stage and its sources: bounded rows, cut into splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_statecheck.checkpoint.config_options import parse_size
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Split:
    """A part of the rows that is read whole or not at all."""

    split_id: str
    """The same for the same part in every attempt."""
    size_bytes: int | None = None
    """How much there is to read; ``None`` where nobody knows."""


@dataclass(frozen=True, slots=True)
class Increment:
    """What one Spark job of a stage reads."""

    number: int
    """Counted from 1 over all attempts of a stage."""
    splits: tuple[Split, ...]
    size_bytes: int | None = None
    """How much there is to read; ``None`` where nobody knows."""


class SplitEnumerator(Protocol):
    """Plans the increments of one attempt and knows which of them are finished."""

    @property
    def total_bytes(self) -> int | None:
        """How many bytes there are in all; ``None`` where nobody knows."""
        ...

    @property
    def finished_bytes(self) -> int | None:
        """How many of them belong to finished splits; ``None`` where nobody knows."""
        ...

    @property
    def total_splits(self) -> int:
        """How many files, or parts that a user named, there are."""
        ...

    @property
    def finished_splits(self) -> int:
        """How many of them are finished as a whole."""
        ...

    def next_increment(self) -> Increment | None:
        """
        Return what is to be read next; ``None`` once every split was given.

        Two increments given without a restore between them share no split.

        :raises SourceChangedError: if a file is no longer what was listed.
        """
        ...

    def load(self, increment: Increment) -> DataFrame:
        """
        Return the rows of an increment; nothing is read yet, and every call gives the same rows.

        :raises SourceChangedError: if a file is no longer what was listed.
        """
        ...

    def require_unchanged(self, increment: Increment) -> None:
        """
        Look again at what an increment reads, as is worth while once it was read too.

        :raises SourceChangedError: if a file is no longer what was listed.
        """
        ...

    def finish(self, increment: Increment) -> None:
        """Note that an increment is part of the state from now on, so that it is not read again."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return what :meth:`Source.open` needs to go on after the finished increments; plain values only."""
        ...


class Source(Protocol):
    """Where rows come from; it goes with the description of a stage, so it holds no session and no connection."""

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> SplitEnumerator:
        """
        List what there is and plan what is left of it.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what appeared since is read.
        :param storage_options: Options of the filesystem that lists; they may be credentials.
        :raises SourceChangedError: if what was listed before has changed.
        :raises SourceRestartRequiredError: if it has changed and the source wants the stage to begin again.
        """
        ...


AUTO = "auto"


def parse_bytes_per_increment(value: str | int | None) -> int | None:
    """
    Return how many bytes an increment reads, ``None`` for ``"auto"`` or where nothing is given.

    :raises InvalidConfigurationError: for what is no size, or less than a byte.
    """
    if value is None or value == AUTO:
        return None
    size = parse_size("bytes_per_increment", value)
    if size < 1:
        raise InvalidConfigurationError(f"Expected bytes_per_increment to be at least a byte, found {value!r}.")
    return size


def require_count(count: object, name: str) -> int:
    """
    Return a number of files, row groups or splits.

    :param name: Which argument it is, for the message.
    :raises InvalidConfigurationError: if it is less than 1, or no number.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidConfigurationError(f"Expected {name} to be a number from 1; found {count!r}.")
    return count
