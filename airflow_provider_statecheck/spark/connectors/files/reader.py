"""Reader of whole files: what Spark reads with one schema, which later runs extend."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import ItemReader, ItemSplit
from airflow_provider_statecheck.spark.connectors.files.csv_headers import (
    option_of,
)
from airflow_provider_statecheck.spark.connectors.files.listing import (
    FileListing,
)
from airflow_provider_statecheck.spark.connectors.source import OnChange, require_unchanged
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.spark.snapshots.dataframes import VERIFIED_PAGES, HadoopFilesystems
from airflow_provider_statecheck.spark.tables.alignment import (
    extended,
    is_case_sensitive,
    is_on,
)
from airflow_provider_statecheck.spark.tables.partition_directories import (
    partition_values,
    raw_partition_values,
)
from airflow_provider_statecheck.spark.tables.schemas import (
    quoted_column,
    select_fields,
    to_struct_type,
    union_all,
)
from airflow_provider_statecheck.state.source_items import Item
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

# Characters that Spark expands as wildcards even in the names of existing files.
_EXPANDED = re.compile(r"([\\*?\[\]{}])")

UNMERGED = {"mergeSchema": "false"}
"""Option with which Spark does not compare the columns of files."""
_MERGE_SCHEMA = "spark.sql.parquet.mergeSchema"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """Format, options and columns with which files are read."""

    name: str
    options: Mapping[str, Any]
    schema: Any = None
    columns: tuple[str, ...] | None = None


class FileReader(ItemReader):
    """
    Reads whole files through Spark.

    :param items: All files of the run.
    :param on_change: Policy for files that changed.
    :param restored: State from :meth:`snapshot` of an earlier reader.
    :param is_new_run: Whether that is the reader of an earlier run; new columns of the files are then read too.
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
        is_new_run: bool = False,
    ) -> None:
        self.spark = spark
        self.format = file_format
        self.listing = listing
        self._items = items
        self._on_change = on_change
        self._schema_json: str | None = (restored or {}).get("schema")
        self._is_new_run = is_new_run
        self._filesystems = HadoopFilesystems()

    @functools.cached_property
    def schema(self) -> StructType:
        """
        All columns of the files, in their order.

        :raises InvalidConfigurationError: if the user's schema is invalid, or lacks a selected column.
        """
        if self.format.schema is not None:
            return to_struct_type(self.format.schema)
        known = None if self._schema_json is None else parse_schema(self._schema_json)
        if known is None:
            known = self._infer_schema()
        elif self._is_new_run:
            known = extended(known, self._infer_schema(), self.spark, self._partition_texts())
        self._schema_json = known.json()
        return known

    @property
    def selected_schema(self) -> StructType:
        """The selected columns."""
        if self.format.columns is None:
            return self.schema
        return select_fields(self.schema, self.format.columns, is_case_sensitive=is_case_sensitive(self.spark))

    @override
    def snapshot(self) -> dict[str, Any]:
        return {"schema": self._schema_json if self.format.schema is None else None}

    @override
    def require_unchanged(self, items: Sequence[Item]) -> None:
        require_unchanged(self.listing.changes(items), self._on_change)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return self.load_files([split.item.name for split in splits])

    def load_files(self, uris: Sequence[str]) -> DataFrame:
        """
        Return the rows of files.

        :raises InvalidConfigurationError: if Spark has no filesystem for the files.
        """
        pairs = sorted((self.listing.base_of(uri), uri) for uri in uris)
        by_base = groupby(pairs, key=lambda pair: pair[0])
        return union_all([self._whole_files(base, [uri for _, uri in group]) for base, group in by_base])

    def _whole_files(self, base: str, uris: Sequence[str]) -> DataFrame:
        columns = [quoted_column(field.name) for field in self.selected_schema.fields]
        return self._read(base, uris, self.schema).select(columns)

    def _read(self, base: str, uris: Sequence[str], schema: StructType | None, **options: str) -> DataFrame:
        verified = VERIFIED_PAGES if self.format.name == "parquet" else {}
        # The user's options come last, to allow reading files with damaged or unusual checksums.
        reader: DataFrameReader = self.spark.read.format(self.format.name).options(
            **verified | dict(self.format.options) | options
        )
        if schema is not None:
            reader = reader.schema(schema)
        if base:
            reader = reader.option("basePath", self._spark_uri(base))
        return reader.load([_EXPANDED.sub(r"\\\1", self._spark_uri(uri)) for uri in uris])

    def _spark_uri(self, uri: str) -> str:
        found = self._filesystems.spark_uri(self.spark, uri)
        if found is None:
            raise InvalidConfigurationError(
                f"Expected a Hadoop filesystem for {redact(uri)} in this Spark session, found none; add the package of "
                "its connector to spark.jars.packages."
            )
        return found

    def _infer_schema(self) -> StructType:
        return self._schema_of(is_merged=self.merges_schemas)

    def _schema_of(self, *, is_merged: bool) -> StructType:
        """Return the columns of all files, or of those of them that Spark chooses."""
        # One file of each partition, because Spark infers the type of a partition column from all its values.
        base = self.listing.base_of(self._items[0].name)
        uris = sorted(item.name for item in self._items if self.listing.base_of(item.name) == base)
        first = (
            {tuple(raw_partition_values(base, uri).items()): uri for uri in reversed(uris)} if base else {(): uris[0]}
        )
        if is_merged:
            return self._read(base, uris, None).schema
        return self._read(base, sorted(first.values()), None, **UNMERGED).schema

    @property
    def merges_schemas(self) -> bool:
        """Whether Spark finds the columns of all files, and not only those of one of them."""
        if self.format.name != "parquet":
            return False
        chosen = option_of(self.format.options, "mergeschema", default="")
        return chosen.lower() == "true" if chosen else is_on(self.spark, _MERGE_SCHEMA)

    def partition_of(self, uri: str) -> Mapping[str, str | None]:
        """Return the values of partition columns in the path of a file."""
        base = self.listing.base_of(uri)
        return partition_values(base, uri) if base else {}

    def _partition_texts(self) -> dict[str, set[str | None]]:
        """Return the partition columns of the files, with all their values as in the names of directories."""
        found: dict[str, set[str | None]] = {}
        for item in self._items:
            for name, text in self.partition_of(item.name).items():
                found.setdefault(name, set()).add(text)
        return found
