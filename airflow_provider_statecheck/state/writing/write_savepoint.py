"""Writing of savepoints from Arrow tables of keyed state, and edits of one state of a savepoint."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
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
from airflow_provider_statecheck.state.descriptors import StateDescriptor
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, CheckpointStates, FunctionState
from airflow_provider_statecheck.state.reading.state_reader import key_column_names, registered, restored_keys
from airflow_provider_statecheck.state.schemas import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.state.serializers.serializer import describe
from airflow_provider_statecheck.state.writing.canonical import CanonicalCopies, deleting_on_failure
from airflow_provider_statecheck.state.writing.canonical_files import (
    CanonicalFiles,
    KeyedFiles,
    NewRows,
    split_by_ranges,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle
from airflow_provider_statecheck.storage.uris import normalise_savepoint_dir, redact
from airflow_provider_statecheck.storage.views.state_streams import write_metadata

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
    table = data.read_all() if isinstance(data, pa.RecordBatchReader) else data
    given = GivenState(
        state=state,
        stage=stage,
        function=function,
        target=target,
        key=key,
        max_parallelism=max_parallelism,
        base=base,
        by=by,
        storage_options=storage_options or {},
        allowed_locations=allowed_locations,
        clock=clock or SystemClock(),
    )
    return write_given(given, table.schema, partial(_write_table, table))


def _write_table(data: Any, target: StateTarget, files: CanonicalFiles) -> WrittenState:
    rows = target.rows.of(data)
    ranges = key_group_ranges(target.parallelism, target.rows.max_parallelism)
    written = [
        write_subtask(files, target.uid, target.rows, part, subtask=subtask, parallelism=target.parallelism)
        for subtask, part in enumerate(split_by_ranges(rows, ranges))
    ]
    return written, rows.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenState:
    """Arguments of :func:`write_savepoint`, of which the parallelism is for an operator that is missing in the base."""

    state: StateDescriptor[Any] | str
    stage: str
    function: str
    target: str
    key: Sequence[str] | None = None
    max_parallelism: int | None = None
    parallelism: int = 1
    base: str | None = None
    by: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    allowed_locations: Sequence[str] = ()
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTarget:
    """State that a savepoint replaces or adds, and the parallelism of its operator."""

    function: str
    uid: str
    """Uid of the operator."""
    rows: NewRows
    parallelism: int


WrittenState = tuple[Sequence[KeyedStateHandle | None], int]
"""Handle of each subtask from :func:`write_subtask`, and number of rows."""


def write_given(given: GivenState, schema: Any, write: Callable[[StateTarget, CanonicalFiles], WrittenState]) -> str:
    """
    Write a savepoint to a new directory and return its pointer; raises as :func:`write_savepoint`.

    The metadata is written last. The base does not change, and the savepoint does not reference its files.

    :param given: The state, its base and the parent directory of the savepoint.
    """
    base = None if given.base is None else _load_base(given.base, given)
    target = _target_of(given, schema, base)
    parent = normalise_savepoint_dir(given.target)
    storage = CheckpointStorage.open(parent, **dict(given.storage_options))
    if base is not None:
        storage = storage.within(storage.allowed | base.storage.allowed)
    now = given.clock.now()
    source = _bootstrap(given.stage, now) if base is None else base.document
    directory = new_savepoint_uri(parent, JobId(source.job_id))
    with deleting_on_failure(storage, directory):
        written, rows = write(target, CanonicalFiles(storage, directory, source.epoch))
        edit = {
            "at": now.isoformat(),
            "by": given.by or _user(),
            "function": given.function,
            "state": target.rows.state.name,
            "rows": rows,
            "base": None if given.base is None else redact(given.base),
        }
        copies = CanonicalCopies(storage, directory, source, without=(target.uid, target.rows.state.name))
        document = replace(
            source,
            properties=CheckpointProperties.for_savepoint(),
            has_commit=False,
            snapshots=tuple(copies.of_snapshot(handle) for handle in source.snapshots),
            state=InlineStateHandle(value=_values({} if base is None else base.values(), edit)),
            operator_states=tuple(_operators(copies, target, base, written)),
        )
        write_metadata(storage, directory, document)
    return directory


def _values(values: dict[str, Any], edit: dict[str, Any]) -> dict[str, Any]:
    of_stage = values.get(STAGE, {})
    return values | {STAGE: of_stage | {EDITS: [*of_stage.get(EDITS, ()), edit]}}


def _operators(
    copies: CanonicalCopies,
    target: StateTarget,
    base: CheckpointStates | None,
    written: Sequence[KeyedStateHandle | None],
) -> Iterator[OperatorState]:
    function = None if base is None else _function_of(base, target.function)
    for operator in () if base is None else base.document.operator_states:
        copied = copies.of_operator(operator)
        is_edited = function is not None and operator.uid == function.operator.uid
        yield _with_new(copied, function.schemas, target.rows, written) if function and is_edited else copied
    if function is None:
        new = OperatorState(
            operator_id=operator_id_of(target.uid),
            uid=target.uid,
            name=target.function,
            parallelism=target.parallelism,
            max_parallelism=target.rows.max_parallelism,
        )
        yield _with_new(new, OperatorSchemas(), target.rows, written)


def _with_new(
    operator: OperatorState, schemas: OperatorSchemas, rows: NewRows, written: Sequence[KeyedStateHandle | None]
) -> OperatorState:
    subtasks = dict(operator.subtask_states)
    for index, handle in enumerate(written):
        if handle is not None:
            found = subtasks.get(index, OperatorSubtaskState())
            subtasks[index] = replace(found, managed_keyed=(*found.managed_keyed, handle))
    kept = {index: each for index, each in subtasks.items() if each.has_state}
    others = tuple(each for each in schemas.keyed if each.name != rows.state.name)
    now = replace(schemas, key=rows.keys.snapshot(), keyed=(*others, rows.state.schema()))
    encoded = json.dumps(encode_schemas(now), sort_keys=True, separators=(",", ":"))
    coordinator_state = ByteStreamStateHandle(new_key(), encoded.encode())
    return replace(operator, subtask_states=kept, coordinator_state=coordinator_state)


def _function_of(states: CheckpointStates, uid: str) -> FunctionState | None:
    found = next((each for each in states.functions() if uid in (each.uid, each.operator.uid)), None)
    return None if found is None else states.complete(found)


def _load_base(pointer: str, given: GivenState) -> CheckpointStates:
    base = CheckpointStates.load(pointer, given.storage_options, given.allowed_locations)
    base = base.of_stage(given.stage) if base.document.parts else base
    if base.document.uid != given.stage:
        raise IncompatibleCheckpointError(
            f"Expected a checkpoint of stage {given.stage!r} as base, found one of {base.document.uid!r}; set the stage of the base."
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


def _target_of(given: GivenState, schema: Any, base: CheckpointStates | None) -> StateTarget:
    function = None if base is None else _function_of(base, given.function)
    max_parallelism = _max_parallelism(given, base, function)
    rows = NewRows(_state(given, function), _keys(given, schema, function), max_parallelism)
    parallelism = min(given.parallelism, max_parallelism) if function is None else function.operator.parallelism
    require_parallelism(parallelism, max_parallelism)
    return StateTarget(
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


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        # The user id of a container may have no name.
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
