"""
Recovery of lost rows from the checkpoints on storage.

:class:`Recoveries` finds the jobs below a checkpoint directory and verifies their checkpoints. :class:`JobRecovery`
    writes
their rows. All attempts of a recovered job have ended, and the next attempt restores the newest checkpoint. Its epoch
is higher than that of any attempt with files on storage.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.ids import (
    ALIGNED_UID,
    METADATA_FILE,
    JobId,
    OperatorId,
    checkpoint_id_of,
    checkpoint_uri,
    epoch_of,
    given_job_id,
    is_savepoint_directory,
    job_id_of,
    job_uri,
    new_key,
    operator_id_of,
)
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.messages import HIGHEST_ID
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptRowError,
    CorruptStateError,
    InvalidConfigurationError,
    StateCheckError,
    UnknownVersionError,
)
from airflow_provider_statecheck.maintenance.gc import OpenStorage
from airflow_provider_statecheck.maintenance.job_maintenance import each_job
from airflow_provider_statecheck.state.progress import named_snapshots
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    UNREADABLE,
    CheckpointDocument,
    InlineStateHandle,
    document_uris,
    read_metadata,
)
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

RECOVERED = "recovered"
"""Owner of the attempts of a recovered job."""
_NUM_RETAINED = 2
_TIMEOUT = timedelta(minutes=10)
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_SAVEPOINT = re.compile(r".*/savepoint-[0-9a-f]{6}-[0-9a-f]{12}(?=/)")
Name = TypeVar("Name", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredJob:
    """Result of the recovery of one job."""

    job: str | None
    """Name of the job; ``None`` if no metadata can be read."""
    job_id: JobId
    is_recovered: bool = False
    operators: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    savepoints: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Parts that were not recovered, with the reason."""
    unreachable: tuple[str, ...] = ()
    """Failures of the storage or the database, after which the job was not recovered; a later call may recover it."""

    @classmethod
    def failed(cls, job: JobId, problems: Iterable[str] = (), unreachable: Iterable[str] = ()) -> RecoveredJob:
        """Return the result for a job that could not be recovered."""
        return cls(job=None, job_id=job, problems=tuple(problems), unreachable=tuple(unreachable))


