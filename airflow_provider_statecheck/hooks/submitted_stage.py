"""
A stage whose driver runs in another process, as its Airflow task sees it.

Where a task may use Airflow's database, in ``airflow tasks test`` and ``dag.test``, there need not be an api-server that
a driver could ask.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AdoptAttempt, AttemptRef, FinishAttempt, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OnOverlap,
)
from airflow_provider_statecheck.checkpoint.statistics import OperatorStatistics
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StaleAttemptError, StateCheckError
from airflow_provider_statecheck.gateway.retrying import registering
from airflow_provider_statecheck.hooks.transport import is_orm_open, over_http, task_gateway
from airflow_provider_statecheck.spark.driver.handover import DriverSettings, Handover
from airflow_provider_statecheck.spark.status_log import (
    CheckpointLog,
    fenced_line,
    latest_retained,
    retained_line,
    stopping_savepoint,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.api.services import Services
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.gateway.http import HttpGateway
    from airflow_provider_statecheck.metadata.token_store import Caller


@dataclass(frozen=True, slots=True)
class DriverAccess:
    """A server that both can reach."""

    url: str
    gateway: HttpGateway
    """The task's own way; it knows the tokens of the attempts that it registers."""


@contextmanager
def driver_access(owner: AttemptOwner) -> Iterator[DriverAccess]:
    """
    Find the coordinator's API, or serve it as long as the context lasts where Airflow's database is open.

    :param owner: The task.
    """
    if is_orm_open():
        with _own_server(owner) as access:
            yield access
    else:
        from airflow_provider_statecheck.hooks.connection import coordinator_address

        yield DriverAccess(coordinator_address().url, task_gateway())


@contextmanager
def _own_server(owner: AttemptOwner) -> Iterator[DriverAccess]:
    from airflow_provider_statecheck.api.airflow_services import airflow_services
    from airflow_provider_statecheck.gateway.http import HttpGateway
    from airflow_provider_statecheck.gateway.http_client import HttpClient
    from airflow_provider_statecheck.metadata.token_store import Caller

    task = dict(owner.airflow)
    caller = Caller(
        dag_id=task["dag_id"], run_id=task["run_id"], task_id=task["task_id"], map_index=int(task["map_index"])
    )
    services = airflow_services()
    with serving(services) as url:
        yield DriverAccess(url, HttpGateway(HttpClient(url), OwnTokens(services, caller)))


_BACKLOG = 64


class OwnTokens:
    """
    Credentials for whoever has the database open and needs no proof.

    :param services: What gives the tokens.
    :param caller: The task that they are given to.
    """

    def __init__(self, services: Services, caller: Caller) -> None:
        self._services = services
        self._caller = caller

    def obtain(self) -> str:
        """Return a token of the task."""
        from airflow.sdk.log import mask_secret

        token = self._services.tokens.issue(self._caller).token
        mask_secret(token)
        return token


@contextmanager
def serving(services: Services) -> Iterator[str]:
    """
    Serve the API to this machine alone, on a free port, from a thread.

    :param services: What the routes work with.
    :return: Root of the server.
    """
    import uvicorn

    from airflow_provider_statecheck.api.app import create_server_app

    app = create_server_app(services)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, log_level="warning"))
    # Bound before the thread starts: a connection that comes early waits.
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True, name="statecheck-api")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 10.0
_GRACE_SECONDS = 1.0


