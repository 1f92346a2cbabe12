"""
Sources of items, such as files, commits, key ranges or user-defined splits.

A subclass lists its items and plans the unfinished ones; limits, sizes and states are the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require_one_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.connectors.enumerator import (
    ItemEnumerator,
    ItemReader,
    Limits,
    SourceState,
    automatic_bytes,
    decode_source_state,
)
from airflow_provider_statecheck.spark.connectors.source import OnChange, reconcile
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.locations import AllowedLocations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a source is opened: the session, and the state from which it continues."""

    spark: SparkSession
    before: SourceState | None
    """State of the last attempt; ``None`` on a fresh start."""
    is_new_run: bool
    """Whether a new run continues from the state of an earlier run."""
    storage_options: Mapping[str, Any]
    is_of_other_job: bool = False
    """Whether the state is that of another job, as at the start of a fork."""
    allowed: AllowedLocations = field(default_factory=AllowedLocations)
    """Locations that the state may name."""
    cuts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """
    Attempts and checkpoints up to which the savepoint has the output of the stages of that job, by lineage of the sink.
    """

    @property
    def reader_state(self) -> Mapping[str, Any]:
        """State of the reader of the last attempt; empty on a fresh start."""
        return {} if self.before is None or self.before.reader is None else self.before.reader

    def options(self, own: HiddenOptions | None) -> dict[str, Any]:
        """Return the options of the filesystem: those of the source, or those of the stage if it has none."""
        return dict(self.storage_options) if own is None else own.reveal()

    def reconciled(self, items: Sequence[Item], on_change: OnChange) -> Ledger:
        """
        Return the ledger for the listed items.

        :raises SourceChangedError: if the listing differs from that of the last attempt.
        :raises SourceRestartRequiredError: if it differs and the policy is ``RESTART``.
        """
        if self.before is None:
            return Ledger(tuple(items))
        return reconcile(self.before.ledger, items, on_change=on_change, new_run=self.is_new_run)


class ItemSource(ABC):
    """
    A source that consists of items.

    :param on_change: Policy for input that changes.
    :raises InvalidConfigurationError: if there is no such policy.
    """

    def __init__(self, limits: Limits, on_change: str | OnChange) -> None:
        self._limits = limits
        require_one_of("on_change", on_change, tuple(OnChange))
        self._on_change = OnChange(on_change)

    @property
    def on_change(self) -> OnChange:
        """Policy for input that changes."""
        return self._on_change

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        of_other_job: bool = False,
        allowed: AllowedLocations | None = None,
        cuts: Mapping[str, tuple[int, int]] | None = None,
    ) -> ItemEnumerator:
        """
        List the input and plan the unfinished part of it, as :meth:`Source.open` describes.

        :param of_other_job: Whether ``restored`` is the state of another job, or of a stage with another uid.
        :param allowed: Locations that ``restored`` may name; by default none.
        :param cuts: Attempts and checkpoints up to which a savepoint of that job has the output of its stages, by the
            lineages of their sinks; empty for any other state.
        :raises InvalidConfigurationError: if there is no input, or it does not fit the arguments of the source.
        :raises CorruptStateError: if the state is invalid, or that of another source.
        """
        before = None if restored is None else decode_source_state(restored)
        opening = Opening(
            spark=spark,
            before=before,
            is_new_run=new_run,
            storage_options=storage_options or {},
            is_of_other_job=of_other_job,
            allowed=allowed or AllowedLocations(),
            cuts=cuts or {},
        )
        ledger, reader = self._plan(opening)
        increments = 0 if before is None else before.increments
        return ItemEnumerator(SourceState(ledger, increments, self._target(ledger, opening)), self._limits, reader)

    @abstractmethod
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        """List the input; return its items with their progress, and their reader."""

    def _target(self, ledger: Ledger, opening: Opening) -> int | None:
        if not self._limits.is_automatic:
            return None
        # The size is constant within a run, so that a restarted attempt plans the same increments.
        known = None if opening.before is None or opening.is_new_run else opening.before.target_bytes
        return known or automatic_bytes(ledger)


def parse_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """
    Return the names of the argument ``columns``; ``None`` for all columns.

    :raises InvalidConfigurationError: if the argument is not a non-empty sequence of names.
    """
    if columns is None:
        return None
    names = tuple(columns)
    if isinstance(columns, str) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
    return names
