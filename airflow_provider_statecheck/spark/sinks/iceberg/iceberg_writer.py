"""Task side of an Iceberg sink: data files and their committables."""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import CorruptStateError, StorageError
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import portable_metadata, storage_properties_of
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_ledger import TableCommit, branch_of
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext, TaskCommittable
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.schemes import conceal, harmless

log = logging.getLogger(__name__)
_PREFIX = "statecheck-"
_KIND = "iceberg"
_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
_DECODERS: Mapping[str, Callable[[str], Any]] = {"bytes": base64.b64decode, "decimal": Decimal, "uuid": UUID}


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

        :raises StorageError: if the storage fails.
        """
        if not table.num_rows:
            return
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

    @classmethod
    def of(cls, table: Any, shown: str, lineage: str, buffer_bytes: int) -> WriterTarget:
        """
        Return the properties of a loaded table.

        :raises UnsupportedStateError: if tasks cannot access the storage of the table.
        """
        return cls(
            table=shown,
            metadata=portable_metadata(table),
            io=storage_properties_of(table, shown),
            lineage=lineage,
            buffer_bytes=buffer_bytes,
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

    def to_json(self) -> dict[str, Any]:
        """Return the committable as plain JSON values."""
        return {**TaskCommittable.to_json(self), "kind": _KIND}

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        if document["kind"] != _KIND:
            raise ValueError(document["kind"])
        return {"files": tuple(dict(file) for file in document["files"])}


def files_of(table: Any, lineage: str, commits: Sequence[TableCommit], shown: str) -> list[Any]:
    """
    Return the data files that commits of a lineage have added.

    :raises CorruptStateError: if files are missing because another writer has rewritten or deleted them.
    """
    wanted = {commit.snapshot_id for commit in commits}
    found = [file for snapshot_id, file in _data_entries(table) if snapshot_id in wanted and _is_file_of(file, lineage)]
    expected = sum(commit.files for commit in commits)
    if len(found) != expected:
        raise CorruptStateError(
            f"Expected {expected} files of {len(commits)} checkpoint(s) in the Iceberg table {shown} to remove, found "
            f"{len(found)}: another writer, such as compaction, has rewritten or deleted them. Delete the rows of this stage "
            f"from the table, drop the branch {branch_of(lineage)} and start over.",
            checkpoint_id=commits[0].checkpoint_id,
        )
    return found


def data_file_name(lineage: str, epoch: int, subtask: int, key: str) -> str:
    """
    Return the name of a data file without its extension.

    :param key: Unique key of 32 hex characters.
    """
    return f"{_PREFIX}{lineage}-e{epoch}-{subtask}-{key}"


def encode_data_file(file: Any, *, with_metrics: bool = True) -> dict[str, Any]:
    """
    Return a data file, or a position delete file, as JSON.

    :param with_metrics: Whether to include the column metrics that queries use to skip files.
    """
    document: dict[str, Any] = {
        "content": int(file.content),
        "path": file.file_path,
        "format": file.file_format.value,
        "rows": file.record_count,
        "bytes": file.file_size_in_bytes,
        "spec": file.spec_id,
        "partition": [_encode_value(file.partition[i]) for i in range(len(file.partition))],
    }
    if with_metrics:
        document |= {name: _encode_pairs(getattr(file, name)) for name in _COUNTS}
        document |= {name: _encode_pairs(getattr(file, name), _encode_bytes) for name in _BOUNDS}
        document["split_offsets"] = file.split_offsets
    return document


def decode_data_file(document: Mapping[str, Any]) -> Any:
    """Return the data file that :func:`encode_data_file` encoded."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    metrics: dict[str, Any] = {name: _decode_pairs(document.get(name)) for name in _COUNTS}
    metrics |= {name: _decode_pairs(document.get(name), base64.b64decode) for name in _BOUNDS}
    found = DataFile.from_args(
        content=DataFileContent(document["content"]),
        file_path=str(document["path"]),
        file_format=FileFormat(document["format"]),
        partition=Record(*(_decode_value(value) for value in document["partition"])),
        record_count=int(document["rows"]),
        file_size_in_bytes=int(document["bytes"]),
        key_metadata=None,
        split_offsets=document.get("split_offsets"),
        equality_ids=None,
        sort_order_id=None,
        **metrics,
    )
    found.spec_id = int(document["spec"])
    return found


def _encode_pairs(values: Mapping[int, Any] | None, encode: Any = int) -> list[list[Any]] | None:
    return None if values is None else [[int(key), encode(value)] for key, value in sorted(values.items())]


def _decode_pairs(pairs: Any, decode: Any = int) -> dict[int, Any] | None:
    return None if pairs is None else {int(key): decode(value) for key, value in pairs}


def _encode_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": _encode_bytes(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    return value


def _decode_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _DECODERS[kind](text)


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _data_entries(table: Any) -> Iterator[tuple[int | None, Any]]:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.metadata.snapshot_by_name("main")
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.snapshot_id, entry.data_file


def _is_file_of(file: Any, lineage: str) -> bool:
    # A bug in the sink must not remove files of other writers.
    return str(file.file_path).rpartition("/")[2].startswith(f"{_PREFIX}{lineage}-")
