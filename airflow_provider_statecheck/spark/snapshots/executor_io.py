"""Parquet files of a snapshot, written and read on executors, and options that are never shown."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.masking import remember_secrets
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.tables.data_files import (
    FILE_BYTES,
    ROW_GROUP_BYTES,
    OutputFile,
    scratch_directory,
)
from airflow_provider_statecheck.spark.tables.schemas import (
    TaskReader,
    batches_of,
    concealed_failures,
    group_sizes,
    open_file,
    read_tasks,
)
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile
from airflow_provider_statecheck.storage.uris import open_filesystem, redact, secrets_in

# Each part of an upload takes tens of MiB of memory.
_CONCURRENT_PARTS = 2


class HiddenOptions:
    """
    Options of a filesystem, which may contain credentials: picklable, but not part of any text.

    :param options: Options as for :meth:`CheckpointStorage.open`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        remember_secrets(secrets_in(self._options))

    def reveal(self) -> dict[str, Any]:
        """Return the options."""
        return dict(self._options)

    def __repr__(self) -> str:
        return "HiddenOptions(***)"


def hidden_options(options: Mapping[str, Any] | None) -> HiddenOptions | None:
    """Return options that a source or a sink keeps in a form that is never shown; ``None`` for none."""
    return None if options is None else HiddenOptions(options)


@dataclass(frozen=True, slots=True)
class ExecutorFiles:
    """The data directory of a snapshot, as executors access it."""

    data_uri: str
    options: HiddenOptions

    def publish(self, local: Path, name: str) -> None:
        """
        Copy a finished local file into the directory.

        The file is uploaded as a whole: on some filesystems, a stream that is closed by an error publishes a partial
        file.
        """
        with self.redacted_failures(name):
            filesystem = self._filesystem()
            path, limits = self._path(filesystem, name), _upload_limits(filesystem)
            # The name is unique, so a retry has no side effect.
            RetryPolicy().call(lambda: filesystem.put_file(str(local), path, **limits), self._redacted_uri(name))

    def open(self, name: str, size_bytes: int) -> Any:
        """
        Open a file for reading.

        :raises CorruptStateError: if it is missing or has another size.
        :raises StorageError: if the storage fails.
        """
        filesystem = self._filesystem()
        path = self._path(filesystem, name)
        try:
            file, found = open_file(filesystem, path, self._redacted_uri(name))
        except FileNotFoundError as error:
            raise CorruptStateError(
                f"Expected the file {self._redacted_uri(name)} of a snapshot, found none; it was deleted."
            ) from error
        if found != size_bytes:
            file.close()
            raise CorruptStateError(
                f"Expected {size_bytes} bytes in {self._redacted_uri(name)}, found {found}; the file was changed after "
                "it was written."
            )
        return file

    def redacted_failures(self, name: str) -> AbstractContextManager[None]:
        """
        Return a context that replaces errors of the storage client by errors without credentials.

        :raises StorageError: if the storage fails, or the file cannot be read.
        """
        return concealed_failures(f"The storage failed at {self._redacted_uri(name)}", self.options.reveal())

    def _filesystem(self) -> Any:
        return open_filesystem(self.data_uri, self.options.reveal())

    def _path(self, filesystem: Any, name: str) -> str:
        return f"{str(filesystem._strip_protocol(self.data_uri)).rstrip('/')}/{name}"

    def _redacted_uri(self, name: str) -> str:
        return f"{redact(self.data_uri)}/{name}"


def _upload_limits(filesystem: Any) -> dict[str, int]:
    upload = getattr(filesystem, "_put_file", None)
    if upload is None or "max_concurrency" not in inspect.signature(upload).parameters:
        return {}
    return {"max_concurrency": _CONCURRENT_PARTS}


_MAX_TASK_BYTES = 128 * 1024 * 1024
MIN_TASK_BYTES = 4 * 1024 * 1024
_WANTED_TASKS = 32

Piece = tuple[str, int, int, int]
"""Name and size of a file, index of a part of it, and number of its parts."""


