"""What one Spark task hands to the driver so that its output can be committed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_statecheck.spark.sinks.task_committable import TaskCommittable


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
class Committable(TaskCommittable):
    """All files of one task."""

    KIND: ClassVar[str] = "a committable of a Parquet sink"

    schema: str
    """As :func:`encode_schema` gives it, with the columns of the partitions."""
    files: tuple[StagedFile, ...]

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"schema": str(document["schema"]), "files": tuple(_staged_file(file) for file in document["files"])}


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
