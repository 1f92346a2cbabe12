"""
Contract of checkpoint storage as a test suite for any bucket or directory.

Subclass :class:`StorageContract` and define the fixture ``base_uri`` and, if necessary, ``storage_options``. The suite
writes to directories of random jobs below ``base_uri`` and deletes them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

_ODD_NAMES = ("with space", "ünïcødé-名前-🙂", "a#b", "100%", "%41", "a+b", "a&b=c", "a:b", "~", "a'b", "..b", "a\\b")
_THREADS = 16


class StorageContract:
    """Contract of every checkpoint storage."""

    tells_other_bytes = True
    """
    Whether the store rejects writes to existing names; set it to false for a store that ignores ``If-None-Match``.
    """
    large_bytes = 110 * 2**20
    """The size of a large file in bytes, above the threshold of multipart uploads."""
    many_files = 1_100
    """A number of files above the limit of one list or delete request of object stores."""

    @pytest.fixture
    def storage_options(self) -> dict[str, Any]:
        """Return the options of the filesystem."""
        return {}

    @pytest.fixture
    def storage(self, base_uri: str, storage_options: dict[str, Any]) -> CheckpointStorage:
        return CheckpointStorage.open(base_uri, **storage_options)

    @pytest.fixture
    def other(self, base_uri: str, storage_options: dict[str, Any]) -> CheckpointStorage:
        """Return the same storage in another client."""
        return CheckpointStorage.open(base_uri, **storage_options, skip_instance_cache=True)

    @pytest.fixture
    def checkpoint(self, storage: CheckpointStorage) -> Iterator[str]:
        """Return a checkpoint directory, which is deleted after the test."""
        uri = f"{storage.base_uri}/{uuid.uuid4().hex}/chk-1"
        yield uri
        storage.delete_directory(uri)

    # --- writing

    @pytest.mark.parametrize("data", [b"", b"abc", bytes(range(256))], ids=["empty", "small", "all-bytes"])
    def test_what_was_written_is_read(self, storage: CheckpointStorage, checkpoint: str, data: bytes) -> None:
        storage.write_bytes(f"{checkpoint}/f", data)
        assert storage.read_bytes(f"{checkpoint}/f") == data
        assert storage.size(f"{checkpoint}/f") == len(data)

    def test_the_same_bytes_may_be_written_again(self, storage: CheckpointStorage, checkpoint: str) -> None:
        for overwrite in (False, False, True):
            storage.write_bytes(f"{checkpoint}/f", b"same", overwrite=overwrite)
        assert storage.list_files(checkpoint) == {"f": 4}

    def test_other_bytes_under_one_name_are_refused(
        self, storage: CheckpointStorage, other: CheckpointStorage, checkpoint: str
    ) -> None:
        if not self.tells_other_bytes:
            pytest.skip("the store does not reject writes to existing names")
        storage.write_bytes(f"{checkpoint}/f", b"first")
        for data in (b"other", b"longer than that", b""):
            with pytest.raises(StorageError, match="two writers"):
                other.write_bytes(f"{checkpoint}/f", data)
        assert storage.read_bytes(f"{checkpoint}/f") == b"first"

    def test_of_many_writers_of_other_bytes_exactly_one_succeeds(
        self, storage: CheckpointStorage, checkpoint: str
    ) -> None:
        if not self.tells_other_bytes:
            pytest.skip("the store does not reject writes to existing names")
        with ThreadPoolExecutor(8) as pool:
            written = list(pool.map(lambda data: _succeeds(storage, f"{checkpoint}/f", data), _different(8)))
        winners = [data for data, success in zip(_different(8), written, strict=True) if success]
        assert winners == [storage.read_bytes(f"{checkpoint}/f")]

    def test_overwriting_replaces_where_it_is_asked_for(self, storage: CheckpointStorage, checkpoint: str) -> None:
        storage.write_bytes(f"{checkpoint}/f", b"first")
        storage.write_bytes(f"{checkpoint}/f", b"2", overwrite=True)
        assert storage.read_bytes(f"{checkpoint}/f") == b"2"

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_an_exception_while_writing_publishes_nothing(
        self, storage: CheckpointStorage, checkpoint: str, overwrite: bool
    ) -> None:
        unreadable = memoryview(b"half a file")
        unreadable.release()
        with pytest.raises(StorageError):
            storage.write_bytes(f"{checkpoint}/f", cast(bytes, unreadable), overwrite=overwrite)
        assert not storage.exists(f"{checkpoint}/f")
        assert storage.list_files(checkpoint) == {}

    def test_a_large_file_is_written_and_read_whole(self, storage: CheckpointStorage, checkpoint: str) -> None:
        data = (b"0123456789abcdef" * (self.large_bytes // 16 + 1))[: self.large_bytes]
        storage.write_bytes(f"{checkpoint}/f", data)
        storage.write_bytes(f"{checkpoint}/f", data)
        assert storage.size(f"{checkpoint}/f") == len(data)
        digest = hashlib.sha256(data).hexdigest()
        assert storage.read_verified(f"{checkpoint}/f", size=len(data), sha256=digest) == data

    def test_a_large_file_does_not_replace_another(self, storage: CheckpointStorage, checkpoint: str) -> None:
        if not self.tells_other_bytes:
            pytest.skip("the store does not reject writes to existing names")
        storage.write_bytes(f"{checkpoint}/f", b"first")
        with pytest.raises(StorageError, match="two writers"):
            storage.write_bytes(f"{checkpoint}/f", bytes(self.large_bytes))
        assert storage.read_bytes(f"{checkpoint}/f") == b"first"

    # --- reading

    def test_a_range_is_a_slice(self, storage: CheckpointStorage, checkpoint: str) -> None:
        storage.write_bytes(f"{checkpoint}/f", b"0123456789")
        assert storage.read_range(f"{checkpoint}/f", 0, 4) == b"0123"
        assert storage.read_range(f"{checkpoint}/f", 4, 10) == b"456789"
        assert storage.read_range(f"{checkpoint}/f", 9, 10) == b"9"

    def test_a_missing_file_is_not_found(self, storage: CheckpointStorage, checkpoint: str) -> None:
        for read in (storage.read_bytes, storage.size, lambda uri: storage.read_range(uri, 0, 1)):
            with pytest.raises(CheckpointNotFoundError):
                read(f"{checkpoint}/missing")
        assert not storage.exists(f"{checkpoint}/missing")
        assert not storage.is_directory(f"{checkpoint}/missing")

    def test_changed_bytes_are_noticed(self, storage: CheckpointStorage, checkpoint: str) -> None:
        storage.write_bytes(f"{checkpoint}/f", b"stats")
        with pytest.raises(CorruptStateError):
            storage.read_verified(f"{checkpoint}/f", size=5, sha256=hashlib.sha256(b"state").hexdigest())

    def test_what_another_client_wrote_is_seen_at_once(
        self, storage: CheckpointStorage, other: CheckpointStorage, checkpoint: str
    ) -> None:
        assert not other.exists(f"{checkpoint}/f")
        assert other.list_files(checkpoint) == {}
        assert other.list_directories(checkpoint) == []
        storage.write_bytes(f"{checkpoint}/d/f", b"new")
        assert other.exists(f"{checkpoint}/d/f")
        assert other.list_files(checkpoint) == {"d/f": 3}
        assert other.list_directories(checkpoint) == ["d"]
        storage.write_bytes(f"{checkpoint}/d/f", b"newer", overwrite=True)
        assert other.size(f"{checkpoint}/d/f") == 5
        storage.delete_directory(checkpoint)
        assert not other.exists(f"{checkpoint}/d/f")
        assert other.list_files(checkpoint) == {}

    def test_files_and_directories_are_told_apart(self, storage: CheckpointStorage, checkpoint: str) -> None:
        storage.write_bytes(f"{checkpoint}/d/f", b"x")
        assert storage.is_directory(f"{checkpoint}/d")
        assert storage.exists(f"{checkpoint}/d")
        assert not storage.is_directory(f"{checkpoint}/d/f")
        with pytest.raises(CheckpointNotFoundError):
            storage.size(f"{checkpoint}/d")

    # --- names and lists

    @pytest.mark.parametrize("name", _ODD_NAMES)
    def test_a_name_is_taken_as_it_stands(self, storage: CheckpointStorage, checkpoint: str, name: str) -> None:
        uri = f"{checkpoint}/{name}/{name}"
        storage.write_bytes(uri, b"odd")
        assert storage.list_files(checkpoint) == {f"{name}/{name}": 3}
        assert storage.list_directories(checkpoint) == [name]
        assert (storage.read_bytes(uri), storage.size(uri), storage.read_range(uri, 1, 2)) == (b"odd", 3, b"d")
        storage.delete_file(uri)
        assert not storage.exists(uri)

    def test_a_directory_whose_name_begins_alike_is_another(self, storage: CheckpointStorage, checkpoint: str) -> None:
        job, _, _ = checkpoint.rpartition("/")
        storage.write_bytes(f"{job}/chk-1/f", b"1")
        storage.write_bytes(f"{job}/chk-10/f", b"10")
        assert storage.list_files(f"{job}/chk-1") == {"f": 1}
        storage.delete_directory(f"{job}/chk-1")
        assert storage.list_files(job) == {"chk-10/f": 2}
        storage.delete_directory(f"{job}/chk-10")

    def test_many_files_are_listed_and_deleted_wholly(self, storage: CheckpointStorage, checkpoint: str) -> None:
        names = [f"d{i % 3}/{i:05d}" for i in range(self.many_files)]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda name: storage.write_bytes(f"{checkpoint}/{name}", b"x"), names))
        assert storage.list_files(checkpoint) == dict.fromkeys(names, 1)
        assert storage.list_directories(checkpoint) == ["d0", "d1", "d2"]
        storage.delete_directory(checkpoint)
        assert storage.list_files(checkpoint) == {}
        assert not storage.exists(checkpoint)

    # --- deleting

    def test_deleting_what_is_gone_is_success(self, storage: CheckpointStorage, checkpoint: str) -> None:
        storage.write_bytes(f"{checkpoint}/f", b"x")
        for _ in range(2):
            storage.delete_file(f"{checkpoint}/f")
        for _ in range(2):
            storage.delete_directory(checkpoint)
        assert not storage.exists(f"{checkpoint}/f")

    def test_one_file_goes_alone(self, storage: CheckpointStorage, checkpoint: str) -> None:
        storage.write_bytes(f"{checkpoint}/f", b"x")
        storage.write_bytes(f"{checkpoint}/ff", b"y")
        storage.delete_file(f"{checkpoint}/f")
        assert storage.list_files(checkpoint) == {"ff": 1}

    def test_nothing_but_a_checkpoint_or_a_snapshot_is_deleted(
        self, storage: CheckpointStorage, checkpoint: str
    ) -> None:
        storage.write_bytes(f"{checkpoint}/f", b"x")
        for uri in (storage.base_uri, checkpoint.rpartition("/")[0], f"{checkpoint}/../x"):
            with pytest.raises(InvalidConfigurationError):
                storage.delete_directory(uri)
        assert storage.exists(f"{checkpoint}/f")

    # --- properties

    def test_its_options_open_it_again(self, storage: CheckpointStorage, checkpoint: str) -> None:
        storage.write_bytes(f"{checkpoint}/f", b"x")
        again = CheckpointStorage.open(storage.base_uri, **storage.options)
        assert again.read_bytes(f"{checkpoint}/f") == b"x"

    def test_free_space_is_a_number_or_unknown(self, storage: CheckpointStorage) -> None:
        free = storage.free_bytes()
        assert free is None or free > 0


def _different(count: int) -> list[bytes]:
    return [b"%d" % number * 1000 for number in range(count)]


def _succeeds(storage: CheckpointStorage, uri: str, data: bytes) -> bool:
    try:
        storage.write_bytes(uri, data)
    except StorageError:
        return False
    return True
