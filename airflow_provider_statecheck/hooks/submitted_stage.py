"""
Task side of a stage whose driver runs in another process.

:class:`SubmittedStage` registers an attempt for the driver, follows its checkpoints in the log of the task and closes
the attempt if the driver did not. In ``airflow tasks test`` and ``dag.test`` no api-server may be running;
:func:`driver_access` then serves the API from the task.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import is_same_try
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, FinishAttempt, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OnOverlap,
    RowsVersion,
    Transport,
)
from airflow_provider_statecheck.checkpoint.statistics import OperatorStatistics
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    OpenCommitError,
    StageExitError,
    StaleAttemptError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.verbs import registering
from airflow_provider_statecheck.hooks.connection import DEFAULT_TIMEOUT_SECONDS, coordinator_address
from airflow_provider_statecheck.hooks.transport import is_orm_open, over_http, task_gateway
from airflow_provider_statecheck.spark.driver.attempts import Handover
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.endings import fenced_line, latest_retained, retained_line, stopping_savepoint
from airflow_provider_statecheck.spark.status_log import CheckpointLog

if TYPE_CHECKING:
    from airflow_provider_statecheck.api.services import Services
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.gateway.http import HttpGateway
    from airflow_provider_statecheck.gateway.verbs import StageGateway
    from airflow_provider_statecheck.metadata.tables import Caller


log = logging.getLogger(__name__)

_BACKLOG = 64
_POLL_SECONDS = 10.0
_GRACE_SECONDS = 1.0
COMPLETION_SECONDS = 2.0
"""Longest wait for a checkpoint that is on its way when a task is ended, of the five seconds that Airflow leaves it."""
_COMPLETION_LOOKS = 8
"""Looks within that time."""


class SubmittedStage:
    """
    Attempt of a driver in another process: register or adopt it, follow its checkpoints and close it.

    :param access: Coordinator API.
    :param registration: Owner, job, uid and settings of the attempt.
    :param driver: Settings for the driver.
    :param on_overlap: Behaviour if an attempt of another run is open for the operator.
    """

    def __init__(
        self,
        access: DriverAccess,
        registration: RegisterAttempt,
        driver: DriverSettings,
        on_overlap: OnOverlap = OnOverlap.FAIL,
    ) -> None:
        self.registration = registration
        self._access = access
        self._gateway: StageGateway = over_http(access.gateway)
        self._driver = driver
        self._on_overlap = on_overlap
        self._attempt: AttemptRef | None = None
        self._candidates: tuple[CheckpointRecord, ...] = ()
        self._checkpoints: DriverCheckpoints | None = None

    def register(self) -> Handover:
        """
        Register an attempt, which fences all earlier attempts.

        :return: Handover for the driver, valid for this attempt only.
        """
        attempt = self._begin(Transport.HTTP)
        return Handover(
            url=self._access.url,
            token=self._access.gateway.token_of(attempt),
            registration=self.registration,
            driver=self._driver,
        )

    def adopt_running(self) -> None:
        """Adopt the running attempt of a driver that an earlier try submitted, unless this try registered one."""
        if self._attempt is None and (running := self._adopted(self._as_own)) is not None:
            self._continue(running)
            job_name = self.registration.job_name
            log.info("Attempt %s of job %r continues; its driver was adopted.", running.epoch, job_name)

    def resume(self) -> None:
        """Adopt the attempt of this try after the task was deferred, also if its driver has ended it meanwhile."""
        newest = self._newest_attempt()
        if newest is None or not is_same_try(newest.owner, self.registration.owner):
            log.info("The attempt of this try was replaced while the task was deferred.")
            return
        self._gateway.adopt(AttemptRef.of(newest), self.registration.owner)
        self._continue(newest)

    def _begin(self, transport: Transport) -> AttemptRef:
        owner = replace(self.registration.owner, transport=transport)
        self.registration = replace(self.registration, owner=owner)
        grant = registering(self._gateway.register, self._on_overlap)(self.registration)
        self._follow(grant)
        return grant.attempt

    def _follow(self, grant: AttemptGrant) -> None:
        self._attempt, self._checkpoints = grant.attempt, self._followed(grant.attempt)
        self._candidates = grant.candidates
        self._log_of(grant.attempt).registered(grant)

    def _as_own(self, _: AttemptOwner) -> AttemptOwner:
        return self.registration.owner

    def _adopted(self, owner: Callable[[AttemptOwner], AttemptOwner]) -> AttemptRecord | None:
        """
        Adopt the running attempt of an earlier try, and return it; ``None`` if there is none.

        :param owner: Returns the owner that the attempt has from now on, given the one that it has.
        """
        try:
            running = self._newest_attempt()
        except AccessDeniedError as refused:
            # Where only the Dags of a job read it, the first task of a Dag reads it once it has registered.
            log.info("The job is not read before the registration: %s", refused)
            return None
        if running is None or not running.is_running:
            return None
        try:
            self._gateway.adopt(AttemptRef.of(running), owner(running.owner))
        except StaleAttemptError as ended:
            log.info("Attempt %s ended before it was adopted: %s", running.epoch, ended)
            return None
        return running

    def _continue(self, running: AttemptRecord) -> None:
        self._attempt = AttemptRef.of(running)
        self._checkpoints = self._followed(self._attempt)
        self._checkpoints.skip()

    def log_checkpoints(self) -> None:
        """Log new checkpoints of the driver, whose own log may be on another machine."""
        if self._checkpoints is not None:
            self._checkpoints.log_new()

    def let_complete(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wait until no checkpoint of the driver is on its way, for :data:`COMPLETION_SECONDS` at most."""
        for _ in range(_COMPLETION_LOOKS):
            if self._attempt is None or not is_completing(self._gateway, self._attempt):
                return
            sleep(COMPLETION_SECONDS / _COMPLETION_LOOKS)

    def was_cleared(self) -> bool:
        """Return whether the task was cleared after its newest attempt was registered, or its job was removed."""
        newest = self._newest_attempt()
        return newest is None or newest.owner.clear_marker != self.registration.owner.clear_marker

    def close(self, status: AttemptStatus, message: str = "", gateway: StageGateway | None = None) -> bool:
        """
        Close the attempt with the end of the task, also if its driver has reported another end.

        :param gateway: Gateway after the end of the driver's access; by default that of the access.
        :return: Whether this task has closed it.
        :raises OpenCommitError: if the task succeeded and the sink has uncommitted output.
        """
        if self._attempt is None:
            return False
        end = FinishAttempt(attempt=self._attempt, status=status, message=message, is_of_task=True)
        try:
            (gateway or self._gateway).finish(end)
        except OpenCommitError:
            raise
        except StaleAttemptError as stale:
            log.info("%s", stale)
        except StateCheckError as error:
            # The result of the driver decides the state of the task; the next registration fences this attempt.
            log.warning("The attempt could not be closed, the next one will replace it: %s", error)
        else:
            return True
        return False

    def require_end(self) -> None:
        """
        Require that the driver, which has succeeded, has reported the end of its stage, as far as the rows can be read.

        :raises StageExitError: if it has not.
        """
        status = self._status()
        if status is not None and status is not AttemptStatus.FINISHED:
            raise StageExitError(
                f"Expected the driver of stage {self.registration.uid!r} to report the end of its stage, found that "
                f"its process succeeded and its attempt is {status.value}; do not end the process in the code of the "
                "stage."
            )

    def _status(self) -> AttemptStatus | None:
        try:
            newest = self._newest_attempt()
        except StateCheckError as error:
            log.warning("Could not read whether the stage has ended: %s", error)
            return None
        is_own = newest is not None and self._attempt is not None and newest.epoch == self._attempt.epoch
        return newest.status if newest is not None and is_own else None

    def stopped_with(self) -> str | None:
        """Return the URI of the savepoint with which the driver stopped, ``None`` if no stop was requested."""
        try:
            view = self._view()
        except StateCheckError as error:
            log.warning("Could not read whether the stage was stopped with a savepoint: %s", error)
            return None
        return None if view is None or self._attempt is None else stopping_savepoint(view, self._attempt)

    def failure(self) -> str:
        """Return the failure message of the driver, empty if it reported none or the coordinator is unavailable."""
        try:
            newest = self._newest_attempt()
        except StateCheckError as error:
            log.warning("Could not read the failure message of the driver: %s", error)
            return ""
        if newest is None or self._attempt is None or newest.epoch != self._attempt.epoch:
            return ""
        return newest.message

    def kept(self) -> str:
        """Return a log line about the newest retained checkpoint, or about the newer attempt that fenced this one."""
        try:
            view = self._view()
        except StateCheckError as error:
            return f"Could not read the retained checkpoints of job {self.registration.job_name!r}: {error}"
        newest = self._newest_of(view)
        if newest is not None and self._attempt is not None and newest.epoch > self._attempt.epoch:
            return fenced_line(self.registration.job_name, self._attempt.epoch, newest.epoch)
        latest = None if view is None else latest_retained(view, self._operator_id(view))
        # Before the driver has confirmed a restore, the next one starts from what this attempt was granted.
        return retained_line(self.registration, latest or next(iter(self._candidates), None))

    def _followed(self, attempt: AttemptRef) -> DriverCheckpoints:
        return DriverCheckpoints.of(self._gateway, self.registration, attempt)

    def _log_of(self, attempt: AttemptRef) -> CheckpointLog:
        return CheckpointLog(self.registration.job_name, self.registration.uid, attempt.epoch)

    def _newest_attempt(self) -> AttemptRecord | None:
        return self._newest_of(self._view())

    def _newest_of(self, view: JobView | None) -> AttemptRecord | None:
        if view is None:
            return None
        operator = view.operator(self._operator_id(view))
        return None if operator is None else view.current_attempt(operator)

    def _operator_id(self, view: JobView) -> OperatorId:
        if self._attempt is not None:
            return self._attempt.operator_id
        # The operator of the task takes precedence over the uid, which may have changed since its first attempt.
        task = self.registration.owner.logical_task
        newest = {each.operator_id: each for each in view.attempts if each.owner.logical_task == task}
        latest = max(newest.values(), key=lambda attempt: attempt.registered_at, default=None)
        return operator_id_of(self.registration.uid) if latest is None else latest.operator_id

    def _view(self) -> JobView | None:
        try:
            return self._gateway.describe(job_id_of(self.registration.job_name))
        except CheckpointNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class DriverAccess:
    """Coordinator API that the task and its driver use."""

    url: str
    gateway: HttpGateway
    """Gateway of the task; it knows the tokens of the attempts that it registers."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Timeout of a request."""


