"""
Files below the target of a sink: names with their lineage, and the files that tasks write.

A lineage is one sink of one job across all its attempts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
    UnfitOutputError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import Publication
from airflow_provider_statecheck.spark.connectors.limits import MAX_NAME_BYTES, TargetLimits
from airflow_provider_statecheck.spark.connectors.sink import (
    Committable,
    SinkTaskContext,
    SinkWriter,
    encode_schema,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import ExecutorFiles, HiddenOptions
from airflow_provider_statecheck.spark.tables.data_files import (
    ROW_GROUP_BYTES,
    FileLayout,
    OutputFile,
    WrittenFile,
    scratch_directory,
    split,
)
from airflow_provider_statecheck.spark.tables.partition_directories import partition_names
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.storage.failures import local_failures
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)
LEDGER_DIRECTORY = "_statecheck"
"""Name that readers of Parquet directories ignore because of its leading underscore."""
_SHORT_LENGTH = 12
# Not .parquet: a glob such as **/*.parquet also matches files in hidden directories.
_STAGED_SUFFIX = ".staged"
_STAGED = re.compile(r"(\d+)-[0-9a-f]{32}\.staged")
_FINAL = re.compile(r"part-([0-9a-f]{12})-g(\d+)-c(\d+)-\d+-[0-9a-f]{12}\.parquet")
_DATA_FILE = re.compile(r"statecheck-([0-9a-f]{12})/(?:.*/)?g(\d+)-e(\d+)-\d+-[0-9a-f]{32}\.parquet", re.DOTALL)
# Filesystems with an atomic rename.
_PROTOCOLS_WITH_RENAME = frozenset({"hdfs", "arrow_hdfs", "webhdfs", "webHDFS", "viewfs"})
# Limit of object stores for a key, less the name of a file.
_MAX_KEY_BYTES = 1024 - 128
# Each open file holds a buffer and a file handle; rows that are sorted by partition need one open file.
MAX_OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """
    File operations of one lineage below a target.

    Pickled copies do not depend on the working directory of their process.
    """

    storage: CheckpointStorage
    lineage: str

    @classmethod
    def open(cls, target: str, lineage: str, options: Mapping[str, Any]) -> Self:
        """
        Open a target without creating anything; a relative path is relative to the directory of this process.

        :raises InvalidConfigurationError: if the URI is invalid, or its filesystem is not installed.
        """
        return cls(open_target(target, options), lineage)

    @property
    def target(self) -> str:
        """The URI of the target without credentials."""
        return redact(self.storage.base_uri)

    @property
    def is_local(self) -> bool:
        """Whether the files are on a local disk."""
        return self.storage.is_local

    def local_path(self, name: str) -> Path:
        """
        Return the path of a file of a local target, and create its directory.

        :raises StorageError: if the disk is full or read-only.
        """
        path = Path(self.storage.locate(self._uri(name))[1])
        with local_failures(path.parent):
            file_operations.make_directory(path.parent)
        return path

    def list_files(self, directory: str = "") -> dict[str, int]:
        """Return the size of each file below a directory by its relative name; empty if the directory is missing."""
        return self.storage.list_files(self._uri(directory))

    def read(self, name: str) -> bytes:
        """
        Return the content of a file.

        :raises CheckpointNotFoundError: if the file is missing.
        """
        return self.storage.read_bytes(self._uri(name))

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return a byte range of a file."""
        return self.storage.read_range(self._uri(name), start, end)

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, ``None`` if it is missing."""
        try:
            return self.storage.size(self._uri(name))
        except CheckpointNotFoundError:
            return None

    def upload(self, local: Path, name: str) -> None:
        """
        Copy a finished local file to the target.

        Uploading a finished file never publishes half of it, unlike a stream that an exception closes.
        """
        self._require_own(name)
        ExecutorFiles(self.storage.base_uri, HiddenOptions(self.storage.options)).publish(local, name)

    def move(self, name: str, new_name: str) -> None:
        """
        Move a file, atomically if the filesystem can, otherwise by copy and delete.

        :raises CheckpointNotFoundError: if the file is missing; an earlier call with a lost reply may have moved it.
        """
        self._require_own(name)
        self._require_own(new_name)
        if self.is_local:
            self.storage.call(self._uri(name), lambda _, path: _rename_local(Path(path), self.local_path(new_name)))
        elif _has_atomic_rename(self.storage._fs):
            self._rename(name, new_name)
        else:
            self.copy(name, new_name)
            self.delete(name)

    def copy(self, name: str, new_name: str) -> None:
        """
        Copy a file within the filesystem.

        :raises CheckpointNotFoundError: if the file is missing.
        """
        self._require_own(new_name)
        new_path = self._path(new_name)
        self.storage.call(self._uri(name), lambda filesystem, path: filesystem.cp_file(path, new_path))

    def delete(self, name: str) -> None:
        """Delete a file; succeeds if it is missing."""
        self._require_own(name)
        self.storage.delete_file_below(self.storage.base_uri, self._uri(name))

    def require_nameable(self, directory: str) -> None:
        """
        Require a partition directory in which the filesystem can have files; a commit could not create another one.

        :raises UnfitOutputError: if a name is too long.
        """
        names, limit = directory.split("/"), MAX_NAME_BYTES
        if not self.is_local and not _has_atomic_rename(self.storage._fs):
            names, limit = [self._path(directory)], _MAX_KEY_BYTES
        found = max(len(name.encode()) for name in names)
        if found > limit:
            raise UnfitOutputError(
                f"Expected values of partition_by with names of directories of at most {limit} bytes in {self.target}, "
                f"found {found} bytes for {', '.join(partition_names('', f'{directory}/'))}; shorten the values in the "
                "stage, or partition by another column."
            )

    def _rename(self, name: str, new_name: str) -> None:
        new_path = self._path(new_name)

        def rename(filesystem: Any, path: str) -> None:
            filesystem.makedirs(new_path.rpartition("/")[0], exist_ok=True)
            filesystem.info(path)  # raises if the file is missing; mv does not on every filesystem
            filesystem.mv(path, new_path)

        self.storage.call(self._uri(name), rename)

    def _require_own(self, name: str) -> None:
        # A bug in a sink must not delete files of other writers.
        is_plain = not {"", ".", ".."} & set(name.split("/"))
        is_internal = name.startswith(f"{lineage_directory(self.lineage)}/")
        if not is_plain or not (is_internal or self.lineage in (lineage_of_file(name), lineage_of_data_file(name))):
            raise CoordinatorError(
                f"Expected a file of this sink, with {self.lineage} in its name, below {self.target}, found {name!r}; "
                "no file was changed."
            )

    def _uri(self, name: str) -> str:
        return f"{self.storage.base_uri}/{name}" if name else self.storage.base_uri

    def _path(self, name: str) -> str:
        return str(self.storage.locate(self._uri(name))[1])


def open_target(target: str, options: Mapping[str, Any]) -> CheckpointStorage:
    """
    Open the directory of a sink.

    :raises InvalidConfigurationError: if the URI is invalid, or its filesystem is not installed.
    """
    try:
        return CheckpointStorage.open(target, **options)
    except InvalidConfigurationError as error:
        raise InvalidConfigurationError(str(error).replace("checkpoint_dir", "the target of a sink")) from error


def require_directory(files: TargetFiles) -> None:
    """
    Require that the target is a directory or missing.

    :raises EnvironmentNotReadyError: if the target is a file.
    """
    storage = files.storage
    if storage.exists(storage.base_uri) and not storage.is_directory(storage.base_uri):
        raise EnvironmentNotReadyError(
            f"Expected a directory or nothing at {files.target}, found a file; choose another target, or move the file "
            "away."
        )


def ledger_storage(target: CheckpointStorage) -> CheckpointStorage:
    """Return the directory with the commit logs of the sinks of a target."""
    return open_target(f"{target.base_uri}/{LEDGER_DIRECTORY}", target.options)


def lineage_directory(lineage: str) -> str:
    """Return the directory of all files of a lineage except the published ones."""
    return f"{LEDGER_DIRECTORY}/{lineage}"


def staging_directory(lineage: str) -> str:
    """Return the directory of files that wait for their commit."""
    return f"{lineage_directory(lineage)}/staging"


def new_staged_name(lineage: str, epoch: int) -> str:
    """Return a new name of a file in the staging directory."""
    return f"{staging_directory(lineage)}/{epoch}-{new_key()}{_STAGED_SUFFIX}"


def staged_epoch(name: str) -> int | None:
    """Return the epoch of the attempt that wrote a staged file, ``None`` for other names."""
    match = _STAGED.fullmatch(name)
    return int(match.group(1)) if match else None


def sweep_staged(files: TargetFiles, last_epoch: int) -> None:
    """Delete the staged files of attempts up to an epoch."""
    directory = staging_directory(files.lineage)
    names = [name for name in files.list_files(directory) if (staged_epoch(name) or 0) <= last_epoch]
    in_parallel(files.delete, [f"{directory}/{name}" for name in names], is_local=files.is_local)


def delete_after_commit(files: TargetFiles, publication: Publication) -> None:
    """Delete the staged files of a committed checkpoint; those that cannot be deleted are left to a later sweep."""
    names = [file.name for file in publication.files]
    try:
        in_parallel(files.delete, names, is_local=files.is_local)
    except StateCheckError as error:
        log.warning("Files in the staging directory %s were not deleted: %s", files.target, error)


def final_name(lineage: str, generation: int, checkpoint_id: int, subtask: int, staged: str) -> str:
    """Return the name under which a staged file is published."""
    short = staged.removesuffix(_STAGED_SUFFIX).rpartition("-")[2][:_SHORT_LENGTH]
    return f"part-{lineage}-g{generation}-c{checkpoint_id}-{subtask}-{short}.parquet"


def lineage_of_file(path: str) -> str | None:
    """Return the lineage of a published file, ``None`` for files of other writers."""
    match = _FINAL.fullmatch(path.rpartition("/")[2])
    return match.group(1) if match else None


def checkpoint_of_file(path: str) -> tuple[int, int]:
    """Return the generation and the checkpoint of a published file."""
    match = _FINAL.fullmatch(path.rpartition("/")[2])
    return (int(match.group(2)), int(match.group(3))) if match else (0, 0)


def data_directory(lineage: str) -> str:
    """
    Return the directory of the data files of a lineage in a Delta table.

    The directory is not hidden because Delta readers ignore hidden directories.
    """
    return f"statecheck-{lineage}"


def data_file(lineage: str, directory: str, generation: int, epoch: int, subtask: int, key: str) -> str:
    """
    Return the permanent name of a data file of a Delta table.

    :param directory: Partition directory of the rows.
    :param key: Unique key of 32 hex characters.
    """
    name = f"g{generation}-e{epoch}-{subtask}-{key}.parquet"
    return "/".join(part for part in (data_directory(lineage), directory, name) if part)


def lineage_of_data_file(name: str) -> str | None:
    """Return the lineage of a data file of a Delta table, ``None`` for files of other writers."""
    match = _DATA_FILE.fullmatch(name)
    return match.group(1) if match else None


def writer_of_data_file(name: str) -> tuple[int, int]:
    """Return the generation and the epoch of the attempt that wrote a data file, zeros for files of other writers."""
    match = _DATA_FILE.fullmatch(name)
    return (int(match.group(2)), int(match.group(3))) if match else (0, 0)


def is_hidden(path: str) -> bool:
    """Return whether readers of a Parquet directory ignore a file."""
    # Spark reads a directory such as _a=1 as a partition.
    return any(part[:1] in "._" and "=" not in part for part in path.split("/"))


def missing_file_cause(is_local: bool) -> str:
    """
    Return the probable cause of a missing file that a task has written, and the remedy, as the end of an error message.

    :param is_local: Whether the file was written to a local disk.
    """
    if not is_local:
        return "it was deleted. Restore from an earlier checkpoint, or start over."
    return (
        "it was deleted, or the executors of Spark wrote it to another disk than the one that the driver sees. If "
        "they run on other machines, choose a directory that all of them mount, or an object store, and start over; "
        "else restore from an earlier checkpoint, or start over."
    )


def _rename_local(path: Path, new_path: Path) -> None:
    path.replace(new_path)
    file_operations.sync(new_path.parent)


def _has_atomic_rename(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    return bool(_PROTOCOLS_WITH_RENAME & ({protocol} if isinstance(protocol, str) else set(protocol)))


class ParquetSinkWriter(SinkWriter):
    """
    Writes the output of one Spark task as Parquet files of bounded size, split by partition.

    The number of open files is bounded: when the limit is reached, the least recently used file is finished. A failed
    or duplicate task may leave orphan files, which a later sweep deletes.

    :param limits: What the target cannot hold.
    :param schema: Arrow schema of the files with the partition columns, to which tables are cast; by default that of
        the output.
    :param committable: Class of the committable of the task.
    :param name: Function that returns a new file name, relative to the target, for a partition directory. The last path
        component must be unique within the task. By default, files are in the staging directory.
    :param statistics: Function that returns the statistics of a file from its footer metadata, which is as
        ``pyarrow.parquet.read_metadata`` returns it.
    """

    def __init__(
        self,
        files: TargetFiles,
        layout: FileLayout,
        context: SinkTaskContext,
        *,
        limits: TargetLimits,
        schema: Any = None,
        committable: type[Committable] = Committable,
        name: Callable[[str], str] | None = None,
        statistics: Callable[[Any], str] = lambda _: "",
    ) -> None:
        self._files = files
        self._layout = layout
        self._context = context
        self._schema = context.schema.remove_metadata() if schema is None else schema
        self._committable = committable
        self._name = name or (lambda _: new_staged_name(files.lineage, context.epoch))
        self._limits = limits
        self._statistics = statistics
        self._open: dict[str, tuple[str, OutputFile]] = {}
        self._names: list[str] = []
        self._written: list[WrittenFile] = []
        self._scratch = ExitStack()
        self._folder: Path | None = None

    @override
    def write(self, table: Any) -> None:
        if not table.num_rows:
            return
        self._limits.require(table)
        fitted = table.select(self._schema.names).cast(self._schema)
        for directory, part in split(fitted, self._layout.partition_by):
            self._add(directory, part)

    @override
    def prepare_commit(self) -> list[dict[str, Any]]:
        while self._open:
            self._finish(next(iter(self._open)))
        self._scratch.close()
        committable = self._committable(
            lineage=self._files.lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            schema=encode_schema(self._schema),
            partition_by=self._layout.partition_by,
            files=tuple(self._written),
        )
        return [committable.to_json()]

    @override
    def abort(self) -> None:
        for _, file in self._open.values():
            file.discard()
        self._open.clear()
        self._scratch.close()
        for name in self._names:
            self._delete(name)
        self._names.clear()
        self._written.clear()

    def _add(self, directory: str, part: Any) -> None:
        # Reinserting keeps the files in the order of their last use, least recent first.
        name, file = self._open.pop(directory) if directory in self._open else self._begin(directory)
        self._open[directory] = name, file
        file.add(part)
        if file.buffered_bytes >= min(ROW_GROUP_BYTES, self._layout.max_file_bytes):
            file.flush()
        if file.written_bytes >= self._layout.max_file_bytes:
            self._finish(directory)
        self._bound_memory()

    def _begin(self, directory: str) -> tuple[str, OutputFile]:
        if len(self._open) >= MAX_OPEN_FILES:
            self._finish(next(iter(self._open)))
        self._files.require_nameable(directory)
        name = self._name(directory)
        return name, OutputFile(self._local_path(name), self._file_schema(), self._layout.compression)

    def _file_schema(self) -> Any:
        return pa.schema([field for field in self._schema if field.name not in self._layout.partition_by])

    def _local_path(self, name: str) -> Path:
        if self._files.is_local:
            # An incomplete file in the target is harmless because no commit refers to it.
            return self._files.local_path(name)
        if self._folder is None:
            self._folder = Path(self._scratch.enter_context(scratch_directory()))
        return self._folder / name.rpartition("/")[2]

    def _bound_memory(self) -> None:
        if sum(file.buffered_bytes for _, file in self._open.values()) >= ROW_GROUP_BYTES:
            max((file for _, file in self._open.values()), key=lambda file: file.buffered_bytes).flush()

    def _finish(self, directory: str) -> None:
        name, file = self._open[directory]
        file.finish(is_synced=self._files.is_local)
        # Added before the upload, because a failed upload may leave the file.
        self._names.append(name)
        self._written.append(self._written_file(name, directory, file))
        del self._open[directory]
        if not self._files.is_local:
            self._files.upload(file.path, name)
            file.path.unlink()

    def _written_file(self, name: str, directory: str, file: OutputFile) -> WrittenFile:
        return WrittenFile(
            name=name,
            directory=directory,
            size_bytes=file.path.stat().st_size,
            rows=file.rows,
            footer_sha256=file.digest(),
            statistics=self._statistics(file.metadata),
        )

    def _delete(self, name: str) -> None:
        try:
            self._files.delete(name)
        except StateCheckError as error:
            log.warning("Orphan file %s in %s was not deleted: %s", name, self._files.target, error)
