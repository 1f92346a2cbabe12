"""Row groups of files, and the files of an increment that PyArrow reads as Spark does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.tables.cutting import find_column
from airflow_provider_statecheck.spark.tables.schemas import group_sizes

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Consecutive row groups of a file, read by one task."""

    root: str
    uri: str
    size_bytes: int
    start: int
    end: int
    partition: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileParts:
    """Row groups of an increment that PyArrow reads as Spark does."""

    schema: StructType
    """Columns that are read."""
    groups: Sequence[tuple[RowGroups, Any]]
    """Row groups, each with the footer of its file."""
    options: Mapping[str, Any] = field(repr=False)
    """Options of the filesystem."""
    is_case_sensitive: bool

    def sizes(self) -> list[tuple[RowGroups, list[int]]]:
        """Return the row groups, each with the sizes of the columns in all row groups of its file."""
        return [(groups, group_sizes(footer, self._stored(footer))) for groups, footer in self.groups]

    def _stored(self, footer: Any) -> set[str]:
        names, wanted = footer.schema.to_arrow_schema().names, self.schema.names
        found = (find_column(names, name, is_case_sensitive=self.is_case_sensitive) for name in wanted)
        return {name for name in found if name is not None}
