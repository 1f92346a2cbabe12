"""The maintenance Dag under a real scheduler, where its tasks have to ask the coordinator over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.layout import epoch_name, shared_uri
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from tests.live.deployment import Deployment
from tests.live.runs import StageRun

pytestmark = [pytest.mark.live, pytest.mark.soak]

DAG_ID = "statecheck_maintenance"


def _orphan(deployment: Deployment, run: StageRun) -> Path:
    """Leave a snapshot that no checkpoint names, as a driver does that dies while it writes."""
    operator = run.job().operators[0]
    base = str(deployment.folder / "checkpoints")
    folder = Path(shared_uri(base, operator.job_id, operator.operator_id), "half-written", epoch_name(operator.epoch))
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "part.parquet").write_bytes(b"PAR1")
    return folder


def _retained(run: StageRun) -> list[CheckpointRecord]:
    return [c for c in run.job().checkpoints if c.status is CheckpointStatus.COMPLETED]


def test_it_deletes_orphans_keeps_what_is_retained_and_verifies_it(deployment: Deployment) -> None:
    deployment.ensure_running()
    run = StageRun(deployment, "live_stage", "maintained")
    run.trigger()
    run.wait_for_stop()
    run.mark_failed()
    run.wait_for_closed_attempt()
    assert run.wait_for_end() == "failed"  # the end of a run after which checkpoints stay
    orphan = _orphan(deployment, run)
    before = _retained(run)
    assert before

    deployment.api.unpause(DAG_ID)
    upkeep = StageRun(deployment, DAG_ID, "upkeep")
    upkeep.trigger()
    assert upkeep.wait_for_end() == "success", deployment.api.tasks(DAG_ID, "upkeep")

    assert not orphan.exists()
    assert _retained(run) == before
    assert all(Path(c.metadata_uri.removeprefix("file://")).exists() for c in before if c.metadata_uri)
