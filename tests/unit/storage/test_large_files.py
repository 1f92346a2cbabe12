"""Large files that a server or maintenance reads one at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from threading import Event

import pytest

from airflow_provider_statecheck.exceptions import RequestLimitError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.large_files import LARGE, one_large_at_a_time
from airflow_provider_statecheck.storage.metadata_file import encode_metadata, read_metadata
from tests.unit.storage.documents import make_document


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    made = CheckpointStorage.open(str(tmp_path))
    for name, size in {"small": LARGE, "large": LARGE + 1}.items():
        made.write_bytes(f"{made.base_uri}/{name}", b"x" * size)
    return made


def read(storage: CheckpointStorage, name: str) -> int:
    return len(storage.read_limited(f"{storage.base_uri}/{name}", 2 * LARGE))


def test_a_second_block_is_told_to_come_again_while_another_holds_a_large_file(storage: CheckpointStorage) -> None:
    held, done = Event(), Event()

    def hold() -> None:
        with one_large_at_a_time():
            read(storage, "large")
            held.set()
            assert done.wait(60)

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(hold)
        assert held.wait(60)
        try:
            with one_large_at_a_time(0.01):
                assert read(storage, "small") == LARGE
                with pytest.raises(RequestLimitError) as refused:
                    read(storage, "large")
            assert refused.value.retry_after_seconds is not None
            assert read(storage, "large") == LARGE + 1  # a driver, which has no block
        finally:
            done.set()
        holding.result()
    with one_large_at_a_time(0.01):
        assert read(storage, "large") == LARGE + 1


class Held:
    """What a block has decoded."""


class Failing:
    """Work of a block that fails while it holds what it has decoded."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._held: list[weakref.ref[Held]] = []

    def plainly(self) -> None:
        """Fail."""
        decoded = Held()
        self._held.append(weakref.ref(decoded))
        read(self._storage, "large")
        raise ValueError(len(self._held))

    def as_cause(self) -> None:
        """Fail with an error that has the first one as its cause."""
        try:
            self.plainly()
        except ValueError as error:
            raise KeyError("wrapped") from error

    def in_a_circle(self) -> None:
        """Fail with an error that is the cause of its own cause, and has the first one as its context."""
        try:
            self.plainly()
        except ValueError:
            error, other = KeyError("wrapped"), OSError("of another call")
            other.__cause__ = error
            raise error from other

    @property
    def is_free(self) -> bool:
        """Whether nothing holds what was decoded."""
        return [each() for each in self._held] == [None]


@pytest.mark.parametrize("fail", [Failing.plainly, Failing.as_cause, Failing.in_a_circle])
def test_an_error_leaves_a_block_without_what_the_block_held(
    storage: CheckpointStorage, fail: Callable[[Failing], None]
) -> None:
    """The next block begins while a server still answers with the error."""
    failing = Failing(storage)
    with pytest.raises((ValueError, KeyError)) as raised, one_large_at_a_time():
        fail(failing)
    assert raised.value.__traceback__ is not None
    assert failing.is_free


def test_metadata_is_asked_for_its_size_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = CheckpointStorage.open(str(tmp_path))
    uri = f"{storage.base_uri}/chk-3/_metadata"
    storage.write_bytes(uri, encode_metadata(make_document(), uri=uri))
    asked: list[str] = []
    size = CheckpointStorage.size

    def counted(self: CheckpointStorage, uri: str) -> int:
        asked.append(uri)
        return size(self, uri)

    monkeypatch.setattr(CheckpointStorage, "size", counted)
    read_metadata(storage, uri)
    with one_large_at_a_time():
        read_metadata(storage, uri)
    assert asked == [uri, uri]


def test_threads_of_one_block_have_one_turn(storage: CheckpointStorage) -> None:
    with one_large_at_a_time(0.01), ThreadPoolExecutor(2) as threads:
        found = [threads.submit(copy_context().run, read, storage, "large") for _ in range(4)]
        assert {each.result() for each in found} == {LARGE + 1}
        with one_large_at_a_time(0.01):
            assert read(storage, "large") == LARGE + 1
