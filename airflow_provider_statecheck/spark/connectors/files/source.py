"""
Sources of files: Parquet, CSV, JSON, and others that Spark reads.

The driver lists the files; Spark reads each increment with an explicit schema. An inferred schema is stored in
checkpoints, so all attempts of a run read the same columns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from os import PathLike
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require_one_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SourceChangedError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import ItemReader, ItemSplit, parse_limits
from airflow_provider_statecheck.spark.connectors.files.csv_headers import (
    CsvHeaders,
    has_header,
    option_of,
    positions_in_header,
)
from airflow_provider_statecheck.spark.connectors.files.listing import (
    FileListing,
    SourcePath,
    parse_paths,
    require_same_partition_columns,
)
from airflow_provider_statecheck.spark.connectors.files.replaced_files import ReplacedFiles
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource, Opening, parse_columns
from airflow_provider_statecheck.spark.connectors.row_groups import CuttingReader, RowGroups, load_row_groups
from airflow_provider_statecheck.spark.connectors.source import OnChange, require_unchanged, restart_or_rewind
from airflow_provider_statecheck.spark.driver.session import HadoopFilesystems
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.spark.snapshots.dataframes import VERIFIED_PAGES
from airflow_provider_statecheck.spark.tables.alignment import extended, is_case_sensitive, is_on, positions_of
from airflow_provider_statecheck.spark.tables.cutting import Unreadable, obstacle
from airflow_provider_statecheck.spark.tables.named_rows import find_name
from airflow_provider_statecheck.spark.tables.partition_directories import (
    decoded_values,
    partition_values,
    raw_partition_values,
)
from airflow_provider_statecheck.spark.tables.schemas import (
    quoted_column,
    select_fields,
    to_struct_type,
    union_all,
)
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.uris import is_local, redact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructField, StructType

# Characters that Spark expands as wildcards even in the names of existing files.
_EXPANDED = re.compile(r"([\\*?\[\]{}])")

Paths = str | PathLike[str] | Sequence[str | PathLike[str] | SourcePath]

_MERGE_SCHEMA = "spark.sql.parquet.mergeSchema"

# Options that let Spark skip listed files, or return other columns than the schema of the source.
_REFUSED_OPTIONS = frozenset(
    {"basepath", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "mergeschema", "path"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """Format, options and columns with which files are read."""

    name: str
    options: Mapping[str, Any]
    schema: Any = None
    columns: tuple[str, ...] | None = None


class FileReader(ItemReader):
    """
    Reads whole files through Spark.

    :param items: All files of the run.
    :param on_change: Policy for files that changed.
    :param restored: State from :meth:`snapshot` of an earlier reader.
    :param is_new_run: Whether that is the reader of an earlier run; new columns of the files are then read too.
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
        is_new_run: bool = False,
    ) -> None:
        self.spark = spark
        self.format = file_format
        self.listing = listing
        self._items = items
        self._on_change = on_change
        self._schema_json: str | None = (restored or {}).get("schema")
        self._is_new_run = is_new_run
        self._filesystems = HadoopFilesystems()

    @functools.cached_property
    def schema(self) -> StructType:
        """
        All columns of the files, in their order.

        :raises InvalidConfigurationError: if the user's schema is invalid, or lacks a selected column.
        """
        if self.format.schema is not None:
            return to_struct_type(self.format.schema)
        known = None if self._schema_json is None else parse_schema(self._schema_json)
        if known is None:
            known = self._infer_schema()
        elif self._is_new_run:
            known = extended(known, self._infer_schema(), self.spark, self._partition_texts())
        self._schema_json = known.json()
        return known

    @property
    def selected_schema(self) -> StructType:
        """The selected columns."""
        return select_fields(self.schema, self.format.columns)

    @override
    def snapshot(self) -> dict[str, Any]:
        return {"schema": self._schema_json if self.format.schema is None else None}

    @override
    def require_unchanged(self, items: Sequence[Item]) -> None:
        require_unchanged(self.listing.changes(items), self._on_change)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return self.load_files([split.item.name for split in splits])

    def load_files(self, uris: Sequence[str]) -> DataFrame:
        """
        Return the rows of files.

        :raises InvalidConfigurationError: if Spark has no filesystem for the files.
        """
        pairs = sorted((self.listing.base_of(uri), uri) for uri in uris)
        by_base = groupby(pairs, key=lambda pair: pair[0])
        return union_all([self._whole_files(base, [uri for _, uri in group]) for base, group in by_base])

    def _whole_files(self, base: str, uris: Sequence[str]) -> DataFrame:
        columns = [quoted_column(field.name) for field in self.selected_schema.fields]
        return self._read(base, uris, self.schema).select(columns)

    def _read(self, base: str, uris: Sequence[str], schema: StructType | None, **options: str) -> DataFrame:
        verified = VERIFIED_PAGES if self.format.name == "parquet" else {}
        # The user's options come last, to allow reading files with damaged or unusual checksums.
        reader: DataFrameReader = self.spark.read.format(self.format.name).options(
            **verified | dict(self.format.options) | options
        )
        if schema is not None:
            reader = reader.schema(schema)
        if base:
            reader = reader.option("basePath", self._spark_uri(base))
        return reader.load([_EXPANDED.sub(r"\\\1", self._spark_uri(uri)) for uri in uris])

    def _spark_uri(self, uri: str) -> str:
        found = self._filesystems.spark_uri(self.spark, uri)
        if found is None:
            raise InvalidConfigurationError(
                f"Expected a Hadoop filesystem for {redact(uri)} in this Spark session, found none; add the package of its "
                "connector to spark.jars.packages."
            )
        return found

    def _infer_schema(self) -> StructType:
        # One file of each partition, because Spark infers the type of a partition column from all its values.
        base = self.listing.base_of(self._items[0].name)
        uris = sorted(item.name for item in self._items if self.listing.base_of(item.name) == base)
        first = (
            {tuple(raw_partition_values(base, uri).items()): uri for uri in reversed(uris)} if base else {(): uris[0]}
        )
        return self._read(base, uris if self.merges_schemas else sorted(first.values()), None).schema

    @property
    def merges_schemas(self) -> bool:
        """Whether Spark finds the columns of all files, and not only those of one of them."""
        if self.format.name != "parquet":
            return False
        chosen = option_of(self.format.options, "mergeschema", default="")
        return chosen.lower() == "true" if chosen else is_on(self.spark, _MERGE_SCHEMA)

    def partition_of(self, uri: str) -> Mapping[str, str | None]:
        """Return the values of partition columns in the path of a file."""
        base = self.listing.base_of(uri)
        return partition_values(base, uri) if base else {}

    def _partition_texts(self) -> dict[str, set[str | None]]:
        """Return the partition columns of the files, with all their values as in the names of directories."""
        found: dict[str, set[str | None]] = {}
        for item in self._items:
            for name, text in self.partition_of(item.name).items():
                found.setdefault(name, set()).add(text)
        return found


