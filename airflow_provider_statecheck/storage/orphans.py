"""
Orphan files: detection, quarantine and deletion.

By epoch, never by age: a write that takes six hours is older than any age guard, but its attempt is still open.

No bytes are moved, for object stores cannot rename. The notes are one small file for each job in a checkpoint directory. They
only ever hold something back: lost or damaged ones begin the wait anew.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import (
    METADATA_FILE,
    STATE_DIRECTORY,
    checkpoint_id_of,
    checkpoint_uri,
    epoch_of,
    handles_uri,
    is_keyed_directory,
    is_merged_directory,
    job_uri,
    orphans_uri,
    shared_uri,
    taskowned_uri,
)
from airflow_provider_statecheck.checkpoint.messages import HIGHEST_ID, require
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import RECENT, JobView
from airflow_provider_statecheck.checkpoint.transitions import protected_checkpoints
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.storage.discarding import StorageDiscarder
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    UNREADABLE,
    CheckpointDocument,
    DocumentCache,
    decode_metadata,
    document_uris,
)

log = logging.getLogger(__name__)

SHORTEST_STAY = timedelta(days=1)
"""How long an orphan stays at least."""


class Quarantine:
    """
    The orphans of a job below the storage's base.

    :param storage: Where the bytes are.
    :param job_id: The job.
    :param stay: How long an orphan stays, a day or more.
    :param dry_run: Write nothing.
    :raises InvalidConfigurationError: for less than a day.
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
        Note what was found and return what has stayed long enough.

        What was noted before and is no orphan any more is forgotten.

        :raises StorageError: if the storage fails.
        """
        before = self._read()
        # Not later than now: a clock that was ahead would hold them back for as long.
        notes = {uri: min(before.get(uri, now), now) for uri in sorted(orphans)}
        # Before anything is deleted: killed in between, the next call finds the same and deletes it.
        if notes != before and not self._dry_run:
            self._write(notes)
        return frozenset(uri for uri, since in notes.items() if now - since >= self._stay)

    def forget(self) -> None:
        """
        Drop all notes.

        :raises StorageError: if the storage fails.
        """
        if not self._dry_run and self._storage.exists(self._uri):
            self._storage.delete_file(self._uri)

    def _read(self) -> dict[str, datetime]:
        try:
            notes = json.loads(self._storage.read_bytes(self._uri))
            return {f"{self._root}/{path}": _time(since) for path, since in notes.items()}
        except CheckpointNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("The notes in %s cannot be understood, every orphan waits anew: %s", self._uri, error)
            return {}

    def _write(self, notes: dict[str, datetime]) -> None:
        if not notes:
            self._storage.delete_file(self._uri)
            return
        told = {uri.removeprefix(f"{self._root}/"): since.isoformat() for uri, since in notes.items()}
        self._storage.write_bytes(self._uri, json.dumps(told, indent=1).encode(), overwrite=True)


def require_stay(stay: timedelta | None) -> None:
    """
    Refuse a stay that is too short.

    :raises InvalidConfigurationError: for less than a day.
    """
    require("quarantine", stay, lambda found: found is None or found >= SHORTEST_STAY, "a day or more")


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return time


_IN_PROGRESS = (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)


def aligned_in_progress(view: JobView) -> tuple[int, ...]:
    """Return the aligned checkpoints that the next leader goes on with; only their parts tell what they name."""
    rows = view.of_operator(ALIGNED_OPERATOR_ID)
    return tuple(c.checkpoint_id for c in rows if c.status in _IN_PROGRESS)


def retained_aligned(view: JobView) -> tuple[CheckpointRecord, ...]:
    """Return the aligned checkpoints that may name state in the directories of others."""
    return tuple(c for c in view.of_operator(ALIGNED_OPERATOR_ID) if c.status is CheckpointStatus.COMPLETED)


def is_left_on_purpose(checkpoint: CheckpointRecord) -> bool:
    """Tell whether the bytes of an ended aligned checkpoint stay: it may be complete, or they are its user's."""
    if checkpoint.operator_id != ALIGNED_OPERATOR_ID:
        return False
    if checkpoint.status is CheckpointStatus.SUBSUMED:
        return not checkpoint.properties.discard_on_subsumed
    # An abort whose outcome is in doubt is taken from garbage collection by the very transition that aborts it.
    is_kept = checkpoint.discarded_at is not None and checkpoint.discarded_at == checkpoint.ended_at
    return is_kept and checkpoint.status is CheckpointStatus.ABORTED


