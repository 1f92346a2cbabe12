"""Keyed states of a checkpoint: names, types and locations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.run_order import logical_date_of
from airflow_provider_statecheck.checkpoint.states.assignment import intersection_of
from airflow_provider_statecheck.checkpoint.states.handles import (
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    OperatorState,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnknownStateError, UnsupportedStateError
from airflow_provider_statecheck.state.arrow.snapshot_metadata import decode_meta
from airflow_provider_statecheck.state.backends.full_snapshot import PREFIX_SIZE, decode_header, decode_prefix
from airflow_provider_statecheck.state.schemas import OperatorSchemas, StateSchema, decode_schemas
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle
from airflow_provider_statecheck.storage.pointers import pointer_uri, resolve_checkpoint
from airflow_provider_statecheck.storage.views.state_files import open_input_stream, read_state


def written_schemas(storage: CheckpointStorage, handles: Iterable[KeyedStateHandle]) -> OperatorSchemas:
    """
    Return the types of the states in some handles.

    :raises CheckpointNotFoundError: if a file is missing.
    :raises CorruptStateError: if it was changed.
    :raises IncompatibleCheckpointError: if a newer version wrote it.
    :raises StorageError: if the storage fails.
    """
    key, found = None, dict[str, StateSchema]()
    for handle in handles:
        schemas = _schemas_of(storage, handle)
        key = key or schemas.key
        found = {state.name: state for state in schemas.keyed} | found
    return OperatorSchemas(key=key, keyed=tuple(found.values()))


def _schemas_of(storage: CheckpointStorage, handle: KeyedStateHandle) -> OperatorSchemas:
    if isinstance(handle, KeyGroupsStateHandle):
        return _of_snapshot(storage, handle)
    return _of_runs(storage, handle)


def _of_snapshot(storage: CheckpointStorage, handle: KeyGroupsStateHandle) -> OperatorSchemas:
    with open_input_stream(storage, handle.stream) as stream:
        prefix = stream.read(PREFIX_SIZE)
        # A length that was changed must not ask for more memory than there is.
        length = min(decode_prefix(prefix), handle.stream.state_size)
        return decode_header(prefix, stream.read(length)).schemas


def _of_runs(storage: CheckpointStorage, handle: IncrementalKeyedStateHandle) -> OperatorSchemas:
    if handle.meta is None:
        return OperatorSchemas()
    files = dict((*handle.shared, *handle.private))
    meta = decode_meta(read_state(storage, handle.meta), files, f"checkpoint {handle.checkpoint_id}")
    return OperatorSchemas(key=meta.key, keyed=tuple(files.state for files in meta.states))


STAGE = "stage"
"""Under which a checkpoint's small values hold those of a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionState:
    """The state of one function in a checkpoint."""

    uid: str
    """Of the function, within its stage."""
    operator: OperatorState
    schemas: OperatorSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class StateContent:
    """One keyed state of a checkpoint; plain values, so that it goes to other processes."""

    uid: str
    schema: StateSchema
    key: SerializerSnapshot
    max_parallelism: int
    handles: tuple[KeyedStateHandle, ...]
    """Of each subtask no more than its own key groups."""
    taken_at_ms: int
    """The time by which state expired when the checkpoint was taken."""

    def within(self, owned: KeyGroupRange) -> StateContent:
        """Return what there is of some key groups."""
        return replace(self, handles=tuple(kept for each in self.handles for kept in _cut(each, owned)))

    def windows(self, owned: KeyGroupRange, bytes_at_once: int) -> Iterator[KeyGroupRange]:
        """Cut key groups into ranges of which each has about so many bytes, and at least one key group."""
        size = sum(handle.state_size for handle in self.handles)
        count = max(1, bytes_at_once * self.max_parallelism // max(1, size))
        for start in range(owned.start, owned.end + 1, count):
            yield KeyGroupRange(start, min(owned.end, start + count - 1))


class CheckpointStates:
    """
    The states of one checkpoint or savepoint.

    :param storage: Where the bytes are.
    :param document: The checkpoint's metadata.
    """

    def __init__(self, storage: CheckpointStorage, document: CheckpointDocument) -> None:
        self.storage = storage
        self.document = document

    @classmethod
    def load(
        cls, pointer: str, storage_options: Mapping[str, Any] | None = None, allowed_locations: Sequence[str] = ()
    ) -> CheckpointStates:
        """
        Read the metadata of a checkpoint.

        :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
        :param storage_options: Options of the filesystem.
        :param allowed_locations: Where else the checkpoint may name files, as URIs.
        :raises CheckpointNotFoundError: if nothing is there.
        :raises CorruptStateError: if the metadata were changed.
        :raises IncompatibleCheckpointError: for metadata of another version.
        :raises StorageError: if the storage fails.
        """
        uri = pointer_uri(pointer)
        storage = CheckpointStorage.open(uri, **dict(storage_options or {}))
        return cls.of(storage.allowing(locations=allowed_locations), uri)

    @classmethod
    def of(cls, storage: CheckpointStorage, pointer: str) -> CheckpointStates:
        """Read the metadata of a checkpoint in a storage that is open; raises as :meth:`load`."""
        found = resolve_checkpoint(storage, pointer)
        document, _ = found.read()
        return cls(found.storage, document)

    def functions(self) -> tuple[FunctionState, ...]:
        """
        Return the functions with the state that they had asked for when they were opened.

        :raises IncompatibleCheckpointError: if a newer version wrote their types.
        :raises StorageError: if the storage fails.
        """
        return tuple(self._functions())

    def complete(self, function: FunctionState) -> FunctionState:
        """
        Return a function with all of its state, which takes a look into the files of each subtask.

        :raises CorruptStateError: if they were changed.
        :raises IncompatibleCheckpointError: if a newer version wrote them.
        :raises StorageError: if the storage fails.
        """
        known = function.schemas
        written = written_schemas(self.storage, owned_handles(function.operator))
        names = {state.name for state in known.keyed}
        late = tuple(state for state in written.keyed if state.name not in names)
        return replace(function, schemas=replace(known, key=known.key or written.key, keyed=(*known.keyed, *late)))

    def content(self, name: str, uid: str | None = None) -> StateContent:
        """
        Return where a keyed state is.

        :param uid: Of the function; needed where several have a state of that name.
        :raises UnknownStateError: if there is none, naming those that there are.
        :raises InvalidConfigurationError: if several functions have one.
        :raises UnsupportedStateError: for a list or map that belongs to no key.
        :raises StorageError: if the storage fails.
        """
        functions = [each for each in self.functions() if uid in (None, each.uid, each.operator.uid)]
        found = _states_of(functions, name) or _states_of(list(map(self.complete, functions)), name)
        if not found:
            raise self._unknown(name, uid)
        if len(found) > 1:
            uids = ", ".join(repr(each.uid) for each, _ in found)
            raise InvalidConfigurationError(f"Expected the uid of a function, as {uids} each have a state {name!r}.")
        function, schema = found[0]
        assert function.schemas.key is not None  # noqa: S101 - there is keyed state
        return StateContent(
            uid=function.uid,
            schema=schema,
            key=function.schemas.key,
            max_parallelism=function.operator.max_parallelism,
            handles=tuple(owned_handles(function.operator)),
            taken_at_ms=self.taken_at_ms(),
        )

    def taken_at_ms(self) -> int:
        """Return the time by which state expired when the checkpoint was taken; older checkpoints do not say it."""
        values = self.stage_values()
        if "now_ms" in values:
            return int(values["now_ms"])
        moment = logical_date_of(values.get("run", "")) or datetime.fromisoformat(self.document.created_at)
        return int(moment.timestamp() * 1000)

    def values(self) -> dict[str, Any]:
        """
        Return the small values of the checkpoint.

        :raises CorruptStateError: if they are not what was written.
        :raises StorageError: if the storage fails.
        """
        state = self.document.state
        if isinstance(state, InlineStateHandle):
            return dict(state.value)
        return dict(json.loads(self.storage.read_verified(state.uri, size=state.size, sha256=state.sha256)))

    def stage_values(self) -> dict[str, Any]:
        """Return what the stage says of the checkpoint; raises as :meth:`values`."""
        return dict(self.values().get(STAGE, {}))

    def _functions(self) -> Iterator[FunctionState]:
        prefix = f"{self.document.uid}/"
        for operator in self.document.operator_states:
            schemas = self._schemas(operator)
            if schemas is not None:
                yield FunctionState(uid=operator.uid.removeprefix(prefix), operator=operator, schemas=schemas)

    def _schemas(self, operator: OperatorState) -> OperatorSchemas | None:
        if operator.coordinator_state is None:
            return None
        value = json.loads(read_state(self.storage, operator.coordinator_state))
        # Sources and sinks, whose coordinators keep something else, have no such state.
        is_of_function = isinstance(value, dict) and {"version", "keyed", "operator"} <= value.keys()
        return decode_schemas(value) if is_of_function else None

    def _unknown(self, name: str, uid: str | None) -> Exception:
        functions = list(map(self.complete, self.functions()))
        if any(state.name == name for each in functions for state in each.schemas.operator):
            return UnsupportedStateError(
                f"Expected {name!r} to be state of keys, found a list or map that belongs to no key; it can only be restored."
            )
        shown = ", ".join(f"{each.uid}: {state.name}" for each in functions for state in each.schemas.keyed)
        of_function = f" of the function {uid!r}" if uid else ""
        return UnknownStateError(
            f"Expected a keyed state {name!r}{of_function} in checkpoint {self.document.checkpoint_id} of job "
            f"{self.document.job_name!r}, found {shown or 'no keyed state'}."
        )


def _states_of(functions: list[FunctionState], name: str) -> list[tuple[FunctionState, StateSchema]]:
    return [(each, state) for each in functions for state in each.schemas.keyed if state.name == name]


def owned_handles(operator: OperatorState) -> Iterator[KeyedStateHandle]:
    """
    Return the handles of an operator's keyed state, each with the key groups of its own subtask.

    A subtask that was lent files of others reads only its own key groups of them; the rest may be old.
    """
    for index, subtask in sorted(operator.subtask_states.items()):
        own = key_group_range_of(index, operator.parallelism, operator.max_parallelism)
        for handle in subtask.managed_keyed:
            yield from _cut(handle, own)


def _cut(handle: KeyedStateHandle, owned: KeyGroupRange) -> Iterator[KeyedStateHandle]:
    kept = intersection_of(handle, owned)
    if isinstance(kept, IncrementalKeyedStateHandle):
        yield replace(kept, key_group_range=kept.key_group_range.intersection(owned))
    elif kept is not None:
        yield kept
