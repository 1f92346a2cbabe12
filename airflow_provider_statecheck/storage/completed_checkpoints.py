"""Completed checkpoints as the state of a handle store."""

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
_PLAIN = ("checkpoint_id", "external_pointer", "metadata_uri", "metadata_size", "metadata_sha256", "checkpointed_size")
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
    Writes what is known of a checkpoint besides its metadata, and reads both.

    :param storage: Where the metadata is.
    :param states: Where the facts are written.
    """

    def __init__(self, storage: CheckpointStorage, states: StateStorage[bytes]) -> None:
        self._storage = storage
        self._states = states

    def store(self, state: CompletedCheckpoint) -> StatePointer:
        """Write a new file, or leave none."""
        return self._states.store(_encode(state))

    def retrieve(self, pointer: StatePointer) -> CompletedCheckpoint:
        """
        Return the checkpoint with its state handles.

        :raises CorruptStateError: if a file was changed after it was written.
        :raises CheckpointNotFoundError: if a file is missing.
        :raises IncompatibleCheckpointError: if the metadata are of another format.
        """
        facts = _decode(self._states.retrieve(pointer), pointer.uri)
        uri = facts["metadata_uri"]
        data = self._storage.allowing(uri).read_verified(
            uri, size=facts["metadata_size"], sha256=facts["metadata_sha256"]
        )
        document = decode_metadata(data, uri=uri)
        if (document.job_id, document.checkpoint_id) != (facts["job_id"], facts["checkpoint_id"]):
            raise CorruptStateError(
                f"Expected the metadata of checkpoint {facts['checkpoint_id']}, found those of {document.checkpoint_id}; "
                "the file was replaced."
            )
        states = {state.operator_id: state for state in document.operator_states}
        return CompletedCheckpoint(**facts, operator_states=states, master_states=document.master_states)

    def discard(self, pointer: StatePointer) -> None:
        """Delete the file with the facts; the checkpoint itself is deleted by whoever cleans checkpoints."""
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
    plain = {name: getattr(checkpoint, name) for name in _PLAIN}
    # Names of files may hold surrogates, which plain UTF-8 has no bytes for.
    return json.dumps(values | plain, sort_keys=True, ensure_ascii=True).encode()


def _decode(data: bytes, uri: str) -> dict[str, Any]:
    """Return the arguments of a checkpoint; what a later release added is left out."""
    try:
        values: dict[str, Any] = json.loads(data)
        _require_format(values["format"])
        restored = values["restored_properties"]
        return {name: values[name] for name in _PLAIN} | {
            "job_id": JobId(values["job_id"]),
            "triggered_at": datetime.fromisoformat(values["triggered_at"]),
            "completed_at": datetime.fromisoformat(values["completed_at"]),
            "properties": _properties_from_json(values["properties"]),
            "restored_properties": None if restored is None else _properties_from_json(restored),
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidConfigurationError) as error:
        raise CorruptStateError(
            f"Expected the facts of a completed checkpoint in {uri}, found {len(data)} bytes that are none: {error}"
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
    Files below ``<job id>/handles/<operator id>``.

    :param storage: The checkpoint directory.
    :param attempt: Who writes; its epoch is in each name.
    """

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef) -> None:
        self._storage = storage
        self._attempt = attempt

    def store(self, state: bytes) -> StatePointer:
        """Write a new file, or leave none."""
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
        """Return the file's bytes if they are what was written."""
        return self._storage.read_verified(pointer.uri, size=pointer.size, sha256=pointer.sha256)

    def discard(self, pointer: StatePointer) -> None:
        """Delete the file; a missing one is success."""
        self._storage.delete_file(pointer.uri)