@contextmanager
def driver_access(owner: AttemptOwner) -> Iterator[DriverAccess]:
    """
    Return the coordinator's API, served by this process if it has access to Airflow's database.

    :param owner: Task that owns the attempt.
    """
    if is_orm_open():
        with _own_server(owner) as access:
            yield access
    else:
        address = coordinator_address()
        yield DriverAccess(address.url, task_gateway(), address.timeout_seconds)


@contextmanager
def _own_server(owner: AttemptOwner) -> Iterator[DriverAccess]:
    from airflow_provider_statecheck.api.airflow_services import OwnTasks, airflow_services
    from airflow_provider_statecheck.gateway.http import HttpClient, HttpGateway
    from airflow_provider_statecheck.metadata.tables import Caller

    services = airflow_services(tasks=OwnTasks())
    assert owner.task is not None  # noqa: S101 - a task submits the driver
    with serving(services) as url:
        yield DriverAccess(url, HttpGateway(HttpClient(url), OwnTokens(services, Caller.of(owner.task))))


class OwnTokens:
    """
    Credentials of a process with access to the database, which issues its own tokens.

    :param caller: Task for which tokens are issued.
    """

    def __init__(self, services: Services, caller: Caller) -> None:
        self._services = services
        self._caller = caller

    def obtain(self) -> str:
        """Return a token for the task."""
        from airflow.sdk.log import mask_secret

        token = self._services.tokens.issue(self._caller).token
        mask_secret(token)
        return token


