"""What one Spark task hands to the driver so that its output can be committed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A complete Parquet file that waits for its commit."""

    staged: str
    """Its name within the staging directory."""
    directory: str
    """The partition that it belongs to, such as ``day=2024-01-01``; empty without partitions."""
    size_bytes: int
    rows: int
    footer_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable:
    """All files of one task; a task without output has one too, which tells which attempt took the checkpoint."""

    lineage: str
    epoch: int
    subtask: int
    schema: str
    """As :func:`encode_schema` gives it, with the columns of the partitions."""
    files: tuple[StagedFile, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"format_version": FORMAT_VERSION, **asdict(self), "files": [asdict(file) for file in self.files]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Committable:
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
                files=tuple(_staged_file(file) for file in document["files"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected a committable of a Parquet sink of format {FORMAT_VERSION}, found {str(document)[:100]!r}; "
                "restore with the version that wrote it, or from another checkpoint."
            ) from error


def encode_schema(schema: Any) -> str:
    """Return an Arrow schema as text."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def decode_schema(text: str) -> Any:
    """Return the Arrow schema of a text."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _staged_file(document: Mapping[str, Any]) -> StagedFile:
    return StagedFile(
        staged=str(document["staged"]),
        directory=str(document["directory"]),
        size_bytes=int(document["size_bytes"]),
        rows=int(document["rows"]),
        footer_sha256=str(document["footer_sha256"]),
    )
