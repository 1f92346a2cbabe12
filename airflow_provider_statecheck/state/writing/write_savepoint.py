"""Writing of new savepoints from tables of state."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupsStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import require_parallelism
from airflow_provider_statecheck.exceptions import (
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StateMigrationError,
    UnknownStateError,
)
from airflow_provider_statecheck.state.descriptors import StateDescriptor
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, FunctionState
from airflow_provider_statecheck.state.reading.columns import key_column_names
from airflow_provider_statecheck.state.reading.state_reader import registered, restored_keys
from airflow_provider_statecheck.state.serializers.serializer import describe
from airflow_provider_statecheck.state.writing.new_rows import NewRows, split_by_ranges
from airflow_provider_statecheck.state.writing.savepoint_edit import SavepointEdit, StateTarget, function_of
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import normalise_pointer, redact

_IN_FULL = ("memory", "jobmanager", "hashmap", "filesystem", "fs")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenState:
    """What a user says of a state."""

    state: StateDescriptor[Any] | str
    stage: str
    function: str
    key: Sequence[str] | None
    max_parallelism: int | None
    parallelism: int
    """Of an operator that the base has not."""
    state_backend: str


def target_of(given: GivenState, schema: Any, base: CheckpointStates | None) -> StateTarget:
    """
    Return where a state belongs.

    :param schema: The Arrow schema of the rows.
    :param base: The checkpoint that has the rest.
    :raises InvalidConfigurationError: for arguments that are missing or do not fit the base.
    :raises UnknownStateError: for a name alone that the base does not have.
    :raises IncompatibleCheckpointError: if the base is another stage's.
    :raises StateMigrationError: for another key than that of the base.
    :raises UnsupportedStateError: for types that cannot be state.
    """
    if base is not None and base.document.uid != given.stage:
        raise IncompatibleCheckpointError(
            f"Expected a checkpoint of stage {given.stage!r} as base, found one of {base.document.uid!r}; name that stage."
        )
    function = None if base is None else function_of(base, given.function)
    max_parallelism = _max_parallelism(given, base, function)
    rows = NewRows(_state(given, function), _keys(given, schema, function), max_parallelism)
    parallelism = min(given.parallelism, max_parallelism) if function is None else function.operator.parallelism
    require_parallelism(parallelism, max_parallelism)
    return StateTarget(
        stage=given.stage,
        function=given.function,
        rows=rows,
        parallelism=parallelism,
        is_full=_is_full(given.state_backend, function),
    )


def _state(given: GivenState, function: FunctionState | None) -> RegisteredState:
    if isinstance(given.state, StateDescriptor):
        # By its snapshot, for rows never become objects of the user's classes.
        return registered(RegisteredState.of(given.state).schema())
    known = () if function is None else function.schemas.keyed
    found = next((each for each in known if each.name == given.state), None)
    if found is None:
        names = ", ".join(each.name for each in known) or "none"
        raise UnknownStateError(
            f"Expected the base to have a state {given.state!r} of function {given.function!r}, found {names}; give a "
            f"descriptor, which says what the state is."
        )
    return registered(found)


def _keys(given: GivenState, schema: Any, function: FunctionState | None) -> KeySerializer:
    known = None if function is None else function.schemas.key
    if known is None:
        return _keys_of_columns(given.key, schema)
    keys = restored_keys(known)
    names = [field.name for field in keys.fields]
    if given.key is not None and list(given.key) != names:
        raise StateMigrationError(
            f"Expected the key {', '.join(names)} of the base, found {', '.join(given.key)}; a key can never be changed: "
            f"{describe(known)}."
        )
    return keys


def _keys_of_columns(key: Sequence[str] | None, schema: Any) -> KeySerializer:
    if isinstance(key, str) or not key:
        raise InvalidConfigurationError(
            f"Expected key to be the names of the key's columns, found {key!r}; give a list."
        )
    shown = key_column_names(list(key))
    missing = [name for name in shown if name not in schema.names]
    if missing:
        raise InvalidConfigurationError(
            f"Expected the key columns {', '.join(shown)}, found {', '.join(schema.names)}."
        )
    return KeySerializer(tuple(KeyField(n, schema.field(c).type) for n, c in zip(key, shown, strict=True)))


def _max_parallelism(given: GivenState, base: CheckpointStates | None, function: FunctionState | None) -> int:
    known = None
    if base is not None:
        others = [function] if function is not None else base.functions()
        known = next((each.operator.max_parallelism for each in others), None)
    wanted = given.max_parallelism
    if known is None and wanted is None:
        raise InvalidConfigurationError(
            "Expected max_parallelism, the number of key groups of the stage that begins from the savepoint, found None."
        )
    if known is not None and wanted not in (None, known):
        raise InvalidConfigurationError(
            f"Expected max_parallelism to be {known}, as in the base, found {wanted}; leave it out, or rescale the base before "
            f"with 'airflow statecheck rescale'."
        )
    return int(known or wanted or 0)


def _is_full(state_backend: str, function: FunctionState | None) -> bool:
    handles = [
        handle
        for subtask in (function.operator.subtask_states.values() if function else ())
        for handle in subtask.managed_keyed
    ]
    if handles:
        # One backend restores both.
        return any(isinstance(handle, KeyGroupsStateHandle) for handle in handles)
    if state_backend != "arrow" and state_backend not in _IN_FULL:
        names = ", ".join(("arrow", *_IN_FULL))
        raise InvalidConfigurationError(
            f"Expected state_backend to be one of {names}, that with which the stage runs, found {state_backend!r}."
        )
    return state_backend != "arrow"


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
    place = target_of(given, table.schema, source)
    rows = place.rows.of(table)
    now = (clock or SystemClock()).now().isoformat()
    edit = open_edit(place, source, target, storage_options, now)
    with edit.deleting_on_failure():
        parts = zip(split_by_ranges(rows, place.ranges), place.ranges, strict=True)
        written = [edit.handles.write(place.rows, part, owned) for part, owned in parts]
        return edit.finish(written, audit_of(place, base, rows.num_rows, by, now))


def open_edit(
    place: StateTarget, base: CheckpointStates | None, target: str, storage_options: Mapping[str, Any] | None, now: str
) -> SavepointEdit:
    """Choose the directory of a new savepoint; nothing is written yet."""
    directory = normalise_pointer(target)
    storage = CheckpointStorage.open(directory, **dict(storage_options or {}))
    if base is not None:
        storage = storage.within(storage.allowed | base.storage.allowed)
    return SavepointEdit(storage, directory, place, base, now)


def audit_of(place: StateTarget, base: str | None, rows: int, by: str | None, now: str) -> dict[str, Any]:
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
