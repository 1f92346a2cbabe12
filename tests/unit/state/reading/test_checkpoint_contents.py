"""What a checkpoint holds, listed without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError, UnknownStateError
from airflow_provider_statecheck.spark.stages.stage_state import driver_state
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, StateKind, ValueStateDescriptor
from airflow_provider_statecheck.state.progress import Iteration, Iterations, LoopProgress
from airflow_provider_statecheck.state.reading.checkpoint_contents import (
    CheckpointContents,
    FinishedItems,
    HeldState,
    ReachedIteration,
    SnapshotContent,
)
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.source_items import Item, Ledger, pack_items
from airflow_provider_statecheck.storage.bounds import MOST_PROBLEMS
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.stored_json import encode_state
from tests.written_snapshots import SnapshotJob, flip
from tests.written_state import BACKENDS, FUNCTION, StatefulJob

DAY = (("days", "2026-01-01"),)


@pytest.fixture
def job(tmp_path: Path) -> SnapshotJob:
    return SnapshotJob(CheckpointStorage.open(tmp_path.as_uri()))


def contents(pointer: str) -> CheckpointContents:
    return CheckpointContents(CheckpointStates.load(pointer))


def stateful(folder: Path, *descriptors: Any) -> StatefulJob:
    return StatefulJob(CheckpointStorage.open(folder.as_uri()), BACKENDS["arrow"](), descriptors)


def test_snapshots_are_listed_with_their_scope_columns_and_sizes(job: SnapshotJob) -> None:
    inner = job.snapshot("sales", scope=DAY, files=2)
    first, second = contents(job.take(job.snapshot("features"), inner)).snapshots()
    assert (first.name, first.scope) == ("features", "")
    assert second == SnapshotContent(
        name="sales",
        scope="days[2026-01-01]",
        rows=6,
        size_bytes=inner.size_bytes,
        files=2,
        columns=(("id", "int64"), ("shop", "string")),
        written_by="executors",
        written_at=datetime(2026, 1, 1, tzinfo=UTC),
        attempt=3,
        seconds=1.5,
    )


def test_type_that_only_spark_reads_is_listed_by_its_name_in_spark(job: SnapshotJob) -> None:
    pointer = job.take(job.snapshot("places", columns={"id": "long", "place": "geometry(4326)"}))
    (snapshot,) = contents(pointer).snapshots()
    assert snapshot.columns == (("id", "int64"), ("place", '"geometry(4326)"'))


def test_changed_manifest_is_corrupt(job: SnapshotJob) -> None:
    handle = job.snapshot("sales")
    flip(Path(handle.uri.removeprefix("file://")) / "_manifest", 10)
    with pytest.raises(CorruptStateError):
        contents(job.take(handle)).snapshots()


def test_a_listing_reads_no_more_snapshots_after_a_hundred_that_cannot_be_read(job: SnapshotJob) -> None:
    """Otherwise metadata of the largest size would cost a server the time of ninety thousand reads, and the memory."""
    handle = job.snapshot("sales")
    missing = [replace(handle, name=f"sales {i:03}", uri=f"{handle.uri}-{i}") for i in range(MOST_PROBLEMS + 2)]
    listed = contents(job.take(handle, *missing)).listing()
    assert [each.name for each in listed.snapshots] == ["sales"]
    assert [each.name for each in listed.unreadable[:-1]] == [each.name for each in missing[:MOST_PROBLEMS]]
    assert listed.unreadable[-1].message == "2 more were not read after 100 that cannot be read."


@pytest.fixture
def loops(job: SnapshotJob) -> CheckpointContents:
    progress, iterations = LoopProgress(), Iterations()
    for item in ("c", "a", "b"):
        progress.finish(((), "days"), item)
    progress.finish(((("days", "d"),), "hours"), "7")
    iterations.record(((), "ranks"), Iteration(4, is_converged=True))
    values = {"values": encode_state({"cursor": 7}), "loops": progress.encode(), "iterations": iterations.encode()}
    return contents(job.take(**values))


def test_finished_items_and_iterations_are_listed_by_loop(loops: CheckpointContents) -> None:
    assert loops.finished_items() == (FinishedItems(loop="days", count=3), FinishedItems(loop="days[d]/hours", count=1))
    assert loops.iterations() == (ReachedIteration(loop="ranks", iteration=4, is_converged=True),)
    assert loops.values() == {"cursor": 7}


def test_items_are_paged_in_order(loops: CheckpointContents) -> None:
    first = loops.items("days", limit=2)
    assert (first.items, first.following) == (("a", "b"), 1)
    second = loops.items("days", after="b", limit=2)
    assert (second.items, second.following) == (("c",), 0)
    assert loops.items("days[d]/hours", limit=2).items == ("7",)


def test_loop_without_finished_items_is_unknown(loops: CheckpointContents, job: SnapshotJob) -> None:
    with pytest.raises(UnknownStateError, match=r"found 'other'; .*: 'days', 'days\[d\]/hours'"):
        loops.items("other", limit=1)
    with pytest.raises(UnknownStateError, match="no such loop"):
        contents(job.take()).items("days", limit=1)


@pytest.mark.parametrize("values", [{"loops": [1]}, {"iterations": [[[], "a"]]}])
def test_invalid_progress_is_corrupt(job: SnapshotJob, values: dict[str, Any]) -> None:
    found = contents(job.take(**values))
    with pytest.raises(CorruptStateError, match="progress of loops"):
        (found.finished_items(), found.iterations())


def test_finished_items_of_a_source_are_listed(tmp_path: Path) -> None:
    items = [Item.of(name, 10, 1) for name in ("b", "a", "c")]
    ledger = Ledger(tuple(items)).finish_items([0, 1])
    source = {"format": 1, "listing": pack_items(items), "progress": ledger.progress_state()}
    found = contents(
        stateful(tmp_path).publish(driver_state("stage/source", source), driver_state("stage/sink", {"open": []}))
    )
    assert found.finished_items() == (FinishedItems(loop="source", count=2),)
    assert found.items("source", limit=10).items == ("a", "b")
    assert found.states() == ()


@pytest.mark.parametrize("progress", [{"offset": 7}, {"listing": "a.csv", "progress": 7}, [1, 2], None])
def test_a_source_with_progress_of_its_own_form_has_no_items(tmp_path: Path, progress: Any) -> None:
    assert contents(stateful(tmp_path).publish(driver_state("stage/source", progress))).finished_items() == ()


LISTING = pack_items([Item.of("a", 10, 1)])


@pytest.mark.parametrize(
    ("listing", "progress"),
    [
        ("a.csv", 7),
        ({}, {}),
        (LISTING, {}),
        (LISTING, {"finished": [[-3, 1]], "partial": []}),
        (LISTING, {"finished": [[0, 2]], "partial": []}),
    ],
)
def test_invalid_progress_of_a_source_is_corrupt(tmp_path: Path, listing: Any, progress: Any) -> None:
    source = {"format": 1, "listing": listing, "progress": progress}
    found = contents(stateful(tmp_path).publish(driver_state("stage/source", source)))
    with pytest.raises(CorruptStateError):
        found.finished_items()


def test_states_are_listed_with_their_types_and_queryable_names(tmp_path: Path) -> None:
    descriptors: list[Any] = [
        ValueStateDescriptor("total", int, queryable_name="totals"),
        MapStateDescriptor("amounts", str, int),
    ]
    job = stateful(tmp_path, *descriptors)
    job.open(2)
    job.state("ann", "total").update(1)
    job.state("ann", "amounts").put("x", 1)
    found = contents(job.save()).states()
    job.close()
    assert found == (
        HeldState(
            uid=FUNCTION,
            name="total",
            kind=StateKind.VALUE,
            key="key(account string)",
            type="int64",
            expires=False,
            queryable_name="totals",
        ),
        HeldState(
            uid=FUNCTION,
            name="amounts",
            kind=StateKind.MAP,
            key="key(account string)",
            type="string to int64",
            expires=False,
            queryable_name=None,
        ),
    )
