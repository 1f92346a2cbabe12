"""
Verification of retained checkpoints: every byte that a restore would read.

All that is wrong is told, not the first of it alone. A storage that does not answer is an error and says nothing about a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_statecheck.checkpoint.layout import DATA_DIRECTORY, checkpoint_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, LocationNotAllowedError
from airflow_provider_statecheck.maintenance.gc import OpenStorage, base_of
from airflow_provider_statecheck.spark.restore import StateVerifier, read_manifest, read_state
from airflow_provider_statecheck.spark.snapshots.live_snapshots import read_pages
from airflow_provider_statecheck.spark.snapshots.manifest import SnapshotManifest, verify_files, verify_footers
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    UNREADABLE,
    CheckpointDocument,
    SnapshotHandle,
    load_document,
)
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_statecheck.checkpoint.ids import OperatorId
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway


def verify_job(
    gateway: MaintenanceGateway,
    view: JobView,
    open_storage: OpenStorage,
    *,
    checkpoint_id: int | None = None,
    is_deep: bool = False,
    with_savepoints: bool = False,
) -> Iterator[Verification]:
    """
    Verify the retained checkpoints of a job, oldest first.

    :param gateway: The rows.
    :param open_storage: Gives the storage of a checkpoint directory.
    :param checkpoint_id: Only this one.
    :param is_deep: Whether to read every page of every file too.
    :param with_savepoints: Whether to look at the job's savepoints too, which their owner may have moved or deleted.
    :raises CheckpointNotFoundError: if that one is not retained.
    :raises StorageError: if the storage does not answer; what was found before it has been given by then.
    """
    verifiers: dict[tuple[str, OperatorId], CheckpointVerifier] = {}
    for checkpoint in _wanted(view, checkpoint_id, with_savepoints=with_savepoints):
        kind = base_of(checkpoint), checkpoint.operator_id
        if kind not in verifiers:
            verifiers[kind] = _verifier(view, checkpoint, open_storage, is_deep=is_deep)
        verification = verifiers[kind].verify(checkpoint)
        # A stage that runs may have taken it away while it was read.
        if verification.is_restorable or _is_retained(gateway, checkpoint):
            yield verification


def _wanted(view: JobView, checkpoint_id: int | None, *, with_savepoints: bool) -> list[CheckpointRecord]:
    completed = [c for c in view.checkpoints if c.status is CheckpointStatus.COMPLETED]
    retained = [
        c for c in completed if (c.is_restorable or with_savepoints) and checkpoint_id in (None, c.checkpoint_id)
    ]
    if checkpoint_id is not None and not retained:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint_id} to be a retained one of job {view.job.name!r}, found none; "
            f"'airflow statecheck checkpoints' lists them.",
            checkpoint_id=checkpoint_id,
        )
    return retained


def _verifier(
    view: JobView, checkpoint: CheckpointRecord, open_storage: OpenStorage, *, is_deep: bool
) -> CheckpointVerifier:

    # It may name files in a savepoint that the operator claimed, or in an earlier checkpoint directory.
    storage = open_storage(base_of(checkpoint)).allowing(*view.directories_of(checkpoint.operator_id))
    return CheckpointVerifier(storage, is_deep=is_deep)


def _is_retained(gateway: MaintenanceGateway, checkpoint: CheckpointRecord) -> bool:
    row = gateway.checkpoint(checkpoint.job_id, checkpoint.checkpoint_id)
    return row is not None and row.status is CheckpointStatus.COMPLETED


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found out about one checkpoint."""

    pointer: str
    checkpoint_id: int | None = None
    """``None`` where the metadata, which says it, cannot be read."""
    problems: tuple[str, ...] = ()
    """Why a restore could not use it."""
    unchecked: tuple[str, ...] = ()
    """Files whose pages could not be looked into, for instance for a type that only Spark knows."""

    @property
    def is_restorable(self) -> bool:
        """Tell whether a restore could use it."""
        return not self.problems


