"""
The committed output of another stage as a source.

An item is the output of one checkpoint of the upstream stage; it is read whole, and once. A commit that the upstream
stage retracts by a restore from an earlier checkpoint is a change of the source.
"""

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
from airflow_provider_statecheck.spark.sources.file_listing import FileListing, parse_paths
from airflow_provider_statecheck.spark.sources.file_source import (
    SMALLEST_TARGET_BYTES,
    WANTED_INCREMENTS,
    FileFormat,
    FileReader,
)
from airflow_provider_statecheck.spark.sources.source import AUTO, parse_bytes_per_increment, require_count
from airflow_provider_statecheck.spark.sources.source_changes import OnChange, compare, parse_on_change
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SHOWN = 5


class StageOutputSource:
    """
    The committed output of a ``ParquetSink``; the output of each upstream checkpoint is read whole, and once.

    A run reads the commits that are valid at its start; the next run reads later commits.

    :param path: Directory of one or several sinks.
    :param bytes_per_increment: Approximate input of one Spark job. The default ``"auto"`` is 1/64 of the input but at
        least 256 MiB, or no limit if ``checkpoints_per_increment`` is set. The output of a checkpoint is never cut.
    :param checkpoints_per_increment: Maximum number of upstream checkpoints in one Spark job.
    :param columns: Columns to read; all by default.
    :param on_change: Policy for output that the upstream stage retracted after it was read: ``"fail"``, ``"ignore"`` or
        ``"restart"``.
    :param storage_options: Options of the filesystem; by default those of the stage's checkpoint storage.
    :raises InvalidConfigurationError: if an argument is invalid.
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
        self._on_change = parse_on_change(on_change)
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
        List the commits and plan the unfinished ones.

        :param spark: The session that reads.
        :param restored: State from :meth:`ItemEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: ``True`` if a new run continues from the state of an earlier run and also reads new commits.
        :param storage_options: Options of the filesystem, unless the source has its own.
        :raises InvalidConfigurationError: if no sink has written to the directory.
        :raises SourceChangedError: if commits that were read have been retracted.
        :raises SourceRestartRequiredError: if so and ``on_change`` is ``"restart"``.
        """
        options = dict(storage_options or {}) if self._options is None else self._options.reveal()
        # Resolved once: a relative path refers to the directory of this process.
        uri = open_target(self._path, options).base_uri
        commits = commits_by_name(commits_in(uri, options))
        state = self._state(Ledger(tuple(commit.item for commit in commits.values())), restored, new_run=new_run)
        reader = StageOutputReader(spark, uri, commits, self._columns, self._on_change, options, state.reader)
        limits = Limits(size_bytes=self._bytes or state.target_bytes, items=self._checkpoints)
        return ItemEnumerator(state, limits, reader, lambda _: None)

    def _state(self, now: Ledger, restored: Mapping[str, Any] | None, *, new_run: bool) -> SourceState:
        if restored is None:
            return SourceState(now, target_bytes=self._target(now))
        before = decode_source_state(restored)
        ledger = reconcile_commits(before.ledger, now.items, on_change=self._on_change, new_run=new_run)
        # The target size is constant within a run, so that a restarted attempt plans the same increments.
        is_same_run = self._is_auto and not new_run and before.target_bytes
        target = before.target_bytes if is_same_run else self._target(ledger)
        return SourceState(ledger, before.increments, target, before.reader)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None


class StageOutputReader:
    """
    Reads the files of commits.

    :param uri: Directory of the sink.
    :param commits: Commits by the names of their items.
    :param columns: Columns to read; all for ``None``.
    :param restored: State from :meth:`snapshot` of an earlier reader.
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
        self._listing = FileListing(parse_paths(uri), options)
        self._schema_json: str | None = (restored or {}).get("schema")
        self._spark = spark
        self._columns = columns

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Verify that the files of commits still exist.

        :raises SourceChangedError: if a file is gone, unless the policy is ``RESTART``.
        :raises SourceRestartRequiredError: if a file is gone and the policy is ``RESTART``.
        """
        owners = {file.uri: item.name for item in items for file in self._commits[item.name].files}
        sizes = {file.uri: file.size_bytes for item in items for file in self._commits[item.name].files}
        changes = self._listing.changes([Item(uri, size, b"") for uri, size in sizes.items()])
        # The name of a file identifies its content, so a new modification time is not a change.
        changed = [item.name for item in changes.changed if item.size_bytes != sizes[item.name]]
        gone = dict.fromkeys(owners[uri] for uri in [*(item.name for item in changes.vanished), *changed])
        if gone:
            policy = OnChange.RESTART if self._on_change is OnChange.RESTART else OnChange.FAIL
            raise retraction_error(list(gone), policy)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """
        Return the rows of commits.

        :raises InvalidConfigurationError: if Spark has no filesystem for the files.
        """
        files = [file for split in splits if split.item for file in self._commits[split.item.name].files]
        items = [Item(file.uri, file.size_bytes, b"") for file in files]
        return self._file_reader(items).load([ItemSplit(item.name, item.size_bytes, item) for item in items])

    def snapshot(self) -> dict[str, Any]:
        """Return the state for the next attempt: the schema, once an increment was read."""
        return {"schema": self._schema_json}

    def _file_reader(self, items: Sequence[Item]) -> FileReader:
        file_format = FileFormat(name="parquet", options={}, columns=self._columns)
        restored = {"schema": self._schema()}
        return FileReader(self._spark, file_format, self._listing, items, on_change=self._on_change, restored=restored)

    def _schema(self) -> str:
        if self._schema_json is None:
            lineages = [commit.lineage for commit in self._commits.values()]
            self._schema_json = schema_of(self._uri, lineages, self._listing.options).json()
        return self._schema_json


