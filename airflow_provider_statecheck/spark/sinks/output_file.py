"""One Parquet file while it is written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.spark.snapshots.manifest import footer_digest

ROW_GROUP_BYTES = 128 * 1024 * 1024
"""How much of a file waits in memory before it is written."""


class OutputFile:
    """
    Collects tables and writes them as row groups.

    :param path: A local file, which only this object writes.
    :param schema: Arrow schema of the tables.
    :param compression: As Parquet names it.
    """

    def __init__(self, path: Path, schema: Any, compression: str) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.rows = 0
        self.waiting_bytes = 0
        self._waiting: list[Any] = []
        self._stream = path.open("xb")
        self._metadata: list[Any] = []
        self._parquet = pq.ParquetWriter(
            self._stream,
            schema,
            compression=compression,
            write_page_checksum=True,
            metadata_collector=self._metadata,
        )

    @property
    def written_bytes(self) -> int:
        """Return how many bytes the file has so far."""
        return self._stream.tell()

    @property
    def metadata(self) -> Any:
        """Return what the footer of the finished file says, with the statistics of its columns."""
        return self._metadata[0]

    def add(self, table: Any) -> None:
        """Take a table; it may wait for others."""
        self._waiting.append(table)
        self.waiting_bytes += table.nbytes
        self.rows += table.num_rows

    def flush(self) -> None:
        """Write what waits as one row group."""
        import pyarrow as pa

        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._waiting, self.waiting_bytes = [], 0
            self._parquet.write_table(table, row_group_size=max(1, table.num_rows))

    def finish(self) -> None:
        """Write the rest and make the file durable on this machine."""
        self.flush()
        self._parquet.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def digest(self) -> str:
        """Return the digest of the finished file's footer."""
        with self.path.open("rb") as file:

            def read(start: int, end: int) -> bytes:
                file.seek(start)
                return file.read(end - start)

            return footer_digest(read, str(self.path), self.path.stat().st_size)

    def discard(self) -> None:
        """Delete the file, finished or not."""
        # Its end would else be written when it is forgotten, into a file that is closed.
        with suppress(OSError, ValueError):
            self._parquet.close()
        with suppress(OSError):
            self._stream.close()
        self.path.unlink(missing_ok=True)