class CheckpointVerifier:
    """
    Verifies checkpoints; a snapshot or a file of state that several of them name is looked at once.

    :param storage: Where the bytes are.
    :param is_deep: Whether to read every page of every file too.
    """

    def __init__(self, storage: CheckpointStorage, *, is_deep: bool = False) -> None:
        self._storage = storage
        self._is_deep = is_deep
        self._seen: dict[SnapshotHandle, Verification] = {}
        self._states = StateVerifier(storage, is_deep=is_deep)

    def verify(self, checkpoint: CheckpointRecord) -> Verification:
        """
        Verify a completed checkpoint against its row.

        :raises StorageError: if the storage does not answer.
        """
        reader = self._reading(self._storage.allowing(checkpoint.location))
        found = reader._verify(checkpoint.location, lambda: _load_as(reader._storage, checkpoint))
        return replace(found, checkpoint_id=checkpoint.checkpoint_id)

    def verify_pointer(self, pointer: str) -> Verification:
        """
        Verify a checkpoint of which only its place is known; its metadata has a checksum of its own.

        :raises CheckpointNotFoundError: if there is no checkpoint.
        :raises StorageError: if the storage does not answer.
        """
        place = resolve_checkpoint(self._storage, pointer)
        return self._reading(place.storage)._verify(place.directory_uri, lambda: place.read()[0])

    def _reading(self, storage: CheckpointStorage) -> CheckpointVerifier:
        return self if storage is self._storage else CheckpointVerifier(storage, is_deep=self._is_deep)

    def _verify(self, pointer: str, load: Callable[[], CheckpointDocument]) -> Verification:
        document, problem = _tried(load)
        if document is None:
            return Verification(pointer=pointer, problems=(redact(problem),))
        snapshots = [self._verify_snapshot(handle) for handle in document.snapshots]
        _, state_problem = _tried(lambda: read_state(self._storage, document))
        states, refused = _tried(lambda: self._states.problems(document))
        return Verification(
            pointer=pointer,
            checkpoint_id=document.checkpoint_id,
            problems=tuple(
                map(
                    redact,
                    (
                        *filter(None, [state_problem, refused]),
                        *(states or ()),
                        *(p for s in snapshots for p in s.problems),
                    ),
                )
            ),
            unchecked=tuple(redact(p) for s in snapshots for p in s.unchecked),
        )

    def _verify_snapshot(self, handle: SnapshotHandle) -> Verification:
        if handle not in self._seen:
            self._seen[handle] = self._look_into(handle)
        return self._seen[handle]

    def _look_into(self, handle: SnapshotHandle) -> Verification:
        data_uri = f"{handle.uri}/{DATA_DIRECTORY}"
        manifest, problem = _tried(lambda: read_manifest(self._storage, handle))
        if manifest is None:
            return Verification(pointer=handle.uri, problems=(f"snapshot {handle.name!r}: {problem}",))
        for check in (verify_files, verify_footers):
            _, problem = _tried(partial(check, self._storage, data_uri, manifest))
            if problem:
                return _of_snapshot(handle, [problem])
        return self._read_pages(handle, manifest) if self._is_deep else _of_snapshot(handle, [])

    def _read_pages(self, handle: SnapshotHandle, manifest: SnapshotManifest) -> Verification:
        problems, unchecked, rows = [], [], 0
        for file in manifest.files:
            uri = f"{handle.uri}/{DATA_DIRECTORY}/{file.name}"
            try:
                rows += read_pages(self._storage, uri, file)
            except UNREADABLE as error:
                problems.append(str(error))
            except NotImplementedError as error:
                unchecked.append(f"{uri}: {error}")
        if not problems and not unchecked and rows != manifest.rows:
            problems.append(f"Expected {manifest.rows} rows in {handle.uri}, found {rows}.")
        return replace(_of_snapshot(handle, problems), unchecked=tuple(unchecked))


def _load_as(storage: CheckpointStorage, checkpoint: CheckpointRecord) -> CheckpointDocument:
    document = load_document(storage, checkpoint)
    expected = _identity_of(checkpoint)
    found = {key: _IDENTITY[key](document) for key in expected}
    if found != expected:
        raise CorruptStateError(
            f"Expected {checkpoint.metadata_uri} to be of {expected}, as its row says, found {found}; it was put there from "
            f"elsewhere."
        )
    return document


_IDENTITY: dict[str, Callable[[CheckpointDocument], object]] = {
    "job": lambda document: document.job_id,
    "operator": lambda document: document.operator_id,
    "id": lambda document: document.checkpoint_id,
    "savepoint": lambda document: document.properties.is_savepoint,
}


def _identity_of(checkpoint: CheckpointRecord) -> dict[str, object]:
    # What an attempt began from may be anybody's, and so may be what a savepoint was copied from.
    is_savepoint = checkpoint.properties.is_savepoint
    if checkpoint_id_of(checkpoint.location.rpartition("/")[2]) == checkpoint.checkpoint_id and not is_savepoint:
        values = {"job": checkpoint.job_id, "operator": checkpoint.operator_id}
        return {**values, "id": checkpoint.checkpoint_id, "savepoint": False}
    if is_savepoint and not checkpoint.properties.unclaimed:
        return {"id": checkpoint.checkpoint_id, "savepoint": True}
    return {}


def _of_snapshot(handle: SnapshotHandle, problems: list[str]) -> Verification:
    told = tuple(f"snapshot {handle.name!r}: {problem}" for problem in problems if problem)
    return Verification(pointer=handle.uri, problems=told)


def _tried(call: Callable[[], Value]) -> tuple[Value | None, str]:
    try:
        return call(), ""
    except (*UNREADABLE, LocationNotAllowedError) as error:
        return None, str(error)
