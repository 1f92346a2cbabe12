"""A savepoint that somebody else made: what its metadata names is opened in allowed places only."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    FileStateHandle,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.exceptions import LocationNotAllowedError
from airflow_provider_statecheck.maintenance.savepoints import serve_idle
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier, verify_job
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredDataFrames, StoredSnapshot
from airflow_provider_statecheck.state.arrow.run_files import RunBytes
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.writing.canonical import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    SnapshotHandle,
    encode_metadata,
    load_document,
)
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotManifest
from tests.messages import make_savepoint_request, present, source_at
from tests.unit.storage.keyed_files import keyed
from tests.unit.written_stage import WrittenStage

NO_STATE = hashlib.sha256(b"{}").hexdigest()


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A server of the internal network, and which of its pages were asked for."""
    paths: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"{}")

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/admin", paths
    server.shutdown()
    server.server_close()


def foreign(stage: WrittenStage, tmp_path: Path, **changes: Any) -> str:
    """Write a savepoint of another job that names what it likes, and return its pointer."""
    attempt = stage.attempt("theirs")
    taken = stage.take(attempt, stage.snapshot(attempt, "orders"))
    document = replace(load_document(stage.storage, taken), properties=CheckpointProperties.for_savepoint(), **changes)
    uri = f"file://{tmp_path}/downloads/savepoint-012345-0123456789ab/_metadata"
    stage.storage.write_bytes(uri, encode_metadata(document, uri=uri))
    attempt.finish(AttemptStatus.FAILED)
    return uri.removesuffix("/_metadata")


def write(storage: CheckpointStorage, document: CheckpointDocument, directory: str) -> None:
    properties = CheckpointProperties.for_savepoint()
    write_savepoint(storage, document, directory=directory, checkpoint_id=9, properties=properties)


def begin(stage: WrittenStage, pointer: str, **changes: Any) -> RestoredStage | None:
    return stage.attempt("mine", restore_from=source_at(stage.storage, pointer), **changes).restore()


def naming(stage: WrittenStage, uri: str, what: str) -> dict[str, Any]:
    file = FileStateHandle(uri=uri, size=2, sha256=NO_STATE)
    if what == "state":
        return {"state": file, "snapshots": ()}
    if what == "snapshot":
        attempt = stage.attempt("named")
        return {"snapshots": (replace(stage.snapshot(attempt, "orders"), uri=uri),)}
    stream = (
        file
        if what == "file of state"
        else SegmentFileStateHandle(uri, 0, 2, CheckpointedStateScope.SHARED, "s", NO_STATE)
    )
    return {"snapshots": (), "operator_states": (keyed(stream),)}


WHAT = ("state", "snapshot", "file of state", "part of a file of state")


@pytest.mark.parametrize("what", WHAT)
def test_no_page_that_a_foreign_savepoint_names_is_asked_for(
    stage: WrittenStage, tmp_path: Path, asked: tuple[str, list[str]], what: str
) -> None:
    url, paths = asked
    pointer = foreign(stage, tmp_path, **naming(stage, url, what))
    with pytest.raises(LocationNotAllowedError) as caught:
        begin(stage, pointer)
    assert paths == []
    assert url in str(caught.value)
    assert f"file://{tmp_path}/checkpoints" in str(caught.value)
    assert pointer in str(caught.value)
    assert "allowed_locations" in str(caught.value)