@contextmanager
def serving(services: Services) -> Iterator[str]:
    """
    Serve the API on a free local port in a thread.

    :return: URL of the server.
    """
    import uvicorn

    from airflow_provider_statecheck.api.app import create_server_app

    app = create_server_app(services)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, log_level="warning"))
    # The socket listens before the thread starts, and early connections wait in its backlog.
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True, name="statecheck-api")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class ChangedViews:
    """
    Views of a job. A view has up to a hundred checkpoints with their figures, and most polls find no new one.

    :param gateway: Gateway that reads the job.
    """

    def __init__(self, gateway: StageGateway, job_id: JobId) -> None:
        self._gateway = gateway
        self._job_id = job_id
        self._known: RowsVersion | None = None

    def __call__(self) -> JobView | None:
        """Return the view, ``None`` if the job has no rows, or none that changed since the last call."""
        try:
            if self._known is not None and self._gateway.latest_checkpoints(self._job_id, self._known) is None:
                return None
            view = self._gateway.describe(self._job_id)
        except CheckpointNotFoundError:
            self._known = None
            return None
        self._known = view.job.rows_version
        return view


class DriverCheckpoints:
    """
    Log the checkpoints of an attempt from the rows of its job, in the same format as the driver.

    :param view: Function that returns the view of the job; ``None`` if it has no rows, or none that changed since the
        last call.
    :param attempt: Attempt of the driver.
    :param checkpoint_log: Log to write to.
    """

    def __init__(self, view: Callable[[], JobView | None], attempt: AttemptRef, checkpoint_log: CheckpointLog) -> None:
        self._view = view
        self._attempt = attempt
        self._log = checkpoint_log
        self._logged: set[int] = set()
        self._restored: int | None = None

    @classmethod
    def of(cls, gateway: StageGateway, registration: RegisterAttempt, attempt: AttemptRef) -> Self:
        """Return those of an attempt, whose job is read with ``gateway`` only if it has changed."""
        checkpoint_log = CheckpointLog(registration.job_name, registration.uid, attempt.epoch)
        return cls(ChangedViews(gateway, attempt.job_id), attempt, checkpoint_log)

    def skip(self) -> None:
        """Skip the checkpoints that an earlier try of the task logged."""
        view = self._read_view()
        if view is not None:
            self._restored = self._restored_id(view)
            self._logged.update(c.checkpoint_id for c in self._ended(view))

    def log_new(self) -> None:
        """Log the restored checkpoint and the checkpoints that ended since the last call."""
        view = self._read_view()
        if view is not None:
            self._log_restored(view)
            self._log_ended(view)

    def _read_view(self) -> JobView | None:
        try:
            return self._view()
        except StateCheckError as error:
            log.debug("Could not read the checkpoints of the driver, retrying later: %s", error)
            return None

    def _log_restored(self, view: JobView) -> None:
        restored = self._restored_id(view)
        row = view.checkpoint(restored)
        if row is not None and restored != self._restored:
            self._restored = restored
            self._log.restored(row)

    def _log_ended(self, view: JobView) -> None:
        for checkpoint in self._ended(view):
            if checkpoint.checkpoint_id in self._logged:
                continue
            self._logged.add(checkpoint.checkpoint_id)
            if checkpoint.completed_at is not None:
                self._log.completed(checkpoint)
            else:
                self._log.failed(checkpoint)

    def _restored_id(self, view: JobView) -> int | None:
        # The attempt's row contains a candidate until the driver confirms it; the statistics contain confirmed
        # restores.
        latest = OperatorStatistics.in_view(view, self._attempt.operator_id).latest_restored
        return latest.checkpoint_id if latest is not None and latest.epoch == self._attempt.epoch else None

    def _ended(self, view: JobView) -> list[CheckpointRecord]:
        of_attempt = (c for c in view.of_operator(self._attempt.operator_id) if c.epoch == self._attempt.epoch)
        return [
            c for c in of_attempt if not c.properties.is_savepoint and (c.completed_at is not None or _has_failed(c))
        ]


