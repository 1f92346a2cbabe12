"""
Savepoints of a whole job.

The request of a savepoint, its checkpoint and what each stage has given are rows, so any process that reaches the rows
and the storage carries it on: the command that requested it, another command, or the maintenance Dag. A stage is not
disturbed; its next checkpoint becomes its member. With a savepoint that stops the job, a stage waits after its member
(suspend) or the savepoint waits for its end (terminate).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.steps import DEFAULT_LEASE
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    CheckpointError,
    CheckpointExpiredError,
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    CoordinatorError,
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StaleAttemptError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.maintenance.gc import JobReport, OpenStorage
from airflow_provider_statecheck.maintenance.job_maintenance import SIDE_BY_SIDE, JobMaintenance, each_job
from airflow_provider_statecheck.maintenance.savepoint_members import (
    GivingStatus,
    MemberChoice,
    Positions,
    StageAtTrigger,
    require_members,
)
from airflow_provider_statecheck.maintenance.savepoint_steps import OWNER, SavepointSteps, leading_savepoints
from airflow_provider_statecheck.maintenance.savepoints import (
    JobSavepoints,
    delete_files,
    missing_directory,
    serve_idle,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, DocumentCache, load_document
from airflow_provider_statecheck.storage.uris import normalise_savepoint_dir, redact

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 2.0
_KINDS = {
    None: CheckpointType.SAVEPOINT,
    "suspend": CheckpointType.SAVEPOINT_SUSPEND,
    "terminate": CheckpointType.SAVEPOINT_TERMINATE,
}
_NO_MEMBER = (
    CheckpointDeclinedError,
    CheckpointNotFoundError,
    CorruptStateError,
    IncompatibleCheckpointError,
    UnsupportedStateError,
)
"""Errors of a stage that cannot give a member, in contrast to an unavailable storage."""


class MembersNotPinnedError(Exception):
    """The rows have changed since they were read: the savepoint has ended, or a chosen member was rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeJobSavepoints:
    """Requests savepoints of whole jobs, and takes them as far as the stages allow."""

    rows: AlignedCheckpoints
    """Rows of aligned checkpoints, of which a savepoint of the whole job is one."""
    maintenance: JobMaintenance
    savepoints: JobSavepoints
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
        kind: CheckpointType = CheckpointType.SAVEPOINT,
        request_key: str,
    ) -> None:
        """
        Request a savepoint of a job, and trigger it; a known key is the same request.

        :param target: Parent directory of the savepoint, ``None`` for the configured one.
        :param kind: ``SAVEPOINT``, or a kind that stops the job.
        :raises CheckpointNotFoundError: if the job has no stage with state, or retention has released the state of one.
        :raises CheckpointDeclinedError: if a stage has not yet restored what a restore in place has requested.
        :raises ConcurrentAttemptError: if another savepoint of the job is in progress, or a program takes its own.
        :raises InvalidConfigurationError: if there is neither a target nor a configured directory, or the target is
            invalid.
        """
        target = self.directory_of(target)
        if target is None and self.directory is None:
            raise missing_directory()
        require_members(view)
        _require_no_own_coordinator(view)
        self.savepoints.request(
            RequestSavepoint.of_job(
                view.job.job_id,
                request_key=request_key,
                target=target,
                savepoint_format=savepoint_format,
                kind=kind,
                requested_by="a savepoint of the whole job",
            )
        )
        self._take_of_job(self.maintenance.describe(view.job.job_id))

    def directory_of(self, target: str | None) -> str | None:
        """
        Return the parent directory of a requested savepoint in its usual form.

        :param target: Directory that the user gave, ``None`` for the configured one.
        :raises InvalidConfigurationError: if it is invalid, or its filesystem is not installed.
        """
        # A filesystem that does not exist would fail the savepoint, and then each garbage collection of the job.
        return None if target is None else self.open_storage(normalise_savepoint_dir(target)).base_uri

    def pointer_of(self, job_id: JobId, request_key: str, timeout: float) -> str:
        """
        Wait for a requested savepoint and the stop that it requests, and return the URI of its directory.

        :param timeout: The longest wait in seconds.
        :raises CheckpointDeclinedError: if the savepoint failed.
        :raises CheckpointExpiredError: if it was not complete within the timeout; it remains requested.
        :raises CheckpointError: if it is complete, and a stage did not stop within the timeout; ``pointer`` is its
            directory.
        """
        request, awaited = self.wait_for(job_id, request_key, timeout)
        taken = None if request.checkpoint_id is None else self.maintenance.checkpoint(job_id, request.checkpoint_id)
        if request.status is RequestStatus.COMPLETED and taken is not None:
            if awaited:
                raise not_stopped(awaited, taken.location)
            return taken.location
        if request.status.is_open:
            raise CheckpointExpiredError(
                f"Expected a savepoint within {timeout:.0f} seconds, found that it awaits "
                f"{', '.join(awaited) or 'its files'}; the maintenance Dag completes it when they have "
                f"{_awaited_of(request)}."
            )
        raise CheckpointDeclinedError(f"The savepoint failed: {request.failure_message}")

    def wait_for(self, job_id: JobId, request_key: str, timeout: float) -> tuple[CheckpointRequest, tuple[str, ...]]:
        """
        Take the requested savepoints of a job until a request has ended, and the stages with which it stops.

        The wait goes on while the coordinator does not answer, as the request is recorded.

        :param timeout: The longest wait in seconds; 0 for one attempt.
        :return: The request, and the uids of the stages whose next checkpoint a savepoint of the job awaits. After the
            completion of a savepoint with which the job suspends, those that have not stopped yet.
        :raises CheckpointNotFoundError: if there is no such job or request.
        :raises CoordinatorError: if the coordinator does not answer at the end of the wait.
        """
        deadline = self.monotonic() + timeout
        while True:
            try:
                request, awaited = self._take_requested(job_id, request_key)
                if self.monotonic() >= deadline or not (request.status.is_open or awaited):
                    return request, awaited
            except CoordinatorError as error:
                if not error.retryable or self.monotonic() >= deadline:
                    raise
                log.warning("The savepoint cannot be awaited at present; the next call goes on: %s", error)
            self.pause(_PAUSE_SECONDS)

    def _take_requested(self, job_id: JobId, request_key: str) -> tuple[CheckpointRequest, tuple[str, ...]]:
        awaited = self.take(job_id)
        view = self.maintenance.describe(job_id)
        request = _request_in(view, request_key)
        return request, awaited if request.status.is_open else _unstopped_by(view, request)

    def take_all(self, job_ids: Iterable[JobId]) -> list[JobReport]:
        """Take the requested savepoints of several jobs as :meth:`take`; return the jobs whose savepoints failed."""
        reports = each_job(job_ids, self._taken, JobReport, side_by_side=SIDE_BY_SIDE)
        return [each for each in reports if each.problems or each.unreachable]

    def _taken(self, job_id: JobId) -> JobReport:
        self.take(job_id)
        return JobReport(job=job_id)

    def take(self, job_id: JobId) -> tuple[str, ...]:
        """
        Take the requested savepoints of a job and of its operators that do not run, as far as the stages allow.

        Savepoints that have expired fail. A running stage takes its own savepoint itself.

        :return: The uids of the stages whose next checkpoint a savepoint of the job awaits.
        :raises CheckpointNotFoundError: if there is no such job.
        :raises StateCheckError: if the rows or the storage fail; the call may be repeated.
        """
        view = self.maintenance.describe(job_id)
        for taken in serve_idle(self.savepoints, view, self.open_storage, self.directory):
            if taken.problem is not None:
                log.warning("Savepoint of operator %r failed: %s", taken.uid, taken.problem)
        return self._take_of_job(view)

    def _take_of_job(self, view: JobView) -> tuple[str, ...]:
        request = _open_request(view)
        try:
            return () if request is None else self._go_on(view, request)
        except (StaleAttemptError, MembersNotPinnedError) as error:
            log.info("Another process takes the savepoint of the job: %s", error)
            return ()

    def _go_on(self, view: JobView, request: CheckpointRequest) -> tuple[str, ...]:
        pending = view.checkpoint(request.checkpoint_id)
        if pending is None or pending.status is not CheckpointStatus.PENDING or pending.expires_at <= view.read_at:
            # Trigger it, expire it, or finalize it if its finalizer has ended.
            return () if _is_being_finalized(view, pending) else self._tick(view, request)
        acknowledgements = self._pin(pending, {})
        if _is_left_untriggered(view, pending, acknowledgements):
            return self._tick(view, request)
        return self._advance(view, request, pending, _stages_in(acknowledgements))

    def _tick(self, view: JobView, request: CheckpointRequest) -> tuple[str, ...]:
        with self._steps(view, request) as steps:
            steps.expire()
            steps.begin(request)
        return ()

    def _steps(self, view: JobView, request: CheckpointRequest) -> AbstractContextManager[SavepointSteps]:
        _require_no_own_coordinator(view)
        return leading_savepoints(self.rows, self._storage(view), view, request.target or self.directory)

    def _storage(self, view: JobView) -> CheckpointStorage:
        directories = [d for operator in view.operators for d in view.directories_of(operator.operator_id)]
        targets = [self.directory, *(request.target for request in view.requests if request.status.is_open)]
        return self.open_storage(_storage_base(view)).allowing(*targets, *directories)

    def _advance(
        self, view: JobView, request: CheckpointRequest, pending: CheckpointRecord, stages: Iterable[StageAtTrigger]
    ) -> tuple[str, ...]:
        storage = self._storage(view).allowing(pending.location)
        try:
            chosen = MemberChoice(view, pending, _Documents(storage, self.maintenance, view)).members(stages)
            acknowledgements = self._pin(pending, chosen)
            awaited = tuple(stage.uid for stage, member in chosen.items() if _is_awaited(stage, member))
            if not awaited:
                self._give(view, request, pending, storage, chosen, acknowledgements)
        except _NO_MEMBER as error:
            with self._steps(view, request) as steps:
                steps.decline(pending, error)
            return ()
        return awaited

    def _pin(
        self, pending: CheckpointRecord, chosen: Mapping[StageAtTrigger, CheckpointRecord | None]
    ) -> tuple[AcknowledgementRecord, ...]:
        members = {m.operator_id: member.checkpoint_id for m, member in chosen.items() if member is not None}
        try:
            return self.savepoints.pin(pending.job_id, pending.checkpoint_id, members)
        except CheckpointNotFoundError as error:
            raise MembersNotPinnedError(str(error)) from error

    def _give(
        self,
        view: JobView,
        request: CheckpointRequest,
        pending: CheckpointRecord,
        storage: CheckpointStorage,
        chosen: Mapping[StageAtTrigger, CheckpointRecord | None],
        acknowledgements: Iterable[AcknowledgementRecord],
    ) -> None:
        """Copy the members that the savepoint still awaits, and acknowledge it for all stages."""
        open_ids = {a.attempt_id for a in acknowledgements if not a.is_acknowledged}
        with self._steps(view, request) as steps:
            for stage, member in chosen.items():
                if stage.attempt_id in open_ids and not self._gives(steps, storage, stage, member, pending):
                    return

    def _gives(
        self,
        steps: SavepointSteps,
        storage: CheckpointStorage,
        stage: StageAtTrigger,
        member: CheckpointRecord | None,
        pending: CheckpointRecord,
    ) -> bool:
        copy = None if member is None else _copied(storage, stage, member, pending)
        try:
            is_given = steps.give(pending, stage, copy)
        except StaleAttemptError:
            self._delete_if_ended(storage, pending)
            raise
        if not is_given:
            self._delete_if_ended(storage, pending)
        return is_given

    def _delete_if_ended(self, storage: CheckpointStorage, savepoint: CheckpointRecord) -> None:
        # Its files may have been deleted while this process still copied.
        row = self.maintenance.checkpoint(savepoint.job_id, savepoint.checkpoint_id)
        if row is not None and row.has_ended:
            delete_files(storage, row)


