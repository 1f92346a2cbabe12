"""Reader of the data files of a Delta table."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.file_listing import FileListing, SourcePath
from airflow_provider_statecheck.spark.sources.file_source import FileFormat, FileReader
from airflow_provider_statecheck.spark.sources.source import Changes, OnChange, require_unchanged
from airflow_provider_statecheck.spark.tables.delta_files import DataFile, PartitionValues, Position
from airflow_provider_statecheck.spark.tables.frames import partition_values, quoted_column, union_all
from airflow_provider_statecheck.spark.tables.schemas import parse_schema
from airflow_provider_statecheck.state.source_items import Item
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class DeltaReader(FileReader):
    """
    Reads data files of a Delta table as plain Parquet files.

    :param spark: The session.
    :param storage: Storage of the table directory.
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
            root = _partition_root(file)
            if root is None:
                by_values.setdefault(tuple(file.values.items()), []).append(self._uri(file.path))
            else:
                in_directories.setdefault(self._uri(root), []).append(self._uri(file.path))
        frames = [self._whole_files(root, uris) for root, uris in in_directories.items()]
        frames += [self._with_values(dict(values), uris) for values, uris in by_values.items()]
        return union_all(frames)

    def _with_values(self, values: PartitionValues, uris: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions
        from pyspark.sql.types import StructType

        plain = StructType([field for field in self.schema.fields if field.name not in values])
        frame = self._read(self._storage.base_uri, uris, plain)
        return frame.select(
            [
                functions.lit(values[field.name]).cast(field.dataType).alias(field.name)
                if field.name in values
                else quoted_column(field.name)
                for field in self.selected_schema.fields
            ]
        )

    def _exists(self, file: DataFile) -> bool:
        return self._storage.exists(self._uri(file.path))

    def _uri(self, path: str) -> str:
        return f"{self._storage.base_uri}/{path}" if path else self._storage.base_uri


def _partition_root(file: DataFile) -> str | None:
    # Spark can read thousands of partitions in one scan if their values are in the directory names.
    directories = file.path.split("/")[:-1]
    count = len(file.values)
    in_names = partition_values("", "/".join([*directories[-count:], ""])) if count else {}
    if len(directories) < count or in_names != file.values:
        return None
    root = directories[: len(directories) - count]
    if any("=" in directory for directory in root):
        return None
    return "/".join(root) if count else ""
