"""A Delta table as a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.delta_reader import DeltaReader
from airflow_provider_statecheck.spark.sources.enumerator import ItemReader
from airflow_provider_statecheck.spark.sources.item_source import ItemSource, Opening, hidden_options, parse_columns
from airflow_provider_statecheck.spark.sources.planning import parse_limits
from airflow_provider_statecheck.spark.sources.source import OnChange, change_error, some_of
from airflow_provider_statecheck.spark.tables.delta import DeltaSnapshot, DeltaTableAccess, library_options
from airflow_provider_statecheck.spark.tables.delta_files import DataFile, PlainTable, Position
from airflow_provider_statecheck.state.source_items import Ledger
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact


class DeltaSource(ItemSource):
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
        super().__init__(parse_limits(bytes_per_increment, ("files_per_increment", files_per_increment)), on_change)
        self.table = table
        self._starting_version = starting_version
        self._columns = parse_columns(columns)
        self._options = hidden_options(storage_options)
        self._delta_options = hidden_options(delta_options)

    def __repr__(self) -> str:
        return f"DeltaSource({redact(self.table)!r})"

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        storage = CheckpointStorage.open(self.table, **opening.options(self._options))
        if opening.before is None:
            ledger, position = self._fresh_start(storage)
        else:
            # Without the log: a restarted run reads the files that it has listed before.
            ledger, position = opening.before.ledger, Position.decode(opening.reader_state)
            if opening.is_new_run:
                ledger, position = self._new_run(storage, ledger, position)
        reader = DeltaReader(opening.spark, storage, position, columns=self._columns, on_change=self._on_change)
        return ledger, reader

    def _fresh_start(self, storage: CheckpointStorage) -> tuple[Ledger, Position]:
        snapshot = self._snapshot(storage)
        table, first = PlainTable(storage, snapshot), self._starting_version
        files = table.files() if first is None else self._added_from(table, first, snapshot.version)
        return Ledger(tuple(file.item for file in files)), table.position()

    def _new_run(self, storage: CheckpointStorage, before: Ledger, position: Position) -> tuple[Ledger, Position]:
        snapshot = self._snapshot(storage)
        shown = redact(storage.base_uri)
        if snapshot.table_id != position.table_id or snapshot.version < position.version:
            raise self._changed(shown, position.version, "it was recreated")
        table = PlainTable(storage, snapshot)
        found = table.additions(position.version + 1)
        if found.missing is not None:
            raise self._changed(shown, position.version, f"the log of version {found.missing} was deleted")
        if found.changing and self._on_change is not OnChange.IGNORE:
            raise self._changed(shown, position.version, _describe_versions(found.changing))
        # The version covers all finished files, so the new listing starts with the unfinished ones.
        return Ledger((*before.unfinished, *(file.item for file in found.files.values()))), table.position()

    def _added_from(self, table: PlainTable, first: int, newest: int) -> Iterable[DataFile]:
        if first > newest + 1:
            raise InvalidConfigurationError(
                f"Expected starting_version of at most {newest + 1} for {table.shown}, found {first}."
            )
        found = table.additions(first)
        if found.missing is not None:
            raise InvalidConfigurationError(
                f"Expected the log of {table.shown} from version {first} on, found that version {found.missing} was deleted; "
                "start at a later version, or with the whole table."
            )
        if found.changing and self._on_change is not OnChange.IGNORE:
            raise SourceChangedError(
                f"Expected only added rows in {table.shown} from version {first} on, found that "
                f"{_describe_versions(found.changing)}. Start after these versions, or set on_change to 'ignore' to skip them."
            )
        return found.files.values()

    def _snapshot(self, storage: CheckpointStorage) -> DeltaSnapshot:
        options = self._delta_options or HiddenOptions(library_options(storage.base_uri, storage.options))
        found = DeltaTableAccess(storage.base_uri, options).snapshot()
        if found is None:
            raise InvalidConfigurationError(
                f"Expected a Delta table in {redact(storage.base_uri)}, found none; correct the path."
            )
        return found

    def _changed(self, shown: str, version: int, what: str) -> SourceChangedError | SourceRestartRequiredError:
        return change_error(
            f"Expected only added rows in the Delta table {shown} since version {version}, found that {what}",
            "Set on_change to 'restart' to read everything again, or to 'ignore' to skip versions that change rows, if their "
            "log is retained.",
            self._on_change,
        )


def _describe_versions(versions: Sequence[int]) -> str:
    return f"rows were changed or deleted by version {some_of([str(version) for version in versions])}"