def _is_awaited(stage: StageAtTrigger, member: CheckpointRecord | None) -> bool:
    return member is None and stage.status is GivingStatus.GIVING


def _copied(
    storage: CheckpointStorage, stage: StageAtTrigger, member: CheckpointRecord, savepoint: CheckpointRecord
) -> CheckpointDocument:
    from airflow_provider_statecheck.state.writing.canonical import copies_of

    source = load_document(storage, member)
    _require_own(source, stage)
    copy = copies_of(storage, source, savepoint.location, savepoint.properties).of_document(source)
    return replace(copy, properties=savepoint.properties, run=member.run_key)


def _require_own(source: CheckpointDocument, stage: StageAtTrigger) -> None:
    # The names of the states within a checkpoint begin with the uid that took it.
    if source.uid != stage.uid:
        raise CheckpointDeclinedError(
            f"Expected a checkpoint of stage {stage.uid!r}, found only the one that it started from, of stage "
            f"{source.uid!r} in job {source.job_name!r}; run the stage until it completes a checkpoint."
        )


class _Documents:
    """The metadata of checkpoints, as what their stages depend on."""

    def __init__(self, storage: CheckpointStorage, rows: JobMaintenance, view: JobView) -> None:
        from airflow_provider_statecheck.spark.connectors.sink import lineage_of
        from airflow_provider_statecheck.spark.stages.stage_state import SINK

        self._storage = storage
        self._rows = rows
        self._job_id = view.job.job_id
        self._documents = DocumentCache(lambda _: storage)
        self._stages = {lineage_of(o.job_id, f"{o.uid}/{SINK}"): o.operator_id for o in view.stages}

    def positions_of(self, checkpoint: CheckpointRecord) -> Positions:
        """Return the checkpoints of other stages whose output a checkpoint has listed, by stage."""
        from airflow_provider_statecheck.state.reading.checkpoint_contents import input_ledgers

        ledgers = input_ledgers(self._storage, self._documents.load(checkpoint))
        positions: dict[OperatorId, list[int]] = {}
        for item in (item for ledger in ledgers for item in ledger.items):
            lineage, _, number = item.name.rpartition("/")
            if lineage in self._stages and number.isdigit():
                positions.setdefault(self._stages[lineage], []).append(int(number))
        return positions

    def copied_checkpoint(self, adopted: CheckpointRecord) -> int:
        """
        Return the checkpoint of the same operator that a restored savepoint copies.

        0 for one of another operator.
        """
        document = self._documents.load(adopted)
        is_own = (document.job_id, document.operator_id) == (adopted.job_id, adopted.operator_id)
        return document.checkpoint_id if is_own else 0

    def row(self, checkpoint_id: int) -> CheckpointRecord | None:
        """Return the row of a checkpoint; ``None`` if it is removed."""
        return self._rows.checkpoint(self._job_id, checkpoint_id)


