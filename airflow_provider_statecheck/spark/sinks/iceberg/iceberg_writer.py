"""Task side of an Iceberg sink: data files and their committables."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext, TaskCommittable, last_rows, require_key_values
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.tables.iceberg import encode_data_file, portable_metadata, storage_properties_of
from airflow_provider_statecheck.storage.schemes import conceal, harmless

log = logging.getLogger(__name__)
_PREFIX = "statecheck-"
_KIND = "iceberg"


class IcebergSinkWriter:
    """
    Writes data files into the data directory of a table.

    A failed or duplicate task may leave orphan files there.

    :param target: Table to write to.
    :param context: Spark task that writes.
    :param new_name: Function that returns unique keys.
    """

    def __init__(self, target: WriterTarget, context: SinkTaskContext, new_name: Callable[[], str] = new_key) -> None:
        self._target = target
        self._context = context
        self._new_name = new_name
        self._columns = context.schema.remove_metadata()
        self._metadata, self._io = target.open()
        self._buffered: list[Any] = []
        self._buffered_bytes = 0
        self._files: list[Any] = []

    def write(self, table: Any) -> None:
        """
        Write a table with the columns of the schema, in any order.

        :raises UnsupportedStateError: if a key of an upsert is null or missing.
        :raises StorageError: if the storage fails.
        """
        if not table.num_rows:
            return
        require_key_values(table, self._target.upsert_by)
        self._buffered.append(table.select(self._columns.names).cast(self._columns))
        self._buffered_bytes += table.nbytes
        if self._buffered_bytes >= self._target.buffer_bytes:
            self._flush()

    def prepare_commit(self) -> list[dict[str, Any]]:
        """
        Finish all files and return their committable.

        :raises StorageError: if the storage fails.
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
        """Delete the written files; files that cannot be deleted remain as orphans."""
        for file in self._files:
            try:
                self._io.delete(file.file_path)
            except Exception as error:
                log.warning("Orphan data file of %s was not deleted: %s", self._target.table, self._described(error))
        self._files.clear()
        self._buffered.clear()

    def _flush(self) -> None:
        if not self._buffered:
            return
        import pyarrow as pa
        from pyiceberg.io.pyarrow import write_file

        table = pa.concat_tables(self._buffered)
        if self._target.upsert_by:
            # The order of rows of a key would be lost if they are in files of different partitions.
            table = last_rows(table, self._target.upsert_by)
        self._buffered, self._buffered_bytes = [], 0
        try:
            for file in write_file(self._io, self._metadata, self._write_tasks(table)):
                file.spec_id = self._metadata.default_spec_id
                self._files.append(file)
        except Exception as error:
            raise StorageError(
                f"Cannot write data files of the Iceberg table {self._target.table}: {self._described(error)}"
            ) from harmless(error, self._target.io.reveal())

    def _write_tasks(self, table: Any) -> Iterator[Any]:
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        from airflow_provider_statecheck.spark.tables.iceberg_tasks import NamedWriteTask

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

    def _described(self, error: Exception) -> str:
        return f"{type(error).__name__}: {conceal(str(error), self._target.io.reveal())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterTarget:
    """Properties of a table that a task needs for writing."""

    table: str
    metadata: str
    """Table metadata as JSON, without snapshots."""
    io: HiddenOptions
    """Properties of the table's storage; may contain credentials."""
    lineage: str
    buffer_bytes: int
    """Size in bytes of the rows that a task buffers."""
    upsert_by: tuple[str, ...] = ()
    """Key columns for upserts; empty for appends."""

    @classmethod
    def of(cls, table: Any, shown: str, **settings: Any) -> WriterTarget:
        """
        Return the properties of a loaded table.

        :param settings: The other fields.
        :raises UnsupportedStateError: if tasks cannot access the storage of the table.
        """
        return cls(
            table=shown,
            metadata=portable_metadata(table),
            io=storage_properties_of(table, shown),
            **settings,
        )

    def open(self) -> tuple[Any, Any]:
        """Return the metadata and the file IO of the table."""
        from pyiceberg.io import load_file_io
        from pyiceberg.table.metadata import TableMetadataUtil

        metadata = TableMetadataUtil.parse_raw(self.metadata)
        return metadata, load_file_io(self.io.reveal(), metadata.location)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergCommittable(TaskCommittable):
    """Data files of one task."""

    KIND: ClassVar[str] = "a committable of an Iceberg sink"

    files: tuple[Mapping[str, Any], ...]
    """Results of :func:`encode_data_file`."""

    @property
    @override
    def has_output(self) -> bool:
        return bool(self.files)

    @override
    def to_json(self) -> dict[str, Any]:
        return {**TaskCommittable.to_json(self), "kind": _KIND}

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        if document["kind"] != _KIND:
            raise ValueError(document["kind"])
        return {"files": tuple(dict(file) for file in document["files"])}


def data_file_name(lineage: str, epoch: int, subtask: int, key: str) -> str:
    """
    Return the name of a data file without its extension.

    :param key: Unique key of 32 hex characters.
    """
    return f"{_PREFIX}{lineage}-e{epoch}-{subtask}-{key}"


def is_file_of(file: Any, lineage: str) -> bool:
    """Return whether a sink has written a data file, according to its name."""
    return str(file.file_path).rpartition("/")[2].startswith(f"{_PREFIX}{lineage}-")
