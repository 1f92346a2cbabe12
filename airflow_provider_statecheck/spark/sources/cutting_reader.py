"""Reader of sources that reads large Parquet files by row groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.spark.driver.session import cores_of
from airflow_provider_statecheck.spark.sources.enumerator import ItemReader, ItemSplit
from airflow_provider_statecheck.spark.tables.frames import union_all
from airflow_provider_statecheck.spark.tables.parquet_files import group_sizes
from airflow_provider_statecheck.spark.tables.row_groups import (
    RowGroups,
    cut_into_tasks,
    read_footer,
    rows_of_groups,
    task_bytes,
)
from airflow_provider_statecheck.state.source_items import Item

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
