"""Large files that a server or maintenance reads one at a time."""

from __future__ import annotations

import weakref
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


@pytest.mark.parametrize("is_cause", [False, True])
def test_an_error_leaves_a_block_without_what_the_block_held(storage: CheckpointStorage, is_cause: bool) -> None:
    """The next block begins while a server still answers with the error."""
    held = list[weakref.ref[Held]]()

    def fail() -> None:
        decoded = Held()
        held.append(weakref.ref(decoded))
        read(storage, "large")
        raise ValueError(len(held))

    def wrap() -> None:
        try:
            fail()
        except ValueError as error:
            raise KeyError("wrapped") from error

    with pytest.raises((ValueError, KeyError)) as raised, one_large_at_a_time():
        wrap() if is_cause else fail()
    assert raised.value.__traceback__ is not None
    assert [each() for each in held] == [None]


def test_an_error_with_another_cause_or_in_a_circle_leaves_a_block_the_same_way(storage: CheckpointStorage) -> None:
    held = list[weakref.ref[Held]]()

    def fail() -> None:
        decoded = Held()
        held.append(weakref.ref(decoded))
        read(storage, "large")
        raise ValueError(len(held))

    def wrap() -> None:
        try:
            fail()
        except ValueError:
            error, other = KeyError("wrapped"), OSError("of another call")
            other.__cause__ = error
            raise error from other

    with pytest.raises(KeyError) as raised, one_large_at_a_time():
        wrap()
    assert raised.value.__context__ is not None
    assert [each() for each in held] == [None]


class Held:
    """What a block has decoded."""


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
