"""What a checkpointed task needs before anything is started: where its bytes go and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import (
    ConcurrentAttemptError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
)
from airflow_provider_statecheck.operators.identity import job_name_of, owner_of, uid_of
from airflow_provider_statecheck.operators.links import push_link

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
    from airflow_provider_statecheck.configuration import StatecheckSettings
    from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
    from airflow_provider_statecheck.spark.driver.settings import DriverSettings
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

A_RETRY_CANNOT_HELP = (
    InvalidConfigurationError,
    EnvironmentNotReadyError,
    NoRestorableCheckpointError,
    ConcurrentAttemptError,
)


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """What a try needs to register."""

    storage: CheckpointStorage
    registration: RegisterAttempt
    driver: DriverSettings


def prepare_stage(task: CheckpointedOperator, context: Mapping[str, Any]) -> PreparedStage:
    """
    Work out where the bytes go and who asks, and make the link to the job's page work.

    :raises InvalidConfigurationError: for a setting out of range, or a mapped task without a key.
    """
    from airflow_provider_statecheck.configuration import StatecheckSettings
    from airflow_provider_statecheck.hooks.storage import open_storage

    settings = StatecheckSettings.from_airflow(
        checkpoint_dir=task.checkpoint_dir,
        storage_conn_id=task.storage_conn_id,
        num_retained=task.num_retained,
        checkpoint_timeout_seconds=task.checkpoint_timeout_seconds,
        tolerable_failed_checkpoints=task.tolerable_failed_checkpoints,
        overhead_budget=task.overhead_budget,
        on_clear=task.on_clear,
    )
    storage = open_storage(settings.checkpoint_dir, settings.storage_conn_id)
    registration = _registration(task, context, settings, storage.base_uri)
    push_link(task, context, registration.job_name)
    return PreparedStage(storage, registration, _driver_settings(settings, storage))


def _driver_settings(settings: StatecheckSettings, storage: CheckpointStorage) -> DriverSettings:
    from airflow_provider_statecheck.spark.driver.settings import DriverSettings

    return DriverSettings(
        tolerable_failed_checkpoints=settings.tolerable_failed_checkpoints,
        overhead_budget=settings.overhead_budget,
        storage_options=dict(storage.options),
    )


def _registration(
    task: CheckpointedOperator, context: Mapping[str, Any], settings: StatecheckSettings, storage_base: str
) -> RegisterAttempt:
    from airflow_provider_statecheck.checkpoint.ids import new_key
    from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
    from airflow_provider_statecheck.hooks.transport import is_orm_open

    return RegisterAttempt(
        job_name=job_name_of(context, task.job, is_test=is_orm_open()),
        uid=uid_of(context, task.uid, task.map_key),
        attempt_key=new_key(),
        owner=owner_of(context, task.map_key),
        storage_base=storage_base,
        on_clear=settings.on_clear,
        num_retained=settings.num_retained,
        checkpoint_timeout_seconds=settings.checkpoint_timeout_seconds,
    )
