"""
Sources of files, including CSV and JSON.

The driver lists the files; Spark reads each increment with an explicit schema. An inferred schema is stored in
checkpoints, so all attempts of a run read the same columns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from os import PathLike
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.spark.snapshots.dataframes import VERIFIED_PAGES
from airflow_provider_statecheck.spark.snapshots.hadoop_filesystems import HadoopFilesystems
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    ItemSplit,
    Limits,
    SourceState,
    decode_source_state,
)
from airflow_provider_statecheck.spark.sources.file_listing import (
    FileListing,
    parse_paths,
    partition_values,
    require_same_partition_columns,
)
from airflow_provider_statecheck.spark.sources.source import AUTO, parse_bytes_per_increment, require_count
from airflow_provider_statecheck.spark.sources.source_changes import (
    OnChange,
    parse_on_change,
    reconcile,
    require_unchanged,
)
from airflow_provider_statecheck.spark.sources.source_columns import (
    quoted_column,
    require_schema,
    select_fields,
    to_struct_type,
)
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

# Characters that Spark expands as wildcards even in the names of existing files.
_EXPANDED = re.compile(r"([\\*?\[\]{}])")

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

SMALLEST_TARGET_BYTES = 256 * 1024 * 1024
WANTED_INCREMENTS = 64

# Options that let Spark skip listed files, or return other columns than the schema of the source.
_REFUSED_OPTIONS = frozenset(
    {"basepath", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "mergeschema", "path"}
)


class FileSource:
    """Base class of the sources of files."""

    _format = ""

    def __init__(
        self,
        path: Paths,
        *,
        bytes_per_increment: str | int | None = "auto",
        files_per_increment: int | None = None,
        row_groups_per_increment: int | None = None,
        columns: Sequence[str] | None = None,
        schema: Any = None,
        on_change: str = "fail",
        order: str = "path",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._paths = parse_paths(path)
        self._files = _count(files_per_increment, "files_per_increment")
        self._row_groups = _count(row_groups_per_increment, "row_groups_per_increment")
        self._is_auto = bytes_per_increment == AUTO and self._files is None and self._row_groups is None
        self._bytes = parse_bytes_per_increment(bytes_per_increment)
        self._on_change: OnChange = parse_on_change(on_change)
        self._order = _parse_order(order)
        names = None if columns is None else column_names(columns)
        self._file_format = FileFormat(
            name=self._format, options=_allowed_options(options), schema=schema, columns=names
        )

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        List the files and plan the unfinished ones.

        :param spark: The session that reads.
        :param restored: State from :meth:`ItemEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: ``True`` if a new run continues from the state of an earlier run and also reads new files.
        :param storage_options: Options of the filesystem for listing; may contain credentials.
        :raises InvalidConfigurationError: if there are no files on a fresh start.
        :raises SourceChangedError: if listed files have changed.
        :raises SourceRestartRequiredError: if they have changed and ``on_change`` is ``"restart"``.
        """
        listing = FileListing(self._paths, dict(storage_options or {}), self._order)
        state = self._state(listing.files(), restored, new_run=new_run)
        require_same_partition_columns((listing.root_of(item.name), item.name) for item in state.ledger.items)
        reader = self._reader(spark, listing, state)
        limits = Limits(size_bytes=self._bytes or state.target_bytes, items=self._files, row_groups=self._row_groups)
        return ItemEnumerator(
            state, limits, reader, lambda position: self._row_group_sizes(reader, state.ledger.items[position])
        )

    def _state(self, files: tuple[Item, ...], restored: Mapping[str, Any] | None, *, new_run: bool) -> SourceState:
        if restored is None:
            self._require_files(files)
            return SourceState(Ledger(files), target_bytes=self._target(Ledger(files)))
        before = decode_source_state(restored)
        ledger = reconcile(before.ledger, files, on_change=self._on_change, new_run=new_run)
        # The target size is constant within a run, so that a restarted attempt plans the same increments.
        is_same_run = self._is_auto and not new_run and before.target_bytes
        target = before.target_bytes if is_same_run else self._target(ledger)
        return SourceState(ledger, before.increments, target, before.reader)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None

    def _require_files(self, files: tuple[Item, ...]) -> None:
        if not files:
            shown = ", ".join(redact(f"{path.root}/{path.pattern}") for path in self._paths)
            raise InvalidConfigurationError(
                f"Expected files in {shown}, found none that is neither empty nor hidden; correct the path. Write alternatives "
                "such as {a,b} as several paths."
            )

    def _reader(self, spark: SparkSession, listing: FileListing, state: SourceState) -> FileReader:
        items, restored = state.ledger.items, state.reader
        return FileReader(spark, self._file_format, listing, items, on_change=self._on_change, restored=restored)

    def _row_group_sizes(self, reader: FileReader, item: Item) -> Sequence[int] | None:
        return None


