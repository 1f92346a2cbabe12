"""Write a partition of a DataFrame as Parquet files through fsspec, inside a Spark task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.spark.snapshots.executor_files import ExecutorFiles, scratch_directory
from airflow_provider_statecheck.spark.snapshots.manifest import SnapshotFile, footer_digest

HANDLES = "name string, size_bytes bigint, footer_sha256 string, rows bigint"
"""What a task tells of each file, as a schema of Spark."""

_ROW_GROUP_BYTES = 128 * 1024 * 1024
_FILE_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """
    Writes what a task is given and returns one row for each file.

    A task that fails, or loses against its copy, leaves files whose rows never reach the driver: nothing names them.
    """

    files: ExecutorFiles
    schema: Any
    """Arrow schema of the files."""
    write_id: str
    """Differs from one write to the next, as numbers of partitions and tasks do not."""
    row_group_bytes: int = _ROW_GROUP_BYTES
    file_bytes: int = _FILE_BYTES

    def write(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Write all record batches of a partition.

        :param batches: As Spark gives them.
        :return: Record batches of the schema :data:`HANDLES`.
        """
        groups = _grouped(batches, self.row_group_bytes)
        group = next(groups, None)
        number = 0
        while group is not None:
            with scratch_directory() as folder:
                local = Path(folder) / "part.parquet"
                rows, group = self._fill(local, group, groups)
                yield _row(self._publish(local, number), rows)
            number += 1

    def _fill(self, local: Path, group: list[Any] | None, groups: Iterator[list[Any]]) -> tuple[int, list[Any] | None]:
        import pyarrow as pa

        rows = 0
        with local.open("wb") as sink, self._parquet(sink) as writer:
            while group is not None and sink.tell() < self.file_bytes:
                table = pa.Table.from_batches([_as_stored(batch, self.schema) for batch in group])
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                rows += table.num_rows
                group = next(groups, None)
        return rows, group

    def _parquet(self, sink: Any) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(sink, self.schema, compression="snappy", write_page_checksum=True)

    def _publish(self, local: Path, number: int) -> SnapshotFile:
        name = _file_name(self.write_id, number)
        size_bytes = local.stat().st_size
        with local.open("rb") as file:
            digest = footer_digest(_ranges(file), str(local), size_bytes)
        self.files.publish(local, name)
        return SnapshotFile(name=name, size_bytes=size_bytes, footer_sha256=digest)


def write_partition(writer: PartitionWriter, batches: Iterator[Any]) -> Iterator[Any]:
    """Write a partition and return one row for each of its files."""
    return writer.write(batches)


def _grouped(batches: Iterator[Any], limit: int) -> Iterator[list[Any]]:
    group: list[Any] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        group.append(batch)
        size += batch.nbytes
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group


def _as_stored(batch: Any, schema: Any) -> Any:
    return batch if batch.schema.equals(schema, check_metadata=True) else batch.cast(schema)


def _file_name(write_id: str, number: int) -> str:
    from pyspark import TaskContext

    task = TaskContext.get()
    partition, attempt = (task.partitionId(), task.taskAttemptId()) if task else (0, 0)
    return f"part-{partition:05d}-{attempt}-{number}-{write_id}.parquet"


def _ranges(file: Any) -> Any:
    def read(start: int, end: int) -> bytes:
        file.seek(start)
        return bytes(file.read(end - start))

    return read


def _row(file: SnapshotFile, rows: int) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict(
        {
            "name": [file.name],
            "size_bytes": pa.array([file.size_bytes], pa.int64()),
            "footer_sha256": [file.footer_sha256],
            "rows": pa.array([rows], pa.int64()),
        }
    )
