"""What one Spark task hands to the driver so that its files become part of a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_statecheck.spark.sinks.task_committable import TaskCommittable


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFile:
    """A complete Parquet file in the directory of a table, which its log does not name yet."""

    name: str
    """Relative to the table."""
    size_bytes: int
    rows: int
    footer_sha256: str
    statistics: str
    """As the log of a table has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommittable(TaskCommittable):
    """All files of one task."""

    KIND: ClassVar[str] = "a committable of a Delta sink"

    schema: str
    """Arrow schema as text, with the columns of partitions."""
    files: tuple[DeltaFile, ...]

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"schema": str(document["schema"]), "files": tuple(_file(file) for file in document["files"])}


def _file(document: Mapping[str, Any]) -> DeltaFile:
    return DeltaFile(
        name=str(document["name"]),
        size_bytes=int(document["size_bytes"]),
        rows=int(document["rows"]),
        footer_sha256=str(document["footer_sha256"]),
        statistics=str(document["statistics"]),
    )
