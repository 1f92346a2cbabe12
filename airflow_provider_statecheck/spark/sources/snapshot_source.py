"""
Files of a snapshot of the same stage as a source.

A snapshot does not change. If it was computed again, its files have other names, and what was read of it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.spark.snapshots.columns import file_schema, from_transfer_columns, transfer_schema
from airflow_provider_statecheck.spark.snapshots.dataframes import (
    StoredDataFrames,
    StoredSnapshot,
    from_file_columns,
)
from airflow_provider_statecheck.spark.sources.cutting_reader import CuttingReader
from airflow_provider_statecheck.spark.sources.enumerator import ItemReader, ItemSplit
from airflow_provider_statecheck.spark.sources.item_source import ItemSource, Opening
from airflow_provider_statecheck.spark.sources.planning import Limits
from airflow_provider_statecheck.spark.sources.source import OnChange
from airflow_provider_statecheck.spark.tables.row_groups import RowGroups, load_row_groups
from airflow_provider_statecheck.spark.tables.schemas import parse_schema, reads_like_spark
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile, SnapshotWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SnapshotSource(ItemSource):
    """
    The rows of a snapshot; it has no later runs, because a later run computes its snapshots again.

    :param frames: Reader of snapshots.
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
