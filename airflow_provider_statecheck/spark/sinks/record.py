"""One line in the ledger of a sink: a checkpoint whose output was committed, is about to be, or was retracted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.spark.sinks.line import Line

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file from its staging to its published name."""

    staged: str
    name: str
    """Relative to the target."""
    size_bytes: int
    rows: int
    footer_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """What one checkpoint adds to the target; equal commits give equal bytes."""

    job_name: str
    uid: str
    generation: int
    checkpoint_id: int
    epoch: int
    """The attempt that took the checkpoint, whoever commits it."""
    line: Line
    """What this checkpoint goes on from; everything older that is not part of it was replaced."""
    schema: str
    partition_by: tuple[str, ...]
    files: tuple[PublishedFile, ...]
    is_end: bool = False
    """Whether it only says that an attempt succeeded without a checkpoint of its own."""

    @property
    def key(self) -> str:
        """Return its name in the ledger."""
        end = f"-end-{self.epoch}" if self.is_end else ""
        return f"{self.generation}-{self.checkpoint_id}{end}"

    @property
    def order(self) -> tuple[int, int]:
        """Return by what the newest record is known: nothing of a lower epoch comes after it."""
        return self.epoch, self.checkpoint_id

    @property
    def staged(self) -> frozenset[str]:
        """Return the names of its files in the staging directory."""
        return frozenset(file.staged for file in self.files)

    def replaces(self, older: CommitRecord) -> bool:
        """Tell whether this record, once committed, puts an older one out of force."""
        return older.order < self.order and not self.line.holds(older.epoch, older.checkpoint_id)

    def encode(self) -> bytes:
        """Return the record as JSON."""
        document = {
            "format_version": FORMAT_VERSION,
            "job": self.job_name,
            "uid": self.uid,
            "generation": self.generation,
            "checkpoint": self.checkpoint_id,
            "epoch": self.epoch,
            "line": self.line.segments,
            "is_end": self.is_end,
            "columns": _readable(self.schema),
            "schema": self.schema,
            "partition_by": self.partition_by,
            "files": [[f.staged, f.name, f.size_bytes, f.rows, f.footer_sha256] for f in self.files],
        }
        return json.dumps(document, sort_keys=True, indent=1).encode()

    @classmethod
    def decode(cls, content: bytes, shown: str) -> CommitRecord:
        """
        Return the record in a file.

        :param shown: Which file it is.
        :raises CorruptStateError: The file is damaged.
        :raises IncompatibleCheckpointError: A newer version of this package wrote it.
        """
        try:
            document = json.loads(content)
            version = int(document["format_version"])
            record = _from_document(document) if version == FORMAT_VERSION else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected a record of a sink in {shown}, found {content[:60]!r}; put the file back from a backup, or move "
                "the directory of the lineage away together with its files."
            ) from error
        if record is None:
            raise IncompatibleCheckpointError(
                f"Expected a record of format {FORMAT_VERSION} in {shown}, found format {version}; use the version of "
                "airflow-provider-statecheck that wrote it, or a newer one.",
                format_version=version,
            )
        return record


def _from_document(document: Mapping[str, Any]) -> CommitRecord:
    return CommitRecord(
        job_name=str(document["job"]),
        uid=str(document["uid"]),
        generation=int(document["generation"]),
        checkpoint_id=int(document["checkpoint"]),
        epoch=int(document["epoch"]),
        line=Line(tuple((int(epoch), int(last)) for epoch, last in document["line"])),
        is_end=bool(document["is_end"]),
        schema=str(document["schema"]),
        partition_by=tuple(str(column) for column in document["partition_by"]),
        files=tuple(
            PublishedFile(
                staged=str(staged), name=str(name), size_bytes=int(size), rows=int(rows), footer_sha256=str(digest)
            )
            for staged, name, size, rows, digest in document["files"]
        ),
    )


def _readable(schema: str) -> list[str]:
    from airflow_provider_statecheck.spark.sinks.committable import decode_schema

    return [str(field) for field in decode_schema(schema)] if schema else []
