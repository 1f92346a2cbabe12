"""Task side of the Delta sink: data files and their statistics."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.spark.sinks.data_files import DataFileWriter, FileLayout, WrittenFile
from airflow_provider_statecheck.spark.sinks.delta.delta_checks import file_schema
from airflow_provider_statecheck.spark.sinks.delta.delta_table import DeltaCommittable, DeltaFile, DeltaFiles, data_file
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext, encode_schema

# As long as other writers make them.
_LONGEST_TEXT = 32


def statistics_of(metadata: Any) -> str:
    """
    Return the statistics of a Parquet file as the log of a table has them.

    Bounds are given for whole numbers, texts and dates; those of other types differ between readers in what they count as
    the least and the greatest value.

    :param metadata: As ``pyarrow.parquet.read_metadata`` returns it.
    """
    columns = [_column(metadata, index) for index in range(metadata.num_columns)]
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


def _column(metadata: Any, index: int) -> tuple[str, Any, Any, int] | None:
    column = metadata.schema.column(index)
    groups = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
    # The leaves of nested columns count differently from one writer to the next.
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
    return column.name, _lower(lowest), _upper(highest), nulls


def _lower(value: Any) -> Any:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else _plain(value)


def _upper(value: Any) -> Any:
    if isinstance(value, str):
        # The beginning of a longer text is less than the text.
        return value if len(value) <= _LONGEST_TEXT else None
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    is_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return value.isoformat() if is_date else None


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
