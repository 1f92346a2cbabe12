"""
Garbage collection: of checkpoint files, of old rows and of whole jobs.

It deletes the files of ended checkpoints and the orphan files of ended attempts. Files of an operator with an open
attempt are not deleted, because only that attempt knows which snapshots its DataFrames read.

The files of a job are deleted before its rows, because the rows of attempts name the directories with files. An
interrupted call is completed by the next one.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.fencing import owners_of_run
from airflow_provider_statecheck.checkpoint.ids import JobId, is_test_job, job_uri
from airflow_provider_statecheck.checkpoint.job_removal import last_active, open_removal
from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, OperatorRecord
from airflow_provider_statecheck.checkpoint.retention import open_effects
from airflow_provider_statecheck.checkpoint.row_removal import DEFAULT_AGE
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StateCheckError
from airflow_provider_statecheck.maintenance.job_maintenance import (
    SHORTEST_AGE,
    JobMaintenance,
    RetireJob,
)
from airflow_provider_statecheck.storage.discarding import EffectDiscards
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import DocumentCache
from airflow_provider_statecheck.storage.orphans import (
    SHORTEST_STAY,
    Quarantine,
    aligned_in_progress,
    require_stay,
    retained_aligned,
    sweep,
)
from airflow_provider_statecheck.storage.uris import is_filesystem_known, redact

log = logging.getLogger(__name__)

IDS_PER_MESSAGE = 10_000
"""Number of checkpoint ids in a message; the API limits the size of messages."""
_JOB_CHECKPOINT = re.compile(r"/[0-9a-f]{32}/chk-\d+$")

OpenStorage = Callable[[str], CheckpointStorage]
"""Function that opens the storage of a checkpoint directory."""


@dataclass(slots=True)
class JobReport:
    """What maintenance has not deleted of one job."""

    job: str
    kept: list[str] = field(default_factory=list)
    """What was not deleted, with the reason."""
    problems: list[str] = field(default_factory=list)
    """Deletions that failed."""
    unreachable: list[str] = field(default_factory=list)
    """Checkpoint directories whose storage is unavailable."""


@dataclass(slots=True)
class CollectedJob(JobReport):
    """Result of garbage collection for one job."""

    deleted: dict[str, int] = field(default_factory=dict)
    """Number of deleted bytes by directory."""
    skipped: list[str] = field(default_factory=list)
    """Uids of operators whose snapshots were not collected because a retained checkpoint cannot be read."""
    quarantined: list[str] = field(default_factory=list)
    """Orphan files in quarantine."""

    @property
    def deleted_bytes(self) -> int:
        """The total number of deleted bytes."""
        return sum(self.deleted.values())


def collect_job(
    gateway: JobMaintenance,
    job_id: JobId,
    open_storage: OpenStorage,
    *,
    quarantine: timedelta | None = None,
    dry_run: bool = False,
    is_removed: bool = False,
) -> CollectedJob:
    """
    Delete the files of ended checkpoints and the orphan files of ended attempts.

    The call first closes abandoned attempts and discards checkpoints that are not retained after the end of their run.
    Operators with an open attempt are skipped.

    :param open_storage: Function that opens the storage of a checkpoint directory.
    :param quarantine: Time from the discovery of an orphan file without a row to its deletion, at least a day; by
        default such files are deleted immediately.
    :param dry_run: Whether to report without deleting.
    :param is_removed: Whether the job is being removed, and with it the files that functions own.
    :raises CheckpointNotFoundError: if there is no such job.
    :raises InvalidConfigurationError: if the quarantine is shorter than a day.
    """
    require_stay(quarantine)

    # The view is read before files are listed: later attempts have a higher epoch, and their files are not collected.
    view = gateway.settle(job_id, dry_run=dry_run)
    report = CollectedJob(job=view.job.name)
    closed = _without_open_attempts(view, report)
    _end_unwritable(gateway, closed, dry_run=dry_run)
    storage_of = functools.cache(open_storage)
    # A retained checkpoint may reference files in other checkpoint directories.
    documents = DocumentCache(lambda checkpoint: storage_of(base_of(checkpoint)), keeps_large=False)
    for base in storage_bases(view):
        try:
            deletions = DeletionLog(storage_of(base), dry_run=dry_run)
            logged = cast("CheckpointStorage", deletions)
            collection = _Collection(
                gateway, view, closed, storage_of(base), logged, documents, report, dry_run, is_removed
            )
            try:
                collection.collect(quarantine)
                collection.remove_empty_directories()
            finally:
                report.deleted |= deletions.directories
        except StateCheckError as error:
            (report.unreachable if error.retryable else report.problems).append(f"{redact(base)}: {error}")
    return report


def storage_bases(view: JobView) -> tuple[str, ...]:
    """Return the checkpoint directories that may contain files of a job, the newest last."""
    attempts = sorted(view.attempts, key=lambda attempt: attempt.registered_at)
    # The row of a checkpoint may outlive the row of its attempt.
    of_checkpoints = (base_of(checkpoint) for checkpoint in view.checkpoints if _may_have_garbage(checkpoint))
    return tuple(dict.fromkeys((*of_checkpoints, *(attempt.storage_base for attempt in attempts))))


def base_of(checkpoint: CheckpointRecord) -> str:
    """Return the checkpoint directory of a checkpoint, or the parent directory of a savepoint."""
    base, substitutions = _JOB_CHECKPOINT.subn("", checkpoint.location)
    return base if substitutions else checkpoint.location.rpartition("/")[0]


def _may_have_garbage(checkpoint: CheckpointRecord) -> bool:
    # The directory of a retained savepoint contains no other files of the job, and its storage may be unavailable.
    is_in_job_directory = _JOB_CHECKPOINT.search(checkpoint.location) is not None
    may_have_files = is_in_job_directory or (checkpoint.awaits_discard and not _was_unwritable(checkpoint))
    return checkpoint.discarded_at is None and may_have_files


def _was_unwritable(checkpoint: CheckpointRecord) -> bool:
    is_failed_savepoint = checkpoint.properties.is_savepoint and checkpoint.status is CheckpointStatus.ABORTED
    return is_failed_savepoint and checkpoint.metadata_uri is None and not is_filesystem_known(checkpoint.location)


def _end_unwritable(gateway: JobMaintenance, closed: JobView, *, dry_run: bool) -> None:
    unwritable = [c for c in closed.checkpoints if c.awaits_discard and _was_unwritable(c)]
    for checkpoint in unwritable:
        where = redact(checkpoint.location)
        log.warning("Savepoint %s has no files: there is no filesystem for %s", checkpoint.checkpoint_id, where)
    if unwritable and not dry_run:
        ids = tuple(checkpoint.checkpoint_id for checkpoint in unwritable)
        gateway.confirm_discards(closed.job.job_id, ids)


def _without_open_attempts(view: JobView, report: CollectedJob) -> JobView:
    for operator in view.operators:
        attempt = view.open_attempt(operator)
        if attempt is not None:
            pin = f"; it pins checkpoint {attempt.restored_from}" if attempt.restored_from is not None else ""
            report.kept.append(
                f"operator {operator.uid!r}: attempt {attempt.epoch} ({attempt.owner.label}) has not ended{pin}"
            )
    in_progress = aligned_in_progress(view)
    if in_progress and not _has_open_leader(view):
        ids = ", ".join(map(str, in_progress))
        report.kept.append(f"aligned checkpoints {ids}: the next leader resumes them")
    considered = view.stages if in_progress else view.operators
    closed = {o.operator_id: o for o in considered if not view.has_open_attempt(o)}
    checkpoints = tuple(c for c in view.checkpoints if c.operator_id in closed)
    return replace(view, operators=tuple(closed.values()), checkpoints=checkpoints)


def _has_open_leader(view: JobView) -> bool:
    of_job = view.operator_of_job
    return of_job is not None and view.has_open_attempt(of_job)


@dataclass(frozen=True, slots=True)
class _Collection:
    """Garbage collection in one checkpoint directory."""

    gateway: JobMaintenance
    view: JobView
    closed: JobView
    """View without the operators that have an open attempt."""
    plain_storage: CheckpointStorage
    storage: CheckpointStorage
    """Proxy of ``plain_storage`` that records deletions."""
    documents: DocumentCache
    report: CollectedJob
    dry_run: bool
    is_removed: bool

    def collect(self, quarantine: timedelta | None) -> None:
        for operator in self.closed.operators:
            self._discard_ended(operator)
        skipped = self._sweep(quarantine)
        new = [uid for uid in skipped if uid not in self.report.skipped]
        self.report.skipped += new
        self.report.kept += [
            f"snapshots of operator {uid!r}: a retained checkpoint of it cannot be read" for uid in new
        ]

    def remove_empty_directories(self) -> None:
        if self.dry_run or any(self.view.has_open_attempt(operator) for operator in self.view.operators):
            return
        job_id, storage = self.view.job.job_id, self.plain_storage
        if storage.is_local and self._has_same_operators(job_id):
            storage.remove_empty_directories(job_uri(storage.base_uri, job_id))

    def _has_same_operators(self, job_id: JobId) -> bool:
        # An attempt creates a directory before it writes to it, so no attempt may have been registered since.
        latest = self.gateway.latest_checkpoints(job_id)
        return latest is not None and frozenset(latest.operators) == frozenset(self.view.operators)

    def _sweep(self, stay: timedelta | None) -> tuple[str, ...]:
        job_id = self.view.job.job_id
        notes = Quarantine(self.plain_storage, job_id, stay=stay or SHORTEST_STAY, dry_run=self.dry_run)
        swept = sweep(
            self.storage,
            self.view,
            self.documents,
            of=self.closed.operators,
            row_of=lambda checkpoint_id: self.gateway.checkpoint(job_id, checkpoint_id),
            quarantine=None if stay is None else notes,
            is_removed=self.is_removed,
            has_mailboxes=True,
        )
        if stay is None:
            notes.forget()
        self.report.quarantined += swept.quarantined
        self.report.problems += swept.problems
        return swept.skipped

    def _discard_ended(self, operator: OperatorRecord) -> None:
        effects = _effects_below(self.closed, operator, self.storage.base_uri)
        aligned_uris = self.documents.named_uris(retained_aligned(self.view)) if effects.discards else frozenset()
        if aligned_uris is None:
            self.report.kept.append(
                f"ended checkpoints of operator {operator.uid!r}: an aligned checkpoint cannot be read"
            )
            return
        discards = EffectDiscards(self.storage, self.documents)
        deleted = discards.discard(effects, aligned_uris)
        if not self.dry_run:
            self._confirm(deleted)
        failed = [c.checkpoint_id for c in effects.discards if c.checkpoint_id not in {*deleted, *discards.in_use}]
        self.report.problems += [f"checkpoint {i} of operator {operator.uid!r} could not be deleted" for i in failed]
        self.report.kept += [
            f"checkpoint {i} of operator {operator.uid!r}: other checkpoints use its files"
            for i in sorted(discards.in_use)
        ]

    def _confirm(self, deleted: tuple[int, ...]) -> None:
        for begin in range(0, len(deleted), IDS_PER_MESSAGE):
            ids = deleted[begin : begin + IDS_PER_MESSAGE]
            self.gateway.confirm_discards(self.view.job.job_id, ids)


def _effects_below(view: JobView, operator: OperatorRecord, base_uri: str) -> OpenEffects:
    rows, attempt = view.of_operator(operator.operator_id), view.current_attempt(operator)
    effects = open_effects(rows, operator.generation, attempt)
    return replace(effects, discards=tuple(c for c in effects.discards if base_of(c) == base_uri))


class DeletionLog:
    """
    Storage proxy that records the deleted bytes of each directory. A file that is deleted twice counts once.

    :param dry_run: Whether to record deletions without deleting.
    """

    def __init__(self, storage: CheckpointStorage, *, dry_run: bool = False) -> None:
        self._storage = storage
        self._dry_run = dry_run
        self._files: dict[str, dict[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    @property
    def directories(self) -> dict[str, int]:
        """The number of deleted bytes by directory."""
        return {directory: sum(files.values()) for directory, files in self._files.items()}

    def delete_file(self, uri: str) -> None:
        """Delete a file and record its size for its directory."""
        directory, _, name = uri.rpartition("/")
        size = self._size(uri)
        if self._dry_run:
            self._storage.require_deletable(uri)
        else:
            self._storage.delete_file(uri)
        if size:
            self._record(directory, {name: size})

    def delete_directory(self, uri: str) -> None:
        """Delete a directory recursively and record the sizes of its files."""
        if self._dry_run:
            self._storage.require_deletable(uri)
        files = self._storage.list_files(uri)
        if not self._dry_run:
            self._storage.delete_directory(uri)
        if files:
            self._record(uri, files)

    def _size(self, uri: str) -> int:
        try:
            return self._storage.size(uri)
        except CheckpointNotFoundError:
            return 0

    def _record(self, directory: str, files: dict[str, int]) -> None:
        self._files.setdefault(directory, {}).update(files)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """
    Selection of the jobs and rows to delete.

    :raises InvalidConfigurationError: if ``older_than`` is less than a day.
    """

    job_ids: tuple[JobId, ...] = ()
    """
    Jobs to remove completely. If empty, old rows and jobs are selected by age, and users' requests to remove a job are
    carried out.
    """
    older_than: timedelta | None = None
    """
    Minimum age of the deleted rows, ``DEFAULT_AGE`` by default.

    If set, jobs named after a run that ended before this age are removed completely.
    """
    test_jobs: bool = False
    """Whether to remove jobs of test runs completely, at any age if ``older_than`` is not set."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        require("older_than", self.older_than, lambda age: age is None or age >= SHORTEST_AGE, "a day or more")


