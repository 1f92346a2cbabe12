"""Sink for an Iceberg table, with exactly-once commits per checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sinks.commits.committer import CommittingSink
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_destination import IcebergDestination
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_writer import (
    IcebergCommittable,
    IcebergSinkWriter,
    WriterTarget,
)
from airflow_provider_statecheck.spark.sinks.iceberg.table_checks import (
    has_marks,
    require_fitting_columns,
    require_keys,
    require_no_equality_deletes,
    require_partitionable,
    require_writable_table,
)
from airflow_provider_statecheck.spark.sinks.sink import OnEarlierOutput, SinkContext, SinkTaskContext, unique_names
from airflow_provider_statecheck.spark.tables.iceberg import OpenTable, TableAddress

_DEFAULT_BUFFER_BYTES = 128 * 1024 * 1024


class IcebergSink(CommittingSink):
    """
    Adds the output of each checkpoint to an Iceberg table in one snapshot, when the checkpoint is complete.

    Several sinks of one or more stages may write to a table, concurrently with other writers; without ``upsert_by``, each
    changes only its own files. The table must exist, and it determines the columns, the partitions and the file properties.

    :param table: Identifier of the table, such as ``sales.orders``.
    :param catalog: Name of the catalog; by default the one that is configured for pyiceberg.
    :param properties: Properties of the pyiceberg catalog and of the table's storage, such as ``uri``; may contain
        credentials.
    :param upsert_by: Key columns for upserts; without them the sink appends rows. The driver rewrites the files that
        contain keys of a checkpoint.
    :param buffer_bytes: Size in bytes of the rows that a task buffers before it writes one file per partition, by
        default 128 MiB.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` removes it with the
        first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    _committable: ClassVar[type[IcebergCommittable]] = IcebergCommittable

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, Any] | None = None,
        upsert_by: Sequence[str] = (),
        buffer_bytes: int = _DEFAULT_BUFFER_BYTES,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        if buffer_bytes < 1:
            raise InvalidConfigurationError(f"Expected buffer_bytes of 1 or more, found {buffer_bytes}; raise it.")
        self.table = table
        self._address: TableAddress | None = TableAddress(table, catalog, properties)
        self._upsert_by = unique_names("upsert_by", upsert_by)
        self._buffer_bytes = buffer_bytes
        self._target: WriterTarget | None = None
        self._opened: OpenTable | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver needs the catalog and its credentials.
        address = self._address if self._target is None else None
        return {**super().__getstate__(), "_opened": None, "_address": address}

    @override
    def open(self, context: SinkContext) -> None:
        self._release()
        try:
            super().open(context)
        except BaseException:
            self._release()
            raise

    def writer(self, context: SinkTaskContext) -> IcebergSinkWriter:
        """Return the writer of one Spark task."""
        return IcebergSinkWriter(self._require_opened(self._target), context)

    @override
    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Add the files of a completed checkpoint; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if files are missing, or the output differs from an earlier commit of the checkpoint.
        :raises IncompatibleCheckpointError: if another job has not committed its output of the restored savepoint.
        :raises UnsupportedStateError: if the partitions of the table have changed.
        :raises StorageError: if the catalog fails, or all tries conflict with other commits.
        :raises CommitStateUnknownError: if the outcome of the commit is unknown; the next attempt checks the table.
        """
        super().commit(checkpoint_id, committables)
        # Vended credentials for the storage expire, often after an hour.
        if self._opened is not None and self._target is not None:
            self._update_target(self._opened, self._target.lineage)

    @override
    def close(self, succeeded: bool) -> None:
        try:
            super().close(succeeded)
        finally:
            self._release()

    @override
    def _destination(self, context: SinkContext) -> IcebergDestination:
        if self._address is None:
            raise self._copy_error()
        self._opened = table = OpenTable(self._address)
        loaded = table.load()
        with table.redacted_failures():
            self._require_fitting(loaded, context.schema, table.name)
            self.can_retract = not self._upsert_by or has_marks(loaded)
        self._update_target(table, context.lineage)
        return IcebergDestination(
            table=table,
            context=context,
            upsert_by=self._upsert_by,
            marks_rows=bool(self._upsert_by) and self.can_retract,
        )

    def _require_fitting(self, loaded: Any, schema: Any, name: str) -> None:
        require_writable_table(loaded, name)
        require_partitionable(loaded, name)
        require_fitting_columns(loaded, schema, name)
        if self._upsert_by:
            require_keys(loaded, self._upsert_by, schema, name)
            require_no_equality_deletes(loaded, name)

    def _update_target(self, table: OpenTable, lineage: str) -> None:
        with table.redacted_failures():
            self._target = WriterTarget.of(
                table.latest, table.name, lineage=lineage, buffer_bytes=self._buffer_bytes, upsert_by=self._upsert_by
            )

    def _release(self) -> None:
        self._committer = None
        table, self._opened = self._opened, None
        if table is not None:
            table.close()
