"""Requests of several ages, and the time from which they are counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRequest

START = datetime(2026, 1, 1, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def make_request(
    key: str,
    *,
    properties: CheckpointProperties | None = None,
    is_periodic: bool = False,
    age: float = 0,
    **fields: Any,
) -> CheckpointRequest:
    """Make a request that was made so many seconds before ``START``."""
    return CheckpointRequest(
        job_id=job_id_of("sales"),
        request_key=key,
        operator_id=operator_id_of("(aligned)"),
        properties=properties or CheckpointProperties(),
        is_periodic=is_periodic,
        requested_at=START - seconds(age),
        **fields,
    )
