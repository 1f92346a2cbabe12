"""List and broadcast state of operators, and raw state, which a function reads and writes itself."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Generic, TypeVar

from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    OperatorStateHandle,
    OperatorStateMeta,
)
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    InvalidConfigurationError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState, misfit, own_user_key_with
from airflow_provider_statecheck.state.keyed.states import require_element, require_elements
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class _OperatorState:
    """
    Types of an operator state.

    :param operator: Operator name for errors.
    """

    __slots__ = ("_freezing", "_operator", "_state")

    def __init__(self, state: RegisteredState, operator: str) -> None:
        self._state = state
        self._operator = operator
        self._freezing = state.serializer.freezing()

    def _misfit(self, error: UnsupportedStateError) -> UnsupportedStateError:
        return misfit(self._state.title, self._operator, error)


class PartitionableListState(_OperatorState, Generic[T]):
    """
    List of elements in insertion order.

    When the parallelism changes, the elements are redistributed over the subtasks. The state holds its own copies of
    the elements, and readers receive copies.

    The methods that add elements raise ``InvalidConfigurationError`` if an element is ``None``, and
    ``UnsupportedStateError`` if it does not fit the type of the state. After an error the list is unchanged.

    :param elements: The initial elements in frozen form.
    """

    __slots__ = ("_elements",)

    def __init__(self, state: RegisteredState, operator: str, elements: Iterable[Any]) -> None:
        super().__init__(state, operator)
        self._elements = list(elements)

    def get(self) -> Iterable[T]:
        """Return copies of the current elements; an empty list state returns an empty iterable."""
        thaw = self._freezing.thaw
        return tuple(self._elements if thaw is None else map(thaw, self._elements))

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over copies of the current elements."""
        return iter(self.get())

    def add(self, element: T) -> None:
        """Append an element."""
        self._elements.append(self._frozen(require_element(element)))

    def add_all(self, elements: Iterable[T]) -> None:
        """Append elements."""
        self._elements += list(map(self._frozen, require_elements(elements)))

    def update(self, elements: Iterable[T]) -> None:
        """Replace all elements."""
        self._elements = list(map(self._frozen, require_elements(elements)))

    def clear(self) -> None:
        """Remove all elements; the state stays registered."""
        self._elements = []

    def frozen(self) -> tuple[Any, ...]:
        """Return the current elements in frozen form. Called by the backend."""
        return tuple(self._elements)

    def _frozen(self, element: T) -> Any:
        try:
            return self._freezing.freeze(element)
        except UnsupportedStateError as error:
            raise self._misfit(error) from error