class Recoveries:
    """
    Recovery of the jobs below a checkpoint directory.

    :param open_storage: Function that opens the storage of a directory.
    :param savepoints: Directory with savepoints.
    :param dry_run: Whether to report without writing rows.
    """

    def __init__(
        self, rows: JobRecovery, open_storage: OpenStorage, *, savepoints: str | None = None, dry_run: bool = False
    ) -> None:
        self._rows = rows
        self._open = open_storage
        self._savepoints = savepoints
        self._dry_run = dry_run

    def recover(self, directory: str, job: str | None = None) -> list[RecoveredJob]:
        """
        Recover every job without rows, each in a separate transaction. The call may be repeated.

        :param job: Name or id of a job; by default all jobs.
        :raises CheckpointNotFoundError: if the directory has no job, the job has no files, or the directory of
            savepoints has none.
        :raises StorageError: if the storage is unavailable.
        """
        storage = self._open(directory)
        savepoints, unreadable = _find_savepoints(self._open(self._savepoints)) if self._savepoints else ([], [])
        here = _require_any(_find_jobs(storage), "directories of jobs", storage, "the checkpoint directory")
        job_ids = {*here, *(JobId(s.document.job_id) for s in savepoints)}
        if job:
            job_ids &= {given_job_id(job)}
            if not job_ids:
                raise CheckpointNotFoundError(
                    f"Expected files of job {job!r} below {redact(storage.base_uri)}, found none."
                )

        def one(job_id: JobId) -> RecoveredJob:
            return self._recover(storage, find_job(storage, job_id), savepoints, is_here=job_id in here)

        recovered = list(each_job(sorted(job_ids), one, RecoveredJob.failed))
        return [*recovered, *unreadable]

    def _recover(
        self, storage: CheckpointStorage, found: FoundJob, savepoints: list[FoundCheckpoint], *, is_here: bool
    ) -> RecoveredJob:
        own = [s for s in savepoints if s.document.job_id == found.job_id]
        names = [s.document.job_name for s in (*found.checkpoints, *own)]
        if not names:
            problem = "its name is unknown because its metadata cannot be read"
            return RecoveredJob(job=None, job_id=found.job_id, problems=(*found.problems, problem))
        known = self._rows.problem_of(found.job_id)
        if known is not None:
            return RecoveredJob(job=names[0], job_id=found.job_id, problems=(known,))
        if not is_here:
            # Rows of its savepoints alone would keep the job from a recovery of its checkpoints.
            base = redact(storage.base_uri)
            problem = f"it has savepoints but no files in {base}; recover it from its checkpoint directory"
            return RecoveredJob(job=names[0], job_id=found.job_id, problems=(problem,))
        return self._recover_named(storage, found, own, names[0])

    def _recover_named(
        self, storage: CheckpointStorage, found: FoundJob, savepoints: list[FoundCheckpoint], name: str
    ) -> RecoveredJob:
        problems = list(found.problems)
        generations = _newest_generations((*found.checkpoints, *savepoints))
        current = _of_newest_generation(found.checkpoints)
        restorable = _restorable(storage, current, problems)
        intact = _restorable(self._open(self._savepoints), savepoints, problems) if self._savepoints else []
        intact = _unique_ids(intact, {c.document.checkpoint_id for c in found.checkpoints}, problems)
        uids = tuple(uid for uid in generations if uid != ALIGNED_UID)
        problems += [f"operator {uid!r} has no restorable checkpoint" for uid in uids if not _has(restorable, uid)]
        ids = [s.document.checkpoint_id for s in savepoints]
        request = RecoverJob(
            job_id=found.job_id,
            name=name,
            storage_base=storage.base_uri,
            highest_epoch=max((found.highest_epoch, *(d.epoch for s in savepoints for d in _documents(s)))),
            highest_checkpoint_id=max((found.highest_checkpoint_id, *ids)),
            generations=generations,
            checkpoints=(*restorable, *intact),
            claimed=_claimed(restorable),
        )
        refusal = self._save(request)
        return RecoveredJob(
            job=name,
            job_id=found.job_id,
            is_recovered=not refusal,
            operators=uids,
            checkpoints=tuple(c.location for c in restorable),
            savepoints=tuple(s.location for s in intact),
            problems=(*problems, *refusal),
        )

    def _save(self, request: RecoverJob) -> tuple[str, ...]:
        try:
            self._rows.recover(request, dry_run=self._dry_run)
        except (InvalidConfigurationError, CorruptRowError) as error:
            # Reported instead of raised, as the other jobs can still be recovered.
            return (str(error),)
        return ()


