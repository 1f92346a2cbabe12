"""
Completed checkpoints stored as files of a state handle store.

A handle file contains the attributes of a checkpoint and the checksum of its metadata file. The operator states are read
from the metadata.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import epoch_name, handles_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.state_pointers import StatePointer, StateStorage
from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import decode_metadata

FORMAT = 1
_PLAIN_FIELDS = (
    "checkpoint_id",
    "external_pointer",
    "metadata_uri",
    "metadata_size",
    "metadata_sha256",
    "checkpointed_size",
)
_FLAGS = (
    "force",
    "discard_on_subsumed",
    "discard_on_finished",
    "discard_on_cancelled",
    "discard_on_failed",
    "discard_on_suspended",
    "unclaimed",
)


class StoredCompletedCheckpoints:
    """
    State storage of completed checkpoints.

    :param storage: Storage of the metadata files.
    :param states: Storage of the handle files.
    """

    def __init__(self, storage: CheckpointStorage, states: StateStorage[bytes]) -> None:
        self._storage = storage
        self._states = states

    def store(self, state: CompletedCheckpoint) -> StatePointer:
        """Write a new handle file; a failed write leaves no file."""
        return self._states.store(_encode(state))

    def retrieve(self, pointer: StatePointer) -> CompletedCheckpoint:
        """
        Return the checkpoint with its state handles.

        :raises CorruptStateError: if the handle or metadata file was changed after it was written.
        :raises CheckpointNotFoundError: if one of the files is missing.
        :raises IncompatibleCheckpointError: if the metadata has an unknown format version.
        """
        attributes = _decode(self._states.retrieve(pointer), pointer.uri)
        uri = attributes["metadata_uri"]
        data = self._storage.allowing(uri).read_verified(
            uri, size=attributes["metadata_size"], sha256=attributes["metadata_sha256"]
        )
        document = decode_metadata(data, uri=uri)
        if (document.job_id, document.checkpoint_id) != (attributes["job_id"], attributes["checkpoint_id"]):
            raise CorruptStateError(
                f"Expected the metadata of checkpoint {attributes['checkpoint_id']} of job {attributes['job_id']}, found that of "
                f"checkpoint {document.checkpoint_id} of job {document.job_id}; restore another checkpoint."
            )
        states = {state.operator_id: state for state in document.operator_states}
        return CompletedCheckpoint(**attributes, operator_states=states, master_states=document.master_states)

    def discard(self, pointer: StatePointer) -> None:
        """Delete the handle file; the checkpoints cleaner deletes the checkpoint's own files."""
        self._states.discard(pointer)


def _encode(checkpoint: CompletedCheckpoint) -> bytes:
    restored = checkpoint.restored_properties
    values = {
        "format": FORMAT,
        "job_id": checkpoint.job_id,
        "triggered_at": checkpoint.triggered_at.isoformat(),
        "completed_at": checkpoint.completed_at.isoformat(),
        "properties": _properties_to_json(checkpoint.properties),
        "restored_properties": None if restored is None else _properties_to_json(restored),
    }
    plain = {name: getattr(checkpoint, name) for name in _PLAIN_FIELDS}
    # File names may contain surrogates, which UTF-8 cannot encode.
    return json.dumps(values | plain, sort_keys=True, ensure_ascii=True).encode()


def _decode(data: bytes, uri: str) -> dict[str, Any]:
    """Return the attributes of a checkpoint; keys that a later release added are ignored."""
    try:
        values: dict[str, Any] = json.loads(data)
        _require_format(values["format"])
        restored = values["restored_properties"]
        return {name: values[name] for name in _PLAIN_FIELDS} | {
            "job_id": JobId(values["job_id"]),
            "triggered_at": datetime.fromisoformat(values["triggered_at"]),
            "completed_at": datetime.fromisoformat(values["completed_at"]),
            "properties": _properties_from_json(values["properties"]),
            "restored_properties": None if restored is None else _properties_from_json(restored),
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidConfigurationError) as error:
        raise CorruptStateError(
            f"Expected the attributes of a completed checkpoint in {uri}, found {len(data)} bytes of other data ({error}); "
            "restore another checkpoint."
        ) from error


def _require_format(found: object) -> None:
    if found != FORMAT:
        raise ValueError(f"expected format {FORMAT}, found {found!r}")


def _properties_to_json(properties: CheckpointProperties) -> dict[str, Any]:
    flags = {name: getattr(properties, name) for name in _FLAGS}
    savepoint_format = properties.savepoint_format
    return flags | {
        "snapshot_type": properties.snapshot_type.value,
        "savepoint_format": None if savepoint_format is None else savepoint_format.value,
    }


def _properties_from_json(values: dict[str, Any]) -> CheckpointProperties:
    savepoint_format = values["savepoint_format"]
    return CheckpointProperties(
        **{name: bool(values[name]) for name in _FLAGS},
        snapshot_type=CheckpointType(values["snapshot_type"]),
        savepoint_format=None if savepoint_format is None else SavepointFormat(savepoint_format),
    )


class StoredStates:
    """
    State storage in files below ``<job id>/handles/<operator id>``.

    :param storage: Storage of the checkpoint directory.
    :param attempt: Attempt that writes the files; its epoch is in each file name.
    """

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef) -> None:
        self._storage = storage
        self._attempt = attempt

    def store(self, state: bytes) -> StatePointer:
        """Write a new file; a failed write leaves no file."""
        ref = self._attempt
        directory = handles_uri(self._storage.base_uri, ref.job_id, ref.operator_id)
        uri = f"{directory}/{epoch_name(ref.epoch)}"
        try:
            self._storage.write_bytes(uri, state)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._storage.delete_file(uri)
            raise
        return StatePointer(uri=uri, size=len(state), sha256=hashlib.sha256(state).hexdigest())

    def retrieve(self, pointer: StatePointer) -> bytes:
        """Return the bytes of a file after verifying its size and checksum."""
        return self._storage.read_verified(pointer.uri, size=pointer.size, sha256=pointer.sha256)

    def discard(self, pointer: StatePointer) -> None:
        """Delete the file, if it exists."""
        self._storage.delete_file(pointer.uri)