@dataclass(slots=True)
class PrunedJob(JobReport):
    """Result of pruning one job."""

    is_removed: bool = False
    checkpoints: int = 0
    """Number of deleted checkpoint rows."""
    attempts: int = 0
    """Number of deleted attempt rows."""
    deleted_bytes: int = 0

    @property
    def has_changes(self) -> bool:
        """Whether anything was deleted or retained with a reason, or failed."""
        counts = (self.is_removed, self.checkpoints, self.attempts, self.deleted_bytes)
        return any((*counts, self.kept, self.problems, self.unreachable))

    def add(self, collected: CollectedJob) -> None:
        """Add the result of a garbage collection."""
        self.deleted_bytes += collected.deleted_bytes
        self.problems += collected.problems
        self.unreachable += collected.unreachable


def prune_job(gateway: JobMaintenance, job_id: JobId, request: PruneRequest, open_storage: OpenStorage) -> PrunedJob:
    """
    Delete the old rows of a job, or the whole job if the request selects it.

    :param open_storage: Function that opens the storage of a checkpoint directory.
    :raises CheckpointNotFoundError: if there is no such job.
    """
    view = gateway.describe(job_id)
    report = PrunedJob(job=view.job.name)
    if _is_selected(view, request):
        _remove(gateway, view, request, open_storage, report)
    if not (report.is_removed or report.problems or report.unreachable or request.job_ids):
        _forget(gateway, view, request, open_storage, report)
    return report


