"""Parquet files that tasks of a sink stage until their commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.spark.sinks.sink import Committable, SinkTaskContext, StagedFile, encode_schema
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, staged_name, staging_directory
from airflow_provider_statecheck.spark.tables.data_files import DataFileWriter, FileLayout, WrittenFile


class ParquetSinkWriter:
    """
    Writes Parquet files into the staging directory.

    A failed or duplicate task leaves orphan files there.

    :param files: Files of the target.
    :param layout: Layout of the files.
    :param context: Spark task that writes.
    :param new_name: Function that returns unique keys.
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
        self._layout = layout
        directory = staging_directory(files.lineage)
        # The driver moves the files to their partition directories.
        self._rows = DataFileWriter(
            files, layout, self._columns, lambda _: f"{directory}/{staged_name(context.epoch, new_name())}"
        )

    def write(self, table: Any) -> None:
        """Write a table with the columns of the schema, in any order."""
        self._rows.write(table)

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files and return their committable."""
        committable = Committable(
            lineage=self._lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            schema=encode_schema(self._columns),
            partition_by=self._layout.partition_by,
            files=tuple(_staged_file(file) for file in self._rows.finish()),
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Delete the written files; files that cannot be deleted are orphans, and a later sweep deletes them."""
        self._rows.abort()


def _staged_file(file: WrittenFile) -> StagedFile:
    return StagedFile(
        staged=file.name.rpartition("/")[2],
        directory=file.directory,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
    )
