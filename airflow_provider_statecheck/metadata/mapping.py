"""Rows to domain records and back; nothing of SQLAlchemy passes this edge."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.checkpoint.acknowledgements import AcknowledgementRecord
from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.claims import ClaimRecord
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.requests import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.checkpoint.statistics_record import StatisticsRecord
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
    typed = {"status": CheckpointStatus(row.status), "properties": _properties(row.properties)}
    return CheckpointRecord(**_columns(row, CheckpointRecord) | _ids(row) | typed)


def acknowledgement_record(row: models.Acknowledgement) -> AcknowledgementRecord:
    """Return the row of an operator's part in a checkpoint as a record."""
    return AcknowledgementRecord(**_columns(row, AcknowledgementRecord) | _ids(row))


def request_record(row: models.Request) -> SnapshotRequest:
    """Return a request's row as a record."""
    typed = {"status": RequestStatus(row.status), "properties": _properties(row.properties)}
    return SnapshotRequest(**_columns(row, SnapshotRequest) | _ids(row) | typed)


def claim_record(row: models.Claim) -> ClaimRecord:
    """Return a claim's row as a record."""
    return ClaimRecord(**_columns(row, ClaimRecord) | _ids(row))


def statistics_record(row: models.Statistics) -> StatisticsRecord:
    """Return the row of an operator's statistics as a record."""
    return StatisticsRecord(**_columns(row, StatisticsRecord) | _ids(row))


def columns_of(record: Any) -> dict[str, Any]:
    """Return a record as values of its row's columns."""
    return {f.name: _column(getattr(record, f.name)) for f in fields(record)}


def _column(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    # A record within a record is one column of JSON; enums in it are texts already.
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _columns(row: models.Base, record: type[Any]) -> dict[str, Any]:
    return {f.name: getattr(row, f.name) for f in fields(record)}


def _ids(row: Any) -> dict[str, Any]:
    return {"job_id": JobId(row.job_id), "operator_id": OperatorId(row.operator_id)}


def _owner(values: dict[str, Any]) -> AttemptOwner:
    pairs = tuple((str(key), str(value)) for key, value in values["airflow"])
    return AttemptOwner(**values | {"airflow": pairs})


def _properties(values: dict[str, Any]) -> CheckpointProperties:
    written = values["savepoint_format"]
    typed = {
        "snapshot_type": CheckpointType(values["snapshot_type"]),
        "savepoint_format": None if written is None else SavepointFormat(written),
    }
    return CheckpointProperties(**values | typed)
