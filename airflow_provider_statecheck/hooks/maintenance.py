"""Access to maintenance from Airflow: in process beside the scheduler, or over HTTP."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    BeginSavepoint,
    ConfirmDiscards,
    DisposedSavepoint,
    DisposeSavepoint,
    EndSavepoint,
    RequestSavepoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord, SnapshotRequest
from airflow_provider_statecheck.checkpoint.retention import ForgettableRows
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView
from airflow_provider_statecheck.configuration import SECTION, configured_locations
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, EnvironmentNotReadyError, TokenExpiredError
from airflow_provider_statecheck.gateway.http_client import Credentials, HttpClient
from airflow_provider_statecheck.gateway.protocol import page_path
from airflow_provider_statecheck.gateway.wire import encode, read_reply
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID, coordinator_address
from airflow_provider_statecheck.hooks.transport import is_orm_open, patiently
from airflow_provider_statecheck.maintenance.job_maintenance import (
    CloseAbandoned,
    DropTokens,
    ForgetRows,
    Removal,
    RetireJob,
    SettleRun,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.api.services import Services
    from airflow_provider_statecheck.maintenance.gc import OpenStorage
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
    from airflow_provider_statecheck.maintenance.recover import JobRecovery
    from airflow_provider_statecheck.maintenance.rewind import JobRewinding
    from airflow_provider_statecheck.maintenance.savepoints import SavepointGateway
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


_JOB_ID = re.compile(r"[0-9a-f]{32}")


def maintenance_gateway(conn_id: str = DEFAULT_CONN_ID) -> MaintenanceGateway:
    """
    Reach the rows: in process where Airflow's database is open, else over HTTP as a task of a maintenance Dag.

    :param conn_id: Connection that names the server, for the way over HTTP.
    :raises EnvironmentNotReadyError: where the database is blocked and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.api.airflow_services import airflow_services

        return airflow_services().maintenance

    return HttpMaintenance(_calls(conn_id))


