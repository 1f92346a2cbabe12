"""Rows of completed checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def completed(
    checkpoint_id: int,
    unusable_reason: str | None = None,
    generation: int = 1,
    properties: CheckpointProperties | None = None,
    *,
    has_open_commit: bool = False,
    run_key: str = "",
) -> CheckpointRecord:
    return CheckpointRecord(
        job_id=job_id_of("sales"),
        checkpoint_id=checkpoint_id,
        operator_id=operator_id_of("aggregate"),
        epoch=1,
        generation=generation,
        status=CheckpointStatus.COMPLETED,
        request_key=f"key-{checkpoint_id}",
        location=f"memory://base/chk-{checkpoint_id}",
        triggered_at=MOMENT,
        expires_at=MOMENT,
        unusable_reason=unusable_reason,
        properties=properties or CheckpointProperties(),
        has_open_commit=has_open_commit,
        run_key=run_key,
    )