def is_completing(gateway: StageGateway, attempt: AttemptRef) -> bool:
    """Return whether a checkpoint of an attempt is on its way, as far as the rows can be read."""
    try:
        view = gateway.describe(attempt.job_id)
    except StateCheckError as error:
        log.debug("Could not read whether a checkpoint is on its way: %s", error)
        return False
    return any(c.is_in_progress and c.epoch == attempt.epoch for c in view.of_operator(attempt.operator_id))


def within(seconds: float, action: Callable[[], None]) -> None:
    """
    Call ``action`` in a thread, and wait for its end for a number of seconds at most.

    A signal handler may call this: the main thread may hold what the action needs, until the handler returns.
    """
    thread = threading.Thread(target=action, daemon=True, name="statecheck-before-the-end")
    thread.start()
    thread.join(seconds)


@contextmanager
def repeatedly(action: Callable[[], None], every_seconds: float = _POLL_SECONDS) -> Iterator[None]:
    """
    Call ``action`` at an interval in a thread while the block runs, and once after the block.

    :param action: Function that does not raise.
    :param every_seconds: Interval in seconds.
    """
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(every_seconds):
            action()

    thread = threading.Thread(target=poll, daemon=True, name="statecheck-driver-checkpoints")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_GRACE_SECONDS)
        if not thread.is_alive():
            action()


def _has_failed(checkpoint: CheckpointRecord) -> bool:
    is_aborted = checkpoint.status is CheckpointStatus.ABORTED
    return is_aborted and checkpoint.failure_reason != CheckpointFailureReason.ATTEMPT_ENDED.value
