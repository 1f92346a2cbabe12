"""
Sources of items, such as files, commits, key ranges or user-defined splits.

A subclass lists its items and plans the unfinished ones; limits, sizes and states are the same for all.

A snapshot that is read as a source does not change. If it was computed again, its files have other names, and what was read of it is read again.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.driver.session import cores_of
from airflow_provider_statecheck.spark.snapshots.columns import (
    file_schema,
    from_transfer_columns,
    parse_schema,
    transfer_schema,
)
from airflow_provider_statecheck.spark.snapshots.dataframes import (
    StoredDataFrames,
    StoredSnapshot,
    from_file_columns,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    ItemReader,
    ItemSplit,
    Limits,
    SourceState,
    automatic_bytes,
    decode_source_state,
    require_count,
)
from airflow_provider_statecheck.spark.sources.source import OnChange, parse_on_change, reconcile
from airflow_provider_statecheck.spark.tables.row_groups import (
    RowGroups,
    cut_into_tasks,
    load_row_groups,
    read_footer,
    rows_of_groups,
    task_bytes,
)
from airflow_provider_statecheck.spark.tables.schemas import group_sizes, reads_like_spark, union_all
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile, SnapshotWriter
from airflow_provider_statecheck.storage.uris import AllowedLocations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        self._on_change: OnChange = parse_on_change(on_change)

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        of_other_job: bool = False,
        allowed: AllowedLocations | None = None,
    ) -> ItemEnumerator:
        """
        List the input and plan the unfinished part of it, as :meth:`Source.open` describes.

        :param of_other_job: Whether ``restored`` is the state of another job, or of a stage with another uid.
        :param allowed: Locations that ``restored`` may name; by default none.
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


class DataFrameSource(ItemSource):
    """
    User-defined splits, such as days, id ranges or table names.

    :param splits: All splits in order, or a function that returns them; must be the same in every attempt.
    :param load: Returns the rows of a split; must return the same rows each time.
    :param key: Returns the name of a split in checkpoints; ``str`` by default.
    :param splits_per_increment: Maximum number of splits in one Spark job.
    :param on_change: Policy for splits that differ within a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    def __init__(
        self,
        splits: Sequence[Any] | Callable[[], Sequence[Any]],
        load: Callable[[SparkSession, Any], DataFrame],
        *,
        key: Callable[[Any], str] = str,
        splits_per_increment: int = 1,
        on_change: str = "fail",
    ) -> None:
        super().__init__(Limits(items=require_count(splits_per_increment, "splits_per_increment")), on_change)
        self._splits = splits
        self._load = load
        self._key = key

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        splits = self._splits_by_key()
        items = [Item.of(key, 0, "") for key in splits]
        return opening.reconciled(items, self._on_change), _UserReader(opening.spark, self._load, splits)

    def _splits_by_key(self) -> dict[str, Any]:
        splits = list(self._splits() if callable(self._splits) else self._splits)
        by_key = {self._key_of(split): split for split in splits}
        if len(by_key) < len(splits):
            raise InvalidConfigurationError(
                f"Expected a unique key for each of {len(splits)} splits, found {len(by_key)} keys; correct key."
            )
        return by_key

    def _key_of(self, split: Any) -> str:
        key: object = self._key(split)
        if not isinstance(key, str) or not key or "\0" in key:
            raise InvalidConfigurationError(f"Expected the key of a split to be a text, found {key!r}; correct key.")
        return key


class _UserReader(ItemReader):
    """Reads splits with the user's function, whose input is unknown; a change of it is not detected."""

    def __init__(
        self, spark: SparkSession, load: Callable[[SparkSession, Any], DataFrame], splits: Mapping[str, Any]
    ) -> None:
        self._spark = spark
        self._load = load
        self._splits = splits

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        frames = [self._load(self._spark, self._splits[split.item.name]) for split in splits]
        return functools.reduce(lambda frame, other: frame.unionByName(other), frames)


