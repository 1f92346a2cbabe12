"""What the coordinator of an api-server changes is known to the readers of state in the same process."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.databases import traced
from tests.contracts.latest_contract import OTHER
from tests.contracts.maintenance_contract import MaintenanceContract
from tests.unit.api.server import ApiServer, Attempt, accepted


@pytest.fixture
def attempt(api: ApiServer) -> Attempt:
    return api.attempt()


def checked(api: ApiServer, job_id: JobId) -> tuple[int, list[int]]:
    """Check a job as a request does, and return the number of statements and the newest checkpoints."""
    with traced(api.engine) as run:
        asyncio.run(api.services.state_rows.check(job_id))
        latest = api.services.state_rows.latest_checkpoints(job_id, OTHER)
    assert latest is not None
    return len(run), [c.checkpoint_id for c in latest.checkpoints]


def test_change_of_the_same_process_is_read_without_a_look_at_the_version(api: ApiServer, attempt: Attempt) -> None:
    job_id = JobId(attempt.job_id)
    assert checked(api, job_id) == (1, [])
    assert checked(api, job_id) == (1, []), "only the version"
    api.complete(attempt)
    assert checked(api, job_id) == (1, [1]), "only the newest checkpoints"


def test_change_of_another_process_is_found_by_the_version(api: ApiServer, attempt: Attempt) -> None:
    job_id = JobId(attempt.job_id)
    api.complete(attempt)
    assert checked(api, job_id) == (1, [1])
    with SqlJobStore(api.engine, api.clock).transaction(job_id) as tx:
        tx.set_next_checkpoint_id(7)
    assert checked(api, job_id) == (2, [1])
    assert api.complete(attempt) == 7
    assert checked(api, job_id) == (1, [7])


def test_job_that_is_removed_loses_its_oracle(api: ApiServer, attempt: Attempt) -> None:
    job_id, proxy = JobId(attempt.job_id), api.services.state_proxy
    other = JobId("0" * 32)
    for each in (job_id, other):
        oracle = CheckpointLocationOracle(each, api.services.state_rows, CheckpointStorage.open)
        proxy.update_kv_state_location_oracle(each, oracle)
    accepted(api.finish(attempt))
    assert proxy.get_kv_state_location_oracle(job_id) is not None
    MaintenanceContract.remove(api.services.maintenance, job_id)
    assert proxy.get_kv_state_location_oracle(job_id) is None
    assert proxy.get_kv_state_location_oracle(other) is not None
