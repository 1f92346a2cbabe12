"""Locations that a task registers and that a server or maintenance must not open, and storage that never answers."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.api.state_reads import storage_here
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    LocationNotAllowedError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.hooks.connection import guarded_storage_opener
from airflow_provider_statecheck.maintenance.gc import collect_job
from airflow_provider_statecheck.maintenance.verify import verify_job
from airflow_provider_statecheck.spark.restore import StateVerifier
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.locations import AllowedLocations
from airflow_provider_statecheck.storage.patience import HostPatience
from tests.unit.written_stage import WrittenStage

JOB = job_id_of("sales")


class Listener:
    """A port that counts the connections to it, and never answers one."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        held = []
        while True:
            try:
                held.append(self._socket.accept())
            except OSError:
                return
            self.connections += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    opened = Listener()
    yield opened
    opened.close()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenStage:
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", str(tmp_path / "base"))
    monkeypatch.setenv("AIRFLOW__STATECHECK__SAVEPOINT_DIR", f"file://{tmp_path}/savepoints")
    monkeypatch.setenv("AIRFLOW__STATECHECK__ALLOWED_LOCATIONS", f"file://{tmp_path}/archive")
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))


def elsewhere(tmp_path: Path, port: int) -> list[str]:
    """Return URIs outside the configured locations."""
    (tmp_path / "base").mkdir(exist_ok=True)
    (tmp_path / "base" / "link").symlink_to("/etc")
    return [
        f"http://127.0.0.1:{port}/{JOB}",
        f"https://127.0.0.1:{port}/{JOB}",
        f"ftp://127.0.0.1:{port}/{JOB}",
        f"webhdfs://127.0.0.1:{port}/{JOB}",
        "http://169.254.169.254/latest/meta-data",
        "memory://base/x",
        "file:///etc",
        "file:///proc/self",
        f"file://{tmp_path}",
        f"file://{tmp_path}/base2",
        f"file://{tmp_path}/base/link/x",
        f"file://{tmp_path}/base/../other",
        f"local://{tmp_path}/other",
        f"simplecache::file://{tmp_path}/base",
        f"zip://x::http://127.0.0.1:{port}/x",
        f"reference://x/{JOB}",
    ]


def calls_of(storage: CheckpointStorage) -> list[Callable[[str], object]]:
    """Return every call of a storage that takes a URI."""
    inside = f"{storage.base_uri}/{JOB}/chk-1/f"
    return [
        storage.read_bytes,
        storage.exists,
        storage.is_directory,
        storage.size,
        storage.list_files,
        storage.list_directories,
        storage.delete_file,
        storage.delete_directory,
        lambda uri: storage.read_range(uri, 0, 1),
        lambda uri: storage.write_bytes(uri, b""),
        lambda uri: storage.copy_file(uri, inside),
        lambda uri: storage.copy_file(inside, uri),
    ]


def test_servers_and_maintenance_open_only_configured_locations(
    stage: WrittenStage, tmp_path: Path, listener: Listener
) -> None:
    opener = guarded_storage_opener()
    for known in ("base", "base/x/chk-1", "savepoints", "savepoints/deep", "archive/2025"):
        assert opener(f"file://{tmp_path}/{known}").list_files(f"file://{tmp_path}/{known}") == {}
    storage = opener(stage.storage.base_uri)
    storage.write_bytes(f"{storage.base_uri}/{JOB}/chk-1/f", b"x")
    for uri in elsewhere(tmp_path, listener.port):
        with pytest.raises(InvalidConfigurationError):
            opener(uri)
        with pytest.raises(StateCheckError):
            storage_here(opener, "the option")(f"{uri}/chk-1")
        # Rows and metadata add nothing, whatever is done with the URI.
        for call in calls_of(storage.allowing(uri, locations=[f"file://{tmp_path}"])):
            with pytest.raises(InvalidConfigurationError):
                call(f"{uri}/{JOB}/chk-1")
    assert listener.connections == 0


@pytest.mark.parametrize("place", ["http", "file"])
def test_job_elsewhere_is_shown_with_the_setting_to_add_and_nothing_of_it_is_opened(
    place: str, stage: WrittenStage, tmp_path: Path, listener: Listener
) -> None:
    base = f"http://127.0.0.1:{listener.port}/lake" if place == "http" else f"file://{tmp_path}/elsewhere"
    attempt = stage.attempt(storage_base=base)
    attempt.finish(AttemptStatus.FAILED)
    (tmp_path / "elsewhere" / JOB / "chk-7").mkdir(parents=True)
    report = collect_job(stage.maintenance, JOB, guarded_storage_opener())
    [problem] = report.problems
    assert base in problem
    assert "add its location to allowed_locations" in problem
    assert (report.unreachable, report.deleted, listener.connections) == ([], {}, 0)
    assert (tmp_path / "elsewhere" / JOB / "chk-7").exists()


def test_checkpoint_whose_row_names_another_location_is_not_read(stage: WrittenStage, tmp_path: Path) -> None:
    attempt = stage.attempt()
    stage.take(attempt, stage.snapshot(attempt, "raw", rows=3))
    attempt.finish(AttemptStatus.FAILED)
    view = stage.coordinator.describe(JOB)
    [found] = verify_job(stage.maintenance, view, guarded_storage_opener())
    assert found.is_restorable
    other = CheckpointStorage.open(f"{tmp_path}/other")
    guarded = other.guarded(AllowedLocations().below(other.base_uri), HostPatience())
    [found] = verify_job(stage.maintenance, view, lambda _: guarded)
    assert "add its location to allowed_locations" in found.problems[0]


