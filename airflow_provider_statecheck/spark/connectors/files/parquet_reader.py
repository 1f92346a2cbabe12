"""
Reader of Parquet files: whole ones, and row groups of large ones.

The types of a later file of a run are widened as far as Spark reads all files in one type.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import SourceChangedError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import ItemSplit
from airflow_provider_statecheck.spark.connectors.file_parts import FileParts, RowGroups
from airflow_provider_statecheck.spark.connectors.files.reader import UNMERGED, FileReader
from airflow_provider_statecheck.spark.connectors.row_groups import CuttingReader, load_row_groups
from airflow_provider_statecheck.spark.tables.alignment import (
    extended,
    file_columns,
    further_columns,
    is_alike,
)
from airflow_provider_statecheck.spark.tables.cutting import (
    Unreadable,
    columns_of_footer,
    columns_text,
    is_part_of,
    obstacle,
)
from airflow_provider_statecheck.spark.tables.partition_directories import (
    decoded_values,
    raw_partition_values,
)
from airflow_provider_statecheck.spark.tables.schemas import select_fields
from airflow_provider_statecheck.state.source_items import Item
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.uris import is_local, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType


@contextmanager
def _named(item: Item) -> Iterator[None]:
    """Add the name of a file to the error about its columns."""
    try:
        yield
    except SourceChangedError as error:
        raise SourceChangedError(f"The file {redact(item.name)} has other columns: {error}") from error


def _with_type_of(field: StructField, schema: StructType, name: str | None) -> StructField:
    from pyspark.sql.types import StructField

    kind = field.dataType if name is None else schema[name].dataType
    return StructField(field.name, kind, field.nullable, field.metadata)


class ParquetReader(CuttingReader, FileReader):
    """Reads whole files through Spark, and row groups of large files through PyArrow."""

    def __init__(self, *args: Any, **named: Any) -> None:
        CuttingReader.__init__(self)
        FileReader.__init__(self, *args, **named)
        self._stored: dict[str, str] = {}
        """Columns of the files whose footers were read, as text."""
        self._columns: dict[str, StructType | None] = {}
        """Columns by that text; ``None`` if only Spark finds them."""
        self._checked: set[str] = set()
        """Texts of columns that are read as those of the source."""

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        self._require_readable([split.item for split in splits])
        return CuttingReader.load(self, splits)

    @override
    def _load_whole(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return FileReader.load(self, splits)

    @override
    def _infer_schema(self) -> StructType:
        try:
            return super()._infer_schema()
        except Exception as error:  # the class differs between Spark and Spark Connect
            if not self.merges_schemas or "CANNOT_MERGE" not in str(error):
                raise
        return self._merged_schema()

    def _merged_schema(self) -> StructType:
        """
        Return the columns of all files with their common types.

        Spark itself merges no columns of different types.
        """
        known = self._schema_of(is_merged=False)
        in_parallel(self._footer, self._items, is_local=is_local(self._items[0].name))
        by_text = {self._stored[item.name]: item for item in reversed(self._items)}
        for item in reversed(by_text.values()):
            found = self._without_directories(item, self._read("", [item.name], None, **UNMERGED).schema)
            with _named(item):
                known = extended(known, found, self.spark, {})
        return known

    @override
    def file_parts(self, splits: Sequence[ItemSplit], columns: StructType) -> FileParts | None:
        items = [split.item for split in splits]
        footers = in_parallel(self._footer, items, is_local=is_local(items[0].name))
        self._require_readable(items)
        schema = select_fields(self.schema, columns.names, is_case_sensitive=self.rules.is_case_sensitive)
        pairs = list(zip(splits, footers, strict=True))
        if any(self._obstacle(split.item, footer, schema) is not None for split, footer in pairs):
            return None
        spans = (split.groups or (0, footer.num_row_groups) for split, footer in pairs)
        groups = [self._row_groups_of(item, *span) for item, span in zip(items, spans, strict=True)]
        # Only Spark parses the values in the names of directories.
        if any(set(each.partition) & set(schema.names) for each in groups):
            return None
        return FileParts(
            schema=schema,
            groups=list(zip(groups, footers, strict=True)),
            options=self.listing.options,
            is_case_sensitive=self.rules.is_case_sensitive,
        )

    def _require_readable(self, items: Sequence[Item]) -> None:
        """
        Refuse what would be lost without a choice of the user, and widen the columns for types that Spark reads so.
        """
        if self.format.schema is not None:
            return
        unread = [item for item in items if item.name not in self._stored]
        in_parallel(self._footer, unread, is_local=is_local(items[0].name))
        for item in items:
            if self._stored[item.name] not in self._checked:
                found = self._columns_of(item)
                self._require_known_columns(item, found)
                self._widen(item, found)
                self._checked.add(self._stored[item.name])

    def _require_known_columns(self, item: Item, found: StructType) -> None:
        """
        Refuse columns and parts of columns that only some files have, which would be lost without a choice of the user.
        """
        known, is_selected = self.selected_schema, self.format.columns is not None
        new = further_columns(known, found, self.spark, is_selected=is_selected)
        if new:
            raise SourceChangedError(
                f"Expected the columns {known.names} in {redact(item.name)}, as in the first files of the run, found "
                f"{new} in addition. To read the columns of all files, set options={{'mergeSchema': True}}; to leave "
                "columns out, set columns= or schema=, and schema= for fields of structs."
            )

    def _widen(self, item: Item, found: StructType) -> None:
        from pyspark.sql.types import StructType

        known = self.selected_schema
        with _named(item):
            wider = file_columns(known, found, self.spark)
        if not is_alike(known, wider):
            pairs = ((field, self.rules.find(wider.names, field.name)) for field in self.schema.fields)
            self.schema = StructType([_with_type_of(field, wider, name) for field, name in pairs])
            self._schema_json = self.schema.json()
            self._checked.clear()

    @override
    def _footer(self, item: Item) -> Any:
        footer = super()._footer(item)
        # Most files have the same columns, and a run may have a million files.
        text = item.name if isinstance(footer, Unreadable) else columns_text(footer)
        if text not in self._columns:
            self._columns[text] = None if isinstance(footer, Unreadable) else columns_of_footer(footer)
        self._stored[item.name] = sys.intern(text)
        return footer

    def _columns_of(self, item: Item) -> StructType:
        text = self._stored[item.name]
        found = self._columns[text]
        if found is None or not is_part_of(found, self.schema):
            found = self._columns[text] = self._read("", [item.name], None, **UNMERGED).schema
        return self._without_directories(item, found)

    def _without_directories(self, item: Item, found: StructType) -> StructType:
        from pyspark.sql.types import StructType

        names, rules = tuple(self.partition_of(item.name)), self.rules
        return StructType([field for field in found.fields if rules.find(names, field.name) is None])

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
        values = decoded_values(self._directories_of(item))
        return RowGroups(*self._place_of(item), item.size_bytes, start, end, values)

    def _directories_of(self, item: Item) -> dict[str, str]:
        """Return the values in the path of a file, as they are written there, by the columns of the source."""
        base, names = self.listing.base_of(item.name), self.selected_schema.names
        found = raw_partition_values(base, item.name) if base else {}
        pairs = ((self.rules.find(names, name), value) for name, value in found.items())
        return {name: value for name, value in pairs if name is not None}

    @override
    def _place_of(self, item: Item) -> tuple[str, str]:
        return self.listing.root_of(item.name), item.name

    @override
    def _options_of(self, root: str) -> Mapping[str, Any]:
        return self.listing.options

    @override
    def _obstacle(self, item: Item, footer: Any, schema: StructType | None = None) -> str | None:
        if self.format.options:
            return f"Spark's reader has options ({', '.join(self.format.options)})"
        return obstacle(footer, schema or self.selected_schema, self.rules, self._directories_of(item))