class CuttingReader(ItemReader):
    """Reads whole files as another reader does, and row groups of large files through PyArrow."""

    spark: SparkSession

    def __init__(self) -> None:
        self._sizes: dict[str, list[int] | None] = {}

    @override
    def row_groups(self, item: Item) -> list[int] | None:
        if item.name not in self._sizes:
            footer = self._footer(item)
            self._sizes[item.name] = group_sizes(footer) if self._can_cut(item, footer) else None
        return self._sizes[item.name]

    @override
    def rows_of(self, split: ItemSplit) -> range | None:
        try:
            return rows_of_groups(self._footer(split.item), split.groups)
        except StateCheckError:
            return None

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        whole = [split for split in splits if split.groups is None]
        frames = [self._load_whole(whole)] if whole else []
        return union_all([*frames, *self._load_cut(splits)])

    def _load_cut(self, splits: Sequence[ItemSplit]) -> Iterator[DataFrame]:
        cut = [
            (self._row_groups_of(split.item, *split.groups), self.row_groups(split.item) or [])
            for split in splits
            if split.groups is not None
        ]
        limit = task_bytes(cores_of(self.spark), cut) if cut else 0
        tasks = [task for groups, sizes in cut for task in cut_into_tasks(groups, sizes, limit)]
        for _, group in groupby(sorted(tasks, key=_partition_columns), key=_partition_columns):
            yield self._load_tasks(list(group))

    def _footer(self, item: Item) -> Any:
        file = self._row_groups_of(item, 0, 0)
        return read_footer(file.uri, file.root, file.size_bytes, self._options_of(file.root))

    @abstractmethod
    def _load_whole(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of whole files."""

    @abstractmethod
    def _load_tasks(self, tasks: Sequence[RowGroups]) -> DataFrame:
        """Return the rows of row groups of files that have the same partition columns."""

    @abstractmethod
    def _row_groups_of(self, item: Item, start: int, end: int) -> RowGroups:
        """Return row groups of the file of an item."""

    @abstractmethod
    def _options_of(self, root: str) -> Mapping[str, Any]:
        """Return the options of the filesystem of a root."""

    @abstractmethod
    def _can_cut(self, item: Item, footer: Any) -> bool:
        """Return whether PyArrow reads the same rows from a file as Spark."""


def _partition_columns(task: RowGroups) -> list[str]:
    return sorted(task.partition)


class SnapshotSource(ItemSource):
    """
    The rows of a snapshot; it has no later runs, because a later run computes its snapshots again.

    :param parts: The snapshot, or its parts by their numbers.
    """

    def __init__(self, frames: StoredDataFrames, parts: Mapping[int, StoredSnapshot]) -> None:
        super().__init__(Limits(), OnChange.RESTART)
        self._frames = frames
        self._parts = parts

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        files = {
            f"{part}/{file.name}": _File(stored, file)
            for part, stored in self._parts.items()
            for file in stored.manifest.files
        }
        items = [Item.of(name, each.file.size_bytes, each.file.footer_sha256) for name, each in files.items()]
        return opening.reconciled(items, self._on_change), _SnapshotReader(opening.spark, self._frames, files)


@dataclass(frozen=True, slots=True)
class _File:
    stored: StoredSnapshot
    file: SnapshotFile

    @property
    def uri(self) -> str:
        return self.stored.uri_of(self.file)


class _SnapshotReader(CuttingReader):
    """
    Reads whole files like the snapshot itself, and row groups of large files through PyArrow.

    :param files: All files by the names of their items.
    """

    def __init__(self, spark: SparkSession, frames: StoredDataFrames, files: Mapping[str, _File]) -> None:
        super().__init__()
        self.spark = spark
        self._frames = frames
        self._files = files

    @override
    def _load_whole(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return self._frames.read_files(self.spark, _by_snapshot([self._files[split.item.name] for split in splits]))

    @override
    def _load_tasks(self, tasks: Sequence[RowGroups]) -> DataFrame:
        # The parts of a snapshot have the same columns.
        first = next(each.stored for each in self._files.values() if each.uri == tasks[0].uri)
        stored, restored = _columns_of(first)
        return restored(load_row_groups(self.spark, tasks, stored, self._options_of(tasks[0].root)))

    @override
    def _row_groups_of(self, item: Item, start: int, end: int) -> RowGroups:
        found = self._files[item.name]
        return RowGroups(found.stored.data_uri, found.uri, item.size_bytes, start, end, {})

    @override
    def _options_of(self, root: str) -> Mapping[str, Any]:
        return self._frames.options_for(root)

    @override
    def _can_cut(self, item: Item, footer: Any) -> bool:
        stored = self._files[item.name].stored
        return stored.manifest.writer is SnapshotWriter.EXECUTORS or reads_like_spark(footer, _columns_of(stored)[0])


def _columns_of(stored: StoredSnapshot) -> tuple[Any, Callable[[DataFrame], DataFrame]]:
    """Return the schema of the files, and a function that restores the columns of the DataFrame."""
    schema = parse_schema(stored.manifest.schema_json)
    if stored.manifest.writer is SnapshotWriter.EXECUTORS:
        return transfer_schema(schema), lambda frame: from_transfer_columns(frame, schema)
    return file_schema(schema), lambda frame: from_file_columns(frame, schema)


def _by_snapshot(files: Sequence[_File]) -> list[StoredSnapshot]:
    groups = groupby(sorted(files, key=lambda each: each.uri), key=lambda each: each.stored.uri)
    found = [list(group) for _, group in groups]
    return [
        StoredSnapshot(group[0].stored.uri, replace(group[0].stored.manifest, files=tuple(each.file for each in group)))
        for group in found
    ]
