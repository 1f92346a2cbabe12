"""
What one of several processes does to one job: stages that begin, save, die and are replaced, savepoints and cleaning.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, RequestSavepoint, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    NoRestorableCheckpointError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.maintenance.gc import collect_job
from airflow_provider_statecheck.maintenance.savepoints import serve_idle
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.test_aligned_checkpoints import on_database
from tests.unit.written_stage import JOB, WrittenStage

OPERATORS = ("orders", "customers", "totals")


def hammer(url: str, base: str, seed: int, seconds: float) -> None:
    """Work on the job for so long."""
    chance = random.Random(seed)
    engine = create_engine(url)
    stage = WrittenStage(CheckpointStorage.open(f"{base}/checkpoints"), store=SqlJobStore(engine))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # Whoever is replaced by another process stops; what it wrote is an orphan.
        with suppress(StaleAttemptError, CheckpointNotFoundError):
            chance.choices((_run, _ask, _clean), (6, 1, 1))[0](stage, chance, base)
    engine.dispose()


def _run(stage: WrittenStage, chance: random.Random, base: str) -> None:
    attempt = stage.attempt(uid=chance.choice(OPERATORS), num_retained=2)
    try:
        _work(stage, attempt, chance)
    except StorageError:
        # What a replaced attempt is writing may be swept under its hands; nobody else's may.
        with pytest.raises(StaleAttemptError):
            stage.coordinator.trigger(TriggerCheckpoint(attempt=attempt.grant.attempt, request_key=new_key()))


def _work(stage: WrittenStage, attempt: StageAttempt, chance: random.Random) -> None:
    restored = attempt.restore()
    handles = list(restored.document.snapshots) if restored else []
    for i in range(chance.randrange(6)):
        handles = [*handles[-2:], stage.snapshot(attempt, f"step {i}", rows=5)]
        _checkpoint(attempt, handles)
    if chance.random() < 0.7:
        attempt.finish(chance.choice((AttemptStatus.FINISHED, AttemptStatus.FAILED)))


def _checkpoint(attempt: StageAttempt, handles: list[Any]) -> None:
    pinned = frozenset(handle.uri for handle in handles)
    attempt.take_checkpoint(CheckpointContent(snapshots=tuple(handles), pinned=pinned))


def _ask(stage: WrittenStage, chance: random.Random, base: str) -> None:
    request = RequestSavepoint(
        job_id=job_id_of(JOB),
        operator_id=operator_id_of(chance.choice(OPERATORS)),
        request_key=new_key(),
        target=f"{base}/savepoints",
    )
    stage.savepoints.request(request)


def _clean(stage: WrittenStage, chance: random.Random, base: str) -> None:
    view = stage.coordinator.describe(job_id_of(JOB))
    serve_idle(stage.savepoints, view, CheckpointStorage.open, None)
    collect_job(stage.maintenance, job_id_of(JOB), CheckpointStorage.open)


def settle(url: str, base: str) -> WrittenStage:
    """Close what the processes left open and clean up once."""
    stage = WrittenStage(CheckpointStorage.open(f"{base}/checkpoints"), store=SqlJobStore(create_engine(url)))
    for uid in OPERATORS:
        with suppress(NoRestorableCheckpointError):
            attempt = stage.attempt(uid=uid, num_retained=2)
            attempt.restore()
            attempt.finish(AttemptStatus.FAILED)
    _clean(stage, random.Random(0), base)
    return stage


def acknowledge(url: str, folder: str, leader: AttemptRef, task: int, ids: range, told: Any, begin: Any) -> None:
    """Acknowledge each checkpoint twice, and tell of which ones the completion was announced here."""
    engine = create_engine(url)
    job = on_database(engine, Path(folder))
    job.leader = leader
    coordinator = job.coordinator()
    begin.wait(30)
    for number in ids:
        message = job.acknowledgement(job.tasks[task], number)
        assert coordinator.receive_acknowledge_message(message)
        assert coordinator.receive_acknowledge_message(message)
    told.put(job.tasks[task].heard("complete"))
    engine.dispose()
