"""Sink for a directory of Parquet files: its checks, its writers, and reading of its output."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from airflow_provider_statecheck.checkpoint.codec import require_one_of
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import CommitFiles, FileDestination, Output
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import CommitLog, Publication
from airflow_provider_statecheck.spark.connectors.exactly_once.committing_sink import CommittingSink
from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import (
    LEDGER_DIRECTORY,
    ParquetSinkWriter,
    TargetFiles,
    checkpoint_of_file,
    final_name,
    is_hidden,
    ledger_storage,
    lineage_directory,
    lineage_of_file,
    missing_file_cause,
    open_target,
    require_directory,
    sweep_staged,
)
from airflow_provider_statecheck.spark.connectors.limits import parquet_limits
from airflow_provider_statecheck.spark.connectors.sink import (
    Committable,
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    decode_schema,
    require_distinct_names,
    unique_names,
)
from airflow_provider_statecheck.spark.snapshots.dataframes import VERIFIED_PAGES, HadoopFilesystems
from airflow_provider_statecheck.spark.snapshots.executor_io import hidden_options
from airflow_provider_statecheck.spark.tables.column_types import require_stored
from airflow_provider_statecheck.spark.tables.data_files import (
    FILE_BYTES,
    FileLayout,
    WrittenFile,
    require_partitionable,
)
from airflow_provider_statecheck.spark.tables.partition_directories import partition_names
from airflow_provider_statecheck.spark.tables.schemas import (
    conflicts,
    merged_schema,
    schema_differences,
    spark_schema,
)
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import footer_digest
from airflow_provider_statecheck.storage.uris import path_text, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Compression = Literal["zstd", "snappy", "gzip", "lz4", "brotli", "none"]
_KIND = "parquet"


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
        path: str | PathLike[str],
        *,
        compression: Compression = "zstd",
        partition_by: Sequence[str] = (),
        max_file_bytes: int = FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        require_one_of("compression", compression, get_args(Compression))
        self.path = path_text(path)
        self._layout = FileLayout(
            compression=compression, partition_by=_partition_columns(partition_by), max_file_bytes=max_file_bytes
        )
        self._given_options = hidden_options(storage_options)
        self._files: TargetFiles | None = None

    def __repr__(self) -> str:
        return f"ParquetSink({redact(self.path)!r})"

    def writer(self, context: SinkTaskContext) -> ParquetSinkWriter:
        """Return the writer of one Spark task."""
        files = self._require_opened(self._files)
        limits = parquet_limits(context.schema, files.target, partition_by=self._layout.partition_by)
        return ParquetSinkWriter(files, self._layout, context, limits=limits)

    @override
    def at(self, place: Place) -> Self | None:
        if place.kind != _KIND:
            return None
        former = self._copy()
        former.path = place.address
        return former

    @override
    def _place(self, context: SinkContext) -> Place:
        return Place.of_uri(_KIND, open_target(self.path, context.options(self._given_options)).base_uri)

    @override
    def _destination(self, context: SinkContext) -> FileDestination:
        require_stored(context.schema, "a Parquet sink")
        self._files = files = TargetFiles.open(self.path, context.lineage, context.options(self._given_options))
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
        _require_fitting(files, names, destination.files_of, context.schema, partition_by)
        return destination


@dataclass(frozen=True, slots=True)
class PublishedFiles(Output):
    """Files of a Parquet sink in its target."""

    files: TargetFiles

    @override
    def check(self, publication: Publication, newest: Callable[[], Publication | None]) -> None:
        # Each schema must extend the one before it, in the newest output and in the tasks.
        schemas = [task.schema for each in (newest(), publication) if each for task in each.committables]
        for before, after in pairwise(dict.fromkeys(schemas)):
            found = schema_differences(decode_schema(before), decode_schema(after))
            _require_no_misfit(self.files, _EARLIER_OUTPUT, found)
        # Otherwise the log would contain a plan that no attempt can carry out.
        pairs = named_files(publication)
        in_parallel(lambda pair: self._require_present(publication, *pair), pairs, is_local=self.files.is_local)

    @override
    def publish(self, publication: Publication) -> None:
        in_parallel(lambda pair: self._move(publication, *pair), named_files(publication), is_local=self.files.is_local)

    @override
    def retract(self, publication: Publication) -> None:
        pairs = named_files(publication)
        names = [name for file, published in pairs for name in (file.name, published)]
        in_parallel(self.files.delete, names, is_local=self.files.is_local)

    @override
    def listed(self) -> list[str]:
        return [name for name in self.files.list_files() if lineage_of_file(name) == self.files.lineage]

    @override
    def sweep(self, listed: Sequence[str], current: CommitLog, last_epoch: int) -> None:
        orphans = [name for name in listed if not current.names(*checkpoint_of_file(name))]
        in_parallel(self.files.delete, orphans, is_local=self.files.is_local)
        sweep_staged(self.files, last_epoch)

    def _require_present(self, publication: Publication, file: WrittenFile, name: str) -> None:
        if self.files.size(file.name) is None and self.files.size(name) is None:
            raise self._missing_error(publication, file, name, missing_file_cause(self.files.is_local))

    def _move(self, publication: Publication, file: WrittenFile, name: str) -> None:
        if self.files.size(name) is None:
            try:
                self.files.move(file.name, name)
            except CheckpointNotFoundError:
                if self.files.size(name) is None:
                    raise self._missing_error(publication, file, name, self._remedy_of_lost_plan) from None
            else:
                return
        self._require_published(file, name)
        self.files.delete(file.name)

    def _require_published(self, file: WrittenFile, name: str) -> None:
        size = self.files.size(name)
        if size != file.size_bytes or self._digest(name, size) != file.footer_sha256:
            raise CorruptStateError(
                f"Expected {file.size_bytes} bytes with the committed footer in {self.files.target}/{name}, found "
                f"{size} bytes; the file was modified. Move it away and run the task again.",
                uri=f"{self.files.target}/{name}",
            )

    def _digest(self, name: str, size: int) -> str:
        return footer_digest(lambda start, end: self.files.read_range(name, start, end), name, size)

    @property
    def _remedy_of_lost_plan(self) -> str:
        # Every attempt has to carry out the plan in the log, a fresh start included.
        lineage = self.files.lineage
        return (
            "it was deleted after the commit had begun. Restore it from a backup, or delete the files with "
            f"{lineage} in their names together with the log of the sink, {lineage_directory(lineage)}, and start over."
        )

    def _missing_error(self, publication: Publication, file: WrittenFile, name: str, cause: str) -> CorruptStateError:
        return CorruptStateError(
            f"Expected output of checkpoint {publication.checkpoint_id} in {self.files.target}, either as {name} or "
            f"staged as {file.name}, found neither; {cause}",
            uri=f"{self.files.target}/{name}",
            checkpoint_id=publication.checkpoint_id,
        )


def named_files(publication: Publication) -> list[tuple[WrittenFile, str]]:
    """Return the files of the output of a checkpoint, with their published names relative to the target."""
    return [
        (file, _published_name(publication, task, file)) for task in publication.committables for file in task.files
    ]


def _published_name(publication: Publication, task: Committable, file: WrittenFile) -> str:
    name = final_name(task.lineage, publication.generation, publication.checkpoint_id, task.subtask, file.name)
    return f"{file.directory}/{name}" if file.directory else name


def _partition_columns(columns: Sequence[str]) -> tuple[str, ...]:
    names = unique_names("partition_by", columns)
    hidden = [name for name in names if name[0] in "._"]
    if hidden:
        raise InvalidConfigurationError(
            f"Expected no name beginning with '.' or '_' in partition_by, found {', '.join(hidden)}; readers ignore "
            "directories with such names. Rename the columns."
        )
    return names


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
            f"Expected Spark to have a filesystem for {redact(uri)}, found none; add its package to Spark, or read the "
            "files of committed_files without Spark."
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
        f"Expected to read the lists of committed files of {storage!r} between two commits, found them changed "
        f"{_TRIES} times; try again."
    )


def _table_schema(storage: CheckpointStorage, found: Iterable[Publication]) -> Any:
    ordered = sorted(found, key=lambda each: (each.epoch, each.checkpoint_id))
    schemas = [decode_schema(task.schema) for each in ordered for task in each.committables]
    if not schemas:
        raise StorageError(f"Expected output of a sink in {storage!r}, found no commit; run a stage that writes there.")
    return merged_schema(schemas)


# All lineages of a target have compatible schemas, therefore a sample is enough.
_MAX_LINEAGES_CHECKED = 16
_EARLIER_OUTPUT = "the earlier output of this sink"


def _require_writable(schema: Any) -> None:
    """
    Require a schema that Parquet can store.

    :raises UnsupportedStateError: if the schema has duplicate columns, no columns, or an unsupported type.
    """
    require_distinct_names(schema.names, "a Parquet sink")
    try:
        parquet.write_table(schema.empty_table(), io.BytesIO())
    except (pa.ArrowException, NotImplementedError) as error:
        raise UnsupportedStateError(
            f"Expected output that Parquet can store, found: {error}; convert the column in the stage."
        ) from error


def _require_fitting(
    files: TargetFiles,
    names: Iterable[str],
    log_files: Callable[[str], CommitFiles],
    schema: Any,
    partition_by: tuple[str, ...],
) -> None:
    """
    Require a schema that is compatible with the files in the target.

    :param names: Names of all files below the target.
    :param log_files: Function that returns the files of the commit log of a lineage.
    :param schema: Arrow schema of the output; ``None`` if it is not known yet.
    :raises UnsupportedStateError: if the schema is incompatible; the message lists the differences.
    """
    if schema is None:
        return
    _require_writable(schema)
    require_partitionable(schema, partition_by)
    names = sorted(names)
    for lineage in _lineages(names, files.lineage):
        logged = log_files(lineage)
        newest = logged.latest(logged.read()[0])
        if newest is not None:
            task, is_own = newest.committables[-1], lineage == files.lineage
            theirs = decode_schema(task.schema)
            found = schema_differences(theirs, schema) if is_own else conflicts(schema, theirs)
            found += _partition_differences(task.partition_by, partition_by)
            _require_no_misfit(files, _EARLIER_OUTPUT if is_own else f"the output of {newest.owner}", found)
    _require_fitting_foreign_files(files, names, schema, partition_by)


def _lineages(names: Iterable[str], own: str) -> list[str]:
    parts = (name.split("/") for name in names)
    found = {each[1] for each in parts if len(each) == 4 and each[0] == LEDGER_DIRECTORY and each[2] == "attempts"}
    return [*sorted(found - {own})[-_MAX_LINEAGES_CHECKED:], *(found & {own})]


def _require_fitting_foreign_files(
    files: TargetFiles, names: Iterable[str], schema: Any, partition_by: tuple[str, ...]
) -> None:
    foreign = (n for n in names if n.endswith(".parquet") and not is_hidden(n) and lineage_of_file(n) is None)
    name = next(foreign, None)
    if name is None:
        return
    ours = pa.schema([field for field in schema if field.name not in partition_by])
    found = conflicts(ours, _schema_of(files, name))
    found += _partition_differences(partition_names("", name), partition_by)
    _require_no_misfit(files, f"the output of another writer, {name}", found)


def _schema_of(files: TargetFiles, name: str) -> Any:
    def read(filesystem: Any, path: str) -> Any:
        with filesystem.open(path, "rb") as file:
            try:
                return parquet.read_schema(file)
            except pa.ArrowException:
                return None

    found = files.storage.call(f"{files.storage.base_uri}/{name}", read)
    _require_no_misfit(files, f"the file {name}", [] if found is not None else ["it is not a Parquet file"])
    return found


def _partition_differences(theirs: tuple[str, ...], ours: tuple[str, ...]) -> list[str]:
    if theirs == ours:
        return []
    return [f"it is partitioned by {', '.join(theirs) or 'nothing'} there and by {', '.join(ours) or 'nothing'} here"]


def _require_no_misfit(files: TargetFiles, expected_by: str, found: list[str]) -> None:
    if found:
        raise UnsupportedStateError(
            f"Expected output for {files.target} that fits {expected_by}, found: {'; '.join(found)}. Only nullable "
            "columns can be added; convert the output in the stage, or choose another target.",
            differences=found,
        )