def _stages_in(acknowledgements: Iterable[AcknowledgementRecord]) -> list[StageAtTrigger]:
    # A stage for which the savepoint was acknowledged without a member has none, also if it has begun again since.
    giving = (a for a in acknowledgements if not a.is_acknowledged or a.manifest_uri is not None)
    found = (StageAtTrigger.named(a.attempt_id, a.operator_id) for a in giving)
    return [stage for stage in found if stage is not None]


def savepoint_kind(stop: str | None) -> CheckpointType:
    """
    Return the kind of a savepoint after which a stage or a whole job stops as requested.

    :param stop: ``suspend``, ``terminate``, or ``None`` for a savepoint that stops nothing.
    :raises InvalidConfigurationError: for another value.
    """
    if stop not in _KINDS:
        raise InvalidConfigurationError(f"Expected stop to be 'suspend', 'terminate' or None, found {stop!r}.")
    return _KINDS[stop]


def not_stopped(uids: Iterable[str], pointer: str) -> CheckpointError:
    """Return the error of a completed savepoint with which stages should have stopped that still run."""
    return CheckpointError(
        f"Expected all stages to stop with savepoint {redact(pointer)}, found that these still run: {', '.join(uids)}; "
        "the savepoint is complete and retained, so stop their tasks in Airflow.",
        pointer=redact(pointer),
    )


