"""The maintenance Dag under a real scheduler, where its tasks have to ask the coordinator over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, epoch_name, new_key, shared_uri
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, RequestStatus
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
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


def _request_savepoint(deployment: Deployment, run: StageRun) -> str:
    """Request a savepoint of the whole job, which the maintenance Dag has to take."""
    job, key = run.job().job, new_key()
    JobSavepoints(deployment.store()).request(
        RequestSavepoint(
            job_id=job.job_id,
            operator_id=ALIGNED_OPERATOR_ID,
            request_key=key,
            target=f"file://{deployment.folder}/savepoints",
            requested_by="a test",
        )
    )
    return key


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

    key = _request_savepoint(deployment, run)
    deployment.api.unpause(DAG_ID)
    upkeep = StageRun(deployment, DAG_ID, "upkeep")
    upkeep.trigger()
    assert upkeep.wait_for_end() == "success", deployment.api.tasks(DAG_ID, "upkeep")

    [request] = [r for r in run.job().requests if r.request_key == key]
    assert request.status is RequestStatus.COMPLETED, request.failure_message
    assert not orphan.exists()
    assert [c for c in _retained(run) if not c.properties.is_savepoint] == before
    assert all(Path(c.metadata_uri.removeprefix("file://")).exists() for c in before if c.metadata_uri)