def savepoint_gateway(conn_id: str = DEFAULT_CONN_ID) -> SavepointGateway:
    """
    Reach what takes savepoints, in the same ways.

    :param conn_id: Connection that names the server, for the way over HTTP.
    :raises EnvironmentNotReadyError: where the database is blocked and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.api.airflow_services import airflow_services

        return airflow_services().savepoints

    return HttpSavepoints(_calls(conn_id))


def job_recovery() -> JobRecovery:
    """
    Return what makes the rows of jobs anew; only where Airflow's database is open.

    :raises EnvironmentNotReadyError: elsewhere.
    """
    return _services_beside_scheduler("recover").recovery


def job_rewinding() -> JobRewinding:
    """
    Return what takes the state of jobs back to an earlier run; only where Airflow's database is open.

    :raises EnvironmentNotReadyError: elsewhere.
    """
    return _services_beside_scheduler("rewind").rewinding


def _services_beside_scheduler(command: str) -> Services:
    if not is_orm_open():
        raise EnvironmentNotReadyError(
            f"Expected Airflow's database to be open, found a task; run 'airflow statecheck {command}' beside the scheduler."
        )
    from airflow_provider_statecheck.api.airflow_services import airflow_services

    return airflow_services()


def _calls(conn_id: str) -> MaintenanceCalls:

    address = coordinator_address(conn_id)
    client = address.open()
    return MaintenanceCalls(client, transport.task_credentials(client, address))


def storage_opener(conn_id: str | None = None) -> OpenStorage:
    """
    Return what opens a checkpoint directory.

    :param conn_id: Connection with its credentials, by default the one that ``[statecheck] storage_conn_id`` names.
    """
    from airflow.sdk.configuration import conf

    from airflow_provider_statecheck.hooks.storage import open_storage

    used = conn_id or conf.get(SECTION, "storage_conn_id", fallback=None)
    places = configured_locations()

    def opened(base_uri: str) -> CheckpointStorage:
        storage = open_storage(base_uri, used)
        return storage.within(storage.allowed | places)

    return opened


def find_job(gateway: MaintenanceGateway, job: str) -> JobView:
    """
    Return a job by its name, or by its id.

    :raises CheckpointNotFoundError: if there is none.
    """
    try:
        return gateway.describe(job_id_of(job))
    except CheckpointNotFoundError as error:
        if _JOB_ID.fullmatch(job):
            return gateway.describe(JobId(job))
        raise CheckpointNotFoundError(
            f"There is no job {job!r}; 'airflow statecheck jobs' lists all there are."
        ) from error


Reply = TypeVar("Reply")


class MaintenanceCalls:
    """
    Calls in the name of a maintenance task; every one is repeated while the api-server is down for a moment.

    :param client: The server.
    :param credentials: Where tokens come from.
    """

    def __init__(self, client: HttpClient, credentials: Credentials) -> None:
        self._client = client
        self._credentials = credentials
        self._token: str | None = None

    def ask(self, method: str, path: str, request: Any = None) -> Any:
        """
        Make a call and return the reply's JSON.

        :param method: ``GET`` or ``POST``.
        :param path: Below the API's root.
        :param request: The message to post.
        """
        return patiently(lambda: self._send(method, path, request))

    def _send(self, method: str, path: str, request: Any) -> Any:
        try:
            return self._send_once(method, path, request)
        except TokenExpiredError:
            # A task's token lives for minutes, a sweep of large jobs for longer.
            self._token = None
            return self._send_once(method, path, request)

    def _send_once(self, method: str, path: str, request: Any) -> Any:
        if self._token is None:
            self._token = self._credentials.obtain()
        if method == "GET":
            return self._client.get(path, self._token)
        return self._client.post(path, encode(request), self._token)


class HttpMaintenance:
    """
    A ``MaintenanceGateway`` over HTTP.

    :param calls: The server.
    """

    def __init__(self, calls: MaintenanceCalls) -> None:
        self._calls = calls

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return read_reply(tuple[JobRecord, ...], self._calls.ask("GET", "jobs"))

    def describe(self, job_id: JobId) -> JobView:
        """Return a job as it stands."""
        return read_reply(JobView, self._calls.ask("GET", f"jobs/{job_id}"))

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        data = self._calls.ask("GET", f"jobs/{job_id}/checkpoints/{checkpoint_id}")
        return None if data is None else read_reply(CheckpointRecord, data)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return read_reply(tuple[CheckpointRecord, ...], self._calls.ask("GET", page_path(job_id, page)))

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that the bytes of ended checkpoints are gone."""
        self._calls.ask("POST", "maintenance/confirm-discards", request)

    def close_abandoned(self, job_id: JobId) -> tuple[AttemptRef, ...]:
        """End the attempts whose drivers died without a word and return which they were."""
        request = CloseAbandoned(job_id=job_id)
        return read_reply(tuple[AttemptRef, ...], self._calls.ask("POST", "maintenance/close-abandoned", request))

    def settle_run(self, job_id: JobId) -> tuple[int, ...]:
        """Take away from restore what does not stay after the end of its run and return which checkpoints it was."""
        return read_reply(tuple[int, ...], self._calls.ask("POST", "maintenance/settle-run", SettleRun(job_id=job_id)))

    def forget(self, request: ForgetRows) -> ForgettableRows:
        """Remove the rows of what ended so long ago and return which they were."""
        return read_reply(ForgettableRows, self._calls.ask("POST", "maintenance/forget", request))

    def refusal(self, request: RetireJob) -> Removal:
        """Say whether :meth:`retire` would be done, and change nothing."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/refusal", request))

    def retire(self, request: RetireJob) -> Removal:
        """End every checkpoint of a job that has no open attempt."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/retire", request))

    def remove(self, request: RetireJob) -> Removal:
        """Remove the rows of a retired job whose bytes are gone."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/remove", request))

    def drop_tokens(self, request: DropTokens) -> int:
        """Remove the tokens that have been of no use for so long and return how many there were."""
        return read_reply(int, self._calls.ask("POST", "maintenance/drop-tokens", request))


class HttpSavepoints:
    """
    A ``SavepointGateway`` over HTTP.

    :param calls: The server.
    """

    def __init__(self, calls: MaintenanceCalls) -> None:
        self._calls = calls

    def request(self, request: RequestSavepoint) -> SnapshotRequest:
        """Ask for a savepoint of an operator."""
        return read_reply(SnapshotRequest, self._post("request", request))

    def begin(self, request: BeginSavepoint) -> CheckpointRecord:
        """Draw the id of a savepoint that is copied from the newest checkpoint of an operator that does not run."""
        return read_reply(CheckpointRecord, self._post("begin", request))

    def end(self, request: EndSavepoint) -> CheckpointRecord:
        """Say that such a savepoint is written, or why it cannot be."""
        return read_reply(CheckpointRecord, self._post("end", request))

    def dispose(self, request: DisposeSavepoint) -> DisposedSavepoint:
        """Give a savepoint up; its bytes may go."""
        return read_reply(DisposedSavepoint, self._post("dispose", request))

    def _post(self, verb: str, request: Any) -> Any:
        return self._calls.ask("POST", f"savepoints/{verb}", request)
