"""
Sources of files: Parquet, CSV, JSON, and others that Spark reads.

The driver lists the files; Spark reads each increment with an explicit schema. An inferred schema is stored in
checkpoints, so all attempts of a run read the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require_one_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import parse_limits
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
from airflow_provider_statecheck.spark.connectors.files.parquet_reader import ParquetReader
from airflow_provider_statecheck.spark.connectors.files.reader import FileFormat, FileReader
from airflow_provider_statecheck.spark.connectors.files.replaced_files import ReplacedFiles
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource, Opening, parse_columns
from airflow_provider_statecheck.spark.connectors.source import OnChange, restart_or_rewind
from airflow_provider_statecheck.spark.tables.alignment import (
    is_case_sensitive,
)
from airflow_provider_statecheck.spark.tables.common_types import positions_of
from airflow_provider_statecheck.spark.tables.cutting import find_column
from airflow_provider_statecheck.spark.tables.schemas import (
    quoted_column,
    union_all,
)
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

Paths = str | PathLike[str] | Sequence[str | PathLike[str] | SourcePath]

# Options that let Spark skip listed files, or return other columns than the schema of the source.
_REFUSED_OPTIONS = frozenset(
    {"basepath", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "mergeschema", "path"}
)


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
                f"Expected files in {shown}, found none; empty and hidden files are not read. Correct the path. Write "
                "alternatives such as {a,b} as several paths."
            )


def _allowed_options(options: Mapping[str, Any] | None, file_format: str) -> dict[str, Any]:
    found = dict(options or {})
    allowed = {"mergeschema"} if file_format == "parquet" else set()
    refused = sorted(name for name in found if name.lower() in _REFUSED_OPTIONS - allowed)
    if refused:
        raise InvalidConfigurationError(
            f"Expected options of the format, found {refused}, with which Spark itself selects files or columns; "
            "select files by path and columns by schema."
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
        known = [
            find_column(at_names, field.name, is_case_sensitive=is_sensitive) for field in self.selected_schema.fields
        ]
        pairs = zip(self.selected_schema.fields, known, strict=True)
        return frame.select(
            [quoted_column(f.name) if name is None else _stored_column(f, at_names[name]) for f, name in pairs]
        )

    def _names_besides(self, partition: Mapping[str, str | None]) -> set[str]:
        """Return the columns of the schema that no file has: those of directories, and the one of malformed rows."""
        default = str(self.spark.conf.get("spark.sql.columnNameOfCorruptRecord", "_corrupt_record"))
        corrupt = option_of(self.format.options, "columnnameofcorruptrecord", default=default)
        found = positions_of(self.schema.names, (*partition, corrupt), is_case_sensitive=is_case_sensitive(self.spark))
        return {self.schema.names[at] for at in found if at is not None}


_STORED = "__statecheck_stored_"


def _stored_column(field: StructField, at: int | None) -> Column:
    from pyspark.sql import functions as F

    column = F.lit(None).cast(field.dataType) if at is None else F.col(f"{_STORED}{at}")
    return column.alias(field.name, metadata=field.metadata)


class CsvSource(TextFileSource):
    """
    CSV files, each read as a whole.

    Takes the arguments of :class:`~airflow_provider_statecheck.spark.connectors.files.source.TextFileSource`.
    """

    _format = "csv"
    _reader = CsvReader


class JsonSource(TextFileSource):
    """
    JSON files, each read as a whole.

    Takes the arguments of :class:`~airflow_provider_statecheck.spark.connectors.files.source.TextFileSource`.
    """

    _format = "json"


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
