"""Storage of checkpoints on any fsspec filesystem: files, metadata and JSON state values."""

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    InlineStateHandle,
    SnapshotHandle,
    decode_metadata,
    encode_metadata,
)
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.state_json import decode_state, encode_state
from airflow_provider_statecheck.storage.views.state_streams import ResolvedPointer

__all__ = [
    "CheckpointDocument",
    "CheckpointStorage",
    "FileStateHandle",
    "InlineStateHandle",
    "ResolvedPointer",
    "SnapshotHandle",
    "decode_metadata",
    "decode_state",
    "encode_metadata",
    "encode_state",
    "resolve_checkpoint",
]
