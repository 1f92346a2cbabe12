"""What one Spark task hands to the driver so that its files become part of a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError

FORMAT_VERSION = 1


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
class DeltaCommittable:
    """All files of one task; a task without output has one too, which tells which attempt took the checkpoint."""

    lineage: str
    epoch: int
    subtask: int
    schema: str
    """Arrow schema as text, with the columns of partitions."""
    files: tuple[DeltaFile, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"format_version": FORMAT_VERSION, **asdict(self), "files": [asdict(file) for file in self.files]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DeltaCommittable:
        """
        Return what a task handed over.

        :raises CorruptStateError: if it is something else.
        """
        try:
            if int(document["format_version"]) != FORMAT_VERSION:
                raise ValueError(document["format_version"])  # noqa: TRY301 - told below with all the other ways
            return cls(
                lineage=str(document["lineage"]),
                epoch=int(document["epoch"]),
                subtask=int(document["subtask"]),
                schema=str(document["schema"]),
                files=tuple(_file(file) for file in document["files"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected a committable of a Delta sink of format {FORMAT_VERSION}, found {str(document)[:100]!r}; restore "
                "with the version and the kind of sink that wrote it, or from another checkpoint."
            ) from error


def _file(document: Mapping[str, Any]) -> DeltaFile:
    return DeltaFile(
        name=str(document["name"]),
        size_bytes=int(document["size_bytes"]),
        rows=int(document["rows"]),
        footer_sha256=str(document["footer_sha256"]),
        statistics=str(document["statistics"]),
    )
