"""Documents for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle, SnapshotHandle

JOB_ID = "0123456789abcdef" * 2
JOB_URI = f"file:///base/{JOB_ID}"
METADATA_URI = f"{JOB_URI}/chk-3/_metadata"


def make_snapshot(**changes: Any) -> SnapshotHandle:
    values: dict[str, Any] = {
        "name": "raw",
        "scope": (("days", "2026-01-01"), ("parts", "7")),
        "uri": f"{JOB_URI}/shared/op/raw-1a/2-ff",
        "manifest_size": 10,
        "manifest_sha256": "ab" * 32,
        "size_bytes": 4096,
        "rows": 12,
        "files": 2,
        "fingerprint": "f1",
        "epoch": 2,
        "seconds": 1.25,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return SnapshotHandle(**values | changes)


def make_document(**changes: Any) -> CheckpointDocument:
    values: dict[str, Any] = {
        "job_id": JOB_ID,
        "job_name": "dag/run",
        "operator_id": "op",
        "uid": "features",
        "checkpoint_id": 3,
        "epoch": 2,
        "generation": 1,
        "snapshots": (make_snapshot(), make_snapshot(name="bare", scope=(), rows=None)),
        "state": InlineStateHandle(value={"$dict": [["day", {"$date": "2026-01-01"}]]}),
        "created_at": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
    }
    return CheckpointDocument(**values | changes)
