"""
Maintenance gateways for Airflow processes.

A process with access to Airflow's database calls the coordinator in process. A maintenance task calls it over HTTP.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.checkpoint.codec import encode, read_reply
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
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, EnvironmentNotReadyError, TokenExpiredError
from airflow_provider_statecheck.gateway.http_client import Credentials, HttpClient
from airflow_provider_statecheck.gateway.protocol import page_path
from airflow_provider_statecheck.gateway.retrying import OUTAGE_PAUSES_SECONDS, repeat
from airflow_provider_statecheck.gateway.time_travel import Jobs
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID, coordinator_address
from airflow_provider_statecheck.hooks.transport import is_orm_open
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
    from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
    from airflow_provider_statecheck.maintenance.recover import JobRecovery
    from airflow_provider_statecheck.maintenance.rewind import JobRewinding
    from airflow_provider_statecheck.maintenance.savepoints import SavepointGateway


Reply = TypeVar("Reply")

_JOB_ID = re.compile(r"[0-9a-f]{32}")


def maintenance_gateway(conn_id: str = DEFAULT_CONN_ID) -> MaintenanceGateway:
    """
    Return a gateway for maintenance: in process if Airflow's database is accessible, otherwise over HTTP.

    :param conn_id: Connection to the server, used over HTTP only.
    :raises EnvironmentNotReadyError: The database is not accessible and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.api.airflow_services import airflow_services

        return airflow_services().maintenance

    return HttpMaintenance(_calls(conn_id))


