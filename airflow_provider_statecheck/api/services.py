"""What the routes work with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.tasks import TaskDirectory
from airflow_provider_statecheck.api.tokens import TokenKeeper
from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.checkpoint.liveness import TaskLiveness
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore


class Services:
    """
    The coordinator and its tokens on one database, opened at the first use.

    :param engine: Gives the database.
    :param tasks: Who knows which task asks.
    :param liveness: Who knows whether another task still runs.
    :param clock: Where time comes from.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        tasks: TaskDirectory,
        *,
        liveness: TaskLiveness | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self.tasks = tasks
        self._liveness = liveness
        self._clock = clock or SystemClock()

    @cached_property
    def coordinator(self) -> CheckpointCoordinator:
        """Return the coordinator."""
        return CheckpointCoordinator(SqlJobStore(self._engine(), self._clock), self._liveness)

    @cached_property
    def tokens(self) -> TokenKeeper:
        """Return the keeper of the tokens."""
        return TokenKeeper(SqlTokenStore(self._engine()), self._clock)
