"""Writing of savepoints from Arrow tables of keyed state, and edits of one state of a savepoint."""

from __future__ import annotations

import getpass
import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, new_savepoint_uri, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    key_group_range_of,
    key_group_ranges,
    require_parallelism,
)
from airflow_provider_statecheck.exceptions import (
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StateMigrationError,
    UnknownStateError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.descriptors import StateDescriptor
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, CheckpointStates, FunctionState
from airflow_provider_statecheck.state.reading.state_reader import key_column_names, registered, restored_keys
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.state.serializers.serializer import describe
from airflow_provider_statecheck.state.writing.canonical import CanonicalCopies, deleting_on_failure
from airflow_provider_statecheck.state.writing.canonical_files import (
    CanonicalFiles,
    KeyedFiles,
    NewRows,
    split_by_ranges,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    InlineStateHandle,
    write_metadata,
)
from airflow_provider_statecheck.storage.uris import normalise_savepoint_dir, redact

EDITS = "edits"
"""Key of the audit entries in the values of the stage."""
_FIRST = 1
"""Checkpoint id, epoch and generation of a savepoint without a base."""


def write_savepoint(
    data: Any,
    state: StateDescriptor[Any] | str,
    *,
    stage: str,
    function: str,
    target: str,
    key: Sequence[str] | None = None,
    max_parallelism: int | None = None,
    parallelism: int = 1,
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

    The metadata is written last, and the savepoint does not reference files of the base.

    :param data: Arrow table or record batch reader with the columns that ``read_state`` returns: those of the key, and
        ``value``, or ``map_key`` and ``map_value``; and ``last_access`` if the state expires. Or other ``StateRows``.
    :param state: Descriptor of the state, or its name if the base has the state.
    :param stage: Uid of the stage.
    :param function: Uid of the function within the stage.
    :param target: Parent directory of the savepoint; the savepoint gets a new directory in it.
    :param key: Names of the key columns in order, optional if the base has keyed state of the function.
    :param max_parallelism: Number of key groups of the stage, optional with a base.
    :param parallelism: Number of subtasks of a function that is missing in the base.
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
    :raises StorageError: if the storage fails; the written files remain without metadata, because a write may still
        succeed.
    """
    given = data if isinstance(data, StateRows) else ArrowRows(data)
    options, now = dict(storage_options or {}), (clock or SystemClock()).now()
    parent = normalise_savepoint_dir(target)
    storage = CheckpointStorage.open(parent, **options)
    if base is None:
        states = CheckpointStates(storage, _bootstrap(stage, now))
    else:
        states = _of_stage(CheckpointStates.load(base, options, allowed_locations), stage)
    storage = storage.within(storage.allowed | states.storage.allowed)
    edited = _function_of(states, stage, function, max_parallelism, parallelism)
    operator = edited.operator
    new = NewRows(_state(state, edited), _keys(key, given.schema, edited), operator.max_parallelism)
    directory = new_savepoint_uri(parent, JobId(states.document.job_id))
    with deleting_on_failure(storage, directory):
        written, count = given.write(operator, new, CanonicalFiles(storage, directory, states.document.epoch))
        edit = {
            "at": now.isoformat(),
            "by": by or _user(),
            "function": function,
            "state": new.state.name,
            "rows": count,
            "base": None if base is None else redact(base),
        }
        write_metadata(storage, directory, _document(storage, directory, states, edited, new, written, edit))
    return directory


WrittenState = tuple[Sequence[KeyedStateHandle | None], int]
"""Handle of each subtask from :func:`write_subtask`, and number of rows."""


class StateRows(ABC):
    """
    Rows of a state in the columns that ``read_state`` returns.

    :param schema: Arrow schema of the rows.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    @abstractmethod
    def write(self, operator: OperatorState, new: NewRows, files: CanonicalFiles) -> WrittenState:
        """Write the rows of each subtask of an operator."""


class ArrowRows(StateRows):
    """Rows of an Arrow table or record batch reader."""

    def __init__(self, data: Any) -> None:
        self._table = data.read_all() if isinstance(data, pa.RecordBatchReader) else data
        if not isinstance(self._table, pa.Table | pa.RecordBatch):
            raise InvalidConfigurationError(f"Expected an Arrow table, found {type(data).__name__}; convert it first.")
        super().__init__(self._table.schema)

    @override
    def write(self, operator: OperatorState, new: NewRows, files: CanonicalFiles) -> WrittenState:
        rows = new.of(self._table)
        ranges = key_group_ranges(operator.parallelism, new.max_parallelism)
        written = [
            write_subtask(files, operator.uid, new, part, subtask=subtask, parallelism=operator.parallelism)
            for subtask, part in enumerate(split_by_ranges(rows, ranges))
        ]
        return written, rows.num_rows


def _document(
    storage: CheckpointStorage,
    directory: str,
    states: CheckpointStates,
    edited: FunctionState,
    new: NewRows,
    written: Sequence[KeyedStateHandle | None],
    edit: dict[str, Any],
) -> CheckpointDocument:
    """Copy all other state of the base, and return the metadata of the savepoint."""
    operator = edited.operator
    operators = {each.uid: each for each in states.document.operator_states} | {operator.uid: operator}
    source = replace(
        states.document,
        properties=CheckpointProperties.for_savepoint(),
        state=InlineStateHandle(value=_values(states.values(), edit)),
        operator_states=tuple(operators.values()),
    )
    copied = CanonicalCopies(storage, directory, source, without=(operator.uid, new.state.name)).of_document(source)
    with_rows = tuple(
        _edited(each, edited.schemas, new, written) if each.uid == operator.uid else each
        for each in copied.operator_states
    )
    return replace(copied, operator_states=with_rows)


def _values(values: dict[str, Any], edit: dict[str, Any]) -> dict[str, Any]:
    of_stage = values.get(STAGE, {})
    return values | {STAGE: of_stage | {EDITS: [*of_stage.get(EDITS, ()), edit]}}


def _edited(
    operator: OperatorState, schemas: OperatorSchemas, rows: NewRows, written: Sequence[KeyedStateHandle | None]
) -> OperatorState:
    for index, handle in enumerate(written):
        if handle is not None:
            subtask = operator.subtask_states.get(index, OperatorSubtaskState())
            operator = operator.put_state(index, replace(subtask, managed_keyed=(*subtask.managed_keyed, handle)))
    others = tuple(each for each in schemas.keyed if each.name != rows.state.name)
    new = rows.state.schema()
    # Rows of another type may have further aggregates, which are then known by their names.
    aggregates = schemas.aggregates if all(each == new for each in schemas.keyed if each.name == new.name) else ()
    now = replace(schemas, key=rows.keys.snapshot(), keyed=(*others, new), aggregates=aggregates)
    encoded = json.dumps(encode_schemas(now), sort_keys=True, separators=(",", ":"))
    return replace(operator, coordinator_state=ByteStreamStateHandle(new_key(), encoded.encode()))


def _function_of(
    states: CheckpointStates, stage: str, function: str, max_parallelism: int | None, parallelism: int
) -> FunctionState:
    """Return the function in the base, or a new one without state."""
    functions = states.functions()
    found = next((each for each in functions if function in (each.uid, each.operator.uid)), None)
    known = found or next(iter(functions), None)
    groups = _max_parallelism(max_parallelism, None if known is None else known.operator.max_parallelism)
    if found is not None:
        return states.complete(found)
    require_parallelism(min(parallelism, groups), groups)
    uid = f"{stage}/{function}"
    operator = OperatorState(
        operator_id=operator_id_of(uid),
        uid=uid,
        name=function,
        parallelism=min(parallelism, groups),
        max_parallelism=groups,
    )
    return FunctionState(uid=function, operator=operator, schemas=OperatorSchemas())


def _of_stage(base: CheckpointStates, stage: str) -> CheckpointStates:
    base = base.of_stage(stage) if base.document.members else base
    if base.document.uid != stage:
        raise IncompatibleCheckpointError(
            f"Expected a checkpoint of stage {stage!r} as base, found one of {base.document.uid!r}; set the stage of "
            "the base."
        )
    return base


def _bootstrap(stage: str, now: datetime) -> CheckpointDocument:
    # A job name that no running job has, because a sink must not treat it as a checkpoint of its job.
    job = f"bootstrap/{stage}"
    return CheckpointDocument(
        job_id=job_id_of(job),
        job_name=job,
        operator_id=operator_id_of(stage),
        uid=stage,
        checkpoint_id=_FIRST,
        epoch=_FIRST,
        generation=_FIRST,
        snapshots=(),
        state=InlineStateHandle(value={}),
        created_at=now,
    )


def write_subtask(
    files: CanonicalFiles, uid: str, new: NewRows, rows: Any, *, subtask: int, parallelism: int
) -> KeyedStateHandle | None:
    """
    Write the rows of one subtask and return their handle, ``None`` without rows.

    :param new: Description of the state.
    :param rows: Rows as returned by :meth:`NewRows.of`.
    :raises StorageError: if the storage fails.
    """
    owned = key_group_range_of(subtask, parallelism, new.max_parallelism)
    written = KeyedFiles(files, uid, subtask, owned, new.max_parallelism)
    written.write(new.keys.snapshot(), new.state.schema(), [rows])
    return written.handle(_FIRST)


def _state(state: StateDescriptor[Any] | str, function: FunctionState) -> RegisteredState:
    if isinstance(state, StateDescriptor):
        # Rows stay Arrow data, and the classes of the user are not needed.
        return registered(RegisteredState.of(state).schema())
    known = {each.name: each for each in function.schemas.keyed}
    if state not in known:
        raise UnknownStateError(
            f"Expected the base to have a state {state!r} of function {function.uid!r}, found "
            f"{', '.join(known) or 'none'}; pass a descriptor to add the state."
        )
    return registered(known[state])


def _keys(key: Sequence[str] | None, schema: Any, function: FunctionState) -> KeySerializer:
    known = function.schemas.key
    if known is None:
        return _keys_of_columns(key, schema)
    keys = restored_keys(known)
    names = [field.name for field in keys.fields]
    if key is not None and list(key) != names:
        raise StateMigrationError(
            f"Expected the key {', '.join(names)} of the base, found {', '.join(key)}; use the key of "
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
            f"Expected the key columns {', '.join(shown)}, found {', '.join(schema.names)}; select and rename them "
            "first."
        )
    return KeySerializer(tuple(KeyField(n, schema.field(c).type) for n, c in zip(key, shown, strict=True)))


def _max_parallelism(wanted: int | None, known: int | None) -> int:
    if known is None and wanted is None:
        raise InvalidConfigurationError(
            "Expected max_parallelism, the number of key groups of the stage, found None; set it as for the stage "
            "that starts from the savepoint."
        )
    if known is not None and wanted not in (None, known):
        raise InvalidConfigurationError(
            f"Expected max_parallelism to be {known}, as in the base, found {wanted}; omit it, or first rescale the "
            "base with 'airflow statecheck rescale'."
        )
    return int(known or wanted or 0)


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        # The user id of a container may have no name.
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
