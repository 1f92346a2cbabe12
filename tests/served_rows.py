"""The rows of jobs in a SQLite file, and the coordinator's API over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.hooks.submitted_stage import serving
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from tests.conformance.api_process import TrustingTasks


@contextmanager
def served_rows(folder: Path) -> Iterator[str]:
    """Serve the API over the file of a folder, and return its address."""
    engine = open_engine(database_in(folder))
    with serving(Services(cache(lambda: engine), TrustingTasks())) as url:
        yield url
    engine.dispose()


def job_in(folder: Path, name: str) -> JobView:
    """Return the rows of a job."""
    engine = open_engine(database_in(folder))
    try:
        return SqlJobStore(engine).describe(job_id_of(name))
    finally:
        engine.dispose()


def database_in(folder: Path) -> str:
    """Return the URL of the file of a folder."""
    return f"sqlite:///{folder}/state.db"
