"""Savepoints of a whole job for tests, written from ordinary checkpoints of its stages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AwaitedTask,
    BeginCheckpoint,
)
from airflow_provider_statecheck.checkpoint.ids import (
    ALIGNED_OPERATOR_ID,
    ALIGNED_UID,
    METADATA_FILE,
    JobId,
    OperatorId,
    new_key,
    new_savepoint_uri,
    operator_id_of,
)
from airflow_provider_statecheck.checkpoint.messages import EndSavepoint, RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, OperatorRecord
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    InlineStateHandle,
    decode_metadata,
    encode_metadata,
    load_document,
)
from airflow_provider_statecheck.storage.pointers import StateCopies
from tests.messages import make_leadership

SAVEPOINT_ID = 90


def save_job(
    storage: CheckpointStorage, checkpoints: Sequence[CheckpointRecord], target: str, empty: Sequence[str] = ()
) -> str:
    """
    Write a savepoint of the whole job with copies of checkpoints, and return its pointer.

    :param empty: Uids of stages that have started and ended without a checkpoint.
    """
    documents = [replace(load_document(storage, each), run=each.run_key) for each in checkpoints]
    return save_documents(storage, documents, target, empty)


def save_documents(
    storage: CheckpointStorage, documents: Sequence[CheckpointDocument], target: str, empty: Sequence[str] = ()
) -> str:
    """Write a savepoint of the whole job with copies of checkpoints, and return its pointer."""
    directory = new_savepoint_uri(target, JobId(documents[0].job_id))
    storage = storage.allowing(directory)
    copies = StateCopies(storage, directory, 1)
    document = job_document([copies.of_document(each) for each in documents], empty)
    uri = f"{directory}/{METADATA_FILE}"
    storage.write_bytes(uri, encode_metadata(document, uri=uri))
    return directory


def add_row(store: JobStore, storage: CheckpointStorage, pointer: str) -> CheckpointRecord:
    """Add the row of a savepoint of the whole job, which is completed now."""
    uri = f"{pointer}/{METADATA_FILE}"
    data = storage.allowing(pointer).read_bytes(uri)
    document = decode_metadata(data, uri=uri)
    with store.transaction(JobId(document.job_id)) as tx:
        tx.save_operator(
            OperatorRecord(
                job_id=tx.job.job_id, operator_id=ALIGNED_OPERATOR_ID, uid=ALIGNED_UID, epoch=1, generation=1
            )
        )
        while tx.job.next_checkpoint_id <= document.checkpoint_id:
            tx.draw_checkpoint_id()
        row = CheckpointRecord(
            job_id=tx.job.job_id,
            checkpoint_id=document.checkpoint_id,
            operator_id=ALIGNED_OPERATOR_ID,
            epoch=1,
            generation=1,
            status=CheckpointStatus.COMPLETED,
            request_key=document.request_key,
            location=pointer,
            triggered_at=tx.now,
            expires_at=tx.now,
            completed_at=tx.now,
            properties=document.properties,
            metadata_uri=uri,
            metadata_size=len(data),
            metadata_sha256=hashlib.sha256(data).hexdigest(),
        )
        tx.add_checkpoint(row)
    return row


def job_document(members: Sequence[CheckpointDocument], empty: Sequence[str] = ()) -> CheckpointDocument:
    """Return the metadata of a savepoint of the whole job."""
    uids = (*(member.uid for member in members), *empty)
    return CheckpointDocument(
        job_id=members[0].job_id,
        job_name=members[0].job_name,
        operator_id=ALIGNED_OPERATOR_ID,
        uid=ALIGNED_UID,
        checkpoint_id=SAVEPOINT_ID,
        epoch=1,
        generation=1,
        snapshots=(),
        state=InlineStateHandle(value={}),
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        request_key="of the savepoint",
        properties=CheckpointProperties.for_savepoint(),
        operator_states=tuple(
            OperatorState(operator_id=operator_id_of(uid), uid=uid, parallelism=1, max_parallelism=1) for uid in uids
        ),
        members=tuple(members),
    )


def copy_checkpoint(
    store: JobStore, job_id: JobId, operator_id: OperatorId, request_key: str | None = None
) -> CheckpointRecord:
    """Take a savepoint of an operator that does not run below ``memory://mine``; request it, unless a key is given."""
    savepoints, key = JobSavepoints(store), request_key or new_key()
    if request_key is None:
        savepoints.request(RequestSavepoint(job_id=job_id, operator_id=operator_id, request_key=key))
    begun = savepoints.begin(job_id=job_id, request_key=key, savepoint_dir="memory://mine", trigger_key=new_key())
    return savepoints.end(
        EndSavepoint(job_id=job_id, checkpoint_id=begun.checkpoint_id, metadata_uri=f"{begun.location}/_metadata")
    )


def begin_savepoint(
    rows: AlignedCheckpoints,
    operator_id: OperatorId,
    job_name: str = "sales",
    properties: CheckpointProperties | None = None,
) -> CheckpointRecord:
    """Begin a savepoint of a whole job that awaits one operator."""
    key = new_key()
    leader = rows.lead(make_leadership(job_name=job_name))
    decider = CheckpointRequestDecider(max_concurrent=1, min_pause_seconds=0)
    properties = properties or CheckpointProperties.for_savepoint(force=False)
    rows.enqueue(leader, decider, key, properties)
    begun = rows.begin(
        BeginCheckpoint(
            leader=leader,
            decider=decider,
            request_key=key,
            coordinator=new_key(),
            awaited=(AwaitedTask(operator_id=operator_id, attempt_id="aggregate/1/1/ended"),),
            timeout_seconds=60,
            savepoint_dir="memory://savepoints",
        )
    )
    assert begun is not None
    return begun
