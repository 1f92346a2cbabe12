"""Checkpoints with named DataFrame snapshots, written without Spark by the writer of the executors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from airflow_provider_statecheck.checkpoint.ids import (
    MANIFEST_FILE,
    epoch_name,
    job_id_of,
    operator_id_of,
    shared_uri,
    slug,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import ExecutorFiles, HiddenOptions, PartitionWriter
from airflow_provider_statecheck.state.progress import Scope
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    InlineStateHandle,
    SnapshotHandle,
    encode_metadata,
)
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile, SnapshotManifest, SnapshotWriter

JOB, UID = "sales", "features"
WRITTEN_AT = datetime(2026, 1, 1, tzinfo=UTC)
SALES = {"id": "long", "shop": "string"}
"""Names and types of the columns of a snapshot, in Spark's JSON format."""


def spark_schema(columns: dict[str, Any] | Sequence[tuple[str, Any]]) -> str:
    """Return a schema as Spark writes it into a manifest."""
    pairs = columns.items() if isinstance(columns, dict) else columns
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in pairs]
    return json.dumps({"type": "struct", "fields": fields})


def sales(rows: int) -> pa.RecordBatch:
    """Return rows with the columns :data:`SALES`, named as in a file."""
    return pa.record_batch({"_c0": list(range(rows)), "_c1": [f"shop {i % 3}" for i in range(rows)]})


@dataclass
class SnapshotJob:
    """One stage whose checkpoints name snapshots."""

    storage: CheckpointStorage
    taken: int = 0

    def snapshot(
        self,
        name: str,
        batch: pa.RecordBatch | None = None,
        columns: Any = None,
        *,
        scope: Scope = (),
        files: int = 1,
    ) -> SnapshotHandle:
        """Write a snapshot of some equal files; by default one with three sales."""
        batch = sales(3) if batch is None else batch
        uri = self.new_uri(name, scope)
        target = ExecutorFiles(f"{uri}/data", HiddenOptions({}))
        Path(target.data_uri.removeprefix("file://")).mkdir(parents=True)
        written = [
            row
            for part in range(files)
            for result in PartitionWriter(target, batch.schema, f"write{part}").write(iter([batch]))
            for row in result.to_pylist()
        ]
        manifest = SnapshotManifest(
            schema_json=spark_schema(SALES if columns is None else columns),
            files=tuple(
                SnapshotFile(name=row["name"], size_bytes=row["size_bytes"], footer_sha256=row["footer_sha256"])
                for row in sorted(written, key=lambda row: row["name"])
            ),
            rows=batch.num_rows * files,
            writer=SnapshotWriter.EXECUTORS,
        )
        return self.add(uri, name, scope, manifest)

    def add(self, uri: str, name: str, scope: Scope, manifest: SnapshotManifest) -> SnapshotHandle:
        """Write the manifest of files that exist."""
        data = manifest.encode()
        self.storage.write_bytes(f"{uri}/{MANIFEST_FILE}", data)
        return SnapshotHandle(
            name=name,
            scope=scope,
            uri=uri,
            manifest_size=len(data),
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data) + manifest.size_bytes,
            rows=manifest.rows,
            files=len(manifest.files),
            fingerprint="f1",
            epoch=3,
            seconds=1.5,
            created_at=WRITTEN_AT,
        )

    def take(self, *snapshots: SnapshotHandle, **values: Any) -> str:
        """Write the metadata of a checkpoint and return its pointer."""
        self.taken += 1
        document = CheckpointDocument(
            job_id=job_id_of(JOB),
            job_name=JOB,
            operator_id=operator_id_of(UID),
            uid=UID,
            checkpoint_id=self.taken,
            epoch=3,
            generation=1,
            snapshots=snapshots,
            state=InlineStateHandle(value=values),
            created_at=WRITTEN_AT,
        )
        pointer = f"{self.storage.base_uri}/{job_id_of(JOB)}/chk-{self.taken}"
        self.storage.write_bytes(f"{pointer}/_metadata", encode_metadata(document, uri=f"{pointer}/_metadata"))
        return pointer

    def new_uri(self, name: str, scope: Scope = ()) -> str:
        """Return the directory of a new snapshot."""
        root = shared_uri(self.storage.base_uri, job_id_of(JOB), operator_id_of(UID))
        return f"{root}/{slug(name, scope)}/{epoch_name(3)}"


def data_files(handle: SnapshotHandle) -> list[Path]:
    """Return the local Parquet files of a snapshot."""
    return sorted(Path(f"{handle.uri}/data".removeprefix("file://")).glob("*.parquet"))


def flip(path: Path, position: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def flip_page(path: Path) -> None:
    """Change a byte of the first page of a file, whose checksum then differs."""
    column = parquet.read_metadata(path).row_group(0).column(0)
    flip(path, column.dictionary_page_offset + column.total_compressed_size // 2)


def change_type_of_page(path: Path) -> None:
    """Make Arrow skip the first page of a file."""
    content = bytearray(path.read_bytes())
    # The first byte of a header announces the type, and the second one is its number.
    content[parquet.read_metadata(path).row_group(0).column(0).dictionary_page_offset + 1] = 6
    path.write_bytes(content)
