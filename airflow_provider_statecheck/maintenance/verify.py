"""
Verification of retained checkpoints.

Reads every file that a restore would read and reports the problems of a checkpoint; after a hundred of them it reads no
more. An unavailable storage raises an error instead, as it is no evidence against a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from airflow_provider_statecheck.checkpoint.ids import DATA_DIRECTORY, OperatorId, checkpoint_id_of, job_uri
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, StateCheckError
from airflow_provider_statecheck.maintenance.gc import OpenStorage, base_of
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.spark.restore import StateVerifier
from airflow_provider_statecheck.storage.bounds import MOST_PROBLEMS, bounded_decoding
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    LARGEST_VALUES,
    UNREADABLE,
    CheckpointDocument,
    SnapshotHandle,
    load_document,
    read_values,
)
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.snapshot_manifest import (
    SnapshotManifest,
    read_batches,
    read_manifest,
    verify_files,
    verify_footers,
)
from airflow_provider_statecheck.storage.uris import redact

Value = TypeVar("Value")


def verify_job(
    gateway: JobMaintenance,
    view: JobView,
    open_storage: OpenStorage,
    *,
    checkpoint_id: int | None = None,
    is_deep: bool = False,
    with_savepoints: bool = False,
) -> Iterator[Verification]:
    """
    Verify the retained checkpoints of a job, oldest first.

    :param open_storage: Function that opens the storage of a checkpoint directory.
    :param checkpoint_id: Id of one checkpoint; by default all checkpoints.
    :param is_deep: Whether to also read every page of every file.
    :param with_savepoints: Whether to include the savepoints of the job, which their owner may have moved or deleted.
    :raises CheckpointNotFoundError: if the checkpoint is not retained.
    :raises StorageError: if the storage is unavailable; earlier results were yielded before.
    """
    verifiers: dict[tuple[str, OperatorId], CheckpointVerifier] = {}
    for checkpoint in _selected(view, checkpoint_id, with_savepoints=with_savepoints):
        key = base_of(checkpoint), checkpoint.operator_id
        if key not in verifiers:
            verifiers[key] = _verifier(view, checkpoint, open_storage, is_deep=is_deep)
        verification = verifiers[key].verify(checkpoint)
        # A running stage may have discarded the checkpoint during verification.
        if verification.is_restorable or _is_retained(gateway, checkpoint):
            yield verification


def _selected(view: JobView, checkpoint_id: int | None, *, with_savepoints: bool) -> list[CheckpointRecord]:
    completed = [c for c in view.checkpoints if c.status is CheckpointStatus.COMPLETED]
    retained = [
        c for c in completed if (c.is_restorable or with_savepoints) and checkpoint_id in (None, c.checkpoint_id)
    ]
    if checkpoint_id is not None and not retained:
        raise CheckpointNotFoundError(
            f"Expected a retained checkpoint {checkpoint_id} of job {view.job.name!r}, found none; 'airflow statecheck "
            f"checkpoints' lists the retained checkpoints.",
            checkpoint_id=checkpoint_id,
        )
    return retained


def _verifier(
    view: JobView, checkpoint: CheckpointRecord, open_storage: OpenStorage, *, is_deep: bool
) -> CheckpointVerifier:
    # The checkpoint may reference files of a claimed savepoint or of an earlier checkpoint directory.
    storage = open_storage(base_of(checkpoint)).allowing(*view.directories_of(checkpoint.operator_id))
    return CheckpointVerifier(storage, is_deep=is_deep)


def _is_retained(gateway: JobMaintenance, checkpoint: CheckpointRecord) -> bool:
    row = gateway.checkpoint(checkpoint.job_id, checkpoint.checkpoint_id)
    return row is not None and row.status is CheckpointStatus.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of the verification of a checkpoint."""

    pointer: str
    checkpoint_id: int | None = None
    """Id of the checkpoint; ``None`` if its metadata cannot be read."""
    problems: tuple[str, ...] = ()
    """Reasons why a restore would fail."""
    unchecked: tuple[str, ...] = ()
    """Files whose pages could not be read, for instance because of a type that only Spark supports."""

    @property
    def is_restorable(self) -> bool:
        """Whether a restore can use the checkpoint."""
        return not self.problems