def _is_selected(view: JobView, request: PruneRequest) -> bool:
    if request.job_ids:
        return view.job.job_id in request.job_ids
    if open_removal(view) is not None:
        return True
    age = request.older_than
    is_old = age is not None and last_active(view) <= view.read_at - age
    if is_test_job(view.job.name):
        return request.test_jobs and (age is None or is_old)
    return is_old and bool(owners_of_run(view))


def _remove(
    gateway: JobMaintenance, view: JobView, request: PruneRequest, open_storage: OpenStorage, report: PrunedJob
) -> None:
    retirement = _retirement(view, request)
    kept_because = gateway.refusal(retirement) if request.dry_run else gateway.retire(retirement)
    if kept_because:
        report.kept += kept_because
    elif request.dry_run:
        report.is_removed = True
        _measure(view, open_storage, report)
    else:
        _empty_and_remove(gateway, retirement, open_storage, report)


def _retirement(view: JobView, request: PruneRequest) -> RetireJob:
    job_id, asked = view.job.job_id, open_removal(view)
    if request.job_ids:
        return RetireJob(job_id=job_id, is_named=True)
    if asked is not None:
        return RetireJob(job_id=job_id, request_key=asked.request_key)
    return RetireJob(job_id=job_id, idle_seconds=(request.older_than or timedelta(0)).total_seconds())


