"""Example messages for the OpenAPI description."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.request_decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortCheckpoints,
    AbortScope,
    AcknowledgeAligned,
    AdoptSnapshot,
    AwaitedTask,
    BeginCheckpoint,
    ChooseRequest,
    CountIds,
    EffectsOf,
    EndHandles,
    EnqueueRequest,
    FinalizationOf,
    HandlesOf,
    OutcomeOf,
    OwnershipOf,
    PutHandle,
    RecordDiscards,
    RecordRestore,
    RemoveHandles,
    ReportFailure,
    Resign,
    TakeLeadership,
    TakeOver,
)
from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.job_list import JobList, JobOverview, JobsPage, ListedStatus
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AdoptAttempt,
    AttemptRef,
    BeginSavepoint,
    ConfirmCommits,
    ConfirmDiscards,
    ConfirmRestore,
    DeclineCheckpoint,
    DisposeSavepoint,
    EndSavepoint,
    FinishAttempt,
    PinParts,
    RegisterAttempt,
    RequestSavepoint,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus
from airflow_provider_statecheck.checkpoint.snapshot_summary import LoopSummary, SnapshotSummary, StepSummary
from airflow_provider_statecheck.gateway.verbs import Verb
from airflow_provider_statecheck.maintenance.job_maintenance import (
    DropTokens,
    ForgetRows,
    RetireJob,
)

_JOB_NAME = "nightly/2026-01-01T00:00:00+00:00"
_JOB = job_id_of(_JOB_NAME)
_ATTEMPT = AttemptRef(job_id=_JOB, operator_id=operator_id_of("features"), epoch=2)
_OWNER = AttemptOwner(
    logical_task="nightly/features",
    run_key="2026-01-01T00:00:00+00:00",
    run_id="scheduled__2026-01-01T00:00:00+00:00",
    clear_marker="3/0",
    label="task nightly.features of run scheduled__2026-01-01T00:00:00+00:00, try 2",
)


def _example(value: Any) -> dict[str, Any]:
    return {"normal": {"value": encode(value)}}


JOB_ID = _example(_JOB)
OPERATOR_ID = _example(_ATTEMPT.operator_id)
CHECKPOINT_ID = _example(13)
KNOWN_VERSION = _example(57)
SEEN_AT = _example("2026-01-01T00:00:00.123456+00:00")
CHALLENGE = _example({"ti_id": "01990b5e-3f7a-7c3c-8a43-6a2f0e3a9d11", "secret": "the secret itself, not its hash"})
READ = _example({"job_id": _JOB})
USER_READ = _example({"job_id": _JOB, "lifetime_seconds": 3600.0})
LOGIN = _example({"dag_id": "nightly", "run_id": _OWNER.run_id, "task_id": "features", "map_index": -1})
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
RUN_KEY = _example(_OWNER.run_key)
ACTION = _example({"request_key": "0c1d2e3f405162738495a6b7c8d9eafb", "checkpoint_id": 13})
_SUMMARY = SnapshotSummary(
    steps=(StepSummary(name="sessions", outcome="restored", seconds=412.5, size_bytes=1_000_341_504, rows=8_120_000),),
    loops=(LoopSummary(name="days", finished=14, total=31, seconds=3150.0),),
    seconds_saved=3562.5,
    snapshot_seconds=8.25,
    write_seconds=0.034,
)
_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_REQUEST_KEY = "7a1b2c3d4e5f60718293a4b5c6d7e8f9"
_SAVEPOINTS = "s3://lake/savepoints"
_SAVEPOINT = f"{_SAVEPOINTS}/savepoint-5d2c4a-0f6f7c1e2b3a"
_MONTH = 30 * 24 * 3600.0
_LEADER = AttemptRef(job_id=_JOB, operator_id=ALIGNED_OPERATOR_ID, epoch=3)
_DECIDER = CheckpointRequestDecider(max_concurrent=1, min_pause_seconds=0.0)
_CHOICE = ChooseRequest(leader=_LEADER, decider=_DECIDER)
_FINALIZER = "c0ffee00c0ffee00c0ffee00c0ffee00"
_ALIGNED = (
    TakeLeadership(
        job_name=_JOB_NAME,
        attempt_key="6e2c4a7e9f0b41d3a6c8e1f20b3d4c5a",
        owner=AttemptOwner(
            logical_task="savepoint of the job", run_key="", run_id="", clear_marker="", label="savepoint of the job"
        ),
        storage_base="s3://lake/checkpoints",
    ),
    Resign(leader=_LEADER),
    CountIds(leader=_LEADER),
    EnqueueRequest(
        leader=_LEADER,
        decider=_DECIDER,
        request_key=_REQUEST_KEY,
        properties=CheckpointProperties.for_savepoint(),
        target=_SAVEPOINTS,
    ),
    _CHOICE,
    BeginCheckpoint(
        choice=_CHOICE,
        request_key=_REQUEST_KEY,
        coordinator=_FINALIZER,
        awaited=(AwaitedTask(operator_id=_ATTEMPT.operator_id, attempt_id="features/2"),),
        timeout_seconds=600.0,
        location=_SAVEPOINT,
    ),
    AcknowledgeAligned(
        leader=_LEADER,
        checkpoint_id=14,
        attempt_id="features/2",
        state_size_bytes=1_073_741_824,
        is_written=True,
        manifest_uri=f"{_SAVEPOINT}/3-9f86d081884c7d659a2feaa0c55ad015",
        manifest_size=912,
        manifest_sha256=_SHA256,
        finalizer=_FINALIZER,
    ),
    AbortCheckpoints(
        leader=_LEADER,
        scope=AbortScope.EXPIRED,
        reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
        uids={_ATTEMPT.operator_id: "features"},
        abort_key="a" * 32,
    ),
    TakeOver(leader=_LEADER, finalizer=_FINALIZER, lease_seconds=60.0),
    FinalizationOf(
        leader=_LEADER,
        checkpoint_id=14,
        finalizer=_FINALIZER,
        lease_until=datetime(2026, 1, 1, 0, 6, tzinfo=UTC),
    ),
    AdoptSnapshot(
        leader=_LEADER, checkpoint_id=14, location=_SAVEPOINT, metadata_uri=f"{_SAVEPOINT}/_metadata", is_claimed=True
    ),
    RecordRestore(leader=_LEADER, checkpoint_id=14),
    EffectsOf(leader=_LEADER, checkpoint_ids=(12,)),
    RecordDiscards(leader=_LEADER, checkpoint_ids=(12,)),
    PutHandle(
        leader=_LEADER,
        checkpoint_id=14,
        location=_SAVEPOINT,
        metadata_uri=f"{_SAVEPOINT}/_metadata",
        metadata_size=1834,
        metadata_sha256=_SHA256,
        properties=CheckpointProperties.for_savepoint(),
        completed_at=datetime(2026, 1, 1, 0, 5, tzinfo=UTC),
        operators=1,
    ),
    HandlesOf(leader=_LEADER),
    RemoveHandles(leader=_LEADER, num_retained=2),
    EndHandles(leader=_LEADER, status=JobStatus.FINISHED),
    OutcomeOf(leader=_LEADER, request_key=_REQUEST_KEY),
    OwnershipOf(leader=_LEADER, location=_SAVEPOINT),
    ReportFailure(leader=_LEADER, reason=CheckpointFailureReason.CHECKPOINT_DECLINED, checkpoint_id=14),
)
_MESSAGES = (
    RegisterAttempt(
        job_name=_JOB_NAME,
        uid="features",
        attempt_key="5d2c4a7e9f0b41d3a6c8e1f20b3d4c5a",
        owner=_OWNER,
        storage_base="s3://lake/checkpoints",
    ),
    AdoptAttempt(attempt=_ATTEMPT, owner=_OWNER),
    ConfirmRestore(
        attempt=_ATTEMPT,
        checkpoint_id=11,
        skipped=(SkippedCheckpoint(checkpoint_id=12, reason="the checksum of its _metadata differs"),),
    ),
    TriggerCheckpoint(attempt=_ATTEMPT, request_key="0f6f7c1e2b3a4d5c8e9f0a1b2c3d4e5f"),
    AcknowledgeCheckpoint(
        attempt=_ATTEMPT,
        checkpoint_id=13,
        metadata_uri=f"s3://lake/checkpoints/{_JOB}/chk-13/_metadata",
        metadata_size=1834,
        metadata_sha256=_SHA256,
        state_size_bytes=73_400_320,
        full_size_bytes=1_073_741_824,
        counts={"snapshots": 1, "items": 14},
        summary=_SUMMARY,
    ),
    DeclineCheckpoint(
        attempt=_ATTEMPT,
        checkpoint_id=13,
        reason=CheckpointFailureReason.IO_EXCEPTION,
        message="The bucket refused a write: quota exceeded.",
    ),
    ConfirmCommits(attempt=_ATTEMPT, checkpoint_ids=(13,)),
    FinishAttempt(attempt=_ATTEMPT, status=AttemptStatus.FINISHED),
    ForgetRows(job_id=_JOB, age_seconds=_MONTH),
    RetireJob(job_id=_JOB, idle_seconds=_MONTH),
    DropTokens(age_seconds=_MONTH),
    RequestSavepoint(job_id=_JOB, operator_id=_ATTEMPT.operator_id, request_key=_REQUEST_KEY, target=_SAVEPOINTS),
    BeginSavepoint(job_id=_JOB, request_key=_REQUEST_KEY, savepoint_dir=_SAVEPOINTS, trigger_key="e" * 32),
    EndSavepoint(
        job_id=_JOB,
        checkpoint_id=14,
        metadata_uri=f"{_SAVEPOINT}/_metadata",
        metadata_size=1834,
        metadata_sha256=_SHA256,
        state_size_bytes=1_073_741_824,
        counts={"snapshots": 3, "items": 14},
    ),
    DisposeSavepoint(job_id=_JOB, pointer=_SAVEPOINT),
    PinParts(job_id=_JOB, checkpoint_id=14, parts={_ATTEMPT.operator_id: 13}),
    *_ALIGNED,
)
_OF_MESSAGE: dict[Any, Any] = {type(each): each for each in _MESSAGES}
_OF_PATH = {
    "attempts/confirm-discards": ConfirmDiscards(job_id=_JOB, checkpoint_ids=(10, 11), attempt=_ATTEMPT),
    "maintenance/confirm-discards": ConfirmDiscards(job_id=_JOB, checkpoint_ids=(10, 11)),
    "maintenance/close-abandoned": {"job_id": _JOB},
    "maintenance/settle-run": {"job_id": _JOB},
}


def of_message(verb: Verb) -> dict[str, Any]:
    """Return the example of the message of a call."""
    return _example(_OF_PATH.get(verb.path) or _OF_MESSAGE[verb.message])


JOB_LIST = _example(
    JobList(
        jobs=(
            JobOverview(
                job_id=_JOB,
                name=_JOB_NAME,
                status=ListedStatus.RUNNING,
                seen_at=datetime(2026, 1, 1, 0, 5, tzinfo=UTC),
                operators=2,
                dag_ids=("nightly",),
                checkpoint_id=13,
                completed_at=datetime(2026, 1, 1, 0, 5, tzinfo=UTC),
                full_size_bytes=734_003_200,
                earlier_size_bytes=720_371_712,
                failed_at=datetime(2026, 1, 1, 0, 2, tzinfo=UTC),
                failure="attempt 1 was replaced or abandoned before it ended",
            ),
        ),
        counts={ListedStatus.RUNNING: 1, ListedStatus.FINISHED: 30},
        following=JobsPage().following(_JOB_NAME, _JOB_NAME),
    )
)
