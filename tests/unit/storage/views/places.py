"""Who writes in the tests of the views, and short names for what they do."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

ATTEMPT = AttemptRef(job_id=job_id_of("sales"), operator_id=operator_id_of("totals"), epoch=3)
SHARED, EXCLUSIVE = CheckpointedStateScope.SHARED, CheckpointedStateScope.EXCLUSIVE


def make_access(storage: CheckpointStorage, *, inline_threshold: int = 0) -> FsCheckpointStorageAccess:
    writing = StateWriting(epoch=ATTEMPT.epoch, inline_threshold=inline_threshold)
    return FsCheckpointStorageAccess(storage, ATTEMPT, writing=writing)


def job_of(storage: CheckpointStorage) -> str:
    return f"{storage.base_uri}/{ATTEMPT.job_id}"


def files(storage: CheckpointStorage) -> set[str]:
    base = storage.base_uri
    return {f"{base}/{path}" for path in storage.list_files(base)}


def save(stream: Any, data: bytes) -> Any:
    stream.write(data)
    return stream.close_and_get_handle()