def _newest_generations(found: Iterable[FoundCheckpoint]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for document in (document for each in found for document in _documents(each)):
        newest[document.uid] = max(document.generation, newest.get(document.uid, 0))
    return newest


def _documents(found: FoundCheckpoint) -> Iterator[CheckpointDocument]:
    """Return the metadata of a checkpoint and of its members that are checkpoints of the same job."""
    document = found.document
    yield document
    # A stage that had restored a savepoint of another job, and no checkpoint since, has that savepoint as its member.
    yield from (member for member in document.members if member.job_id == document.job_id)


def _of_newest_generation(found: tuple[FoundCheckpoint, ...]) -> list[FoundCheckpoint]:
    newest = _newest_generations(found)
    return [c for c in found if c.document.generation == newest[c.document.uid]]


def _restorable(storage: CheckpointStorage, found: list[FoundCheckpoint], problems: list[str]) -> list[FoundCheckpoint]:
    from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier

    verifier = CheckpointVerifier(storage)
    restorable = []
    for each in found:
        verification = verifier.verify_pointer(each.location)
        problems += [f"{each.location}: {problem}" for problem in verification.problems]
        restorable += [each] if verification.is_restorable else []
    return restorable


def _unique_ids(savepoints: list[FoundCheckpoint], taken: set[int], problems: list[str]) -> list[FoundCheckpoint]:
    unique: dict[int, FoundCheckpoint] = {}
    for each in savepoints:
        checkpoint_id = each.document.checkpoint_id
        if checkpoint_id in taken or checkpoint_id in unique:
            problems.append(f"{each.location}: a copy; another checkpoint of the job has the id {checkpoint_id}")
        else:
            unique[checkpoint_id] = each
    return list(unique.values())


def _has(found: list[FoundCheckpoint], uid: str) -> bool:
    return any(each.document.uid == uid for each in found)


def _claimed(found: list[FoundCheckpoint]) -> tuple[tuple[str, str], ...]:
    # A checkpoint references files of a savepoint only if its operator claimed the savepoint.
    return tuple(dict.fromkeys((savepoint, c.document.uid) for c in found for savepoint in c.named_savepoints))


def _savepoints_in(document: CheckpointDocument) -> tuple[str, ...]:
    references = map(_SAVEPOINT.match, document_uris(document))
    return tuple(dict.fromkeys(match.group() for match in references if match))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """Checkpoint or savepoint on storage with readable metadata."""

    location: str
    metadata_size: int
    metadata_sha256: str
    document: CheckpointDocument
    """Its metadata without the handles, which would take too much memory for all checkpoints of a job."""
    full_size_bytes: int
    counts: dict[str, int]
    summary: CheckpointSummary | None
    named_savepoints: tuple[str, ...]
    """Savepoints whose files it references."""

    @property
    def metadata_uri(self) -> str:
        """The URI of the metadata file."""
        return f"{self.location}/{METADATA_FILE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """Files of one job on storage."""

    job_id: JobId
    checkpoints: tuple[FoundCheckpoint, ...]
    """Readable checkpoints, oldest first."""
    highest_epoch: int
    """Highest epoch in the file names and the metadata of the job."""
    highest_checkpoint_id: int
    problems: tuple[str, ...]
    """Reasons why metadata cannot be read, or is not that of a checkpoint of the job."""


def _require_any(found: Iterable[Name], what: str, storage: CheckpointStorage, directory: str) -> set[Name]:
    names = set(found)
    if not names:
        raise CheckpointNotFoundError(
            f"Expected {what} in {redact(storage.base_uri)}, found none; correct {directory}."
        )
    return names


def _find_jobs(storage: CheckpointStorage) -> list[JobId]:
    return [JobId(name) for name in storage.list_directories(storage.base_uri) if _JOB_ID.fullmatch(name)]


def find_job(storage: CheckpointStorage, job_id: JobId) -> FoundJob:
    """Return what the directory of a job has: checkpoints, and problems of those that cannot be read."""
    paths = [path.split("/") for path in storage.list_files(job_uri(storage.base_uri, job_id))]
    ids = sorted({i for i in (checkpoint_id_of(p[0]) for p in paths if len(p) > 1) if i is not None})
    with_metadata = [checkpoint_id_of(p[0]) for p in paths if len(p) == 2 and p[1] == METADATA_FILE]
    directories = [checkpoint_uri(storage.base_uri, job_id, i) for i in ids if i in with_metadata]
    found, problems = _read_all(storage, directories)
    checkpoints = [c for c in found if _is_in_place(c, job_id)]
    problems += [_wrong_place(c, job_id) for c in found if c not in checkpoints]
    epochs = (e for p in paths for e in map(epoch_of, p) if e is not None)
    return FoundJob(
        job_id=job_id,
        checkpoints=tuple(checkpoints),
        highest_epoch=max((*epochs, *(c.document.epoch for c in checkpoints)), default=0),
        highest_checkpoint_id=max(ids, default=0),
        problems=tuple(map(redact, problems)),
    )


def _find_savepoints(storage: CheckpointStorage) -> tuple[list[FoundCheckpoint], list[RecoveredJob]]:
    names = filter(is_savepoint_directory, storage.list_directories(storage.base_uri))
    savepoints_there = _require_any(names, "savepoints", storage, "the directory of savepoints, or omit it")
    found, failed = _read_savepoints(storage, [f"{storage.base_uri}/{name}" for name in sorted(savepoints_there)])
    return [s for s in found if s.document.properties.is_savepoint], failed


def _read_all(storage: CheckpointStorage, directories: Iterable[str]) -> tuple[list[FoundCheckpoint], list[str]]:
    found: list[FoundCheckpoint] = []
    problems: list[str] = []
    for directory in directories:
        try:
            found.append(_read(storage, directory))
        except UnknownVersionError:
            # A job that resumes from an older checkpoint would give up this one, which is intact.
            raise
        except UNREADABLE as error:
            problems.append(str(error))
    return found, problems


def _read_savepoints(
    storage: CheckpointStorage, directories: Iterable[str]
) -> tuple[list[FoundCheckpoint], list[RecoveredJob]]:
    found: list[FoundCheckpoint] = []
    failed: list[RecoveredJob] = []
    for directory in directories:
        try:
            found.append(_read(storage, directory))
        except StateCheckError as error:
            # Its job is unknown; the others are recovered without it.
            reason = {"unreachable" if error.retryable else "problems": [redact(str(error))]}
            failed.append(RecoveredJob.failed(JobId(""), **reason))
    return found, failed


def _read(storage: CheckpointStorage, directory: str) -> FoundCheckpoint:
    from airflow_provider_statecheck.state.reading.checkpoint_contents import summary_of

    uri = f"{directory}/{METADATA_FILE}"
    document, data = read_metadata(storage, uri)
    if not _has_own_ids(document):
        raise CorruptStateError(
            f"Expected job and operator names that match their ids in {uri}, found others.", uri=uri
        )
    digest = hashlib.sha256(data).hexdigest()
    return FoundCheckpoint(
        location=directory,
        metadata_size=len(data),
        metadata_sha256=digest,
        document=_without_handles(document),
        full_size_bytes=document.named_bytes,
        counts={"snapshots": len(named_snapshots(document.snapshots)), "operators": len(document.operator_states)},
        summary=summary_of(document),
        named_savepoints=_savepoints_in(document),
    )


def _without_handles(document: CheckpointDocument) -> CheckpointDocument:
    members = tuple(map(_without_handles, document.members))
    none = InlineStateHandle(value={})
    return replace(document, snapshots=(), state=none, operator_states=(), master_states=(), members=members)


def _has_own_ids(document: CheckpointDocument) -> bool:
    # This library derives the ids from the names, so other ids and names were not written by it.
    try:
        return (job_id_of(document.job_name), operator_id_of(document.uid)) == (document.job_id, document.operator_id)
    except InvalidConfigurationError:
        return False


def _is_in_place(found: FoundCheckpoint, job_id: JobId) -> bool:
    document = found.document
    checkpoint_id = checkpoint_id_of(found.location.rpartition("/")[2])
    is_match = (document.job_id, document.checkpoint_id) == (job_id, checkpoint_id)
    return is_match and not document.properties.is_savepoint


def _wrong_place(found: FoundCheckpoint, job_id: JobId) -> str:
    document = found.document
    return (
        f"Expected a checkpoint of job {job_id} in {found.location}, found checkpoint {document.checkpoint_id} of job "
        f"{document.job_id}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverJob:
    """Request to write the rows of a job that was found on storage."""

    job_id: JobId
    name: str
    storage_base: str
    highest_epoch: int
    """Highest epoch of an attempt with files on storage."""
    highest_checkpoint_id: int
    """Highest id of a checkpoint or savepoint, including unreadable ones."""
    generations: dict[str, int]
    """Newest generation of each operator by uid, including unreadable checkpoints."""
    checkpoints: tuple[FoundCheckpoint, ...] = field(metadata={"alias": "snapshots"})
    """Restorable checkpoints and savepoints."""
    claimed: tuple[tuple[str, str], ...] = ()
    """Claimed savepoints: directory and uid of the operator that uses their files."""


class JobRecovery:
    """Writer of the rows of recovered jobs; never changes existing rows."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def problem_of(self, job_id: JobId) -> str | None:
        """Return why a job cannot be recovered: it has rows, which may be unreadable; ``None`` if it has none."""
        try:
            self._store.describe(job_id)
        except CheckpointNotFoundError:
            return None
        except CorruptRowError as error:
            return f"the database has rows of it: {error}"
        return "the database has rows of it, which were not changed"

    def recover(self, request: RecoverJob, *, dry_run: bool = False) -> None:
        """
        Write the rows of a job in one transaction.

        :param dry_run: Whether to only check the request.
        :raises InvalidConfigurationError: if the job has rows, or an id is out of range.
        """
        if not 0 <= request.highest_checkpoint_id <= HIGHEST_ID:
            raise InvalidConfigurationError(
                f"Expected checkpoint ids up to {HIGHEST_ID}, found {request.highest_checkpoint_id}; move the "
                "directory or savepoint with this id away."
            )
        if dry_run:
            return
        with self._store.transaction(request.job_id, create_as=request.name) as tx:
            if tx.view().attempts:
                raise InvalidConfigurationError(
                    f"Expected job {request.name!r} to have no rows in the database, found some; they were not changed."
                )
            tx.set_next_checkpoint_id(max(tx.job.next_checkpoint_id, request.highest_checkpoint_id + 1))
            for uid in request.generations:
                _add_operator(tx, request, uid)
            for checkpoint in request.checkpoints:
                tx.add_checkpoint(_row(tx, request.job_id, checkpoint))
            for pointer, uid in request.claimed:
                _claim(tx, pointer, operator_id_of(uid))
        log.info("Job %s recovered with %s", request.name, counted(len(request.checkpoints), "checkpoint"))


def _add_operator(tx: JobTransaction, request: RecoverJob, uid: str) -> None:
    operator_id = operator_id_of(uid)
    # The operator's row is retained when its job is removed, with its last epoch.
    known = tx.operator(operator_id)
    epoch = max(1, request.highest_epoch, known.epoch if known else 0)
    generation = _generation(request, uid)
    operator = OperatorRecord(
        job_id=request.job_id, operator_id=operator_id, uid=uid, epoch=epoch, generation=generation
    )
    tx.save_operator(operator)
    tx.save_attempt(_ended_attempt(tx, operator, request.storage_base))


def _generation(request: RecoverJob, uid: str) -> int:
    newest = request.generations[uid]
    if uid == ALIGNED_UID:
        return newest
    documents = [checkpoint.document for checkpoint in request.checkpoints]
    restorable = {d.generation for d in documents if d.uid == uid and not d.properties.is_savepoint}
    # Without a restorable checkpoint, the next attempt must start without state; in the old generation it would fail.
    return max(restorable) if restorable else newest + 1


def _ended_attempt(tx: JobTransaction, operator: OperatorRecord, storage_base: str) -> AttemptRecord:
    owner = AttemptOwner(
        logical_task=RECOVERED, run_key=RECOVERED, run_id=RECOVERED, clear_marker=RECOVERED, label=RECOVERED
    )
    return AttemptRecord(
        job_id=operator.job_id,
        operator_id=operator.operator_id,
        epoch=operator.epoch,
        attempt_key=new_key(),
        generation=operator.generation,
        status=AttemptStatus.FAILED,
        owner=owner,
        start_reason="recovered from storage",
        restored_from=None,
        storage_base=storage_base,
        num_retained=_NUM_RETAINED,
        checkpoint_timeout_seconds=_TIMEOUT.total_seconds(),
        registered_at=tx.now,
        ended_at=tx.now,
        message="the database was lost",
    )


def _row(tx: JobTransaction, job_id: JobId, found: FoundCheckpoint) -> CheckpointRecord:
    document = found.document
    return CheckpointRecord(
        job_id=job_id,
        checkpoint_id=document.checkpoint_id,
        operator_id=operator_id_of(document.uid),
        epoch=document.epoch,
        generation=document.generation,
        status=CheckpointStatus.COMPLETED,
        request_key=document.request_key or new_key(),
        location=found.location,
        triggered_at=tx.now,
        expires_at=tx.now,
        completed_at=tx.now,
        properties=document.properties,
        metadata_uri=found.metadata_uri,
        metadata_size=found.metadata_size,
        metadata_sha256=found.metadata_sha256,
        full_size_bytes=found.full_size_bytes,
        counts=found.counts,
        summary=found.summary,
        # The result of the commit is unknown, so the next attempt commits the output again.
        has_open_commit=document.has_commit,
    )


def _claim(tx: JobTransaction, pointer: str, operator_id: OperatorId) -> None:
    if tx.claim(pointer) is None:
        tx.save_claim(ClaimRecord(pointer=pointer, job_id=tx.job.job_id, operator_id=operator_id, claimed_at=tx.now))
