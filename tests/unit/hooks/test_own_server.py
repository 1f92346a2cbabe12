"""The API that a test run serves to its own driver."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.gateway.http import HttpClient, HttpGateway
from airflow_provider_statecheck.hooks.submitted_stage import OwnTokens, serving
from tests.messages import complete_checkpoint, make_owner, make_registration
from tests.sqlite_rows import new_engine
from tests.unit.api.server import CALLER, Tasks


def test_a_submitted_driver_of_a_test_run_registers_its_test_job(tmp_path: Path) -> None:
    engine = new_engine(tmp_path / "state.db")
    services = Services(lambda: engine, Tasks())
    owner = make_owner(logical_task="nightly/features", run_id=CALLER.run_id)
    with serving(services) as url:
        gateway = HttpGateway(HttpClient(url), OwnTokens(services, CALLER))
        grant = gateway.register(make_registration(job_name="test/nightly/2026-01-01", owner=owner))
        assert complete_checkpoint(gateway, grant.attempt).is_completed
    engine.dispose()