class CheckpointVerifier:
    """
    Verifier of checkpoints; a snapshot or state file that several checkpoints reference is read once.

    :param is_deep: Whether to also read every page of every file.
    """

    def __init__(self, storage: CheckpointStorage, *, is_deep: bool = False) -> None:
        self._storage = storage
        self._is_deep = is_deep
        self._verified: dict[SnapshotHandle, Verification] = {}
        self._states = StateVerifier(storage, is_deep=is_deep)

    def verify(self, checkpoint: CheckpointRecord) -> Verification:
        """
        Verify a completed checkpoint, including that its metadata matches its row.

        :raises StorageError: if the storage is unavailable.
        """
        # One verifier reads the snapshots and state files that the checkpoints of a job share.
        is_of_job = checkpoint.location.startswith(f"{job_uri(self._storage.base_uri, checkpoint.job_id)}/")
        verifier = self if is_of_job else self._on(self._storage.allowing(checkpoint.location))
        verification = verifier._verify(checkpoint.location, lambda: _load_of_row(verifier._storage, checkpoint))
        return replace(verification, checkpoint_id=checkpoint.checkpoint_id)

    def verify_pointer(self, pointer: str) -> Verification:
        """
        Verify a checkpoint without a row. The metadata file contains its own checksum.

        :raises CheckpointNotFoundError: if there is no checkpoint at the pointer.
        :raises StorageError: if the storage is unavailable.
        """
        location = resolve_checkpoint(self._storage, pointer)
        return self._on(location.storage)._verify(location.external_pointer, lambda: location.read()[0])

    def _on(self, storage: CheckpointStorage) -> CheckpointVerifier:
        return self if storage is self._storage else CheckpointVerifier(storage, is_deep=self._is_deep)

    def _verify(self, pointer: str, load: Callable[[], CheckpointDocument]) -> Verification:
        document, problem = _try(load)
        if document is None:
            return Verification(pointer=pointer, problems=(redact(problem),))
        stages = (document, *document.members)
        of_stages = [self._verify_stage(pointer, stage) for stage in stages]
        self._forget_all_but(handle for stage in stages for handle in stage.snapshots)
        return Verification(
            pointer=pointer,
            checkpoint_id=document.checkpoint_id,
            problems=tuple(redact(p) for each in of_stages for p in each.problems),
            unchecked=tuple(redact(p) for each in of_stages for p in each.unchecked),
        )

    def _verify_stage(self, pointer: str, stage: CheckpointDocument) -> Verification:
        problems, unchecked = [*self._state_problems(stage)], list[str]()
        for number, handle in enumerate(stage.snapshots):
            if len(problems) >= MOST_PROBLEMS:
                left = len(stage.snapshots) - number
                problems.append(f"Snapshots that were not read after {MOST_PROBLEMS} problems: {left}.")
                break
            snapshot = self._verify_snapshot(handle)
            problems += snapshot.problems
            unchecked += snapshot.unchecked
        return Verification(pointer=pointer, problems=tuple(problems), unchecked=tuple(unchecked))

    def _forget_all_but(self, handles: Iterable[SnapshotHandle]) -> None:
        # The next checkpoint shares snapshots with this one at most, and each may have as many as metadata can name.
        self._verified = {handle: self._verified[handle] for handle in handles if handle in self._verified}

    def _state_problems(self, document: CheckpointDocument) -> tuple[str, ...]:
        _, read_problem = _try(lambda: self._require_values(document))
        problems, verify_problem = _try(lambda: self._states.problems(document))
        return (*filter(None, [read_problem, verify_problem]), *(problems or ()))

    def _require_values(self, document: CheckpointDocument) -> None:
        values = document.state
        if isinstance(values, FileStateHandle) and values.size > LARGEST_VALUES:
            # Only the driver of its job decodes a file of any size.
            self._states.require_digest(values)
        else:
            read_values(self._storage, document, is_bounded=False)

    def _verify_snapshot(self, handle: SnapshotHandle) -> Verification:
        if handle not in self._verified:
            self._verified[handle] = self._read_snapshot(handle)
        return self._verified[handle]

    def _read_snapshot(self, handle: SnapshotHandle) -> Verification:
        data_uri = f"{handle.uri}/{DATA_DIRECTORY}"
        manifest, problem = _try(lambda: _bounded_manifest(self._storage, handle))
        if manifest is None:
            return Verification(pointer=handle.uri, problems=(f"snapshot {handle.name!r}: {problem}",))
        for check in (verify_files, verify_footers):
            _, problem = _try(partial(check, self._storage, data_uri, manifest))
            if problem:
                return _of_snapshot(handle, [problem])
        return self._read_pages(handle, manifest) if self._is_deep else _of_snapshot(handle, [])

    def _read_pages(self, handle: SnapshotHandle, manifest: SnapshotManifest) -> Verification:
        problems, unchecked, rows = [], [], 0
        for file in manifest.files:
            uri = f"{handle.uri}/{DATA_DIRECTORY}/{file.name}"
            try:
                rows += sum(batch.num_rows for batch in read_batches(self._storage, uri, file))
            except UNREADABLE as error:
                problems.append(str(error))
            except NotImplementedError as error:
                unchecked.append(f"{uri}: {error}")
        if not problems and not unchecked and rows != manifest.rows:
            problems.append(f"Expected {manifest.rows} rows in {handle.uri}, found {rows}.")
        return replace(_of_snapshot(handle, problems), unchecked=tuple(unchecked))


