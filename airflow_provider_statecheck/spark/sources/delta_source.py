"""A Delta table as a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.spark.sinks.delta.delta_table import (
    DeltaLog,
    DeltaSnapshot,
    DeltaTableAccess,
    library_options,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.delta_files import (
    DataFile,
    DeltaReader,
    Position,
    additions,
    files_at,
    require_plain_files,
)
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    Limits,
    SourceState,
    decode_source_state,
)
from airflow_provider_statecheck.spark.sources.file_source import SMALLEST_TARGET_BYTES, WANTED_INCREMENTS, column_names
from airflow_provider_statecheck.spark.sources.source import AUTO, parse_bytes_per_increment, require_count
from airflow_provider_statecheck.spark.sources.source_changes import OnChange, parse_on_change
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN = 5


class DeltaSource:
    """
    The rows of a Delta table at its current version; a later run reads the rows added since.

    :param table: Directory of the table: a path or a URI.
    :param starting_version: The first run reads the rows added by this and later versions; by default the whole table.
    :param bytes_per_increment: Approximate input of one Spark job. The default ``"auto"`` is 1/64 of the input but at
        least 256 MiB, or no limit if ``files_per_increment`` is set.
    :param files_per_increment: Maximum number of files in one Spark job.
    :param columns: Columns to read; all by default.
    :param on_change: Policy for versions that change or delete earlier rows: ``"fail"``, ``"ignore"`` to skip these
        versions, or ``"restart"``.
    :param storage_options: Options of the filesystem; by default those of the stage's checkpoint storage.
    :param delta_options: Options of deltalake for the same storage; by default derived from ``storage_options``.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    def __init__(
        self,
        table: str,
        *,
        starting_version: int | None = None,
        bytes_per_increment: str | int | None = "auto",
        files_per_increment: int | None = None,
        columns: Sequence[str] | None = None,
        on_change: str = "fail",
        storage_options: Mapping[str, Any] | None = None,
        delta_options: Mapping[str, str] | None = None,
    ) -> None:
        if starting_version is not None and starting_version < 0:
            raise InvalidConfigurationError(f"Expected starting_version of 0 or more, found {starting_version}.")
        self.table = table
        self._starting_version = starting_version
        self._files = None if files_per_increment is None else require_count(files_per_increment, "files_per_increment")
        self._is_auto = bytes_per_increment == AUTO and self._files is None
        self._bytes = parse_bytes_per_increment(bytes_per_increment)
        self._columns = None if columns is None else column_names(columns)
        self._on_change = parse_on_change(on_change)
        self._options = None if storage_options is None else HiddenOptions(storage_options)
        self._delta_options = None if delta_options is None else HiddenOptions(delta_options)

    def __repr__(self) -> str:
        return f"DeltaSource({redact(self.table)!r})"

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        List the files of the table and plan the unfinished ones.

        :param spark: The session that reads.
        :param restored: State from :meth:`ItemEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: ``True`` if a new run continues from the state of an earlier run and also reads added rows.
        :param storage_options: Options of the filesystem for listing; may contain credentials.
        :raises EnvironmentNotReadyError: if deltalake is not installed.
        :raises InvalidConfigurationError: if there is no table, or the log of ``starting_version`` has been deleted.
        :raises UnsupportedStateError: if the rows of the table are not exactly those of its Parquet files.
        :raises SourceChangedError: if earlier rows have changed.
        :raises SourceRestartRequiredError: if they have changed and ``on_change`` is ``"restart"``.
        """
        options = storage_options if self._options is None else self._options.reveal()
        storage = CheckpointStorage.open(self.table, **dict(options or {}))
        if restored is None:
            state, position = self._fresh_start(storage)
        else:
            state = decode_source_state(restored)
            position = Position.decode(state.reader)
            if new_run:
                state, position = self._new_run(storage, state, position)
        limits = Limits(size_bytes=self._bytes or state.target_bytes, items=self._files)
        reader = DeltaReader(spark, storage, position, columns=self._columns, on_change=self._on_change)
        return ItemEnumerator(state, limits, reader, lambda _: None)

    def _fresh_start(self, storage: CheckpointStorage) -> tuple[SourceState, Position]:
        snapshot = self._snapshot(storage)
        shown = redact(storage.base_uri)
        if self._starting_version is None:
            files: Iterable[DataFile] = files_at(snapshot, shown)
        else:
            files = self._added_from(storage, snapshot, self._starting_version)
        return self._state(file.item for file in files), _position_of(snapshot)

    def _new_run(
        self, storage: CheckpointStorage, before: SourceState, position: Position
    ) -> tuple[SourceState, Position]:
        snapshot = self._snapshot(storage)
        shown = redact(storage.base_uri)
        if snapshot.table_id != position.table_id or snapshot.version < position.version:
            raise self._changed(shown, position.version, "it was recreated")
        require_plain_files(snapshot, shown)
        log = DeltaLog(storage)
        found = additions(log, position.version + 1, snapshot, shown)
        if found.missing is not None:
            raise self._changed(shown, position.version, f"the log of version {found.missing} was deleted")
        if found.changing and self._on_change is not OnChange.IGNORE:
            raise self._changed(shown, position.version, _describe_versions(found.changing))
        # The version covers all finished files, so the new listing starts with the unfinished ones.
        left = [item for i, item in enumerate(before.ledger.items) if i not in before.ledger.finished]
        state = self._state([*left, *(file.item for file in found.files.values())], before.increments)
        return state, _position_of(snapshot)

    def _added_from(self, storage: CheckpointStorage, snapshot: DeltaSnapshot, first: int) -> Iterable[DataFile]:
        shown = redact(storage.base_uri)
        if first > snapshot.version + 1:
            raise InvalidConfigurationError(
                f"Expected starting_version of at most {snapshot.version + 1} for {shown}, found {first}."
            )
        require_plain_files(snapshot, shown)
        found = additions(DeltaLog(storage), first, snapshot, shown)
        if found.missing is not None:
            raise InvalidConfigurationError(
                f"Expected the log of {shown} from version {first} on, found that version {found.missing} was deleted; start at a "
                "later version, or with the whole table."
            )
        if found.changing and self._on_change is not OnChange.IGNORE:
            raise SourceChangedError(
                f"Expected only added rows in {shown} from version {first} on, found that {_describe_versions(found.changing)}. "
                "Start after these versions, or set on_change to 'ignore' to skip them."
            )
        return found.files.values()

    def _state(self, items: Iterable[Item], increments: int = 0) -> SourceState:
        ledger = Ledger(tuple(items))
        target = max(SMALLEST_TARGET_BYTES, ledger.total_bytes // WANTED_INCREMENTS) if self._is_auto else None
        return SourceState(ledger, increments, target)

    def _snapshot(self, storage: CheckpointStorage) -> DeltaSnapshot:
        options = self._delta_options or HiddenOptions(library_options(storage.base_uri, storage.options))
        found = DeltaTableAccess(storage.base_uri, options).snapshot()
        if found is None:
            raise InvalidConfigurationError(
                f"Expected a Delta table in {redact(storage.base_uri)}, found none; correct the path."
            )
        return found

    def _changed(self, shown: str, version: int, what: str) -> SourceChangedError | SourceRestartRequiredError:
        message = f"Expected only added rows in the Delta table {shown} since version {version}, found that {what}"
        if self._on_change is OnChange.RESTART:
            return SourceRestartRequiredError(f"{message}; the stage starts over, because on_change is 'restart'.")
        return SourceChangedError(
            f"{message}. Set on_change to 'restart' to read everything again, or to 'ignore' to skip versions that change "
            "rows, if their log is retained."
        )


def _position_of(snapshot: DeltaSnapshot) -> Position:
    schema = str(snapshot.handle.schema().to_json())
    return Position(snapshot.version, snapshot.table_id, schema, snapshot.partition_by)


def _describe_versions(versions: Sequence[int]) -> str:
    shown = ", ".join(str(version) for version in versions[:_SHOWN])
    more = f" and {len(versions) - _SHOWN} more" if len(versions) > _SHOWN else ""
    return f"rows were changed or deleted by version {shown}{more}"
