"""
Files of a snapshot of the same stage as a source.

A snapshot does not change. If it was computed again, its files have other names, and what was read of it is read again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import StateCheckError
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
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    ItemSplit,
    Limits,
    SourceState,
    decode_source_state,
)
from airflow_provider_statecheck.spark.sources.parquet_source import (
    RowGroups,
    cut_into_tasks,
    group_sizes,
    load_row_groups,
    read_footer,
    rows_of_groups,
    task_bytes,
)
from airflow_provider_statecheck.spark.sources.source_changes import OnChange, reconcile
from airflow_provider_statecheck.spark.sources.source_columns import reads_like_spark
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile, SnapshotWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SnapshotSource:
    """
    The rows of a snapshot.

    :param frames: Reader of snapshots.
    :param parts: The snapshot, or its parts by their numbers.
    """

    def __init__(self, frames: StoredDataFrames, parts: Mapping[int, StoredSnapshot]) -> None:
        self._frames = frames
        self._parts = parts

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        List the files of the snapshot and plan the unfinished ones.

        :param spark: The session that reads.
        :param restored: State from :meth:`ItemEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: Must be ``False``: a later run computes its snapshots again.
        :param storage_options: Unused; the checkpoint storage has its own.
        :raises SourceRestartRequiredError: if the snapshot was computed again.
        """
        files = {
            f"{part}/{file.name}": _File(stored, file)
            for part, stored in self._parts.items()
            for file in stored.manifest.files
        }
        items = tuple(Item.of(name, each.file.size_bytes, each.file.footer_sha256) for name, each in files.items())
        state = SourceState(Ledger(items)) if restored is None else decode_source_state(restored)
        if restored is not None:
            ledger = reconcile(state.ledger, items, on_change=OnChange.RESTART, new_run=new_run)
            state = replace(state, ledger=ledger)
        reader = _SnapshotReader(spark, self._frames, files)
        return ItemEnumerator(state, Limits(), reader, lambda position: reader.row_groups(state.ledger.items[position]))


@dataclass(frozen=True, slots=True)
class _File:
    stored: StoredSnapshot
    file: SnapshotFile

    @property
    def uri(self) -> str:
        return self.stored.uri_of(self.file)


class _SnapshotReader:
    """
    Reads whole files like the snapshot itself, and row groups of large files through PyArrow.

    :param files: All files by the names of their items.
    """

    def __init__(self, spark: SparkSession, frames: StoredDataFrames, files: Mapping[str, _File]) -> None:
        self._spark = spark
        self._frames = frames
        self._files = files
        self._sizes: dict[str, list[int] | None] = {}

    def require_unchanged(self, items: tuple[Item, ...]) -> None:
        """Do nothing: damage of a snapshot is detected when its pages are read."""

    def snapshot(self) -> dict[str, Any]:
        """Return no state: the manifest has the schema."""
        return {}

    def rows_of(self, split: ItemSplit) -> range | None:
        """Return the numbers of the rows of a split within its file; ``None`` if its footer is unreadable."""
        if split.item is None:
            return None
        try:
            return rows_of_groups(self._footer(self._files[split.item.name]), split.groups)
        except StateCheckError:
            return None

    def row_groups(self, item: Item) -> list[int] | None:
        """Return the sizes of the row groups of a file; ``None`` if only Spark reads the file correctly."""
        if item.name not in self._sizes:
            self._sizes[item.name] = self._row_group_sizes(self._files[item.name])
        return self._sizes[item.name]

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        whole = [self._files[split.item.name] for split in splits if split.item and split.groups is None]
        cut = [(split.item, split.groups) for split in splits if split.item and split.groups]
        frames = [self._frames.read_files(self._spark, _by_snapshot(whole))] if whole else []
        frames += [self._load_groups(cut)] if cut else []
        return functools.reduce(lambda frame, other: frame.unionAll(other), frames)

    def _load_groups(self, cut: Sequence[tuple[Item, tuple[int, int]]]) -> DataFrame:
        sizes = [self.row_groups(item) or [] for item, _ in cut]
        limit = task_bytes(self._spark, sizes, [groups for _, groups in cut])
        tasks = [
            task
            for (item, groups), of_file in zip(cut, sizes, strict=True)
            for task in cut_into_tasks(self._tasks_of(item, *groups), of_file, limit)
        ]
        first = self._files[cut[0][0].name].stored
        stored, restored = _columns_of(first)
        frame = load_row_groups(self._spark, tasks, stored, self._frames.options_for(first.data_uri))
        return restored(frame)

    def _tasks_of(self, item: Item, start: int, end: int) -> RowGroups:
        found = self._files[item.name]
        return RowGroups(found.stored.data_uri, found.uri, item.size_bytes, start, end, {})

    def _row_group_sizes(self, found: _File) -> list[int] | None:
        footer = self._footer(found)
        stored, _ = _columns_of(found.stored)
        is_ours = found.stored.manifest.writer is SnapshotWriter.EXECUTORS
        return group_sizes(footer) if is_ours or reads_like_spark(footer, stored) else None

    def _footer(self, found: _File) -> Any:
        data_uri = found.stored.data_uri
        return read_footer(found.uri, data_uri, found.file.size_bytes, self._frames.options_for(data_uri))


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