class DriverCheckpoints:
    """
    Follows the checkpoints of one attempt in the rows of its job and logs a line for each, as the driver would.

    :param view: Gives the rows of the job, ``None`` if there are none.
    :param attempt: The attempt that the driver speaks for.
    :param checkpoint_log: Writes the lines.
    """

    def __init__(self, view: Callable[[], JobView | None], attempt: AttemptRef, checkpoint_log: CheckpointLog) -> None:
        self._view = view
        self._attempt = attempt
        self._log = checkpoint_log
        self._told: set[int] = set()
        self._restored: int | None = None

    def skip(self) -> None:
        """Pass over what an earlier try of the task has logged already."""
        view = self._look()
        if view is not None:
            self._restored = self._restored_id(view)
            self._told.update(c.checkpoint_id for c in self._ended(view))

    def tell(self) -> None:
        """Log what has happened since the last call."""
        view = self._look()
        if view is not None:
            self._tell_restored(view)
            self._tell_ended(view)

    def _look(self) -> JobView | None:
        try:
            return self._view()
        except StateCheckError as error:
            log.debug("The checkpoints of the driver are looked at again later: %s", error)
            return None

    def _tell_restored(self, view: JobView) -> None:
        restored = self._restored_id(view)
        row = next((c for c in view.checkpoints if c.checkpoint_id == restored), None)
        if row is not None and restored != self._restored:
            self._restored = restored
            self._log.restored(row)

    def _tell_ended(self, view: JobView) -> None:
        for checkpoint in self._ended(view):
            if checkpoint.checkpoint_id in self._told:
                continue
            self._told.add(checkpoint.checkpoint_id)
            if checkpoint.completed_at is not None:
                self._log.completed(checkpoint)
            else:
                self._log.failed(checkpoint)

    def _restored_id(self, view: JobView) -> int | None:
        # The row of the attempt names a candidate until the driver confirms; the statistics know only what was confirmed.
        record = next((s for s in view.statistics if s.operator_id == self._attempt.operator_id), None)
        latest = OperatorStatistics.of(record).latest_restored
        return latest.checkpoint_id if latest is not None and latest.epoch == self._attempt.epoch else None

    def _ended(self, view: JobView) -> list[CheckpointRecord]:
        mine = (c for c in view.of_operator(self._attempt.operator_id) if c.epoch == self._attempt.epoch)
        return [c for c in mine if not c.properties.is_savepoint and (c.completed_at is not None or _has_failed(c))]


@contextmanager
def repeatedly(tell: Callable[[], None], every_seconds: float = _SECONDS_BETWEEN_LOOKS) -> Iterator[None]:
    """
    Call something every few seconds while the block runs, in a thread, and once more behind it.

    :param tell: What to call; it raises nothing.
    """
    over = threading.Event()

    def work() -> None:
        while not over.wait(every_seconds):
            tell()

    thread = threading.Thread(target=work, daemon=True, name="statecheck-driver-checkpoints")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_GRACE_SECONDS)
        if not thread.is_alive():
            tell()


def _has_failed(checkpoint: CheckpointRecord) -> bool:
    is_aborted = checkpoint.status is CheckpointStatus.ABORTED
    return is_aborted and checkpoint.failure_reason != CheckpointFailureReason.ATTEMPT_ENDED.value


