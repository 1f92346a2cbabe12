"""The commands as Airflow runs them: in processes of their own, on its database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import SystemClock
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.written_stage import WrittenStage, local_path

pytestmark = [pytest.mark.airflow, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
JOB = "test/of the commands"


def statecheck(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "airflow", "statecheck", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stdout, done.stderr
    return [row for row in json.loads(done.stdout) if row.get("job", JOB) == JOB]


@pytest.fixture
def stage(airflow_db: Path, tmp_path: Path) -> Iterator[WrittenStage]:
    engine, clock = create_engine(f"sqlite:///{airflow_db}/airflow.db"), SystemClock()
    storage = CheckpointStorage.open(str(tmp_path / "base"))
    yield WrittenStage(storage, clock, SqlJobStore(engine, clock))
    engine.dispose()


def audited(airflow_db: Path) -> list[str]:
    """Return what Airflow's audit log has of commands that remove something."""
    engine = create_engine(f"sqlite:///{airflow_db}/airflow.db")
    with engine.connect() as connection:
        found = (
            connection.execute(text("SELECT event FROM log WHERE extra LIKE '%statecheck%' ORDER BY id"))
            .scalars()
            .all()
        )
    engine.dispose()
    return list(found)


def test_a_job_is_listed_collected_verified_and_removed(stage: WrittenStage, airflow_db: Path) -> None:
    stage.run(JOB)

    listed = statecheck("jobs", "--name", JOB, "-o", "json")
    assert (listed.returncode, rows(listed)[0]["checkpoint"]) == (0, 3)

    shown = statecheck("checkpoints", JOB, "-o", "json")
    assert [row["status"] for row in rows(shown)] == ["subsumed", "subsumed", "completed"]

    collected = statecheck("gc", JOB, "--yes", "-o", "json")
    assert (collected.returncode, len(rows(collected)[0]["directories"])) == (0, 4)
    assert stage.directories(JOB) == {"chk-3", "step_2"}

    row = stage.coordinator.describe(job_id_of(JOB)).checkpoints[-1]
    local_path(str(row.metadata_uri)).write_bytes(b"damaged")
    verified = statecheck("verify", JOB, "--deep", "-o", "json")
    assert (verified.returncode, rows(verified)[0]["restorable"]) == (1, False)

    pruned = statecheck("prune", JOB, "--yes", "-o", "json")
    assert (pruned.returncode, rows(pruned)[0]["removed"]) == (0, True)
    assert JOB not in {job.name for job in stage.maintenance.jobs()}
    assert audited(airflow_db) == ["cli_gc", "cli_prune"]


def test_missing_tables_are_told_in_one_line_with_what_to_do(airflow_db: Path, tmp_path: Path) -> None:
    done = statecheck("jobs", AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{tmp_path}/empty.db")
    assert (done.returncode, done.stdout) == (3, "")
    assert "run 'airflow db migrate'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
