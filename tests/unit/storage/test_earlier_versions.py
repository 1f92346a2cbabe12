"""Files and tokens that an earlier version of this package has written."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.metadata.tables import Caller, UserCaller, caller_of
from airflow_provider_statecheck.storage.metadata_file import InlineStateHandle, decode_metadata
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotManifest

JOB = "e04eb29020eaa961e99d3162635e9fe9"
OPERATOR = "ee3c65b5c7f4dd0ebed8bf046725e273"
DIRECTORY = f"shared/{OPERATOR}/step_0-0b3693810144/1-21285b3d66fb45e6bbc379ccb90d3f06"
METADATA: dict[str, Any] = {
    "checkpoint_id": 1,
    "created_at": "2026-11-30T01:28:19.699282+00:00",
    "epoch": 1,
    "generation": 1,
    "has_commit": False,
    "job_id": JOB,
    "job_name": "sales",
    "master_states": [],
    "operator_id": OPERATOR,
    "operator_states": [],
    "parts": [],
    "properties": {
        "discard_on_cancelled": False,
        "discard_on_failed": False,
        "discard_on_finished": True,
        "discard_on_subsumed": True,
        "discard_on_suspended": False,
        "force": False,
        "part": "",
        "savepoint_format": None,
        "snapshot_type": "checkpoint",
        "unclaimed": False,
    },
    "relocatable": True,
    "request_key": "75513ace72264a9ab73cb6cf6a64b337",
    "run": "",
    "snapshots": [
        {
            "created_at": "2026-01-01T00:00:00+00:00",
            "epoch": 1,
            "files": 2,
            "fingerprint": "f1",
            "lineage": "",
            "manifest_sha256": "e64467e35b60dfe0e71293a486afd02b5be75af927a897a1086f603cd439edd3",
            "manifest_size": 455,
            "name": "step 0",
            "of_parts": 0,
            "part": 0,
            "rows": 2000,
            "scope": [],
            "seconds": 1.0,
            "size_bytes": 39142,
            "uri": f"job:{DIRECTORY}",
        }
    ],
    "state": {"kind": "inline", "value": {"done": []}},
    "uid": "aggregate",
}
DIGEST = "969399f43b846c37323e8cf33855957e277937f1900f6615be3b473de3ef329c"
MANIFEST = (
    r'{"format_version":1,"schema_json":"{\"type\": \"struct\", \"fields\": [{\"name\": \"n\", \"type\": \"long\", '
    r"\"nullable\": "
    r"true, \"metadata\": {}}, {\"name\": \"text\", \"type\": \"string\", \"nullable\": true, \"metadata\": "
    r'{}}]}","files":'
    r'[["part-0.parquet",19571,"17c2767616d6903ab2382ef3d034f16de06c69ea9ddc759fb1cbac80b3bb1e74"],["part-1.parquet",19571,'
    r'"ec6fbe0484bd95d09a43cf3a36ce981b25675f68471c11612d5f418deb97861e"]],"rows":2000,"writer":"spark"}'
)


def test_metadata_of_an_earlier_version_is_read() -> None:
    body = json.dumps(METADATA, sort_keys=True, separators=(",", ":")).encode()
    assert hashlib.sha256(body).hexdigest() == DIGEST, "these are its bytes"
    base = "file:///lake"
    document = decode_metadata(f"statecheck-metadata 1 {DIGEST}\n".encode() + body, uri=f"{base}/{JOB}/chk-1/_metadata")
    [snapshot] = document.snapshots
    assert (document.job_id, document.uid, snapshot.uri) == (
        job_id_of("sales"),
        "aggregate",
        f"{base}/{JOB}/{DIRECTORY}",
    )
    assert document.state == InlineStateHandle(value={"done": []})


def test_manifest_of_an_earlier_version_is_read() -> None:
    assert hashlib.sha256(MANIFEST.encode()).hexdigest() == METADATA["snapshots"][0]["manifest_sha256"]
    manifest = SnapshotManifest.decode(MANIFEST.encode())
    assert (manifest.rows, [file.name for file in manifest.files]) == (2000, ["part-0.parquet", "part-1.parquet"])


@pytest.mark.parametrize(
    ("stored", "caller"),
    [
        (
            {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 3},
            Caller(dag_id="d", run_id="r", task_id="t", map_index=3),
        ),
        ({"user": "ann"}, UserCaller(user="ann")),
    ],
    ids=["task", "user"],
)
def test_token_of_an_earlier_version_is_of_the_same_caller(stored: dict[str, Any], caller: Caller | UserCaller) -> None:
    found = caller_of(stored)
    assert (found, found.login) == (caller, "")