class SubmittedStage:
    """
    Registers the attempt for the driver or adopts the one that still runs, and closes what the driver left open.

    :param access: The way to the coordinator.
    :param registration: Who asks, under which job and uid, with which settings.
    :param driver: What the driver decides by itself.
    :param on_overlap: What to do while another run's attempt has the operator.
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
        self._gateway = over_http(access.gateway)
        self._driver = driver
        self._on_overlap = on_overlap
        self._attempt: AttemptRef | None = None
        self._checkpoints: DriverCheckpoints | None = None

    def register(self) -> Handover:
        """
        Register an attempt, which fences all earlier ones.

        :return: What the driver needs; it opens this attempt alone.
        """
        grant = registering(self._gateway.register, self._on_overlap)(self.registration)
        self._attempt, self._checkpoints = grant.attempt, self._followed(grant.attempt)
        self._log_of(grant.attempt).registered(grant)
        return Handover(
            url=self._access.url,
            token=self._access.gateway.token_of(self._attempt),
            registration=self.registration,
            driver=self._driver,
        )

    def adopt_running(self) -> None:
        """Speak for the attempt of a driver that an earlier try submitted; a try that submitted one has its own."""
        running = self._newest_attempt() if self._attempt is None else None
        if running is None or running.status is not AttemptStatus.RUNNING:
            return
        ref = AttemptRef(job_id=running.job_id, operator_id=running.operator_id, epoch=running.epoch)
        try:
            self._gateway.adopt(AdoptAttempt(attempt=ref, owner=self.registration.owner))
        except StaleAttemptError as ended:
            log.info("The driver's attempt ended before it could be adopted: %s", ended)
            return
        self._attempt, self._checkpoints = ref, self._followed(ref)
        self._checkpoints.skip()
        log.info("Attempt %s of job %r goes on; its driver was adopted.", ref.epoch, self.registration.job_name)

    def log_checkpoints(self) -> None:
        """Log what became of the driver's checkpoints since the last call; its own log may be on another machine."""
        if self._checkpoints is not None:
            self._checkpoints.tell()

    def was_cleared(self) -> bool:
        """Tell whether the task was cleared since its newest attempt registered."""
        newest = self._newest_attempt()
        return newest is not None and newest.owner.clear_marker != self.registration.owner.clear_marker

    def close(self, status: AttemptStatus, message: str = "") -> None:
        """Close the attempt if its driver ended without doing so."""
        if self._attempt is None:
            return
        try:
            self._gateway.finish(FinishAttempt(attempt=self._attempt, status=status, message=message))
        except StaleAttemptError as replaced:
            log.info("%s", replaced)
        except StateCheckError as error:
            # The next registration fences it; what became of the driver is what counts here.
            log.warning("The attempt could not be closed, the next one will fence it: %s", error)

    def stopped_with(self) -> str | None:
        """Return where the savepoint is with which the driver stopped, ``None`` if it was not asked to."""
        try:
            view = self._view()
        except StateCheckError as error:
            log.warning("Whether the stage was asked to stop cannot be told: %s", error)
            return None
        return None if view is None or self._attempt is None else stopping_savepoint(view, self._attempt)

    def failure(self) -> str:
        """Return why the driver says that it failed, nothing where it did not say or cannot be asked."""
        try:
            newest = self._newest_attempt()
        except StateCheckError as error:
            log.warning("Why the driver failed cannot be told: %s", error)
            return ""
        is_mine = newest is not None and self._attempt is not None and newest.epoch == self._attempt.epoch
        return newest.message if newest is not None and is_mine else ""

    def kept(self) -> str:
        """Say what a retry will find, or that a newer attempt runs already."""
        try:
            view = self._view()
        except StateCheckError as error:
            return f"What job {self.registration.job_name!r} kept cannot be told: {error}"
        newest = self._newest_of(view)
        if newest is not None and self._attempt is not None and newest.epoch > self._attempt.epoch:
            return fenced_line(self.registration.job_name, self._attempt.epoch, newest.epoch)
        latest = None if view is None else latest_retained(view, self._operator_id(view))
        return retained_line(self.registration, latest)

    def _followed(self, attempt: AttemptRef) -> DriverCheckpoints:
        return DriverCheckpoints(self._view, attempt, self._log_of(attempt))

    def _log_of(self, attempt: AttemptRef) -> CheckpointLog:
        return CheckpointLog(self.registration.job_name, self.registration.uid, attempt.epoch)

    def _newest_attempt(self) -> AttemptRecord | None:
        return self._newest_of(self._view())

    def _newest_of(self, view: JobView | None) -> AttemptRecord | None:
        operator_id = None if view is None else self._operator_id(view)
        mine = [] if view is None else [o for o in view.operators if o.operator_id == operator_id]
        return view.current_attempt(mine[0]) if view is not None and mine else None

    def _operator_id(self, view: JobView) -> OperatorId:
        if self._attempt is not None:
            return self._attempt.operator_id
        # By the task before the uid: the operator may have begun under a former one.
        task = self.registration.owner.logical_task
        newest = {each.operator_id: each for each in view.attempts if each.owner.logical_task == task}
        mine = max(newest.values(), key=lambda attempt: attempt.registered_at, default=None)
        return operator_id_of(self.registration.uid) if mine is None else mine.operator_id

    def _view(self) -> JobView | None:
        try:
            return self._gateway.describe(job_id_of(self.registration.job_name))
        except CheckpointNotFoundError:
            return None