def _awaited_of(request: CheckpointRequest) -> str:
    return "ended" if request.properties.is_terminate else "taken their next checkpoints"


def _request_in(view: JobView, request_key: str) -> CheckpointRequest:
    request = next((each for each in view.requests if each.request_key == request_key), None)
    if request is None:
        raise CheckpointNotFoundError(
            f"Expected a savepoint request {request_key} in job {view.job.name!r}, found none; request the savepoint "
            "again."
        )
    return request


def _unstopped_by(view: JobView, request: CheckpointRequest) -> tuple[str, ...]:
    """
    Return the uids of the stages that ran at the trigger of a completed savepoint of a suspended job, and still run.
    """
    taken = view.checkpoint(request.checkpoint_id)
    is_stop = request.properties.snapshot_type is CheckpointType.SAVEPOINT_SUSPEND
    if taken is None or taken.completed_at is None or not is_stop or not request.is_of_job:
        return ()
    attempts = [a for a in view.attempts if a.registered_at <= taken.completed_at]
    ran = {a.operator_id for a in attempts if a.ran_at(taken.triggered_at)}
    # An attempt that has begun since resumes the stage.
    still = {a.operator_id for a in attempts if a.is_running and a.operator_id in ran}
    return tuple(o.uid for o in view.stages if o.operator_id in still)


def _open_request(view: JobView) -> CheckpointRequest | None:
    # The requests of a coordinator in a program have no requester, and are left to it.
    return next((r for r in view.requests_of_job if r.requested_by), None)


def _is_being_finalized(view: JobView, savepoint: CheckpointRecord | None) -> bool:
    if savepoint is None or savepoint.status is not CheckpointStatus.FINALIZING:
        return False
    return savepoint.lease_until is not None and savepoint.lease_until > view.read_at


def _is_left_untriggered(
    view: JobView, savepoint: CheckpointRecord, acknowledgements: Iterable[AcknowledgementRecord]
) -> bool:
    own = (a for a in acknowledgements if a.is_of_job)
    is_triggered = all(a.acknowledged_at is not None for a in own)
    return not is_triggered and view.read_at - savepoint.triggered_at > DEFAULT_LEASE


def _require_no_own_coordinator(view: JobView) -> None:
    operator = view.operator_of_job
    newest = None if operator is None else view.current_attempt(operator)
    if operator is None or newest is None or newest.owner.logical_task == OWNER.logical_task:
        return
    if view.has_open_attempt(operator):
        raise ConcurrentAttemptError(
            f"Job {view.job.name!r} has a coordinator of its own, {newest.owner.label}; take the savepoint in that "
            "program.",
            uid=operator.uid,
            holder=newest.owner.label,
        )


def _storage_base(view: JobView) -> str:
    bases = [a.storage_base for a in view.attempts if a.storage_base]
    return bases[-1] if bases else ""
