"""An Iceberg table to which each completed checkpoint adds its files exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sinks.choices import OnEarlierOutput, require_one_of
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import OpenTable, TableAddress
from airflow_provider_statecheck.spark.sinks.iceberg.committable import IcebergCommittable
from airflow_provider_statecheck.spark.sinks.iceberg.committer import IcebergCommitter
from airflow_provider_statecheck.spark.sinks.iceberg.committing import TableChanges
from airflow_provider_statecheck.spark.sinks.iceberg.ledger import TableLedger
from airflow_provider_statecheck.spark.sinks.iceberg.table_checks import (
    require_fitting_columns,
    require_partitionable,
    require_writable_table,
)
from airflow_provider_statecheck.spark.sinks.iceberg.writer import IcebergSinkWriter, WriterTarget
from airflow_provider_statecheck.spark.sinks.names import lineage_of
from airflow_provider_statecheck.spark.sinks.sink import SinkContext, SinkTaskContext

_BUFFER_BYTES = 128 * 1024 * 1024


class IcebergSink:
    """
    Adds each checkpoint's output to an Iceberg table in one snapshot, when the checkpoint is complete.

    Several sinks, of one stage or of many, may write to a table, beside anybody else; none touches the files of another.
    The table must exist; its columns, its partitions and how its files are written are as it says.

    :param table: Its name with that of its namespace, such as ``sales.orders``.
    :param catalog: The name of the catalog; by default the one that is configured for pyiceberg.
    :param properties: What pyiceberg needs to know of the catalog and of the table's storage, such as ``uri``; they may be
        credentials.
    :param buffer_bytes: How many bytes of rows a task collects before it writes them as a file, or as one per partition.
    :param on_earlier_output: What a fresh start does with the output of earlier ones: ``retract`` takes it out with the first
        commit of the new one, ``refuse`` does not start.
    :raises InvalidConfigurationError: for a value out of its range.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, Any] | None = None,
        buffer_bytes: int = _BUFFER_BYTES,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        if buffer_bytes < 1:
            raise InvalidConfigurationError(f"Expected buffer_bytes of 1 or more, found {buffer_bytes}.")
        self.table = table
        self._address: TableAddress | None = TableAddress(table, catalog, properties)
        self._buffer_bytes = buffer_bytes
        self._refuses_earlier_output = on_earlier_output == "refuse"
        self._target: WriterTarget | None = None
        self._committer: IcebergCommitter | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver needs the catalog and its credentials.
        address = self._address if self._target is None else None
        return {**self.__dict__, "_committer": None, "_address": address}

    def open(self, context: SinkContext) -> None:
        """
        Check the table and take it over from earlier attempts.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: It or a package is missing, or it holds output of earlier starts that is not to be replaced.
        :raises UnsupportedStateError: What is to be written does not fit it.
        :raises CorruptStateError: Output of the restored checkpoint is gone.
        :raises StorageError: The catalog does not answer.
        """
        if self._address is None:
            raise CoordinatorError(f"Expected {self!r} to be opened on the driver, found a copy of a task.")
        self._release()
        table = OpenTable(self._address)
        try:
            self._committer = self._opened_by(context, table)
        except BaseException:
            table.close()
            raise

    def writer(self, context: SinkTaskContext) -> IcebergSinkWriter:
        """Return the writer of one Spark task."""
        if self._target is None:
            raise CoordinatorError(f"Expected {self!r} to be opened before it is used; open it on the driver.")
        return IcebergSinkWriter(self._target, context)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Add the files of a completed checkpoint, once however often it is tried.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: It is not the output that was committed before.
        :raises IncompatibleCheckpointError: It is of another job, which has not committed it.
        :raises StorageError: The catalog does not answer, or others commit faster.
        :raises CommitStateUnknownError: Nobody knows whether the commit was made; the next attempt finds out.
        """
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        self._committer.commit(checkpoint_id, [IcebergCommittable.from_json(document) for document in committables])
        # Credentials that a catalog lends for the storage end, often after an hour.
        self._aim(self._committer.changes.table, self._committer.changes.lineage)

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success the table holds of this sink what the attempt went on from, and nothing else.

        :raises StaleAttemptError: A newer attempt has the table.
        """
        try:
            # After a failure the next attempt knows what is still needed.
            if self._committer is not None and succeeded:
                self._committer.close()
        finally:
            self._release()

    def _opened_by(self, context: SinkContext, table: OpenTable) -> IcebergCommitter:
        lineage = lineage_of(context.job_id, context.uid)
        loaded = table.load()
        with table.failures_told():
            require_writable_table(loaded, table.name)
            require_partitionable(loaded, table.name)
            require_fitting_columns(loaded, context.schema, table.name)
        self._aim(table, lineage)
        new = TableLedger(job_name=context.job_name, uid=context.uid)
        changes = TableChanges(table=table, lineage=lineage, epoch=context.epoch, new_ledger=new)
        committer = IcebergCommitter(
            changes=changes, context=context, refuses_earlier_output=self._refuses_earlier_output
        )
        committer.open()
        return committer

    def _aim(self, table: OpenTable, lineage: str) -> None:
        with table.failures_told():
            self._target = WriterTarget.of(table.latest, table.name, lineage, self._buffer_bytes)

    def _release(self) -> None:
        committer, self._committer = self._committer, None
        if committer is not None:
            committer.changes.table.close()
