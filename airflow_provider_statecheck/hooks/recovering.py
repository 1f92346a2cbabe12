"""Recovering jobs whose rows were lost from the checkpoints that are left."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.recovery import JobRecovery, RecoveredSnapshot, RecoverJob
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_statecheck.hooks.collecting import OpenStorage
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
    from airflow_provider_statecheck.storage.recovery import FoundJob, FoundSnapshot

_JOB_ID = re.compile(r"[0-9a-f]{32}")
_SAVEPOINT = re.compile(r".*/savepoint-[0-9a-f]{6}-[0-9a-f]{12}(?=/)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredJob:
    """What became of one job."""

    job: str | None
    """``None`` where no metadata can be read that tells it."""
    job_id: JobId
    is_recovered: bool = False
    operators: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    savepoints: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What was left as it is, and why."""


class Recoveries:
    """
    Recovers the jobs below a checkpoint directory.

    :param rows: Makes the rows.
    :param open_storage: Gives the storage of a directory.
    :param savepoints: Directory with savepoints.
    :param dry_run: Only say what would be made.
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
        Recover every job that has no rows; each in a transaction of its own, so that the call may be repeated.

        :param directory: The checkpoint directory.
        :param job: Only the job of this name or id.
        :raises CheckpointNotFoundError: if there is nothing of such a job.
        :raises StorageError: if the storage does not answer.
        """
        from airflow_provider_statecheck.storage import recovery

        storage = self._open(directory)
        savepoints, problems = self._find_savepoints()
        of_savepoints = (JobId(s.document.job_id) for s in savepoints)
        wanted = sorted({*recovery.find_jobs(storage), *of_savepoints} & _ids(job)) if job else None
        if wanted == []:
            raise CheckpointNotFoundError(f"Expected job {job!r} below {storage.base_uri}, found nothing of it.")
        found = wanted or sorted({*recovery.find_jobs(storage), *(JobId(s.document.job_id) for s in savepoints)})
        done = [self._recover(storage, recovery.find_job(storage, job_id), savepoints) for job_id in found]
        lost = [RecoveredJob(job=None, job_id=JobId(""), problems=tuple(problems))] if problems else []
        return [*done, *lost]

    def _find_savepoints(self) -> tuple[list[FoundSnapshot], list[str]]:
        from airflow_provider_statecheck.storage.recovery import find_savepoints

        return find_savepoints(self._open(self._savepoints)) if self._savepoints else ([], [])

    def _recover(self, storage: CheckpointStorage, found: FoundJob, savepoints: list[FoundSnapshot]) -> RecoveredJob:
        own = [s for s in savepoints if s.document.job_id == found.job_id]
        names = [s.document.job_name for s in (*found.checkpoints, *own)]
        if not names:
            problem = "no metadata of it can be read, so that nobody knows its name"
            return RecoveredJob(job=None, job_id=found.job_id, problems=(*found.problems, problem))
        if self._rows.is_known(found.job_id):
            kept = "it has rows, which are kept as they are"
            return RecoveredJob(job=names[0], job_id=found.job_id, problems=(kept,))
        return self._make(storage, found, own, names[0])

    def _make(
        self, storage: CheckpointStorage, found: FoundJob, savepoints: list[FoundSnapshot], name: str
    ) -> RecoveredJob:
        problems = list(found.problems)
        generations = _newest_generations((*found.checkpoints, *savepoints))
        current = _of_newest_generation(found.checkpoints)
        usable = _usable(storage, current, problems)
        intact = _usable(self._open(self._savepoints), savepoints, problems) if self._savepoints else []
        intact = _unique_ids(intact, {c.document.checkpoint_id for c in found.checkpoints}, problems)
        problems += [
            f"operator {uid!r} has nothing that can be restored" for uid in generations if not _has(usable, uid)
        ]
        ids = [s.document.checkpoint_id for s in savepoints]
        request = RecoverJob(
            job_id=found.job_id,
            name=name,
            storage_base=storage.base_uri,
            highest_epoch=max((found.highest_epoch, *(s.document.epoch for s in savepoints))),
            highest_checkpoint_id=max((found.highest_checkpoint_id, *ids)),
            generations=generations,
            snapshots=tuple(map(_snapshot, (*usable, *intact))),
            claimed=_claimed(usable),
        )
        is_recovered, refused = self._save(request)
        return RecoveredJob(
            job=name,
            job_id=found.job_id,
            is_recovered=is_recovered,
            operators=tuple(generations),
            checkpoints=tuple(c.location for c in usable),
            savepoints=tuple(s.location for s in intact),
            problems=(*problems, *refused),
        )

    def _save(self, request: RecoverJob) -> tuple[bool, tuple[str, ...]]:
        try:
            if not self._dry_run:
                self._rows.recover(request)
        except InvalidConfigurationError as error:
            # One job that cannot be recovered keeps no other from it.
            return False, (str(error),)
        return True, ()


def _ids(job: str) -> set[JobId]:
    return {job_id_of(job), *([JobId(job)] if _JOB_ID.fullmatch(job) else [])}


def _newest_generations(found: Iterable[FoundSnapshot]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for each in found:
        newest[each.document.uid] = max(each.document.generation, newest.get(each.document.uid, 0))
    return newest


def _of_newest_generation(found: tuple[FoundSnapshot, ...]) -> list[FoundSnapshot]:
    newest = _newest_generations(found)
    return [c for c in found if c.document.generation == newest[c.document.uid]]


def _usable(storage: CheckpointStorage, found: list[FoundSnapshot], problems: list[str]) -> list[FoundSnapshot]:
    from airflow_provider_statecheck.spark.verify import CheckpointVerifier

    verifier = CheckpointVerifier(storage)
    usable = []
    for each in found:
        verification = verifier.verify_pointer(each.location)
        problems += [f"{each.location}: {problem}" for problem in verification.problems]
        usable += [each] if verification.is_restorable else []
    return usable


def _unique_ids(savepoints: list[FoundSnapshot], taken: set[int], problems: list[str]) -> list[FoundSnapshot]:
    unique: dict[int, FoundSnapshot] = {}
    for each in savepoints:
        number = each.document.checkpoint_id
        if number in taken or number in unique:
            problems.append(f"{each.location}: another snapshot of the job has the id {number}, this one is a copy")
        else:
            unique[number] = each
    return list(unique.values())


def _has(found: list[FoundSnapshot], uid: str) -> bool:
    return any(each.document.uid == uid for each in found)


def _claimed(found: list[FoundSnapshot]) -> tuple[tuple[str, str], ...]:
    from airflow_provider_statecheck.storage.document_uris import document_uris

    # A checkpoint names files in a savepoint only where its operator claimed it.
    named = ((_SAVEPOINT.match(uri), c.document.uid) for c in found for uri in document_uris(c.document))
    return tuple(dict.fromkeys((match.group(), uid) for match, uid in named if match))


def _snapshot(found: FoundSnapshot) -> RecoveredSnapshot:
    document = found.document
    return RecoveredSnapshot(
        checkpoint_id=document.checkpoint_id,
        uid=document.uid,
        epoch=document.epoch,
        generation=document.generation,
        properties=document.properties,
        location=found.location,
        metadata_uri=found.metadata_uri,
        metadata_size=found.metadata_size,
        metadata_sha256=found.metadata_sha256,
        full_size_bytes=document.named_bytes,
        counts={"snapshots": len(document.snapshots), "operators": len(document.operator_states)},
        request_key=document.request_key,
        has_commit=document.has_commit,
    )