class FileSource(ItemSource):
    """Base class of the sources of files."""

    _format = ""
    _reader: type[FileReader] = FileReader

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
        files = ("files_per_increment", files_per_increment)
        super().__init__(parse_limits(bytes_per_increment, files, row_groups_per_increment), on_change)
        self._paths = parse_paths(path)
        require_one_of("order", order, ("path", "mtime"))
        self._order = order
        self._file_format = FileFormat(
            name=self._format,
            options=_allowed_options(options, self._format),
            schema=schema,
            columns=parse_columns(columns),
        )

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, FileReader]:
        listing = FileListing(self._paths, opening.storage_options, self._order)
        files = listing.files()
        if opening.before is None:
            self._require_files(listing, files)
        ledger = self._reconciled(opening, files)
        require_same_partition_columns(
            ((listing.base_of(item.name), item.name) for item in ledger.items),
            lambda: is_case_sensitive(opening.spark),
        )
        reader = self._reader(
            opening.spark,
            self._file_format,
            listing,
            (ledger.unfinished if opening.is_new_run else ()) or ledger.items,
            on_change=self._on_change,
            restored=opening.reader_state,
            is_new_run=opening.is_new_run and bool(ledger.unfinished),
        )
        return ledger, reader

    def _reconciled(self, opening: Opening, files: Sequence[Item]) -> Ledger:
        if opening.before is None or not opening.is_new_run or not files:
            return opening.reconciled(files, self._on_change)
        replaced = ReplacedFiles.since(opening.before.ledger, files)
        if replaced.directories and self._on_change is not OnChange.IGNORE:
            raise replaced.error(restart_or_rewind(opening.before.ledger, new_run=True), self._on_change)
        return replaced.kept_in(opening.reconciled(files, self._on_change))

    def _require_files(self, listing: FileListing, files: Sequence[Item]) -> None:
        # Among several paths, one with alternatives would be missed silently.
        braced = [path for path in self._paths if "{" in f"{path.root}/{path.pattern}"]
        missed = [path for path in braced if not replace(listing, paths=(path,)).files()]
        if missed or not files:
            shown = ", ".join(redact(f"{path.root}/{path.pattern}") for path in missed or self._paths)
            raise InvalidConfigurationError(
                f"Expected files in {shown}, found none that is neither empty nor hidden; correct the path. Write alternatives "
                "such as {a,b} as several paths."
            )