def plan_tasks(files: Sequence[SnapshotFile], least: int = 1) -> list[list[Piece]]:
    """
    Distribute files to tasks of about equal size: large files in parts, small files together.

    :param least: Number of tasks that there are at least, if there are as many files.
    """
    total = sum(file.size_bytes for file in files)
    pieces = sorted((piece for file in files for piece in _pieces(file)), key=_piece_bytes, reverse=True)
    tasks: list[list[Piece]] = [[] for _ in range(max(_count(total, _task_bytes(total)), min(least, len(pieces))))]
    lightest = [(0, number) for number in range(len(tasks))]
    for piece in pieces:
        load, number = heapq.heappop(lightest)
        tasks[number].append(piece)
        heapq.heappush(lightest, (load + _piece_bytes(piece), number))
    return [task for task in tasks if task]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReader(TaskReader):
    """Reader of a snapshot inside Spark's tasks."""

    files: ExecutorFiles

    @override
    def read_task(self, task: Any) -> Iterator[Any]:
        for piece in task:
            yield from self._read_piece(*piece)

    def _read_piece(self, name: str, size_bytes: int, part: int, parts: int) -> Iterator[Any]:
        with (
            self.files.redacted_failures(name),
            self.files.open(name, size_bytes) as source,
            parquet.ParquetFile(source, pre_buffer=True, page_checksum_verification=True) as file,
        ):
            for batch in batches_of(file, _groups_of_part(file.metadata, part, parts)):
                yield _cast(batch, self.schema)


def read_snapshot(reader: SnapshotReader, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows of tasks; fingerprints recognise readers of snapshots in a plan by this function."""
    return read_tasks(reader, batches)


def _task_bytes(total: int) -> int:
    return min(_MAX_TASK_BYTES, max(MIN_TASK_BYTES, total // _WANTED_TASKS))


def _pieces(file: SnapshotFile) -> Iterator[Piece]:
    parts = _count(file.size_bytes, _MAX_TASK_BYTES)
    for part in range(parts):
        yield file.name, file.size_bytes, part, parts


def _piece_bytes(piece: Piece) -> int:
    _, size_bytes, _, parts = piece
    return size_bytes // parts


def _count(size_bytes: int, target: int) -> int:
    return max(1, -(-size_bytes // target))


def _groups_of_part(metadata: Any, part: int, parts: int) -> list[int]:
    # A row group belongs to the part that contains its middle, so each group is read exactly once.
    sizes = group_sizes(metadata)
    total, offset, groups = max(1, sum(sizes)), 0, []
    for group, size in enumerate(sizes):
        if min(parts - 1, (2 * offset + size) * parts // (2 * total)) == part:
            groups.append(group)
        offset += size
    return groups


def _cast(batch: Any, schema: Any) -> Any:
    return batch if batch.schema.equals(schema, check_metadata=True) else batch.cast(schema)


HANDLES = "name string, size_bytes bigint, footer_sha256 string, rows bigint"
"""Spark schema of the rows that describe the written files."""


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """
    Writer of a snapshot inside Spark's tasks, which returns a row for each file.

    A task that fails, or loses to a speculative copy, leaves files that no manifest references.
    """

    files: ExecutorFiles
    schema: Any
    """Arrow schema of the files."""
    write_id: str
    """Unique id of the write, part of the file names: numbers of partitions and tasks repeat."""
    row_group_bytes: int = ROW_GROUP_BYTES
    file_bytes: int = FILE_BYTES

    def write(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Write the record batches of a partition.

        :param batches: Record batches from Spark.
        :return: Record batches of the schema :data:`HANDLES`.
        """
        rows = (batch for batch in batches if batch.num_rows)
        first, number = next(rows, None), 0
        while first is not None:
            with scratch_directory() as folder:
                file = OutputFile(Path(folder) / "part.parquet", self.schema, "snappy")
                self._fill(file, chain((first,), rows))
                yield self._publish(file, number)
            first, number = next(rows, None), number + 1

    def _fill(self, file: OutputFile, batches: Iterator[Any]) -> None:
        try:
            for batch in batches:
                file.add(pa.Table.from_batches([_cast(batch, self.schema)]))
                if file.buffered_bytes >= self.row_group_bytes:
                    file.flush()
                if file.written_bytes >= self.file_bytes:
                    break
            file.finish(is_synced=False)
        except BaseException:
            file.discard()
            raise

    def _publish(self, file: OutputFile, number: int) -> Any:
        name = _file_name(self.write_id, number)
        size_bytes, digest = file.path.stat().st_size, file.digest()
        self.files.publish(file.path, name)
        return _handle_row(SnapshotFile(name=name, size_bytes=size_bytes, footer_sha256=digest), file.rows)


def _file_name(write_id: str, number: int) -> str:
    from pyspark import TaskContext

    task = TaskContext.get()
    partition, attempt = (task.partitionId(), task.taskAttemptId()) if task else (0, 0)
    return f"part-{partition:05d}-{attempt}-{number}-{write_id}.parquet"


def _handle_row(file: SnapshotFile, rows: int) -> Any:
    return pa.RecordBatch.from_pydict(
        {
            "name": [file.name],
            "size_bytes": pa.array([file.size_bytes], pa.int64()),
            "footer_sha256": [file.footer_sha256],
            "rows": pa.array([rows], pa.int64()),
        }
    )
