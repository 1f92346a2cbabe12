"""An old attempt and its successor at the same time, on a database that really lets two writers in."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeResult,
    AttemptGrant,
    AttemptRef,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.messages import make_acknowledgement, make_registration

pytestmark = pytest.mark.db

ROUNDS_OF_ONE_JOB = 25
WAIT_SECONDS = 60.0

Open = Callable[[], AttemptCoordinator]


@contextmanager
def _engine(url: str, schema: str) -> Iterator[Engine]:
    # Waiting for the disk at each commit would make the test slow and the race no sharper.
    engine = create_engine(url, connect_args={"options": f"-csearch_path={schema} -csynchronous_commit=off"})
    yield engine
    engine.dispose()


@pytest.fixture
def connect(postgres_url: str) -> Iterator[Open]:
    """Open coordinators over the same rows, each with an engine of its own."""
    schema = f"f{uuid.uuid4().hex}"
    with ExitStack() as stack:
        owner = stack.enter_context(_engine(postgres_url, schema))
        with owner.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        METADATA.create_all(owner)
        yield lambda: AttemptCoordinator(SqlJobStore(stack.enter_context(_engine(postgres_url, schema))))
        with owner.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))


@dataclass(frozen=True)
class Round:
    """What became of one race."""

    old: AttemptRef
    checkpoint_id: int
    result: AcknowledgeResult | None
    """``None`` if the acknowledgement was refused as stale."""
    grant: AttemptGrant


class Race:
    """Lets the acknowledgement of an old attempt and the registration of a new one begin at the same moment."""

    def __init__(self, connect: Open, pool: ThreadPoolExecutor) -> None:
        self._old, self._new = connect(), connect()
        self._pool = pool
        self._start = threading.Barrier(2)
        self._random = random.Random(7)

    def run(self, job: str, old: AttemptRef) -> Round:
        pending = self._old.trigger(TriggerCheckpoint(attempt=old, request_key=new_key()))
        # A registration reads before it writes; without reads of its own the acknowledgement would always be first.
        reads = self._random.randrange(3)
        acknowledged = self._pool.submit(self._acknowledge, old, pending.checkpoint_id, reads)
        registered = self._pool.submit(self._register, job)
        return Round(old, pending.checkpoint_id, acknowledged.result(WAIT_SECONDS), registered.result(WAIT_SECONDS))

    def describe(self, job_id: JobId) -> JobView:
        return self._old.describe(job_id)

    def register(self, job: str) -> AttemptGrant:
        return self._new.register(make_registration(job_name=job))

    def _register(self, job: str) -> AttemptGrant:
        self._start.wait(WAIT_SECONDS)
        return self.register(job)

    def _acknowledge(self, old: AttemptRef, checkpoint_id: int, reads: int) -> AcknowledgeResult | None:
        self._start.wait(WAIT_SECONDS)
        for _ in range(reads):
            self._old.describe(old.job_id)
        try:
            return self._old.acknowledge(make_acknowledgement(old, checkpoint_id)).result
        except StaleAttemptError:
            return None


def _check_round(race: Race, found: Round) -> None:
    view = race.describe(found.old.job_id)
    rows = {c.checkpoint_id: c for c in view.checkpoints}
    row, candidates = rows[found.checkpoint_id], {c.checkpoint_id for c in found.grant.candidates}
    registered_at = {a.epoch: a.registered_at for a in view.attempts}[found.grant.attempt.epoch]
    if found.result is None:
        assert row.status is CheckpointStatus.ABORTED
        assert row.completed_at is None
        assert found.checkpoint_id not in candidates
    else:
        assert found.result is AcknowledgeResult.SUCCESS
        assert row.status is CheckpointStatus.COMPLETED
        assert row.completed_at is not None
        assert row.completed_at <= registered_at
        assert found.checkpoint_id in candidates
    assert candidates == {
        c.checkpoint_id for c in view.checkpoints if c.is_restorable and c.generation == found.grant.generation
    }
    assert {c.status for c in view.checkpoints if c.epoch < found.grant.attempt.epoch} <= {
        CheckpointStatus.COMPLETED,
        CheckpointStatus.SUBSUMED,
        CheckpointStatus.ABORTED,
    }


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.soak)])
def test_an_acknowledgement_that_races_its_fence_is_either_restorable_or_refused(connect: Open, rounds: int) -> None:
    outcomes: Counter[bool] = Counter()
    with ThreadPoolExecutor(2) as pool:
        race = Race(connect, pool)
        for number in range(rounds // ROUNDS_OF_ONE_JOB):
            job, last_id = f"race-{number}", 0
            current = race.register(job).attempt
            for _ in range(ROUNDS_OF_ONE_JOB):
                found = race.run(job, current)
                _check_round(race, found)
                assert found.checkpoint_id > last_id
                assert found.grant.attempt.epoch == current.epoch + 1
                outcomes[found.result is not None] += 1
                current, last_id = found.grant.attempt, found.checkpoint_id
    assert outcomes.total() == rounds
    assert min(outcomes[True], outcomes[False]) > 0, f"no race at all: {outcomes}"