class ReadOnlyBroadcastState(_OperatorState, Generic[K, V]):
    """
    Read-only view of a broadcast state, for functions of elements that are not broadcast.

    Later changes of the state are visible. Readers receive copies of the values.

    :param entries: The entries of the state, with values in frozen form.
    """

    __slots__ = ("_entries",)

    def __init__(self, state: RegisteredState, operator: str, entries: dict[K, Any]) -> None:
        super().__init__(state, operator)
        self._entries = entries

    def get(self, key: K) -> V | None:
        """Return a copy of the value of a key, or ``None`` if there is no entry."""
        value: V | None = self._freezing.thawed(self._entries.get(key))
        return value

    def contains(self, key: K) -> bool:
        """Return whether the key has an entry."""
        return key in self._entries

    def immutable_entries(self) -> Iterable[tuple[K, V]]:
        """Return the current entries with copies of the values."""
        return tuple((key, self._freezing.thawed(value)) for key, value in self._entries.items())

    def put(self, key: K, value: V) -> None:
        """Raise a ``CoordinatorError``."""
        raise _read_only("put")

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Raise a ``CoordinatorError``."""
        raise _read_only("put_all")

    def remove(self, key: K) -> None:
        """Raise a ``CoordinatorError``."""
        raise _read_only("remove")

    def clear(self) -> None:
        """Raise a ``CoordinatorError``."""
        raise _read_only("clear")


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """
    Map that every subtask must update in the same way from the broadcast elements; equality is not checked.

    The state holds its own copies of the entries, and readers receive copies of the values.

    The methods that set values raise ``InvalidConfigurationError`` if a key is ``None``, and ``UnsupportedStateError``
    if a key or a value does not fit the type of the state. After an error the map is unchanged.
    """

    __slots__ = ("_own_key",)

    def __init__(self, state: RegisteredState, operator: str, entries: dict[K, Any]) -> None:
        super().__init__(state, operator, entries)
        key_serializer: Any = state.key_serializer
        self._own_key = own_user_key_with(key_serializer)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        own_key, frozen = self._frozen(key, value)
        self._entries[own_key] = frozen

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Set the values of several keys."""
        self._entries |= dict([self._frozen(key, value) for key, value in entries.items()])

    def remove(self, key: K) -> None:
        """Remove the entry of a key, if there is one."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove all entries; the state stays registered."""
        self._entries.clear()

    def entries(self) -> Iterator[tuple[K, V]]:
        """Return the current entries with copies of the values."""
        return iter(self.immutable_entries())

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Return an iterator over the current entries with copies of the values."""
        return self.entries()

    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        """Return a read-only view for functions of elements that are not broadcast."""
        return ReadOnlyBroadcastState(self._state, self._operator, self._entries)

    def frozen(self) -> tuple[tuple[K, Any], ...]:
        """Return the current entries with values in frozen form. Called by the backend."""
        return tuple(self._entries.items())

    def _frozen(self, key: K, value: V) -> tuple[K, Any]:
        if key is None:
            raise InvalidConfigurationError(
                "Expected a key of a broadcast state, found None; use another key for missing values."
            )
        try:
            return self._own_key(key), None if value is None else self._freezing.freeze(value)
        except UnsupportedStateError as error:
            raise self._misfit(error) from error


def _read_only(method: str) -> CoordinatorError:
    return CoordinatorError(
        f"Expected read access to broadcast state from elements that are not broadcast, found a call of {method}; "
        "update the state in the function of the broadcast elements, which runs in all subtasks."
    )


RAW_STATE_NAME = "_default_"
"""Name of raw state in its handle, as in Flink."""
LENGTH = struct.Struct(">Q")
"""Length prefix of a partition."""


class RawOperatorStateOutput:
    """
    Writer of raw operator state.

    Partitions are redistributed over the subtasks like the elements of a list state. The first ``write`` starts a
    partition if there is none. A partition is buffered in memory until it ends.

    The methods raise ``CoordinatorError`` if the output is closed.
    """

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self._stream = stream
        self._offsets: list[int] = []
        self._partition: bytearray | None = None
        self._is_closed = False

    def start_new_partition(self) -> None:
        """
        End the current partition and start the next one.

        :raises StorageError: if the storage fails.
        """
        self._require_open()
        self._end_partition()
        self._partition = bytearray()

    def write(self, data: bytes) -> None:
        """Append bytes to the current partition."""
        self._require_open()
        if self._partition is None:
            self._partition = bytearray()
        self._partition += data

    def close_and_get_handle(self) -> OperatorStateHandle | None:
        """
        Persist the partitions and return their handle, or ``None`` if there are no partitions.

        :raises StorageError: if the storage fails.
        """
        self._require_open()
        self._end_partition()
        self._is_closed = True
        stream = self._stream.close_and_get_handle()
        if stream is None:
            return None
        meta = OperatorStateMeta(offsets=tuple(self._offsets), mode=DistributionMode.SPLIT_DISTRIBUTE)
        return OperatorStateHandle(states=((RAW_STATE_NAME, meta),), stream=stream)

    def close(self) -> None:
        """Close the stream, and delete its file unless a handle was returned."""
        self._is_closed = True
        self._stream.close()

    def _end_partition(self) -> None:
        if self._partition is None:
            return
        self._offsets.append(self._stream.get_pos())
        self._stream.write(LENGTH.pack(len(self._partition)))
        self._stream.write(bytes(self._partition))
        self._partition = None

    def _require_open(self) -> None:
        if self._is_closed:
            raise CoordinatorError(
                "Expected raw state to be written during snapshot_state, found it closed; "
                "write before snapshot_state returns."
            )


class StatePartitionStreamProvider:
    """
    Provider of the stream of one partition.

    :param created: The stream, or the error of its creation if the partition could not be read.
    """

    def __init__(self, created: BinaryIO | Exception) -> None:
        self._created = created

    def get_stream(self) -> BinaryIO:
        """Return the stream at the start of the partition, or raise the error of its creation."""
        if isinstance(self._created, Exception):
            raise self._created
        return self._created


def raw_operator_state_inputs(
    storage: CheckpointStorage, handles: Iterable[OperatorStateHandle]
) -> Iterator[StatePartitionStreamProvider]:
    """
    Yield the partitions of handles.

    If a partition cannot be read, its provider raises the error in ``get_stream``.
    """
    for handle in handles:
        yield from _partitions_of_handle(storage, handle)


def _partitions_of_handle(
    storage: CheckpointStorage, handle: OperatorStateHandle
) -> Iterator[StatePartitionStreamProvider]:
    offsets = [offset for _, meta in handle.states for offset in meta.offsets]
    try:
        data = read_state(storage, handle.stream)
    except Exception as error:
        yield from (StatePartitionStreamProvider(error) for _ in offsets)
        return
    for offset in offsets:
        yield _partition(data, offset)


def _partition(data: bytes, offset: int) -> StatePartitionStreamProvider:
    begin = offset + LENGTH.size
    prefix = data[offset:begin]
    end = begin + LENGTH.unpack(prefix)[0] if len(prefix) == LENGTH.size else -1
    if not begin <= end <= len(data):
        return StatePartitionStreamProvider(
            CorruptStateError(
                f"Expected a partition of raw state at byte {offset}, found none; restore from another checkpoint."
            )
        )
    return StatePartitionStreamProvider(io.BytesIO(data[begin:end]))
