"""Files of text as a source: CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.spark.sources.file_source import FileSource, Paths
from airflow_provider_statecheck.spark.sources.schemas import require_schema


class TextFileSource(FileSource):
    """
    Files that do not say what is in them, each read as a whole.

    :param path: A directory, a file, a pattern, or several of them.
    :param schema: The columns and their types, as a ``StructType`` or DDL.
    :param bytes_per_increment: About how much one Spark job reads. ``"auto"`` is a 64th of all, at least 256 MiB; where
        another limit is given, it is none.
    :param files_per_increment: How many files one Spark job reads at most.
    :param columns: Which columns to read; all by default.
    :param on_change: What to do if files changed since the start of a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :param order: ``"path"``, or ``"mtime"`` to read the oldest files first.
    :param options: Options of Spark's reader.
    :raises InvalidConfigurationError: if an argument is out of its range, or there is no schema.
    """

    def __init__(
        self,
        path: Paths,
        *,
        schema: Any = None,
        bytes_per_increment: str | int | None = "auto",
        files_per_increment: int | None = None,
        columns: Sequence[str] | None = None,
        on_change: str = "fail",
        order: str = "path",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require_schema(schema, self._format.upper())
        super().__init__(
            path,
            schema=schema,
            bytes_per_increment=bytes_per_increment,
            files_per_increment=files_per_increment,
            columns=columns,
            on_change=on_change,
            order=order,
            options=options,
        )
