"""Carrying out discards on storage."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.discarding import EffectDiscards, StorageDiscarder
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import DocumentCache, encode_metadata
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.documents import JOB_ID, make_document, make_snapshot

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SHARED = CheckpointedStateScope.SHARED
UNCLAIMED = CheckpointProperties.for_unclaimed_snapshot()
SAVEPOINT = CheckpointProperties.for_savepoint()


class Written:
    """Checkpoints with their bytes on storage."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self.storage = storage
        self.savepoint = f"{storage.base_uri}/savepoint-0123ab-0123456789ab"

    def snapshot(self, name: str, directory: str | None = None) -> str:
        """Write a snapshot, among those of the job or into a directory."""
        root = f"{directory}/snapshots" if directory else f"{self.storage.base_uri}/{JOB_ID}/shared/{'0' * 32}"
        uri = f"{root}/{name}/1-{'0' * 32}"
        self.storage.write_bytes(f"{uri}/data", b"rows")
        return uri

    def checkpoint(
        self, number: int, *uris: str, location: str | None = None, is_written: bool = True, **changes: Any
    ) -> CheckpointRecord:
        """Write the metadata of a checkpoint that names these snapshots."""
        location = location or f"{self.storage.base_uri}/{JOB_ID}/chk-{number}"
        document = make_document(
            checkpoint_id=number, request_key=str(number), snapshots=tuple(make_snapshot(uri=uri) for uri in uris)
        )
        uri = f"{location}/_metadata"
        data = encode_metadata(document, uri=uri)
        if is_written:
            self.storage.write_bytes(uri, data, overwrite=True)
        values: dict[str, Any] = {
            "job_id": JobId(JOB_ID),
            "checkpoint_id": number,
            "operator_id": OperatorId("op"),
            "epoch": 1,
            "generation": 1,
            "status": CheckpointStatus.COMPLETED,
            "request_key": str(number),
            "location": location,
            "triggered_at": MOMENT,
            "expires_at": MOMENT,
            "metadata_uri": uri,
            "metadata_size": len(data),
            "metadata_sha256": hashlib.sha256(data).hexdigest(),
        }
        return CheckpointRecord(**values | changes)

    def files(self) -> set[str]:
        """Return the snapshots and metadata that are left, by the last telling part."""
        names = self.storage.list_files(self.storage.base_uri)
        return {n.rsplit("/", 3)[-3] if n.endswith("/data") else n.removeprefix(f"{JOB_ID}/") for n in names}

    def discard(
        self,
        discards: list[CheckpointRecord],
        retained: list[CheckpointRecord],
        pinned: frozenset[str] = frozenset(),
        storage: Any = None,
    ) -> tuple[tuple[int, ...], frozenset[int]]:
        """Discard as a new process would; return what is gone and what waits."""
        storage = storage or self.storage
        carrying = EffectDiscards(storage, DocumentCache(lambda _: storage))
        gone = carrying.discard(OpenEffects(discards=tuple(discards), retained=tuple(retained)), pinned)
        return gone, carrying.in_use

    def discard_or_fail(
        self, discards: list[CheckpointRecord], retained: list[CheckpointRecord], storage: Any
    ) -> tuple[int, ...]:
        """Discard on a storage that may fail where it reads a retained checkpoint."""
        try:
            return self.discard(discards, retained, storage=storage)[0]
        except StorageError:
            return ()


@pytest.fixture
def written(storage: CheckpointStorage) -> Written:
    return Written(storage)


def test_a_snapshot_goes_with_the_last_checkpoint_that_named_it(written):
    old, both = written.snapshot("old"), written.snapshot("both")
    first, second = written.checkpoint(1, old, both), written.checkpoint(2, both)
    assert written.discard([first], [second]) == ((1,), frozenset())
    assert written.files() == {"both", "chk-2/_metadata"}
    assert written.discard([second], []) == ((2,), frozenset())
    assert written.files() == set()


def test_metadata_goes_first_and_the_directory_last(written, storage):
    first, plan = written.checkpoint(1, written.snapshot("old")), FaultPlan()
    assert written.discard([first], [], storage=faulty_storage(storage, plan))[0] == (1,)
    deletes = [call for call in plan.calls if call.startswith("delete")]
    assert deletes == ["delete_file", "delete_directory", "delete_directory"]


@pytest.mark.parametrize("point", [1, 2, 3])
def test_a_delete_that_fails_leaves_the_checkpoint_to_the_next_discard(written, storage, point):
    first, plan = written.checkpoint(1, written.snapshot("old")), FaultPlan()
    plan.point = None
    sick = faulty_storage(storage, plan)
    deletes = iter(range(1, 4))
    delete_file, delete_directory = sick.delete_file, sick.delete_directory

    def failing(delete):
        def call(uri):
            if next(deletes) == point:
                raise StorageError("injected")
            return delete(uri)

        return call

    sick.delete_file, sick.delete_directory = failing(delete_file), failing(delete_directory)
    assert written.discard([first], [], storage=sick)[0] == ()
    assert written.discard([first], [])[0] == (1,)


def test_a_pinned_snapshot_stays(written):
    old = written.snapshot("old")
    assert written.discard([written.checkpoint(1, old)], [], frozenset({old}))[0] == (1,)
    assert written.files() == {"old"}


def test_without_discards_nothing_is_read(written):
    retained = written.checkpoint(1, is_written=False)
    assert written.discard([], [retained]) == ((), frozenset())


