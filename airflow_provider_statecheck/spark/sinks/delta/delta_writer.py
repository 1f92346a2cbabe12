"""Task side of a Delta sink: data files and their statistics."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.spark.sinks.delta.delta_files import DeltaCommittable, DeltaFiles, data_file
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext, encode_schema
from airflow_provider_statecheck.spark.sinks.target_files import staged_name, staging_directory
from airflow_provider_statecheck.spark.sinks.upserts import require_key_values
from airflow_provider_statecheck.spark.tables.data_files import DataFileWriter, FileLayout, WrittenFile
from airflow_provider_statecheck.spark.tables.delta import DeltaFile, file_schema

# The length of string statistics that other Delta writers use.
_MAX_STRING_LENGTH = 32


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


def statistics_of(metadata: Any) -> str:
    """
    Return the statistics of a Parquet file in the format of the transaction log.

    Only integers, strings and dates have bounds; readers differ in the order of other types.

    :param metadata: Result of ``pyarrow.parquet.read_metadata``.
    """
    columns = [_column_statistics(metadata, index) for index in range(metadata.num_columns)]
    plain = [column for column in columns if column is not None]
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: low for name, low, _, _ in plain if low is not None},
            "maxValues": {name: high for name, _, high, _ in plain if high is not None},
            "nullCount": {name: nulls for name, _, _, nulls in plain},
        },
        ensure_ascii=False,
    )


def _column_statistics(metadata: Any, index: int) -> tuple[str, Any, Any, int] | None:
    column = metadata.schema.column(index)
    groups = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
    # Writers count the values of nested columns differently.
    if (
        column.path != column.name
        or column.max_repetition_level
        or any(s is None or not s.has_null_count for s in groups)
    ):
        return None
    nulls = sum(statistics.null_count for statistics in groups)
    filled = [statistics for statistics in groups if statistics.num_values]
    if any(not statistics.has_min_max for statistics in filled):
        return column.name, None, None, nulls
    lowest = min((s.min for s in filled), default=None)
    highest = max((s.max for s in filled), default=None)
    return column.name, _lower_bound(lowest), _upper_bound(highest), nulls


def _lower_bound(value: Any) -> Any:
    return value[:_MAX_STRING_LENGTH] if isinstance(value, str) else _plain_bound(value)


def _upper_bound(value: Any) -> Any:
    if isinstance(value, str):
        # A truncated string would be less than the maximum.
        return value if len(value) <= _MAX_STRING_LENGTH else None
    return _plain_bound(value)


def _plain_bound(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    is_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return value.isoformat() if is_date else None


def _delta_file(file: WrittenFile) -> DeltaFile:
    return DeltaFile(
        name=file.name,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
        statistics=statistics_of(file.metadata),
    )
