"""
Write rows as whole Parquet files under names that a sink chooses; what writers of sinks stand on.

A sink gives :class:`DataFileWriter` the place, the layout, the schema and a namer, and makes what commits the files of what
:meth:`DataFileWriter.finish` returns::

    rows = DataFileWriter(files, layout, schema, name=lambda directory: f"data/{directory}/{new_key()}.parquet")
    rows.write(table)
    found = rows.finish()  # a WrittenFile each; or rows.abort()
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.spark.sinks.output_file import ROW_GROUP_BYTES, OutputFile
from airflow_provider_statecheck.spark.sinks.partitions import split
from airflow_provider_statecheck.spark.snapshots.executor_files import scratch_directory

log = logging.getLogger(__name__)

# Each open file holds a buffer and a handle; a task whose rows come sorted by partition needs one.
_OPEN_FILES = 64


class DataFiles(Protocol):
    """Where files are written; :class:`~airflow_provider_statecheck.spark.sinks.target_files.TargetFiles` is one."""

    @property
    def target(self) -> str:
        """The directory, fit to be shown."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the bytes are files of this machine."""
        ...

    def local_path(self, name: str) -> Path:
        """Return where a file of a local target is, with its directory made."""
        ...

    def upload(self, local: Path, name: str) -> None:
        """Copy a finished local file."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; a missing one is success."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """How the rows of a sink are laid out in files."""

    compression: str
    partition_by: tuple[str, ...]
    max_file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A complete Parquet file that nothing names yet."""

    name: str
    """Relative to the target, as the namer gave it."""
    directory: str
    """The partition that its rows belong to, such as ``day=2024-01-01``; empty without partitions."""
    size_bytes: int
    rows: int
    footer_sha256: str
    metadata: Any
    """As ``pyarrow.parquet.read_metadata`` returns it, with the statistics of the columns."""


class DataFileWriter:
    """
    Splits rows by partition and writes files of bounded size.

    Files are not open for longer than they must: where too many partitions are, the one that waited longest is finished.

    :param files: Where they lie.
    :param layout: How rows are laid out.
    :param schema: Arrow schema of the files, with the columns of partitions; tables are cast to it.
    :param name: Returns a new name, relative to the target, for a file of a partition's directory; its last part differs
        between any two files of the task.
    """

    def __init__(self, files: DataFiles, layout: FileLayout, schema: Any, name: Callable[[str], str]) -> None:
        self._files = files
        self._layout = layout
        self._schema = schema
        self._name = name
        self._open: dict[str, tuple[str, OutputFile]] = {}
        self._names: list[str] = []
        self._written: list[WrittenFile] = []
        self._scratch = ExitStack()
        self._folder: Path | None = None

    def write(self, table: Any) -> None:
        """Take a table with the columns of the schema, in any order."""
        if not table.num_rows:
            return
        fitted = table.select(self._schema.names).cast(self._schema)
        for directory, part in split(fitted, self._layout.partition_by):
            self._add(directory, part)

    def finish(self) -> tuple[WrittenFile, ...]:
        """Finish all files and return them."""
        while self._open:
            self._finish(next(iter(self._open)))
        self._scratch.close()
        return tuple(self._written)

    def abort(self) -> None:
        """Delete what was written; what cannot be deleted now is swept later, because nothing names it."""
        for _, file in self._open.values():
            file.discard()
        self._open.clear()
        self._scratch.close()
        for name in self._names:
            self._delete(name)
        self._names.clear()
        self._written.clear()

    def _add(self, directory: str, part: Any) -> None:
        # The last one used stands at the end, so that a full house closes the one that waited longest.
        name, file = self._open.pop(directory) if directory in self._open else self._begin(directory)
        self._open[directory] = name, file
        file.add(part)
        if file.waiting_bytes >= min(ROW_GROUP_BYTES, self._layout.max_file_bytes):
            file.flush()
        if file.written_bytes >= self._layout.max_file_bytes:
            self._finish(directory)
        self._keep_memory_bounded()

    def _begin(self, directory: str) -> tuple[str, OutputFile]:
        if len(self._open) >= _OPEN_FILES:
            self._finish(next(iter(self._open)))
        name = self._name(directory)
        return name, OutputFile(self._place(name), self._file_schema(), self._layout.compression)

    def _file_schema(self) -> Any:
        import pyarrow as pa

        return pa.schema([field for field in self._schema if field.name not in self._layout.partition_by])

    def _place(self, name: str) -> Path:
        if self._files.is_local:
            # Half a file is no harm where it lies: nothing names it.
            return self._files.local_path(name)
        if self._folder is None:
            self._folder = Path(self._scratch.enter_context(scratch_directory()))
        return self._folder / name.rpartition("/")[2]

    def _keep_memory_bounded(self) -> None:
        if sum(file.waiting_bytes for _, file in self._open.values()) >= ROW_GROUP_BYTES:
            max((file for _, file in self._open.values()), key=lambda file: file.waiting_bytes).flush()

    def _finish(self, directory: str) -> None:
        name, file = self._open[directory]
        file.finish()
        # Named first: an upload that fails may have left it.
        self._names.append(name)
        self._written.append(_described(name, directory, file))
        del self._open[directory]
        if not self._files.is_local:
            self._files.upload(file.path, name)
            file.path.unlink()

    def _delete(self, name: str) -> None:
        try:
            self._files.delete(name)
        except StateCheckError as error:
            log.warning("The file %s stays in %s, where nothing names it: %s", name, self._files.target, error)


def _described(name: str, directory: str, file: OutputFile) -> WrittenFile:
    return WrittenFile(
        name=name,
        directory=directory,
        size_bytes=file.path.stat().st_size,
        rows=file.rows,
        footer_sha256=file.digest(),
        metadata=file.metadata,
    )
