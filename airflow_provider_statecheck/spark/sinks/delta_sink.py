"""Sink for a Delta table, with exactly-once commits per checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from typing_extensions import override

from airflow_provider_statecheck.spark.sinks.commits.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.commits.committer import CommittingSink
from airflow_provider_statecheck.spark.sinks.delta.appended_files import AppendedFiles
from airflow_provider_statecheck.spark.sinks.delta.delta_destination import DeltaDestination, DeltaOutput
from airflow_provider_statecheck.spark.sinks.delta.delta_files import DeltaCommittable, DeltaFiles, DeltaSinkWriter
from airflow_provider_statecheck.spark.sinks.delta.upserted_rows import UpsertedRows
from airflow_provider_statecheck.spark.sinks.sink import (
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    require_one_of,
    unique_names,
)
from airflow_provider_statecheck.spark.sinks.target_files import LEDGER_DIRECTORY, OpenedTarget, open_target
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.tables.data_files import FileLayout
from airflow_provider_statecheck.spark.tables.delta import (
    DeltaTableAccess,
    deltalake,
    library_options,
    require_safe_commits,
)
from airflow_provider_statecheck.storage.uris import redact

_DEFAULT_FILE_BYTES = 512 * 1024 * 1024
Compression = Literal["zstd", "snappy", "gzip", "none"]


class DeltaSink(CommittingSink):
    """
    Adds the output of each checkpoint to a Delta table in one version, when the checkpoint is complete, or upserts it.

    A missing table is created. Other writers may write to the table concurrently; without ``upsert_by``, the sink never
    changes their files.

    :param table: Directory of the table as a path or a URI.
    :param partition_by: Partition columns of the table.
    :param upsert_by: Key columns for upserts by the driver; by default rows are only added.
    :param merge_schema: Whether to add missing columns to the table.
    :param compression: Parquet compression codec.
    :param max_file_bytes: File size in bytes at which the writer starts a new file, by default 512 MiB.
    :param storage_options: Filesystem options; by default those of the stage's checkpoint storage.
    :param delta_options: Options of deltalake for the same storage; by default derived from ``storage_options``.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` replaces it with
        the first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    _committable: ClassVar[type[DeltaCommittable]] = DeltaCommittable

    def __init__(
        self,
        table: str,
        *,
        partition_by: Sequence[str] = (),
        upsert_by: Sequence[str] = (),
        merge_schema: bool = False,
        compression: Compression = "zstd",
        max_file_bytes: int = _DEFAULT_FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        delta_options: Mapping[str, str] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        require_one_of("compression", compression, get_args(Compression))
        self.table = table
        self._partition_by = unique_names("partition_by", partition_by)
        self._merges_schema = merge_schema
        self._keys = unique_names("upsert_by", upsert_by)
        self._layout = FileLayout(
            compression=compression,
            partition_by=() if self._keys else self._partition_by,  # deltalake writes the files of an upsert
            max_file_bytes=max_file_bytes,
        )
        self._given_options = None if storage_options is None else HiddenOptions(storage_options)
        self._given_delta_options = None if delta_options is None else HiddenOptions(delta_options)
        self._target: OpenedTarget | None = None
        self._generation = 0

    def __repr__(self) -> str:
        return f"DeltaSink({redact(self.table)!r})"

    @override
    def __getstate__(self) -> dict[str, Any]:
        # Tasks only write files.
        return {**super().__getstate__(), "_given_delta_options": None}

    def writer(self, context: SinkTaskContext) -> DeltaSinkWriter:
        """Return the writer of one Spark task."""
        files = self._require_opened(self._target).files(DeltaFiles)
        return DeltaSinkWriter(files, self._layout, self._generation, context, self._keys)

    @override
    def _destination(self, context: SinkContext) -> DeltaDestination:
        deltalake()
        target = OpenedTarget.of(self.table, context, self._given_options)
        table, files = self._access(target), target.files(DeltaFiles)
        ledger = open_target(f"{target.uri}/{LEDGER_DIRECTORY}", target.options.reveal())
        records = CommitFiles(ledger, context.lineage, DeltaCommittable)
        self._target, self._generation = target, context.generation
        return DeltaDestination(
            table=table,
            files=files,
            records=records,
            output=self._output(table, files, records),
            context=context,
            partition_by=self._partition_by,
            merges_schema=self._merges_schema,
        )

    def _access(self, target: OpenedTarget) -> DeltaTableAccess:
        options = self._given_delta_options or HiddenOptions(library_options(target.uri, target.options.reveal()))
        require_safe_commits(options.reveal())
        return DeltaTableAccess(target.uri, options)

    def _output(self, table: DeltaTableAccess, files: DeltaFiles, records: CommitFiles) -> DeltaOutput:
        if not self._keys:
            return AppendedFiles(table, files, records)
        compression = self._layout.compression
        return UpsertedRows(table=table, files=files, records=records, keys=self._keys, compression=compression)