def _count(value: int | None, name: str) -> int | None:
    return None if value is None else require_count(value, name)


def _parse_order(order: str) -> str:
    if order not in ("path", "mtime"):
        raise InvalidConfigurationError(f"Expected order to be 'path' or 'mtime'; found {order!r}.")
    return order


def column_names(columns: Sequence[str]) -> tuple[str, ...]:
    """
    Return the names of the argument ``columns``.

    :raises InvalidConfigurationError: if the argument is not a non-empty sequence of names.
    """
    names = tuple(columns)
    if isinstance(columns, str) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
    return names


def _allowed_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(options or {})
    refused = sorted(name for name in found if name.lower() in _REFUSED_OPTIONS)
    if refused:
        raise InvalidConfigurationError(
            f"Expected options of the format, found {refused}, with which Spark itself selects files or columns; select files "
            "by path and columns by schema."
        )
    return found


class TextFileSource(FileSource):
    """
    Base class of the sources of text files, which require a schema and are read as a whole.

    :param path: A directory, a file, a pattern, or several of them.
    :param schema: Columns and their types, as a ``StructType`` or DDL.
    :param bytes_per_increment: Approximate input of one Spark job. The default ``"auto"`` is 1/64 of the input but at
        least 256 MiB, or no limit if another limit is set.
    :param files_per_increment: Maximum number of files in one Spark job.
    :param columns: Columns to read; all by default.
    :param on_change: Policy for files that change during a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :param order: ``"path"``, or ``"mtime"`` to read the oldest files first.
    :param options: Options of Spark's reader.
    :raises InvalidConfigurationError: if an argument is invalid, or there is no schema.
    """

    def __init__(
        self,
        path: Paths,
        *,
        schema: Any = None,
        bytes_per_increment: str | int | None = "auto",
        files_per_increment: int | None = None,
        columns: Sequence[str] | None = None,
        on_change: str = "fail",
        order: str = "path",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require_schema(schema, self._format.upper())
        super().__init__(
            path,
            schema=schema,
            bytes_per_increment=bytes_per_increment,
            files_per_increment=files_per_increment,
            columns=columns,
            on_change=on_change,
            order=order,
            options=options,
        )


class CsvSource(TextFileSource):
    """CSV files, each read as a whole; takes the arguments of :class:`~airflow_provider_statecheck.spark.sources.file_source.TextFileSource`."""

    _format = "csv"


class JsonSource(TextFileSource):
    """JSON files, each read as a whole; takes the arguments of :class:`~airflow_provider_statecheck.spark.sources.file_source.TextFileSource`."""

    _format = "json"


class FileReader:
    """
    Reads whole files through Spark.

    :param spark: The session.
    :param file_format: Format, options and columns.
    :param listing: Listing of the source.
    :param items: All files of the run.
    :param on_change: Policy for files that changed.
    :param restored: State from :meth:`snapshot` of an earlier reader.
    """

    def __init__(
        self,
        spark: SparkSession,
        file_format: FileFormat,
        listing: FileListing,
        items: Sequence[Item],
        *,
        on_change: OnChange,
        restored: Mapping[str, Any] | None = None,
    ) -> None:
        self.spark = spark
        self.format = file_format
        self.listing = listing
        self._items = items
        self._on_change = on_change
        self._schema_json: str | None = (restored or {}).get("schema")
        self._filesystems = HadoopFilesystems()

    @functools.cached_property
    def schema(self) -> StructType:
        """
        All columns of the files, in their order.

        :raises InvalidConfigurationError: if the user's schema is invalid, or lacks a selected column.
        """
        if self.format.schema is not None:
            return to_struct_type(self.format.schema)
        if self._schema_json is None:
            self._schema_json = self._infer_schema().json()
        return parse_schema(self._schema_json)

    @property
    def selected_schema(self) -> StructType:
        """The selected columns."""
        return select_fields(self.schema, self.format.columns)

    def snapshot(self) -> dict[str, Any]:
        """Return the state for the next attempt: the schema, if it was inferred."""
        return {"schema": self._schema_json if self.format.schema is None else None}

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Verify that files have not changed.

        :raises SourceChangedError: if one has changed since it was listed.
        """
        require_unchanged(self.listing.changes(items), self._on_change)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """
        Return the rows of splits.

        :raises InvalidConfigurationError: if Spark has no filesystem for the files.
        """
        frames = [self._whole_files(root, uris) for root, uris in self._uris_by_root(splits)]
        return functools.reduce(lambda frame, other: frame.unionAll(other), frames)

    def spark_uri(self, uri: str) -> str | None:
        """Return the URI of a file for Spark; ``None`` if Spark has no filesystem for it."""
        return self._filesystems.spark_uri(self.spark, uri)

    def _whole_files(self, root: str, uris: Sequence[str]) -> DataFrame:
        columns = [quoted_column(field.name) for field in self.selected_schema.fields]
        return self._read(root, uris, self.schema).select(columns)

    def _read(self, root: str, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        verified = VERIFIED_PAGES if self.format.name == "parquet" else {}
        # The user's options come last, to allow reading files with damaged or unusual checksums.
        reader: DataFrameReader = self.spark.read.format(self.format.name).options(
            **verified | dict(self.format.options)
        )
        if schema is not None:
            reader = reader.schema(schema)
        if root and all(uri != root for uri in uris):
            reader = reader.option("basePath", self._required_spark_uri(root))
        return reader.load([_EXPANDED.sub(r"\\\1", self._required_spark_uri(uri)) for uri in uris])

    def _required_spark_uri(self, uri: str) -> str:
        found = self.spark_uri(uri)
        if found is None:
            raise InvalidConfigurationError(
                f"Expected a Hadoop filesystem for {redact(uri)} in this Spark session, found none; add the package of its "
                "connector to spark.jars.packages."
            )
        return found

    def _uris_by_root(self, splits: Sequence[ItemSplit]) -> list[tuple[str, list[str]]]:
        pairs = [(self._root_of(split.item.name), split.item.name) for split in splits if split.item]
        return [(root, [uri for _, uri in group]) for root, group in groupby(sorted(pairs), key=lambda pair: pair[0])]

    def _root_of(self, uri: str) -> str:
        root = self.listing.root_of(uri)
        # Files that are paths of the source themselves have no directories with partition values: one scan reads them.
        return "" if root == uri else root

    def _infer_schema(self) -> StructType:
        # One file of each partition, because Spark infers the type of a partition column from all its values.
        root = self.listing.root_of(self._items[0].name)
        uris = [item.name for item in self._items if self.listing.root_of(item.name) == root]
        first = {tuple(partition_values(root, uri).items()): uri for uri in reversed(uris)}
        return self._read(root, sorted(first.values()), None).schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """Format, options and columns with which files are read."""

    name: str
    options: Mapping[str, Any]
    schema: Any = None
    columns: tuple[str, ...] | None = None
