"""What one Spark task hands to the driver so that its files become part of an Iceberg table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError

FORMAT_VERSION = 1
_KIND = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergCommittable:
    """All files of one task; a task without output has one too, which tells which attempt took the checkpoint."""

    lineage: str
    epoch: int
    subtask: int
    files: tuple[Mapping[str, Any], ...]
    """As ``encode_data_file`` gives them."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"format_version": FORMAT_VERSION, "kind": _KIND, **asdict(self), "files": [dict(f) for f in self.files]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> IcebergCommittable:
        """
        Return what a task handed over.

        :raises CorruptStateError: if it is something else.
        """
        try:
            if (document["kind"], int(document["format_version"])) != (_KIND, FORMAT_VERSION):
                raise ValueError(document["format_version"])  # noqa: TRY301 - told below with all the other ways
            return cls(
                lineage=str(document["lineage"]),
                epoch=int(document["epoch"]),
                subtask=int(document["subtask"]),
                files=tuple(dict(file) for file in document["files"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected a committable of an Iceberg sink of format {FORMAT_VERSION}, found {str(document)[:100]!r}; "
                "restore with the sink and the version that wrote it, or from another checkpoint."
            ) from error
