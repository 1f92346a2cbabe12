"""What is killed under ``make up``, and what must come of it: a report like that of an undisturbed run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from scripts.example_data import flights
from tests.live.rest import wait_until
from tests.stack.running import DRIVER, EXECUTOR, Run, RunningStack

pytestmark = [pytest.mark.live, pytest.mark.soak]

DAG = "example_resume_flights"
FIRST_ITEMS = 3


def begun(stack: RunningStack, date: str) -> tuple[Run, Path]:
    """Start the Dag with a report of its own, and wait until it is in the middle of its loop."""
    report = stack.folder / "data" / f"report_{date}"
    run = stack.start(DAG, date, report=str(report))
    run.wait_for_items(FIRST_ITEMS)
    return run, report


def check_report(report: Path) -> None:
    """Compare the numbers of flights with those of the file that the Dag reads."""
    import json

    reported: Counter[tuple[str, ...]] = Counter()
    for file in report.glob("month=*/*.json"):
        for row in map(json.loads, file.read_text().splitlines()):
            month = file.parent.name.removeprefix("month=").lstrip("0")
            reported[month, row["origin"], row["dest"], row["carrier"]] += row["flights"]
    assert reported == Counter((f["month"], f["origin"], f["dest"], f["carrier"]) for f in flights())


def check_restored(run: Run) -> None:
    """Require a second attempt that took what the first had finished, and that its log says so."""
    first, second = run.view().attempts
    assert first.status in (AttemptStatus.FAILED, AttemptStatus.FENCED)
    assert (second.status, second.restored_from is not None) == (AttemptStatus.FINISHED, True)
    checkpoint = next(c for c in run.view().checkpoints if c.checkpoint_id == second.restored_from)
    assert checkpoint.counts["snapshots"] == 5
    assert checkpoint.counts["items"] >= FIRST_ITEMS
    of_attempt = f"of job '{run.job}', operator 'delay_features', attempt 2"
    told = f"Checkpoint {second.restored_from} {of_attempt}: restored; 5 snapshots"
    assert told in run.log()
    assert run.log().count("Step features computed") == 1


def test_all_services_are_healthy_and_the_maintenance_dag_is_on(stack: RunningStack) -> None:
    wait_until("healthy services", lambda: stack.command("status").returncode == 0)
    assert not stack.api.is_paused("statecheck_maintenance")


def test_killed_driver_is_retried_from_its_last_checkpoint(stack: RunningStack) -> None:
    run, report = begun(stack, "2026-01-01")
    [driver] = stack.processes(DRIVER)
    driver.kill()
    assert run.wait_for_end() == "success", run.log()
    check_report(report)
    check_restored(run)
    assert all(c.location.startswith("s3://statecheck/checkpoints/") for c in run.view().checkpoints)
    assert len(stack.processes(EXECUTOR)) == 0


def test_killed_executor_is_replaced_and_costs_no_try(stack: RunningStack) -> None:
    run, report = begun(stack, "2026-01-02")
    executors = stack.processes(EXECUTOR)
    assert len(executors) == 2
    executors[0].kill()
    assert run.wait_for_end() == "success", run.log()
    check_report(report)
    assert [a.status for a in run.view().attempts] == [AttemptStatus.FINISHED]


def test_killed_worker_comes_back_and_costs_no_try(stack: RunningStack) -> None:
    run, report = begun(stack, "2026-01-03")
    pid = stack.kill("spark-worker-1")
    stack.wait_for_another("spark-worker-1", pid)
    assert run.wait_for_end() == "success", run.log()
    check_report(report)
    assert [a.status for a in run.view().attempts] == [AttemptStatus.FINISHED]
    assert f"spark-worker-1 exited unexpectedly as process {pid}" in stack.command("status").stdout


def test_killed_api_server_comes_back_and_the_task_goes_on(stack: RunningStack) -> None:
    run, report = begun(stack, "2026-01-04")
    pid = stack.kill("api-server")
    stack.wait_for_another("api-server", pid)
    assert run.wait_for_end() == "success", run.log()
    check_report(report)
    assert "Retrying the call" in run.log()
    assert [a.status for a in run.view().attempts] == [AttemptStatus.FINISHED]


def test_killed_scheduler_comes_back_and_its_task_is_retried_from_its_last_checkpoint(stack: RunningStack) -> None:
    run, report = begun(stack, "2026-01-05")
    [driver] = stack.processes(DRIVER)
    pid = stack.kill("scheduler")
    stack.wait_for_another("scheduler", pid)
    driver.wait(60)  # its tasks go with it, as they do in a container
    assert run.wait_for_end() == "success", run.log()
    check_report(report)
    check_restored(run)
