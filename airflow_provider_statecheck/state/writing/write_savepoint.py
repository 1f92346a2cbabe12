"""Writing of savepoints from Arrow tables of keyed state."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
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
from airflow_provider_statecheck.state.writing.savepoint_edit import (
    SavepointEdit,
    StateTarget,
    function_of,
    write_subtask,
)
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
    by: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
    clock: Clock | None = None,
) -> str:
    """
    Write a savepoint with the given keyed state and return its pointer, for ``from_savepoint`` of a stage.

    With a base, the savepoint includes all other state of the base and the positions of its source. Without a base, the
    stage reads its source from the beginning. The base itself does not change.

    :param data: Arrow table or record batch reader with the columns that ``read_state`` returns: those of the key, and
        ``value``, or ``map_key`` and ``map_value``; and ``last_access`` if the state expires.
    :param state: Descriptor of the state, or its name if the base has the state.
    :param stage: Uid of the stage.
    :param function: Uid of the function within the stage.
    :param target: Parent directory of the savepoint; the savepoint gets a new directory in it.
    :param key: Names of the key columns in order, optional if the base has keyed state of the function.
    :param max_parallelism: Number of key groups of the stage, optional with a base.
    :param base: Pointer to the checkpoint or savepoint that provides all other state.
    :param by: Author of the savepoint in its metadata, by default the user of this process.
    :param storage_options: Options of the filesystem.
    :param allowed_locations: URIs of further locations that checkpoints may reference, such as ``s3://archive``.
    :param clock: Clock for the times in the metadata, by default that of the system.
    :raises InvalidConfigurationError: if an argument or column is missing or invalid, or if a key is duplicate.
    :raises UnsupportedStateError: if a value does not fit its type.
    :raises UnknownStateError: if the state is given by name and is missing in the base.
    :raises IncompatibleCheckpointError: if the base belongs to another stage.
    :raises StateMigrationError: if the key differs from that of the base.
    :raises CheckpointNotFoundError: if the base or one of its files is missing.
    :raises StorageError: if the storage fails; the written files are deleted.
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
    )
    source = None if base is None else load_base(base, stage, storage_options, allowed_locations)
    place = target_of(given, table.schema, source)
    rows = place.rows.of(table)
    now = (clock or SystemClock()).now().isoformat()
    edit = open_edit(place, source, target, storage_options, now)
    with edit.deleting_on_failure():
        parts = enumerate(split_by_ranges(rows, place.ranges))
        written = [
            write_subtask(edit.files, place.uid, place.rows, part, subtask=subtask, parallelism=place.parallelism)
            for subtask, part in parts
        ]
        return edit.finish(written, audit_of(place, base, rows.num_rows, by, now))


def load_base(
    pointer: str, stage: str, storage_options: Mapping[str, Any] | None, allowed_locations: Sequence[str]
) -> CheckpointStates:
    """
    Load the checkpoint that provides all other state; of a savepoint of the whole job, the part of the stage.

    :raises UnknownStateError: if the savepoint has no part of the stage; the message lists the stages.
    :raises CheckpointNotFoundError: if the pointer refers to a missing checkpoint.
    :raises StorageError: if the storage fails.
    """
    base = CheckpointStates.load(pointer, storage_options, allowed_locations)
    return base.of_stage(stage) if base.document.parts else base


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenState:
    """User-supplied description of the state of a savepoint."""

    state: StateDescriptor[Any] | str
    stage: str
    function: str
    key: Sequence[str] | None
    max_parallelism: int | None
    parallelism: int
    """Parallelism of an operator that is missing in the base."""


