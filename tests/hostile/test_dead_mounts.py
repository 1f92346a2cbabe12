"""A local place on a mount whose server is gone, and one job whose calls take too long while its storage answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import LocationNotAllowedError, StorageError
from airflow_provider_statecheck.hooks import connection
from airflow_provider_statecheck.hooks.connection import guarded_storage_opener
from airflow_provider_statecheck.state.arrow.run_files import LocalFiles, RunBytes
from airflow_provider_statecheck.storage import file_operations, patience
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.locations import AllowedLocations
from airflow_provider_statecheck.storage.patience import CALL_SECONDS, DIRECTORY_SECONDS, HostPatience

_OPENING = ("lstat", "stat", "statvfs", "open", "scandir", "readlink")


class Mount:
    """A directory in which every call of the operating system waits until the end of the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"file://{path}"
        self.asked = 0
        self._released = threading.Event()

    def hang(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call of the operating system that never returns for this directory."""

        def hanging(path: Any, *args: Any, **others: Any) -> Any:
            if isinstance(path, str | Path) and f"{path}/".startswith(f"{self.path}/"):
                self.asked += 1
                self._released.wait(30)
            return call(path, *args, **others)

        return hanging

    def release(self) -> None:
        """End all calls."""
        self._released.set()


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / "f").write_bytes(b"x")
    (tmp_path / "healthy").mkdir()
    (tmp_path / "healthy" / "f").write_bytes(b"healthy")
    (tmp_path / "healthy" / "link").symlink_to(tmp_path / "dead")
    mount = Mount(tmp_path / "dead")
    for name in _OPENING:
        monkeypatch.setattr(os, name, mount.hang(getattr(os, name)))
    yield mount
    mount.release()


def guarded(dead: Mount, patience: HostPatience) -> CheckpointStorage:
    """Return a storage of two places; the dead one comes first."""
    healthy = f"file://{dead.path.parent}/healthy"
    allowed = AllowedLocations.only([dead.uri, healthy])
    return CheckpointStorage.open(healthy).guarded(allowed, patience)


def reads_of(storage: CheckpointStorage) -> list[Callable[[str], object]]:
    """Return the ways to read a file, also a state file through an open descriptor."""
    files = RunBytes(storage, LocalFiles())
    return [
        storage.read_bytes,
        storage.size,
        lambda uri: storage.read_range(uri, 0, 1),
        lambda uri: storage.list_files(uri.rpartition("/")[0]),
        storage.require_allowed,
        lambda uri: files.require_allowed(FileStateHandle(uri, 1, "")),
        lambda uri: files.read(FileStateHandle(uri, 1, ""), [(0, 1)]),
    ]


def test_a_healthy_place_is_read_without_a_look_at_a_dead_one_before_it(dead: Mount) -> None:
    storage = guarded(dead, HostPatience(longest_seconds=5))
    for read in reads_of(storage):
        read(f"{storage.base_uri}/f")
    assert storage.read_bytes(f"{storage.base_uri}/f") == b"healthy"
    storage.require_answer()
    assert dead.asked == 0


@pytest.mark.parametrize("number", range(7))
def test_every_read_of_a_dead_place_ends_at_its_deadline_and_makes_no_other_place_silent(
    dead: Mount, number: int
) -> None:
    storage = guarded(dead, HostPatience(longest_seconds=0.05))
    with pytest.raises(StorageError, match="/dead within"):
        reads_of(storage)[number](f"{dead.uri}/f")
    asked = dead.asked
    for read in reads_of(storage):
        with pytest.raises(StorageError, match="did not answer"):
            read(f"{dead.uri}/f")
    assert dead.asked == asked
    assert storage.read_bytes(f"{storage.base_uri}/f") == b"healthy"


def test_a_link_of_a_job_to_a_dead_mount_fails_that_job_alone(dead: Mount) -> None:
    storage = guarded(dead, HostPatience(longest_seconds=0.05))
    with pytest.raises(StorageError, match="a link may lead elsewhere"):
        storage.read_bytes(f"{storage.base_uri}/link/f")
    assert storage.read_bytes(f"{storage.base_uri}/f") == b"healthy"


def test_a_place_that_another_name_leads_to_is_found_while_a_third_is_dead(dead: Mount) -> None:
    parent = dead.path.parent
    (parent / "alias").symlink_to(parent / "healthy")
    (parent / "elsewhere").mkdir()
    storage = guarded(dead, HostPatience(longest_seconds=0.05))
    assert storage.read_bytes(f"file://{parent}/alias/f") == b"healthy"
    assert dead.asked == 0
    # It may lead to the dead place, for all that is known.
    with pytest.raises(StorageError, match="/dead"):
        storage.read_bytes(f"file://{parent}/elsewhere/f")
    healthy = AllowedLocations.only([storage.base_uri])
    with pytest.raises(LocationNotAllowedError):
        storage.guarded(healthy, HostPatience()).read_bytes(f"file://{parent}/elsewhere/f")


def test_servers_start_and_open_jobs_without_a_look_at_a_dead_savepoint_directory(
    dead: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE", HostPatience(longest_seconds=5))
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", f"{dead.path.parent}/healthy")
    monkeypatch.setenv("AIRFLOW__STATECHECK__SAVEPOINT_DIR", dead.uri)
    monkeypatch.setenv("AIRFLOW__STATECHECK__ALLOWED_LOCATIONS", f"{dead.uri}/archive")
    storage = guarded_storage_opener()(f"file://{dead.path.parent}/healthy")
    assert storage.read_bytes(f"{storage.base_uri}/f") == b"healthy"
    assert dead.asked == 0


def test_an_opener_gives_up_the_base_of_a_job_below_a_dead_mount(dead: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", HostPatience(longest_seconds=0.05))
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", f"{dead.path.parent}/healthy")
    opener = guarded_storage_opener()
    for base in (f"{dead.uri}/../healthy", f"{dead.uri}/x", f"file://{dead.path.parent}/healthy/link/x"):
        with pytest.raises(StorageError):
            opener(base)
    assert opener(f"file://{dead.path.parent}/healthy").exists(f"file://{dead.path.parent}/healthy/f")


def test_a_call_that_takes_too_long_makes_no_host_silent_that_answers_another_one() -> None:
    patience = HostPatience(longest_seconds=0.05)
    release = threading.Event()

    def refuse() -> None:
        raise PermissionError("an answer, too")

    for probe in (lambda: None, refuse):
        with pytest.raises(StorageError, match="answers other calls only"):
            patience.call("s3://a", release.wait, probe=probe)
        assert patience.call("s3://a", lambda: 7) == 7
    with pytest.raises(StorageError, match="asked again in 300 seconds"):
        patience.call("s3://a", release.wait, probe=release.wait)
    with pytest.raises(StorageError, match="did not answer"):
        patience.call("s3://a", lambda: 7)
    release.set()


class _Recording(HostPatience):
    """Patience that notes the deadlines of its calls."""

    def call(self, host: str, action: Any, seconds: float = CALL_SECONDS, **others: Any) -> Any:
        self.deadlines = [*getattr(self, "deadlines", []), seconds]
        return super().call(host, action, seconds, **others)


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_calls_whose_time_grows_with_a_directory_have_the_long_deadline(scheme: str, tmp_path: Path) -> None:
    base = f"file://{tmp_path}" if scheme == "file" else "memory://lake/base"
    storage = CheckpointStorage.open(base)
    job = f"{storage.base_uri}/{'0' * 32}/chk-1"
    for call in ("list_files", "list_directories", "delete_directory", "remove_empty_directories"):
        patience = _Recording()
        recorded = storage.guarded(AllowedLocations.only([base]), patience)
        getattr(recorded, call)(job)
        assert max(getattr(patience, "deadlines", [300])) == 300, call


@pytest.mark.parametrize("is_of_user", [False, True])
def test_the_check_of_a_place_does_not_get_the_deadline_of_a_long_call(
    dead: Mount, monkeypatch: pytest.MonkeyPatch, *, is_of_user: bool
) -> None:
    monkeypatch.setattr(patience, "CALL_SECONDS", 0.05)
    monkeypatch.setattr(patience, "PROBE_SECONDS", 0.05)
    storage = guarded(dead, HostPatience(is_of_user=is_of_user))
    # The place answers a short call, and the check of a link in it does not.
    with pytest.raises(StorageError, match=r"within 0\.05 seconds, found that it answers other calls only"):
        storage.list_files(f"{storage.base_uri}/link")
    with pytest.raises(StorageError, match=r"/dead within 0\.05 seconds, found none"):
        storage.list_files(dead.uri)


def test_what_follows_the_check_of_a_place_has_the_deadline_of_a_long_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "CALL_SECONDS", 0.05)
    storage = CheckpointStorage.open(str(tmp_path))
    listed = file_operations.list_files

    def slow(directory: Path) -> dict[str, int]:
        threading.Event().wait(0.2)
        return listed(directory)

    monkeypatch.setattr(file_operations, "list_files", slow)
    (tmp_path / "f").write_bytes(b"x")
    places = AllowedLocations.only([storage.base_uri])
    assert storage.guarded(places, HostPatience()).list_files(storage.base_uri) == {"f": 1}
    with pytest.raises(StorageError, match=r"within 0\.1 seconds"):
        storage.guarded(places, HostPatience(longest_seconds=0.1)).list_files(storage.base_uri)


def test_a_long_call_of_a_user_goes_on_while_its_host_answers_and_ends_once_it_does_not() -> None:
    patience = HostPatience(longest_seconds=0.05, is_of_user=True)
    answers, silent, release = iter(range(3)), threading.Event(), threading.Event()

    def probe() -> None:
        if next(answers, None) is None:
            silent.set()
            release.wait(30)

    with pytest.raises(StorageError, match="found none"):
        patience.call("s3://a", lambda: release.wait(30), DIRECTORY_SECONDS, probe=probe)
    assert silent.is_set()
    slow = threading.Event()
    done = patience.call(
        "s3://b", lambda: slow.wait(30), DIRECTORY_SECONDS, probe=slow.set
    )  # the call ends after it was found to take too long
    assert done
    with pytest.raises(StorageError, match="answers other calls only"):
        patience.call("s3://b", lambda: release.wait(30), CALL_SECONDS, probe=lambda: None)
    release.set()
