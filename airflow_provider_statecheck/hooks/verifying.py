"""Verifying the retained checkpoints of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.hooks.collecting import OpenStorage, base_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_statecheck.checkpoint.ids import OperatorId
    from airflow_provider_statecheck.checkpoint.job_view import JobView
    from airflow_provider_statecheck.checkpoint.maintenance import MaintenanceGateway
    from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
    from airflow_provider_statecheck.spark.verify import CheckpointVerifier, Verification


def verify_job(
    gateway: MaintenanceGateway,
    view: JobView,
    open_storage: OpenStorage,
    *,
    checkpoint_id: int | None = None,
    is_deep: bool = False,
    with_savepoints: bool = False,
) -> Iterator[Verification]:
    """
    Verify the retained checkpoints of a job, oldest first.

    :param gateway: The rows.
    :param open_storage: Gives the storage of a checkpoint directory.
    :param checkpoint_id: Only this one.
    :param is_deep: Whether to read every page of every file too.
    :param with_savepoints: Whether to look at the job's savepoints too, which their owner may have moved or deleted.
    :raises CheckpointNotFoundError: if that one is not retained.
    :raises StorageError: if the storage does not answer; what was found before it has been given by then.
    """
    verifiers: dict[tuple[str, OperatorId], CheckpointVerifier] = {}
    for checkpoint in _wanted(view, checkpoint_id, with_savepoints=with_savepoints):
        kind = base_of(checkpoint), checkpoint.operator_id
        if kind not in verifiers:
            verifiers[kind] = _verifier(view, checkpoint, open_storage, is_deep=is_deep)
        verification = verifiers[kind].verify(checkpoint)
        # A stage that runs may have taken it away while it was read.
        if verification.is_restorable or _is_retained(gateway, checkpoint):
            yield verification


def _wanted(view: JobView, checkpoint_id: int | None, *, with_savepoints: bool) -> list[CheckpointRecord]:
    completed = [c for c in view.checkpoints if c.status is CheckpointStatus.COMPLETED]
    retained = [
        c for c in completed if (c.is_restorable or with_savepoints) and checkpoint_id in (None, c.checkpoint_id)
    ]
    if checkpoint_id is not None and not retained:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint_id} to be a retained one of job {view.job.name!r}, found none; "
            f"'airflow statecheck checkpoints' lists them.",
            checkpoint_id=checkpoint_id,
        )
    return retained


def _verifier(
    view: JobView, checkpoint: CheckpointRecord, open_storage: OpenStorage, *, is_deep: bool
) -> CheckpointVerifier:
    from airflow_provider_statecheck.spark.verify import CheckpointVerifier

    # It may name files in a savepoint that the operator claimed, or in an earlier checkpoint directory.
    storage = open_storage(base_of(checkpoint)).allowing(*view.directories_of(checkpoint.operator_id))
    return CheckpointVerifier(storage, is_deep=is_deep)


def _is_retained(gateway: MaintenanceGateway, checkpoint: CheckpointRecord) -> bool:
    row = gateway.checkpoint(checkpoint.job_id, checkpoint.checkpoint_id)
    return row is not None and row.status is CheckpointStatus.COMPLETED
