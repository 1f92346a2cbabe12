"""Files as a source, with CSV and JSON."""

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
    partition_of,
    require_same_columns,
    source_paths,
)
from airflow_provider_statecheck.spark.sources.source import AUTO, parse_bytes_per_increment, require_count
from airflow_provider_statecheck.spark.sources.source_changes import (
    OnChange,
    on_change_of,
    reconcile,
    require_unchanged,
)
from airflow_provider_statecheck.spark.sources.source_columns import chosen, named, require_schema, struct_of
from airflow_provider_statecheck.spark.sources.splits import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType


# Spark takes these for patterns even in the names of files that exist.
_EXPANDED = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """How files are to be read."""

    name: str
    options: Mapping[str, Any]
    schema: Any = None
    columns: tuple[str, ...] | None = None


class FileReader:
    """
    Reads whole files through Spark.

    :param spark: The session.
    :param file_format: How files are to be read.
    :param listing: Where they are.
    :param items: All of them.
    :param on_change: What to do if one changed.
    :param restored: What an earlier reader of this source gave.
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
        The columns of all files, in their order.

        :raises InvalidConfigurationError: if the user's schema is none, or lacks a column that is to be read.
        """
        if self.format.schema is not None:
            return struct_of(self.format.schema)
        if self._schema_json is None:
            self._schema_json = self._inferred().json()
        return parse_schema(self._schema_json)

    @property
    def wanted(self) -> StructType:
        """The columns that are read."""
        return chosen(self.schema, self.format.columns)

    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to read in the same way: a schema that nobody gave."""
        return {"schema": self._schema_json if self.format.schema is None else None}

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Look at files again.

        :raises SourceChangedError: if one is no longer what was listed.
        """
        require_unchanged(self.listing.changes(items), self._on_change)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """
        Return the rows of splits.

        :raises InvalidConfigurationError: if Spark does not reach the files.
        """
        frames = [self._whole_files(root, names) for root, names in self._by_root(splits)]
        return functools.reduce(lambda frame, other: frame.unionAll(other), frames)

    def spark_uri(self, uri: str) -> str | None:
        """Return the name by which Spark reaches a file; ``None`` if it does not."""
        return self._filesystems.spark_uri(self.spark, uri)

    def _whole_files(self, root: str, uris: Sequence[str]) -> DataFrame:
        return self._read(root, uris, self.schema).select([named(field.name) for field in self.wanted.fields])

    def _read(self, root: str, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        verified = VERIFIED_PAGES if self.format.name == "parquet" else {}
        # The user's own options come last, so that a source can be told to read what another writer left.
        reader: DataFrameReader = self.spark.read.format(self.format.name).options(
            **verified | dict(self.format.options)
        )
        if schema is not None:
            reader = reader.schema(schema)
        if all(uri != root for uri in uris):
            reader = reader.option("basePath", self._for_spark(root))
        return reader.load([_EXPANDED.sub(r"\\\1", self._for_spark(uri)) for uri in uris])

    def _for_spark(self, uri: str) -> str:
        found = self.spark_uri(uri)
        if found is None:
            raise InvalidConfigurationError(
                f"Spark wants to read {redact(uri)}, but the Hadoop of this session has no filesystem for it; add the "
                "package of its connector to spark.jars.packages."
            )
        return found

    def _by_root(self, splits: Sequence[ItemSplit]) -> list[tuple[str, list[str]]]:
        names = [(self.listing.root_of(split.item.name), split.item.name) for split in splits if split.item]
        return [(root, [name for _, name in group]) for root, group in groupby(sorted(names), key=lambda pair: pair[0])]

    def _inferred(self) -> StructType:
        # A file of each directory, because the type of a column in their names depends on all values.
        root = self.listing.root_of(self._items[0].name)
        below = [item.name for item in self._items if self.listing.root_of(item.name) == root]
        first = {tuple(partition_of(root, name).items()): name for name in reversed(below)}
        return self._read(root, sorted(first.values()), None).schema


Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

SMALLEST_TARGET_BYTES = 256 * 1024 * 1024
WANTED_INCREMENTS = 64

# They would leave out files behind the back of the plan, or give a file other columns than its increment says.
_REFUSED_OPTIONS = frozenset(
    {"basepath", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "mergeschema", "path"}
)


class FileSource:
    """What the sources of files have in common."""

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
        self._places = source_paths(path)
        self._files = _count(files_per_increment, "files_per_increment")
        self._row_groups = _count(row_groups_per_increment, "row_groups_per_increment")
        self._is_auto = bytes_per_increment == AUTO and self._files is None and self._row_groups is None
        self._bytes = parse_bytes_per_increment(bytes_per_increment)
        self._on_change: OnChange = on_change_of(on_change)
        self._order = _order(order)
        names = None if columns is None else _names(columns)
        self._file_format = FileFormat(name=self._format, options=_allowed(options), schema=schema, columns=names)

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        List the files and plan what is left of them.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what appeared since is read.
        :param storage_options: Options of the filesystem that lists; they may be credentials.
        :raises InvalidConfigurationError: if there are no files at the start.
        :raises SourceChangedError: if what was listed before has changed.
        :raises SourceRestartRequiredError: if it has changed and the stage is to begin again.
        """
        listing = FileListing(self._places, dict(storage_options or {}), self._order)
        state = self._state(listing.files(), restored, new_run=new_run)
        require_same_columns((listing.root_of(item.name), item.name) for item in state.ledger.items)
        reader = self._reader(spark, listing, state)
        limits = Limits(size_bytes=self._bytes or state.target_bytes, items=self._files, row_groups=self._row_groups)
        return ItemEnumerator(
            state, limits, reader, lambda position: self._groups(reader, state.ledger.items[position])
        )

    def _state(self, files: tuple[Item, ...], restored: Mapping[str, Any] | None, *, new_run: bool) -> SourceState:
        if restored is None:
            self._require_files(files)
            return SourceState(Ledger(files), target_bytes=self._target(Ledger(files)))
        before = decode_source_state(restored)
        ledger = reconcile(before.ledger, files, on_change=self._on_change, new_run=new_run)
        # Within a run increments stay as large as they were, so that they are the same ones.
        is_kept = self._is_auto and not new_run and before.target_bytes
        target = before.target_bytes if is_kept else self._target(ledger)
        return SourceState(ledger, before.increments, target, before.reader)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None

    def _require_files(self, files: tuple[Item, ...]) -> None:
        if not files:
            shown = ", ".join(redact(f"{place.root}/{place.pattern}") for place in self._places)
            raise InvalidConfigurationError(
                f"Expected files in {shown}, found none that are not empty or hidden; correct the path. Alternatives "
                "such as {a,b} are written as several paths."
            )

    def _reader(self, spark: SparkSession, listing: FileListing, state: SourceState) -> FileReader:
        items, restored = state.ledger.items, state.reader
        return FileReader(spark, self._file_format, listing, items, on_change=self._on_change, restored=restored)

    def _groups(self, reader: FileReader, item: Item) -> Sequence[int] | None:
        return None


def _count(value: int | None, name: str) -> int | None:
    return None if value is None else require_count(value, name)


def _order(order: str) -> str:
    if order not in ("path", "mtime"):
        raise InvalidConfigurationError(f"Expected order to be 'path' or 'mtime'; found {order!r}.")
    return order


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    names = tuple(columns)
    if isinstance(columns, str) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
    return names


def _allowed(options: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(options or {})
    refused = sorted(name for name in found if name.lower() in _REFUSED_OPTIONS)
    if refused:
        raise InvalidConfigurationError(
            f"Expected options of the format, found {refused}, by which Spark would choose files or columns by itself; "
            "choose files by path, and columns by schema."
        )
    return found


class TextFileSource(FileSource):
    """
    Files that do not say what is in them, each read as a whole.

    :param path: A directory, a file, a pattern, or several of them.
    :param schema: The columns and their types, as a ``StructType`` or DDL.
    :param bytes_per_increment: About how much one Spark job reads. ``"auto"`` is a 64th of all, at least 256 MiB; where
        another limit is given, it is none.
    :param files_per_increment: How many files one Spark job reads at most.
    :param columns: Which columns to read; all by default.
    :param on_change: What to do if files changed since the start of a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :param order: ``"path"``, or ``"mtime"`` to read the oldest files first.
    :param options: Options of Spark's reader.
    :raises InvalidConfigurationError: if an argument is out of its range, or there is no schema.
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
    """CSV files, each read as a whole; its arguments are those of :class:`~airflow_provider_statecheck.spark.sources.file_source.TextFileSource`."""

    _format = "csv"


class JsonSource(TextFileSource):
    """JSON files, each read as a whole; its arguments are those of :class:`~airflow_provider_statecheck.spark.sources.file_source.TextFileSource`."""

    _format = "json"
