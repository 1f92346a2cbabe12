"""What the routes work with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.tasks import TaskDirectory
from airflow_provider_statecheck.api.tokens import TokenKeeper
from airflow_provider_statecheck.checkpoint.attempt_coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.liveness import TaskLiveness, UnknownLiveness
from airflow_provider_statecheck.checkpoint.maintenance import JobMaintenance, RunDirectory, UnknownRuns
from airflow_provider_statecheck.checkpoint.observer import CoordinatorObserver, ObservedJobStore
from airflow_provider_statecheck.checkpoint.recovery import JobRecovery
from airflow_provider_statecheck.checkpoint.rewinding import JobRewinding
from airflow_provider_statecheck.checkpoint.savepoints import JobSavepoints
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore


class Services:
    """
    The coordinator and its tokens on one database, opened at the first use.

    :param engine: Gives the database.
    :param tasks: Who knows which task asks.
    :param liveness: Who knows whether another task still runs.
    :param observer: Who is told of every change.
    :param clock: Where time comes from.
    :param runs: Who knows whether a Dag run is over.
    :param maintenance_dags: Gives the ids of the Dags whose tasks may remove rows.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        tasks: TaskDirectory,
        *,
        liveness: TaskLiveness | None = None,
        observer: CoordinatorObserver | None = None,
        clock: Clock | None = None,
        runs: RunDirectory | None = None,
        maintenance_dags: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._engine = engine
        self.tasks = tasks
        self.maintenance_dags = maintenance_dags
        self._liveness = liveness or UnknownLiveness()
        self._observer = observer
        self._clock = clock or SystemClock()
        self._runs = runs or UnknownRuns()

    @cached_property
    def coordinator(self) -> AttemptCoordinator:
        """Return the coordinator."""
        return AttemptCoordinator(self._store, self._liveness)

    @cached_property
    def maintenance(self) -> JobMaintenance:
        """Return what may be done to jobs that no attempt works on."""
        return JobMaintenance(self._store, self._runs, SqlTokenStore(self._engine()), self._clock)

    @cached_property
    def savepoints(self) -> JobSavepoints:
        """Return what takes savepoints of operators from outside."""
        return JobSavepoints(self._store)

    @cached_property
    def recovery(self) -> JobRecovery:
        """Return what makes rows anew after the database was lost."""
        return JobRecovery(self._store)

    @cached_property
    def rewinding(self) -> JobRewinding:
        """Return what takes the state of jobs back to where it stood before a run."""
        return JobRewinding(self._store, self._liveness)

    @cached_property
    def tokens(self) -> TokenKeeper:
        """Return the keeper of the tokens."""
        return TokenKeeper(SqlTokenStore(self._engine()), self._clock)

    @cached_property
    def _store(self) -> JobStore:
        store: JobStore = SqlJobStore(self._engine(), self._clock)
        return store if self._observer is None else ObservedJobStore(store, self._observer)
