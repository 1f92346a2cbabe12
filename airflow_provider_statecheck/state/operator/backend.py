"""
Operator state backend of one subtask.

The backend keeps lists and maps in memory, restores them from the streams of a checkpoint, and writes all of them into
one stream per checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, TypeVar, cast
from weakref import WeakSet

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    DistributionMode,
    OperatorStateHandle,
)
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    SnapshotCancelledError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from airflow_provider_statecheck.state.keyed.abstract_backend import (
    SnapshotResult,
    StateSnapshot,
    reconfigured,
    require_same_state,
)
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.operator.states import BroadcastState, PartitionableListState
from airflow_provider_statecheck.state.operator.stream_format import (
    PARQUET_MAGIC,
    WrittenElements,
    WrittenState,
    decode,
    decode_parquet,
    encode,
    joined,
    kind_of,
    restored_elements,
    stored_name,
    written_elements,
)
from airflow_provider_statecheck.state.schema_evolution import StateSchema
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream, CheckpointStreamFactory

T = TypeVar("T")
AnyState = PartitionableListState[Any] | BroadcastState[Any, Any]


class OperatorStateStore:
    """
    Operator states by name. Calls with equal descriptors return the same state.

    The methods that return a state raise ``InvalidConfigurationError`` if its name has other types, or the descriptor
    has a time to live, and ``StateMigrationError`` if restored state is incompatible with the descriptor.

    :param restored: Restored states by stored name, as ``read_restored`` returns them.
    :param operator_name: Operator name for errors.
    """

    def __init__(self, restored: Mapping[str, WrittenState] | None = None, operator_name: str = "") -> None:
        self._operator_name = operator_name
        self._unclaimed = dict(restored or {})
        self._registered: dict[str, _Registered] = {}
        self._is_disposed = False

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a list state, whose elements are redistributed over the subtasks when the parallelism changes.

        :raises CoordinatorError: if a union list state has this name.
        """
        return cast(PartitionableListState[T], self._get(descriptor, DistributionMode.SPLIT_DISTRIBUTE))

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a union list state: after a restore, each subtask has the elements of all subtasks.

        :raises CoordinatorError: if a list state with redistribution has this name.
        """
        return cast(PartitionableListState[T], self._get(descriptor, DistributionMode.UNION))

    def get_broadcast_state(self, descriptor: MapStateDescriptor[T]) -> BroadcastState[Any, T]:
        """Return a broadcast state. Its name may also be the name of a list state."""
        return cast(BroadcastState[Any, T], self._get(descriptor, DistributionMode.BROADCAST))

    def get_registered_state_names(self) -> frozenset[str]:
        """Return the names of the registered and the restored list states."""
        return frozenset(name for name, mode in self._names() if mode is not DistributionMode.BROADCAST)

    def get_registered_broadcast_state_names(self) -> frozenset[str]:
        """Return the names of the registered and the restored broadcast states."""
        return frozenset(name for name, mode in self._names() if mode is DistributionMode.BROADCAST)

    def _names(self) -> list[tuple[str, DistributionMode]]:
        registered = [(state.declared.name, state.mode) for state in self._registered.values()]
        return registered + [(state.name, state.mode) for state in self._unclaimed.values()]

    def _get(self, descriptor: ListStateDescriptor[Any] | MapStateDescriptor[Any], mode: DistributionMode) -> AnyState:
        self._require_usable()
        _require_operator_descriptor(descriptor, mode)
        name = stored_name(descriptor.name, mode)
        known = self._registered.get(name)
        if known is None:
            known = self._registered[name] = self._register(descriptor, mode, self._unclaimed.get(name))
            self._unclaimed.pop(name, None)
        _require_mode(descriptor.name, known.mode, mode)
        if known.descriptor is not descriptor:
            require_same_state(known.declared, RegisteredState.of(descriptor))
        return known.state

    def _register(
        self, descriptor: StateDescriptor[Any], mode: DistributionMode, restored: WrittenState | None
    ) -> _Registered:
        # Queries read keyed state only.
        declared = replace(RegisteredState.of(descriptor), queryable_name=None)
        elements: list[Any] = []
        if restored is not None:
            _require_mode(descriptor.name, restored.mode, mode)
            for piece in restored.pieces:
                declared = reconfigured(declared, piece.schema)
            elements = [element for piece in restored.pieces for element in restored_elements(declared, piece)]
        state: AnyState = (
            BroadcastState(declared, self._operator_name, dict(elements))
            if mode is DistributionMode.BROADCAST
            else PartitionableListState(declared, self._operator_name, elements)
        )
        return _Registered(descriptor, mode, declared, state)

    def _require_usable(self) -> None:
        if self._is_disposed:
            raise CoordinatorError(
                "Expected operator state to be used while its subtask runs, found it disposed; "
                "access it before the function is closed."
            )


class DefaultOperatorStateBackend(OperatorStateStore):
    """
    Operator state store that keeps lists and maps in memory, and takes snapshots of them.

    The backend belongs to one thread; only the snapshots that it returns may run in another thread. Snapshots include
    restored states without a descriptor unchanged.
    """

    def __init__(
        self, restored: Mapping[str, WrittenState] | None = None, operator_name: str = "", subtask: int = 0
    ) -> None:
        super().__init__(restored, operator_name)
        self._subtask = subtask
        self._snapshots: WeakSet[OperatorStateSnapshot] = WeakSet()

    def schemas(self) -> tuple[StateSchema, ...]:
        """Return the schemas of the registered states, and of the restored states without a descriptor."""
        registered = [registered.declared.schema() for registered in self._registered.values()]
        unclaimed: list[StateSchema] = []
        for state in self._unclaimed.values():
            found = [piece.schema for piece in state.pieces]
            unclaimed += [schema for i, schema in enumerate(found) if schema not in found[:i]]
        return (*registered, *unclaimed)

    def snapshot(self, checkpoint_id: int, timestamp: int, streams: CheckpointStreamFactory) -> OperatorStateSnapshot:
        """
        Capture the current state, and return the snapshot that writes it.

        :param timestamp: The time of its trigger, in milliseconds since the epoch.
        :raises UnsupportedStateError: if an element does not fit the type of its state.
        :raises CoordinatorError: if called after ``dispose``.
        """
        self._require_usable()
        captured = [registered.capture() for registered in self._registered.values()]
        taken = OperatorStateSnapshot((*captured, *map(self._carried, self._unclaimed.values())), streams)
        self._snapshots.add(taken)
        return taken

    def _carried(self, state: WrittenState) -> WrittenState:
        # Each subtask has the elements of all, and the next restore would give all of their copies to each.
        is_copy = state.mode is DistributionMode.UNION and self._subtask > 0
        return _selected(state, ()) if is_copy else state

    def dispose(self) -> None:
        """Drop the state and cancel running snapshots. Further calls have no effect."""
        self._is_disposed = True
        for running in tuple(self._snapshots):
            running.cancel()
        self._registered.clear()
        self._unclaimed.clear()


@dataclass(frozen=True, slots=True)
class _Registered:
    """Operator state with a descriptor."""

    descriptor: StateDescriptor[Any]
    mode: DistributionMode
    declared: RegisteredState
    """The state with serializers that are reconfigured for restored elements."""
    state: AnyState

    def capture(self) -> WrittenState:
        return WrittenState(self.declared.name, self.mode, (written_elements(self.declared, self.state.frozen()),))


def _require_operator_descriptor(
    descriptor: ListStateDescriptor[Any] | MapStateDescriptor[Any], mode: DistributionMode
) -> None:
    if descriptor.kind is not kind_of(mode):
        raise InvalidConfigurationError(f"Expected the descriptor of a {kind_of(mode)} state, found {descriptor!r}.")
    if descriptor.ttl is not None:
        raise InvalidConfigurationError(
            f"Expected operator state {descriptor.name!r} without a time to live, found one; remove it, because only "
            "keyed state expires."
        )


def _require_mode(name: str, expected: DistributionMode, found: DistributionMode) -> None:
    if expected is not found:
        raise CoordinatorError(
            f"Expected operator state {name!r} to be distributed by {expected.value} as before, found "
            f"{found.value}; choose another name for the new state."
        )


class OperatorStateSnapshot(StateSnapshot[OperatorStateHandle]):
    """
    Snapshot of the operator state of a subtask, which another thread may write.

    :param states: The captured, immutable states; without states the result is empty.
    """

    def __init__(self, states: Sequence[WrittenState], streams: CheckpointStreamFactory) -> None:
        self._states = states
        self._streams = streams
        self._is_cancelled = Event()

    @override
    def run(self) -> SnapshotResult[OperatorStateHandle]:
        self._require_not_cancelled()
        if not self._states:
            return SnapshotResult.empty()
        stream = self._streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
        try:
            return self._write(stream)
        finally:
            stream.close()

    @override
    def cancel(self) -> None:
        self._is_cancelled.set()

    def _write(self, stream: CheckpointStateOutputStream) -> SnapshotResult[OperatorStateHandle]:
        for data in encode(self._states):
            self._require_not_cancelled()
            stream.write(data)
        self._require_not_cancelled()
        size = stream.get_pos()
        handle = stream.close_and_get_handle()
        if handle is None:
            return SnapshotResult.empty()
        states = tuple((state.stored_name, state.meta) for state in self._states)
        return SnapshotResult(OperatorStateHandle(states=states, stream=handle), size)

    def _require_not_cancelled(self) -> None:
        if self._is_cancelled.is_set():
            raise SnapshotCancelledError(
                "Expected a running snapshot of operator state, found it cancelled; its checkpoint was aborted or its "
                "subtask ended."
            )


def read_restored(storage: CheckpointStorage, handles: Iterable[OperatorStateHandle]) -> dict[str, WrittenState]:
    """
    Return the restored states by stored name, with the elements at the offsets of the handles.

    A state of a stream is included without elements if its handle has no offsets of it.

    :raises StorageError: if the storage fails.
    :raises CorruptStateError: if a stream is damaged.
    :raises IncompatibleCheckpointError: if a newer version wrote a stream, or streams disagree about a state.
    """
    states: dict[str, WrittenState] = {}
    for handle in handles:
        data = read_state(storage, handle.stream)
        written = (decode_parquet(data),) if data.startswith(PARQUET_MAGIC) else decode(data)
        for state in _states_of_handle(handle, written):
            known = states.get(state.stored_name)
            states[state.stored_name] = state if known is None else _merged(known, state)
    return {name: WrittenState(state.name, state.mode, joined(state.pieces)) for name, state in states.items()}


def _states_of_handle(handle: OperatorStateHandle, states: Sequence[WrittenState]) -> list[WrittenState]:
    offsets = {name: meta.offsets for name, meta in handle.states}
    missing = offsets.keys() - {state.stored_name for state in states}
    if missing:
        raise CorruptStateError(
            f"Expected the operator states {sorted(missing)} in the stream of their handle, found none of them; "
            "restore from another checkpoint."
        )
    return [_selected(state, offsets.get(state.stored_name)) for state in states]


def _selected(state: WrittenState, offsets: tuple[int, ...] | None) -> WrittenState:
    if state.mode is DistributionMode.BROADCAST and offsets is not None:
        return state
    return WrittenState(state.name, state.mode, tuple(_elements_at(state, offsets or ())))


def _elements_at(state: WrittenState, offsets: tuple[int, ...]) -> list[WrittenElements]:
    taken: list[WrittenElements] = []
    begin = 0
    for piece in state.pieces:
        end = begin + len(piece)
        rows = [offset - begin for offset in offsets if begin <= offset < end]
        taken.append(piece.take(rows))
        begin = end
    if (found := sum(map(len, taken))) != len(offsets):
        raise CorruptStateError(
            f"Expected {len(offsets)} elements of {state.name!r} in a stream of {begin} elements, found {found}; "
            "restore from another checkpoint."
        )
    return taken


def _merged(known: WrittenState, more: WrittenState) -> WrittenState:
    if known.mode is not more.mode:
        raise IncompatibleCheckpointError(
            f"Expected all subtasks to distribute operator state {known.name!r} by {known.mode.value}, found "
            f"{more.mode.value} too; restore from another checkpoint."
        )
    return WrittenState(known.name, known.mode, (*known.pieces, *more.pieces))