_OPERATOR_ID = re.compile(r"[0-9a-f]{32}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """What was found of a job below one checkpoint directory."""

    ended: tuple[str, ...] = ()
    """Directories of checkpoints whose rows say that they have ended."""
    directories: tuple[str, ...] = ()
    """Snapshots that nothing names, and unfinished checkpoints without a row."""
    files: tuple[str, ...] = ()
    """Files of state that nothing names."""
    skipped: tuple[str, ...] = ()
    """Uids of operators that were left alone, because a retained checkpoint of theirs cannot be read."""


class OrphanSearch:
    """
    Looks for the orphans of a job below the storage's base.

    :param storage: Where the bytes are.
    :param view: The job's rows, read before anything is listed: what came later has a higher epoch and is not touched.
    :param documents: Reads the metadata of the job's checkpoints, wherever they lie.
    :param of: The operators whose bytes are looked at; by default all.
    :param read_again: Reads the job's rows once more. Without it, files that no operator's name is on are left alone.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        view: JobView,
        documents: DocumentCache,
        *,
        of: tuple[OperatorRecord, ...] | None = None,
        read_again: Callable[[], JobView] | None = None,
    ) -> None:
        self._storage = storage
        self._view = view
        self._documents = documents
        self._operators = view.operators if of is None else of
        self._read_again = read_again
        self._base, self._job_id = storage.base_uri, view.job.job_id

    def find(self) -> Orphans:
        """
        Return what was found; nothing is deleted.

        :raises StorageError: if the storage fails.
        """
        skipped = tuple(o.uid for o in self._operators if self._named_by(o) is None)
        known = [o for o in self._operators if o.uid not in skipped]
        return Orphans(
            ended=tuple(self._ended()),
            directories=(*self._unfinished(), *(uri for o in known for uri in self._snapshots(o))),
            files=(
                *(uri for o in known for uri in self._unnamed_state(o)),
                *(uri for o in self._operators for uri in self._shared_state(o)),
                *self._taskowned(),
                *(uri for o in self._operators for uri in self._handles(o)),
            ),
            skipped=skipped,
        )

    @cached_property
    def _found(self) -> tuple[int, ...]:
        return checkpoint_ids(self._storage, self._job_id)

    @cached_property
    def _of_others(self) -> dict[int, CheckpointDocument]:
        """Complete checkpoints that the rows do not know: rows came from a backup, or another coordinator writes here."""
        known = {c.request_key for c in self._view.checkpoints}
        retained = {c.checkpoint_id for c in self._view.checkpoints if c.is_restorable}
        read = ((i, self._read(self._uri(i))) for i in self._found if i not in retained)
        return {i: document for i, document in read if document is not None and document.request_key not in known}

    def _read(self, directory: str) -> CheckpointDocument | None:
        uri = f"{directory}/{METADATA_FILE}"
        try:
            return decode_metadata(self._storage.read_bytes(uri), uri=uri)
        except UNREADABLE:
            return None

    def _uri(self, checkpoint_id: int) -> str:
        return checkpoint_uri(self._base, self._job_id, checkpoint_id)

    def _ended(self) -> Iterator[str]:
        mine = {o.operator_id for o in self._operators}
        rows = {c.checkpoint_id: c for c in self._view.checkpoints if c.operator_id in mine}
        # One checkpoint may have two rows: that of its operator, and that of an attempt which began from it.
        used = {checkpoint_id_of(_name(c.location)) for c in self._view_retained} | set(self._of_others)
        used |= {i for o in self._view.operators for i in _needed_though_ended(self._view, o)}
        ended = [i for i in self._found if i in rows and i not in used and _has_ended(rows[i])]
        yield from (self._uri(i) for i in ended if not self._is_needed(rows[i]))

    def _is_needed(self, ended: CheckpointRecord) -> bool:
        operator = next(o for o in self._operators if o.operator_id == ended.operator_id)
        named, aligned = self._named_by(operator), self._named_by_aligned
        if is_left_on_purpose(ended) or named is None or aligned is None:
            return True
        return any(uri.rpartition("/")[0].endswith(f"/chk-{ended.checkpoint_id}") for uri in named | aligned)

    def _unfinished(self) -> Iterator[str]:
        rows = {c.checkpoint_id for c in self._view.checkpoints}
        # An id that the rows have not drawn is another coordinator's, which may be writing.
        lost = [i for i in self._found if i not in rows and i < self._view.job.next_checkpoint_id]
        yield from (self._uri(i) for i in lost if self._is_abandoned(self._uri(i)) and not self._is_used(i))

    def _is_abandoned(self, directory: str) -> bool:
        # A directory with metadata is complete, and without a row nothing says that it is over.
        names = self._storage.list_files(directory)
        return self._has_no_open_attempt and all(epoch_of(name) is not None for name in names)

    def _is_used(self, checkpoint_id: int) -> bool:
        named = self._named_by_any
        return named is None or any(uri.rpartition("/")[0].endswith(f"/chk-{checkpoint_id}") for uri in named)

    def _unnamed_state(self, operator: OperatorRecord) -> Iterator[str]:
        named = _names(self._named_by(operator))
        for checkpoint in retained(self._view, operator):
            if checkpoint.checkpoint_id in self._found and checkpoint.location == self._uri(checkpoint.checkpoint_id):
                names = [n for n in self._storage.list_files(checkpoint.location) if n not in named]
                yield from (f"{checkpoint.location}/{n}" for n in names if self._is_closed(operator, n))

    def _snapshots(self, operator: OperatorRecord) -> Iterator[str]:
        named = _names(self._named_by(operator))
        root = shared_uri(self._base, self._job_id, operator.operator_id)
        for slug in self._storage.list_directories(root):
            if _holds_files(slug):
                continue
            for name in self._storage.list_directories(f"{root}/{slug}"):
                if self._is_closed(operator, name) and name not in named:
                    yield f"{root}/{slug}/{name}"

    def _shared_state(self, operator: OperatorRecord) -> Iterator[str]:
        root = shared_uri(self._base, self._job_id, operator.operator_id)
        for directory in filter(_holds_files, self._storage.list_directories(root)):
            for name in self._storage.list_files(f"{root}/{directory}"):
                if self._is_closed(operator, name) and self._is_named_by_none(name):
                    yield f"{root}/{directory}/{name}"

    def _taskowned(self) -> tuple[str, ...]:
        if self._read_again is None or not self._has_no_open_attempt:
            return ()
        root = taskowned_uri(self._base, self._job_id)
        files = (path for path in self._storage.list_files(root) if epoch_of(_name(path)) is not None)
        # What is in a task's own directory belongs to the task, which alone knows what it still needs.
        found = [path for path in files if not _OPERATOR_ID.match(path)]
        # No operator's name is on them, so an epoch says nothing; but all were written by attempts that had ended, if by
        # the time that they are listed none has begun.
        if not found or self._read_again().operators != self._view.operators:
            return ()
        return tuple(f"{root}/{path}" for path in found if self._is_named_by_none(_name(path)))

    def _handles(self, operator: OperatorRecord) -> Iterator[str]:
        if self._view.handle_uris is None:
            return
        named = _names(self._view.handle_uris)
        root = handles_uri(self._base, self._job_id, operator.operator_id)
        names = [name for name in self._storage.list_files(root) if name not in named]
        yield from (f"{root}/{name}" for name in names if self._is_closed(operator, name))

    def _is_closed(self, operator: OperatorRecord, name: str) -> bool:
        epoch = epoch_of(name)
        return epoch is not None and epoch < self._first_open_epoch(operator)

    def _first_open_epoch(self, operator: OperatorRecord) -> int:
        return operator.epoch if self._view.has_open_attempt(operator) else operator.epoch + 1

    def _named_by(self, operator: OperatorRecord) -> frozenset[str] | None:
        named = self._documents.named_uris(retained(self._view, operator))
        return None if named is None else named | self._named_by_others

    def _is_named_by_none(self, name: str) -> bool:
        # A checkpoint of several operators names files of all of them.
        named = self._named_by_any
        return named is not None and name not in _names(named)

    @property
    def _has_no_open_attempt(self) -> bool:
        return not any(self._view.has_open_attempt(o) for o in self._view.operators)

    @cached_property
    def _view_retained(self) -> tuple[CheckpointRecord, ...]:
        return tuple(c for o in self._view.operators for c in retained(self._view, o))

    @cached_property
    def _named_by_any(self) -> frozenset[str] | None:
        if aligned_in_progress(self._view):
            return None
        named = self._documents.named_uris(self._view_retained)
        return None if named is None else named | self._named_by_others

    @cached_property
    def _named_by_others(self) -> frozenset[str]:
        return frozenset(uri for document in self._of_others.values() for uri in document_uris(document))

    @cached_property
    def _named_by_aligned(self) -> frozenset[str] | None:
        """What aligned checkpoints name, wherever it lies; ``None`` where nobody knows."""
        if aligned_in_progress(self._view):
            return None
        return self._documents.named_uris(retained_aligned(self._view))


