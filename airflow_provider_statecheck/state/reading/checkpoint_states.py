"""Keyed states of a checkpoint: names, types and locations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError, decode
from airflow_provider_statecheck.checkpoint.fencing import logical_date_of
from airflow_provider_statecheck.checkpoint.states.assignment import handles_within
from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    key_group_range_of,
)
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    UnknownStateError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.state.arrow.restore import read_meta
from airflow_provider_statecheck.state.schema_evolution import (
    OperatorSchemas,
    StateSchema,
    decode_schemas,
    schema_of_all,
)
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, read_values
from airflow_provider_statecheck.storage.pointers import pointer_uri, resolve_checkpoint
from airflow_provider_statecheck.storage.stored_json import decoding, parse
from airflow_provider_statecheck.storage.views.state_files import read_state

STAGE = "stage"
"""Key of the stage's values in the values of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunValues:
    """Values of a stage in the state of a checkpoint."""

    checkpoint: int | None = None
    """ID of the checkpoint, which savepoints with a copy of its state retain."""
    run: str | None = None
    """The run that took the checkpoint."""
    now_ms: int | None = None
    """Time for the expiry of state in that run, in milliseconds."""
    cost_seconds: float | None = None
    """Measured duration of a checkpoint in that run."""
    run_seconds: float = 0.0
    """Time of the increments before the checkpoint, over all attempts of its run."""
    columns: dict[str, Any] | None = None
    """Columns of the rows of the source; ``None`` in a checkpoint of a release that did not record them."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """
        Return those in the values of a checkpoint; the defaults for a checkpoint without a stage.

        :raises CorruptStateError: if they are invalid.
        """
        try:
            return decode(cls, values.get(STAGE, {}))
        except MalformedMessageError as error:
            raise CorruptStateError(
                f"Expected the values of a stage in the checkpoint, found invalid ones: {error}; restore another "
                "checkpoint."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionState:
    """State of one function in a checkpoint."""

    uid: str
    """Uid of the function within its stage."""
    operator: OperatorState
    schemas: OperatorSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class StateContent:
    """Schema and location of one keyed state of a checkpoint, serializable for other processes."""

    uid: str
    schema: StateSchema
    key: SerializerSnapshot
    max_parallelism: int
    handles: tuple[KeyedStateHandle, ...]
    """Handles of all subtasks, each restricted to the key groups of its subtask."""
    taken_at_ms: int
    """Time of the checkpoint in milliseconds since the epoch, by which expiry is decided."""

    def within(self, owned: KeyGroupRange) -> StateContent:
        """Return the content restricted to a range of key groups."""
        return replace(self, handles=handles_within(self.handles, owned))

    def windows(self, bytes_at_once: int) -> Iterator[KeyGroupRange]:
        """Split the key groups into ranges of about ``bytes_at_once`` bytes, with at least one key group each."""
        size = sum(handle.state_size for handle in self.handles)
        count = max(1, bytes_at_once * self.max_parallelism // max(1, size))
        for start in range(0, self.max_parallelism, count):
            yield KeyGroupRange(start, min(self.max_parallelism, start + count) - 1)


class CheckpointStates:
    """
    Keyed states of one checkpoint or savepoint.

    Its methods raise ``CorruptStateError`` if a file or the values of the checkpoint were changed,
    ``CheckpointNotFoundError`` if a file is missing, ``IncompatibleCheckpointError`` if a newer version wrote it, and
    ``StorageError`` if the storage fails.
    """

    def __init__(self, storage: CheckpointStorage, document: CheckpointDocument) -> None:
        self.storage = storage
        self.document = document

    @classmethod
    def load(
        cls, pointer: str, storage_options: Mapping[str, Any] | None = None, allowed_locations: Sequence[str] = ()
    ) -> CheckpointStates:
        """
        Load the metadata of a checkpoint.

        :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
        :param storage_options: Options of the filesystem.
        :param allowed_locations: URIs of further locations that the checkpoint may reference.
        """
        uri = pointer_uri(pointer)
        storage = CheckpointStorage.open(uri, **dict(storage_options or {}))
        return cls.of(storage.allowing(locations=allowed_locations), uri)

    @classmethod
    def of(cls, storage: CheckpointStorage, pointer: str) -> CheckpointStates:
        """Load the metadata of a checkpoint from an open storage."""
        found = resolve_checkpoint(storage, pointer)
        document, _ = found.read()
        return cls(found.storage, document)

    @property
    def stages(self) -> tuple[CheckpointStates, ...]:
        """The states of each member of a savepoint of the whole job; itself for any other checkpoint."""
        return tuple(CheckpointStates(self.storage, each) for each in self.document.stages)

    def of_stage(self, uid: str | None) -> CheckpointStates:
        """Return the states of one stage; raises like :meth:`CheckpointDocument.stage_of`."""
        return CheckpointStates(self.storage, self.document.stage_of(uid))

    def functions(self) -> tuple[FunctionState, ...]:
        """Return the functions with the states that they registered in ``open``."""
        prefix = f"{self.document.uid}/"
        found = [(each, self._schemas(each)) for each in self.document.operator_states]
        return tuple(
            FunctionState(uid=operator.uid.removeprefix(prefix), operator=operator, schemas=schemas)
            for operator, schemas in found
            if schemas is not None
        )

    def complete(self, function: FunctionState) -> FunctionState:
        """
        Return a function with all of its states, including those registered after ``open``.

        Reads the header of each state file.
        """
        known = function.schemas
        written = written_schemas(self.storage, owned_handles(function.operator))
        names = {state.name for state in known.keyed}
        late = tuple(state for state in written.keyed if state.name not in names)
        return replace(function, schemas=replace(known, key=known.key or written.key, keyed=(*known.keyed, *late)))

    def content(self, name: str, uid: str | None = None) -> StateContent:
        """
        Return the content of a keyed state.

        :param uid: Uid of the function, required if several functions have a state with this name. In a savepoint of
            the whole job, the uid of the stage, or both with ``/`` in between.
        :raises UnknownStateError: if the checkpoint has no such state or stage; the message lists those that it has.
        :raises InvalidConfigurationError: if several functions have a state with this name, or for several stages and
            no uid.
        :raises UnsupportedStateError: if the state is operator state.
        """
        if self.document.members:
            return self.of_stage(uid).content(name, uid)
        functions = self._functions_of(uid)
        found = _states_of(functions, name) or _states_of(map(self.complete, functions), name)
        if not found:
            raise self._unknown(name, uid)
        if len(found) > 1:
            uids = ", ".join(repr(each.uid) for each, _ in found)
            raise InvalidConfigurationError(
                f"Expected the state {name!r} in one function, found it in {uids}; set the uid of the function."
            )
        function, schema = found[0]
        return self.content_of(function, schema)

    def content_of(self, function: FunctionState, schema: StateSchema) -> StateContent:
        """Return the content of a keyed state of a function."""
        if function.schemas.key is None:
            raise CorruptStateError(
                f"Expected the type of the keys of state {schema.name!r}, found none; read another checkpoint."
            )
        return StateContent(
            uid=function.uid,
            schema=schema,
            key=function.schemas.key,
            max_parallelism=function.operator.max_parallelism,
            handles=owned_handles(function.operator),
            taken_at_ms=self.taken_at_ms,
        )

    @cached_property
    def taken_at_ms(self) -> int:
        """
        The time of the checkpoint in milliseconds since the epoch, by which expiry is decided.

        Checkpoints of older versions do not store it: the logical date of the run or the creation time replaces it.
        """
        values = RunValues.of(self.values())
        if values.now_ms is not None:
            return values.now_ms
        moment = logical_date_of(values.run or "") or self.document.created_at
        with decoding("the time of a checkpoint"):
            return int(moment.timestamp() * 1000)

    def values(self) -> dict[str, Any]:
        """Return the values of the checkpoint."""
        return read_values(self.storage, self.document)

    def _functions_of(self, uid: str | None) -> Sequence[FunctionState]:
        functions = self.functions()
        named = [each for each in functions if uid in (each.uid, each.operator.uid)]
        return functions if not named and uid in (None, self.document.uid) else named

    def _schemas(self, operator: OperatorState) -> OperatorSchemas | None:
        if operator.coordinator_state is None:
            return None
        return schemas_in(read_state(self.storage, operator.coordinator_state))

    def _unknown(self, name: str, uid: str | None) -> Exception:
        functions = list(map(self.complete, self.functions()))
        if any(state.name == name for each in functions for state in each.schemas.operator):
            return UnsupportedStateError(
                f"Expected {name!r} to be keyed state, found operator state; only a restore reads it."
            )
        shown = ", ".join(f"{each.uid}: {state.name}" for each in functions for state in each.schemas.keyed)
        of_function = f" of the function {uid!r}" if uid else ""
        return UnknownStateError(
            f"Expected a keyed state {name!r}{of_function} in checkpoint {self.document.checkpoint_id} of job "
            f"{self.document.job_name!r}, found {shown or 'no keyed state'}."
        )


def schemas_in(coordinator_state: bytes) -> OperatorSchemas | None:
    """
    Return the schemas in the coordinator state of a function, ``None`` for that of a source or sink.

    :raises IncompatibleCheckpointError: if a newer version wrote the schemas.
    :raises CorruptStateError: if the state is no JSON, or the schemas are invalid.
    """
    value = json_of(coordinator_state)
    is_of_function = isinstance(value, dict) and {"version", "keyed", "operator"} <= value.keys()
    return decode_schemas(value) if is_of_function else None


def json_of(coordinator_state: bytes) -> Any:
    """
    Return the JSON in the coordinator state of a function, a source or a sink.

    :raises CorruptStateError: if it is no JSON.
    """
    with decoding("JSON as the state of a coordinator"):
        return parse(coordinator_state)


def _states_of(functions: Iterable[FunctionState], name: str) -> list[tuple[FunctionState, StateSchema]]:
    return [(each, state) for each in functions for state in each.schemas.keyed if state.name == name]


def owned_handles(operator: OperatorState) -> tuple[KeyedStateHandle, ...]:
    """
    Return the handles of an operator's keyed state, each restricted to the key groups of its subtask.

    Files shared between subtasks may have outdated rows of key groups that the subtask does not own.
    """
    return tuple(each for index in range(operator.parallelism) for each in handles_of_subtask(operator, index))


def handles_of_subtask(operator: OperatorState, index: int) -> tuple[KeyedStateHandle, ...]:
    """Return the handles of a subtask's keyed state, restricted to its key groups; none for a subtask without state."""
    own = key_group_range_of(index, operator.parallelism, operator.max_parallelism)
    subtask = operator.subtask_states.get(index)
    return () if subtask is None else handles_within(subtask.managed_keyed, own)


def written_schemas(storage: CheckpointStorage, handles: Iterable[KeyedStateHandle]) -> OperatorSchemas:
    """Return the schemas of the states in the handles that have snapshot metadata; raises as :func:`read_meta`."""
    key, found = None, dict[str, list[StateSchema]]()
    for handle in handles:
        if handle.meta is not None:
            meta = read_meta(handle, storage)
            key = key or meta.key
            for each in meta.states:
                found.setdefault(each.state.name, []).append(each.state)
    return OperatorSchemas(key=key, keyed=tuple(map(schema_of_all, found.values())))
