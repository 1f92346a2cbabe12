"""Bytes are on storage before anybody may acknowledge a checkpoint that names them."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.file_merging.conftest import Make
from tests.unit.storage.file_merging.driving import ACROSS, EXCLUSIVE, WITHIN, Driver, subtask

FAULTS = [FaultMode.ERROR, FaultMode.REPLY_LOST]


def test_collected_segments_are_one_object_with_one_write(memory: CheckpointStorage) -> None:
    plan = FaultPlan()
    driver = Driver.over(memory, through=faulty_storage(memory, plan))
    handles = [driver.write(b"x" * n, index=n % 2, scope=EXCLUSIVE) for n in range(1, 20)]
    assert plan.calls == []
    driver.durable()
    assert plan.calls == ["write_bytes"]
    assert all(driver.read(h) == b"x" * n for n, h in enumerate(handles, 1))


def test_a_published_object_takes_no_more_even_across_checkpoints(make_collected: Make) -> None:
    driver = make_collected(merging_type=ACROSS)
    first, before = driver.write(b"a", 1), driver.write(b"b", 2)
    driver.durable(1)
    after = driver.saved(b"c", 2)
    assert first.uri == before.uri != after.uri
    assert [driver.read(h) for h in (first, before, after)] == [b"a", b"b", b"c"]


def test_a_local_file_grows_after_it_was_made_durable(make_local: Make) -> None:
    driver = make_local(merging_type=ACROSS)
    first, second = driver.saved(b"a", 1), driver.saved(b"b", 2)
    assert first.uri == second.uri
    assert driver.read(first) + driver.read(second) == b"ab"


def test_a_local_file_is_synced(make_local: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make_local()
    synced: list[int] = []
    driver.write(b"a")
    monkeypatch.setattr("os.fsync", synced.append)
    driver.durable()
    driver.durable()
    assert len(synced) == 1


def test_what_other_subtasks_and_checkpoints_wrote_stays_open(make_collected: Make) -> None:
    driver = make_collected(merging_type=WITHIN)
    driver.write(b"other subtask", 1, index=1)
    driver.write(b"other checkpoint", 2)
    mine = driver.write(b"mine", 1)
    driver.durable(1)
    assert driver.files() == {mine.uri}


def test_a_reused_segment_is_made_durable_for_the_checkpoint_that_names_it(make_collected: Make) -> None:
    driver = make_collected()
    handle = driver.write(b"x", 1)
    driver.manager.reuse_previous_state_handles(3, [handle])
    driver.durable(3)
    assert driver.read(handle) == b"x"


def test_a_stream_whose_file_was_published_meanwhile_goes_to_another(make_collected: Make) -> None:
    driver = make_collected()
    first = driver.write(b"first", index=0, scope=EXCLUSIVE)
    stream = driver.stream(index=1, scope=EXCLUSIVE)
    stream.write(b"second, in the same file so far")
    driver.durable(index=0)
    second = stream.close_and_get_handle()
    driver.durable(index=1)
    assert second is not None
    assert second.uri != first.uri
    assert (driver.read(first), driver.read(second)) == (b"first", b"second, in the same file so far")


def test_a_full_object_is_published_at_once(make_collected: Make) -> None:
    driver = make_collected(max_file_size=3)
    handle = driver.write(b"full")
    assert driver.read(handle) == b"full"


@pytest.mark.parametrize("mode", FAULTS)
def test_a_full_object_that_cannot_be_published_waits_for_the_checkpoint(
    memory: CheckpointStorage, mode: FaultMode
) -> None:
    driver = Driver.over(memory, through=faulty_storage(memory, FaultPlan(1, mode)), max_file_size=3)
    handle = driver.write(b"full")
    driver.durable()
    assert driver.read(handle) == b"full"


@pytest.mark.parametrize("mode", FAULTS)
def test_a_checkpoint_that_cannot_be_made_durable_says_so_and_may_try_again(
    memory: CheckpointStorage, mode: FaultMode
) -> None:
    driver = Driver.over(memory, through=faulty_storage(memory, FaultPlan(1, mode)))
    handle = driver.write(b"bytes")
    with pytest.raises(StorageError, match="Injected"):
        driver.durable()
    assert driver.write(b"more").uri != handle.uri
    driver.durable()
    assert driver.read(handle) == b"bytes"


@pytest.mark.parametrize("mode", FAULTS)
def test_an_object_of_unknown_outcome_is_deleted_with_its_last_segment(
    memory: CheckpointStorage, mode: FaultMode
) -> None:
    driver = Driver.over(memory, through=faulty_storage(memory, FaultPlan(1, mode)))
    driver.write(b"bytes")
    with pytest.raises(StorageError):
        driver.durable()
    driver.aborted(1)
    assert driver.files() == set()


def test_a_local_file_that_cannot_be_synced_says_so(make_local: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make_local()
    driver.write(b"bytes")

    def fail(_: int) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(StorageError, match="no space"):
            driver.durable()
        with pytest.raises(StorageError, match="no space"):
            driver.durable()
    driver.durable()


def test_an_aborted_checkpoint_never_reaches_an_object_store(memory: CheckpointStorage) -> None:
    plan = FaultPlan()
    driver = Driver.over(memory, through=faulty_storage(memory, plan), merging_type=WITHIN)
    driver.write(b"x")
    driver.aborted(1)
    driver.durable(1)
    assert plan.calls == []


def test_a_completion_before_the_bytes_were_durable_is_made_good_and_told(
    make_collected: Make, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_collected()
    handle = driver.write(b"x")
    with caplog.at_level(logging.ERROR):
        driver.manager.notify_checkpoint_complete(subtask(), 1)
    assert driver.read(handle) == b"x"
    assert "before its merged files were durable" in caplog.text


def test_what_exceeds_the_buffer_is_spilled_and_comes_out_whole(make_collected: Make) -> None:
    driver = make_collected(buffer=8)
    data = [bytes([n]) * 100 for n in range(10)]
    handles = [driver.write(part) for part in data]
    driver.durable()
    assert [driver.read(h) for h in handles] == data


def test_a_segment_lost_on_its_way_to_the_spool_is_not_published(
    make_collected: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_collected()
    good = driver.write(b"good")

    def half(source: object, target: object) -> None:
        target.write(b"half")  # type: ignore[attr-defined]
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", half)
        with pytest.raises(StorageError, match="no space"):
            driver.write(b"never")
    driver.durable()
    assert driver.storage.read_bytes(good.uri) == b"good"


def test_a_disk_that_fails_in_the_middle_leaves_earlier_segments_whole(
    make_local: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_local()
    good = driver.write(b"good")

    def half(source: object, target: object) -> None:
        target.write(b"half")  # type: ignore[attr-defined]
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", half)
        with pytest.raises(StorageError, match="no space"):
            driver.write(b"never")
    later = driver.write(b"later")
    driver.durable()
    assert later.uri != good.uri
    assert (driver.read(good), driver.read(later)) == (b"good", b"later")


@pytest.mark.parametrize("mode", FAULTS)
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_fault_at_any_step_loses_no_acknowledged_byte_and_leaves_nothing_in_the_end(
    request: pytest.FixtureRequest, kind: str, mode: FaultMode
) -> None:
    storage: CheckpointStorage = request.getfixturevalue(kind)
    point = 0
    while True:
        point += 1
        plan = FaultPlan(point, mode)
        driver = Driver.over(storage, through=faulty_storage(storage, plan), merging_type=WITHIN, max_file_size=6)
        _run_five_checkpoints(driver)
        driver.subsumed(5)
        driver.subsumed(5)
        assert driver.files() == set()
        if point > len(plan.calls):
            break
    assert point > 10


def _run_five_checkpoints(driver: Driver) -> None:
    acknowledged = []
    for checkpoint in range(1, 6):
        try:
            handles = [driver.write(b"%d" % checkpoint * 4, checkpoint) for _ in range(3)]
            driver.durable(checkpoint)
        except StorageError:
            driver.aborted(checkpoint)
        else:
            acknowledged.append((checkpoint, handles))
            driver.subsumed(checkpoint - 2)
        for number, kept in acknowledged:
            assert number <= checkpoint - 2 or all(driver.read(handle) == b"%d" % number * 4 for handle in kept)
