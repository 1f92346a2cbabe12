"""
Orphan files: detection, quarantine and deletion.

A file is an orphan if no retained checkpoint names it and its epoch is closed. Its age does not matter, because a write
of an open attempt may take hours.

The quarantine of a job is a small file in the checkpoint directory. It records when each orphan was first found; no
file is moved, because object stores cannot rename. A lost or damaged record only delays deletions: all waits start
again.

All functions and methods that access the storage raise :class:`StorageError` if it fails.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import (
    STATE_DIRECTORY,
    JobId,
    checkpoint_id_of,
    checkpoint_uri,
    epoch_of,
    job_uri,
    mailboxes_uri,
    orphans_uri,
    shared_uri,
    taskowned_uri,
)
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.messages import HIGHEST_ID
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, OperatorRecord
from airflow_provider_statecheck.checkpoint.retention import protected_checkpoints
from airflow_provider_statecheck.checkpoint.store import RECENT, JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, StateCheckError
from airflow_provider_statecheck.storage.discarding import StorageDiscarder, is_of_another_owner
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    DocumentCache,
    document_uris,
    find_document,
    has_unreadable_metadata,
)
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE, read_json

log = logging.getLogger(__name__)

SHORTEST_STAY = timedelta(days=1)
"""Minimum quarantine of an orphan."""

_MOST_RECORDED = 50_000
"""Largest number of orphans in the record of a job; the others are recorded when these are deleted."""
_LARGEST_RECORD = 32 * 1024 * 1024
"""Largest size in bytes of a record that is read."""
_MAILBOXES_STAY = timedelta(hours=6)
"""Time from the end of an attempt to the deletion of its mailbox, which a driver that is started again looks for."""
_ENDED = (CheckpointStatus.ABORTED, CheckpointStatus.SUBSUMED)


class Quarantine:
    """
    Waiting orphans of a job in a checkpoint directory.

    :param stay: Time from the first sight of an orphan to its deletion, at least a day.
    :param dry_run: Do not write the record.
    :raises InvalidConfigurationError: if ``stay`` is less than a day.
    """

    def __init__(
        self, storage: CheckpointStorage, job_id: JobId, *, stay: timedelta = SHORTEST_STAY, dry_run: bool = False
    ) -> None:
        require_stay(stay)
        self._storage = storage
        self._root = job_uri(storage.base_uri, job_id)
        self._uri = orphans_uri(storage.base_uri, job_id)
        self._stay = stay
        self._dry_run = dry_run

    def admit(self, orphans: AbstractSet[str], now: datetime) -> frozenset[str]:
        """
        Record orphans and return those whose quarantine has ended.

        Recorded files that are no longer orphans are removed from the record.

        :param orphans: URIs of all current orphans.
        """
        recorded = self._read()
        # A time in the future, from a fast clock, would delay the deletion.
        found_at = {uri: min(recorded.get(uri, now), now) for uri in sorted(orphans)[:_MOST_RECORDED]}
        # Written before the deletion: after a crash, the next sweep finds the same orphans and deletes them.
        if found_at != recorded and not self._dry_run:
            self._write(found_at)
        return frozenset(uri for uri, since in found_at.items() if now - since >= self._stay)

    def forget(self) -> None:
        """Delete the record."""
        if not self._dry_run and self._storage.exists(self._uri):
            self._storage.delete_file(self._uri)

    def _read(self) -> dict[str, datetime]:
        try:
            record = read_json(self._storage.read_limited(self._uri, _LARGEST_RECORD), self._uri)
            return {f"{self._root}/{path}": _time(since) for path, since in record.items()}
        except CheckpointNotFoundError:
            return {}
        except (CorruptStateError, *UNDECODABLE) as error:
            log.warning(
                "Quarantine record %s cannot be decoded; the wait of all orphans restarts: %s", self._uri, error
            )
            return {}

    def _write(self, found_at: dict[str, datetime]) -> None:
        if not found_at:
            self._storage.delete_file(self._uri)
            return
        self._storage.require_deletable(self._uri)
        record = {uri.removeprefix(f"{self._root}/"): since.isoformat() for uri, since in found_at.items()}
        self._storage.write_bytes(self._uri, json.dumps(record, indent=1).encode(), overwrite=True)


def require_stay(stay: timedelta | None) -> None:
    """
    Reject a quarantine of less than a day.

    :raises InvalidConfigurationError: if the quarantine is too short.
    """
    require("quarantine", stay, lambda found: found is None or found >= SHORTEST_STAY, "a day or more")


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return time.astimezone(UTC)


def aligned_in_progress(view: JobView) -> tuple[int, ...]:
    """Return the ids of unfinished aligned checkpoints; only their manifests list the files that they name."""
    return tuple(c.checkpoint_id for c in view.checkpoints_of_job if c.is_in_progress)


def retained_aligned(view: JobView) -> tuple[CheckpointRecord, ...]:
    """Return the completed aligned checkpoints, which may name files in directories of other operators."""
    return tuple(c for c in view.checkpoints_of_job if c.status is CheckpointStatus.COMPLETED)


def retains_files(checkpoint: CheckpointRecord) -> bool:
    """Return true if the files of an ended aligned checkpoint are retained because the user owns them."""
    is_subsumed = checkpoint.status is CheckpointStatus.SUBSUMED and checkpoint.is_of_job
    return is_subsumed and not checkpoint.properties.discard_on_subsumed


class OrphanSearch:
    """
    Search for the orphans of a job in a checkpoint directory.

    :param view: Rows of the job, read before the first listing. Later attempts have higher epochs and are not touched.
    :param documents: Cache of the metadata of the job's checkpoints, in all locations.
    :param of: Operators whose files are searched; by default all.
    :param is_removed: Whether the job is being removed, and with it the files that functions own.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        view: JobView,
        documents: DocumentCache,
        *,
        of: tuple[OperatorRecord, ...] | None = None,
        is_removed: bool = False,
    ) -> None:
        self._storage = storage
        self._view = view
        self._documents = documents
        self._operators = view.operators if of is None else of
        self._base, self._job_id = storage.base_uri, view.job.job_id
        self._is_removed = is_removed

    @cached_property
    def skipped(self) -> tuple[str, ...]:
        """Uids of operators that are skipped because one of their retained checkpoints cannot be read."""
        return tuple(o.uid for o in self._operators if self._named_by(o) is None)

    def directories(self) -> tuple[str, ...]:
        """Return the directories of unreferenced snapshots, and of unfinished checkpoints without a row."""
        return (*self._unfinished(), *(uri for o in self._known for uri in self._snapshots(o)))

    def mailboxes(self) -> tuple[str, ...]:
        """Return the mailboxes of closed attempts, which no driver can call through any more."""
        return tuple(uri for operator in self._operators for uri in self._closed_mailboxes(operator))

    def files(self) -> tuple[str, ...]:
        """Return the unreferenced state files, and those that functions own if the job is being removed."""
        unnamed = (uri for o in self._known for uri in self._unnamed_state(o))
        owned = (uri for o in self._operators if self._is_removed for uri in self._taskowned(o))
        return (*unnamed, *(uri for o in self._operators for uri in self._shared_state(o)), *owned)

    @property
    def _known(self) -> list[OperatorRecord]:
        return [o for o in self._operators if o.uid not in self.skipped]

    @cached_property
    def _directory_ids(self) -> tuple[int, ...]:
        return checkpoint_ids(self._storage, self._job_id)

    @cached_property
    def _documents_without_row(self) -> dict[int, CheckpointDocument]:
        """Completed checkpoints without a row: of rows that a backup lost, or of another coordinator."""
        known = {c.request_key for c in self._view.checkpoints}
        retained = {c.checkpoint_id for c in self._view.checkpoints if c.is_restorable}
        read = ((i, find_document(self._storage, self._uri(i))) for i in self._directory_ids if i not in retained)
        return {i: document for i, document in read if document is not None and document.request_key not in known}

    def _uri(self, checkpoint_id: int) -> str:
        return checkpoint_uri(self._base, self._job_id, checkpoint_id)

    def ended(self) -> tuple[str, ...]:
        """Return the directories of aborted and subsumed checkpoints."""
        operator_ids = {o.operator_id for o in self._operators}
        rows = {c.checkpoint_id: c for c in self._view.checkpoints if c.operator_id in operator_ids}
        # A checkpoint may have two rows: one of its operator, and one of an attempt that restored it.
        used = {checkpoint_id_of(_file_name(c.location)) for c in self._retained_of_all}
        used.update(self._documents_without_row)
        used |= {i for o in self._view.operators for i in _needed_though_ended(self._view, o)}
        ended = [i for i in self._directory_ids if i in rows and i not in used and rows[i].status in _ENDED]
        return tuple(self._uri(i) for i in ended if not self._is_needed(rows[i]))

    def _is_needed(self, ended: CheckpointRecord) -> bool:
        operator = next(o for o in self._operators if o.operator_id == ended.operator_id)
        if ended.status is CheckpointStatus.ABORTED and ended.epoch >= self._first_open_epoch(operator):
            # The running attempt continues from the state in it, which no checkpoint names yet.
            return True
        named, aligned = self._named_by(operator), self._named_by_aligned
        if retains_files(ended) or named is None or aligned is None:
            return True
        if ended.metadata_uri is None and has_unreadable_metadata(self._storage, self._uri(ended.checkpoint_id)):
            return True
        return _is_in_checkpoint(named | aligned, ended.checkpoint_id)

    def _unfinished(self) -> Iterator[str]:
        rows = {c.checkpoint_id for c in self._view.checkpoints}
        # An id that this job has not issued belongs to another coordinator, which may be writing.
        lost = [i for i in self._directory_ids if i not in rows and i < self._view.job.next_checkpoint_id]
        yield from (self._uri(i) for i in lost if self._is_abandoned(self._uri(i)) and not self._is_used(i))

    def _is_abandoned(self, directory: str) -> bool:
        # A directory with metadata is complete; without a row, its checkpoint may still be in use.
        is_open = any(map(self._view.has_open_attempt, self._view.operators))
        return not is_open and all(epoch_of(name) is not None for name in self._storage.list_files(directory))

    def _is_used(self, checkpoint_id: int) -> bool:
        return self._named_by_any is None or _is_in_checkpoint(self._named_by_any, checkpoint_id)

    def _unnamed_state(self, operator: OperatorRecord) -> Iterator[str]:
        named = _file_names(self._named_by(operator))
        for c in retained(self._view, operator):
            if c.checkpoint_id in self._directory_ids and c.location == self._uri(c.checkpoint_id):
                names = [n for n in self._storage.list_files(c.location) if n not in named]
                yield from (f"{c.location}/{n}" for n in names if self._is_closed(operator, n))

    def _snapshots(self, operator: OperatorRecord) -> Iterator[str]:
        named = _file_names(self._named_by(operator))
        root = shared_uri(self._base, self._job_id, operator.operator_id)
        for slug in self._storage.list_directories(root):
            if slug == STATE_DIRECTORY:
                continue
            for name in self._storage.list_directories(f"{root}/{slug}"):
                if self._is_closed(operator, name) and name not in named:
                    yield f"{root}/{slug}/{name}"

    def _shared_state(self, operator: OperatorRecord) -> Iterator[str]:
        # An aligned checkpoint names files of several operators.
        if self._named_by_any is None:
            return
        named = _file_names(self._named_by_any)
        directory = f"{shared_uri(self._base, self._job_id, operator.operator_id)}/{STATE_DIRECTORY}"
        names = [n for n in self._storage.list_files(directory) if n not in named]
        yield from (f"{directory}/{n}" for n in names if self._is_closed(operator, n))

    def _taskowned(self, operator: OperatorRecord) -> Iterator[str]:
        directory = f"{taskowned_uri(self._base, self._job_id)}/{operator.operator_id}"
        names = self._storage.list_files(directory)
        yield from (f"{directory}/{name}" for name in names if self._is_closed(operator, name))

    def _closed_mailboxes(self, operator: OperatorRecord) -> Iterator[str]:
        # A driver that was started again has a later attempt than its mailbox, and its platform takes a while.
        if self._view.has_open_attempt(operator) or self._has_just_ended(operator):
            return
        root = mailboxes_uri(self._base, self._job_id, operator.operator_id)
        names = self._storage.list_directories(root)
        yield from (f"{root}/{name}" for name in names if name.isdecimal() and int(name) <= operator.epoch)

    def _has_just_ended(self, operator: OperatorRecord) -> bool:
        ends = (a.ended_at for a in self._view.attempts if a.operator_id == operator.operator_id)
        return any(ended is not None and self._view.read_at - ended < _MAILBOXES_STAY for ended in ends)

    def _is_closed(self, operator: OperatorRecord, name: str) -> bool:
        epoch = epoch_of(name)
        return epoch is not None and epoch < self._first_open_epoch(operator)

    def _first_open_epoch(self, operator: OperatorRecord) -> int:
        return operator.epoch if self._view.has_open_attempt(operator) else operator.epoch + 1

    def _named_by(self, operator: OperatorRecord) -> frozenset[str] | None:
        return self._named_in(retained(self._view, operator))

    def _named_in(self, checkpoints: Iterable[CheckpointRecord]) -> frozenset[str] | None:
        named = self._documents.named_uris(tuple(c for c in checkpoints if not is_of_another_owner(c)))
        return None if named is None else named | self._named_without_row

    @cached_property
    def _retained_of_all(self) -> tuple[CheckpointRecord, ...]:
        return tuple(c for o in self._view.operators for c in retained(self._view, o))

    @cached_property
    def _named_by_any(self) -> frozenset[str] | None:
        if aligned_in_progress(self._view):
            return None
        return self._named_in(self._retained_of_all)

    @cached_property
    def _named_without_row(self) -> frozenset[str]:
        return frozenset(uri for document in self._documents_without_row.values() for uri in document_uris(document))

    @cached_property
    def _named_by_aligned(self) -> frozenset[str] | None:
        """URIs that aligned checkpoints name, in all locations; ``None`` if they are unknown."""
        if aligned_in_progress(self._view):
            return None
        return self._documents.named_uris(retained_aligned(self._view))