def test_directory_of_the_process_itself_is_read_by_a_server_too(stage: WrittenStage, tmp_path: Path) -> None:
    storage = guarded_storage_opener()(stage.storage.base_uri)
    (tmp_path / "spilled").mkdir()
    (tmp_path / "spilled" / "f").write_bytes(b"x")
    assert storage.allowing_own(f"file://{tmp_path}/spilled").read_bytes(f"file://{tmp_path}/spilled/f") == b"x"
    with pytest.raises(InvalidConfigurationError):
        storage.read_bytes(f"file://{tmp_path}/spilled/f")


class _Silent(MemoryFileSystem):  # type: ignore[misc]
    """A storage that never answers."""

    protocol = "memory"
    cachable = False
    asked = 0

    def info(self, path: str, **_: Any) -> Any:
        type(self).asked += 1
        threading.Event().wait(30)

    ls = find = cat_file = rm_file = pipe_file = rm = info


def test_storage_that_never_answers_delays_one_call_and_not_each_job(stage: WrittenStage) -> None:
    jobs = [f"job {number}" for number in range(10)]
    for job in jobs:
        stage.attempt(job, storage_base="memory://silent").finish(AttemptStatus.FAILED)
    _Silent.asked = 0
    patience = HostPatience(longest_seconds=0.2)
    storage = CheckpointStorage(_Silent(), "memory://silent", retries=RetryPolicy(sleep=lambda _: None))
    guarded = storage.guarded(AllowedLocations().below("memory://silent"), patience)
    began = time.monotonic()
    for job in jobs:
        report = collect_job(stage.maintenance, job_id_of(job), lambda _: guarded)
        assert len(report.unreachable) == 1
        assert "Check the storage and the network" in report.unreachable[0]
    # The call, and the short one that tells whether the host answers at all.
    assert _Silent.asked == 2
    assert time.monotonic() - began < 5


def test_silent_host_is_asked_again_later_and_others_are_asked_meanwhile() -> None:
    now = [0.0]
    patience = HostPatience(monotonic=lambda: now[0], longest_seconds=0.05)
    release = threading.Event()
    with pytest.raises(StorageError, match="Expected an answer of s3://a within"):
        patience.call("s3://a", release.wait)
    with pytest.raises(StorageError, match="did not answer"):
        patience.require_answer("s3://a", lambda: None)
    assert patience.call("s3://b", lambda: 7) == 7
    now[0] += 301
    assert patience.call("s3://a", lambda: 8) == 8
    release.set()


def test_eight_threads_wait_for_a_silent_host_together_and_not_in_turn() -> None:
    patience, release, asked = HostPatience(longest_seconds=0.3), threading.Event(), []

    def call() -> object:
        asked.append(1)
        return release.wait(30)

    def ask(_: int) -> str:
        with pytest.raises(StorageError) as caught:
            patience.call("s3://a", call, probe=call)
        return str(caught.value)

    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        errors = list(threads.map(ask, range(40)))
    # In turn they would take 8 times as long for the call, and again for the short one.
    assert time.monotonic() - began < 8 * 0.3
    assert len(asked) <= 2 * 8
    assert sum("did not answer" in error for error in errors) >= 40 - 8
    release.set()


def test_calls_to_a_host_that_answers_share_threads_with_none_that_waits() -> None:
    patience, release = HostPatience(longest_seconds=0.05), threading.Event()
    names = {patience.call("s3://a", threading.get_ident) for _ in range(100)}
    assert len(names) < 10, "a thread makes one call after the other"
    with pytest.raises(StorageError):
        patience.call("s3://b", release.wait)
    assert [patience.call("s3://a", lambda: 7) for _ in range(100)] == [7] * 100
    release.set()


def test_error_of_a_call_is_raised_as_it_is_and_time_outs_of_clients_are_no_silence() -> None:
    patience = HostPatience()

    def fail() -> None:
        raise TimeoutError("of the client")

    with pytest.raises(TimeoutError, match="of the client"):
        patience.call("s3://a", fail)
    assert patience.call("s3://a", lambda: 1) == 1


def test_error_about_changed_state_names_neither_a_digest_of_what_was_found_nor_credentials(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path.as_uri())
    uri = f"{storage.base_uri}/f?sas_token=hush"
    storage.write_bytes(uri, b"found")
    for verify in (StateVerifier(storage).require_digest, StateVerifier(storage, is_deep=True).require_digest):
        for size in (5, 6):
            with pytest.raises(CorruptStateError, match="found another") as caught:
                verify(FileStateHandle(uri, size, "ab" * 32))
            shown = f"{caught.value} {vars(caught.value)}"
            assert "hush" not in shown
            assert hashlib.sha256(b"found").hexdigest()[:6] not in shown


@pytest.mark.parametrize("root", ["s3://lake", "file:///data", "abfs://c@account", "hdfs://name:1"])
@pytest.mark.parametrize(
    "place", ["-evil/x", ".evil/x", "/../evil/x", "/./../evil", "/x/../../evil", " /x", "./x", "evil"]
)
def test_no_sibling_of_a_configured_location_is_one(root: str, place: str) -> None:
    configured = AllowedLocations.only([f"{root}/checkpoints"])
    configured.require(f"{root}/checkpoints/{JOB}/chk-1/_metadata")
    for uri in (f"{root}/checkpoints{place}", f"{root}2/checkpoints/x", f"{root.upper()}/checkpoints/x"):
        with pytest.raises(LocationNotAllowedError):
            configured.require(uri)
