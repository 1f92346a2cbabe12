"""An Iceberg table as a source: its files at first, and later what was appended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import OpenTable, TableAddress
from airflow_provider_statecheck.spark.sources.changes import on_change_of
from airflow_provider_statecheck.spark.sources.enumerator import ItemEnumerator, SourceState, decode_source_state
from airflow_provider_statecheck.spark.sources.file_source import SMALLEST_TARGET_BYTES, WANTED_INCREMENTS
from airflow_provider_statecheck.spark.sources.iceberg_ranges import IcebergRanges
from airflow_provider_statecheck.spark.sources.iceberg_reader import IcebergReader
from airflow_provider_statecheck.spark.sources.ledger import Ledger
from airflow_provider_statecheck.spark.sources.planning import Limits
from airflow_provider_statecheck.spark.sources.sizes import AUTO, parse_bytes_per_increment, require_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class IcebergSource:
    """
    An Iceberg table as it is at the start; a new run that goes on with the state reads what was appended since.

    PyIceberg reads, in tasks of Spark: no connector and no catalog of Spark is needed.

    :param table: Its name with that of its namespace, such as ``sales.orders``.
    :param catalog: The name of the catalog; by default the one that is configured for pyiceberg.
    :param properties: What pyiceberg needs to know of the catalog and of the table's storage; they may be credentials.
    :param starting_snapshot: Read only what was appended after this snapshot; by default everything.
    :param columns: Which columns to read; all by default.
    :param bytes_per_increment: About how much one Spark job reads. ``"auto"`` is a 64th of all, at least 256 MiB; where
        another limit is given, it is none.
    :param files_per_increment: How many files one Spark job reads at most.
    :param on_change: What to do if rows were changed or deleted since: ``"fail"``, ``"ignore"`` to go on with what was
        appended, or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is out of its range.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, Any] | None = None,
        starting_snapshot: int | None = None,
        columns: Sequence[str] | None = None,
        bytes_per_increment: str | int | None = "auto",
        files_per_increment: int | None = None,
        on_change: str = "fail",
    ) -> None:
        if isinstance(columns, str):
            raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
        self.table = table
        self._address = TableAddress(table, catalog, properties)
        self._starting_snapshot = starting_snapshot
        self._columns = None if columns is None else tuple(columns)
        self._files = None if files_per_increment is None else require_count(files_per_increment, "files_per_increment")
        self._is_auto = bytes_per_increment == AUTO and self._files is None
        self._bytes = parse_bytes_per_increment(bytes_per_increment)
        self._on_change = on_change_of(on_change)

    def __repr__(self) -> str:
        return f"IcebergSource({self.table!r})"

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        List the files of the table and plan what is left of them.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what was appended is read.
        :param storage_options: Without effect; the properties of the catalog say how its storage is reached.
        :raises EnvironmentNotReadyError: if there is no such table.
        :raises InvalidConfigurationError: if a snapshot or a column is not in the table.
        :raises SourceChangedError: if rows were changed, or what is still to be read is gone.
        :raises SourceRestartRequiredError: if they were and the stage is to begin again.
        """
        table = OpenTable(self._address)
        try:
            loaded = table.load()
            with table.failures_told():
                return self._enumerator(spark, IcebergRanges(loaded, table.name, self._on_change), restored, new_run)
        finally:
            table.close()

    def _enumerator(
        self, spark: SparkSession, ranges: IcebergRanges, restored: Mapping[str, Any] | None, new_run: bool
    ) -> ItemEnumerator:
        before = None if restored is None else decode_source_state(restored)
        if before is None:
            planned = ranges.at_start(self._starting_snapshot)
            ledger, increments = Ledger(planned.items), 0
        else:
            planned = ranges.of_new_run(before) if new_run else ranges.of_run(before)
            ledger, increments = before.ledger.carried_to(planned.items), before.increments
        # Within a run increments stay as large as they were, so that they are the same ones.
        is_kept = before is not None and not new_run
        target = before.target_bytes if before is not None and is_kept else self._target(ledger)
        reader = IcebergReader(spark, ranges.table, planned, self._columns)
        limits = Limits(size_bytes=self._bytes or target, items=self._files)
        return ItemEnumerator(SourceState(ledger, increments, target), limits, reader, lambda _: None)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None
