"""
Savepoints of a whole job.

The coordinator of several operators takes them. Its request, its checkpoint and what each stage has given are rows, so any
process that reaches the rows and the storage carries a savepoint on: the command that requested it, another command, or the
maintenance Dag. A stage is not disturbed; its next checkpoint becomes its part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.aligned.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.checkpoint.aligned.notifications import AcknowledgeMessage, DeclineMessage
from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionTask
from airflow_provider_statecheck.checkpoint.aligned.rows import CoordinatorRows, Resign, TakeLeadership
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, OperatorId, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, PinParts
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    AttemptOwner,
    CheckpointRecord,
    CheckpointStatus,
    RequestStatus,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.checkpoint.transitions import SAVEPOINT_TIMEOUT
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    CheckpointExpiredError,
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    CorruptStateError,
    StateCheckError,
)
from airflow_provider_statecheck.maintenance.parts import Member, PartChoice, Positions, members_of, require_members
from airflow_provider_statecheck.maintenance.savepoints import serve_idle

if TYPE_CHECKING:
    from airflow_provider_statecheck.maintenance.gc import OpenStorage
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
    from airflow_provider_statecheck.maintenance.savepoints import SavepointGateway
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
    from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument

log = logging.getLogger(__name__)

_OWNER = AttemptOwner(
    logical_task="savepoints of the job", run_key="", run_id="", clear_marker="", label="savepoints of the job"
)
"""Owner of the leadership of a process that takes savepoints of a job."""
_PAUSE_SECONDS = 2.0
_NO_PART = (CheckpointDeclinedError, CheckpointNotFoundError, CorruptStateError)
"""Errors of a stage that cannot give a part, in contrast to an unavailable storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeJobSavepoints:
    """Requests savepoints of whole jobs, and takes them as far as the stages allow."""

    rows: CoordinatorRows
    """Rows of coordinators of several operators."""
    maintenance: MaintenanceGateway
    savepoints: SavepointGateway
    open_storage: OpenStorage
    """Function that opens the storage of a checkpoint directory."""
    directory: str | None
    """Directory of savepoints whose request names none."""
    pause: Callable[[float], object] = time.sleep
    """Waits for a number of seconds."""
    monotonic: Callable[[], float] = time.monotonic

    def request(
        self,
        view: JobView,
        target: str | None = None,
        savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
        *,
        request_key: str,
    ) -> None:
        """
        Request a savepoint of a job; a known key is the same request.

        :param target: Parent directory of the savepoint, ``None`` for the configured one.
        :raises CheckpointNotFoundError: The job has no stage with state, or retention has released the state of one.
        :raises ConcurrentAttemptError: A program takes aligned checkpoints of the job.
        :raises InvalidConfigurationError: There is neither a target nor a configured directory.
        :raises CheckpointException: The savepoint was refused.
        """
        require_members(view)
        # It waits for a savepoint in progress, because a stage has one pinned checkpoint.
        properties = CheckpointProperties.for_savepoint(force=False, savepoint_format=savepoint_format)
        with self._coordinator(view, target) as coordinator:
            future = coordinator.trigger_checkpoint(properties, target, request_key=request_key)
            if future.done():
                future.result(0)

    def pointer_of(self, job_id: JobId, request_key: str, timeout: float) -> str:
        """
        Wait for a requested savepoint, and return the URI of its directory.

        :param timeout: The longest wait in seconds.
        :raises CheckpointDeclinedError: The savepoint failed.
        :raises CheckpointExpiredError: It was not complete within the timeout; it remains requested.
        """
        request, awaited = self.wait_for(job_id, request_key, timeout)
        taken = None if request.checkpoint_id is None else self.maintenance.checkpoint(job_id, request.checkpoint_id)
        if request.status is RequestStatus.COMPLETED and taken is not None:
            return taken.location
        if request.status.is_open:
            raise CheckpointExpiredError(
                f"Expected a savepoint within {timeout:.0f} seconds, found that it awaits {', '.join(awaited) or 'its files'}; "
                f"the maintenance Dag completes it when they have taken their next checkpoints."
            )
        raise CheckpointDeclinedError(f"The savepoint failed: {request.failure_message}")

    def wait_for(self, job_id: JobId, request_key: str, timeout: float) -> tuple[SnapshotRequest, tuple[str, ...]]:
        """
        Take the requested savepoints of a job until a request has ended.

        :param timeout: The longest wait in seconds; 0 for one attempt.
        :return: The request, and the uids of the stages whose next checkpoint a savepoint of the job awaits.
        :raises CheckpointNotFoundError: There is no such job or request.
        """
        deadline = self.monotonic() + timeout
        while True:
            awaited = self.take(job_id)
            request = self._request(job_id, request_key)
            if self.monotonic() >= deadline or not request.status.is_open:
                return request, awaited
            self.pause(_PAUSE_SECONDS)

    def _request(self, job_id: JobId, request_key: str) -> SnapshotRequest:
        view = self.maintenance.describe(job_id)
        request = next((each for each in view.requests if each.request_key == request_key), None)
        if request is None:
            raise CheckpointNotFoundError(
                f"Expected a savepoint request {request_key} in job {view.job.name!r}, found none; request the savepoint again."
            )
        return request

    def take_all(self, job_ids: Iterable[JobId]) -> None:
        """Take the requested savepoints of several jobs as :meth:`take`, and log failures."""
        for job_id in job_ids:
            try:
                self.take(job_id)
            except CheckpointNotFoundError:
                continue  # the job was removed in the meantime
            except StateCheckError as error:
                log.warning("Savepoints of job %s could not be taken; the next call goes on: %s", job_id, error)

    def take(self, job_id: JobId) -> tuple[str, ...]:
        """
        Take the requested savepoints of a job and of its operators that do not run, as far as the stages allow.

        Savepoints that have expired fail. A running stage takes its own savepoint itself.

        :return: The uids of the stages whose next checkpoint a savepoint of the job awaits.
        :raises CheckpointNotFoundError: There is no such job.
        :raises StateCheckError: The rows or the storage fail; the call may be repeated.
        """
        view = self.maintenance.describe(job_id)
        for taken in serve_idle(self.savepoints, view, self.open_storage, self.directory):
            if taken.problem is not None:
                log.warning("Savepoint of operator %r failed: %s", taken.uid, taken.problem)
        return self._take_of_job(view) if _is_requested(view) else ()

    def _take_of_job(self, view: JobView) -> tuple[str, ...]:
        with self._coordinator(view) as coordinator:
            coordinator.tick()
            view = self.maintenance.describe(view.job.job_id)
            awaited = [uid for pending in _pending(view) for uid in self._advance(coordinator, view, pending)]
            coordinator.tick()
        return tuple(awaited)

    @contextmanager
    def _coordinator(self, view: JobView, target: str | None = None) -> Iterator[CheckpointCoordinator]:
        from airflow_provider_statecheck.gateway.coordinators import new_coordinator

        config = CheckpointConfig()
        config.timeout = SAVEPOINT_TIMEOUT
        config.savepoint_dir = self.directory
        # Each call leads on its own: the next leader settles what a process that has ended had not triggered.
        leader = self._lead(view)
        try:
            with ThreadPoolExecutor(1) as executor:
                yield new_coordinator(
                    self.rows,
                    self._storage(view, target),
                    config,
                    leader,
                    job_name=view.job.name,
                    tasks=members_of(view),
                    callback=_Undisturbed(),
                    fail_task=_ignore,
                    executor=executor,
                )
        finally:
            self.rows.resign(Resign(leader=leader))

    def _storage(self, view: JobView, target: str | None = None) -> CheckpointStorage:
        directories = [d for operator in view.operators for d in view.directories_of(operator.operator_id)]
        targets = [request.target for request in view.requests if request.status.is_open]
        allowed = (each for each in (target, self.directory, *targets, *directories) if each is not None)
        return self.open_storage(_storage_base(view)).allowing(*allowed)

    def _lead(self, view: JobView) -> AttemptRef:
        operator = next((o for o in view.operators if o.operator_id == ALIGNED_OPERATOR_ID), None)
        newest = None if operator is None else view.current_attempt(operator)
        is_foreign = newest is not None and newest.owner.logical_task != _OWNER.logical_task
        if operator is not None and newest is not None and is_foreign and view.has_open_attempt(operator):
            raise ConcurrentAttemptError(
                f"Job {view.job.name!r} has a coordinator of its own, {newest.owner.label}; take the savepoint in that program.",
                uid=operator.uid,
                holder=newest.owner.label,
            )
        return self.rows.lead(
            TakeLeadership(
                job_name=view.job.name, attempt_key=new_key(), owner=_OWNER, storage_base=_storage_base(view)
            )
        )

    def _advance(self, coordinator: CheckpointCoordinator, view: JobView, pending: CheckpointRecord) -> list[str]:
        acknowledgements = self._pin(pending, {})
        members = _members_in(acknowledgements)
        try:
            chosen = PartChoice(view, pending, PositionsReader(self._storage(view), view)).parts(members)
            acknowledgements = self._pin(pending, chosen)
            awaited = [member.uid for member, part in chosen.items() if part is None]
            if not awaited:
                self._give(coordinator, view, pending, chosen, acknowledgements)
        except _NO_PART as error:
            coordinator.receive_decline_message(
                DeclineMessage(
                    job_id=pending.job_id,
                    attempt_id=members[0].attempt_id,
                    checkpoint_id=pending.checkpoint_id,
                    cause=CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED, error),
                )
            )
            return []
        return awaited

    def _pin(
        self, pending: CheckpointRecord, chosen: Mapping[Member, CheckpointRecord | None]
    ) -> tuple[AcknowledgementRecord, ...]:
        parts = {m.operator_id: part.checkpoint_id for m, part in chosen.items() if part is not None}
        return self.savepoints.pin(
            PinParts(job_id=pending.job_id, checkpoint_id=pending.checkpoint_id, parts=parts)
        ).acknowledgements

    def _give(
        self,
        coordinator: CheckpointCoordinator,
        view: JobView,
        pending: CheckpointRecord,
        chosen: Mapping[Member, CheckpointRecord | None],
        acknowledgements: Iterable[AcknowledgementRecord],
    ) -> None:
        """Copy the parts that the savepoint still awaits, and acknowledge it for their stages."""
        from airflow_provider_statecheck.storage.metadata_file import load_document
        from airflow_provider_statecheck.storage.savepoints import StateCopies

        storage = self._storage(view).allowing(pending.location)
        open_ids = {a.attempt_id for a in acknowledgements if not a.is_acknowledged}
        for member, part in chosen.items():
            if part is None or member.attempt_id not in open_ids:
                continue
            source = load_document(storage, part)
            _require_own(source, member)
            copy = StateCopies(storage, pending.location, source.epoch).of_document(source)
            message = AcknowledgeMessage(
                job_id=pending.job_id,
                attempt_id=member.attempt_id,
                checkpoint_id=pending.checkpoint_id,
                part=replace(copy, properties=pending.properties, run=part.run_key),
            )
            coordinator.receive_acknowledge_message(message)


