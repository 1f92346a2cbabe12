"""
The writer of a Parquet sink: files that wait in its staging directory.

What it has in common with the writers of tables is in :mod:`airflow_provider_statecheck.spark.sinks.data_file_writer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.spark.sinks.committable import Committable, StagedFile, encode_schema
from airflow_provider_statecheck.spark.sinks.data_file_writer import DataFileWriter, FileLayout, WrittenFile
from airflow_provider_statecheck.spark.sinks.names import staged_name, staging_directory
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles


class ParquetSinkWriter:
    """
    Writes whole files into the staging directory.

    A task that fails, or loses against its copy, leaves files there that nothing names.

    :param files: The target.
    :param layout: How rows are laid out.
    :param context: Which task writes.
    :param new_name: Makes keys that nobody else uses.
    """

    def __init__(
        self,
        files: TargetFiles,
        layout: FileLayout,
        context: SinkTaskContext,
        new_name: Callable[[], str] = new_key,
    ) -> None:
        self._lineage = files.lineage
        self._context = context
        self._columns = context.schema.remove_metadata()
        directory = staging_directory(files.lineage)
        # The driver moves them to the directories of their partitions.
        self._rows = DataFileWriter(
            files, layout, self._columns, lambda _: f"{directory}/{staged_name(context.epoch, new_name())}"
        )

    def write(self, table: Any) -> None:
        """Take a table with the columns of the schema, in any order."""
        self._rows.write(table)

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files and return what commits them."""
        committable = Committable(
            lineage=self._lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            schema=encode_schema(self._columns),
            files=tuple(_staged(file) for file in self._rows.finish()),
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Delete what was written; what cannot be deleted now is swept later, because nothing names it."""
        self._rows.abort()


def _staged(file: WrittenFile) -> StagedFile:
    return StagedFile(
        staged=file.name.rpartition("/")[2],
        directory=file.directory,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
    )
