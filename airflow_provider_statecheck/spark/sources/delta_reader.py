"""Reads data files of a Delta table by Spark's own reader of Parquet, which needs no package on Spark's side."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.ledger import in_parallel
from airflow_provider_statecheck.spark.snapshots.schema import parse_schema
from airflow_provider_statecheck.spark.sources.changes import Changes, OnChange, require_unchanged
from airflow_provider_statecheck.spark.sources.delta_files import DataFile
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.file_reader import FileFormat, FileReader
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.listing import FileListing
from airflow_provider_statecheck.spark.sources.partitions import partition_of
from airflow_provider_statecheck.spark.sources.places import Place
from airflow_provider_statecheck.spark.sources.schemas import chosen, named
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where a table was listed, and what it was like there."""

    version: int
    table_id: str
    schema: str
    """As the log has it, which is as Spark writes it."""
    partition_by: tuple[str, ...]

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "version": self.version,
            "table_id": self.table_id,
            "schema": self.schema,
            "partition_by": list(self.partition_by),
        }

    @classmethod
    def decode(cls, document: Mapping[str, Any] | None) -> Position:
        """
        Return what was encoded.

        :raises CorruptStateError: if it is something else.
        """
        found = document or {}
        try:
            columns = tuple(str(name) for name in found["partition_by"])
            return cls(int(found["version"]), str(found["table_id"]), str(found["schema"]), columns)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                "Expected the state of a Delta source, found that of another kind; read it by the source that wrote it, or "
                "start over."
            ) from error


class DeltaReader(FileReader):
    """
    Reads whole files.

    :param spark: The session.
    :param storage: The table.
    :param position: What the table is like.
    :param columns: Which columns to read; all by default.
    :param on_change: What to do if a file is gone.
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
        listing = FileListing((Place(storage.base_uri),), storage.options)
        super().__init__(
            spark, FileFormat(name="parquet", options={}, columns=columns), listing, (), on_change=on_change
        )
        self._storage = storage
        self._position = position
        self._on_gone = on_change

    @functools.cached_property
    @override
    def schema(self) -> StructType:
        """The columns of the table, in their order."""
        from pyspark.sql.types import StructField, StructType

        fields = parse_schema(self._position.schema).fields
        return StructType([StructField(field.name, field.dataType) for field in fields])

    @override
    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to read in the same way."""
        return self._position.encode()

    @override
    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Look whether files are still there; one that is there never changes.

        :raises SourceChangedError: if one is gone.
        """
        files = [DataFile.of(item) for item in items]
        there = in_parallel(self._is_there, files, is_local=self._storage.is_local)
        gone = [Item.of(f.path, f.size_bytes, "") for f, is_there in zip(files, there, strict=True) if not is_there]
        require_unchanged(Changes(vanished=tuple(gone)), self._on_gone)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        laid_out: dict[str, list[str]] = {}
        told: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
        for file in (DataFile.of(split.item) for split in splits if split.item):
            root = _root_of(file)
            if root is None:
                told.setdefault(tuple(file.values.items()), []).append(self._uri(file.path))
            else:
                laid_out.setdefault(self._uri(root), []).append(self._uri(file.path))
        frames = [self._whole_files(root, uris) for root, uris in laid_out.items()]
        frames += [self._with_values(dict(values), uris) for values, uris in told.items()]
        return functools.reduce(lambda frame, other: frame.unionAll(other), frames)

    def _with_values(self, values: Mapping[str, str | None], uris: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions
        from pyspark.sql.types import StructType

        plain = StructType([field for field in self.schema.fields if field.name not in values])
        frame = self._read(self._storage.base_uri, uris, plain)
        return frame.select(
            [
                functions.lit(values[field.name]).cast(field.dataType).alias(field.name)
                if field.name in values
                else named(field.name)
                for field in chosen(self.schema, self.format.columns).fields
            ]
        )

    def _is_there(self, file: DataFile) -> bool:
        return self._storage.exists(self._uri(file.path))

    def _uri(self, path: str) -> str:
        return f"{self._storage.base_uri}/{path}" if path else self._storage.base_uri


def _root_of(file: DataFile) -> str | None:
    # Spark takes the values from the names of directories where they stand there, thousands of partitions at once.
    directories = file.path.split("/")[:-1]
    count = len(file.values)
    if len(directories) < count or (count and partition_of("", "/".join([*directories[-count:], ""])) != file.values):
        return None
    root = directories[: len(directories) - count]
    if any("=" in part for part in root):
        return None
    return "/".join(root) if count else ""
