"""Stage the rows of one Spark task as files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.data_file_writer import FileLayout
from airflow_provider_statecheck.spark.sinks.parquet_writer import ParquetSinkWriter
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles

_LAYOUT = FileLayout(compression="zstd", partition_by=(), max_file_bytes=512 * 1024 * 1024)


class SqlSinkWriter:
    """
    Writes whole files into the staging directory.

    :param files: The staging directory.
    :param keys: The columns by which rows replace others.
    :param context: Which task writes.
    """

    def __init__(self, files: TargetFiles, keys: Sequence[str], context: SinkTaskContext) -> None:
        self._keys = keys
        self._rows = ParquetSinkWriter(files, _LAYOUT, context)

    def write(self, table: Any) -> None:
        """
        Take a table with the columns of the schema, in any order.

        :raises UnsupportedStateError: if a key is null, which is equal to no other one.
        """
        empty = [name for name in self._keys if table.column(name).null_count]
        if empty:
            raise UnsupportedStateError(
                f"Expected values in the columns of upsert_by, found null in {', '.join(empty)}; leave such rows out in the stage, "
                "or fill the column."
            )
        self._rows.write(table)

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files and return what commits them."""
        return self._rows.prepare_commit()

    def abort(self) -> None:
        """Delete what was written."""
        self._rows.abort()
