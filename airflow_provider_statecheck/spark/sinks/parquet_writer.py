"""Write the output of one Spark task as Parquet files that wait for their commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.spark.sinks.committable import Committable, StagedFile, encode_schema
from airflow_provider_statecheck.spark.sinks.names import staged_name, staging_directory
from airflow_provider_statecheck.spark.sinks.output_file import ROW_GROUP_BYTES, OutputFile
from airflow_provider_statecheck.spark.sinks.partitions import split
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.spark.snapshots.executor_files import scratch_directory

log = logging.getLogger(__name__)

# Each open file holds a buffer and a handle; a task whose rows come sorted by partition needs one.
_OPEN_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """How the rows of a sink are laid out in files."""

    compression: str
    partition_by: tuple[str, ...]
    max_file_bytes: int


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
        self._files = files
        self._layout = layout
        self._context = context
        self._new_name = new_name
        self._columns = context.schema.remove_metadata()
        self._open: dict[str, OutputFile] = {}
        self._staged: list[StagedFile] = []
        self._scratch = ExitStack()
        self._folder: Path | None = None

    def write(self, table: Any) -> None:
        """Take a table with the columns of the schema, in any order."""
        if not table.num_rows:
            return
        fitted = table.select(self._columns.names).cast(self._columns)
        for directory, part in split(fitted, self._layout.partition_by):
            self._add(directory, part)

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files and return what commits them."""
        while self._open:
            self._finish(next(iter(self._open)))
        self._scratch.close()
        committable = Committable(
            lineage=self._files.lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            schema=encode_schema(self._columns),
            files=tuple(self._staged),
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Delete what was written; what cannot be deleted now is swept later, because nothing names it."""
        for file in self._open.values():
            file.discard()
        self._open.clear()
        self._scratch.close()
        for staged in self._staged:
            self._delete(staged.staged)
        self._staged.clear()

    def _add(self, directory: str, part: Any) -> None:
        # The last one used stands at the end, so that a full house closes the one that waited longest.
        file = self._open.pop(directory, None)
        if file is None:
            file = self._begin()
        self._open[directory] = file
        file.add(part)
        if file.waiting_bytes >= min(ROW_GROUP_BYTES, self._layout.max_file_bytes):
            file.flush()
        if file.written_bytes >= self._layout.max_file_bytes:
            self._finish(directory)
        self._keep_memory_bounded()

    def _begin(self) -> OutputFile:
        if len(self._open) >= _OPEN_FILES:
            self._finish(next(iter(self._open)))
        return OutputFile(self._place(), self._file_schema(), self._layout.compression)

    def _file_schema(self) -> Any:
        import pyarrow as pa

        return pa.schema([field for field in self._columns if field.name not in self._layout.partition_by])

    def _place(self) -> Path:
        name = staged_name(self._context.epoch, self._new_name())
        if self._files.is_local:
            # Half a file is no harm where it lies: nothing names it.
            return self._files.local_path(self._staged_path(name))
        if self._folder is None:
            self._folder = Path(self._scratch.enter_context(scratch_directory()))
        return self._folder / name

    def _keep_memory_bounded(self) -> None:
        if sum(file.waiting_bytes for file in self._open.values()) >= ROW_GROUP_BYTES:
            max(self._open.values(), key=lambda file: file.waiting_bytes).flush()

    def _finish(self, directory: str) -> None:
        file = self._open[directory]
        file.finish()
        name = file.path.name
        found = StagedFile(
            staged=name,
            directory=directory,
            size_bytes=file.path.stat().st_size,
            rows=file.rows,
            footer_sha256=file.digest(),
        )
        # Named first: an upload that fails may have left it.
        self._staged.append(found)
        del self._open[directory]
        if not self._files.is_local:
            self._files.upload(file.path, self._staged_path(name))
            file.path.unlink()

    def _delete(self, name: str) -> None:
        try:
            self._files.delete(self._staged_path(name))
        except StateCheckError as error:
            log.warning("The file %s stays in the staging directory of %s: %s", name, self._files.target, error)

    def _staged_path(self, name: str) -> str:
        return f"{staging_directory(self._files.lineage)}/{name}"
