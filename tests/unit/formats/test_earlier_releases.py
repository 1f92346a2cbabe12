"""Files that each release wrote are read by the current code, as ``docs/reference/compatibility.md`` promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import CommitLog
from airflow_provider_statecheck.storage.metadata_file import decode_metadata, encode_metadata
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotManifest
from tests.docs.pages import ROOT
from tests.unit.state.arrow.harness import VALUE, Job
from tests.unit.state.operator.snapshots import numbers, rates, restored
from tests.unit.storage.documents import METADATA_URI
from tests.unit.storage.operator_states import SAVEPOINT_URI

FOLDER = Path(__file__).parent
RELEASES = sorted(folder for folder in FOLDER.iterdir() if folder.name[0].isdigit())
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
pytestmark = pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)


def is_within(earlier: Any, now: Any) -> bool:
    """Tell whether a document has all that an earlier one had."""
    if isinstance(earlier, dict):
        return isinstance(now, dict) and all(
            name in now and is_within(each, now[name]) for name, each in earlier.items()
        )
    if isinstance(earlier, list):
        return len(earlier) == len(now) and all(map(is_within, earlier, now))
    return bool(earlier == now)


@pytest.mark.parametrize(
    ("name", "uri"),
    [("checkpoint_metadata", METADATA_URI), ("savepoint_metadata", f"{SAVEPOINT_URI}/_metadata")],
)
def test_metadata_loses_nothing(release: Path, name: str, uri: str) -> None:
    data = (release / name).read_bytes()
    header, _, earlier = data.partition(b"\n")
    now = encode_metadata(decode_metadata(data, uri=uri), uri=uri).partition(b"\n")[2]

    assert is_within(json.loads(earlier), json.loads(now))
    assert header.rpartition(b" ")[0].decode() in PAGE.read_text()


def test_state_by_key_is_restored(release: Path, tmp_path: Path) -> None:
    [operator] = decode_metadata((release / "checkpoint_metadata").read_bytes(), uri=METADATA_URI).operator_states
    job = Job(tmp_path)
    backend = job.open(*operator.subtask_states[0].managed_keyed)
    values = job.state(backend, VALUE)
    found: list[Any] = []
    for key in range(20):
        backend.set_current_key(key, job.keys.key_group_of(key, 16))
        found.append(values.value())

    assert found == list(range(20))


def test_state_of_operators_is_restored(release: Path, tmp_path: Path) -> None:
    [operator] = decode_metadata((release / "checkpoint_metadata").read_bytes(), uri=METADATA_URI).operator_states
    backend = restored(Job(tmp_path).storage, operator.subtask_states[0].managed_operator)

    assert list(backend.get_list_state(numbers()).get()) == [1, 2]
    assert backend.get_broadcast_state(rates()).get("a") == 0.5


def test_a_manifest_is_read(release: Path) -> None:
    manifest = SnapshotManifest.decode((release / "snapshot_manifest").read_bytes())

    assert (manifest.rows, manifest.size_bytes, len(manifest.files)) == (7, 1234, 1)


def test_the_log_of_a_sink_is_read(release: Path) -> None:
    log = CommitLog.decode((release / "commit_log").read_text(), "here")

    assert [log.holds(1, checkpoint_id) for checkpoint_id in (1, 2, 3, 4)] == [True, True, True, False]