def _require_own(source: CheckpointDocument, member: Member) -> None:
    # The names of the states within a checkpoint begin with the uid that took it.
    if source.uid != member.uid:
        raise CheckpointDeclinedError(
            f"Expected a checkpoint of stage {member.uid!r}, found only the one that it started from, of stage {source.uid!r} in "
            f"job {source.job_name!r}; run the stage until it completes a checkpoint."
        )


class PositionsReader:
    """
    Reads which output of other stages of the job a checkpoint has listed.

    :param storage: Storage of the checkpoints.
    :param view: Rows of the job.
    """

    def __init__(self, storage: CheckpointStorage, view: JobView) -> None:
        from airflow_provider_statecheck.spark.sinks.sink import lineage_of
        from airflow_provider_statecheck.spark.stages.stage_state import SINK

        self._storage = storage
        stages = [o for o in view.operators if o.operator_id != ALIGNED_OPERATOR_ID]
        self._stages = {lineage_of(o.job_id, f"{o.uid}/{SINK}"): o.operator_id for o in stages}
        self._known: dict[int, Positions] = {}

    def __call__(self, checkpoint: CheckpointRecord) -> Positions:
        """
        Return the checkpoints of other stages whose output a checkpoint has listed, by stage.

        :raises CorruptStateError: if the metadata or the state of the source is damaged.
        :raises CheckpointNotFoundError: if they are missing.
        """
        if checkpoint.checkpoint_id not in self._known:
            self._known[checkpoint.checkpoint_id] = self._read(checkpoint)
        return self._known[checkpoint.checkpoint_id]

    def _read(self, checkpoint: CheckpointRecord) -> Positions:
        from airflow_provider_statecheck.state.reading.checkpoint_contents import source_ledger
        from airflow_provider_statecheck.storage.metadata_file import load_document

        ledger = source_ledger(self._storage, load_document(self._storage, checkpoint))
        positions: dict[OperatorId, list[int]] = {}
        for item in () if ledger is None else ledger.items:
            lineage, _, number = item.name.rpartition("/")
            if lineage in self._stages and number.isdigit():
                positions.setdefault(self._stages[lineage], []).append(int(number))
        return positions


class _Undisturbed:
    """The job of a savepoint, which goes on after a failure; the row of the request reports it."""

    def fail_job(self, cause: Exception) -> None:
        log.warning("A savepoint of the job failed: %s", cause)

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        self.fail_job(cause)


def _ignore(task: ExecutionTask, error: Exception) -> None:
    """Do nothing: members are not notified, so no notification fails."""


def _members_in(acknowledgements: Iterable[AcknowledgementRecord]) -> list[Member]:
    found = (Member.named(a.attempt_id, a.operator_id) for a in acknowledgements if not a.is_finished)
    return [member for member in found if member is not None]


def _is_requested(view: JobView) -> bool:
    return any(r.operator_id == ALIGNED_OPERATOR_ID and r.status.is_open for r in view.requests)


def _pending(view: JobView) -> list[CheckpointRecord]:
    rows = view.of_operator(ALIGNED_OPERATOR_ID)
    return [c for c in rows if c.status is CheckpointStatus.PENDING and c.properties.is_savepoint]


def _storage_base(view: JobView) -> str:
    bases = [a.storage_base for a in view.attempts if a.storage_base]
    return bases[-1] if bases else ""
