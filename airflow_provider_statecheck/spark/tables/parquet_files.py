"""Parquet files as Python reads them: their bytes, their row groups, and batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from airflow_provider_statecheck.storage.failures import RetryPolicy

_BATCH_BYTES = 8 * 1024 * 1024
_MAX_BATCH_ROWS = 64 * 1024


def open_file(filesystem: Any, path: str, shown: str) -> tuple[Any, int]:
    """
    Open a file of an fsspec filesystem and return it with its size.

    :param shown: Name of the file in messages, without credentials.
    :raises FileNotFoundError: if there is no such file.
    """
    # Without a cache: Parquet's reads are exact and already merge adjacent columns.
    file = RetryPolicy().call(lambda: filesystem.open(path, "rb", cache_type="none"), shown)
    size = int(file.seek(0, 2))
    file.seek(0)
    return file, size


def consecutive(sizes: Sequence[int], limit: int) -> Iterator[range]:
    """Yield ranges of consecutive elements that have at most a size together, or of single larger ones."""
    start, total = 0, 0
    for position, size in enumerate(sizes):
        if position > start and total + size > limit:
            yield range(start, position)
            start, total = position, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


def group_sizes(metadata: Any) -> list[int]:
    """Return the compressed size of each row group."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in groups]


def batches_of(parquet: Any, groups: Iterable[int], columns: Sequence[str] | None = None) -> Iterator[Any]:
    """
    Yield the rows of row groups in batches of bounded size.

    :param parquet: An open ``pyarrow.parquet.ParquetFile``.
    :param columns: Names of columns; all for ``None``.
    """
    for group in groups:
        rows = rows_per_batch(parquet.metadata.row_group(group))
        yield from parquet.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)


def rows_per_batch(group: Any) -> int:
    """Return the number of rows of a row group that are read at a time."""
    return int(min(_MAX_BATCH_ROWS, max(1, group.num_rows * _BATCH_BYTES // max(1, group.total_byte_size))))