def _allowed_options(options: Mapping[str, Any] | None, file_format: str) -> dict[str, Any]:
    found = dict(options or {})
    allowed = {"mergeschema"} if file_format == "parquet" else set()
    refused = sorted(name for name in found if name.lower() in _REFUSED_OPTIONS - allowed)
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
        if schema is None or schema == "":
            raise InvalidConfigurationError(
                f"Expected a schema for {self._format.upper()} files, because an inferred schema could differ between "
                "increments; found none. Give a StructType, or DDL such as 'id bigint, name string'."
            )
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


class CsvReader(FileReader):
    """Reads whole files through Spark, and matches the columns of files with a header by name."""

    @override
    def _whole_files(self, base: str, uris: Sequence[str]) -> DataFrame:
        if not has_header(self.format.options):
            return super()._whole_files(base, uris)
        headers = CsvHeaders(
            options=self.format.options,
            storage_options=self.listing.options,
            read=lambda uri: self._read("", [uri], None, inferSchema="false"),
        )
        return union_all(self._files_with(header, base, group) for header, group in headers.of(uris).items())

    def _files_with(self, header: tuple[str, ...], base: str, uris: Sequence[str]) -> DataFrame:
        from pyspark.sql.types import StringType, StructField, StructType

        others = self._names_besides(self.partition_of(uris[0]))
        fields = [field for field in self.schema.fields if field.name not in others]
        names, is_sensitive = tuple(field.name for field in fields), is_case_sensitive(self.spark)
        positions = positions_in_header(header, names, redact(uris[0]), is_case_sensitive=is_sensitive)
        if positions == tuple(range(len(header))):
            return super()._whole_files(base, uris)
        types = {at: field.dataType for at, field in zip(positions, fields, strict=True)}
        stored = [StructField(f"{_STORED}{at}", types.get(at, StringType())) for at in range(len(header))]
        further = [field for field in self.schema.fields if field.name in others]
        # Without a check of the header by Spark, which would compare it with these names.
        frame = self._read(base, uris, StructType([*stored, *further]), enforceSchema="true")
        at_names = dict(zip(names, positions, strict=True))
        return frame.select([_stored_column(field, at_names) for field in self.selected_schema.fields])

    def _names_besides(self, partition: Mapping[str, str | None]) -> set[str]:
        """Return the columns of the schema that no file has: those of directories, and the one of malformed rows."""
        default = str(self.spark.conf.get("spark.sql.columnNameOfCorruptRecord", "_corrupt_record"))
        corrupt = option_of(self.format.options, "columnnameofcorruptrecord", default=default)
        found = positions_of(self.schema.names, (*partition, corrupt), is_case_sensitive=is_case_sensitive(self.spark))
        return {self.schema.names[at] for at in found if at is not None}


_STORED = "__statecheck_stored_"


def _stored_column(field: StructField, positions: Mapping[str, int | None]) -> Column:
    from pyspark.sql import functions as F

    if field.name not in positions:
        return quoted_column(field.name)
    at = positions[field.name]
    column = F.lit(None).cast(field.dataType) if at is None else F.col(f"{_STORED}{at}")
    return column.alias(field.name, metadata=field.metadata)


class CsvSource(TextFileSource):
    """CSV files, each read as a whole; takes the arguments of :class:`~airflow_provider_statecheck.spark.connectors.files.source.TextFileSource`."""

    _format = "csv"
    _reader = CsvReader