def checkpoint_ids(storage: CheckpointStorage, job_id: JobId) -> tuple[int, ...]:
    """Return the checkpoint ids of a job's directories, complete or not."""
    found = map(checkpoint_id_of, storage.list_directories(job_uri(storage.base_uri, job_id)))
    return tuple(i for i in found if i is not None and 0 < i <= HIGHEST_ID)


def newest_checkpoint_id(storage: CheckpointStorage, job_id: JobId) -> int:
    """Return the highest checkpoint id of a job's directories, or 0 without any."""
    return max(checkpoint_ids(storage, job_id), default=0)


def retained(view: JobView, operator: OperatorRecord) -> tuple[CheckpointRecord, ...]:
    """Return the checkpoints of an operator whose files must be retained."""
    needed = _needed_though_ended(view, operator)
    rows = view.of_operator(operator.operator_id)
    return tuple(
        c
        for c in rows
        if c.is_restorable or retains_files(c) or (c.checkpoint_id in needed and c.metadata_uri is not None)
    )


def _needed_though_ended(view: JobView, operator: OperatorRecord) -> frozenset[int]:
    rows = view.of_operator(operator.operator_id)
    return protected_checkpoints(rows, operator.generation, view.current_attempt(operator))


def _is_in_checkpoint(uris: frozenset[str], checkpoint_id: int) -> bool:
    return any(uri.rpartition("/")[0].endswith(f"/chk-{checkpoint_id}") for uri in uris)


