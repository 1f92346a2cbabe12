"""Writing of savepoints from Arrow tables of keyed state, and edits of one state of a savepoint."""

from __future__ import annotations

import contextlib
import getpass
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, new_savepoint_uri, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
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
    StorageError,
    UnknownStateError,
)
from airflow_provider_statecheck.state.descriptors import StateDescriptor
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, CheckpointStates, FunctionState
from airflow_provider_statecheck.state.reading.columns import key_column_names
from airflow_provider_statecheck.state.reading.state_reader import registered, restored_keys
from airflow_provider_statecheck.state.schemas import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.state.serializers.serializer import describe
from airflow_provider_statecheck.state.writing.canonical import CanonicalCopies
from airflow_provider_statecheck.state.writing.canonical_files import CanonicalFiles, KeyedFiles, KeyedSubtask
from airflow_provider_statecheck.state.writing.new_rows import NewRows, split_by_ranges
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle
from airflow_provider_statecheck.storage.uris import normalise_pointer, redact
from airflow_provider_statecheck.storage.views.state_streams import write_metadata

EDITS = "edits"
"""Key of the audit entries in the values of the stage."""
_FIRST = 1
"""Checkpoint id, epoch and generation of a savepoint without a base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTarget:
    """State that a savepoint replaces or adds, and the parallelism of its operator."""

    stage: str
    function: str
    uid: str
    """Uid of the operator."""
    rows: NewRows
    parallelism: int

    @property
    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """Return the key group range of each subtask."""
        return tuple(key_group_ranges(self.parallelism, self.rows.max_parallelism))


class SavepointEdit:
    """
    Writer of an edited savepoint in a new directory.

    The metadata file is written last. The base does not change, and the savepoint does not reference its files.

    :param storage: Storage of the savepoint.
    :param target: Parent directory of the savepoint.
    :param place: State to replace or add.
    :param base: Checkpoint that provides all other state; ``None`` for a savepoint with this state only.
    :param now: Creation time of a savepoint without a base, in ISO format.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        target: str,
        place: StateTarget,
        base: CheckpointStates | None,
        now: str,
    ) -> None:
        self._storage = storage
        self._place = place
        self._base = base
        self._source = _bootstrap(place.stage, now) if base is None else base.document
        self.directory = new_savepoint_uri(target, JobId(self._source.job_id))
        self.files = CanonicalFiles(storage, self.directory, self._source.epoch)
        self._copies = CanonicalCopies(
            storage, self.directory, self._source, without=(place.uid, place.rows.state.name)
        )

    @contextlib.contextmanager
    def deleting_on_failure(self) -> Iterator[None]:
        """Delete the directory of the savepoint if the block raises."""
        try:
            yield
        except BaseException:
            # Files that remain without metadata are not a savepoint, and the first error is the cause.
            with contextlib.suppress(StorageError):
                self._storage.delete_directory(self.directory)
            raise

    def finish(self, written: Sequence[KeyedStateHandle | None], edit: dict[str, Any]) -> str:
        """
        Copy all other state, write the metadata and return the pointer.

        :param written: Handle of each subtask from :func:`write_subtask`.
        :param edit: Audit entry for the metadata.
        :raises CheckpointNotFoundError: if a file of the base is missing.
        :raises CorruptStateError: if a file of the base is corrupt.
        :raises StorageError: if the storage fails.
        """
        source, copies = self._source, self._copies
        document = replace(
            source,
            properties=CheckpointProperties.for_savepoint(),
            has_commit=False,
            snapshots=tuple(copies.of_snapshot(handle) for handle in source.snapshots),
            state=InlineStateHandle(value=self._values(edit)),
            operator_states=tuple(self._operators(written)),
        )
        write_metadata(self._storage, self.directory, document)
        return self.directory

    def _values(self, edit: dict[str, Any]) -> dict[str, Any]:
        values = {} if self._base is None else self._base.values()
        of_stage = values.get(STAGE, {})
        return values | {STAGE: of_stage | {EDITS: [*of_stage.get(EDITS, ()), edit]}}

    def _operators(self, written: Sequence[KeyedStateHandle | None]) -> Iterator[OperatorState]:
        function = None if self._base is None else function_of(self._base, self._place.function)
        for operator in self._source.operator_states:
            if function is not None and operator.uid == function.operator.uid:
                yield self._edited(function, written)
            else:
                yield self._copies.of_operator(operator)
        if function is None:
            yield self._with_new(self._new_operator(), OperatorSchemas(), written)

    def _edited(self, function: FunctionState, written: Sequence[KeyedStateHandle | None]) -> OperatorState:
        return self._with_new(self._copies.of_operator(function.operator), function.schemas, written)

    def _with_new(
        self, operator: OperatorState, schemas: OperatorSchemas, written: Sequence[KeyedStateHandle | None]
    ) -> OperatorState:
        subtasks = dict(operator.subtask_states)
        for index, handle in enumerate(written):
            if handle is not None:
                found = subtasks.get(index, OperatorSubtaskState())
                subtasks[index] = replace(found, managed_keyed=(*found.managed_keyed, handle))
        kept = {index: each for index, each in subtasks.items() if each.has_state}
        return replace(operator, subtask_states=kept, coordinator_state=self._coordinator_state(schemas))

    def _coordinator_state(self, schemas: OperatorSchemas) -> ByteStreamStateHandle:
        rows = self._place.rows
        others = tuple(each for each in schemas.keyed if each.name != rows.state.name)
        now = replace(schemas, key=rows.keys.snapshot(), keyed=(*others, rows.state.schema()))
        encoded = json.dumps(encode_schemas(now), sort_keys=True, separators=(",", ":"))
        return ByteStreamStateHandle(new_key(), encoded.encode())

    def _new_operator(self) -> OperatorState:
        return OperatorState(
            operator_id=operator_id_of(self._place.uid),
            uid=self._place.uid,
            name=self._place.function,
            parallelism=self._place.parallelism,
            max_parallelism=self._place.rows.max_parallelism,
        )


def function_of(states: CheckpointStates, uid: str) -> FunctionState | None:
    """Return the function with a uid and all of its states, ``None`` if the checkpoint has no such function."""
    found = next((each for each in states.functions() if uid in (each.uid, each.operator.uid)), None)
    return None if found is None else states.complete(found)


def _bootstrap(stage: str, now: str) -> CheckpointDocument:
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

    :param files: Writer of the savepoint.
    :param uid: Uid of the operator.
    :param new: Description of the state.
    :param rows: Rows as returned by :meth:`NewRows.of`.
    :raises StorageError: if the storage fails.
    """
    owned = key_group_range_of(subtask, parallelism, new.max_parallelism)
    key = new.keys.snapshot()
    written = KeyedFiles(
        files, KeyedSubtask(uid=uid, index=subtask, owned=owned, key=key, max_parallelism=new.max_parallelism)
    )
    written.write(new.state.schema(), [rows])
    return written.handle(_FIRST)


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
