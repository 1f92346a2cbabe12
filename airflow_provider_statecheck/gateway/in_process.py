"""
The coordinator in the caller's own process.

The stores are named by dotted path and loaded when they are asked for, so that a Spark cluster, which reaches its
coordinator in another way, needs no SQLAlchemy.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import TaskLiveness
from airflow_provider_statecheck.checkpoint.observer import CoordinatorObserver, ObservedJobStore
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.gateway.retrying import RetryingGateway

_STORES = "airflow_provider_statecheck.metadata.sql_store"
_ENGINES = "airflow_provider_statecheck.metadata.database"


def open_gateway(metadata: str) -> RetryingGateway:
    """
    Reach a coordinator whose rows are in a database of one's own; its tables are made where missing.

    :param metadata: A SQLAlchemy URL such as ``sqlite:///state.db``.
    """
    return gateway_on_engine(importlib.import_module(_ENGINES).open_engine(metadata))


def gateway_on_engine(
    engine: Any, liveness: TaskLiveness | None = None, observer: CoordinatorObserver | None = None
) -> RetryingGateway:
    """
    Reach a coordinator whose rows are in a database that already has the tables.

    :param engine: A SQLAlchemy engine.
    :param liveness: Who knows whether another task still runs.
    :param observer: Who is told of every change.
    """
    store = cast("JobStore", importlib.import_module(_STORES).SqlJobStore(engine))
    observed = store if observer is None else ObservedJobStore(store, observer)
    return RetryingGateway(AttemptCoordinator(observed, liveness))
