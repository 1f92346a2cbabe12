"""Attempts outside Airflow: a notebook or a script with its own metadata database."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.ids import TEST_NAMESPACE, is_test_job, new_key, uids_before
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import SCRIPT_PREFIX, AttemptOwner, OnClear
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.gateway.time_travel import find_fork_source, fork_name
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_files import INLINE_STATE_BYTES
from airflow_provider_statecheck.spark.driver.readiness import make_ready
from airflow_provider_statecheck.spark.driver.session import give_workers_this_python
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import find_source
from airflow_provider_statecheck.storage.uris import parse_locations, require_known_filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_attempt(
    spark: SparkSession,
    *,
    job: str,
    checkpoint_dir: str,
    metadata: str,
    uid: str,
    run: str,
    on_clear: OnClear,
    num_retained: int,
    storage_options: dict[str, Any],
    from_savepoint: str | None,
    claim_mode: RestoreMode,
    renamed_uids: Mapping[str, str],
    allow_non_restored_state: bool,
    checkpoint_timeout_seconds: float = 600.0,
    tolerable_failed_checkpoints: int = -1,
    savepoint_dir: str | None = None,
    retained_runs: int = 1,
    from_checkpoint: str | None = None,
    fork: str | None = None,
    allowed_locations: Sequence[str] | str = (),
    data_inline_threshold: int = INLINE_STATE_BYTES,
) -> StageAttempt:
    """Register an attempt of a script; for the arguments see :meth:`StageContext.open` and :func:`run_stage`."""
    if is_test_job(job):
        raise InvalidConfigurationError(
            f"Expected a job name without the prefix {TEST_NAMESPACE!r}, which is reserved for test runs, found {job!r}; "
            f"choose another name."
        )
    _require_one_source(from_savepoint, from_checkpoint, fork)
    storage = CheckpointStorage.open(checkpoint_dir, **storage_options)
    if savepoint_dir is not None:
        require_known_filesystem(savepoint_dir)
    storage = storage.allowing(savepoint_dir, locations=parse_locations(allowed_locations))
    give_workers_this_python(spark)
    make_ready(spark, storage)
    gateway = open_gateway(metadata)
    source = None
    if from_savepoint is not None:
        source = find_source(
            storage,
            from_savepoint,
            uid=uid,
            mode=claim_mode,
            renamed_uids=renamed_uids,
            allow_non_restored_state=allow_non_restored_state,
        )
    if from_checkpoint is not None:
        source = find_fork_source(
            gateway,
            storage,
            job,
            from_checkpoint,
            uid=uid,
            renamed_uids=renamed_uids,
            allow_non_restored_state=allow_non_restored_state,
        )
    registration = RegisterAttempt(
        job_name=job if from_checkpoint is None else fork_name(job, fork or run),
        uid=uid,
        attempt_key=new_key(),
        owner=_owner(job, run),
        storage_base=storage.base_uri,
        on_clear=on_clear,
        num_retained=num_retained,
        retained_runs=retained_runs,
        checkpoint_timeout_seconds=checkpoint_timeout_seconds,
        restore_from=source,
        former_uids=uids_before(uid, renamed_uids),
        allow_non_restored_state=allow_non_restored_state,
    )
    return StageAttempt(
        gateway,
        storage,
        registration,
        tolerable_failed_checkpoints=tolerable_failed_checkpoints,
        savepoint_dir=savepoint_dir,
        data_inline_threshold=data_inline_threshold,
    )


def _require_one_source(from_savepoint: str | None, from_checkpoint: str | None, fork: str | None) -> None:
    if from_checkpoint is not None and from_savepoint is not None:
        raise InvalidConfigurationError("Expected from_checkpoint or from_savepoint, found both; leave one out.")
    if fork is not None and from_checkpoint is None:
        raise InvalidConfigurationError(
            f"Expected from_checkpoint with fork={fork!r}, found none; name the checkpoint that the fork starts from."
        )


def _owner(job: str, run: str) -> AttemptOwner:
    # Each start counts as a clear: starting a script again is what clearing a task is in Airflow.
    return AttemptOwner(
        logical_task=f"{SCRIPT_PREFIX}{job}",
        run_key=run,
        run_id=run,
        clear_marker=new_key(),
        label=f"process {os.getpid()} on {platform.node()}",
    )
