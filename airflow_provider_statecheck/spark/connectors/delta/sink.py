"""Sink for Delta tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, Self, get_args

from airflow_provider_statecheck.checkpoint.codec import require_one_of
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.delta.destination import DeltaDestination
from airflow_provider_statecheck.spark.connectors.delta.output import (
    AppendedFiles,
    DeltaCommittable,
    UpsertedRows,
    delta_writer,
)
from airflow_provider_statecheck.spark.connectors.delta.restrictions import text_lengths
from airflow_provider_statecheck.spark.connectors.delta.table import DeltaTableAccess, deltalake, require_safe_commits
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import CommitFiles
from airflow_provider_statecheck.spark.connectors.exactly_once.committing_sink import CommittingSink
from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import (
    ParquetSinkWriter,
    TargetFiles,
    ledger_storage,
    open_target,
)
from airflow_provider_statecheck.spark.connectors.sink import (
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    unique_names,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import hidden_options
from airflow_provider_statecheck.spark.tables.column_types import require_stored
from airflow_provider_statecheck.spark.tables.data_files import FILE_BYTES, FileLayout
from airflow_provider_statecheck.spark.tables.schemas import required_columns
from airflow_provider_statecheck.storage.uris import path_text, redact

Compression = Literal["zstd", "snappy", "gzip", "none"]
_KIND = "delta"
"""Kind of the place."""


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
        table: str | PathLike[str],
        *,
        partition_by: Sequence[str] = (),
        upsert_by: Sequence[str] = (),
        merge_schema: bool = False,
        compression: Compression = "zstd",
        max_file_bytes: int = FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        delta_options: Mapping[str, str] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        require_one_of("compression", compression, get_args(Compression))
        self.table = path_text(table)
        self._partition_by = unique_names("partition_by", partition_by)
        self._merges_schema = merge_schema
        self._keys = unique_names("upsert_by", upsert_by)
        self._layout = FileLayout(
            compression=compression,
            partition_by=() if self._keys else self._partition_by,  # deltalake writes the files of an upsert
            max_file_bytes=max_file_bytes,
        )
        self._given_options = hidden_options(storage_options)
        self._given_delta_options = hidden_options(delta_options)
        self._files: TargetFiles | None = None
        self._generation = 0
        self._required: tuple[str, ...] = ()
        self._lengths: Mapping[tuple[str, ...], int] = {}

    def __repr__(self) -> str:
        return f"DeltaSink({redact(self.table)!r})"

    @override
    def __getstate__(self) -> dict[str, Any]:
        # Tasks only write files.
        return {**super().__getstate__(), "_given_delta_options": None}

    def writer(self, context: SinkTaskContext) -> ParquetSinkWriter:
        """Return the writer of one Spark task."""
        files = self._require_opened(self._files)
        return delta_writer(
            files,
            self._layout,
            self._generation,
            context,
            self._keys,
            required=self._required,
            partition_by=self._partition_by,
            lengths=self._lengths,
        )

    @override
    def at(self, place: Place) -> Self | None:
        if place.kind != _KIND:
            return None
        former = self._copy()
        former.table = place.address
        return former

    @override
    def _place(self, context: SinkContext) -> Place:
        return Place.of_uri(_KIND, open_target(self.table, context.options(self._given_options)).base_uri)

    @override
    def _destination(self, context: SinkContext) -> DeltaDestination:
        deltalake()
        require_stored(context.schema, "a Delta table")
        files = TargetFiles.open(self.table, context.lineage, context.options(self._given_options))
        table = DeltaTableAccess.of(files.storage, self._given_delta_options)
        require_safe_commits(table.options.reveal())
        records = CommitFiles(ledger_storage(files.storage), context.lineage, DeltaCommittable)
        self._files, self._generation = files, context.generation
        snapshot = table.snapshot()
        self._required = () if snapshot is None else required_columns(snapshot.schema)
        self._lengths = {} if snapshot is None else text_lengths(snapshot)
        upserts = {"keys": self._keys, "compression": self._layout.compression} if self._keys else {}
        kind: Any = UpsertedRows if upserts else AppendedFiles
        destination: DeltaDestination = kind(
            table=table,
            files=files,
            records=records,
            context=context,
            partition_by=self._partition_by,
            merges_schema=self._merges_schema,
            **upserts,
        )
        return destination
