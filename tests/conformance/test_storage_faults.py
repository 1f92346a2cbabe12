"""Checkpoint storage over an S3 server that answers late, not at all, with errors, or does what it does not confirm."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StorageError
from airflow_provider_statecheck.storage.arrow_stores import ArrowS3
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.object_store import KEY, SECRET, Fault, ObjectStore, running_object_store
from tests.soak import every_nth

ANSWERED = [Fault.SLOW_DOWN, Fault.INTERNAL_ERROR, Fault.THROTTLED, Fault.DROPPED, Fault.REPLY_LOST]
"""Faults that pass, and that a client sees without waiting for long."""
ATTEMPTS = 3
PART = 5 * 2**20
LARGE = 2 * PART + 1


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectStore]:
    with running_object_store() as store:
        yield store


@pytest.fixture
def store(running: ObjectStore) -> Iterator[ObjectStore]:
    running.faults.clear()
    yield running
    running.faults.clear()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def storage(store: ObjectStore, pauses: list[float]) -> CheckpointStorage:
    """A client that repeats nothing by itself, so that each repetition seen is ours."""
    from s3fs import S3FileSystem

    class SmallParts(S3FileSystem):  # type: ignore[misc]
        async def _pipe_file(self, path: str, data: bytes, **kwargs: Any) -> Any:
            return await super()._pipe_file(path, data, chunksize=PART, **kwargs)

    options = store.storage_options
    filesystem = SmallParts(**options, use_listings_cache=False, skip_instance_cache=True)
    filesystem.retries = 1
    retries = RetryPolicy(attempts=ATTEMPTS, first_pause_seconds=0.01, sleep=pauses.append)
    return CheckpointStorage(filesystem, f"s3://{store.bucket}/ck", options=options, retries=retries)


@pytest.fixture
def checkpoint(storage: CheckpointStorage) -> str:
    return f"{storage.base_uri}/{uuid.uuid4().hex}/chk-1"


@pytest.fixture
def file(storage: CheckpointStorage, checkpoint: str, store: ObjectStore) -> str:
    uri = f"{checkpoint}/there"
    storage.write_bytes(uri, b"state")
    store.faults.requests.clear()
    return uri


def filesystem_of(storage: CheckpointStorage) -> Any:
    """Return the filesystem that the storage uses."""
    return storage.locate(storage.base_uri)[0]


def calls_fail_for_the_bucket(storage: CheckpointStorage) -> None:
    uri = f"s3://no-such-bucket-here/ck/{'a' * 32}/chk-1"
    storage = storage.allowing(uri)
    for call in (
        storage.read_bytes,
        storage.exists,
        storage.size,
        storage.list_files,
        storage.list_directories,
        storage.delete_directory,
        storage.delete_file,
        lambda u: storage.read_range(u, 0, 1),
        lambda u: storage.write_bytes(u, b"x"),
        lambda u: storage.write_bytes(u, b"x", overwrite=True),
    ):
        with pytest.raises(StorageError, match="bucket does not exist") as caught:
            call(uri)
        assert not isinstance(caught.value, CheckpointNotFoundError)


class FaultsOfAnyClient:
    """What holds for each client of the store."""

    large_bytes = LARGE
    """Size of a file that the client writes in several parts."""

    def is_repeated(self, puts: int, *, may_be_taken: bool) -> bool:
        """
        Return whether a client that makes this number of requests has repeated a write.

        :param may_be_taken: Whether the first request took effect, which a client may see without another one.
        """
        return puts > 1 or may_be_taken

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("fault", ANSWERED)
    def test_a_write_is_repeated_until_it_is_done(
        self, storage: CheckpointStorage, checkpoint: str, store: ObjectStore, fault: Fault, overwrite: bool
    ) -> None:
        store.faults.inject(fault, method="PUT", times=ATTEMPTS - 1)
        storage.write_bytes(f"{checkpoint}/f", b"state", overwrite=overwrite)
        assert storage.read_bytes(f"{checkpoint}/f") == b"state"
        may_be_taken = fault is Fault.REPLY_LOST and not overwrite
        assert self.is_repeated(store.faults.count("PUT"), may_be_taken=may_be_taken)

    @pytest.mark.parametrize("fault", [*ANSWERED, Fault.CUT_SHORT])
    def test_reads_and_lists_are_repeated(
        self, storage: CheckpointStorage, checkpoint: str, file: str, store: ObjectStore, fault: Fault
    ) -> None:
        for read, expected in [
            (lambda: storage.read_bytes(file), b"state"),
            (lambda: storage.read_range(file, 1, 3), b"ta"),
            (lambda: storage.size(file), 5),
            (lambda: storage.exists(file), True),
            (lambda: storage.list_files(checkpoint), {"there": 5}),
            (lambda: storage.list_directories(checkpoint.rpartition("/")[0]), ["chk-1"]),
        ]:
            for skipped in (0, 1):  # a read may ask for the size first
                store.faults.clear()
                store.faults.inject(fault, method="GET|HEAD", skip=skipped)
                assert read() == expected
                assert len(store.faults.requests) > 1 or fault is Fault.CUT_SHORT or skipped

    @pytest.mark.parametrize("fault", ANSWERED)
    def test_deletes_are_repeated(
        self, storage: CheckpointStorage, checkpoint: str, file: str, store: ObjectStore, fault: Fault
    ) -> None:
        deletes_are_repeated(storage, checkpoint, file, store, fault)

    @pytest.mark.parametrize("fault", ANSWERED)
    def test_a_store_that_stays_away_is_an_error_and_never_a_missing_file(
        self, storage: CheckpointStorage, checkpoint: str, file: str, store: ObjectStore, fault: Fault
    ) -> None:
        store.faults.inject(fault, times=1000)
        for call in (storage.read_bytes, storage.exists, storage.list_files, storage.delete_directory):
            with pytest.raises(StorageError) as caught:
                call(checkpoint if call is storage.delete_directory else file)
            assert not isinstance(caught.value, CheckpointNotFoundError)
            assert caught.value.retryable

    def test_a_large_file_with_a_broken_part_is_whole_or_not_there(
        self, storage: CheckpointStorage, checkpoint: str, store: ObjectStore
    ) -> None:
        large = bytes(self.large_bytes)
        store.faults.inject(Fault.INTERNAL_ERROR, method="PUT", key="partNumber=2", times=ATTEMPTS)
        with pytest.raises(StorageError):
            storage.write_bytes(f"{checkpoint}/f", large)
        assert not storage.exists(f"{checkpoint}/f")
        storage.write_bytes(f"{checkpoint}/f", large)
        assert storage.size(f"{checkpoint}/f") == len(large)

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_small_file_is_written_in_one_request_if_the_store_allows_it(
        self, storage: CheckpointStorage, checkpoint: str, store: ObjectStore, overwrite: bool
    ) -> None:
        storage.write_bytes(f"{checkpoint}/f", b"state", overwrite=overwrite)
        assert store.faults.count("PUT") == 1

    def test_denied_fails_at_once_and_says_what_to_check(
        self, storage: CheckpointStorage, checkpoint: str, store: ObjectStore, pauses: list[float]
    ) -> None:
        store.faults.inject(Fault.DENIED, times=100)
        for call in (
            lambda: storage.write_bytes(f"{checkpoint}/f", b"x", overwrite=True),
            lambda: storage.write_bytes(f"{checkpoint}/f", b"x"),
            lambda: storage.exists(f"{checkpoint}/f"),
            lambda: storage.list_files(checkpoint),
            lambda: storage.delete_file(f"{checkpoint}/f"),
        ):
            with pytest.raises(StorageError, match="Check the credentials") as caught:
                call()
            assert KEY not in str(caught.value)
            assert SECRET not in str(caught.value)
        assert pauses == []

    def test_a_missing_bucket_is_not_a_missing_file(self, storage: CheckpointStorage, pauses: list[float]) -> None:
        calls_fail_for_the_bucket(storage)
        assert pauses == []


def deletes_are_repeated(
    storage: CheckpointStorage, checkpoint: str, file: str, store: ObjectStore, fault: Fault
) -> None:
    store.faults.inject(fault, method="DELETE|POST")
    storage.delete_file(file)
    assert not storage.exists(file)
    storage.write_bytes(file, b"state")
    store.faults.inject(fault, method="POST")
    storage.delete_directory(checkpoint)
    assert storage.list_files(checkpoint) == {}


class TestThroughArrow(FaultsOfAnyClient):
    """PyArrow in place of s3fs; its client reports causes only in the text of its errors."""

    large_bytes = 25 * 2**20

    @pytest.fixture
    def storage(self, store: ObjectStore, pauses: list[float]) -> CheckpointStorage:
        options = store.storage_options
        retries = RetryPolicy(attempts=ATTEMPTS, first_pause_seconds=0.01, sleep=pauses.append)
        filesystem = ArrowS3(**options, skip_instance_cache=True)
        return CheckpointStorage(filesystem, f"s3://{store.bucket}/ck", options=options, retries=retries)


class TestThroughS3fs(FaultsOfAnyClient):
    """s3fs, which also gives up requests that are not answered."""

    def is_repeated(self, puts: int, *, may_be_taken: bool) -> bool:
        """Return whether each of our attempts was a request, as this client repeats nothing by itself."""
        return puts == ATTEMPTS

    @pytest.mark.parametrize("overwrite", every_nth([True, False], 2))
    def test_a_write_that_is_not_answered_is_made_again(
        self, storage: CheckpointStorage, checkpoint: str, store: ObjectStore, overwrite: bool
    ) -> None:
        store.faults.inject(Fault.STALLED, method="PUT", times=ATTEMPTS - 1)
        storage.write_bytes(f"{checkpoint}/f", b"state", overwrite=overwrite)
        assert storage.read_bytes(f"{checkpoint}/f") == b"state"
        assert store.faults.count("PUT") == ATTEMPTS

    def test_a_delete_that_is_not_answered_is_made_again(
        self, storage: CheckpointStorage, checkpoint: str, file: str, store: ObjectStore
    ) -> None:
        deletes_are_repeated(storage, checkpoint, file, store, Fault.STALLED)

    def test_a_read_that_is_not_answered_is_made_again(
        self, storage: CheckpointStorage, file: str, store: ObjectStore, pauses: list[float]
    ) -> None:
        store.faults.inject(Fault.STALLED, method="GET")
        assert storage.read_bytes(file) == b"state"
        assert len(pauses) == 1

    def test_pauses_grow_and_end(
        self, storage: CheckpointStorage, checkpoint: str, store: ObjectStore, pauses: list[float]
    ) -> None:
        store.faults.inject(Fault.SLOW_DOWN, times=100)
        with pytest.raises(StorageError, match="The storage failed") as caught:
            storage.read_bytes(f"{checkpoint}/f")
        assert caught.value.retryable
        assert len(pauses) == ATTEMPTS - 1
        assert len(store.faults.requests) == ATTEMPTS


class TestLostReplies:
    def test_a_write_whose_reply_was_lost_is_success_with_one_repetition(
        self, storage: CheckpointStorage, checkpoint: str, store: ObjectStore
    ) -> None:
        store.faults.inject(Fault.REPLY_LOST, method="PUT")
        storage.write_bytes(f"{checkpoint}/f", b"state")
        assert store.faults.count("PUT") == 2

    def test_other_bytes_are_refused_after_a_lost_reply_too(
        self, storage: CheckpointStorage, file: str, store: ObjectStore
    ) -> None:
        store.faults.inject(Fault.REPLY_LOST, method="PUT")
        with pytest.raises(StorageError, match="two writers"):
            storage.write_bytes(file, b"other")
        assert storage.read_bytes(file) == b"state"

    @pytest.mark.parametrize("overwrite", [False, True], ids=["create", "overwrite"])
    @pytest.mark.parametrize("tries", [1, 2], ids=["ours", "also-theirs"])
    def test_a_large_file_whose_last_reply_was_lost_is_whole(
        self, storage: CheckpointStorage, checkpoint: str, store: ObjectStore, overwrite: bool, tries: int
    ) -> None:
        """Whether we make the whole upload again, or s3fs completes the one that is complete."""
        filesystem_of(storage).retries = tries
        data = bytes(LARGE)
        store.faults.inject(Fault.REPLY_LOST, method="POST", key="uploadId=")
        storage.write_bytes(f"{checkpoint}/f", data, overwrite=overwrite)
        assert storage.size(f"{checkpoint}/f") == LARGE


async def deletes_nothing(paths: list[str], **_: object) -> list[str]:
    return []


class TestDeleting:
    def test_a_key_that_a_batch_could_not_delete_gives_its_reason(
        self,
        storage: CheckpointStorage,
        checkpoint: str,
        file: str,
        monkeypatch: pytest.MonkeyPatch,
        store: ObjectStore,
    ) -> None:
        """As s3fs has it: what a batch says of single keys is dropped."""
        monkeypatch.setattr(filesystem_of(storage), "_bulk_delete", deletes_nothing)
        store.faults.inject(Fault.DENIED, method="DELETE")
        with pytest.raises(StorageError, match=r"Access Denied.*Check the credentials"):
            storage.delete_directory(checkpoint)
        assert storage.exists(file)

    def test_what_a_batch_left_is_deleted_singly(
        self, storage: CheckpointStorage, checkpoint: str, file: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(filesystem_of(storage), "_bulk_delete", deletes_nothing)
        storage.delete_directory(checkpoint)
        assert not storage.exists(file)

    def test_markers_of_directories_are_no_files_and_go_too(
        self, storage: CheckpointStorage, checkpoint: str, file: str
    ) -> None:
        """Hadoop writes objects whose names end with a slash."""
        marker = f"{checkpoint}/data/".removeprefix("s3://")
        filesystem_of(storage).call_s3("put_object", Bucket=marker.partition("/")[0], Key=marker.partition("/")[2])
        assert storage.list_files(checkpoint) == {"there": 5}
        storage.delete_directory(checkpoint)
        assert not storage.exists(checkpoint)
