"""Task side of a Delta sink: data files and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.spark.sinks.delta.delta_files import DeltaCommittable, DeltaFiles, data_file
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext, encode_schema
from airflow_provider_statecheck.spark.sinks.target_files import staged_name, staging_directory
from airflow_provider_statecheck.spark.sinks.upserts import require_key_values
from airflow_provider_statecheck.spark.tables.data_files import DataFileWriter, FileLayout, WrittenFile
from airflow_provider_statecheck.spark.tables.delta import DeltaFile
from airflow_provider_statecheck.spark.tables.delta_columns import file_schema, statistics_of


class DeltaSinkWriter:
    """
    Writes data files under their permanent names.

    A failed or duplicate task leaves orphan files.

    :param files: Files of the table.
    :param layout: Layout of the files.
    :param generation: Generation of the attempt.
    :param context: Spark task that writes.
    :param keys: Key columns for upserts, whose files wait in the staging directory; empty for appends.
    :param new_name: Function that returns unique keys.
    """

    def __init__(
        self,
        files: DeltaFiles,
        layout: FileLayout,
        generation: int,
        context: SinkTaskContext,
        keys: Sequence[str] = (),
        new_name: Callable[[], str] = new_key,
    ) -> None:
        self._lineage = files.lineage
        self._context = context
        self._schema = file_schema(context.schema)
        self._keys = keys

        def name(directory: str) -> str:
            if keys:
                return f"{staging_directory(files.lineage)}/{staged_name(context.epoch, new_name())}"
            return data_file(files.lineage, directory, generation, context.epoch, context.subtask, new_name())

        self._rows = DataFileWriter(files, layout, self._schema, name)

    def write(self, table: Any) -> None:
        """
        Write a table with the columns of the schema, in any order.

        :raises UnsupportedStateError: if a key is null or missing.
        """
        require_key_values(table, self._keys)
        self._rows.write(table)

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files and return their committable."""
        committable = DeltaCommittable(
            lineage=self._lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            schema=encode_schema(self._schema),
            files=tuple(_delta_file(file) for file in self._rows.finish()),
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Delete the written files; files that cannot be deleted are orphans, and a later sweep deletes them."""
        self._rows.abort()


def _delta_file(file: WrittenFile) -> DeltaFile:
    return DeltaFile(
        name=file.name,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
        statistics=statistics_of(file.metadata),
    )