class JsonSource(TextFileSource):
    """JSON files, each read as a whole; takes the arguments of :class:`~airflow_provider_statecheck.spark.connectors.files.source.TextFileSource`."""

    _format = "json"


class ParquetReader(CuttingReader, FileReader):
    """Reads whole files through Spark, and row groups of large files through PyArrow."""

    def __init__(self, *args: Any, **named: Any) -> None:
        CuttingReader.__init__(self)
        FileReader.__init__(self, *args, **named)
        self._stored: dict[str, tuple[str, ...] | None] = {}
        """Columns of the files whose footers were read; ``None`` for a footer that only Spark reads."""
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        if self.format.schema is None and self.format.columns is None:
            self._require_known_columns([split.item for split in splits])
        return CuttingReader.load(self, splits)

    @override
    def _load_whole(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return FileReader.load(self, splits)

    def _require_known_columns(self, items: Sequence[Item]) -> None:
        """Refuse columns that only some files have, and that would be lost without a choice of the user."""
        is_sensitive, names = is_case_sensitive(self.spark), self.schema.names
        unread = [item for item in items if item.name not in self._stored]
        in_parallel(self._footer, unread, is_local=is_local(items[0].name))
        for item in items:
            new = [n for n in self._stored_names(item) if find_name(names, n, is_case_sensitive=is_sensitive) is None]
            if new:
                raise SourceChangedError(
                    f"Expected the columns {names} in {redact(item.name)}, as in the first files of the run, found {new} in "
                    "addition. To read the columns of all files, set options={'mergeSchema': True}; to leave columns out, set "
                    "columns= or schema=."
                )

    @override
    def _footer(self, item: Item) -> Any:
        footer = super()._footer(item)
        names = None if isinstance(footer, Unreadable) else tuple(footer.schema.to_arrow_schema().names)
        # Most files have the same columns, and a run may have a million files.
        self._stored[item.name] = None if names is None else self._known.setdefault(names, names)
        return footer

    def _stored_names(self, item: Item) -> Sequence[str]:
        known = self._stored[item.name]
        return self._read("", [item.name], None).columns if known is None else known

    @override
    def _load_tasks(self, tasks: Sequence[RowGroups]) -> DataFrame:
        return load_row_groups(
            self.spark,
            tasks,
            self.selected_schema,
            self.listing.options,
            is_case_sensitive=self.rules.is_case_sensitive,
        )

    @override
    def _row_groups_of(self, item: Item, start: int, end: int) -> RowGroups:
        root, values = self.listing.root_of(item.name), decoded_values(self._directories_of(item))
        return RowGroups(root, item.name, item.size_bytes, start, end, values)

    def _directories_of(self, item: Item) -> dict[str, str]:
        """Return the values in the path of a file, as they are written there, by the columns of the source."""
        base, names = self.listing.base_of(item.name), self.selected_schema.names
        found = raw_partition_values(base, item.name) if base else {}
        pairs = ((self.rules.find(names, name), value) for name, value in found.items())
        return {name: value for name, value in pairs if name is not None}

    @override
    def _options_of(self, root: str) -> Mapping[str, Any]:
        return self.listing.options

    @override
    def _obstacle(self, item: Item, footer: Any) -> str | None:
        if self.format.options:
            return f"Spark's reader has options ({', '.join(self.format.options)})"
        return obstacle(footer, self.selected_schema, self.rules, self._directories_of(item))


class ParquetSource(FileSource):
    """
    Parquet files; large files are divided among several increments.

    :param path: A directory, a file, a pattern, or several of them.
    :param bytes_per_increment: Approximate input of one Spark job. The default ``"auto"`` is 1/64 of the input but at
        least 256 MiB, or no limit if another limit is set. A file of more than twice this size is cut at its row
        groups.
    :param files_per_increment: Maximum number of files in one Spark job.
    :param row_groups_per_increment: Maximum number of row groups in one Spark job.
    :param columns: Columns to read; all by default.
    :param schema: Columns and their types, as a ``StructType`` or DDL; by default inferred from the files once.
    :param on_change: Policy for files that change during a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :param order: ``"path"``, or ``"mtime"`` to read the oldest files first.
    :param options: Options of Spark's reader; with any of them, files are not cut.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    _format = "parquet"
    _reader = ParquetReader