def _empty_and_remove(
    gateway: JobMaintenance, retirement: RetireJob, open_storage: OpenStorage, report: PrunedJob
) -> None:
    # All checkpoints of a retired job have ended, so garbage collection deletes their files.
    collected = collect_job(gateway, retirement.job_id, open_storage, is_removed=True)
    report.add(collected)
    if not report.problems and not report.unreachable:
        report.kept += gateway.remove(retirement)
        report.is_removed = not report.kept


def _measure(view: JobView, open_storage: OpenStorage, report: PrunedJob) -> None:
    for base in storage_bases(view):
        try:
            files = open_storage(base).list_files(job_uri(base, view.job.job_id))
        except StateCheckError as error:
            report.unreachable.append(str(error))
        else:
            report.deleted_bytes += sum(files.values())


def _forget(
    gateway: JobMaintenance, view: JobView, request: PruneRequest, open_storage: OpenStorage, report: PrunedJob
) -> None:
    age = (request.older_than or DEFAULT_AGE).total_seconds()
    rows = gateway.forget(view.job.job_id, age, dry_run=True)
    if rows:
        # Files are deleted first: without the rows of attempts, their directories would be unknown.
        collected = collect_job(gateway, view.job.job_id, open_storage, dry_run=request.dry_run)
        report.add(collected)
        # Rows are retained while files of the operator cannot be deleted.
        report.kept += [
            f"database rows: a retained checkpoint of operator {uid!r} cannot be read" for uid in collected.skipped
        ]
        if report.problems or report.unreachable or collected.skipped:
            return
        rows = gateway.forget(view.job.job_id, age, dry_run=request.dry_run)
    report.checkpoints, report.attempts = len(rows.checkpoint_ids), len(rows.attempts)
