"""Operator state backend of one subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    UnsupportedStateError,
)
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateKind
from airflow_provider_statecheck.state.keyed.registered_state import misfit
from airflow_provider_statecheck.state.operator.states import BroadcastState, PartitionableListState
from airflow_provider_statecheck.state.operator.stream_format import (
    ElementSerializers,
    WrittenElements,
    WrittenState,
    decode,
    encode,
    joined,
    stored_name,
)
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.snapshots import SnapshotResult
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream, CheckpointStreamFactory

RestoredHandle = tuple[OperatorStateHandle, Callable[[], bytes]]
"""A handle, and what reads all bytes of its stream."""


def read_restored(restored: Iterable[RestoredHandle]) -> dict[str, WrittenState]:
    """
    Return the restored states by their stored names, with the elements that the handles name.

    A state of a stream of which no element is named is there too, and empty.

    :raises StorageError: if the storage fails.
    :raises CorruptStateError: if the bytes are others than those that were written.
    :raises IncompatibleCheckpointError: if a newer version wrote them, or the streams contradict each other.
    """
    states: dict[str, WrittenState] = {}
    for handle, read in restored:
        for state in _of_handle(handle, decode(read())):
            known = states.get(state.stored_name)
            states[state.stored_name] = state if known is None else _both(known, state)
    return {name: WrittenState(state.name, state.mode, joined(state.pieces)) for name, state in states.items()}


def _of_handle(handle: OperatorStateHandle, states: Sequence[WrittenState]) -> list[WrittenState]:
    metas = dict(handle.states)
    missing = metas.keys() - {state.stored_name for state in states}
    if missing:
        raise CorruptStateError(f"Expected the operator states {sorted(missing)} in their stream, found others.")
    offsets = {name: meta.offsets for name, meta in metas.items()}
    return [_selected(state, offsets.get(state.stored_name)) for state in states]


def _selected(state: WrittenState, offsets: tuple[int, ...] | None) -> WrittenState:
    if state.mode is DistributionMode.BROADCAST and offsets is not None:
        return state
    return WrittenState(state.name, state.mode, tuple(_take(state, offsets or ())))


def _take(state: WrittenState, offsets: tuple[int, ...]) -> list[WrittenElements]:
    taken: list[WrittenElements] = []
    begin = 0
    for piece in state.pieces:
        end = begin + len(piece)
        rows = [offset - begin for offset in offsets if begin <= offset < end]
        taken.append(piece.take(rows))
        begin = end
    if sum(map(len, taken)) != len(offsets):
        raise CorruptStateError(f"Expected {len(offsets)} elements of {state.name!r}, found only {begin} of them.")
    return taken


def _both(known: WrittenState, more: WrittenState) -> WrittenState:
    if known.mode is not more.mode:
        raise IncompatibleCheckpointError(
            f"Expected all subtasks to distribute operator state {known.name!r} by {known.mode.value}, found "
            f"{more.mode.value} too; restore from another checkpoint."
        )
    return WrittenState(known.name, known.mode, (*known.pieces, *more.pieces))


class OperatorStateSnapshot:
    """
    Writes states that nobody changes any more.

    :param states: All of the subtask; none at all give an empty result.
    :param streams: Where they go.
    """

    def __init__(self, states: Sequence[WrittenState], streams: CheckpointStreamFactory) -> None:
        self._states = states
        self._streams = streams
        self._is_cancelled = Event()

    def run(self) -> SnapshotResult[OperatorStateHandle]:
        """
        Write the states into one stream.

        :raises StorageError: if the storage fails; then no file is left.
        :raises SnapshotCancelledError: if it was cancelled before the stream was whole.
        """
        self._require_going_on()
        if not self._states:
            return SnapshotResult.empty()
        stream = self._streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
        try:
            return self._write(stream)
        finally:
            stream.close()

    def cancel(self) -> None:
        """End the writing, so that it leaves no file; without effect once the stream is whole."""
        self._is_cancelled.set()

    def _write(self, stream: CheckpointStateOutputStream) -> SnapshotResult[OperatorStateHandle]:
        for data in encode(self._states):
            self._require_going_on()
            stream.write(data)
        self._require_going_on()
        size = stream.get_pos()
        handle = stream.close_and_get_handle()
        if handle is None:
            return SnapshotResult.empty()
        states = tuple((state.stored_name, state.meta) for state in self._states)
        return SnapshotResult(OperatorStateHandle(states=states, stream=handle), size)

    def _require_going_on(self) -> None:
        if self._is_cancelled.is_set():
            raise SnapshotCancelledError("Expected the snapshot of operator state to go on, found it cancelled.")


T = TypeVar("T")
AnyState = PartitionableListState[Any] | BroadcastState[Any, Any]


@dataclass(frozen=True, slots=True)
class _Registered:
    """A state that a descriptor asked for."""

    mode: DistributionMode
    asked: ElementSerializers
    """As the descriptor has them."""
    used: ElementSerializers
    """As they were reconfigured for restored state."""
    state: AnyState

    def capture(self) -> WrittenState:
        return WrittenState(self.asked.state, self.mode, (self.used.write(tuple(self.state)),))


class DefaultOperatorStateBackend:
    """
    Keeps lists and maps in memory; an :class:`OperatorStateStore`.

    It is used by one thread; only what ``snapshot`` returns may run in another. Restored states that nobody asked for are
    in the next snapshot as they were.

    :param restored: The handles that the subtask was given, each with what reads all bytes of its stream.
    :param operator_name: What users call the operator, for errors.
    :raises StorageError: if the storage fails.
    :raises CorruptStateError: if the bytes are others than those that were written.
    :raises IncompatibleCheckpointError: if a newer version wrote them, or the streams contradict each other.
    """

    def __init__(self, restored: Iterable[RestoredHandle] = (), operator_name: str = "") -> None:
        self._operator_name = operator_name
        self._unclaimed = read_restored(restored)
        self._registered: dict[str, _Registered] = {}
        self._snapshots: WeakSet[OperatorStateSnapshot] = WeakSet()
        self._is_disposed = False

    @classmethod
    def restore(
        cls, storage: CheckpointStorage, handles: Sequence[OperatorStateHandle], operator_name: str = ""
    ) -> DefaultOperatorStateBackend:
        """
        Return a backend with the state that handles lead to; raises as the class does.

        :param storage: From which it is read.
        :param operator_name: What users call the operator, for errors.
        """

        def reader(handle: OperatorStateHandle) -> Callable[[], bytes]:
            return lambda: read_state(storage, handle.stream)

        return cls(((handle, reader(handle)) for handle in handles), operator_name)

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a list state, whose elements are redistributed over the subtasks when the parallelism changes.

        :raises CoordinatorError: if a union list state has this name.
        :raises InvalidConfigurationError: if the name has other types, or the descriptor has a time to live.
        :raises StateMigrationError: if restored state is incompatible with the descriptor.
        """
        return cast(PartitionableListState[T], self._get(descriptor, DistributionMode.SPLIT_DISTRIBUTE))

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a union list state: after a restore, each subtask has the elements of all subtasks.

        :raises CoordinatorError: if a list state with redistribution has this name.
        :raises InvalidConfigurationError: if the name has other types, or the descriptor has a time to live.
        :raises StateMigrationError: if restored state is incompatible with the descriptor.
        """
        return cast(PartitionableListState[T], self._get(descriptor, DistributionMode.UNION))

    def get_broadcast_state(self, descriptor: MapStateDescriptor[T]) -> BroadcastState[Any, T]:
        """
        Return a broadcast state. Its name may also be the name of a list state.

        :raises InvalidConfigurationError: if the name has other types, or the descriptor has a time to live.
        :raises StateMigrationError: if restored state is incompatible with the descriptor.
        """
        return cast(BroadcastState[Any, T], self._get(descriptor, DistributionMode.BROADCAST))

    def get_registered_state_names(self) -> frozenset[str]:
        """Return the names of the registered and the restored list states."""
        return frozenset(name for name, mode in self._names() if mode is not DistributionMode.BROADCAST)

    def get_registered_broadcast_state_names(self) -> frozenset[str]:
        """Return the names of the registered and the restored broadcast states."""
        return frozenset(name for name, mode in self._names() if mode is DistributionMode.BROADCAST)

    def schemas(self) -> tuple[StateSchema, ...]:
        """Return what the metadata says about each state, those included that were restored and not asked for."""
        registered = [_schema(r.asked.state, r.mode, *r.used.snapshots()) for r in self._registered.values()]
        unclaimed: list[StateSchema] = []
        for state in self._unclaimed.values():
            found = [_schema(state.name, state.mode, piece.key, piece.value) for piece in state.pieces]
            unclaimed += [schema for i, schema in enumerate(found) if schema not in found[:i]]
        return (*registered, *unclaimed)

    def snapshot(self, checkpoint_id: int, timestamp: int, streams: CheckpointStreamFactory) -> OperatorStateSnapshot:
        """
        Capture the state as it is now; what is returned writes it, and later changes are not in it.

        :param checkpoint_id: Of the checkpoint.
        :param timestamp: When it was triggered, in milliseconds since 1970.
        :param streams: Where it is written.
        :raises UnsupportedStateError: for an element of another type than its state has.
        :raises CoordinatorError: after ``dispose``.
        """
        self._require_usable()
        captured = [registered.capture() for registered in self._registered.values()]
        taken = OperatorStateSnapshot((*captured, *self._unclaimed.values()), streams)
        self._snapshots.add(taken)
        return taken

    def dispose(self) -> None:
        """Give up the state and end the snapshots that still run; without effect the second time."""
        self._is_disposed = True
        for running in tuple(self._snapshots):
            running.cancel()
        self._registered.clear()
        self._unclaimed.clear()

    def _names(self) -> list[tuple[str, DistributionMode]]:
        registered = [(state.asked.state, state.mode) for state in self._registered.values()]
        return registered + [(state.name, state.mode) for state in self._unclaimed.values()]

    def _get(self, descriptor: ListStateDescriptor[Any] | MapStateDescriptor[Any], mode: DistributionMode) -> AnyState:
        self._require_usable()
        _require_fitting(descriptor, mode)
        name = stored_name(descriptor.name, mode)
        known = self._registered.get(name)
        if known is None:
            self._registered[name] = self._register(descriptor, mode)
            self._unclaimed.pop(name, None)
            return self._registered[name].state
        _require_mode(descriptor.name, known.mode, mode)
        _require_same(known.asked, ElementSerializers.of(descriptor))
        return known.state

    def _register(
        self, descriptor: ListStateDescriptor[Any] | MapStateDescriptor[Any], mode: DistributionMode
    ) -> _Registered:
        asked = ElementSerializers.of(descriptor)
        restored = self._unclaimed.get(stored_name(descriptor.name, mode))
        if restored is None:
            return _Registered(mode, asked, asked, self._new_state(mode, asked, ()))
        _require_mode(descriptor.name, restored.mode, mode)
        used = asked.reconfigured(restored.pieces)
        elements = [element for piece in restored.pieces for element in used.read(piece)]
        return _Registered(mode, asked, used, self._new_state(mode, used, elements))

    def _new_state(self, mode: DistributionMode, used: ElementSerializers, elements: Iterable[Any]) -> AnyState:
        def refusing(own: Callable[..., Any]) -> Callable[..., Any]:
            def owned(*given: Any) -> Any:
                try:
                    return own(*given)
                except UnsupportedStateError as error:
                    raise misfit(f"the operator state {used.state!r}", self._operator_name, error) from error

            return owned

        if mode is DistributionMode.BROADCAST:
            return BroadcastState(elements, refusing(used.own_entry), used.copy)
        return PartitionableListState(elements, refusing(used.own), used.copy)

    def _require_usable(self) -> None:
        if self._is_disposed:
            raise CoordinatorError("Expected operator state to be used while its subtask runs, found it disposed.")


def _schema(name: str, mode: DistributionMode, key: Any, value: Any) -> StateSchema:
    kind = StateKind.MAP if mode is DistributionMode.BROADCAST else StateKind.LIST
    return StateSchema(name=name, kind=kind, key=key, value=value)


def _require_fitting(descriptor: ListStateDescriptor[Any] | MapStateDescriptor[Any], mode: DistributionMode) -> None:
    wanted = StateKind.MAP if mode is DistributionMode.BROADCAST else StateKind.LIST
    if descriptor.kind is not wanted:
        raise InvalidConfigurationError(f"Expected the descriptor of a {wanted.value} state, found {descriptor!r}.")
    if descriptor.ttl is not None:
        raise InvalidConfigurationError(
            f"Expected operator state {descriptor.name!r} without a time to live, found one; only keyed state expires."
        )


def _require_mode(name: str, expected: DistributionMode, found: DistributionMode) -> None:
    if expected is not found:
        raise CoordinatorError(
            f"Expected operator state {name!r} to be distributed by {expected.value}, as it was before, found "
            f"{found.value}; take another name for the other state."
        )


def _require_same(expected: ElementSerializers, found: ElementSerializers) -> None:
    if expected.snapshots() != found.snapshots():
        raise InvalidConfigurationError(
            f"Expected operator state {found.state!r} to keep its types, found other ones; take another name for the other "
            f"state."
        )