@dataclass(frozen=True, slots=True)
class Commit:
    """The committed files of one checkpoint of a sink."""

    lineage: str
    checkpoint_id: int
    files: tuple[CommittedFile, ...]

    @property
    def item(self) -> Item:
        """The commit as an item; its version is the names of the files, which identify their content."""
        names = sorted(file.uri.rpartition("/")[2] for file in self.files)
        return Item.of(f"{self.lineage}/{self.checkpoint_id}", sum(file.size_bytes for file in self.files), names)


def commits_in(path: str, options: Mapping[str, Any]) -> tuple[Commit, ...]:
    """
    Return the checkpoints with valid output, in the order of their commits.

    :raises InvalidConfigurationError: if no sink has written to the directory.
    :raises StorageError: if the storage fails, or sinks commit faster than their ledgers can be read.
    """
    by_commit = sorted(committed_files(path, storage_options=options), key=_commit_of)
    if not by_commit:
        _require_ledger(path, options)
    groups = ((commit, tuple(files)) for commit, files in groupby(by_commit, key=_commit_of))
    return tuple(Commit(lineage, checkpoint_id, files) for (checkpoint_id, lineage), files in groups)


def schema_of(path: str, lineages: Iterable[str], options: Mapping[str, Any]) -> StructType:
    """Return the columns of all files that the sinks of some lineages have committed."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    ledgers = [SinkLedger.load(TargetFiles.open(path, lineage, options)) for lineage in sorted(set(lineages))]
    latest = [ledger.latest_schema for ledger in ledgers]
    schemas = [decode_schema(record.schema) for record in latest if record is not None]
    fields = {field.name: field for schema in schemas for field in schema}
    return from_arrow_schema(pa.schema(list(fields.values())))


def commits_by_name(commits: Sequence[Commit]) -> dict[str, Commit]:
    """Return commits by the names of their items."""
    return {commit.item.name: commit for commit in commits}


def _commit_of(file: CommittedFile) -> tuple[int, str]:
    return file.checkpoint_id, file.lineage


def _require_ledger(path: str, options: Mapping[str, Any]) -> None:
    storage = open_target(path, options)
    if not storage.list_files(f"{storage.base_uri}/{LEDGER_DIRECTORY}"):
        raise InvalidConfigurationError(
            f"Expected output of a ParquetSink in {storage!r}, found no ledger; correct the path, or run the upstream stage "
            "first."
        )


def reconcile_commits(ledger: Ledger, now: Sequence[Item], *, on_change: OnChange, new_run: bool) -> Ledger:
    """
    Return the ledger after a new listing of the commits.

    A new run adds the commits that appeared since, and drops unread commits that were retracted. Within a run, any
    retracted commit is a change.

    :param now: All valid commits.
    :raises SourceChangedError: if commits were retracted and the policy is ``FAIL``.
    :raises SourceRestartRequiredError: if commits were retracted and the policy is ``RESTART``.
    """
    retracted = _retracted_items(ledger, now)
    finished = {ledger.items[i].name for i in ledger.finished}
    unexpected = [item for item in retracted if not new_run or item.name in finished]
    if unexpected and on_change is not OnChange.IGNORE:
        raise retraction_error([item.name for item in unexpected], on_change)
    retracted_names = {item.name for item in retracted}
    known = [item for item in ledger.items if item.name not in retracted_names]
    names = {item.name for item in known}
    appeared = [item for item in now if item.name not in names]
    return ledger.with_items([*known, *appeared] if new_run else known)


def retraction_error(names: Sequence[str], on_change: OnChange) -> SourceChangedError | SourceRestartRequiredError:
    """Return the error for retracted commits."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    found = (
        f"Expected the output of the upstream stage as it was listed, found that it retracted {_describe_commits(names)}{more}, "
        "because it restored an earlier checkpoint or started over"
    )
    if on_change is OnChange.RESTART:
        return SourceRestartRequiredError(f"{found}; the stage starts over, because on_change is 'restart'.")
    return SourceChangedError(
        f"{found}. Set on_change to 'restart' to read everything again, or to 'ignore' to retain what was read and continue "
        "with the current output."
    )


def _retracted_items(ledger: Ledger, now: Sequence[Item]) -> list[Item]:
    changes = compare(ledger.items, now)
    changed = {item.name for item in changes.changed}
    return [*changes.vanished, *(item for item in ledger.items if item.name in changed)]


def _describe_commits(names: Sequence[str]) -> str:
    pairs = [name.partition("/") for name in names[:_SHOWN]]
    return ", ".join(f"checkpoint {checkpoint} of {lineage}" for lineage, _, checkpoint in pairs)
