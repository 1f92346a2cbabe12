"""Parquet files as a source; large files are read in row groups."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.spark.sources.cutting_reader import CuttingReader
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.file_source import FileReader, FileSource
from airflow_provider_statecheck.spark.tables.frames import partition_values
from airflow_provider_statecheck.spark.tables.row_groups import RowGroups, load_row_groups
from airflow_provider_statecheck.spark.tables.schemas import reads_like_spark
from airflow_provider_statecheck.state.source_items import Item
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


class ParquetReader(CuttingReader, FileReader):
    """Reads whole files through Spark, and row groups of large files through PyArrow."""

    def __init__(self, *args: Any, **named: Any) -> None:
        CuttingReader.__init__(self)
        FileReader.__init__(self, *args, **named)

    @override
    def _load_whole(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return FileReader.load(self, splits)

    @override
    def _load_tasks(self, tasks: Sequence[RowGroups]) -> DataFrame:
        return load_row_groups(self.spark, tasks, self.selected_schema, self.listing.options)

    @override
    def _row_groups_of(self, item: Item, start: int, end: int) -> RowGroups:
        root = self.listing.root_of(item.name)
        return RowGroups(root, item.name, item.size_bytes, start, end, partition_values(root, item.name))

    @override
    def _options_of(self, root: str) -> Mapping[str, Any]:
        return self.listing.options

    @override
    def _can_cut(self, item: Item, footer: Any) -> bool:
        from pyspark.sql.types import StructType

        partition = self._row_groups_of(item, 0, 0).partition
        stored = StructType([field for field in self.selected_schema.fields if field.name not in partition])
        if not self.format.options and reads_like_spark(footer, stored):
            return True
        log.warning("Reading %s as a whole, because its types or options require Spark's reader", redact(item.name))
        return False


class ParquetSource(FileSource):
    """
    Parquet files; large files are divided among several increments.

    :param path: A directory, a file, a pattern, or several of them.
    :param bytes_per_increment: Approximate input of one Spark job. The default ``"auto"`` is 1/64 of the input but at
        least 256 MiB, or no limit if another limit is set. A file of more than twice this size is cut at its row
        groups.
    :param files_per_increment: Maximum number of files in one Spark job.
    :param row_groups_per_increment: Maximum number of row groups in one Spark job.
    :param columns: Columns to read; all by default.
    :param schema: Columns and their types, as a ``StructType`` or DDL; by default inferred from the files once.
    :param on_change: Policy for files that change during a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :param order: ``"path"``, or ``"mtime"`` to read the oldest files first.
    :param options: Options of Spark's reader; with any of them, files are not cut.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    _format = "parquet"
    _reader = ParquetReader
