"""Coordinators of several operators, made from rows, a storage and a configuration."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedStorage
from airflow_provider_statecheck.checkpoint.aligned.steps import DEFAULT_LEASE
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import (
    UNLIMITED_TOLERABLE_FAILURES,
    CheckpointFailureManager,
    FailJobCallback,
)
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, Clock, SystemClock
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.flink.completed_store import CompletedCheckpointStore
from airflow_provider_statecheck.flink.components import CheckpointStatsTracker
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.flink.participants import OperatorCoordinatorContext
from airflow_provider_statecheck.flink.plan import ExecutionTask
from airflow_provider_statecheck.flink.requests import Pause
from airflow_provider_statecheck.flink.state_handles import CheckpointIDCounter, StateHandleStore
from airflow_provider_statecheck.flink.timer import CheckpointTimer
from airflow_provider_statecheck.gateway.leadership import leading
from airflow_provider_statecheck.storage.aligned_files import AlignedFiles
from airflow_provider_statecheck.storage.discarding import EffectDiscards, StorageDiscarder
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import DocumentCache
from airflow_provider_statecheck.storage.uris import normalise_base, redact
from airflow_provider_statecheck.storage.views.checkpoint_storages import DEFAULT_STORAGE

log = logging.getLogger(__name__)

SETTINGS = (
    "checkpoint_storage",
    "checkpoint_dir",
    "checkpoint_interval",
    "timeout",
    "min_pause_between_checkpoints",
    "max_concurrent_checkpoints",
    "externalized_checkpoint_retention",
    "checkpoints_after_tasks_finish",
    "cleaner_parallel_mode",
    "num_retained",
    "tolerable_failed_checkpoints",
    "savepoint_dir",
)
"""The settings of a configuration that a coordinator of several operators uses."""


def new_coordinator(
    rows: AlignedCheckpoints,
    storage: CheckpointStorage,
    config: CheckpointConfig,
    leader: AttemptRef,
    *,
    job_name: str,
    tasks: Sequence[ExecutionTask],
    callback: FailJobCallback,
    fail_task: Callable[[ExecutionTask, Exception], None],
    executor: Executor,
    tasks_to_trigger: Sequence[ExecutionTask] | None = None,
    tasks_to_wait_for: Sequence[ExecutionTask] | None = None,
    operator_coordinators: Sequence[OperatorCoordinatorContext] = (),
    checkpoint_storage: AlignedStorage | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
    pause: Pause = time.sleep,
    lease: timedelta = DEFAULT_LEASE,
    timer: CheckpointTimer | None = None,
) -> CheckpointCoordinator:
    """
    Return a coordinator of several operators, with its stores, its failure manager and its deleter.

    :param rows: The rows of the job: in process, such as ``AlignedCheckpoints`` on a ``SqlJobStore``, or over HTTP.
    :param config: The settings, of which only :data:`SETTINGS` may be assigned.
    :param leader: The leader, from ``rows.lead``.
    :param tasks: The tasks of the operators, which are notified of the end of a checkpoint.
    :param callback: The callback that fails the job after too many failed checkpoints.
    :param fail_task: The callback that fails a task after an error on a completion.
    :param executor: The executor that notifies tasks and deletes files.
    :param tasks_to_trigger: The tasks to trigger, by default all.
    :param tasks_to_wait_for: The tasks that must acknowledge, by default all.
    :param checkpoint_storage: The storage of manifests and metadata, by default that of the settings, or files on
        ``storage``.
    :param clock: The clock of periodic checkpoints, by default the system clock.
    :param random: The source of the delay before the first periodic checkpoint.
    :param pause: The function with which futures wait between two reads of the rows.
    :param lease: The time after which another coordinator may take over a finalization.
    :param timer: The timer of periodic checkpoints, by default none.
    :raises InvalidConfigurationError: as :class:`CheckpointCoordinator`, and for other settings.
    """
    config.require_only(SETTINGS, "a coordinator of several operators")
    _require_same_directory(config, storage)
    job_id = job_id_of(job_name)
    # The completed store also reads savepoints, which are stored outside of the checkpoint directory.
    storage = storage if config.savepoint_dir is None else storage.allowing(normalise_base(config.savepoint_dir))
    documents = DocumentCache(lambda _: storage)
    files = checkpoint_storage or _storage_of(config)
    files = files or AlignedFiles(storage, job_id, job_name, config.savepoint_dir, documents=documents)
    return CheckpointCoordinator(
        job_id,
        config,
        tasks if tasks_to_trigger is None else tasks_to_trigger,
        tasks if tasks_to_wait_for is None else tasks_to_wait_for,
        tasks,
        EffectDiscards(storage, documents),
        CheckpointIDCounter(rows, leader),
        CompletedCheckpointStore(StateHandleStore(rows, leader, files), config.num_retained),
        files,
        executor,
        _failure_manager(rows, config, leader, callback),
        rows=rows,
        leader=leader,
        discarder=StorageDiscarder(storage, job_id, partial(rows.owns, leader)),
        fail_task=fail_task,
        clock=clock or SystemClock(),
        random=random or Random(),  # noqa: S311 - it only delays
        operator_coordinators=operator_coordinators,
        pause=pause,
        lease=lease,
        timer=timer,
    )


@contextmanager
def leading_coordinator(
    rows: AlignedCheckpoints,
    storage: CheckpointStorage,
    config: CheckpointConfig,
    *,
    job_name: str,
    owner: AttemptOwner,
    **arguments: Any,
) -> Iterator[CheckpointCoordinator]:
    """
    Lead the aligned checkpoints of a job with a coordinator, in a block after which no leader is registered.

    The block outlives the periodic checkpoints, so the coordinator has a timer.

    :param owner: The owner of the leadership.
    :param arguments: Arguments of :func:`new_coordinator`.
    """
    with leading(rows, storage, job_name=job_name, owner=owner) as leader, ThreadPoolExecutor(1) as executor:
        timer = CheckpointTimer()
        yield new_coordinator(
            rows, storage, config, leader, job_name=job_name, executor=executor, timer=timer, **arguments
        )


def _require_same_directory(config: CheckpointConfig, storage: CheckpointStorage) -> None:
    given = config.storage_dir
    if given is not None and normalise_base(given) != normalise_base(storage.base_uri):
        raise InvalidConfigurationError(
            f"Expected the directory of checkpoints in the settings to be that of the given storage, "
            f"{redact(storage.base_uri)}, found {redact(given)}; correct one of them.",
            key=CheckpointConfig.checkpoint_dir.key,
        )


def _storage_of(config: CheckpointConfig) -> AlignedStorage | None:
    storage = config.checkpoint_storage
    if storage is None or storage == config.storage_dir:
        return None
    if isinstance(storage, str) and storage.lower() == DEFAULT_STORAGE:
        return None
    if isinstance(storage, AlignedStorage) and not isinstance(storage, type):
        return storage
    raise InvalidConfigurationError(
        f"Expected checkpoint_storage to be {DEFAULT_STORAGE!r}, the URI of a directory, or an AlignedStorage, found "
        f"{storage!r}; correct the setting.",
        key=CheckpointConfig.checkpoint_storage.key,
    )


def _failure_manager(
    rows: AlignedCheckpoints, config: CheckpointConfig, leader: AttemptRef, callback: FailJobCallback
) -> CheckpointFailureManager:
    tolerable = config.tolerable_failed_checkpoints
    tracker = CheckpointStatsTracker(rows, leader)
    return CheckpointFailureManager(UNLIMITED_TOLERABLE_FAILURES if tolerable is None else tolerable, callback, tracker)