def _file_names(uris: frozenset[str] | tuple[str, ...] | None) -> frozenset[str]:
    # File names are unique, but the URI of a directory may have several spellings.
    return frozenset(map(_file_name, uris or ()))


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """Result of a sweep."""

    deleted: tuple[str, ...] = ()
    """URIs of the deleted directories and files."""
    skipped: tuple[str, ...] = ()
    """Uids of operators that were skipped because one of their retained checkpoints cannot be read."""
    quarantined: tuple[str, ...] = ()
    """URIs of the orphans in quarantine."""
    problems: tuple[str, ...] = ()
    """Deletions that failed."""


def sweep(
    storage: CheckpointStorage,
    view: JobView,
    documents: DocumentCache,
    *,
    of: tuple[OperatorRecord, ...] | None = None,
    row_of: Callable[[int], CheckpointRecord | None] = lambda _: None,
    quarantine: Quarantine | None = None,
    is_removed: bool = False,
    has_mailboxes: bool = False,
) -> SweepReport:
    """
    Delete the orphans of a job in a checkpoint directory.

    :param view: Rows of the job, read before the first listing. Later attempts have higher epochs and are not touched.
    :param documents: Cache of the metadata of the job's checkpoints, in all locations.
    :param of: Operators whose files are searched; by default all.
    :param row_of: Reads the row of a checkpoint; required for jobs with more checkpoints than the view contains.
    :param quarantine: Quarantine of orphans before their deletion. Ended checkpoints are deleted at once.
    :param is_removed: Whether the job is being removed, and with it the files that functions own.
    :param has_mailboxes: Whether to delete mailboxes too, at once; a driver that sweeps may use one.
    """
    view = _with_rows_of_directories(storage, view, row_of)
    search = OrphanSearch(storage, view, documents, of=of, is_removed=is_removed)
    ended, directories, files = search.ended(), search.directories(), search.files()
    found = frozenset((*directories, *files))
    due = found if quarantine is None else quarantine.admit(found, view.read_at)
    quarantined = tuple(uri for uri in (*directories, *files) if uri not in due)
    discarder, problems = StorageDiscarder(storage, view.job.job_id), list[str]()
    at_once = (*ended, *(search.mailboxes() if has_mailboxes else ()))
    deleted = [
        *_delete_each(discarder.discard_location, (*at_once, *(uri for uri in directories if uri in due)), problems),
        *_delete_each(discarder.discard_file, (uri for uri in files if uri in due), problems),
    ]
    removed, skipped = counted(len(deleted), "orphaned file"), counted(len(search.skipped), "operator")
    log.info("Sweep of job %s: %s deleted, %s skipped", view.job.name, removed, skipped)
    return SweepReport(
        deleted=tuple(deleted), skipped=search.skipped, quarantined=quarantined, problems=tuple(problems)
    )


def _delete_each(delete: Callable[[str], None], uris: Iterable[str], problems: list[str]) -> Iterator[str]:
    """Yield the URIs that were deleted, and add the reasons why others were not."""
    for uri in uris:
        try:
            delete(uri)
        except StateCheckError as error:
            # An orphan that cannot be deleted, such as one of another user, must not keep the others. A link to a
            # directory gives the same error for each file.
            if str(error) not in problems:
                problems.append(str(error))
        else:
            yield uri


def _with_rows_of_directories(
    storage: CheckpointStorage, view: JobView, row_of: Callable[[int], CheckpointRecord | None]
) -> JobView:
    if view.job.next_checkpoint_id <= RECENT:
        return view
    known = {c.checkpoint_id for c in view.checkpoints}
    rows = [row_of(i) for i in checkpoint_ids(storage, view.job.job_id) if i not in known]
    # Other rows are newer than the view, which lacks their effects on older checkpoints.
    older = tuple(row for row in rows if row is not None and row.discarded_at is not None)
    return replace(view, checkpoints=(*older, *view.checkpoints)) if older else view