def checkpoint_ids(storage: CheckpointStorage, job_id: JobId) -> tuple[int, ...]:
    """
    Return the ids of the checkpoints that a job has a directory of, complete or not; no other number counts as an id.

    :raises StorageError: if the storage fails.
    """
    found = map(checkpoint_id_of, storage.list_directories(job_uri(storage.base_uri, job_id)))
    return tuple(i for i in found if i is not None and 0 < i <= HIGHEST_ID)


def newest_checkpoint_id(storage: CheckpointStorage, job_id: JobId) -> int:
    """
    Return the highest of these ids, 0 where there are none.

    :raises StorageError: if the storage fails.
    """
    return max(checkpoint_ids(storage, job_id), default=0)


def retained(view: JobView, operator: OperatorRecord) -> tuple[CheckpointRecord, ...]:
    """Return the checkpoints of an operator whose bytes must stay."""
    needed = _needed_though_ended(view, operator)
    rows = view.of_operator(operator.operator_id)
    return tuple(c for c in rows if c.is_restorable or (c.checkpoint_id in needed and c.metadata_uri is not None))


def _needed_though_ended(view: JobView, operator: OperatorRecord) -> frozenset[int]:
    rows = view.of_operator(operator.operator_id)
    return protected_checkpoints(rows, operator.generation, view.current_attempt(operator))