def test_no_snapshot_goes_where_a_retained_checkpoint_cannot_be_read(written):
    old = written.snapshot("old")
    unreadable = written.checkpoint(2, is_written=False)
    assert written.discard([written.checkpoint(1, old)], [unreadable])[0] == (1,)
    assert written.files() == {"old"}


def test_a_directory_that_waited_stays_while_a_retained_checkpoint_cannot_be_read(written, storage):
    carried = f"{storage.base_uri}/{JOB_ID}/chk-1/1-{'a' * 32}"
    storage.write_bytes(carried, b"x")
    first = written.checkpoint(1)
    assert written.discard([first], [], frozenset({carried})) == ((), {1})
    unreadable = written.checkpoint(2, is_written=False)
    assert written.discard([first], [unreadable]) == ((), {1})
    assert storage.exists(carried)
    assert written.discard([first], [])[0] == (1,)


def test_a_savepoint_of_another_owner_that_is_gone_stops_no_discard(written, storage):
    foreign = written.checkpoint(7, is_written=False, location=f"{storage.base_uri}/elsewhere", properties=UNCLAIMED)
    assert written.discard([written.checkpoint(1, written.snapshot("old"))], [foreign])[0] == (1,)
    assert written.files() == set()


class TestClaimedSavepoint:
    """Its snapshots lie in its own directory."""

    @pytest.fixture
    def claimed(self, written):
        self.used, self.unused = (written.snapshot(name, written.savepoint) for name in ("used", "unused"))
        return written.checkpoint(1, self.used, self.unused, location=written.savepoint)

    def test_the_directory_stays_while_a_retained_checkpoint_names_what_lies_in_it(self, written, claimed):
        second = written.checkpoint(2, self.used)
        for _ in range(2):
            assert written.discard([claimed], [second]) == ((), {1})
            assert written.files() == {"used", "chk-2/_metadata"}
        assert written.discard([claimed], []) == ((1,), frozenset())
        assert written.files() == {"chk-2/_metadata"}

    def test_it_stays_while_a_retained_checkpoint_names_it_with_another_name_of_the_scheme(self, written, claimed):
        second = written.checkpoint(2, self.used.replace("file://", "local://"))
        assert written.discard([claimed], [second]) == ((), {1})
        assert written.files() == {"used", "chk-2/_metadata"}
        restored = replace(
            claimed, properties=UNCLAIMED, metadata_uri=f"{claimed.location}/_metadata".replace("file", "local")
        )
        assert written.discard([claimed], [restored]) == ((), {1})

    def test_the_directory_stays_while_something_in_it_is_pinned(self, written, claimed):
        assert written.discard([claimed], [], frozenset({self.used})) == ((), {1})
        assert written.files() == {"used"}
        assert written.discard([claimed], [])[0] == (1,)

    def test_the_directory_stays_while_a_retained_checkpoint_cannot_be_read(self, written, claimed):
        unreadable = written.checkpoint(2, is_written=False)
        assert written.discard([claimed], [unreadable]) == ((), {1})
        assert {"used", "unused"} <= written.files()

    def test_the_row_of_the_savepoint_itself_does_not_keep_it(self, written, claimed):
        own = replace(claimed, checkpoint_id=7, properties=SAVEPOINT)
        assert written.discard([claimed], [own])[0] == (1,)
        assert written.files() == set()

    def test_a_savepoint_given_up_stays_whole_while_it_is_restored_without_a_claim(self, written, claimed):
        given_up = replace(claimed, checkpoint_id=7, properties=SAVEPOINT)
        restored = replace(claimed, properties=UNCLAIMED)
        before = written.files()
        assert written.discard([given_up], [restored]) == ((), {7})
        assert written.files() == before
        assert written.discard([given_up], [])[0] == (7,)

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_a_discard_that_fails_at_any_call_is_made_good_by_the_next(self, storage, mode):
        calls, point = 1, 1
        while point <= calls:
            written, plan = Written(storage), FaultPlan(point, mode)
            used, unused = (written.snapshot(name, written.savepoint) for name in ("used", "unused"))
            claimed = written.checkpoint(1, used, unused, location=written.savepoint)
            second = written.checkpoint(2, used)
            gone = written.discard_or_fail([claimed], [second], faulty_storage(storage, plan))
            assert (gone, "used" in written.files()) == ((), True), plan.calls
            gone = written.discard_or_fail([claimed], [], faulty_storage(storage, plan))
            assert gone == (1,) or written.discard([claimed], [])[0] == (1,)
            assert written.files() == {"chk-2/_metadata"}, plan.calls
            calls, point = max(calls, len(plan.calls)), point + 1
        assert point > 5


def test_a_file_goes_and_what_is_gone_is_success_and_what_is_no_file_of_its_own_stays(storage, job):
    discarder, uri = StorageDiscarder(storage, JobId(job.rpartition("/")[2])), f"{job}/chk-1/a"
    storage.write_bytes(uri, b"x")
    for handle in (ByteStreamStateHandle("a", b"x"), SegmentFileStateHandle(uri, 0, 1, SHARED, "s1")):
        discarder.discard_state(handle)
        assert storage.exists(uri)
    for _ in range(2):
        discarder.discard_state(FileStateHandle(uri, 1))
        discarder.discard_checkpoint(f"{job}/chk-1")
    assert storage.list_files(job) == {}
