"""Runs without a date, partitions, backfills, and tasks that leave and come back, under the real scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.hooks.task_state import MARKER_KEY
from tests.live.deployment import Deployment
from tests.live.rest import wait_until
from tests.live.runs import TASK

pytestmark = [pytest.mark.live, pytest.mark.soak]

BACKFILL_SECONDS = 1800.0


@pytest.fixture
def airflow(deployment: Deployment) -> Deployment:
    deployment.ensure_running()
    return deployment


def end_of(airflow: Deployment, dag_id: str, run_id: str) -> str:
    """Wait until a run has ended, and return how."""
    states = ("success", "failed")
    return wait_until(
        f"the end of {run_id}",
        lambda: state if (state := airflow.api.run_state(dag_id, run_id)) in states else None,
    )


def work(airflow: Deployment, dag_id: str, run_id: str, **body: Any) -> list[str]:
    """Let a run without a date succeed, and return the runs that are counted then."""
    airflow.api.trigger_undated(dag_id, run_id, **body)
    assert end_of(airflow, dag_id, run_id) == "success"
    return list(airflow.api.result(dag_id, run_id, TASK))


def clear(airflow: Deployment, dag_id: str, run_id: str) -> str:
    """Clear a run, and return how it ended then."""
    airflow.api.clear(dag_id, run_id, [TASK])
    return end_of(airflow, dag_id, run_id)


def test_a_cleared_run_without_a_date_counts_once(airflow: Deployment) -> None:
    assert work(airflow, "live_undated", "first") == ["first"]
    assert work(airflow, "live_undated", "second") == ["first", "second"]
    assert clear(airflow, "live_undated", "first") == "failed"
    assert work(airflow, "live_undated", "third") == ["first", "second", "third"]
    assert clear(airflow, "live_undated", "third") == "success"
    assert airflow.api.result("live_undated", "third", TASK) == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("leaves", "reason"),
    [
        ("defers", "the task continues its try, after an attempt that failed"),
        ("is rescheduled", "the task continues its try, after an attempt that failed"),
    ],
)
def test_a_task_that_leaves_and_comes_back_goes_on(
    airflow: Deployment, tmp_path: Path, leaves: str, reason: str
) -> None:
    run_id, note = leaves.replace(" ", "-"), tmp_path / "notes"
    runs = work(airflow, "live_undated", run_id, conf={"leaves": leaves, "note": str(note)})
    assert runs.count(run_id) == 1
    assert [json.loads(line) for line in note.read_text().splitlines()][1] == [reason, runs]


@pytest.mark.parametrize(
    ("is_kept", "reason"),
    [(True, "cleared before it finished"), (False, "cleared before it finished, and its task state was not kept")],
)
def test_a_clear_that_discards_the_task_state_starts_over(
    airflow: Deployment, tmp_path: Path, is_kept: bool, reason: str
) -> None:
    dag_id, run_id, note = "live_task_state", f"kept-{is_kept}", tmp_path / "notes"
    airflow.api.trigger_undated(dag_id, run_id, conf={"leaves": "fails", "note": str(note)})
    assert end_of(airflow, dag_id, run_id) == "failed"
    assert MARKER_KEY in airflow.api.task_state(dag_id, run_id, TASK)
    if not is_kept:
        airflow.api.discard_task_state(dag_id, run_id, TASK)
    clear(airflow, dag_id, run_id)
    started = json.loads(note.read_text().splitlines()[1])
    assert started == [reason, [run_id] if is_kept else []]


def test_a_new_run_of_a_partition_resumes_a_failed_one_and_replaces_a_finished_one(airflow: Deployment) -> None:
    dag_id = "live_partitions"
    assert work(airflow, dag_id, "run-1", partition_key="eu") == ["eu"]
    airflow.api.trigger_undated(dag_id, "run-2", partition_key="us", conf={"leaves": "fails"})
    assert end_of(airflow, dag_id, "run-2") == "failed"
    assert work(airflow, dag_id, "run-3", partition_key="us") == ["eu", "us"]
    assert work(airflow, dag_id, "run-4", partition_key="us") == ["eu", "us"]
    airflow.api.trigger_undated(dag_id, "run-5", partition_key="eu")
    assert end_of(airflow, dag_id, "run-5") == "failed", "the state already contains the partition"
    reasons = [attempt.start_reason for attempt in airflow.job(dag_id).attempts]
    assert reasons[2].startswith("a new run of the partition of a run whose attempt failed")
    assert reasons[3].startswith(
        "a new run of the partition of a run whose attempt finished, restarted from checkpoint"
    )


def backfill(airflow: Deployment, dag_id: str, at_once: int) -> dict[str, str]:
    """Backfill 30 days, and return how each one ended, by its date."""
    airflow.api.backfill(dag_id, "2026-01-01T00:00:00Z", "2026-01-30T00:00:00Z", at_once)

    def ended() -> dict[str, str] | None:
        runs = [run for run in airflow.api.runs(dag_id) if run["run_type"] == "backfill"]
        states = {str(run["logical_date"])[:10]: str(run["state"]) for run in runs}
        return states if len(states) == 30 and set(states.values()) <= {"success", "failed"} else None

    return wait_until(f"the backfill of {dag_id}", ended, BACKFILL_SECONDS)


def counted(airflow: Deployment, dag_id: str) -> list[str]:
    """Return the days that the attempts of a backfill have counted, in order."""
    view = airflow.job(f"{dag_id} backfill")
    return [attempt.owner.run_key[:10] for attempt in view.attempts if attempt.status == "finished"]


def test_a_backfill_of_30_days_with_4_at_once_counts_every_day_in_order_where_runs_wait(airflow: Deployment) -> None:
    days = [f"2026-01-{number:02d}" for number in range(1, 31)]
    ended = backfill(airflow, "live_days_waiting", 4)
    assert counted(airflow, "live_days_waiting") == days
    assert ended == dict.fromkeys(days, "success")


def test_a_backfill_whose_runs_do_not_wait_counts_no_day_twice(airflow: Deployment) -> None:
    ended = backfill(airflow, "live_days_failing", 4)
    done = counted(airflow, "live_days_failing")
    assert done == sorted(set(done))
    assert {day for day, state in ended.items() if state == "success"} == set(done)
