"""Garbage collection of the files of one job."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.layout import job_uri
from airflow_provider_statecheck.checkpoint.messages import ConfirmDiscards, OpenEffects
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.checkpoint.transitions import open_effects
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StateCheckError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.orphans import aligned_in_progress, retained_aligned
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
    from airflow_provider_statecheck.storage.metadata_file import DocumentCache


class DeletionLog:
    """
    Passes everything on to a storage and keeps how many bytes each directory lost; what is deleted twice counts once.

    :param storage: Where the bytes are.
    :param dry_run: Delete nothing.
    """

    def __init__(self, storage: CheckpointStorage, *, dry_run: bool = False) -> None:
        self._storage = storage
        self._dry_run = dry_run
        self._files: dict[str, dict[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    @property
    def directories(self) -> dict[str, int]:
        """Return how many bytes each directory lost."""
        return {directory: sum(files.values()) for directory, files in self._files.items()}

    def delete_file(self, uri: str) -> None:
        """Delete a file; it counts for its directory."""
        directory, _, name = uri.rpartition("/")
        size = self._size(uri)
        if not self._dry_run:
            self._storage.delete_file(uri)
        if size:
            self._note(directory, {name: size})

    def delete_directory(self, uri: str) -> None:
        """Delete a directory with all that is in it."""
        files = self._storage.list_files(uri)
        if not self._dry_run:
            self._storage.delete_directory(uri)
        if files:
            self._note(uri, files)

    def _size(self, uri: str) -> int:
        try:
            return self._storage.size(uri)
        except CheckpointNotFoundError:
            return 0

    def _note(self, directory: str, files: dict[str, int]) -> None:
        self._files.setdefault(directory, {}).update(files)


_IDS_PER_MESSAGE = 10_000
"""The API takes messages of a limited size."""
_IN_A_JOB = re.compile(r"/[0-9a-f]{32}/chk-\d+$")

OpenStorage = Callable[[str], "CheckpointStorage"]
"""Gives the storage of a checkpoint directory."""


@dataclass(slots=True)
class CollectedJob:
    """What garbage collection did with one job."""

    job: str
    deleted: dict[str, int] = field(default_factory=dict)
    """Bytes of each directory."""
    kept: list[str] = field(default_factory=list)
    """What was left alone, and why."""
    problems: list[str] = field(default_factory=list)
    """What should have been deleted and could not be."""
    unreachable: list[str] = field(default_factory=list)
    """Storage that did not answer."""
    skipped: list[str] = field(default_factory=list)
    """Uids of operators whose snapshots were left alone, because a retained checkpoint of theirs cannot be read."""
    quarantined: list[str] = field(default_factory=list)
    """Orphans that stay for now."""

    @property
    def deleted_bytes(self) -> int:
        """Return how many bytes were deleted."""
        return sum(self.deleted.values())


def collect_job(
    gateway: MaintenanceGateway,
    job_id: JobId,
    open_storage: OpenStorage,
    *,
    quarantine: timedelta | None = None,
    dry_run: bool = False,
) -> CollectedJob:
    """
    Delete the bytes of ended checkpoints and of ended attempts that no live row names.

    Attempts are closed first whose drivers died without a word, and checkpoints end that do not stay after their run. What
    an operator has whose newest attempt has not ended is left to that attempt: it alone knows which snapshots its
    DataFrames still read.

    :param gateway: The rows.
    :param open_storage: Gives the storage of a checkpoint directory.
    :param quarantine: How long orphans of which no row says that they may go stay after they were found, a day or more; by
        default they go at once.
    :param dry_run: Only report.
    :raises CheckpointNotFoundError: if there is no such job.
    :raises InvalidConfigurationError: for a quarantine of less than a day.
    """
    from airflow_provider_statecheck.storage.metadata_file import DocumentCache
    from airflow_provider_statecheck.storage.orphans import require_stay

    require_stay(quarantine)

    if not dry_run:
        gateway.close_abandoned(job_id)
        gateway.settle_run(job_id)
    # Read before anything is listed: an attempt that comes later has a higher epoch, and its files are not touched.
    view = gateway.describe(job_id)
    report = CollectedJob(job=view.job.name)
    closed = _without_open_attempts(view, report)
    storage_of = functools.cache(open_storage)
    # What a retained checkpoint names may lie in another directory than the checkpoint itself.
    documents = DocumentCache(lambda checkpoint: storage_of(base_of(checkpoint)))
    for base in storage_bases(view):
        try:
            deletions = DeletionLog(storage_of(base), dry_run=dry_run)
            counting = cast("CheckpointStorage", deletions)
            work = _Work(gateway, view, closed, storage_of(base), counting, documents, report, dry_run)
            try:
                work.collect(quarantine)
                work.remove_empty_directories()
            finally:
                report.deleted |= deletions.directories
        except StateCheckError as error:
            (report.unreachable if error.retryable else report.problems).append(f"{redact(base)}: {error}")
    return report


def storage_bases(view: JobView) -> tuple[str, ...]:
    """Return the checkpoint directories in which a job may have bytes, the newest last."""
    attempts = sorted(view.attempts, key=lambda attempt: attempt.registered_at)
    # A row of a checkpoint may outlive that of its attempt.
    left = (base_of(checkpoint) for checkpoint in view.checkpoints if _may_have_garbage(checkpoint))
    return tuple(dict.fromkeys((*left, *(attempt.storage_base for attempt in attempts))))


def _may_have_garbage(checkpoint: CheckpointRecord) -> bool:
    # Beside a savepoint there is nothing of ours, and its storage need not answer as long as it stays.
    is_in_a_job = _IN_A_JOB.search(checkpoint.location) is not None
    return checkpoint.discarded_at is None and (is_in_a_job or checkpoint.awaits_discard)


def base_of(checkpoint: CheckpointRecord) -> str:
    """Return the checkpoint directory that a checkpoint lies in, or the directory that a savepoint was written below."""
    base, job = _IN_A_JOB.subn("", checkpoint.location)
    return base if job else checkpoint.location.rpartition("/")[0]


def _without_open_attempts(view: JobView, report: CollectedJob) -> JobView:
    for operator in view.operators:
        attempt = view.current_attempt(operator)
        if attempt is not None and view.has_open_attempt(operator):
            pin = f"; it pins checkpoint {attempt.restored_from}" if attempt.restored_from is not None else ""
            report.kept.append(
                f"operator {operator.uid!r}: attempt {attempt.epoch} ({attempt.owner.label}) has not ended{pin}"
            )
    waiting = aligned_in_progress(view)
    if waiting and not _has_open_leader(view):
        report.kept.append(f"aligned checkpoints {', '.join(map(str, waiting))}: the next leader goes on with them")
    closed = {o.operator_id: o for o in view.operators if not view.has_open_attempt(o)}
    if waiting:
        closed.pop(ALIGNED_OPERATOR_ID, None)
    checkpoints = tuple(c for c in view.checkpoints if c.operator_id in closed)
    return replace(view, operators=tuple(closed.values()), checkpoints=checkpoints)


def _has_open_leader(view: JobView) -> bool:
    return any(view.has_open_attempt(o) for o in view.operators if o.operator_id == ALIGNED_OPERATOR_ID)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is done below one checkpoint directory."""

    gateway: MaintenanceGateway
    view: JobView
    closed: JobView
    """The same without the operators that have an open attempt."""
    notes_on: CheckpointStorage
    storage: CheckpointStorage
    """The same, which counts what is deleted."""
    documents: DocumentCache
    report: CollectedJob
    dry_run: bool

    def collect(self, quarantine: timedelta | None) -> None:
        for operator in self.closed.operators:
            self._serve_effects(operator)
        skipped = self._sweep(quarantine)
        new = [uid for uid in skipped if uid not in self.report.skipped]
        self.report.skipped += new
        self.report.kept += [
            f"snapshots of operator {uid!r}: a retained checkpoint of it cannot be read" for uid in new
        ]

    def remove_empty_directories(self) -> None:
        if self.dry_run or any(self.view.has_open_attempt(operator) for operator in self.view.operators):
            return
        job_id, storage = self.view.job.job_id, self.notes_on
        # An attempt makes a directory shortly before it writes to it; so none may have begun.
        if storage.is_local and self.gateway.describe(job_id).operators == self.view.operators:
            storage.remove_empty_directories(job_uri(storage.base_uri, job_id))

    def _sweep(self, stay: timedelta | None) -> tuple[str, ...]:
        from airflow_provider_statecheck.storage.orphans import SHORTEST_STAY, Quarantine, sweep

        job_id = self.view.job.job_id
        notes = Quarantine(self.notes_on, job_id, stay=stay or SHORTEST_STAY, dry_run=self.dry_run)
        swept = sweep(
            self.storage,
            self.view,
            self.documents,
            of=self.closed.operators,
            read_again=lambda: self.gateway.describe(job_id),
            row_of=lambda checkpoint_id: self.gateway.checkpoint(job_id, checkpoint_id),
            quarantine=None if stay is None else notes,
        )
        if stay is None:
            notes.forget()
        self.report.quarantined += swept.quarantined
        return swept.skipped

    def _serve_effects(self, operator: OperatorRecord) -> None:
        from airflow_provider_statecheck.storage.discarding import EffectDiscards

        effects = _effects_below(self.closed, operator, self.storage.base_uri)
        carried = self.documents.named_uris(retained_aligned(self.view)) if effects.discards else frozenset()
        if carried is None:
            self.report.kept.append(f"what operator {operator.uid!r} left: an aligned checkpoint cannot be read")
            return
        discards = EffectDiscards(self.storage, self.documents)
        gone = discards.discard(effects, carried)
        if not self.dry_run:
            self._confirm(gone)
        left = [c.checkpoint_id for c in effects.discards if c.checkpoint_id not in {*gone, *discards.in_use}]
        self.report.problems += [f"checkpoint {i} of operator {operator.uid!r} could not be deleted" for i in left]
        waiting = sorted(discards.in_use)
        self.report.kept += [
            f"checkpoint {i} of operator {operator.uid!r}: others use what lies in it" for i in waiting
        ]

    def _confirm(self, gone: tuple[int, ...]) -> None:
        for begin in range(0, len(gone), _IDS_PER_MESSAGE):
            ids = gone[begin : begin + _IDS_PER_MESSAGE]
            self.gateway.confirm_discards(ConfirmDiscards(job_id=self.view.job.job_id, checkpoint_ids=ids))


def _effects_below(view: JobView, operator: OperatorRecord, base_uri: str) -> OpenEffects:
    rows, attempt = view.of_operator(operator.operator_id), view.current_attempt(operator)
    effects = open_effects(rows, operator.generation, attempt)
    return replace(effects, discards=tuple(c for c in effects.discards if base_of(c) == base_uri))
