"""The committed output of another stage as a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.spark.sinks.ledger import Ledger as SinkLedger
from airflow_provider_statecheck.spark.sinks.read_committed import CommittedFile, committed_files
from airflow_provider_statecheck.spark.sinks.sink import decode_schema
from airflow_provider_statecheck.spark.sinks.target_files import LEDGER_DIRECTORY, TargetFiles, open_target
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    ItemSplit,
    Limits,
    SourceState,
    decode_source_state,
)
from airflow_provider_statecheck.spark.sources.file_listing import FileListing, source_paths
from airflow_provider_statecheck.spark.sources.file_source import (
    SMALLEST_TARGET_BYTES,
    WANTED_INCREMENTS,
    FileFormat,
    FileReader,
)
from airflow_provider_statecheck.spark.sources.source import AUTO, parse_bytes_per_increment, require_count
from airflow_provider_statecheck.spark.sources.source_changes import OnChange, compare, on_change_of
from airflow_provider_statecheck.spark.sources.splits import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
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


_SHOWN = 5


def carried(ledger: Ledger, now: Sequence[Item], *, on_change: OnChange, new_run: bool) -> Ledger:
    """
    Return what is to be read, and what of it is finished.

    Commits that appeared belong to the next run. What was retracted before it was read is simply gone then; within a run
    it is missed.

    :param now: All commits that are in force.
    :raises SourceChangedError: if what was retracted matters and the stage is to fail.
    :raises SourceRestartRequiredError: if it is to begin again.
    """
    gone = _retracted(ledger, now)
    finished = {ledger.items[i].name for i in ledger.finished}
    missed = [item for item in gone if not new_run or item.name in finished]
    if missed and on_change is not OnChange.IGNORE:
        raise retracted([item.name for item in missed], on_change)
    lost = {item.name for item in gone}
    known = [item for item in ledger.items if item.name not in lost]
    names = {item.name for item in known}
    appeared = [item for item in now if item.name not in names]
    return ledger.carried_to([*known, *appeared] if new_run else known)


def retracted(names: Sequence[str], on_change: OnChange) -> SourceChangedError | SourceRestartRequiredError:
    """Return the error that says which commits are gone."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    found = (
        f"Expected the output of the stage upstream as it was when it was listed, found that it retracted {_described(names)}"
        f"{more}, because it fell back or began again"
    )
    if on_change is OnChange.RESTART:
        return SourceRestartRequiredError(f"{found}; the stage begins again, as on_change='restart' says.")
    return SourceChangedError(
        f"{found}. Set on_change to 'restart' to read everything again, or to 'ignore' to keep what was read and go on with "
        "what is there now."
    )


def _retracted(ledger: Ledger, now: Sequence[Item]) -> list[Item]:
    changes = compare(ledger.items, now)
    changed = {item.name for item in changes.changed}
    return [*changes.vanished, *(item for item in ledger.items if item.name in changed)]


def _described(names: Sequence[str]) -> str:
    pairs = [name.partition("/") for name in names[:_SHOWN]]
    return ", ".join(f"checkpoint {checkpoint} of {lineage}" for lineage, _, checkpoint in pairs)


class StageOutputReader:
    """
    Reads whole checkpoints.

    :param uri: The directory of the sink.
    :param commits: By the names of their items.
    :param columns: Which columns to read, ``None`` for all.
    :param restored: What an earlier reader of this source gave.
    """

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        commits: Mapping[str, Commit],
        columns: tuple[str, ...] | None,
        on_change: OnChange,
        options: Mapping[str, Any],
        restored: Mapping[str, Any] | None,
    ) -> None:
        self._uri = uri
        self._commits = commits
        self._on_change = on_change
        self._listing = FileListing(source_paths(uri), options)
        self._schema_json: str | None = (restored or {}).get("schema")
        self._spark = spark
        self._columns = columns

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Look for the files of commits again.

        :raises SourceChangedError: if one is gone and the stage is to fail.
        :raises SourceRestartRequiredError: if it is to begin again.
        """
        owners = {file.uri: item.name for item in items for file in self._commits[item.name].files}
        sizes = {file.uri: file.size_bytes for item in items for file in self._commits[item.name].files}
        changes = self._listing.changes([Item(uri, size, b"") for uri, size in sizes.items()])
        # What a file holds follows from its name, so its time of change says nothing.
        changed = [item.name for item in changes.changed if item.size_bytes != sizes[item.name]]
        gone = dict.fromkeys(owners[uri] for uri in [*(item.name for item in changes.vanished), *changed])
        if gone:
            raise retracted(list(gone), OnChange.RESTART if self._on_change is OnChange.RESTART else OnChange.FAIL)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """
        Return the rows of commits.

        :raises InvalidConfigurationError: if Spark does not reach the files.
        """
        files = [file for split in splits if split.item for file in self._commits[split.item.name].files]
        items = [Item(file.uri, file.size_bytes, b"") for file in files]
        return self._files(items).load([ItemSplit(item.name, item.size_bytes, item) for item in items])

    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to read in the same way: the columns, once something was read."""
        return {"schema": self._schema_json}

    def _files(self, items: Sequence[Item]) -> FileReader:
        file_format = FileFormat(name="parquet", options={}, columns=self._columns)
        restored = {"schema": self._schema()}
        return FileReader(self._spark, file_format, self._listing, items, on_change=self._on_change, restored=restored)

    def _schema(self) -> str:
        if self._schema_json is None:
            lineages = [commit.lineage for commit in self._commits.values()]
            self._schema_json = schema_of(self._uri, lineages, self._listing.options).json()
        return self._schema_json


