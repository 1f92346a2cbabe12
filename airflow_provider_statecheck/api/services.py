"""Services behind the routes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial

from sqlalchemy.engine import Connection, Engine

from airflow_provider_statecheck.api.checked_rows import CheckedRows
from airflow_provider_statecheck.api.holders import Holders, TaskDirectory, UserDirectory, no_users
from airflow_provider_statecheck.api.state_reads import SERVE_ELSEWHERE, ServedJobs, storage_here
from airflow_provider_statecheck.api.tokens import TokenKeeper
from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.declared_uids import DagDirectory, UnknownDags
from airflow_provider_statecheck.checkpoint.fencing import TaskLiveness, UnknownLiveness
from airflow_provider_statecheck.checkpoint.records import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.configuration import StateServingSettings
from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.gateway.in_process import CoordinatorObserver, observed_store
from airflow_provider_statecheck.maintenance.actions import JobActions
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RunDirectory, UnknownRuns
from airflow_provider_statecheck.maintenance.job_restore import JobRestoring
from airflow_provider_statecheck.maintenance.recover import JobRecovery
from airflow_provider_statecheck.maintenance.rewind import JobRewinding
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.metadata.sql_store import JoinedSqlJobStore, SqlJobStore
from airflow_provider_statecheck.metadata.tables import TokenRecord
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore
from airflow_provider_statecheck.queryable.job_contents import JobContents
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle
from airflow_provider_statecheck.queryable.proxy import KvStateServer, StateProxy

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Services:
    """The coordinator and its tokens on one database."""

    engine: Callable[[], Engine]
    """Returns the database; called at the first use."""
    tasks: TaskDirectory
    """Lookup of tasks, for authentication."""
    _: KW_ONLY
    liveness: TaskLiveness = field(default_factory=UnknownLiveness)
    """Liveness of the tasks of other attempts."""
    dags: DagDirectory = field(default_factory=UnknownDags)
    """Lookup of the tasks of other Dags."""
    observer: CoordinatorObserver | None = None
    """Observer of all committed changes."""
    clock: Clock = field(default_factory=SystemClock)
    """Clock of the server."""
    runs: RunDirectory = field(default_factory=UnknownRuns)
    """Lookup of the ends of Dag runs."""
    maintenance_dags: Callable[[], frozenset[str]] = frozenset
    """Returns the ids of the Dags whose tasks may remove rows."""
    users: UserDirectory = no_users
    """Lookup of the users who obtained tokens."""
    reads_other_jobs: Callable[[], bool] = lambda: True
    """Returns whether a task may read jobs on which its Dag does not work."""
    open_storage: OpenStorage | None = None
    """Opens the storage of a checkpoint, for queryable state; without it, state is not served."""
    read_state_settings: Callable[[], StateServingSettings] = StateServingSettings
    """Returns the settings of queryable state."""

    @cached_property
    def coordinator(self) -> AttemptCoordinator:
        """The coordinator."""
        return AttemptCoordinator(self._store, self.liveness, self.dags)

    @cached_property
    def maintenance(self) -> JobMaintenance:
        """The maintenance of jobs."""
        return JobMaintenance(self._store, self.runs, SqlTokenStore(self.engine()), self.clock)

    @cached_property
    def savepoints(self) -> JobSavepoints:
        """The savepoints of jobs."""
        return JobSavepoints(self._store)

    @cached_property
    def aligned(self) -> AlignedCheckpoints:
        """The rows of coordinators of several operators."""
        return AlignedCheckpoints(self._store)

    @cached_property
    def recovery(self) -> JobRecovery:
        """The recovery of rows after a loss of the database."""
        return JobRecovery(self._store)

    @cached_property
    def rewinding(self) -> JobRewinding:
        """The rewinding of jobs."""
        return JobRewinding(self._store, self.liveness)

    @cached_property
    def restoring(self) -> JobRestoring:
        """The restore of jobs in place."""
        return JobRestoring(self._store, self.liveness)

    @cached_property
    def actions(self) -> JobActions:
        """The actions of users on the state of jobs."""
        return JobActions(self._store, self.savepoints, self.rewinding)

    def actions_in(self, connection: Connection) -> JobActions:
        """Return the actions in an open transaction, which the caller commits or rolls back."""
        store = JoinedSqlJobStore(connection, self.clock)
        return JobActions(store, JobSavepoints(store), JobRewinding(store, self.liveness))

    @cached_property
    def tokens(self) -> TokenKeeper:
        """The keeper of the tokens."""
        return TokenKeeper(SqlTokenStore(self.engine()), self.clock)

    @cached_property
    def holders(self) -> Holders:
        """What the holders of the tokens may do now."""
        return Holders(
            rows=lambda: self.rows,
            tasks=self.tasks,
            users=self.users,
            maintenance_dags=self.maintenance_dags,
            reads_other_jobs=self.reads_other_jobs,
        )

    def valid_token(self, text: str) -> TokenRecord:
        """
        Return the record of a token whose holder may still use it; raises as ``TokenKeeper.check``.

        :raises AccessDeniedError: as ``Holders.require_valid``.
        """
        token = self.tokens.check(text)
        self.holders.require_valid(token)
        return token

    @cached_property
    def state_settings(self) -> StateServingSettings:
        """The settings of queryable state."""
        return self.read_state_settings()

    @cached_property
    def state_rows(self) -> CheckedRows:
        """The rows of jobs for :attr:`state_proxy`."""
        return CheckedRows(self.rows)

    @property
    def state_proxy(self) -> StateProxy:
        """
        The proxy of queryable state. A version check of :attr:`state_rows` precedes each read.

        :raises EnvironmentNotReadyError: if this server does not serve state.
        """
        self._require_served_state()
        return self._proxy

    @property
    def job_contents(self) -> JobContents:
        """
        The reads of the contents of checkpoints.

        :raises EnvironmentNotReadyError: if this server does not serve state.
        """
        self._require_served_state()
        return JobContents(self.rows, self._opened)

    @cached_property
    def _proxy(self) -> StateProxy:
        oracle_of = partial(CheckpointLocationOracle, rows=self.state_rows, open_storage=self._opened)
        return StateProxy(KvStateServer(self._opened), oracle_of)

    @cached_property
    def _opened(self) -> OpenStorage:
        assert self.open_storage is not None  # noqa: S101 - the callers have checked it
        return storage_here(self.open_storage, "[statecheck] storage_conn_id")

    def _require_served_state(self) -> None:
        if not self._serves_state:
            raise EnvironmentNotReadyError(
                f"Expected a server of queryable state, found an api-server on which it is off; {SERVE_ELSEWHERE}"
            )

    @property
    def _serves_state(self) -> bool:
        return self.open_storage is not None and self.state_settings.serve_state

    @cached_property
    def _store(self) -> JobStore:
        return observed_store(self.rows, *self._observers())

    def _observers(self) -> Iterator[CoordinatorObserver]:
        if self.observer is not None:
            yield self.observer
        if self._observes_for_state():
            yield ServedJobs(self.state_rows, self._proxy)

    def _observes_for_state(self) -> bool:
        try:
            return self._serves_state
        except InvalidConfigurationError as error:
            # Checkpoints do not depend on queryable state, whose routes reply with this error.
            log.error("Queryable state is off: %s", error)  # noqa: TRY400 - the text says what to correct
            return False

    @cached_property
    def rows(self) -> SqlJobStore:
        """The store of the rows of jobs."""
        return SqlJobStore(self.engine(), self.clock)
