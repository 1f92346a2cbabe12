"""The rows that tasks staged as Parquet files, read again by the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.committable import Committable, StagedFile
from airflow_provider_statecheck.spark.sinks.names import staging_directory
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, why_gone
from airflow_provider_statecheck.spark.snapshots.executor_files import ExecutorFiles, HiddenOptions

_ROWS_AT_ONCE = 65536


def staged_rows(files: TargetFiles, committable: Committable) -> Iterator[Any]:
    """
    Read what a task staged, in the order in which it was written.

    :return: Arrow tables.
    :raises CorruptStateError: if a file is gone or was changed.
    :raises StorageError: if the storage fails.
    """
    for file in committable.files:
        rows = 0
        for table in _tables(files, file):
            rows += table.num_rows
            yield table
        if rows != file.rows:
            raise CorruptStateError(
                f"Expected {file.rows} rows in the staged file {file.staged} of {files.target}, found {rows}; somebody changed it. "
                "Restore from an earlier checkpoint, or start over."
            )


def _tables(files: TargetFiles, file: StagedFile) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = f"{staging_directory(files.lineage)}/{file.staged}"
    place = ExecutorFiles(files.storage.base_uri, HiddenOptions(files.storage.options))
    if files.size(name) is None:
        raise CorruptStateError(
            f"Expected the staged file {name} in {files.target}, found none; {why_gone(files.is_local)}"
        )
    with place.failures_told(name), place.open(name, file.size_bytes) as opened:
        parquet = pq.ParquetFile(opened, page_checksum_verification=True)
        for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE):
            yield pa.Table.from_batches([batch])
