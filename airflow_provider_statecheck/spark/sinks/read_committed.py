"""Reading the committed output of a sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.spark.sinks.ledger import COMMITS, CommitRecord, in_parallel
from airflow_provider_statecheck.spark.sinks.sink import decode_schema
from airflow_provider_statecheck.spark.sinks.target_files import LEDGER_DIRECTORY, open_target
from airflow_provider_statecheck.spark.snapshots.dataframes import VERIFIED_PAGES
from airflow_provider_statecheck.spark.snapshots.hadoop_filesystems import HadoopFilesystems
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
            uri=f"{storage.base_uri}/{file.name}",
            size_bytes=file.size_bytes,
            rows=file.rows,
            lineage=lineage,
            checkpoint_id=record.checkpoint_id,
        )
        for lineage, record in _records_in_force(storage)
        for file in record.files
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
    from pyspark.sql.pandas.types import from_arrow_schema

    storage = open_target(path, storage_options or {})
    base = _spark_uri(spark, storage.base_uri)
    found = _records_in_force(storage)
    schema = from_arrow_schema(_table_schema(storage, [record for _, record in found]))
    uris = [f"{base}/{file.name}" for _, record in found for file in record.files]
    if not uris:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).options(**VERIFIED_PAGES).option("basePath", base).parquet(*uris)


def _spark_uri(spark: SparkSession, uri: str) -> str:
    found = HadoopFilesystems().spark_uri(spark, uri)
    if found is None:
        raise EnvironmentNotReadyError(
            f"Expected Spark to have a filesystem for {redact(uri)}, found none; add its package to Spark, or read the files "
            "of committed_files without Spark."
        )
    return found


def _records_in_force(storage: CheckpointStorage) -> list[tuple[str, CommitRecord]]:
    for _ in range(_TRIES):
        records = _records(storage)
        if records is not None:
            return [(lineage, r) for lineage, of_lineage in records.items() for r in _not_replaced(of_lineage)]
    raise StorageError(
        f"Expected to read the ledgers of {storage!r} between two commits, found them changed {_TRIES} times; try again."
    )


def _records(storage: CheckpointStorage) -> dict[str, list[CommitRecord]] | None:
    ledgers = f"{storage.base_uri}/{LEDGER_DIRECTORY}"
    names = sorted(n for n in storage.list_files(ledgers) if len(n.split("/")) == 3 and n.split("/")[1] == COMMITS)
    contents = in_parallel(lambda name: _read(storage, f"{ledgers}/{name}"), names, is_local=storage.is_local)
    records: dict[str, list[CommitRecord]] = {}
    for name, content in zip(names, contents, strict=True):
        if content is None:
            return None
        records.setdefault(name.split("/")[0], []).append(CommitRecord.decode(content, name))
    return records


def _read(storage: CheckpointStorage, uri: str) -> bytes | None:
    try:
        return storage.read_bytes(uri)
    except CheckpointNotFoundError:
        return None


def _not_replaced(records: Iterable[CommitRecord]) -> list[CommitRecord]:
    records = list(records)
    newest = max(records, key=lambda record: record.order)
    return [r for r in records if not newest.replaces(r)]


def _table_schema(storage: CheckpointStorage, records: Iterable[CommitRecord]) -> Any:
    import pyarrow as pa

    schemas = [decode_schema(record.schema) for record in sorted(records, key=lambda r: r.order) if record.schema]
    if not schemas:
        raise StorageError(f"Expected output of a sink in {storage!r}, found no commit; run a stage that writes there.")
    fields = {field.name: field for schema in schemas for field in schema}
    return pa.schema(list(fields.values()))
