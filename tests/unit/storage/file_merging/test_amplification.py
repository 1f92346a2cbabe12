"""Space amplification: when segments have to be written anew, and which."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.storage.file_merging.file_bodies import StoredBody
from airflow_provider_statecheck.storage.file_merging.physical_files import PhysicalFile, files_to_retire
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.storage.file_merging.conftest import Make
from tests.unit.storage.file_merging.driving import ACROSS, Driver

UNLIMITED = float("inf")


def _files(local: CheckpointStorage, *sizes: tuple[int, int]) -> list[PhysicalFile]:
    scope = CheckpointedStateScope.SHARED
    return [
        PhysicalFile(uri=f"{n}", scope=scope, body=StoredBody(local, f"{n}", size), live_bytes=live)
        for n, (size, live) in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "limit", "chosen"),
    [
        pytest.param([(200, 100)], 2.0, [], id="at the limit"),
        pytest.param([(201, 100)], 2.0, [0], id="above the limit"),
        pytest.param([(100, 10), (100, 100)], 1.5, [0], id="the wasted one"),
        pytest.param([(1000, 500), (10, 1)], 2.0, [1], id="the largest share before the largest number"),
        pytest.param([(100, 10), (100, 20), (100, 90)], 2.0, [0], id="until the projection is under the limit"),
        pytest.param([(100, 10), (100, 20), (100, 90)], 1.2, [0, 1], id="as many as it takes"),
        pytest.param([(100, 1)], UNLIMITED, [], id="no limit"),
        pytest.param([(100, 0)], 2.0, [], id="nothing is needed"),
        pytest.param([], 2.0, [], id="no files"),
    ],
)
def test_files_with_the_largest_wasted_share_are_given_up_until_the_projection_is_under_the_limit(
    local: CheckpointStorage, sizes: list[tuple[int, int]], limit: float, chosen: list[int]
) -> None:
    files = _files(local, *sizes)
    assert files_to_retire(files, limit) == [files[n] for n in chosen]


def test_what_was_given_up_before_counts_as_gone(local: CheckpointStorage) -> None:
    files = _files(local, (100, 10), (100, 60))
    files[0].is_reusable = False
    assert files_to_retire(files, 2.0) == []


def _half_wasted(make_local: Make, limit: float) -> tuple[Driver, SegmentFileStateHandle]:
    driver = make_local(merging_type=ACROSS, max_space_amplification=limit)
    driver.saved(b"x" * 90, 1)
    kept = driver.saved(b"y" * 10, 2)
    driver.subsumed(1)
    return driver, kept


def test_segments_of_a_wasteful_file_are_written_anew(make_local: Make) -> None:
    driver, kept = _half_wasted(make_local, 2.0)
    assert not driver.manager.could_reuse_previous_state_handle(kept)
    anew = driver.saved(b"y" * 10, 3)
    assert anew.uri != kept.uri
    assert driver.read(kept) == b"y" * 10
    driver.subsumed(2)
    assert driver.files() == {anew.uri}


def test_a_file_that_is_given_up_while_a_stream_writes_to_it_stays_until_that_segment_goes(make_local: Make) -> None:
    driver = make_local(merging_type=ACROSS, buffer=1)
    driver.saved(b"x" * 90, 1)
    last = driver.saved(b"y" * 10, 2)
    stream = driver.stream(3)
    stream.write(b"z")
    driver.subsumed(1)
    assert not driver.manager.could_reuse_previous_state_handle(last)
    driver.subsumed(2)
    written = stream.close_and_get_handle()
    assert written is not None
    assert written.uri == last.uri
    assert driver.read(written) == b"z"
    driver.subsumed(3)
    assert driver.files() == set()


def test_without_a_limit_any_segment_is_reused(make_local: Make) -> None:
    driver, kept = _half_wasted(make_local, UNLIMITED)
    assert driver.manager.could_reuse_previous_state_handle(kept)


def test_aborts_waste_space_too(make_local: Make) -> None:
    driver = make_local(merging_type=ACROSS)
    kept = driver.saved(b"y" * 10, 1)
    driver.saved(b"x" * 90, 2)
    driver.aborted(2)
    assert not driver.manager.could_reuse_previous_state_handle(kept)


def test_what_is_unknown_or_no_segment_cannot_be_reused(make: Make) -> None:
    driver, other = make(), make()
    for handle in (other.write(b"x"), FileStateHandle("file:///x", 1), ByteStreamStateHandle("x", b"x")):
        assert not driver.manager.could_reuse_previous_state_handle(handle)
    assert driver.manager.could_reuse_previous_state_handle(driver.write(b"x"))


def test_reusing_what_is_no_segment_needs_no_note(make: Make) -> None:
    make().manager.reuse_previous_state_handles(2, [FileStateHandle("file:///x", 1), ByteStreamStateHandle("x", b"x")])
