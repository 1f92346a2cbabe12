"""
A step in parts fails at every durable step, in the long runs at every single call; the next try computes only what is not saved.

What is saved is read from the files that the newest completed checkpoint references. Parts are lost in flight too: two run
at a time, and their Spark jobs go on after the driver has died.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import job_uri
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.storage.metadata_file import DocumentCache, load_document
from airflow_provider_statecheck.storage.orphans import sweep
from airflow_provider_statecheck.testing.faults import FaultMode
from tests.crash.part_pipeline import ROWS, SCORED, called
from tests.crash.test_fault_points import CORES, SIGKILLED, WAYS, Ways, _directories, _storage_and_view
from tests.crash.tries import Tries
from tests.shared_spark import shared_session

pytestmark = pytest.mark.spark

LIMIT_SECONDS = 120
EXECUTIONS = 100
EXPECTED = {
    "scores": [[number, score] for number, score in SCORED.items()],
    "odd": [score for number, score in SCORED.items() if number % 2],
}


@pytest.fixture(scope="module")
def team(driver_jvm: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Tries]]:
    team = [Tries.start(tmp_path_factory.mktemp("parts") / "work", driver_jvm) for _ in range(CORES)]
    yield team
    for tries in team:
        tries.close()


def _run(tries: Tries, **fault: object) -> int:
    return tries.run(pipeline="parts", **fault)


def _wait_for_abandoned_parts(work: Path) -> None:
    """Wait until Spark runs no job any more that writes for a driver that has ended."""
    store = shared_session()._jsparkSession.sharedState().statusStore()
    begin = max(0, store.executionsCount() - EXECUTIONS)
    deadline = time.monotonic() + LIMIT_SECONDS

    def is_running() -> bool:
        found = store.executionsList(begin, EXECUTIONS)
        running = [each for each in map(found.apply, range(found.size())) if each.completionTime().isEmpty()]
        return any(str(work) in each.physicalPlanDescription() for each in running)

    while is_running():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _saved_rows(work: Path) -> set[int]:
    """Return the rows in the finished parts of the first step that the newest completed checkpoint references."""
    try:
        storage, view = _storage_and_view(work)
    except CheckpointNotFoundError:
        # The driver has died before it was registered.
        return set()
    live = [c for c in view.checkpoints if c.is_restorable]
    if not live:
        return set()
    document = load_document(storage, max(live, key=lambda c: c.checkpoint_id))
    parts = [Path(handle.uri.removeprefix("file://")) for handle in document.snapshots if handle.name == "scores"]
    return {
        number
        for part in parts
        for file in (part / "data").glob("*.parquet")
        for number in pq.read_table(file)[0].to_pylist()
    }


def _check_bytes(work: Path) -> None:
    storage, view = _storage_and_view(work)
    live = [c for c in view.checkpoints if c.is_restorable]
    assert live, "the stage has ended and its last checkpoint is retained"
    documents = [load_document(storage, checkpoint) for checkpoint in live]
    sweep(storage, view, DocumentCache(lambda _: storage))
    root = job_uri(storage.base_uri, view.job.job_id) + "/"
    named = {f"chk-{c.checkpoint_id}" for c in live}
    named |= {handle.uri.removeprefix(root) for document in documents for handle in document.snapshots}
    assert _directories(storage, view) == named


def _check_point(tries: Tries, point: int, mode: FaultMode) -> None:
    where = f"{mode} at call {point}"
    tries.reset(None)
    status = _run(tries, point=point, mode=mode)
    if mode in (FaultMode.KILL, FaultMode.KILL_AFTER):
        assert status == SIGKILLED, where
    _wait_for_abandoned_parts(tries.work)
    saved, before = _saved_rows(tries.work), called(tries.work)
    if status != 0:
        assert _run(tries) == 0, where + (tries.work / "error.txt").read_text()
    assert tries.outcome()["result"] == EXPECTED, where
    after = called(tries.work)
    assert {number: after[number] for number in saved} == {number: before[number] for number in saved}, where
    assert set(after) == set(range(ROWS))
    assert max(after.values()) <= 2, where
    _check_bytes(tries.work)


@pytest.mark.parametrize("ways", WAYS)
def test_step_in_parts_that_fails_at_any_call_is_made_good_without_a_saved_row_computed_again(
    team: list[Tries], ways: Ways
) -> None:
    team[0].reset(None)
    assert _run(team[0]) == 0
    assert team[0].outcome()["result"] == EXPECTED
    assert set(called(team[0].work).values()) == {1}
    calls = team[0].outcome()["calls"]
    assert calls.count("acknowledge") >= 3, "parts are saved before the step is finished"
    faults = ways.faults(calls)

    def share(member: int) -> None:
        for point, mode in faults[member :: len(team)]:
            _check_point(team[member], point, mode)

    with ThreadPoolExecutor(len(team)) as pool:
        for done in [pool.submit(share, member) for member in range(len(team))]:
            done.result()