def _load_of_row(storage: CheckpointStorage, checkpoint: CheckpointRecord) -> CheckpointDocument:
    document = load_document(storage, checkpoint)
    expected = _identity_of(checkpoint)
    found = {key: _IDENTITY[key](document) for key in expected}
    if found != expected:
        raise CorruptStateError(
            f"Expected {checkpoint.metadata_uri} to match its database row, {expected}, found {found}; the file was "
            "replaced by that of another checkpoint."
        )
    return document


_IDENTITY: dict[str, Callable[[CheckpointDocument], object]] = {
    "job": lambda document: document.job_id,
    "operator": lambda document: document.operator_id,
    "id": lambda document: document.checkpoint_id,
    "savepoint": lambda document: document.properties.is_savepoint,
}


def _identity_of(checkpoint: CheckpointRecord) -> dict[str, object]:
    # An attempt may restore, and a savepoint may copy, a checkpoint of another job or operator.
    is_savepoint = checkpoint.properties.is_savepoint
    if checkpoint_id_of(checkpoint.location.rpartition("/")[2]) == checkpoint.checkpoint_id and not is_savepoint:
        values = {"job": checkpoint.job_id, "operator": checkpoint.operator_id}
        return {**values, "id": checkpoint.checkpoint_id, "savepoint": False}
    if checkpoint.is_of_user:
        return {"id": checkpoint.checkpoint_id, "savepoint": True}
    return {}


def _of_snapshot(handle: SnapshotHandle, problems: list[str]) -> Verification:
    prefixed = tuple(f"snapshot {handle.name!r}: {problem}" for problem in problems if problem)
    return Verification(pointer=handle.uri, problems=prefixed)


def _try(call: Callable[[], Value]) -> tuple[Value | None, str]:
    try:
        return call(), ""
    except StateCheckError as error:
        if error.retryable:
            raise  # no evidence against a checkpoint
        return None, str(error)


def _bounded_manifest(storage: CheckpointStorage, handle: SnapshotHandle) -> SnapshotManifest:
    # Maintenance reads the manifests of all jobs.
    with bounded_decoding():
        return read_manifest(storage, handle)
