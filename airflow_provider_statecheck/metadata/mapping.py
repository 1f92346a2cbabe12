"""Rows to domain records and back; nothing of SQLAlchemy passes this edge."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.metadata import models


def job_record(row: models.Job) -> JobRecord:
    """Return a job's row as a record."""
    return JobRecord(**_columns(row, JobRecord) | {"job_id": JobId(row.job_id)})


def operator_record(row: models.Operator) -> OperatorRecord:
    """Return an operator's row as a record."""
    return OperatorRecord(**_columns(row, OperatorRecord) | _ids(row))


def attempt_record(row: models.Attempt) -> AttemptRecord:
    """Return an attempt's row as a record."""
    typed = {"status": AttemptStatus(row.status), "owner": _owner(row.owner)}
    return AttemptRecord(**_columns(row, AttemptRecord) | _ids(row) | typed)


def checkpoint_record(row: models.Checkpoint) -> CheckpointRecord:
    """Return a checkpoint's row as a record."""
    typed = {"status": CheckpointStatus(row.status)}
    return CheckpointRecord(**_columns(row, CheckpointRecord) | _ids(row) | typed)


def columns_of(record: OperatorRecord | AttemptRecord | CheckpointRecord) -> dict[str, Any]:
    """Return a record as values of its row's columns."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    if isinstance(record, AttemptRecord):
        values |= {"status": record.status.value, "owner": asdict(record.owner)}
    if isinstance(record, CheckpointRecord):
        values |= {"status": record.status.value}
    return values


def _columns(row: models.Base, record: type[Any]) -> dict[str, Any]:
    return {f.name: getattr(row, f.name) for f in fields(record)}


def _ids(row: models.Operator | models.Attempt | models.Checkpoint) -> dict[str, Any]:
    return {"job_id": JobId(row.job_id), "operator_id": OperatorId(row.operator_id)}


def _owner(values: dict[str, Any]) -> AttemptOwner:
    pairs = tuple((str(key), str(value)) for key, value in values["airflow"])
    return AttemptOwner(**values | {"airflow": pairs})
