"""The writer of a Delta sink: files in the directory of the table that its log does not name yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.spark.sinks.committable import encode_schema
from airflow_provider_statecheck.spark.sinks.data_file_writer import DataFileWriter, FileLayout, WrittenFile
from airflow_provider_statecheck.spark.sinks.delta.committable import DeltaCommittable, DeltaFile
from airflow_provider_statecheck.spark.sinks.delta.files import DeltaFiles
from airflow_provider_statecheck.spark.sinks.delta.names import data_file
from airflow_provider_statecheck.spark.sinks.delta.schemas import file_schema
from airflow_provider_statecheck.spark.sinks.delta.statistics import statistics_of
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext


class DeltaSinkWriter:
    """
    Writes whole files under the names that they keep.

    A task that fails, or loses against its copy, leaves files that no version of the table has.

    :param files: The table.
    :param layout: How rows are laid out.
    :param generation: Of the attempt.
    :param context: Which task writes.
    :param new_name: Makes keys that nobody else uses.
    """

    def __init__(
        self,
        files: DeltaFiles,
        layout: FileLayout,
        generation: int,
        context: SinkTaskContext,
        new_name: Callable[[], str] = new_key,
    ) -> None:
        self._lineage = files.lineage
        self._context = context
        self._schema = file_schema(context.schema)

        def name(directory: str) -> str:
            return data_file(files.lineage, directory, generation, context.epoch, context.subtask, new_name())

        self._rows = DataFileWriter(files, layout, self._schema, name)

    def write(self, table: Any) -> None:
        """Take a table with the columns of the schema, in any order."""
        self._rows.write(table)

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files and return what commits them."""
        committable = DeltaCommittable(
            lineage=self._lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            schema=encode_schema(self._schema),
            files=tuple(_described(file) for file in self._rows.finish()),
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Delete what was written; what cannot be deleted now is swept later, because nothing names it."""
        self._rows.abort()


def _described(file: WrittenFile) -> DeltaFile:
    return DeltaFile(
        name=file.name,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
        statistics=statistics_of(file.metadata),
    )
