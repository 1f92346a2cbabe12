"""Reads the files of a source, by Spark's own reader where it can."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.snapshots.dataframes import VERIFIED_PAGES
from airflow_provider_statecheck.spark.snapshots.hadoop_filesystems import HadoopFilesystems
from airflow_provider_statecheck.spark.snapshots.schema import parse_schema
from airflow_provider_statecheck.spark.sources.changes import OnChange, require_unchanged
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.listing import FileListing
from airflow_provider_statecheck.spark.sources.partitions import partition_of
from airflow_provider_statecheck.spark.sources.schemas import chosen, named, struct_of
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

# Spark takes these for patterns even in the names of files that exist.
_EXPANDED = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """How files are to be read."""

    name: str
    options: Mapping[str, Any]
    schema: Any = None
    columns: tuple[str, ...] | None = None


class FileReader:
    """
    Reads whole files through Spark.

    :param spark: The session.
    :param file_format: How files are to be read.
    :param listing: Where they are.
    :param items: All of them.
    :param on_change: What to do if one changed.
    :param restored: What an earlier reader of this source gave.
    """

    def __init__(
        self,
        spark: SparkSession,
        file_format: FileFormat,
        listing: FileListing,
        items: Sequence[Item],
        *,
        on_change: OnChange,
        restored: Mapping[str, Any] | None = None,
    ) -> None:
        self.spark = spark
        self.format = file_format
        self.listing = listing
        self._items = items
        self._on_change = on_change
        self._schema_json: str | None = (restored or {}).get("schema")
        self._filesystems = HadoopFilesystems()

    @functools.cached_property
    def schema(self) -> StructType:
        """
        The columns of all files, in their order.

        :raises InvalidConfigurationError: if the user's schema is none, or lacks a column that is to be read.
        """
        if self.format.schema is not None:
            return struct_of(self.format.schema)
        if self._schema_json is None:
            self._schema_json = self._inferred().json()
        return parse_schema(self._schema_json)

    @property
    def wanted(self) -> StructType:
        """The columns that are read."""
        return chosen(self.schema, self.format.columns)

    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to read in the same way: a schema that nobody gave."""
        return {"schema": self._schema_json if self.format.schema is None else None}

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Look at files again.

        :raises SourceChangedError: if one is no longer what was listed.
        """
        require_unchanged(self.listing.changes(items), self._on_change)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """
        Return the rows of splits.

        :raises InvalidConfigurationError: if Spark does not reach the files.
        """
        frames = [self._whole_files(root, names) for root, names in self._by_root(splits)]
        return functools.reduce(lambda frame, other: frame.unionAll(other), frames)

    def spark_uri(self, uri: str) -> str | None:
        """Return the name by which Spark reaches a file; ``None`` if it does not."""
        return self._filesystems.spark_uri(self.spark, uri)

    def _whole_files(self, root: str, uris: Sequence[str]) -> DataFrame:
        return self._read(root, uris, self.schema).select([named(field.name) for field in self.wanted.fields])

    def _read(self, root: str, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        verified = VERIFIED_PAGES if self.format.name == "parquet" else {}
        # The user's own options come last, so that a source can be told to read what another writer left.
        reader: DataFrameReader = self.spark.read.format(self.format.name).options(
            **verified | dict(self.format.options)
        )
        if schema is not None:
            reader = reader.schema(schema)
        if all(uri != root for uri in uris):
            reader = reader.option("basePath", self._for_spark(root))
        return reader.load([_EXPANDED.sub(r"\\\1", self._for_spark(uri)) for uri in uris])

    def _for_spark(self, uri: str) -> str:
        found = self.spark_uri(uri)
        if found is None:
            raise InvalidConfigurationError(
                f"Spark wants to read {redact(uri)}, but the Hadoop of this session has no filesystem for it; add the "
                "package of its connector to spark.jars.packages."
            )
        return found

    def _by_root(self, splits: Sequence[ItemSplit]) -> list[tuple[str, list[str]]]:
        names = [(self.listing.root_of(split.item.name), split.item.name) for split in splits if split.item]
        return [(root, [name for _, name in group]) for root, group in groupby(sorted(names), key=lambda pair: pair[0])]

    def _inferred(self) -> StructType:
        # A file of each directory, because the type of a column in their names depends on all values.
        root = self.listing.root_of(self._items[0].name)
        below = [item.name for item in self._items if self.listing.root_of(item.name) == root]
        first = {tuple(partition_of(root, name).items()): name for name in reversed(below)}
        return self._read(root, sorted(first.values()), None).schema
