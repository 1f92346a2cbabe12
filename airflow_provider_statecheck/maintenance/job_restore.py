"""
Restore of a job in place, from a savepoint of the whole job.

All stages return to the savepoint in one transaction, which changes rows only: the next attempt of each stage restores
its member, and a stage without a member starts without state. Sinks keep the output up to the member and retract
the later output with their first commit. The savepoint is read and verified before, and is never owned by the job.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from airflow_provider_statecheck.checkpoint import savepoint_restore, start_decision, transitions
from airflow_provider_statecheck.checkpoint.fencing import TaskLiveness, is_earlier_run, logical_date_of
from airflow_provider_statecheck.checkpoint.ids import METADATA_FILE, JobId, new_key
from airflow_provider_statecheck.checkpoint.properties import RestoreMode, RestoreSource
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    InPlaceRestore,
    JobAction,
    JobRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction, JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.maintenance.rewind import changing, dead_attempts, require_no_running_task
from airflow_provider_statecheck.maintenance.savepoints import row_of
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument
from airflow_provider_statecheck.storage.pointers import pointer_uri, resolve_checkpoint
from airflow_provider_statecheck.storage.uris import normalise_pointer, redact

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedMember:
    """Copied checkpoint of one stage in a savepoint of the whole job."""

    uid: str
    checkpoint_id: int
    """Id of the copied checkpoint."""
    generation: int
    run: str
    """Run that the stage had reached; empty if unknown."""
    source: RestoreSource
    is_foreign: bool = False
    """Whether another job took the checkpoint, whose id and generation are then not those of this job."""

    def is_of(self, operator: OperatorRecord) -> bool:
        """Return whether the checkpoint belongs to the current generation of its operator."""
        return not self.is_foreign and self.generation == operator.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSavepoint:
    """Verified savepoint of a whole job."""

    pointer: str
    members: tuple[SavedMember, ...] = field(metadata={"alias": "parts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreJob:
    """Request to restore a job in place."""

    job_id: JobId
    savepoint: JobSavepoint
    requested_by: str
    request_key: str = field(default_factory=new_key)
    """Idempotency key of the request."""
    dry_run: bool = False
    """Whether to only return the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredOperator:
    """Result for one operator."""

    uid: str
    member: SavedMember | None = field(metadata={"alias": "part"})
    """Member that the next attempt restores; ``None`` if it starts without state."""
    taken_back: tuple[CheckpointRecord, ...]
    """Checkpoints whose work is not in the member, newest first."""
    first_run: str
    """First run that may have work that is not in the member; empty if unknown."""
    newest: AttemptRecord | None = None
    """Newest attempt, whose task must run again; ``None`` if its row is removed."""
    fenced: AttemptRecord | None = None
    """Open attempt that is fenced because its task is not running."""
    replaced: str = ""
    """The choice or the restore that this one replaces, for display; empty if there is none."""
    warning: str = ""
    """What is known against the start, such as why the sink may refuse the member, for display; empty if nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredJob:
    """Result for a job."""

    operators: tuple[RestoredOperator, ...]
    missing: tuple[SavedMember, ...]
    """Members of stages that the job does not have, for instance of map keys that were removed."""

    @property
    def tasks_to_run(self) -> tuple[str, ...]:
        """
        How the tasks of the operators run again: commands of Airflow, or a text where none can name the runs.
        """
        return tuple(tasks_to_run(self.operators))


def read_savepoint(open_storage: Callable[[str], CheckpointStorage], pointer: str, job: JobRecord) -> JobSavepoint:
    """
    Read a savepoint for a restore in place, and verify every byte that its metadata has a checksum of.

    :param open_storage: Opens the storage of a URI.
    :raises CheckpointNotFoundError: if there is nothing at the pointer.
    :raises IncompatibleCheckpointError: if it is not a savepoint of this whole job.
    :raises CorruptStateError: if the savepoint cannot be restored.
    :raises StorageError: if the storage is unavailable.
    """
    uri = pointer_uri(pointer)
    storage = open_storage(uri)
    found = resolve_checkpoint(storage, uri)
    document, file = found.read()
    _require_of_job(document, found.external_pointer, job)
    problems = CheckpointVerifier(storage, is_deep=True).verify_pointer(uri).problems
    if problems:
        raise CorruptStateError(
            f"Expected the savepoint {redact(found.external_pointer)} to be complete, found: {'; '.join(problems)}. "
            "Nothing was changed; restore its files from a backup, or restore another savepoint."
        )
    members = tuple(_member(found.external_pointer, file, each, job.job_id) for each in document.members)
    return JobSavepoint(pointer=found.external_pointer, members=members)


def _require_of_job(document: CheckpointDocument, pointer: str, job: JobRecord) -> None:
    if document.job_id != job.job_id:
        raise IncompatibleCheckpointError(
            f"Expected a savepoint of job {job.name!r} to restore it in place, found one of job {document.job_name!r} "
            f"in {redact(pointer)}; nothing was changed. Start the tasks in another job with from_savepoint= set to "
            "this pointer.",
            uid=document.uid,
        )
    if not document.members:
        raise IncompatibleCheckpointError(
            f"Expected a savepoint of all stages of job {job.name!r}, found a checkpoint of {document.uid!r} alone in "
            f"{redact(pointer)}; nothing was changed. Choose a retained checkpoint of one operator on the page of the "
            "job, or start the task in another job with from_savepoint= set to this pointer.",
            uid=document.uid,
        )


def _member(pointer: str, file: FileStateHandle, member: CheckpointDocument, job_id: JobId) -> SavedMember:
    source = RestoreSource(
        pointer=pointer,
        metadata_uri=file.uri,
        metadata_size=file.size,
        metadata_sha256=file.sha256,
        full_size_bytes=member.named_bytes,
        member=member.uid,
        run=member.run,
    )
    return SavedMember(
        uid=member.uid,
        checkpoint_id=member.checkpoint_id,
        generation=member.generation,
        run=member.run,
        source=source,
        is_foreign=member.job_id != job_id,
    )


class JobRestoring:
    """
    Restores jobs in place. A task makes the same call over HTTP.

    :param liveness: Source of the state of tasks.
    """

    def __init__(self, store: JobStore, liveness: TaskLiveness) -> None:
        self._store = store
        self._liveness = liveness

    def restore(self, request: RestoreJob) -> RestoredJob:
        """
        Restore all stages of a job in place, atomically.

        A known key is the same request, whatever has happened since. An equal request is the same one until an attempt
        completes a checkpoint.

        :raises CheckpointNotFoundError: if there is no such job, or the savepoint was disposed of.
        :raises ConcurrentAttemptError: if a task of the job is running.
        :raises InvalidConfigurationError: if the savepoint has no member, or a member is not one of it.
        """
        _require_of_pointer(request.savepoint)
        # Airflow is queried before the transaction, as foreign code must not run while a row is locked.
        view = self._store.describe(request.job_id)
        dead = dead_attempts(view, view.stages, self._liveness)
        with changing(self._store, request.job_id, dry_run=request.dry_run) as tx:
            return _restore(tx, request, dead)


def _require_of_pointer(savepoint: JobSavepoint) -> None:
    # The rows say which files the next attempts read, and the caller may be a task.
    if not savepoint.members:
        raise InvalidConfigurationError(
            f"Expected the members of the savepoint {redact(savepoint.pointer)}, found none; nothing was changed. "
            "Without a member, every stage would start without state. Read the members from the metadata of the "
            "savepoint."
        )
    uri = f"{savepoint.pointer}/{METADATA_FILE}"
    for member in savepoint.members:
        expected = replace(
            member.source,
            pointer=savepoint.pointer,
            metadata_uri=uri,
            mode=RestoreMode.NO_CLAIM,
            member=member.uid,
            problem=None,
        )
        if member.source != expected or normalise_pointer(savepoint.pointer) != savepoint.pointer:
            raise InvalidConfigurationError(
                f"Expected the member of stage {member.uid!r} to be one of the savepoint {redact(savepoint.pointer)}, "
                "found another source; nothing was changed. Read the members from the metadata of the savepoint.",
                uid=member.uid,
            )


def _restore(tx: JobTransaction, request: RestoreJob, dead: Sequence[AttemptRecord]) -> RestoredJob:
    members = {member.uid: member for member in request.savepoint.members}
    view = tx.view()
    stages = view.stages
    uids = {each.uid for each in stages}
    missing = tuple(p for p in members.values() if p.uid not in uids)
    known = [each for each in stages if tx.action(_action_key(request, each)) is not None]
    if known:
        # The reply was lost. Operators may have gone on since, and others may have been added.
        return RestoredJob(
            operators=tuple(_known(tx, each, members.get(each.uid), request) for each in known), missing=missing
        )
    _require_kept(view, request.savepoint)
    # A savepoint that was moved, or whose row is removed, has no row.
    savepoint_restore.require_not_disposed(tx, request.savepoint.pointer)
    restored = (_restore_operator(tx, each, members.get(each.uid), request, dead) for each in stages)
    warnings = [_warning(tx, view, each, members.get(each.uid)) for each in stages]
    return RestoredJob(
        operators=tuple(replace(each, warning=text) for each, text in zip(restored, warnings, strict=True)),
        missing=missing,
    )


def _require_kept(view: JobView, savepoint: JobSavepoint) -> None:
    # Its files are deleted later than its row ends, and may have been there when the savepoint was read.
    row = row_of(view, savepoint.pointer)
    if row is not None and row.has_ended:
        raise CheckpointNotFoundError(
            f"Expected a retained savepoint at {redact(savepoint.pointer)}, found that it is {row.status.value}; "
            "nothing was changed. Restore another savepoint.",
            checkpoint_id=row.checkpoint_id,
        )
    if row is not None and row.metadata_sha256:
        _require_unchanged(row, savepoint)


def _require_unchanged(row: CheckpointRecord, savepoint: JobSavepoint) -> None:
    # The file has no checksum of its own: the row of the savepoint tells whether bytes in it have changed since.
    recorded = (row.metadata_size, row.metadata_sha256)
    found = {(member.source.metadata_size, member.source.metadata_sha256) for member in savepoint.members}
    if found != {recorded}:
        raise CorruptStateError(
            f"Expected {redact(savepoint.pointer)}/{METADATA_FILE} as it was written, with {row.metadata_size} bytes "
            f"and digest {row.metadata_sha256[:12]}, found other content; nothing was changed. Restore the file from a "
            "backup, or restore another savepoint.",
            checkpoint_id=row.checkpoint_id,
        )


def _known(
    tx: JobTransaction, operator: OperatorRecord, member: SavedMember | None, request: RestoreJob
) -> RestoredOperator:
    action = tx.action(_action_key(request, operator))
    restore = None if action is None else action.restore
    return _result(tx, operator if restore is None else start_decision.before_restore(operator, restore), member, None)


def _warning(tx: JobTransaction, view: JobView, operator: OperatorRecord, member: SavedMember | None) -> str:
    if member is None:
        return _warning_without_member(view, operator)
    if member.is_foreign:
        return ""
    replacing = _replacing_attempts(tx, view, operator, member)
    # An attempt whose source has changed starts over in the generation of the checkpoints that it does not use.
    if _has_started_over(view, operator, member.generation) or any(a.restored_from is None for a in replacing):
        done = "started over"
    elif replacing:
        done = "gone back to an earlier checkpoint"
    else:
        return ""
    return (
        f"Operator {operator.uid!r} has {done} since its member was taken, which retracted the output of the member; "
        "its sink may refuse to restore it."
    )


def _warning_without_member(view: JobView, operator: OperatorRecord) -> str:
    """Return a warning for an operator that began from a savepoint of its task, whose state it loses."""
    in_place = {action.restore.pointer for action in view.actions if action.restore is not None}
    rows = (c for c in view.of_operator(operator.operator_id) if c.properties.unclaimed and c.completed_at is not None)
    began = next((c.location for c in rows if c.location not in in_place), None)
    if began is None:
        return ""
    return (
        f"Operator {operator.uid!r} has no member in the savepoint and starts without state, although it has started "
        f"from {redact(began)} before: it does not start from there again."
    )


def _replacing_attempts(
    tx: JobTransaction, view: JobView, operator: OperatorRecord, member: SavedMember
) -> list[AttemptRecord]:
    """Return the attempts since a member that have replaced its output, after a rewind or a run that started again."""
    taken = tx.checkpoint(member.checkpoint_id)
    if taken is None:
        return []
    attempts = (a for a in view.attempts_of(operator.operator_id) if a.epoch > taken.epoch)
    return [each for each in attempts if _is_from_before(view, each, member) and _has_committed(view, each)]


def _is_from_before(view: JobView, attempt: AttemptRecord, member: SavedMember) -> bool:
    restored = view.checkpoint(attempt.restored_from)
    if restored is None or not restored.properties.unclaimed:
        return (attempt.restored_from or 0) < member.checkpoint_id
    # The copy of another member does not tell its position in the rows, but savepoints are taken one after another.
    savepoints = [row_of(view, pointer) for pointer in (restored.location, member.source.pointer)]
    earlier, later = (0 if each is None else each.checkpoint_id for each in savepoints)
    return 0 < earlier < later


def _has_committed(view: JobView, attempt: AttemptRecord) -> bool:
    # The first commit retracts, and the end of a successful attempt without one.
    own = (c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch)
    is_completed = any(c.completed_at is not None and not c.properties.unclaimed for c in own)
    return is_completed or attempt.status is AttemptStatus.FINISHED


def _has_started_over(view: JobView, operator: OperatorRecord, generation: int) -> bool:
    """Return whether an attempt has opened a later generation than the given one, other than by a restore in place."""
    waiting = start_decision.waiting_restore_in(view, operator)
    newest = operator.generation if waiting is None else waiting.earlier_generation
    for before, attempt in pairwise(view.attempts_of(operator.operator_id)):
        # The rows between two others may be removed, and with them the attempt that opened the generation.
        is_known = attempt.epoch == before.epoch + 1 and before.generation < attempt.generation
        if is_known and generation < attempt.generation <= newest and not attempt.is_restore_chosen:
            return True
    return False


def _restore_operator(
    tx: JobTransaction,
    before: OperatorRecord,
    member: SavedMember | None,
    request: RestoreJob,
    dead: Sequence[AttemptRecord],
) -> RestoredOperator:
    fenced = require_no_running_task(tx, before, dead)
    if fenced is not None and not request.dry_run:
        transitions.close_abandoned(tx, fenced)
    earlier = start_decision.waiting_restore(tx, before)
    source = None if member is None else member.source
    if earlier is not None and (earlier.pointer, earlier.source) == (request.savepoint.pointer, source):
        # A repeated request, whose first reply may have been lost.
        return _result(tx, start_decision.before_restore(before, earlier), member, fenced)
    operator = start_decision.withdraw(tx, before, f"replaced by a restore of {request.savepoint.pointer}")
    result = _result(tx, operator, member, fenced, _replaced(before, earlier))
    start_decision.begin_in_place(tx, operator, _action(tx, operator, member, request))
    if not request.dry_run:
        log.info("Job %s operator %s: restored in place from %s", tx.job.name, operator.uid, request.savepoint.pointer)
    return result


def _result(
    tx: JobTransaction,
    operator: OperatorRecord,
    member: SavedMember | None,
    fenced: AttemptRecord | None,
    replaced: str = "",
) -> RestoredOperator:
    taken_back = _taken_back(tx, operator, member)
    oldest = taken_back[-1].run_key if taken_back else ""
    return RestoredOperator(
        uid=operator.uid,
        member=member,
        taken_back=taken_back,
        first_run=(operator.first_run if member is None else member.run) or oldest,
        newest=tx.attempt(operator.operator_id, operator.epoch),
        fenced=fenced,
        replaced=replaced,
    )


def _replaced(operator: OperatorRecord, earlier: InPlaceRestore | None) -> str:
    if earlier is not None:
        return earlier.pointer
    return "" if operator.next_restore is None else f"checkpoint {operator.next_restore}"


def _taken_back(
    tx: JobTransaction, operator: OperatorRecord, member: SavedMember | None
) -> tuple[CheckpointRecord, ...]:
    restorable = transitions.restorable(tx, operator)
    if member is None or not member.is_of(operator):
        return restorable
    return tuple(c for c in restorable if c.checkpoint_id > member.checkpoint_id)


def _action(
    tx: JobTransaction, operator: OperatorRecord, member: SavedMember | None, request: RestoreJob
) -> ActionRecord:
    is_of_generation = member is not None and member.is_of(operator)
    restore = InPlaceRestore(
        pointer=request.savepoint.pointer,
        source=None if member is None else member.source,
        first_run=operator.first_run if is_of_generation else "",
        earlier_generation=operator.generation,
        earlier_first_run=operator.first_run,
    )
    return ActionRecord(
        job_id=request.job_id,
        request_key=_action_key(request, operator),
        action=JobAction.RESTORE,
        operator_id=operator.operator_id,
        restore=restore,
        requested_by=request.requested_by,
        requested_at=tx.now,
    )


def _action_key(request: RestoreJob, operator: OperatorRecord) -> str:
    return hashlib.sha256(f"{request.request_key}/{operator.operator_id}".encode()).hexdigest()[:32]


def tasks_to_run(operators: Iterable[RestoredOperator]) -> Iterator[str]:
    """
    Return how the tasks of restored operators run again: commands of Airflow, or a text where none can name the runs.
    """
    ranges: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for operator in operators:
        owner = None if operator.newest is None else operator.newest.owner
        task = None if owner is None else owner.task
        first = operator.first_run or ("" if owner is None else owner.run_key)
        if owner is None or task is None:
            yield f"{operator.uid}: start {'it' if owner is None else owner.label} again."
        elif logical_date_of(first) is None or logical_date_of(owner.run_key) is None:
            yield f"{operator.uid}: clear task {task.task_id} of Dag {task.dag_id} in run {first} and all later runs."
        else:
            ranges[task.dag_id, first, owner.run_key if is_earlier_run(first, owner.run_key) else first].add(
                task.task_id
            )
    yield from (_clear_command(*each, sorted(tasks)) for each, tasks in sorted(ranges.items()))


def _clear_command(dag_id: str, first: str, last: str, task_ids: Iterable[str]) -> str:
    pattern = f"^({'|'.join(map(re.escape, task_ids))})$"
    return shlex.join(["airflow", "tasks", "clear", dag_id, "-t", pattern, "-s", first, "-e", last])
