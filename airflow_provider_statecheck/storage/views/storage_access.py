"""Checkpoint storage of one job, for the coordinator and the tasks."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.storage.views.coordinator_view import CheckpointStorageCoordinatorView
from airflow_provider_statecheck.storage.views.worker_view import CheckpointStorageWorkerView


class CheckpointStorageAccess(CheckpointStorageCoordinatorView, CheckpointStorageWorkerView, Protocol):
    """Both views in one."""
