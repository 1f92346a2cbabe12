"""A new savepoint whose state is given as an Arrow table."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.state.descriptors import StateDescriptor
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.writing.new_rows import split_by_ranges
from airflow_provider_statecheck.state.writing.places import GivenState, place_of
from airflow_provider_statecheck.state.writing.savepoint_edit import SavepointEdit, StatePlace
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import normalise_pointer, redact


def write_savepoint(
    data: Any,
    state: StateDescriptor[Any] | str,
    *,
    stage: str,
    function: str,
    target: str,
    key: Sequence[str] | None = None,
    max_parallelism: int | None = None,
    base: str | None = None,
    state_backend: str = "arrow",
    by: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
    clock: Clock | None = None,
) -> str:
    """
    Write a savepoint with a keyed state that is given, and return its pointer; a stage begins at it by ``from_savepoint``.

    With a base all else is carried over from it: the other states, and how far the source was read. Without, the stage
    reads its source from the beginning. Nothing is ever changed in place.

    :param data: An Arrow table or record batch reader with the columns that ``read_state`` gives: those of the key, and
        ``value``, or ``map_key`` and ``map_value``; and ``last_access`` if the state expires.
    :param state: The descriptor that the function asks for, or its name alone if the base has it.
    :param stage: The uid of the stage.
    :param function: The uid of the function within the stage.
    :param target: Directory below which the savepoint gets a directory of its own.
    :param key: The names of the key's columns in their order; not needed where the base has keyed state of the function.
    :param max_parallelism: That of the stage; not needed with a base.
    :param base: Pointer to the checkpoint or savepoint that has the rest.
    :param state_backend: With which the stage runs; where the base has keyed state of the function, its backend.
    :param by: Who does it, for the metadata; by default the user of this process.
    :param storage_options: Options of the filesystem.
    :param allowed_locations: Where else checkpoints may name files, as URIs such as ``s3://archive``.
    :param clock: Tells when it was.
    :raises InvalidConfigurationError: for arguments or columns that are missing or do not fit, and for a key that is there twice.
    :raises UnsupportedStateError: for values that do not fit the types.
    :raises UnknownStateError: for a name alone that the base does not have.
    :raises IncompatibleCheckpointError: if the base is another stage's.
    :raises StateMigrationError: for another key than that of the base.
    :raises CheckpointNotFoundError: if there is no base, or a file of it is missing.
    :raises StorageError: if the storage fails; what was written is deleted.
    """
    import pyarrow as pa

    table = data.read_all() if isinstance(data, pa.RecordBatchReader) else data
    given = GivenState(
        state=state,
        stage=stage,
        function=function,
        key=key,
        max_parallelism=max_parallelism,
        parallelism=1,
        state_backend=state_backend,
    )
    source = None if base is None else CheckpointStates.load(base, storage_options, allowed_locations)
    place = place_of(given, table.schema, source)
    rows = place.rows.of(table)
    now = (clock or SystemClock()).now().isoformat()
    edit = open_edit(place, source, target, storage_options, now)
    with edit.deleting_on_failure():
        parts = zip(split_by_ranges(rows, place.ranges), place.ranges, strict=True)
        written = [edit.handles.write(place.rows, part, owned) for part, owned in parts]
        return edit.finish(written, audit_of(place, base, rows.num_rows, by, now))


def open_edit(
    place: StatePlace, base: CheckpointStates | None, target: str, storage_options: Mapping[str, Any] | None, now: str
) -> SavepointEdit:
    """Choose the directory of a new savepoint; nothing is written yet."""
    directory = normalise_pointer(target)
    storage = CheckpointStorage.open(directory, **dict(storage_options or {}))
    if base is not None:
        storage = storage.within(storage.allowed | base.storage.allowed)
    return SavepointEdit(storage, directory, place, base, now)


def audit_of(place: StatePlace, base: str | None, rows: int, by: str | None, now: str) -> dict[str, Any]:
    """Return what the metadata of a savepoint say of who made it of what."""
    return {
        "at": now,
        "by": by or _user(),
        "function": place.function,
        "state": place.rows.state.name,
        "rows": rows,
        "base": None if base is None else redact(base),
    }


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        # A container may run as a number that has no name.
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
