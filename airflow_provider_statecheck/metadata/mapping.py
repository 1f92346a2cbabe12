"""Rows to domain records and back; nothing of SQLAlchemy passes this edge."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.checkpoint.acknowledgements import AcknowledgementRecord
from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.claims import ClaimRecord
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
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
from airflow_provider_statecheck.metadata.record_table import RecordTable


def attempt_record(row: models.Attempt) -> AttemptRecord:
    """Return an attempt's row as a record."""
    return ATTEMPTS.read([getattr(row, name) for name in ATTEMPTS.names])


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


JOBS = RecordTable(models.Job, JobRecord)
OPERATORS = RecordTable(models.Operator, OperatorRecord, damaged_snapshots=tuple)
ATTEMPTS = RecordTable(
    models.Attempt, AttemptRecord, status=AttemptStatus, owner=_owner, retention=CheckpointRetentionPolicy
)
CHECKPOINTS = RecordTable(models.Checkpoint, CheckpointRecord, status=CheckpointStatus, properties=_properties)
ACKNOWLEDGEMENTS = RecordTable(models.Acknowledgement, AcknowledgementRecord)
REQUESTS = RecordTable(models.Request, SnapshotRequest, status=RequestStatus, properties=_properties)
CLAIMS = RecordTable(models.Claim, ClaimRecord)
STATISTICS = RecordTable(models.Statistics, StatisticsRecord)
