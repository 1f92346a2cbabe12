"""What a checkpointed task needs before anything is started: where its bytes go and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import (
    ConcurrentAttemptError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    InvalidPointerError,
    LocationNotAllowedError,
    NoRestorableCheckpointError,
    PointerNotFoundError,
    RunSupersededError,
    SnapshotClaimedError,
    SourceChangedError,
    StateMigrationError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.operators.identity import job_name_of, owner_of, uid_of
from airflow_provider_statecheck.operators.links import push_link
from airflow_provider_statecheck.operators.siblings import former_uids, uids_by_task

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.claims import RestoreMode
    from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt, RestoreSource
    from airflow_provider_statecheck.checkpoint.records import OnOverlap
    from airflow_provider_statecheck.configuration import StatecheckSettings
    from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
    from airflow_provider_statecheck.spark.driver.settings import DriverSettings
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

_MILLISECOND = timedelta(milliseconds=1)
A_RETRY_CANNOT_HELP = (
    InvalidConfigurationError,
    LocationNotAllowedError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    InvalidPointerError,
    PointerNotFoundError,
    NoRestorableCheckpointError,
    ConcurrentAttemptError,
    RunSupersededError,
    SnapshotClaimedError,
    SourceChangedError,
    StateMigrationError,
    StoppedWithSavepointError,
)


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """What a try needs to register."""

    storage: CheckpointStorage
    registration: RegisterAttempt
    driver: DriverSettings
    on_overlap: OnOverlap


def prepare_stage(task: CheckpointedOperator, context: Mapping[str, Any]) -> PreparedStage:
    """
    Work out where the bytes go and who asks, and make the link to the job's page work.

    :raises InvalidConfigurationError: for a setting out of range, a mapped task without a key, or a fork of no job.
    """
    from airflow_provider_statecheck.configuration import StatecheckSettings
    from airflow_provider_statecheck.hooks.storage import open_storage

    settings = StatecheckSettings.from_airflow(
        checkpoint_dir=task.checkpoint_dir,
        storage_conn_id=task.storage_conn_id,
        num_retained=task.num_retained,
        retained_runs=task.retained_runs,
        checkpoint_timeout_seconds=task.checkpoint_timeout_seconds,
        tolerable_failed_checkpoints=task.tolerable_failed_checkpoints,
        overhead_budget=task.overhead_budget,
        checkpoint_interval=task.checkpoint_interval,
        min_pause=task.min_pause,
        externalized_checkpoint_retention=task.externalized_checkpoint_retention,
        savepoint_dir=task.savepoint_dir,
        data_inline_threshold=task.data_inline_threshold,
        allowed_locations=task.allowed_locations,
        on_clear=task.on_clear,
        on_overlap=task.on_overlap,
    )
    storage = open_storage(settings.checkpoint_dir, settings.storage_conn_id)
    storage = storage.allowing(settings.savepoint_dir, locations=settings.allowed_locations)
    registration = _begun_elsewhere(task, storage, _registration(task, context, settings, storage.base_uri))
    push_link(task, context, registration.job_name)
    driver = _driver_settings(task, context, settings, storage)
    return PreparedStage(storage, registration, driver, settings.on_overlap)


def _begun_elsewhere(
    task: CheckpointedOperator, storage: CheckpointStorage, registration: RegisterAttempt
) -> RegisterAttempt:
    mode = _claim_mode(task.claim_mode)
    if task.from_checkpoint:
        return _fork(task, task.from_checkpoint, storage, registration)
    if task.fork:
        raise InvalidConfigurationError(
            f"Expected from_checkpoint with fork={task.fork!r}, found none; say where it begins."
        )
    if not task.from_savepoint:
        return registration
    return replace(registration, restore_from=_savepoint(task, task.from_savepoint, storage, registration.uid, mode))


def _savepoint(
    task: CheckpointedOperator, pointer: str, storage: CheckpointStorage, uid: str, mode: RestoreMode
) -> RestoreSource | None:
    from airflow_provider_statecheck.storage.restore_sources import find_source

    return find_source(
        storage,
        pointer,
        uid=uid,
        mode=mode,
        renamed_uids=task.renamed_uids or {},
        allow_non_restored_state=task.allow_non_restored_state,
    )


def _fork(
    task: CheckpointedOperator, begins_at: str, storage: CheckpointStorage, registration: RegisterAttempt
) -> RegisterAttempt:
    from airflow_provider_statecheck.hooks.transport import airflow_gateway
    from airflow_provider_statecheck.spark.fork_point import find_fork_source, fork_name

    if not task.job or task.from_savepoint:
        raise InvalidConfigurationError(
            "Expected from_checkpoint with job=, whose checkpoint it is, and without from_savepoint, found "
            f"{'both' if task.job else 'no job'}."
        )
    source = find_fork_source(
        airflow_gateway(),
        storage,
        registration.job_name,
        begins_at,
        uid=registration.uid,
        renamed_uids=task.renamed_uids or {},
        allow_non_restored_state=task.allow_non_restored_state,
    )
    name = fork_name(registration.job_name, task.fork or registration.owner.run_key)
    return replace(registration, job_name=name, restore_from=source)


def _claim_mode(given: str) -> RestoreMode:
    from airflow_provider_statecheck.checkpoint.claims import RestoreMode

    try:
        return RestoreMode(given.lower())
    except ValueError as error:
        modes = ", ".join(mode.value for mode in RestoreMode)
        raise InvalidConfigurationError(f"Expected claim_mode to be one of {modes}, found {given!r}.") from error


def _driver_settings(
    task: CheckpointedOperator, context: Mapping[str, Any], settings: StatecheckSettings, storage: CheckpointStorage
) -> DriverSettings:
    from airflow_provider_statecheck.spark.driver.settings import DriverSettings

    return DriverSettings(
        tolerable_failed_checkpoints=settings.tolerable_failed_checkpoints,
        overhead_budget=settings.overhead_budget,
        checkpoint_interval=_interval_text(settings.checkpoint_interval),
        min_pause_ms=settings.min_pause // _MILLISECOND,
        data_inline_threshold=settings.data_inline_threshold,
        savepoint_dir=settings.savepoint_dir,
        allowed_locations=settings.allowed_locations,
        state_config=settings.state_config,
        storage_options=dict(storage.options),
        logical_date=context["dag_run"].logical_date,
        parallelism=getattr(task, "parallelism", None),
        renamed_uids=dict(task.renamed_uids or {}),
        allow_non_restored_state=task.allow_non_restored_state,
    )


def _interval_text(interval: timedelta | str | None) -> str | None:
    return str(interval // _MILLISECOND) if isinstance(interval, timedelta) else interval


def _registration(
    task: CheckpointedOperator, context: Mapping[str, Any], settings: StatecheckSettings, storage_base: str
) -> RegisterAttempt:
    from airflow_provider_statecheck.checkpoint.ids import new_key
    from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
    from airflow_provider_statecheck.hooks.transport import is_orm_open

    dag = task.get_dag()
    return RegisterAttempt(
        job_name=job_name_of(context, task.job, is_test=is_orm_open()),
        uid=uid_of(context, task.uid, task.map_key),
        attempt_key=new_key(),
        owner=owner_of(context, task.map_key),
        storage_base=storage_base,
        on_clear=settings.on_clear,
        num_retained=settings.num_retained,
        retained_runs=settings.retained_runs,
        checkpoint_timeout_seconds=settings.checkpoint_timeout_seconds,
        retention=settings.externalized_checkpoint_retention.retention_policy,
        former_uids=former_uids(task.uid or task.task_id, task.renamed_uids or {}, task.map_key),
        dag_uids=uids_by_task([task] if dag is None else dag.tasks),
        allow_non_restored_state=task.allow_non_restored_state,
    )
