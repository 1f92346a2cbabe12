"""Parquet files as a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from airflow_provider_statecheck.spark.sources.enumerator import SourceState
from airflow_provider_statecheck.spark.sources.file_reader import FileReader
from airflow_provider_statecheck.spark.sources.file_source import FileSource
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.listing import FileListing
from airflow_provider_statecheck.spark.sources.parquet_reader import ParquetReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ParquetSource(FileSource):
    """
    Parquet files, of which large ones are cut into several increments.

    :param path: A directory, a file, a pattern, or several of them.
    :param bytes_per_increment: About how much one Spark job reads. ``"auto"`` is a 64th of all, at least 256 MiB; where
        another limit is given, it is none. A file of more than twice as much is cut at its row groups.
    :param files_per_increment: How many files one Spark job reads at most.
    :param row_groups_per_increment: How many row groups it reads at most.
    :param columns: Which columns to read; all by default.
    :param schema: The types of the columns, as a ``StructType`` or DDL; by default they are taken from the files once.
    :param on_change: What to do if files changed since the start of a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :param order: ``"path"``, or ``"mtime"`` to read the oldest files first.
    :param options: Options of Spark's reader. With any, files are not cut.
    :raises InvalidConfigurationError: if an argument is out of its range.
    """

    _format = "parquet"

    def _reader(self, spark: SparkSession, listing: FileListing, state: SourceState) -> FileReader:
        items, restored = state.ledger.items, state.reader
        return ParquetReader(spark, self._file_format, listing, items, on_change=self._on_change, restored=restored)

    def _groups(self, reader: FileReader, item: Item) -> Sequence[int] | None:
        return cast(ParquetReader, reader).row_groups(item)
