"""
Gateway to a coordinator in the caller's process.

The stores are imported at the first use, so drivers that use the HTTP gateway do not need SQLAlchemy.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import TaskLiveness
from airflow_provider_statecheck.checkpoint.observer import CoordinatorObserver, observed_store
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.gateway.verbs import CheckpointCoordinatorGateway, retrying

_STORES = "airflow_provider_statecheck.metadata.sql_store"
_ENGINES = "airflow_provider_statecheck.metadata.unit_of_work"


def open_gateway(metadata: str) -> CheckpointCoordinatorGateway:
    """
    Open a coordinator on a separate database, and create missing tables.

    :param metadata: SQLAlchemy URL such as ``sqlite:///state.db``.
    """
    return gateway_on_engine(importlib.import_module(_ENGINES).open_engine(metadata))


def gateway_on_engine(
    engine: Any, liveness: TaskLiveness | None = None, observer: CoordinatorObserver | None = None
) -> CheckpointCoordinatorGateway:
    """
    Return a coordinator on a database that already has the tables.

    :param engine: SQLAlchemy engine.
    :param liveness: Liveness of the tasks of other attempts; unknown by default.
    :param observer: Observer of all committed changes.
    """
    store = cast("JobStore", importlib.import_module(_STORES).SqlJobStore(engine))
    observed = store if observer is None else observed_store(store, observer)
    return retrying(AttemptCoordinator(observed, liveness))
