"""What one of two processes of one leader does: it acknowledges each checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from tests.conformance.test_aligned_checkpoints import on_database


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
