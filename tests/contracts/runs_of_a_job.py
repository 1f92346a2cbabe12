"""Runs of a job with a name of its own, as suites of its contract let them work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.declared_uids import DagTasks
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobStore, JobView
from airflow_provider_statecheck.gateway.verbs import StageGateway as Gateway
from tests.messages import complete_checkpoint, make_owner, make_registration


class RunningTasks:
    """A ``TaskLiveness`` that knows runs by their ids."""

    def __init__(self, run_ids: Iterable[str] = ()) -> None:
        self._run_ids = frozenset(run_ids)

    def let_run(self, *run_ids: str) -> None:
        """Let the tasks of these runs run, and no others."""
        self._run_ids = frozenset(run_ids)

    def is_running(self, owner: AttemptOwner) -> bool:
        """Tell whether the owner's run is one of them."""
        return owner.run_id in self._run_ids

    def is_last_try(self, owner: AttemptOwner) -> bool:
        """Tell whether the owner's run is one of them."""
        return self.is_running(owner)

    def earlier_run_of(self, owner: AttemptOwner) -> str | None:
        """Return the first of them, by its name, that is before the owner's run."""
        return min((each for each in self._run_ids if each < owner.run_id), default=None)


class CurrentDags:
    """A ``DagDirectory`` that knows the Dags that a test puts into it."""

    def __init__(self) -> None:
        self._dags: dict[str, DagTasks] = {}

    def put(self, dag_id: str, *task_ids: str, is_paused: bool = False, **uids: tuple[str, ...]) -> None:
        """Let a Dag have these tasks, whose uids are their ids unless they are given."""
        declared = {each: (each,) for each in task_ids} | uids
        self._keep(dag_id, DagTasks(exists=True, is_paused=is_paused, uids=declared))

    def remove(self, dag_id: str) -> None:
        """Let a Dag exist no longer."""
        self._keep(dag_id, DagTasks(exists=False))

    def _keep(self, dag_id: str, tasks: DagTasks) -> None:
        self._dags[dag_id] = tasks

    def tasks_of(self, dag_id: str, job_name: str) -> DagTasks | None:
        """Return the tasks of a Dag, ``None`` if the test has not said anything of it."""
        return self._dags.get(dag_id)


JOB = job_id_of("sales")
OPERATOR = operator_id_of("aggregate")
AGAIN = "9/9"
"""The mark of a task that was cleared."""


def day(number: int, **changes: Any) -> AttemptOwner:
    """Return the owner of an attempt in the run of a day."""
    date = f"2026-01-{number:02d}"
    return make_owner(**{"run_key": f"{date}T00:00:00+00:00", "run_id": f"scheduled__{date}"} | changes)


def rows_of(view: JobView) -> tuple[object, ...]:
    """Return what a call must leave as it is that changes nothing."""
    return view.operators, view.attempts, view.checkpoints


@contextmanager
def unchanged(gateway: Gateway) -> Iterator[None]:
    """Require that a block, such as a call that is refused, leaves the rows of the job as they are."""
    before = rows_of(gateway.describe(JOB))
    yield
    assert rows_of(gateway.describe(JOB)) == before


class RunsOfAJob:
    """Lets runs work, as a part of a suite."""

    gateway: Gateway

    def begin(self, owner: AttemptOwner, **settings: Any) -> AttemptGrant:
        """Register an attempt."""
        return self.gateway.register(make_registration(owner=owner, **settings))

    def work(
        self, owner: AttemptOwner, checkpoints: int = 1, status: AttemptStatus = AttemptStatus.FINISHED, **settings: Any
    ) -> AttemptGrant:
        """Register an attempt, complete checkpoints and end it."""
        grant = self.begin(owner, **settings)
        for _ in range(checkpoints):
            complete_checkpoint(self.gateway, grant.attempt)
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=status))
        return grant

    def week(self, *days: int, **settings: Any) -> None:
        """Let the runs of some days take two checkpoints each."""
        for number in days:
            self.work(day(number), 2, **settings)

    @staticmethod
    def candidates(grant: AttemptGrant) -> list[int]:
        """Return what an attempt may restore, the best first."""
        return [c.checkpoint_id for c in grant.candidates]

    def ids(self, status: CheckpointStatus = CheckpointStatus.COMPLETED) -> list[int]:
        return [c.checkpoint_id for c in self.gateway.describe(JOB).checkpoints if c.status is status]


class RunsWithTasks(RunsOfAJob):
    """Runs of a job whose tasks the test lets run or end."""

    @pytest.fixture(autouse=True)
    def _coordinator(self, store: JobStore) -> None:
        self.liveness = RunningTasks()
        self.gateway = AttemptCoordinator(store, self.liveness)
