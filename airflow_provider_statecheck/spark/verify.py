"""
Whether a restore could use a checkpoint, told without Spark: every byte that a restore reads is there and unchanged.

All that is wrong is told, not the first of it alone. A storage that does not answer is an error and says nothing about a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from airflow_provider_statecheck.checkpoint.layout import DATA_DIRECTORY, checkpoint_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import CorruptStateError, LocationNotAllowedError
from airflow_provider_statecheck.spark.restore import read_manifest, read_state
from airflow_provider_statecheck.spark.snapshots.damage import read_pages
from airflow_provider_statecheck.spark.snapshots.manifest import SnapshotManifest, verify_files, verify_footers
from airflow_provider_statecheck.spark.state_verify import StateVerifier
from airflow_provider_statecheck.storage.document import CheckpointDocument, SnapshotHandle
from airflow_provider_statecheck.storage.documents import UNREADABLE, load_document
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointer import resolve_checkpoint
from airflow_provider_statecheck.storage.uris import redact

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
