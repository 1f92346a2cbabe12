"""A stage whose driver runs in another process, as the task that submitted it sees it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.ids import OperatorId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AdoptAttempt, AttemptRef, FinishAttempt, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, OnOverlap
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StaleAttemptError, StateCheckError
from airflow_provider_statecheck.gateway.taking_turns import registering
from airflow_provider_statecheck.hooks.driver_checkpoints import DriverCheckpoints
from airflow_provider_statecheck.hooks.transport import over_http
from airflow_provider_statecheck.spark.driver.handover import Handover
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.kept import kept_line, latest_kept, replaced_line, stopping_savepoint
from airflow_provider_statecheck.spark.status_log import CheckpointLog

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.job_view import JobView
    from airflow_provider_statecheck.hooks.driver_access import DriverAccess

log = logging.getLogger(__name__)


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
            return replaced_line(self.registration.job_name, self._attempt.epoch, newest.epoch)
        latest = None if view is None else latest_kept(view, self._operator_id(view))
        return kept_line(self.registration, latest)

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
