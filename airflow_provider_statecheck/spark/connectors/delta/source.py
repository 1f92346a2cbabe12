"""A Delta table as a source, and the reader of its data files."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.delta.table import DeltaSnapshot, DeltaTableAccess
from airflow_provider_statecheck.spark.connectors.delta.table_files import DataFile, PlainTable, Position
from airflow_provider_statecheck.spark.connectors.enumerator import ItemReader, ItemSplit, parse_limits
from airflow_provider_statecheck.spark.connectors.files.listing import FileListing, SourcePath
from airflow_provider_statecheck.spark.connectors.files.reader import FileFormat, FileReader
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource, Opening, parse_columns
from airflow_provider_statecheck.spark.connectors.source import (
    Changes,
    OnChange,
    change_error,
    require_unchanged,
    restart_or_rewind,
    some_of,
)
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.spark.snapshots.executor_io import hidden_options
from airflow_provider_statecheck.spark.tables.alignment import is_case_sensitive
from airflow_provider_statecheck.spark.tables.cutting import find_column
from airflow_provider_statecheck.spark.tables.partition_directories import (
    PartitionValues,
    decoded_values,
    is_cast_like_a_directory,
    raw_partition_values,
)
from airflow_provider_statecheck.spark.tables.schemas import quoted_column, union_all
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import path_text, redact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType


class DeltaReader(FileReader):
    """
    Reads data files of a Delta table as plain Parquet files.

    :param position: Version and schema of the table.
    :param columns: Columns to read; all for ``None``.
    :param on_change: Policy for files that were deleted.
    """

    def __init__(
        self,
        spark: SparkSession,
        storage: CheckpointStorage,
        position: Position,
        *,
        columns: tuple[str, ...] | None,
        on_change: OnChange,
    ) -> None:
        listing = FileListing((SourcePath(storage.base_uri),), storage.options)
        super().__init__(
            spark, FileFormat(name="parquet", options={}, columns=columns), listing, (), on_change=on_change
        )
        self._storage = storage
        self._position = position

    @functools.cached_property
    @override
    def schema(self) -> StructType:
        from pyspark.sql.types import StructField, StructType

        fields = parse_schema(self._position.schema).fields
        return StructType([StructField(field.name, field.dataType) for field in fields])

    @override
    def snapshot(self) -> dict[str, Any]:
        return self._position.encode()

    @override
    def require_unchanged(self, items: Sequence[Item]) -> None:
        # An existing data file never changes.
        files = [DataFile.of(item) for item in items]
        exists = in_parallel(self._exists, files, is_local=self._storage.is_local)
        gone = [Item.of(f.path, f.size_bytes, "") for f, found in zip(files, exists, strict=True) if not found]
        require_unchanged(Changes(vanished=tuple(gone)), self._on_change)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        in_directories: dict[str, list[str]] = {}
        by_values: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
        for file in (DataFile.of(split.item) for split in splits):
            root = self._partition_root(file)
            if root is None:
                by_values.setdefault(tuple(file.values.items()), []).append(self._uri(file.path))
            else:
                in_directories.setdefault(self._uri(root), []).append(self._uri(file.path))
        frames = [self._whole_files(root, uris) for root, uris in in_directories.items()]
        frames += [self._with_values(dict(values), uris) for values, uris in by_values.items()]
        return union_all(frames)

    def _with_values(self, values: PartitionValues, uris: Sequence[str]) -> DataFrame:
        from pyspark.sql.types import StructType

        plain = StructType([field for field in self.schema.fields if field.name not in values])
        # Without a base: Spark refuses some of the names that other writers give to directories.
        frame = self._read("", uris, plain)
        return frame.select([self._column(field, values) for field in self.selected_schema.fields])

    def _column(self, field: StructField, values: PartitionValues) -> Column:
        from pyspark.sql import functions

        name = find_column(values, field.name, is_case_sensitive=is_case_sensitive(self.spark))
        if name is None:
            return quoted_column(field.name)
        return functions.lit(values[name]).cast(field.dataType).alias(field.name)

    def _partition_root(self, file: DataFile) -> str | None:
        # Spark can read thousands of partitions in one scan if their values are in the directory names.
        directories = file.path.split("/")[:-1]
        count = len(file.values)
        root = directories[: len(directories) - count]
        if len(directories) < count or any("=" in directory for directory in root):
            return None
        # A text is percent-encoded by some writers as UTF-8, which Spark decodes in another way.
        raw = raw_partition_values("/".join(root), file.path) if count else {}
        if decoded_values(raw) != file.values:
            return None
        is_alike = all(is_cast_like_a_directory(text, self.schema[name].dataType) for name, text in raw.items())
        return ("/".join(root) if count else "") if is_alike else None

    def _exists(self, file: DataFile) -> bool:
        return self._storage.exists(self._uri(file.path))

    def _uri(self, path: str) -> str:
        return f"{self._storage.base_uri}/{path}" if path else self._storage.base_uri


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
        table: str | PathLike[str],
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
        self.table = path_text(table)
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
        changed = functools.partial(self._changed, redact(storage.base_uri), position.version, before)
        if snapshot.table_id != position.table_id or snapshot.version < position.version:
            raise changed("it was recreated")
        table = PlainTable(storage, snapshot)
        found = table.additions(position.version + 1)
        if found.missing is not None:
            raise changed(f"the log of version {found.missing} was deleted")
        if found.changing and self._on_change is not OnChange.IGNORE:
            raise changed(_describe_versions(found.changing))
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
                f"Expected the log of {table.shown} from version {first} on, found that version {found.missing} was "
                "deleted; start at a later version, or with the whole table."
            )
        if found.changing and self._on_change is not OnChange.IGNORE:
            raise SourceChangedError(
                f"Expected only added rows in {table.shown} from version {first} on, found that "
                f"{_describe_versions(found.changing)}. Start after these versions, or set on_change to 'ignore' to "
                "skip them."
            )
        return found.files.values()

    def _snapshot(self, storage: CheckpointStorage) -> DeltaSnapshot:
        found = DeltaTableAccess.of(storage, self._delta_options).snapshot()
        if found is None:
            raise InvalidConfigurationError(
                f"Expected a Delta table in {redact(storage.base_uri)}, found none; correct the path."
            )
        return found

    def _changed(
        self, shown: str, version: int, before: Ledger, what: str
    ) -> SourceChangedError | SourceRestartRequiredError:
        return change_error(
            f"Expected only added rows in the Delta table {shown} since version {version}, found that {what}",
            "Set on_change to 'ignore' to skip versions that change rows, if their log is retained, or "
            f"{restart_or_rewind(before, new_run=True)}.",
            self._on_change,
        )


def _describe_versions(versions: Sequence[int]) -> str:
    return f"rows were changed or deleted by version {some_of([str(version) for version in versions])}"
