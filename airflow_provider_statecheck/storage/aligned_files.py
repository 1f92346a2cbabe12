"""
Manifest and metadata files of aligned checkpoints.

Each operator of a checkpoint has a manifest. The metadata file combines all of them when the checkpoint is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import cast

from airflow_provider_statecheck.cached_reads import LruCache
from airflow_provider_statecheck.checkpoint.aligned.contents import (
    AlignedContent,
    AlignedStorage,
    CompletedCheckpoint,
)
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID, METADATA_FILE, JobId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, OperatorState
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    LARGEST_METADATA,
    CheckpointDocument,
    DocumentCache,
    InlineStateHandle,
    decode_metadata,
    encode_metadata,
    write_metadata,
)
from airflow_provider_statecheck.storage.pointers import StateCopies, resolve_checkpoint
from airflow_provider_statecheck.storage.views.checkpoint_storages import require_savepoint_target
from airflow_provider_statecheck.storage.views.state_streams import (
    DEFAULT_INLINE_BUDGET,
    spill_above_budget,
    write_named_by_content,
)

_RECENT_BYTES = 64 << 20
"""Total size of the files whose decoded contents are kept. A finalization reads each manifest several times."""


class AlignedFiles(AlignedStorage):
    """
    Storage of aligned checkpoints on any fsspec filesystem.

    Writes create missing directories.

    :param job_name: Display name of the job.
    :param savepoint_dir: URI of the default directory of savepoints; without it, each savepoint needs a target.
    :param inline_budget: Maximum number of bytes of inline state in the metadata of a checkpoint.
    :param documents: Cache that keeps the metadata that is written, for the deleter of checkpoints.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        job_id: JobId,
        job_name: str,
        savepoint_dir: str | None = None,
        *,
        inline_budget: int = DEFAULT_INLINE_BUDGET,
        documents: DocumentCache | None = None,
    ) -> None:
        self._storage = storage
        self._job_id = job_id
        self._job_name = job_name
        self._savepoint_dir = savepoint_dir
        self._inline_budget = inline_budget
        self._documents = documents
        self._recent: LruCache[FileStateHandle, tuple[int, AlignedContent]] = LruCache(_RECENT_BYTES, itemgetter(0))

    @property
    @override
    def has_default_savepoint_location(self) -> bool:
        return self._savepoint_dir is not None

    @override
    def initialize_base_locations_for_checkpoint(self) -> None:
        # Writes create missing directories, so only the access is checked.
        self._storage.list_directories(self._storage.base_uri)

    @override
    def savepoint_parent(self, target: str | None) -> str:
        return require_savepoint_target(target, self._savepoint_dir)

    @override
    def initialize_location(self, location: str) -> None:
        self._storage.allowing(location).exists(f"{location}/{METADATA_FILE}")

    @override
    def write_manifest(self, checkpoint: CheckpointRecord, content: AlignedContent) -> FileStateHandle:
        # Manifests and metadata are in the same directory, where a relative URI has one meaning.
        data = encode_metadata(self._document(checkpoint, content), uri=f"{checkpoint.location}/{METADATA_FILE}")
        file = write_named_by_content(self._storage, checkpoint.location, checkpoint.epoch, data)
        self._recent.put(file, (file.size, content))
        return file

    @override
    def write_metadata(self, checkpoint: CheckpointRecord, content: AlignedContent) -> FileStateHandle:
        states = spill_above_budget(
            content.operator_states,
            self._storage,
            directory=checkpoint.location,
            epoch=checkpoint.epoch,
            budget=self._inline_budget,
        )
        document = self._document(checkpoint, replace(content, operator_states=states))
        file = write_metadata(self._storage, checkpoint.location, document)
        if self._documents is not None:
            self._documents.remember(checkpoint.checkpoint_id, document)
        return file

    @override
    def read(self, file: FileStateHandle) -> AlignedContent:
        return self._recent.get_or_load(file, lambda: (file.size, self._read(file)))[1]

    @override
    def copy_state(self, checkpoint: CheckpointRecord, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        copies = StateCopies(self._storage, checkpoint.location, checkpoint.epoch)
        return tuple(map(copies.of_operator, states))

    @override
    def delete_manifest(self, uri: str) -> None:
        self._storage.delete_file(uri)

    @override
    def resolve_checkpoint(self, pointer: str) -> CompletedCheckpoint:
        resolved = resolve_checkpoint(self._storage, pointer)
        # The restored state is copied later, which needs access to its location.
        self._storage = resolved.storage
        document, file = resolved.read()
        return CompletedCheckpoint(
            job_id=JobId(document.job_id),
            checkpoint_id=document.checkpoint_id,
            triggered_at=document.created_at,
            completed_at=document.created_at,
            operator_states={state.operator_id: state for state in document.operator_states},
            master_states=document.master_states,
            members=document.members,
            properties=document.properties,
            external_pointer=resolved.external_pointer,
            metadata=file,
        )

    def _document(self, checkpoint: CheckpointRecord, content: AlignedContent) -> CheckpointDocument:
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
            created_at=checkpoint.triggered_at,
            request_key=checkpoint.request_key,
            properties=checkpoint.properties,
            operator_states=content.operator_states,
            master_states=content.master_states,
            members=tuple(cast(CheckpointDocument, member) for member in content.members),
        )

    def _read(self, file: FileStateHandle) -> AlignedContent:
        # The file may be that of a savepoint outside the checkpoint directory; its row authorises the read.
        data = self._storage.allowing(file.uri).read_verified(
            file.uri, size=file.size, sha256=file.sha256, limit=LARGEST_METADATA
        )
        document = decode_metadata(data, uri=file.uri)
        return AlignedContent(
            operator_states=document.operator_states, master_states=document.master_states, members=document.members
        )
