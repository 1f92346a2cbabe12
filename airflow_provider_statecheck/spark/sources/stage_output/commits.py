"""The committed checkpoints of a Parquet sink's directory, as items of a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sinks.committable import decode_schema
from airflow_provider_statecheck.spark.sinks.committed import CommittedFile, committed_files
from airflow_provider_statecheck.spark.sinks.ledger import Ledger as SinkLedger
from airflow_provider_statecheck.spark.sinks.names import LEDGER_DIRECTORY
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, open_target
from airflow_provider_statecheck.spark.sources.item import Item

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Commit:
    """The files of one checkpoint of one sink."""

    lineage: str
    checkpoint_id: int
    files: tuple[CommittedFile, ...]

    @property
    def item(self) -> Item:
        """Return it as a source knows it; the names of files say what is in them."""
        names = sorted(file.uri.rpartition("/")[2] for file in self.files)
        return Item.of(f"{self.lineage}/{self.checkpoint_id}", sum(file.size_bytes for file in self.files), names)


def commits_in(path: str, options: Mapping[str, Any]) -> tuple[Commit, ...]:
    """
    Return the checkpoints whose output is in force, in the order in which a sink has committed them.

    :raises InvalidConfigurationError: if no sink ever wrote there.
    :raises StorageError: if the storage fails, or sinks commit faster than their ledgers can be read.
    """
    by_commit = sorted(committed_files(path, storage_options=options), key=_commit_of)
    if not by_commit:
        _require_ledger(path, options)
    groups = ((commit, tuple(files)) for commit, files in groupby(by_commit, key=_commit_of))
    return tuple(Commit(lineage, checkpoint_id, files) for (checkpoint_id, lineage), files in groups)


def schema_of(path: str, lineages: Iterable[str], options: Mapping[str, Any]) -> StructType:
    """Return the columns of all files that sinks of some lineages have committed."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    ledgers = [SinkLedger.load(TargetFiles.open(path, lineage, options)) for lineage in sorted(set(lineages))]
    latest = [ledger.latest_schema for ledger in ledgers]
    schemas = [decode_schema(record.schema) for record in latest if record is not None]
    fields = {field.name: field for schema in schemas for field in schema}
    return from_arrow_schema(pa.schema(list(fields.values())))


def names_of(commits: Sequence[Commit]) -> dict[str, Commit]:
    """Return checkpoints by the names of their items."""
    return {commit.item.name: commit for commit in commits}


def _commit_of(file: CommittedFile) -> tuple[int, str]:
    return file.checkpoint_id, file.lineage


def _require_ledger(path: str, options: Mapping[str, Any]) -> None:
    storage = open_target(path, options)
    if not storage.list_files(f"{storage.base_uri}/{LEDGER_DIRECTORY}"):
        raise InvalidConfigurationError(
            f"Expected output of a ParquetSink in {storage!r}, found no ledger of one; correct the path, or run the stage that "
            "writes there first."
        )
