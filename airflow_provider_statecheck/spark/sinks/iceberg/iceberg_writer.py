"""Task side of the Iceberg sink: data files and their ownership."""

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

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
_KINDS: Mapping[str, Callable[[str], Any]] = {"bytes": base64.b64decode, "decimal": Decimal, "uuid": UUID}


def encode_data_file(file: Any, *, with_metrics: bool = True) -> dict[str, Any]:
    """
    Return a data file, or a file of deleted positions, as JSON.

    :param with_metrics: Whether to tell what is known of the columns, by which queries pass over files.
    """
    document: dict[str, Any] = {
        "content": int(file.content),
        "path": file.file_path,
        "format": file.file_format.value,
        "rows": file.record_count,
        "bytes": file.file_size_in_bytes,
        "spec": file.spec_id,
        "partition": [_plain(file.partition[i]) for i in range(len(file.partition))],
    }
    if with_metrics:
        document |= {name: _pairs(getattr(file, name)) for name in _COUNTS}
        document |= {name: _pairs(getattr(file, name), _text) for name in _BOUNDS}
        document["split_offsets"] = file.split_offsets
    return document


def decode_data_file(document: Mapping[str, Any]) -> Any:
    """Return the data file that was encoded."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    metrics: dict[str, Any] = {name: _restored_pairs(document.get(name)) for name in _COUNTS}
    metrics |= {name: _restored_pairs(document.get(name), base64.b64decode) for name in _BOUNDS}
    found = DataFile.from_args(
        content=DataFileContent(document["content"]),
        file_path=str(document["path"]),
        file_format=FileFormat(document["format"]),
        partition=Record(*(_restored(value) for value in document["partition"])),
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


def _pairs(values: Mapping[int, Any] | None, plain: Any = int) -> list[list[Any]] | None:
    return None if values is None else [[int(key), plain(value)] for key, value in sorted(values.items())]


def _restored_pairs(pairs: Any, restored: Any = int) -> dict[int, Any] | None:
    return None if pairs is None else {int(key): restored(value) for key, value in pairs}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": _text(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    return value


def _restored(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _KINDS[kind](text)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


_MARK = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergCommittable(TaskCommittable):
    """All files of one task."""

    KIND: ClassVar[str] = "a committable of an Iceberg sink"

    files: tuple[Mapping[str, Any], ...]
    """As ``encode_data_file`` gives them."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**TaskCommittable.to_json(self), "kind": _MARK}

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        if document["kind"] != _MARK:
            raise ValueError(document["kind"])
        return {"files": tuple(dict(file) for file in document["files"])}


_PREFIX = "statecheck-"


def data_file_name(lineage: str, epoch: int, subtask: int, key: str) -> str:
    """
    Return the name of a data file, without that of its format.

    :param key: 32 hex characters that nobody else uses.
    """
    return f"{_PREFIX}{lineage}-e{epoch}-{subtask}-{key}"


def files_of(table: Any, lineage: str, commits: Sequence[TableCommit], shown: str) -> list[Any]:
    """
    Return the data files that commits have added, and nobody else's.

    :raises CorruptStateError: if they are not all there: somebody has written their rows anew, or deleted them.
    """
    wanted = {commit.snapshot_id for commit in commits}
    found = [file for snapshot_id, file in _entries(table) if snapshot_id in wanted and _is_of(file, lineage)]
    expected = sum(commit.files for commit in commits)
    if len(found) != expected:
        raise CorruptStateError(
            f"Expected {expected} files of {len(commits)} checkpoint(s) in the Iceberg table {shown}, which have to be taken out, "
            f"found {len(found)}: somebody has rewritten or deleted them, as compaction does. Delete the rows of this stage "
            f"from the table, drop the branch {branch_of(lineage)} and start over.",
            checkpoint_id=commits[0].checkpoint_id,
        )
    return found


def _entries(table: Any) -> Iterator[tuple[int | None, Any]]:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.metadata.snapshot_by_name("main")
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.snapshot_id, entry.data_file


def _is_of(file: Any, lineage: str) -> bool:
    # No bug of ours may cost the files of others in the table.
    return str(file.file_path).rpartition("/")[2].startswith(f"{_PREFIX}{lineage}-")


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