def target_of(given: GivenState, schema: Any, base: CheckpointStates | None) -> StateTarget:
    """
    Return the state and the operator that a savepoint writes.

    :param given: Description of the state by the user.
    :param schema: Arrow schema of the rows.
    :param base: Checkpoint that provides all other state.
    :raises InvalidConfigurationError: if an argument is missing or differs from the base.
    :raises UnknownStateError: if the state is given by name and is missing in the base.
    :raises IncompatibleCheckpointError: if the base belongs to another stage.
    :raises StateMigrationError: if the key differs from that of the base.
    :raises UnsupportedStateError: if a type is not supported as state.
    """
    if base is not None and base.document.uid != given.stage:
        raise IncompatibleCheckpointError(
            f"Expected a checkpoint of stage {given.stage!r} as base, found one of {base.document.uid!r}; set the stage of the base."
        )
    function = None if base is None else function_of(base, given.function)
    max_parallelism = _max_parallelism(given, base, function)
    rows = NewRows(_state(given, function), _keys(given, schema, function), max_parallelism)
    parallelism = min(given.parallelism, max_parallelism) if function is None else function.operator.parallelism
    require_parallelism(parallelism, max_parallelism)
    return StateTarget(
        stage=given.stage,
        function=given.function,
        uid=f"{given.stage}/{given.function}" if function is None else function.operator.uid,
        rows=rows,
        parallelism=parallelism,
    )


def _state(given: GivenState, function: FunctionState | None) -> RegisteredState:
    if isinstance(given.state, StateDescriptor):
        # Rows stay Arrow data, and the classes of the user are not needed.
        return registered(RegisteredState.of(given.state).schema())
    known = () if function is None else function.schemas.keyed
    found = next((each for each in known if each.name == given.state), None)
    if found is None:
        names = ", ".join(each.name for each in known) or "none"
        raise UnknownStateError(
            f"Expected the base to have a state {given.state!r} of function {given.function!r}, found {names}; pass "
            f"a descriptor to add the state."
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
            f"Expected the key {', '.join(names)} of the base, found {', '.join(given.key)}; use the key of "
            f"the base, because the key of existing state cannot change: {describe(known)}."
        )
    return keys


def _keys_of_columns(key: Sequence[str] | None, schema: Any) -> KeySerializer:
    if isinstance(key, str) or not key:
        raise InvalidConfigurationError(f"Expected key to be the names of the key columns, found {key!r}; pass a list.")
    shown = key_column_names(list(key))
    missing = [name for name in shown if name not in schema.names]
    if missing:
        raise InvalidConfigurationError(
            f"Expected the key columns {', '.join(shown)}, found {', '.join(schema.names)}; select and rename them first."
        )
    return KeySerializer(tuple(KeyField(n, schema.field(c).type) for n, c in zip(key, shown, strict=True)))


def _max_parallelism(given: GivenState, base: CheckpointStates | None, function: FunctionState | None) -> int:
    known = None
    if base is not None:
        functions = [function] if function is not None else base.functions()
        known = next((each.operator.max_parallelism for each in functions), None)
    wanted = given.max_parallelism
    if known is None and wanted is None:
        raise InvalidConfigurationError(
            "Expected max_parallelism, the number of key groups of the stage, found None; set it as for the stage that starts "
            "from the savepoint."
        )
    if known is not None and wanted not in (None, known):
        raise InvalidConfigurationError(
            f"Expected max_parallelism to be {known}, as in the base, found {wanted}; omit it, or first rescale the base "
            f"with 'airflow statecheck rescale'."
        )
    return int(known or wanted or 0)


def open_edit(
    place: StateTarget, base: CheckpointStates | None, target: str, storage_options: Mapping[str, Any] | None, now: str
) -> SavepointEdit:
    """Start the edit of a new savepoint, without writing any file."""
    directory = normalise_pointer(target)
    storage = CheckpointStorage.open(directory, **dict(storage_options or {}))
    if base is not None:
        storage = storage.within(storage.allowed | base.storage.allowed)
    return SavepointEdit(storage, directory, place, base, now)


def audit_of(place: StateTarget, base: str | None, rows: int, by: str | None, now: str) -> dict[str, Any]:
    """Return the audit entry of a savepoint: its author, time, state and base."""
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
        # The user id of a container may have no name.
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
