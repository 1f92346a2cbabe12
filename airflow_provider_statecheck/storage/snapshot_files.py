"""Where the coordinator of aligned checkpoints writes: parts and metadata as files of one storage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import SnapshotContent, StoredFile
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_UID
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, checkpoint_uri, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState, with_streams
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    InlineStateHandle,
    decode_metadata,
    encode_metadata,
)
from airflow_provider_statecheck.storage.pointers import ResolvedPointer, resolve_checkpoint
from airflow_provider_statecheck.storage.savepoints import StateCopies
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.state_streams import DEFAULT_INLINE_BUDGET, spill_above_budget

_DIGEST = 32


class SnapshotFiles:
    """
    A ``SnapshotStorage`` on any fsspec filesystem.

    Directories need not be made: a file brings its directory with it.

    :param storage: The checkpoint directory.
    :param job_id: The job.
    :param job_name: Its name, for people.
    :param savepoint_dir: Where savepoints go that are asked for without a target.
    :param inline_budget: How many bytes of state may travel in the metadata of one checkpoint.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        job_id: JobId,
        job_name: str,
        savepoint_dir: str | None = None,
        *,
        inline_budget: int = DEFAULT_INLINE_BUDGET,
    ) -> None:
        self._storage = storage
        self._job_id = job_id
        self._job_name = job_name
        self._savepoint_dir = savepoint_dir
        self._inline_budget = inline_budget

    @property
    def has_default_savepoint_location(self) -> bool:
        """Tell whether a savepoint may be asked for without a target."""
        return self._savepoint_dir is not None

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        See whether the storage answers.

        :raises StorageError: if it does not.
        """
        self._storage.list_directories(self._storage.base_uri)

    def checkpoint_location(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint."""
        return checkpoint_uri(self._storage.base_uri, self._job_id, checkpoint_id)

    def new_savepoint_location(self, target: str | None) -> str:
        """
        Return a new name for the directory of a savepoint.

        :raises InvalidConfigurationError: if there is neither a target nor a default.
        """
        base = target or self._savepoint_dir
        if base is None:
            raise InvalidConfigurationError(
                "Expected a target for the savepoint, found none; give one, or set execution.checkpointing.savepoint-dir."
            )
        return new_savepoint_uri(normalise_base(base), self._job_id)

    def initialize_location(self, location: str) -> None:
        """
        See that nobody else has written there.

        :raises StorageError: if the storage does not answer.
        """
        self._storage.allowing(location).exists(f"{location}/{METADATA_FILE}")

    def write_manifest(self, checkpoint: CheckpointRecord, content: SnapshotContent) -> StoredFile:
        """
        Write the part of an operator.

        :raises StorageError: if that fails.
        """
        # The metadata file's directory is also that of its parts, so relative URIs mean the same in both.
        data = encode_metadata(self._document(checkpoint, content), uri=f"{checkpoint.location}/{METADATA_FILE}")
        name = f"{checkpoint.epoch}-{hashlib.sha256(data).hexdigest()[:_DIGEST]}"
        return self._write(f"{checkpoint.location}/{name}", data)

    def write_metadata(self, checkpoint: CheckpointRecord, content: SnapshotContent) -> StoredFile:
        """
        Write the metadata of a checkpoint; state above the inline budget goes to files beside it.

        :raises StorageError: if that fails, or other bytes are there.
        """
        uri = f"{checkpoint.location}/{METADATA_FILE}"
        return self._write(
            uri, encode_metadata(self._document(checkpoint, self._spilled(checkpoint, content)), uri=uri)
        )

    def read(self, file: StoredFile) -> SnapshotContent:
        """
        Return what is in a manifest or in the metadata.

        :raises CorruptStateError: if it was changed after it was written.
        :raises CheckpointNotFoundError: if it is missing.
        """
        # A row names the file; it may be that of a savepoint.
        data = self._storage.allowing(file.uri).read_verified(file.uri, size=file.size, sha256=file.sha256)
        document = decode_metadata(data, uri=file.uri)
        return SnapshotContent(operator_states=document.operator_states, master_states=document.master_states)

    def copy_state(self, checkpoint: CheckpointRecord, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        """
        Copy the files of some states into the directory of a checkpoint and return the states that name the copies.

        :raises StorageError: if that fails.
        :raises CheckpointNotFoundError: if one of them is missing.
        """
        copies = StateCopies(self._storage, checkpoint.location, checkpoint.epoch)
        return tuple(with_streams(state, copies.of_stream) for state in states)

    def exists(self, uri: str) -> bool:
        """
        Tell whether what a row names is there.

        :raises StorageError: if the storage does not answer.
        """
        return self._storage.allowing(uri).exists(uri)

    def delete_manifest(self, uri: str) -> None:
        """
        Delete a manifest that no row names.

        :raises StorageError: if it may still be there.
        """
        self._storage.delete_file(uri)

    def resolve_checkpoint(self, pointer: str) -> CompletedCheckpoint:
        """
        Return the snapshot of any job that lies at a pointer.

        :raises InvalidConfigurationError: for an empty pointer.
        :raises CheckpointNotFoundError: if there is none.
        """
        found = resolve_checkpoint(self._storage, pointer)
        # The state of what the job goes on from is copied later.
        self._storage = found.storage
        document, data = found.read()
        return _completed(document, found, data)

    def _write(self, uri: str, data: bytes) -> StoredFile:
        self._storage.write_bytes(uri, data)
        return StoredFile(uri=uri, size=len(data), sha256=hashlib.sha256(data).hexdigest())

    def _spilled(self, checkpoint: CheckpointRecord, content: SnapshotContent) -> SnapshotContent:
        states = spill_above_budget(
            content.operator_states,
            self._storage,
            directory=checkpoint.location,
            epoch=checkpoint.epoch,
            budget=self._inline_budget,
        )
        return replace(content, operator_states=states)

    def _document(self, checkpoint: CheckpointRecord, content: SnapshotContent) -> CheckpointDocument:
        return CheckpointDocument(
            job_id=self._job_id,
            job_name=self._job_name,
            operator_id=checkpoint.operator_id,
            uid=ALIGNED_UID,
            checkpoint_id=checkpoint.checkpoint_id,
            epoch=checkpoint.epoch,
            generation=checkpoint.generation,
            snapshots=(),
            state=InlineStateHandle(value={}),
            created_at=checkpoint.triggered_at.isoformat(),
            request_key=checkpoint.request_key,
            properties=checkpoint.properties,
            operator_states=content.operator_states,
            master_states=content.master_states,
        )


def _completed(document: CheckpointDocument, place: ResolvedPointer, data: bytes) -> CompletedCheckpoint:
    created_at = datetime.fromisoformat(document.created_at)
    return CompletedCheckpoint(
        job_id=JobId(document.job_id),
        checkpoint_id=document.checkpoint_id,
        triggered_at=created_at,
        completed_at=created_at,
        operator_states={state.operator_id: state for state in document.operator_states},
        master_states=document.master_states,
        properties=document.properties,
        external_pointer=place.directory_uri,
        metadata_uri=place.metadata_uri,
        metadata_size=len(data),
        metadata_sha256=hashlib.sha256(data).hexdigest(),
    )