def _has_ended(checkpoint: CheckpointRecord) -> bool:
    return checkpoint.status in (CheckpointStatus.ABORTED, CheckpointStatus.SUBSUMED)


def _names(uris: frozenset[str] | tuple[str, ...] | None) -> frozenset[str]:
    # Each name is unique, and the directory around it may be spelled in several ways.
    return frozenset(map(_name, uris or ()))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _holds_files(directory: str) -> bool:
    return is_merged_directory(directory) or is_keyed_directory(directory) or directory == STATE_DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep found."""

    deleted: tuple[str, ...] = ()
    """Directories and files that were orphans."""
    skipped: tuple[str, ...] = ()
    """Uids of operators that were left alone, because a retained checkpoint of theirs cannot be read."""
    quarantined: tuple[str, ...] = ()
    """Orphans that stay for now."""


def sweep(
    storage: CheckpointStorage,
    view: JobView,
    documents: DocumentCache,
    *,
    of: tuple[OperatorRecord, ...] | None = None,
    read_again: Callable[[], JobView] | None = None,
    row_of: Callable[[int], CheckpointRecord | None] = lambda _: None,
    quarantine: Quarantine | None = None,
) -> SweepReport:
    """
    Delete the orphans of a job below the storage's base.

    :param storage: Where the bytes are.
    :param view: The job's rows, read before anything is listed: what came later has a higher epoch and is not touched.
    :param documents: Reads the metadata of the job's checkpoints, wherever they lie.
    :param of: The operators whose bytes are looked at; by default all.
    :param read_again: Reads the job's rows once more. Without it, files that no operator's name is on are left alone.
    :param row_of: Reads the row of one checkpoint; needed for jobs with more checkpoints than the view holds.
    :param quarantine: Where orphans stay for a while first; bytes of which a row says that they may go stay nowhere.
    :raises StorageError: if the storage fails.
    """
    view = _with_rows_of_directories(storage, view, row_of)
    found = OrphanSearch(storage, view, documents, of=of, read_again=read_again).find()
    due = frozenset((*found.directories, *found.files))
    if quarantine is not None:
        due = quarantine.admit(due, view.read_at)
    deleted = _delete(StorageDiscarder(storage, view.job.job_id), found, due)
    log.info("Sweep of job %s: %s orphans, %s operators skipped", view.job.name, len(deleted), len(found.skipped))
    waiting = tuple(uri for uri in (*found.directories, *found.files) if uri not in due)
    return SweepReport(deleted=deleted, skipped=found.skipped, quarantined=waiting)


def _with_rows_of_directories(
    storage: CheckpointStorage, view: JobView, row_of: Callable[[int], CheckpointRecord | None]
) -> JobView:
    if view.job.next_checkpoint_id <= RECENT:
        return view
    known = {c.checkpoint_id for c in view.checkpoints}
    rows = [row_of(i) for i in checkpoint_ids(storage, view.job.job_id) if i not in known]
    # Any other row is newer than the view, and what it means for the others is not in it.
    older = tuple(row for row in rows if row is not None and row.discarded_at is not None)
    return replace(view, checkpoints=(*older, *view.checkpoints)) if older else view


def _delete(discarder: StorageDiscarder, found: Orphans, due: frozenset[str]) -> tuple[str, ...]:
    directories = (*found.ended, *(uri for uri in found.directories if uri in due))
    files = tuple(uri for uri in found.files if uri in due)
    for uri in directories:
        discarder.discard_location(uri)
    for uri in files:
        discarder.discard_file(uri)
    return (*directories, *files)
