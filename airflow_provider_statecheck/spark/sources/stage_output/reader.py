"""Reads the files of committed checkpoints through Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.sources.changes import OnChange
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.file_reader import FileFormat, FileReader
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.listing import FileListing
from airflow_provider_statecheck.spark.sources.places import places_of
from airflow_provider_statecheck.spark.sources.stage_output.commits import Commit, schema_of
from airflow_provider_statecheck.spark.sources.stage_output.retractions import retracted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StageOutputReader:
    """
    Reads whole checkpoints.

    :param uri: The directory of the sink.
    :param commits: By the names of their items.
    :param columns: Which columns to read, ``None`` for all.
    :param restored: What an earlier reader of this source gave.
    """

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        commits: Mapping[str, Commit],
        columns: tuple[str, ...] | None,
        on_change: OnChange,
        options: Mapping[str, Any],
        restored: Mapping[str, Any] | None,
    ) -> None:
        self._uri = uri
        self._commits = commits
        self._on_change = on_change
        self._listing = FileListing(places_of(uri), options)
        self._schema_json: str | None = (restored or {}).get("schema")
        self._spark = spark
        self._columns = columns

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Look for the files of commits again.

        :raises SourceChangedError: if one is gone and the stage is to fail.
        :raises SourceRestartRequiredError: if it is to begin again.
        """
        owners = {file.uri: item.name for item in items for file in self._commits[item.name].files}
        sizes = {file.uri: file.size_bytes for item in items for file in self._commits[item.name].files}
        changes = self._listing.changes([Item(uri, size, b"") for uri, size in sizes.items()])
        # What a file holds follows from its name, so its time of change says nothing.
        changed = [item.name for item in changes.changed if item.size_bytes != sizes[item.name]]
        gone = dict.fromkeys(owners[uri] for uri in [*(item.name for item in changes.vanished), *changed])
        if gone:
            raise retracted(list(gone), OnChange.RESTART if self._on_change is OnChange.RESTART else OnChange.FAIL)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """
        Return the rows of commits.

        :raises InvalidConfigurationError: if Spark does not reach the files.
        """
        files = [file for split in splits if split.item for file in self._commits[split.item.name].files]
        items = [Item(file.uri, file.size_bytes, b"") for file in files]
        return self._files(items).load([ItemSplit(item.name, item.size_bytes, item) for item in items])

    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to read in the same way: the columns, once something was read."""
        return {"schema": self._schema_json}

    def _files(self, items: Sequence[Item]) -> FileReader:
        file_format = FileFormat(name="parquet", options={}, columns=self._columns)
        restored = {"schema": self._schema()}
        return FileReader(self._spark, file_format, self._listing, items, on_change=self._on_change, restored=restored)

    def _schema(self) -> str:
        if self._schema_json is None:
            lineages = [commit.lineage for commit in self._commits.values()]
            self._schema_json = schema_of(self._uri, lineages, self._listing.options).json()
        return self._schema_json
