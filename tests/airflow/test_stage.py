"""Tries of a stage with state under Airflow, each in a process of its own, with real trouble."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.airflow.conftest import Airflow
from tests.airflow.dags.payments import expected

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

RESUMED = ["day 1", "day 2", "day 3", "day 3", "day 4"]


def rows(directory: Path) -> list[tuple[Any, ...]]:
    """Return what a reader of a directory sees."""
    files = sorted(directory.rglob("part-*.parquet"))
    return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())


def require_resumed(airflow: Airflow, date: str) -> Any:
    """Assert that the retry went on where the first try was, and return the tries."""
    assert airflow.computed() == RESUMED, airflow.output
    assert rows(airflow.work / "output") == expected()
    view = airflow.job(f"test/stateful/{date}T00:00:00+00:00")
    attempts = [a for a in view.attempts if a.operator_id == operator_id_of("work")]
    assert [a.status for a in attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert attempts[1].restored_from == 2
    return attempts


@pytest.mark.soak
def test_retry_goes_on_with_the_increment_that_failed_and_each_row_is_written_once(airflow: Airflow) -> None:
    assert airflow.test_dag("stateful", "2026-02-01T00:00:00+00:00", trouble="raise") == 0, airflow.output
    attempts = require_resumed(airflow, "2026-02-01")
    assert "planned" in attempts[0].message
    assert airflow.output.count("retains checkpoint 2") == 1
    assert "'increments': 2, 'rows': 20, 'checkpoint_id': 5" in airflow.output
    # The second task: functions of the Dag's own file, and checkpoints whose interval is found.
    assert rows(airflow.work / "doubled") == [(n, 2 * n) for n in range(10, 30)]
    assert "Checkpoints are taken every" in airflow.output


@pytest.mark.soak
def test_a_jvm_that_is_killed_is_what_the_log_names_and_nothing_is_tried_again(airflow: Airflow) -> None:
    process = airflow.start_dag_test("stateful", "2026-02-05T00:00:00+00:00", trouble="wait for a signal")
    _wait_until_in_trouble(airflow, process.stdout)
    os.kill(_jvm_of(process.pid), signal.SIGKILL)
    assert airflow.finish(process) == 0, airflow.output
    require_resumed(airflow, "2026-02-05")
    account = airflow.output.partition("Task failed with exception")[2].partition("Post Execute")[0]
    assert "DriverLostError" in re.findall(r"^\S*(?:Error|Exception)\b.*$", account, re.MULTILINE)[-1]
    assert "Storage call on" not in airflow.output
    assert airflow.output.count("retains checkpoint 2") == 1


@pytest.mark.soak
def test_second_tasks_test_of_one_date_resumes_in_the_test_namespace(airflow: Airflow) -> None:
    # Airflow itself ends with 0 when a task fails under "tasks test".
    command = ("tasks", "test", "stateful", "work", "2026-02-02")
    airflow.run("dags", "reserialize")
    airflow.run(*command, trouble="raise")
    airflow.run(*command)
    require_resumed(airflow, "2026-02-02")


@pytest.mark.soak
def test_execution_timeout_closes_the_attempt_within_seconds_and_the_retry_resumes(airflow: Airflow) -> None:
    status = airflow.test_dag("stateful", "2026-02-03T00:00:00+00:00", trouble="run into the timeout")
    assert status == 0, airflow.output
    first = require_resumed(airflow, "2026-02-03")[0]
    assert "AirflowTaskTimeout" in first.message
    assert (first.ended_at - first.registered_at).total_seconds() < 60 + 5


@pytest.mark.soak
def test_sigterm_closes_the_attempt_within_seconds_and_the_retry_resumes(airflow: Airflow) -> None:
    process = airflow.start_dag_test("stateful", "2026-02-04T00:00:00+00:00", trouble="wait for a signal")
    _wait_until_in_trouble(airflow, process.stdout)
    sent = time.time()
    os.kill(process.pid, signal.SIGTERM)
    assert airflow.finish(process) == 0, airflow.output
    first = require_resumed(airflow, "2026-02-04")[0]
    assert "StageTerminatedError" in first.message
    assert first.ended_at.timestamp() - sent < 5


def _jvm_of(driver: int) -> int:
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            pid, name, _, parent = status.read_text().split()[:4]
            if (name, parent) == ("(java)", str(driver)):
                return int(pid)
    raise AssertionError(f"process {driver} has no JVM")


def _wait_until_in_trouble(airflow: Airflow, output: Any) -> None:
    """Read the process's output until a task of Spark's is inside the function."""
    while not (airflow.work / "trouble").exists():
        ready, _, _ = select.select([output], [], [], 120)
        assert ready, "the stage did not begin"
        os.read(output.fileno(), 65536)  # not by lines, for select does not see what a reader of lines holds back


@pytest.mark.soak
def test_stage_that_was_known_by_its_own_name_is_refused_under_its_task_id_until_it_is_renamed(
    airflow: Airflow,
) -> None:
    def run(day: int, parts: list[int], **arguments: Any) -> int:
        airflow.environment = {"STAGE_PARTS": json.dumps(parts), "STAGE_ARGUMENTS": json.dumps(arguments)}
        return airflow.test_dag("renamed", f"2026-02-0{day}T00:00:00+00:00")

    assert run(1, [1, 2], uid="counting") == 0, airflow.output
    assert run(2, [1, 2, 3]) != 0
    assert "renamed_uids={'counting': 'count'} or uid='counting'" in airflow.output
    assert len(rows(airflow.work / "numbers")) == 20
    assert run(2, [1, 2, 3], renamed_uids={"counting": "count"}) == 0, airflow.output
    assert rows(airflow.work / "numbers") == [(n,) for n in range(10, 40)]
    assert [operator.uid for operator in airflow.job("test/numbers").operators] == ["counting"]


@pytest.mark.soak
def test_stage_of_a_dag_with_a_new_id_and_a_task_with_a_new_place_is_refused_until_it_is_renamed(
    airflow: Airflow,
) -> None:
    def run(day: int, parts: list[int], dag_id: str, group: str = "", **arguments: Any) -> int:
        airflow.environment = {"STAGE_PARTS": json.dumps(parts), "STAGE_ARGUMENTS": json.dumps(arguments)}
        airflow.environment |= {"STAGE_DAG": dag_id, "STAGE_GROUP": group}
        return airflow.test_dag(dag_id, f"2026-03-0{day}T00:00:00+00:00")

    assert run(1, [1, 2], "ledger") == 0, airflow.output
    assert run(2, [1, 2, 3], "ledger_v2", "books") != 0
    assert "which Dag 'ledger' ran last, which no longer exists" in airflow.output
    assert len(rows(airflow.work / "numbers")) == 20
    assert run(2, [1, 2, 3], "ledger_v2", "books", renamed_uids={"count": "books.count"}) == 0, airflow.output
    assert rows(airflow.work / "numbers") == [(n,) for n in range(10, 40)]
