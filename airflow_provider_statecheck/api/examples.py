"""
Example messages for the OpenAPI description.

An example has the fields that a message needs, and those that have a value here. Other values follow from the types.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, LoopSummary, StepSummary
from airflow_provider_statecheck.checkpoint.codec import encode, key_of
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.job_list import JobList, JobOverview, JobsPage, ListedStatus
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties

_JOB_NAME = "nightly/2026-01-01T00:00:00+00:00"
_JOB = job_id_of(_JOB_NAME)
_OPERATOR = operator_id_of("features")
_TIME = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
_RUN = "2026-01-01T00:00:00+00:00"
_RUN_ID = f"scheduled__{_RUN}"
_KEY = "7a1b2c3d4e5f60718293a4b5c6d7e8f9"
_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_SAVEPOINTS = "s3://lake/savepoints"
_SAVEPOINT = f"{_SAVEPOINTS}/savepoint-5d2c4a-0f6f7c1e2b3a"
_SUMMARY = CheckpointSummary(
    steps=(StepSummary(name="sessions", outcome="restored", seconds=412.5, size_bytes=1_000_341_504, rows=8_120_000),),
    loops=(LoopSummary(name="days", finished=14, total=31, seconds=3150.0),),
    seconds_saved=3562.5,
)
_VALUES: dict[str, Any] = {
    "job_id": _JOB,
    "job_name": _JOB_NAME,
    "operator_id": _OPERATOR,
    "uid": "features",
    "member": "features",
    "checkpoint_id": 14,
    "attempt": {"job_id": _JOB, "operator_id": _OPERATOR, "epoch": 2},
    "leader": {"job_id": _JOB, "operator_id": operator_id_of(ALIGNED_UID), "epoch": 3},
    "attempt_id": "features/2",
    "dag_id": "nightly",
    "run_id": _RUN_ID,
    "task_id": "features",
    "map_index": -1,
    "logical_task": "nightly/features",
    "run_key": _RUN,
    "run": _RUN,
    "label": f"task nightly.features of run {_RUN_ID}, try 2",
    "clear_marker": "3/0",
    **dict.fromkeys(("attempt_key", "request_key", "trigger_key", "coordinator", "finalizer"), _KEY),
    **dict.fromkeys(("abort_key", "end_key"), _KEY),
    "storage_base": "s3://lake/checkpoints",
    "target": _SAVEPOINTS,
    "savepoint_dir": _SAVEPOINTS,
    "location": _SAVEPOINT,
    "pointer": _SAVEPOINT,
    "metadata_uri": f"{_SAVEPOINT}/_metadata",
    "metadata_size": 1834,
    "metadata_sha256": _SHA256,
    "metadata": {"uri": f"{_SAVEPOINT}/_metadata", "size": 1834, "sha256": _SHA256},
    "manifest": {"uri": f"{_SAVEPOINT}/3-{_SHA256[:32]}", "size": 912, "sha256": _SHA256},
    "state_size_bytes": 73_400_320,
    "full_size_bytes": 1_073_741_824,
    "counts": {"snapshots": 1, "items": 14},
    "summary": encode(_SUMMARY),
    "properties": encode(CheckpointProperties.for_savepoint()),
    "status": "finished",
    "message": "The bucket refused a write: quota exceeded.",
    "is_written": True,
    "is_claimed": True,
    "lease_until": encode(_TIME),
    "min_pause_seconds": 0.0,
    **dict.fromkeys(("age_seconds", "idle_seconds"), 30 * 24 * 3600.0),
    "lifetime_seconds": 3600.0,
    "ti_id": "01990b5e-3f7a-7c3c-8a43-6a2f0e3a9d11",
    "secret": "the secret itself, not its hash",
}
"""Values of fields, by name."""
_LEFT_OUT = {"request_key", "savepoint_dir"}
"""Fields that change what a message means where it does not need them."""


def _example(value: Any) -> dict[str, Any]:
    return {"normal": {"value": encode(value)}}


def of(kind: Any) -> dict[str, Any]:
    """Return the example of a message."""
    return _example(_object(kind))


def _object(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    shown = needed | _VALUES.keys() - _LEFT_OUT
    return {key_of(f): _value(f.name, hints[f.name]) for f in fields(kind) if f.name in shown}


def _value(name: str, kind: Any) -> Any:
    kind = next((each for each in get_args(kind) if NoneType in get_args(kind) and each is not NoneType), kind)
    if name in _VALUES:
        return _VALUES[name]
    if is_dataclass(kind):
        return _object(kind)
    if get_origin(kind) is dict:
        return {_OPERATOR: _value("uid" if get_args(kind)[1] is str else "checkpoint_id", get_args(kind)[1])}
    if get_origin(kind) is tuple:
        return [_value("checkpoint_id" if get_args(kind)[0] is int else "", get_args(kind)[0])]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next(iter(kind)).value
    return {datetime: encode(_TIME), int: 1, float: 600.0, str: name}.get(getattr(kind, "__supertype__", kind))


JOB_ID = _example(_JOB)
OPERATOR_ID = _example(_OPERATOR)
CHECKPOINT_ID = _example(13)
KNOWN_VERSION = _example(57)
SEEN_AT = _example("2026-01-01T00:00:00.123456+00:00")
STATE_NAME = {"normal": {"value": "totals"}, "of an instance of a mapped task": {"value": "totals[eu]"}}
SNAPSHOT_NAME = {"normal": {"value": "sessions"}}
SNAPSHOT_SCOPE = {"one loop": {"value": "days[2026-01-01]"}, "two loops": {"value": "days[2026-01-01]/shops[7]"}}
LOOP_NAME = {"normal": {"value": "days"}, "inside an item": {"value": "days[2026-01-01]/shops"}}
STATE_KEY = {"one column": {"value": ["EUR"]}, "two columns": {"value": ["EUR", "42"]}}
STATE_BATCH = {
    "one column": {"value": {"keys": ["EUR", "USD"]}},
    "two columns": {"value": {"keys": [["EUR", 42], ["USD", 7]], "namespace": "2026-01"}},
    "one entry of a map, at a time": {
        "value": {"keys": ["EUR"], "user_key": "open", "at": "2026-01-31T12:00:00+00:00"}
    },
}
RUN_KEY = _example(_RUN)
ACTION = _example({"request_key": _KEY, "checkpoint_id": 13})
JOB_LIST = _example(
    JobList(
        jobs=(
            JobOverview(
                job_id=_JOB,
                name=_JOB_NAME,
                status=ListedStatus.RUNNING,
                seen_at=_TIME,
                operators=2,
                dag_ids=("nightly",),
                checkpoint_id=13,
                completed_at=_TIME,
                full_size_bytes=734_003_200,
                earlier_size_bytes=720_371_712,
            ),
        ),
        counts={ListedStatus.RUNNING: 1, ListedStatus.FINISHED: 30},
        following=JobsPage().following(_JOB_NAME, _JOB_NAME),
    )
)
