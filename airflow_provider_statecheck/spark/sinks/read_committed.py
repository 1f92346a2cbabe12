"""Reading the committed output of a sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.spark.sinks.commits.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.commits.commit_log import Publication
from airflow_provider_statecheck.spark.sinks.parquet_sink import ledger_storage, named_files
from airflow_provider_statecheck.spark.sinks.sink import Committable, decode_schema
from airflow_provider_statecheck.spark.sinks.target_files import open_target
from airflow_provider_statecheck.spark.snapshots.dataframes import VERIFIED_PAGES
from airflow_provider_statecheck.spark.snapshots.hadoop_filesystems import HadoopFilesystems
from airflow_provider_statecheck.spark.tables.schemas import merged_schema, spark_schema
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
