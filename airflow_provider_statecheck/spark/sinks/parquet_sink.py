"""Sink for a directory of Parquet files, and the reading of its committed output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.driver.session import HadoopFilesystems
from airflow_provider_statecheck.spark.sinks.commit_files import CommitFiles, FileDestination, Output
from airflow_provider_statecheck.spark.sinks.commit_log import CommitLog, Publication
from airflow_provider_statecheck.spark.sinks.committer import CommittingSink
from airflow_provider_statecheck.spark.sinks.sink import (
    Committable,
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    StagedFile,
    decode_schema,
    require_one_of,
)
from airflow_provider_statecheck.spark.sinks.target_checks import require_directory, require_fitting, require_unchanged
from airflow_provider_statecheck.spark.sinks.target_files import (
    OpenedTarget,
    ParquetSinkWriter,
    TargetFiles,
    checkpoint_of_file,
    final_name,
    ledger_storage,
    lineage_of_file,
    missing_file_cause,
    open_target,
    staging_directory,
    staging_writer,
    sweep_staged,
)
from airflow_provider_statecheck.spark.snapshots.dataframes import VERIFIED_PAGES
from airflow_provider_statecheck.spark.snapshots.executor_io import hidden_options
from airflow_provider_statecheck.spark.tables.data_files import FILE_BYTES, FileLayout
from airflow_provider_statecheck.spark.tables.schemas import merged_schema, spark_schema
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import footer_digest
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Compression = Literal["zstd", "snappy", "gzip", "lz4", "brotli", "none"]


class ParquetSink(CommittingSink):
    """
    Writes the output of each checkpoint as Parquet files, which become visible when the checkpoint is complete.

    Several sinks of one or more stages may share a target; each changes only its own files.

    :param path: Directory as a path or an fsspec URI.
    :param compression: Parquet compression codec.
    :param partition_by: Columns for Hive-style partition directories ``column=value``.
    :param max_file_bytes: File size in bytes at which the writer starts a new file, by default 512 MiB.
    :param storage_options: Filesystem options of the target; by default those of the stage's checkpoint storage.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` replaces it with
        the first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    _committable: ClassVar[type[Committable]] = Committable

    def __init__(
        self,
        path: str,
        *,
        compression: Compression = "zstd",
        partition_by: Sequence[str] = (),
        max_file_bytes: int = FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        require_one_of("compression", compression, get_args(Compression))
        self.path = path
        self._layout = FileLayout(
            compression=compression, partition_by=_partition_columns(partition_by), max_file_bytes=max_file_bytes
        )
        self._given_options = hidden_options(storage_options)
        self._target: OpenedTarget | None = None

    def __repr__(self) -> str:
        return f"ParquetSink({redact(self.path)!r})"

    def writer(self, context: SinkTaskContext) -> ParquetSinkWriter:
        """Return the writer of one Spark task."""
        return staging_writer(self._files(), self._layout, context)

    @override
    def _destination(self, context: SinkContext) -> FileDestination:
        self._target = OpenedTarget.of(self.path, context, self._given_options)
        files = self._files()
        require_directory(files)
        partition_by = self._layout.partition_by
        destination = FileDestination(
            name=files.target,
            storage=ledger_storage(files.storage),
            lineage=context.lineage,
            committable=Committable,
            output=PublishedFiles(files),
        )
        names = files.list_files()
        require_fitting(files, names, destination.files_of, context.schema, partition_by)
        return destination

    def _files(self) -> TargetFiles:
        return self._require_opened(self._target).files()


@dataclass(frozen=True, slots=True)
class PublishedFiles(Output):
    """Files of a Parquet sink in its target."""

    files: TargetFiles

    @override
    def check(self, publication: Publication, newest: Callable[[], Publication | None]) -> None:
        """
        Require complete files, and that all tasks wrote a schema that extends that of the newest output.

        :raises UnsupportedStateError: if they wrote another schema.
        :raises CorruptStateError: if a file is missing.
        """
        schemas = [task.schema for each in (newest(), publication) if each for task in each.committables]
        for before, after in pairwise(dict.fromkeys(schemas)):
            require_unchanged(self.files, before, after)
        # Otherwise the log would contain a plan that no attempt can carry out.
        pairs = named_files(publication)
        in_parallel(lambda pair: self._require_present(publication, *pair), pairs, is_local=self.files.is_local)

    @override
    def publish(self, publication: Publication) -> None:
        """
        Move the staged files to their published names.

        :raises CorruptStateError: if a file is missing, or another file has its name.
        """
        in_parallel(lambda pair: self._move(publication, *pair), named_files(publication), is_local=self.files.is_local)

    @override
    def retract(self, publication: Publication) -> None:
        """Delete the published and the staged files."""
        pairs = named_files(publication)
        names = [name for staged, published in pairs for name in (_staged(self.files, staged), published)]
        in_parallel(self.files.delete, names, is_local=self.files.is_local)

    @override
    def listed(self) -> list[str]:
        """Return the names of the published files of the lineage."""
        return [name for name in self.files.list_files() if lineage_of_file(name) == self.files.lineage]

    @override
    def sweep(self, listed: Sequence[str], current: CommitLog, last_epoch: int) -> None:
        """Delete published files of checkpoints that the log does not name, and staged files up to an epoch."""
        orphans = [name for name in listed if not current.names(*checkpoint_of_file(name))]
        in_parallel(self.files.delete, orphans, is_local=self.files.is_local)
        sweep_staged(self.files, last_epoch)

    def _require_present(self, publication: Publication, file: StagedFile, name: str) -> None:
        if self.files.size(_staged(self.files, file)) is None and self.files.size(name) is None:
            raise self._missing_error(publication, file, name)

    def _move(self, publication: Publication, file: StagedFile, name: str) -> None:
        staged = _staged(self.files, file)
        if self.files.size(name) is None:
            try:
                self.files.move(staged, name)
            except CheckpointNotFoundError:
                if self.files.size(name) is None:
                    raise self._missing_error(publication, file, name) from None
            else:
                return
        self._require_published(file, name)
        self.files.delete(staged)

    def _require_published(self, file: StagedFile, name: str) -> None:
        size = self.files.size(name)
        if size != file.size_bytes or self._digest(name, size) != file.footer_sha256:
            raise CorruptStateError(
                f"Expected {file.size_bytes} bytes with the committed footer in {self.files.target}/{name}, found {size} bytes; "
                "the file was modified. Move it away and run the task again.",
                uri=f"{self.files.target}/{name}",
            )

    def _digest(self, name: str, size: int) -> str:
        return footer_digest(lambda start, end: self.files.read_range(name, start, end), name, size)

    def _missing_error(self, publication: Publication, file: StagedFile, name: str) -> CorruptStateError:
        return CorruptStateError(
            f"Expected output of checkpoint {publication.checkpoint_id} in {self.files.target}, either as {name} or staged as "
            f"{file.staged}, found neither; {missing_file_cause(self.files.is_local)}",
            uri=f"{self.files.target}/{name}",
            checkpoint_id=publication.checkpoint_id,
        )


def named_files(publication: Publication) -> list[tuple[StagedFile, str]]:
    """Return the files of the output of a checkpoint, with their published names relative to the target."""
    return [
        (file, _published_name(publication, task, file)) for task in publication.committables for file in task.files
    ]


def _published_name(publication: Publication, task: Committable, file: StagedFile) -> str:
    name = final_name(task.lineage, publication.generation, publication.checkpoint_id, task.subtask, file.staged)
    return f"{file.directory}/{name}" if file.directory else name


def _staged(files: TargetFiles, file: StagedFile) -> str:
    return f"{staging_directory(files.lineage)}/{file.staged}"


def _partition_columns(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise InvalidConfigurationError(
            f"Expected partition_by as a list of columns, found the string {columns!r}; write [{columns!r}]."
        )
    hidden = [column for column in columns if not column or column[0] in "._"]
    if hidden or len(set(columns)) != len(columns):
        raise InvalidConfigurationError(
            f"Expected partition_by to name different columns, none beginning with '.' or '_', found {list(columns)}; readers "
            "ignore directories with such names. Rename the columns."
        )
    return tuple(columns)


_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedFile:
    """A file of the committed output of a target."""

    uri: str
    size_bytes: int
    rows: int
    lineage: str
    """Identifier of the sink that wrote the file."""
    checkpoint_id: int


def committed_files(path: str, *, storage_options: Mapping[str, Any] | None = None) -> tuple[CommittedFile, ...]:
    """
    Return the committed files of a target, of all sinks that write there.

    A fresh start may replace and delete these files at any time; call the function again in that case.

    :param path: Directory of the sinks.
    :param storage_options: Options of its filesystem.
    :raises StorageError: if the storage fails, or the ledger changes faster than it can be read.
    """
    storage = open_target(path, storage_options or {})
    files = (
        CommittedFile(
            uri=f"{storage.base_uri}/{name}",
            size_bytes=file.size_bytes,
            rows=file.rows,
            lineage=lineage,
            checkpoint_id=publication.checkpoint_id,
        )
        for lineage, publication in _published(storage)
        for file, name in named_files(publication)
    )
    return tuple(sorted(files, key=lambda file: file.uri))


def read_committed(spark: SparkSession, path: str, *, storage_options: Mapping[str, Any] | None = None) -> DataFrame:
    """
    Return a DataFrame of the committed files of a target.

    :param spark: Session to read with; it must reach the target under the same URI.
    :param path: Directory of the sinks.
    :param storage_options: Filesystem options for reading the ledger.
    :raises EnvironmentNotReadyError: if Spark has no filesystem for the target.
    :raises StorageError: if the target has no commit, or the storage fails.
    """
    storage = open_target(path, storage_options or {})
    base = _spark_uri(spark, storage.base_uri)
    found = [publication for _, publication in _published(storage)]
    schema = spark_schema(_table_schema(storage, found))
    uris = [f"{base}/{name}" for publication in found for _, name in named_files(publication)]
    if not uris:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).options(**VERIFIED_PAGES).option("basePath", base).parquet(*uris)


def logs_of_target(storage: CheckpointStorage) -> dict[str, CommitFiles]:
    """Return the commit logs of the sinks of a target by their lineages."""
    ledgers = ledger_storage(storage)
    lineages = ledgers.list_directories(ledgers.base_uri)
    return {lineage: CommitFiles(ledgers, lineage, Committable) for lineage in sorted(lineages)}


def _spark_uri(spark: SparkSession, uri: str) -> str:
    found = HadoopFilesystems().spark_uri(spark, uri)
    if found is None:
        raise EnvironmentNotReadyError(
            f"Expected Spark to have a filesystem for {redact(uri)}, found none; add its package to Spark, or read the files "
            "of committed_files without Spark."
        )
    return found


def _published(storage: CheckpointStorage) -> list[tuple[str, Publication]]:
    logs = logs_of_target(storage)
    return [(lineage, each) for lineage, files in logs.items() for each in _visible(storage, files)]


def _visible(storage: CheckpointStorage, files: CommitFiles) -> list[Publication]:
    for _ in range(_TRIES):
        with suppress(CheckpointNotFoundError):
            before = files.read()
            found = files.visible(*before)
            # A commit in between may have deleted records that the log named.
            if files.read() == before:
                return found
    raise StorageError(
        f"Expected to read the ledgers of {storage!r} between two commits, found them changed {_TRIES} times; try again."
    )


def _table_schema(storage: CheckpointStorage, found: Iterable[Publication]) -> Any:
    ordered = sorted(found, key=lambda each: (each.epoch, each.checkpoint_id))
    schemas = [decode_schema(task.schema) for each in ordered for task in each.committables]
    if not schemas:
        raise StorageError(f"Expected output of a sink in {storage!r}, found no commit; run a stage that writes there.")
    return merged_schema(schemas)
