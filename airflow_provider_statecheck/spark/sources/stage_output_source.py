"""The committed output of another stage as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sinks.target_files import open_target
from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions
from airflow_provider_statecheck.spark.sources.changes import on_change_of
from airflow_provider_statecheck.spark.sources.enumerator import ItemEnumerator, SourceState, decode_source_state
from airflow_provider_statecheck.spark.sources.file_source import SMALLEST_TARGET_BYTES, WANTED_INCREMENTS
from airflow_provider_statecheck.spark.sources.ledger import Ledger
from airflow_provider_statecheck.spark.sources.planning import Limits
from airflow_provider_statecheck.spark.sources.sizes import AUTO, parse_bytes_per_increment, require_count
from airflow_provider_statecheck.spark.sources.stage_output.commits import commits_in, names_of
from airflow_provider_statecheck.spark.sources.stage_output.reader import StageOutputReader
from airflow_provider_statecheck.spark.sources.stage_output.retractions import carried
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StageOutputSource:
    """
    What a ``ParquetSink`` has committed: each checkpoint upstream is read whole, and once.

    A run reads the commits that are in force when it begins; the next one reads those since.

    :param path: The directory that was given to the sink, or to several sinks.
    :param bytes_per_increment: About how much one Spark job reads. ``"auto"`` is a 64th of all, at least 256 MiB; where
        another limit is given, it is none. A checkpoint is never cut.
    :param checkpoints_per_increment: How many checkpoints of the stage upstream it reads at most.
    :param columns: Which columns to read; all by default.
    :param on_change: What to do if the stage upstream retracted what this one has read: ``"fail"``, ``"ignore"`` or
        ``"restart"``.
    :param storage_options: Options of the filesystem of the path; by default those of the stage's checkpoint storage.
    :raises InvalidConfigurationError: if an argument is out of its range.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        bytes_per_increment: str | int | None = "auto",
        checkpoints_per_increment: int | None = None,
        columns: Sequence[str] | None = None,
        on_change: str = "fail",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(columns, str):
            raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
        self._path = fspath(path)
        is_limited = checkpoints_per_increment is not None
        self._is_auto = bytes_per_increment == AUTO and not is_limited
        self._bytes = parse_bytes_per_increment(bytes_per_increment)
        self._checkpoints = (
            require_count(checkpoints_per_increment, "checkpoints_per_increment") if is_limited else None
        )
        self._columns = None if columns is None else tuple(columns)
        self._on_change = on_change_of(on_change)
        self._options = None if storage_options is None else HiddenOptions(storage_options)

    def __repr__(self) -> str:
        return f"StageOutputSource({redact(self._path)!r})"

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        Look which commits are in force and plan what is left of them.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what appeared since is read.
        :param storage_options: Options of the filesystem, where the source has none of its own.
        :raises InvalidConfigurationError: if no sink ever wrote there.
        :raises SourceChangedError: if commits that were read are retracted.
        :raises SourceRestartRequiredError: if they are and the stage is to begin again.
        """
        options = dict(storage_options or {}) if self._options is None else self._options.reveal()
        # Once for all that is read: a relative path begins in the directory of this process.
        uri = open_target(self._path, options).base_uri
        commits = names_of(commits_in(uri, options))
        state = self._state(Ledger(tuple(commit.item for commit in commits.values())), restored, new_run=new_run)
        reader = StageOutputReader(spark, uri, commits, self._columns, self._on_change, options, state.reader)
        limits = Limits(size_bytes=self._bytes or state.target_bytes, items=self._checkpoints)
        return ItemEnumerator(state, limits, reader, lambda _: None)

    def _state(self, now: Ledger, restored: Mapping[str, Any] | None, *, new_run: bool) -> SourceState:
        if restored is None:
            return SourceState(now, target_bytes=self._target(now))
        before = decode_source_state(restored)
        ledger = carried(before.ledger, now.items, on_change=self._on_change, new_run=new_run)
        # Within a run increments stay as large as they were, so that they are the same ones.
        is_kept = self._is_auto and not new_run and before.target_bytes
        target = before.target_bytes if is_kept else self._target(ledger)
        return SourceState(ledger, before.increments, target, before.reader)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None
