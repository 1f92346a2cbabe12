"""Reads Parquet files, large ones in parts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.sources.arrow_types import is_read_alike
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.file_reader import FileReader
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.partitions import partition_of
from airflow_provider_statecheck.spark.sources.row_groups import (
    RowGroups,
    cut_into_tasks,
    group_sizes,
    load_row_groups,
    read_footer,
)
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


class ParquetReader(FileReader):
    """Reads whole files through Spark, and some row groups of a file through PyArrow."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._sizes: dict[str, list[int] | None] = {}

    def row_groups(self, item: Item) -> list[int] | None:
        """
        Return the sizes of the row groups of a file; ``None`` if only Spark can read it as it should be read.

        :raises SourceChangedError: if it is no longer what was listed.
        """
        if item.name not in self._sizes:
            self._sizes[item.name] = self._cut(item)
        return self._sizes[item.name]

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        whole = [split for split in splits if split.groups is None]
        frames: list[DataFrame] = [super().load(whole)] if whole else []
        frames += [self._parts(tasks) for tasks in self._tasks([split for split in splits if split.groups])]
        return functools.reduce(lambda frame, other: frame.unionAll(other), frames)

    def _parts(self, tasks: Sequence[RowGroups]) -> DataFrame:
        return load_row_groups(self.spark, tasks, self.wanted, self.listing.options)

    def _tasks(self, splits: Sequence[ItemSplit]) -> list[list[RowGroups]]:
        tasks = [
            task for split in splits if split.item and split.groups for task in self._shares(split.item, *split.groups)
        ]
        by_columns: Callable[[RowGroups], list[str]] = lambda task: sorted(task.partition)  # noqa: E731
        return [list(group) for _, group in groupby(sorted(tasks, key=by_columns), key=by_columns)]

    def _shares(self, item: Item, start: int, end: int) -> list[RowGroups]:
        root = self.listing.root_of(item.name)
        groups = RowGroups(root, item.name, item.size_bytes, start, end, partition_of(root, item.name))
        return list(cut_into_tasks(groups, self.row_groups(item) or []))

    def _cut(self, item: Item) -> list[int] | None:
        root = self.listing.root_of(item.name)
        footer = read_footer(item.name, root, item.size_bytes, self.listing.options)
        if self.format.options or not is_read_alike(footer, self._in_the_file(root, item)):
            log.warning("%s is read as a whole, because only Spark reads it as it should be read", redact(item.name))
            return None
        return group_sizes(footer)

    def _in_the_file(self, root: str, item: Item) -> StructType:
        from pyspark.sql.types import StructType

        partition = partition_of(root, item.name)
        return StructType([field for field in self.wanted.fields if field.name not in partition])