def savepoint_gateway(conn_id: str = DEFAULT_CONN_ID) -> SavepointGateway:
    """
    Return a gateway for savepoints: in process if Airflow's database is accessible, otherwise over HTTP.

    :param conn_id: Connection to the server, used over HTTP only.
    :raises EnvironmentNotReadyError: The database is not accessible and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.api.airflow_services import airflow_services

        return airflow_services().savepoints

    return HttpSavepoints(_calls(conn_id))


def job_coordinator() -> AttemptCoordinator:
    """
    Return the coordinator that lists jobs.

    :raises EnvironmentNotReadyError: Airflow's database is not accessible.
    """
    return _local_services("jobs").coordinator


def job_recovery() -> JobRecovery:
    """
    Return the service that recreates the rows of lost jobs.

    :raises EnvironmentNotReadyError: Airflow's database is not accessible.
    """
    return _local_services("recover").recovery


def job_rewinding() -> JobRewinding:
    """
    Return the service that rewinds the state of jobs to an earlier run.

    :raises EnvironmentNotReadyError: Airflow's database is not accessible.
    """
    return _local_services("rewind").rewinding


def _local_services(command: str) -> Services:
    if not is_orm_open():
        raise EnvironmentNotReadyError(
            f"Expected access to Airflow's database, found a task without it; run 'airflow statecheck {command}' on the "
            f"scheduler's machine."
        )
    from airflow_provider_statecheck.api.airflow_services import airflow_services

    return airflow_services()


def _calls(conn_id: str) -> MaintenanceCalls:
    address = coordinator_address(conn_id)
    client = address.open()
    return MaintenanceCalls(client, transport.task_credentials(client, address))


def find_job(gateway: Jobs, job: str) -> JobView:
    """
    Return the job with this name or id.

    :raises CheckpointNotFoundError: There is no such job.
    """
    try:
        return gateway.describe(job_id_of(job))
    except CheckpointNotFoundError as error:
        if _JOB_ID.fullmatch(job):
            return gateway.describe(JobId(job))
        raise CheckpointNotFoundError(f"There is no job {job!r}; 'airflow statecheck jobs' lists all jobs.") from error


class MaintenanceCalls:
    """
    HTTP calls of a maintenance task, retried during short outages of the api-server.

    :param client: Client for the server.
    :param credentials: Source of tokens.
    """

    def __init__(self, client: HttpClient, credentials: Credentials) -> None:
        self._client = client
        self._credentials = credentials
        self._token: str | None = None

    def ask(self, method: str, path: str, request: Any = None) -> Any:
        """
        Send a request and return the JSON of the reply.

        :param method: ``GET`` or ``POST``.
        :param path: Path relative to the root of the API.
        :param request: Message to post.
        """
        return repeat(lambda: self._send(method, path, request), OUTAGE_PAUSES_SECONDS)

    def _send(self, method: str, path: str, request: Any) -> Any:
        try:
            return self._send_once(method, path, request)
        except TokenExpiredError:
            # A task's token is valid for minutes; garbage collection of large jobs can take longer.
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

    :param calls: HTTP calls to the server.
    """

    def __init__(self, calls: MaintenanceCalls) -> None:
        self._calls = calls

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return read_reply(tuple[JobRecord, ...], self._calls.ask("GET", "jobs"))

    def describe(self, job_id: JobId) -> JobView:
        """Return the current view of a job."""
        return read_reply(JobView, self._calls.ask("GET", f"jobs/{job_id}"))

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        data = self._calls.ask("GET", f"jobs/{job_id}/checkpoints/{checkpoint_id}")
        return None if data is None else read_reply(CheckpointRecord, data)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return read_reply(tuple[CheckpointRecord, ...], self._calls.ask("GET", page_path(job_id, page)))

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that the files of ended checkpoints were deleted."""
        self._calls.ask("POST", "maintenance/confirm-discards", request)

    def close_abandoned(self, job_id: JobId) -> tuple[AttemptRef, ...]:
        """Close the attempts whose drivers died without closing them, and return these attempts."""
        request = CloseAbandoned(job_id=job_id)
        return read_reply(tuple[AttemptRef, ...], self._calls.ask("POST", "maintenance/close-abandoned", request))

    def settle_run(self, job_id: JobId) -> tuple[int, ...]:
        """Discard the checkpoints that are not retained after the end of their run, and return their ids."""
        return read_reply(tuple[int, ...], self._calls.ask("POST", "maintenance/settle-run", SettleRun(job_id=job_id)))

    def forget(self, request: ForgetRows) -> ForgettableRows:
        """Delete the rows of checkpoints and attempts that ended before the given age, and return their ids."""
        return read_reply(ForgettableRows, self._calls.ask("POST", "maintenance/forget", request))

    def refusal(self, request: RetireJob) -> Removal:
        """Return why :meth:`retire` would be refused, without changing anything."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/refusal", request))

    def retire(self, request: RetireJob) -> Removal:
        """End every checkpoint of a job that has no open attempt."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/retire", request))

    def remove(self, request: RetireJob) -> Removal:
        """Delete the rows of a retired job whose files were deleted."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/remove", request))

    def drop_tokens(self, request: DropTokens) -> int:
        """Delete the tokens that ended before the given age, and return their number."""
        return read_reply(int, self._calls.ask("POST", "maintenance/drop-tokens", request))


class HttpSavepoints:
    """
    A ``SavepointGateway`` over HTTP.

    :param calls: HTTP calls to the server.
    """

    def __init__(self, calls: MaintenanceCalls) -> None:
        self._calls = calls

    def request(self, request: RequestSavepoint) -> SnapshotRequest:
        """Request a savepoint of an operator."""
        return read_reply(SnapshotRequest, self._post("request", request))

    def begin(self, request: BeginSavepoint) -> CheckpointRecord:
        """Allocate the id of a savepoint that copies the newest checkpoint of an operator that is not running."""
        return read_reply(CheckpointRecord, self._post("begin", request))

    def end(self, request: EndSavepoint) -> CheckpointRecord:
        """Report that a copied savepoint was written, or why writing failed."""
        return read_reply(CheckpointRecord, self._post("end", request))

    def dispose(self, request: DisposeSavepoint) -> DisposedSavepoint:
        """Dispose of a savepoint; its files may then be deleted."""
        return read_reply(DisposedSavepoint, self._post("dispose", request))

    def _post(self, verb: str, request: Any) -> Any:
        return self._calls.ask("POST", f"savepoints/{verb}", request)
