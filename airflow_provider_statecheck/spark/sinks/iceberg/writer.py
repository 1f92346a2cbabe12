"""Write the output of one Spark task as data files of an Iceberg table, which the table does not name yet."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import portable_metadata
from airflow_provider_statecheck.spark.sinks.iceberg.committable import IcebergCommittable
from airflow_provider_statecheck.spark.sinks.iceberg.data_files import encode_data_file
from airflow_provider_statecheck.spark.sinks.iceberg.own_files import data_file_name
from airflow_provider_statecheck.spark.sinks.iceberg.storage_properties import storage_properties_of
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext
from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions
from airflow_provider_statecheck.storage.options import conceal, harmless

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterTarget:
    """What a task needs to know of a table."""

    table: str
    metadata: str
    """As JSON, without its snapshots."""
    io: HiddenOptions
    """Of the table's storage; they may be credentials."""
    lineage: str
    buffer_bytes: int
    """How many bytes of rows become files at once."""

    @classmethod
    def of(cls, table: Any, shown: str, lineage: str, buffer_bytes: int) -> WriterTarget:
        """
        Return what is to be known of a table that was loaded.

        :raises UnsupportedStateError: if tasks cannot reach its storage.
        """
        return cls(
            table=shown,
            metadata=portable_metadata(table),
            io=storage_properties_of(table, shown),
            lineage=lineage,
            buffer_bytes=buffer_bytes,
        )

    def open(self) -> tuple[Any, Any]:
        """Return the metadata and the storage of the table."""
        from pyiceberg.io import load_file_io
        from pyiceberg.table.metadata import TableMetadataUtil

        metadata = TableMetadataUtil.parse_raw(self.metadata)
        return metadata, load_file_io(self.io.reveal(), metadata.location)


class IcebergSinkWriter:
    """
    Writes whole data files where the table has its own.

    A task that fails, or loses against its copy, may leave files there that no snapshot names.

    :param target: The table.
    :param context: Which task writes.
    :param new_name: Makes keys that nobody else uses.
    """

    def __init__(self, target: WriterTarget, context: SinkTaskContext, new_name: Callable[[], str] = new_key) -> None:
        self._target = target
        self._context = context
        self._new_name = new_name
        self._columns = context.schema.remove_metadata()
        self._metadata, self._io = target.open()
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self._files: list[Any] = []

    def write(self, table: Any) -> None:
        """
        Take a table with the columns of the schema, in any order.

        :raises StorageError: if files cannot be written.
        """
        if not table.num_rows:
            return
        self._waiting.append(table.select(self._columns.names).cast(self._columns))
        self._waiting_bytes += table.nbytes
        if self._waiting_bytes >= self._target.buffer_bytes:
            self._flush()

    def prepare_commit(self) -> list[dict[str, Any]]:
        """
        Finish all files and return what commits them.

        :raises StorageError: if files cannot be written.
        """
        self._flush()
        committable = IcebergCommittable(
            lineage=self._target.lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            files=tuple(encode_data_file(file) for file in self._files),
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Delete what was written; what cannot be deleted stays, and no snapshot names it."""
        for file in self._files:
            try:
                self._io.delete(file.file_path)
            except Exception as error:
                log.warning("A data file of %s stays without a snapshot: %s", self._target.table, self._told(error))
        self._files.clear()
        self._waiting.clear()

    def _flush(self) -> None:
        if not self._waiting:
            return
        import pyarrow as pa
        from pyiceberg.io.pyarrow import write_file

        table = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        try:
            for file in write_file(self._io, self._metadata, self._tasks(table)):
                file.spec_id = self._metadata.default_spec_id
                self._files.append(file)
        except Exception as error:
            raise StorageError(
                f"The data files of the Iceberg table {self._target.table} cannot be written: {self._told(error)}"
            ) from harmless(error, self._target.io.reveal())

    def _tasks(self, table: Any) -> Iterator[Any]:
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        from airflow_provider_statecheck.spark.sinks.iceberg.named_tasks import NamedWriteTask

        columns = pyarrow_to_schema(
            table.schema,
            name_mapping=self._metadata.schema().name_mapping,
            format_version=self._metadata.format_version,
        )
        for number, (partition, rows) in enumerate(self._partitions(table)):
            yield NamedWriteTask(
                write_uuid=uuid.uuid4(),
                task_id=number,
                schema=columns,
                record_batches=rows.combine_chunks().to_batches(),
                partition_key=partition,
                name=self._name(),
            )

    def _partitions(self, table: Any) -> Iterator[tuple[Any, Any]]:
        from pyiceberg.io.pyarrow import _determine_partitions

        spec = self._metadata.spec()
        if spec.is_unpartitioned():
            yield None, table
            return
        for found in _determine_partitions(spec, self._metadata.schema(), table):
            yield found.partition_key, found.arrow_table_partition

    def _name(self) -> str:
        return data_file_name(self._target.lineage, self._context.epoch, self._context.subtask, self._new_name())

    def _told(self, error: Exception) -> str:
        return f"{type(error).__name__}: {conceal(str(error), self._target.io.reveal())}"
