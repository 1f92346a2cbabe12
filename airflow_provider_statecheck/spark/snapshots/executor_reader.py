"""Read the Parquet files of a snapshot through fsspec, inside Spark tasks."""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.spark.snapshots.executor_files import ExecutorFiles
from airflow_provider_statecheck.spark.snapshots.manifest import SnapshotFile

_MAX_TASK_BYTES = 128 * 1024 * 1024
_MIN_TASK_BYTES = 4 * 1024 * 1024
_WANTED_TASKS = 32
_BATCH_BYTES = 8 * 1024 * 1024
_MAX_BATCH_ROWS = 64 * 1024

Piece = tuple[str, int, int, int]
"""Name and size of a file, which part of it, and of how many parts."""


def plan_tasks(files: Sequence[SnapshotFile]) -> list[list[Piece]]:
    """
    Share out files among tasks of about equal size: large files in parts, small ones together.

    :param files: What there is to read.
    """
    total = sum(file.size_bytes for file in files)
    pieces = sorted((piece for file in files for piece in _pieces(file)), key=_piece_bytes, reverse=True)
    tasks: list[list[Piece]] = [[] for _ in range(_count(total, _task_bytes(total)))]
    lightest = [(0, number) for number in range(len(tasks))]
    for piece in pieces:
        load, number = heapq.heappop(lightest)
        tasks[number].append(piece)
        heapq.heappush(lightest, (load + _piece_bytes(piece), number))
    return [task for task in tasks if task]


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads the share of one task in a snapshot."""

    files: ExecutorFiles
    schema: Any
    """Arrow schema in which Spark takes the rows."""
    packed_tasks: bytes
    """Small, so that Spark keeps it within the plan however many files there are."""

    def read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Give the rows of the tasks whose numbers arrive.

        :param batches: Record batches with one column of numbers.
        :raises CorruptStateError: if a file is missing or has another size.
        """
        tasks = unpack_tasks(self.packed_tasks)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for piece in tasks[number] if number < len(tasks) else ():
                    yield from self._read_piece(*piece)

    def _read_piece(self, name: str, size_bytes: int, part: int, parts: int) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with (
            self.files.failures_told(name),
            self.files.open(name, size_bytes) as source,
            pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True) as parquet,
        ):
            for group in _groups_of_part(parquet.metadata, part, parts):
                rows = _rows_per_batch(parquet.metadata.row_group(group))
                for batch in parquet.iter_batches(rows, row_groups=[group], use_threads=False):
                    yield _as_expected(batch, self.schema)


def read_snapshot(reader: SnapshotReader, batches: Iterator[Any]) -> Iterator[Any]:
    """Give the rows of a task; plans name this function, so that a digest of a plan can tell it from a user's."""
    return reader.read(batches)


def pack_tasks(tasks: Sequence[Sequence[Piece]]) -> bytes:
    """Return tasks in a few bytes for each file."""
    return zlib.compress(json.dumps(tasks, separators=(",", ":")).encode())


def unpack_tasks(packed: bytes) -> list[list[Piece]]:
    """Return what was packed."""
    return [
        [(str(name), size, part, parts) for name, size, part, parts in task]
        for task in json.loads(zlib.decompress(packed))
    ]


def _task_bytes(total: int) -> int:
    return min(_MAX_TASK_BYTES, max(_MIN_TASK_BYTES, total // _WANTED_TASKS))


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
    # A row group belongs to the part in which its middle lies, so each is read once whatever the parts are.
    sizes = [_stored_bytes(metadata.row_group(i)) for i in range(metadata.num_row_groups)]
    total, before, mine = max(1, sum(sizes)), 0, []
    for group, size in enumerate(sizes):
        if min(parts - 1, (2 * before + size) * parts // (2 * total)) == part:
            mine.append(group)
        before += size
    return mine


def _stored_bytes(group: Any) -> int:
    return sum(group.column(i).total_compressed_size for i in range(group.num_columns))


def _rows_per_batch(group: Any) -> int:
    return int(min(_MAX_BATCH_ROWS, max(1, group.num_rows * _BATCH_BYTES // max(1, group.total_byte_size))))


def _as_expected(batch: Any, schema: Any) -> Any:
    return batch if batch.schema.equals(schema, check_metadata=True) else batch.cast(schema)
