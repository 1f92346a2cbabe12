"""
A step in parts fails at each kind of durable step, in the long runs at every single call.

The next try computes only what is not saved.

What is saved is read from the files that the newest completed checkpoint references. Parts are lost in flight too: two
run at a time, and their Spark jobs go on after the driver has died.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.storage.metadata_file import load_document
from airflow_provider_statecheck.testing.faults import FaultMode
from tests.crash import pipeline
from tests.crash.part_pipeline import ROWS, SCORED, called
from tests.crash.test_fault_points import WAYS, Ways
from tests.crash.tries import SIGKILLED, Tries, share, wait_until
from tests.shared_spark import shared_session

pytestmark = pytest.mark.spark

EXECUTIONS = 100
EXPECTED = {
    "scores": [[number, score] for number, score in SCORED.items()],
    "odd": [score for number, score in SCORED.items() if number % 2],
}


def _run(tries: Tries, **fault: object) -> int:
    return tries.run(pipeline="parts", **fault)


def _wait_for_abandoned_parts(work: Path) -> None:
    """Wait until Spark runs no job any more that writes for a driver that has ended."""
    store = shared_session()._jsparkSession.sharedState().statusStore()
    begin = max(0, store.executionsCount() - EXECUTIONS)

    def has_ended() -> bool:
        found = store.executionsList(begin, EXECUTIONS)
        running = [each for each in map(found.apply, range(found.size())) if each.completionTime().isEmpty()]
        return not any(str(work) in each.physicalPlanDescription() for each in running)

    wait_until(has_ended)


def _saved_rows(tries: Tries) -> set[int]:
    """Return the rows in the finished parts of the first step that the newest completed checkpoint references."""
    try:
        live = tries.live(pipeline.JOB)
    except CheckpointNotFoundError:
        # The driver has died before it was registered.
        return set()
    if not live:
        return set()
    document = load_document(tries.storage, live[-1])
    parts = [Path(handle.uri.removeprefix("file://")) for handle in document.snapshots if handle.name == "scores"]
    return {
        number
        for part in parts
        for file in (part / "data").glob("*.parquet")
        for number in pq.read_table(file)[0].to_pylist()
    }


def _check_point(tries: Tries, point: int, mode: FaultMode) -> None:
    where = f"{mode} at call {point}"
    tries.reset(None)
    status = _run(tries, point=point, mode=mode)
    if mode in (FaultMode.KILL, FaultMode.KILL_AFTER):
        assert status == SIGKILLED, where
    _wait_for_abandoned_parts(tries.work)
    saved, before = _saved_rows(tries), called(tries.work)
    if status != 0:
        assert _run(tries) == 0, where + tries.error()
    assert tries.outcome()["result"] == EXPECTED, where
    after = called(tries.work)
    assert {number: after[number] for number in saved} == {number: before[number] for number in saved}, where
    assert set(after) == set(range(ROWS))
    assert max(after.values()) <= 2, where
    tries.check_bytes(pipeline.JOB, load_document)


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
    share(team, ways.faults(calls), lambda member, fault: _check_point(team[member], *fault))