class StageOutputSource:
    """
    What a ``ParquetSink`` has committed: each checkpoint upstream is read whole, and once.

    A run reads the commits that are in force when it begins; the next one reads those since.

    :param path: The directory that was given to the sink, or to several sinks.
    :param bytes_per_increment: About how much one Spark job reads. ``"auto"`` is a 64th of all, at least 256 MiB; where
        another limit is given, it is none. A checkpoint is never cut.
    :param checkpoints_per_increment: How many checkpoints of the stage upstream it reads at most.
    :param columns: Which columns to read; all by default.
    :param on_change: What to do if the stage upstream retracted what this one has read: ``"fail"``, ``"ignore"`` or
        ``"restart"``.
    :param storage_options: Options of the filesystem of the path; by default those of the stage's checkpoint storage.
    :raises InvalidConfigurationError: if an argument is out of its range.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        bytes_per_increment: str | int | None = "auto",
        checkpoints_per_increment: int | None = None,
        columns: Sequence[str] | None = None,
        on_change: str = "fail",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(columns, str):
            raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
        self._path = fspath(path)
        is_limited = checkpoints_per_increment is not None
        self._is_auto = bytes_per_increment == AUTO and not is_limited
        self._bytes = parse_bytes_per_increment(bytes_per_increment)
        self._checkpoints = (
            require_count(checkpoints_per_increment, "checkpoints_per_increment") if is_limited else None
        )
        self._columns = None if columns is None else tuple(columns)
        self._on_change = on_change_of(on_change)
        self._options = None if storage_options is None else HiddenOptions(storage_options)

    def __repr__(self) -> str:
        return f"StageOutputSource({redact(self._path)!r})"

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        Look which commits are in force and plan what is left of them.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what appeared since is read.
        :param storage_options: Options of the filesystem, where the source has none of its own.
        :raises InvalidConfigurationError: if no sink ever wrote there.
        :raises SourceChangedError: if commits that were read are retracted.
        :raises SourceRestartRequiredError: if they are and the stage is to begin again.
        """
        options = dict(storage_options or {}) if self._options is None else self._options.reveal()
        # Once for all that is read: a relative path begins in the directory of this process.
        uri = open_target(self._path, options).base_uri
        commits = names_of(commits_in(uri, options))
        state = self._state(Ledger(tuple(commit.item for commit in commits.values())), restored, new_run=new_run)
        reader = StageOutputReader(spark, uri, commits, self._columns, self._on_change, options, state.reader)
        limits = Limits(size_bytes=self._bytes or state.target_bytes, items=self._checkpoints)
        return ItemEnumerator(state, limits, reader, lambda _: None)

    def _state(self, now: Ledger, restored: Mapping[str, Any] | None, *, new_run: bool) -> SourceState:
        if restored is None:
            return SourceState(now, target_bytes=self._target(now))
        before = decode_source_state(restored)
        ledger = carried(before.ledger, now.items, on_change=self._on_change, new_run=new_run)
        # Within a run increments stay as large as they were, so that they are the same ones.
        is_kept = self._is_auto and not new_run and before.target_bytes
        target = before.target_bytes if is_kept else self._target(ledger)
        return SourceState(ledger, before.increments, target, before.reader)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None