@pytest.mark.parametrize("what", WHAT)
def test_no_file_of_the_machine_that_a_foreign_savepoint_names_is_opened(
    stage: WrittenStage, tmp_path: Path, what: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    with pytest.raises(LocationNotAllowedError):
        begin(stage, foreign(stage, tmp_path, **naming(stage, secret.as_uri(), what)))


def test_a_place_that_the_setting_allows_is_read(stage: WrittenStage, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "state").write_text("{}")
    elsewhere = (tmp_path / "archive").as_uri()
    pointer = foreign(stage, tmp_path, **naming(stage, f"{elsewhere}/state", "state"))
    stage.storage = stage.storage.allowing(locations=[elsewhere])
    restored = present(begin(stage, pointer))
    assert restored.state == {}


def test_the_own_checkpoints_go_on_in_a_directory_of_an_earlier_configuration(
    stage: WrittenStage, tmp_path: Path
) -> None:
    attempt = stage.attempt("mine")
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    attempt.finish(AttemptStatus.FAILED)
    stage.storage = CheckpointStorage.open(f"{tmp_path}/new")
    restored = present(stage.attempt("mine").restore())
    assert restored.document.snapshots[0].uri.startswith(f"file://{tmp_path}/checkpoints/")


def moved_on(stage: WrittenStage, tmp_path: Path) -> SnapshotHandle:
    """Let a checkpoint in a new directory name a snapshot in the old one, whose only checkpoint is discarded."""
    attempt = stage.attempt("mine")
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    attempt.finish(AttemptStatus.FAILED)
    stage.storage = CheckpointStorage.open(f"{tmp_path}/new")
    attempt = stage.attempt("mine")
    restored = present(attempt.restore())
    handles = restored.document.snapshots
    attempt.take_checkpoint(CheckpointContent(snapshots=handles))
    attempt.finish(AttemptStatus.FAILED)
    assert stage.statuses("mine") == {1: "subsumed", 2: "completed"}
    return handles[0]


def test_a_snapshot_in_an_earlier_directory_outlives_the_checkpoints_there(stage: WrittenStage, tmp_path: Path) -> None:
    handle = moved_on(stage, tmp_path)
    restored = present(stage.attempt("mine").restore())
    assert restored.document.snapshots == (handle,)


def test_an_earlier_directory_is_allowed_for_the_own_job_alone(stage: WrittenStage, tmp_path: Path) -> None:
    moved_on(stage, tmp_path)
    storage = stage.attempt("mine").storage
    with pytest.raises(LocationNotAllowedError):
        storage.read_bytes(f"file://{tmp_path}/checkpoints/{job_id_of('theirs')}/chk-1/_metadata")


def claimed(stage: WrittenStage, tmp_path: Path) -> None:
    """Let a checkpoint name what lies in a claimed savepoint beside the configured directories."""
    attempt = stage.attempt("theirs")
    taken = stage.take(attempt, stage.snapshot(attempt, "orders"), state=["x" * 50_000])
    directory = f"{tmp_path.as_uri()}/downloads/savepoint-012345-0123456789ab"
    write(stage.storage.allowing(directory), load_document(stage.storage, taken), directory)
    attempt.finish(AttemptStatus.FAILED)
    source = replace(source_at(stage.storage, directory), mode=RestoreMode.CLAIM)
    heir = stage.attempt("mine", restore_from=source)
    restored = present(heir.restore())
    stage.take(heir, *restored.document.snapshots)
    heir.finish(AttemptStatus.FAILED)


@pytest.mark.parametrize("make", [moved_on, claimed])
def test_verify_reads_where_the_rows_of_the_operator_lie(
    stage: WrittenStage, tmp_path: Path, make: Callable[[WrittenStage, Path], object]
) -> None:
    make(stage, tmp_path)
    view = stage.coordinator.describe(job_id_of("mine"))
    found = list(verify_job(stage.maintenance, view, CheckpointStorage.open))
    assert found
    assert [each.problems for each in found] == [()] * len(found)


@pytest.mark.parametrize("make", [moved_on, claimed])
def test_a_savepoint_of_an_idle_operator_reads_where_its_rows_lie(
    stage: WrittenStage, tmp_path: Path, make: Callable[[WrittenStage, Path], object]
) -> None:
    make(stage, tmp_path)
    (operator,) = stage.coordinator.describe(job_id_of("mine")).operators
    target = f"{tmp_path.as_uri()}/savepoints"
    stage.savepoints.request(make_savepoint_request(operator, target=target))
    view = stage.coordinator.describe(operator.job_id)
    (taken,) = serve_idle(stage.savepoints, view, CheckpointStorage.open, None)
    assert taken.problem is None
    assert taken.pointer is not None
    assert CheckpointVerifier(CheckpointStorage.open(target)).verify_pointer(taken.pointer).is_restorable


def test_commands_and_readers_of_state_open_nothing_else_either(
    stage: WrittenStage, tmp_path: Path, asked: tuple[str, list[str]]
) -> None:
    url, paths = asked
    pointer = foreign(stage, tmp_path, **naming(stage, url, "state"))
    (problem,) = CheckpointVerifier(stage.storage).verify_pointer(pointer).problems
    assert "allowed_locations" in problem
    states = CheckpointStates.load(pointer)
    with pytest.raises(LocationNotAllowedError):
        states.values()
    with pytest.raises(LocationNotAllowedError):
        write(stage.storage, states.document, f"{stage.storage.base_uri}/savepoint-aaaaaa-0123456789ab")
    assert paths == []
    allowed = CheckpointStates.load(pointer, allowed_locations=[url.removesuffix("/admin")])
    assert allowed.values() == {}
    assert paths


def test_spark_is_given_no_path_elsewhere(stage: WrittenStage, tmp_path: Path) -> None:
    spark: Any = None
    manifest = SnapshotManifest(schema_json="{}", files=(), rows=0)
    with pytest.raises(LocationNotAllowedError):
        StoredDataFrames(stage.storage).read(spark, [StoredSnapshot(f"file://{tmp_path}/elsewhere", manifest)])


def pickled(storage: CheckpointStorage) -> CheckpointStorage:
    """Return the storage of a task."""
    sent: CheckpointStorage = pickle.loads(pickle.dumps(storage))
    return sent


def test_executors_read_in_the_same_places_as_the_driver(stage: WrittenStage, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"abcd")
    handle = FileStateHandle(f"file://{tmp_path}/state", 4)
    with pytest.raises(LocationNotAllowedError):
        RunBytes(pickled(stage.storage)).read(handle, [(1, 2)])
    wider = pickled(stage.storage.allowing(locations=[f"file://{tmp_path}"]))
    assert bytes(RunBytes(wider).read(handle, [(1, 2)])[0]) == b"bc"
