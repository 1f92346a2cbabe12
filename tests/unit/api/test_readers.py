"""What the API shows to readers of jobs and of their newest checkpoints."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from airflow_provider_statecheck.api.access import dags_of
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.http import AsyncJobReader
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.databases import traced
from tests.contracts.latest_contract import OTHER
from tests.contracts.maintenance_contract import MaintenanceContract
from tests.messages import ManualClock, complete_checkpoint, make_owner, make_registration, present
from tests.sqlite_rows import new_store
from tests.unit.api.server import ApiServer, Attempt, accepted, recover


def _view(job: str, recovered: tuple[str, ...] = (), **dags_by_uid: str | None) -> JobView:
    """Return a job with recovered operators, and then with attempts of tasks or, without a Dag, of scripts."""
    store = new_store(ManualClock())
    if recovered:
        recover(store, job, *recovered)
    coordinator = AttemptCoordinator(store)
    for uid, dag_id in dags_by_uid.items():
        airflow = (("dag_id", dag_id), ("run_id", "r"), ("task_id", uid), ("map_index", "-1")) if dag_id else ()
        registered = make_registration(job_name=job, uid=uid, owner=make_owner(airflow=airflow))
        complete_checkpoint(coordinator, coordinator.register(registered).attempt)
    return coordinator.describe(job_id_of(job))


@pytest.mark.parametrize(
    ("view", "dags"),
    [
        (_view("sales", a="daily", b="weekly"), ("daily", "weekly")),
        (_view("daily/2026-01-01", a="daily"), ("daily",)),
        (_view("sales", ("a",), a="daily"), ("daily",)),
        (_view("daily/2026-01-01", ("a", "b"), a="daily"), ("daily",)),
    ],
    ids=["all that work on it", "its own", "once its task ran again", "one task of its Dag ran again"],
)
def test_every_dag_that_works_on_a_job_counts(view: JobView, dags: tuple[str, ...]) -> None:
    assert dags_of(view) == dags


@pytest.mark.parametrize(
    "view",
    [
        _view("sales", ("a",)),
        _view("daily/2026-01-01", ("a",)),
        _view("sales", ("a", "b"), a="daily"),
        _view("sales/eu", ("a", "b"), a="daily"),
        _view("daily/2026-01-01", a=None),
        _view("sales", a="daily", b=None),
    ],
    ids=[
        "recovered",
        "named after a Dag of which nothing is known",
        "one operator is anybody's",
        "named after another Dag",
        "a script",
        "a script beside a Dag",
    ],
)
def test_what_may_be_anybodys_is_shown_to_nobody(view: JobView) -> None:
    with pytest.raises(AccessDeniedError, match="found an operator without one"):
        dags_of(view)


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


def read(
    api: ApiServer, token: str, job_id: JobId, known_version: RowsVersion | None = None
) -> LatestCheckpoints | None:
    """Read the newest checkpoints as an asynchronous server does."""

    async def asked() -> LatestCheckpoints | None:
        transport = httpx.ASGITransport(api.client.app)
        async with httpx.AsyncClient(transport=transport) as client:
            return await AsyncJobReader("http://api", token, client).latest_checkpoints(job_id, known_version)

    return asyncio.run(asked())


def test_an_asynchronous_reader_gets_them_once_for_each_version(api: ApiServer) -> None:
    attempt = api.attempt()
    api.complete(attempt)
    job_id = JobId(attempt.job_id)
    token = api.reading_token(job_id)
    latest = read(api, token, job_id)
    assert latest == api.services.coordinator.latest_checkpoints(job_id)
    assert latest is not None
    assert read(api, token, job_id, latest.job.rows_version) is None
    api.complete(attempt)
    assert [c.checkpoint_id for c in present(read(api, token, job_id, latest.job.rows_version)).checkpoints] == [2]


def test_a_token_of_another_job_is_refused_whatever_the_version(api: ApiServer) -> None:
    other = api.attempt("hourly")
    api.attempt()
    job_id = JobId(other.job_id)
    latest = present(read(api, other.token, job_id))
    with pytest.raises(AccessDeniedError, match="Expected a token of job"):
        read(api, api.reading_token("0" * 32), job_id, latest.job.rows_version)


def test_version_without_its_time_does_not_tell_that_the_job_is_unchanged(api: ApiServer) -> None:
    attempt = api.attempt()
    path = f"/v1/jobs/{attempt.job_id}/latest"
    latest = accepted(api.call("GET", path, attempt.token))
    assert accepted(api.call("GET", f"{path}?known_version={latest['job']['version']}", attempt.token)) == latest
