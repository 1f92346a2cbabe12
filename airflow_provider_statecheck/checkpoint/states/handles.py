"""
Handles of the keyed and operator state in a checkpoint, and ranges of key groups.

The number of key groups is the maximum parallelism, and each subtask owns a range of them. The ranges are disjoint,
ordered, cover all key groups and differ in size by at most one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Self

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

MAX_PARALLELISM_BOUND = 1 << 15
"""Maximum number of key groups."""
_MIN_DEFAULT = 128


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """
    Key groups from ``start`` to ``end``, both inclusive; a range whose start is greater than its end is empty.

    :raises InvalidConfigurationError: for a negative start.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start > self.end:
            object.__setattr__(self, "start", 0)
            object.__setattr__(self, "end", -1)
        elif self.start < 0:
            raise InvalidConfigurationError(f"Expected a range of key groups from 0 on, found {self.start}.")

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups that are in both ranges."""
        return KeyGroupRange(max(self.start, other.start), min(self.end, other.end))


def require_parallelism(parallelism: int, max_parallelism: int = MAX_PARALLELISM_BOUND) -> None:
    """
    Raise an error for an invalid parallelism or maximum parallelism.

    :raises InvalidConfigurationError: unless 1 <= parallelism <= max_parallelism <= 32768.
    """
    if not 1 <= parallelism <= max_parallelism <= MAX_PARALLELISM_BOUND:
        raise InvalidConfigurationError(
            f"Expected 1 <= parallelism <= max_parallelism <= {MAX_PARALLELISM_BOUND}, found parallelism {parallelism} "
            f"and max_parallelism {max_parallelism}."
        )


def key_group_range_of(index: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """
    Return the key groups that a subtask owns.

    :raises InvalidConfigurationError: for a parallelism or an index out of bounds.
    """
    require_parallelism(parallelism, max_parallelism)
    if not 0 <= index < parallelism:
        raise InvalidConfigurationError(f"Expected the index of a subtask from 0 to {parallelism - 1}, found {index}.")
    start = -(-index * max_parallelism // parallelism)
    return KeyGroupRange(start, ((index + 1) * max_parallelism - 1) // parallelism)


def key_group_ranges(parallelism: int, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """
    Return the key groups of each subtask.

    :raises InvalidConfigurationError: for a parallelism out of bounds.
    """
    require_parallelism(parallelism, max_parallelism)
    return tuple(key_group_range_of(index, parallelism, max_parallelism) for index in range(parallelism))


def default_max_parallelism(parallelism: int) -> int:
    """
    Return the default number of key groups: 1.5 times the parallelism, rounded up to a power of two, at least 128.

    :raises InvalidConfigurationError: for a parallelism out of bounds.
    """
    require_parallelism(parallelism)
    scaled = parallelism + parallelism // 2
    return min(max(1 << (scaled - 1).bit_length(), _MIN_DEFAULT), MAX_PARALLELISM_BOUND)


class CheckpointedStateScope(StrEnum):
    """Scope of a file: one checkpoint, or several."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class ByteStreamStateHandle:
    """Small state that is stored in the handle."""

    TAG: ClassVar[str] = "bytes"
    name: str
    """Unique name, which distinguishes handles with equal data."""
    data: bytes

    @property
    def state_size(self) -> int:
        """The size of the state in bytes."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class FileStateHandle:
    """State in a separate file."""

    TAG: ClassVar[str] = "file"
    uri: str
    size: int
    sha256: str = ""
    """Checksum; empty if it was not computed."""

    @classmethod
    def of(cls, uri: str, data: bytes) -> Self:
        """Return the handle of a file with these bytes."""
        return cls(uri, len(data), hashlib.sha256(data).hexdigest())

    @property
    def state_size(self) -> int:
        """The size of the state in bytes."""
        return self.size


@dataclass(frozen=True, slots=True)
class SegmentFileStateHandle:
    """State in a segment of a merged file."""

    TAG: ClassVar[str] = "segment"
    uri: str
    start: int
    length: int
    scope: CheckpointedStateScope
    logical_id: str
    """Unique id of the segment."""
    sha256: str = ""
    file_size: int = 0
    """Size of the whole file in bytes; 0 if it is unknown."""

    @property
    def state_size(self) -> int:
        """The size of the state in bytes."""
        return self.length


StreamStateHandle = ByteStreamStateHandle | FileStateHandle | SegmentFileStateHandle
"""State as one stream of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedStateHandle:
    """Keyed state in files of its checkpoint and of earlier ones."""

    backend_id: str
    key_group_range: KeyGroupRange
    checkpoint_id: int
    shared: tuple[tuple[str, StreamStateHandle], ...] = ()
    """Files that later checkpoints may reference, by their path in the backend."""
    private: tuple[tuple[str, StreamStateHandle], ...] = ()
    """Files of this checkpoint alone, by their path in the backend."""
    meta: StreamStateHandle | None = None

    @property
    def state_size(self) -> int:
        """The size of the state in bytes, including files of earlier checkpoints."""
        streams = [handle for _, handle in (*self.shared, *self.private)]
        return sum(s.state_size for s in streams) + (self.meta.state_size if self.meta else 0)


class DistributionMode(StrEnum):
    """Distribution of operator state to the subtasks of a restored operator."""

    SPLIT_DISTRIBUTE = "split_distribute"
    """The elements are split between the subtasks."""
    UNION = "union"
    """Every subtask gets all elements."""
    BROADCAST = "broadcast"
    """All subtasks have equal state, and each gets a copy."""


@dataclass(frozen=True, slots=True)
class OperatorStateMeta:
    """Offsets of the elements of a named operator state: rows for managed state, bytes for raw state."""

    offsets: tuple[int, ...]
    mode: DistributionMode


@dataclass(frozen=True, slots=True)
class OperatorStateHandle:
    """Operator state of one subtask: named lists in one stream."""

    states: tuple[tuple[str, OperatorStateMeta], ...]
    stream: StreamStateHandle

    @property
    def state_size(self) -> int:
        """The size of the state in bytes."""
        return self.stream.state_size


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSubtaskState:
    """State of one subtask."""

    managed_operator: tuple[OperatorStateHandle, ...] = ()
    raw_operator: tuple[OperatorStateHandle, ...] = ()
    managed_keyed: tuple[KeyedStateHandle, ...] = ()

    @property
    def has_state(self) -> bool:
        """Whether the subtask has state."""
        return bool(self.handles)

    @property
    def state_size(self) -> int:
        """The size of the state in bytes."""
        return sum(handle.state_size for handle in self.handles)

    @property
    def handles(self) -> tuple[KeyedStateHandle | OperatorStateHandle, ...]:
        """The handles of all state."""
        return (*self.managed_operator, *self.raw_operator, *self.managed_keyed)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """
    State of all subtasks of an operator; a subtask without state has no entry.

    :raises InvalidConfigurationError: for a subtask index out of range, or any subtask of a fully finished operator.
    """

    operator_id: OperatorId
    uid: str
    name: str = ""
    parallelism: int
    max_parallelism: int
    subtask_states: dict[int, OperatorSubtaskState] = field(default_factory=dict)
    coordinator_state: StreamStateHandle | None = None
    is_fully_finished: bool = False
    """Whether all subtasks had finished; a fully finished operator has no subtask state."""

    def __post_init__(self) -> None:
        for index in self.subtask_states:
            self._require_index(index)

    @property
    def has_state(self) -> bool:
        """Whether a subtask or the operator coordinator has state."""
        return self.coordinator_state is not None or any(state.has_state for state in self.subtask_states.values())

    @property
    def state_size(self) -> int:
        """The size of the state in bytes. A file with state of several subtasks counts once."""
        return sum(stream.state_size for stream in set(streams_of(self)))

    def put_state(self, index: int, state: OperatorSubtaskState) -> OperatorState:
        """
        Return the operator state with an added or replaced subtask state.

        :raises InvalidConfigurationError: for a subtask index out of range, or if the operator is fully finished.
        """
        return replace(self, subtask_states=self.subtask_states | {index: state})

    def _require_index(self, index: int) -> None:
        if self.is_fully_finished:
            raise InvalidConfigurationError(
                f"Expected no state of subtasks of the fully finished operator {self.uid!r}, found some of subtask "
                f"{index}."
            )
        if not 0 <= index < self.parallelism:
            raise InvalidConfigurationError(
                f"Expected a subtask of operator {self.uid!r} from 0 to {self.parallelism - 1}, found {index}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterState:
    """State of a master hook."""

    name: str
    version: int
    data: bytes


def streams_of(state: OperatorState) -> Iterator[StreamStateHandle]:
    """Yield every stream that an operator's state references, with duplicates."""
    if state.coordinator_state is not None:
        yield state.coordinator_state
    for subtask in state.subtask_states.values():
        yield from streams_of_subtask(subtask)


def streams_of_subtask(state: OperatorSubtaskState) -> Iterator[StreamStateHandle]:
    """Yield every stream that a subtask's state references, with duplicates."""
    for handle in state.handles:
        yield from streams_of_handle(handle)


def streams_of_handle(handle: KeyedStateHandle | OperatorStateHandle) -> Iterator[StreamStateHandle]:
    """Yield every stream that a handle references."""
    if isinstance(handle, OperatorStateHandle):
        yield handle.stream
        return
    for _, stream in (*handle.shared, *handle.private):
        yield stream
    if handle.meta is not None:
        yield handle.meta


Move = Callable[[StreamStateHandle], StreamStateHandle]
"""Function that returns the replacement of a stream."""


def with_streams(state: OperatorState, move: Move) -> OperatorState:
    """Return an operator's state with every stream replaced."""
    own = state.coordinator_state
    return replace(
        state,
        coordinator_state=None if own is None else move(own),
        subtask_states={i: _subtask(subtask, move) for i, subtask in state.subtask_states.items()},
    )


def _subtask(state: OperatorSubtaskState, move: Move) -> OperatorSubtaskState:
    return OperatorSubtaskState(
        managed_operator=tuple(replace(h, stream=move(h.stream)) for h in state.managed_operator),
        raw_operator=tuple(replace(h, stream=move(h.stream)) for h in state.raw_operator),
        managed_keyed=tuple(_keyed(h, move) for h in state.managed_keyed),
    )


def _keyed(handle: KeyedStateHandle, move: Move) -> KeyedStateHandle:
    return replace(
        handle,
        shared=tuple((path, move(stream)) for path, stream in handle.shared),
        private=tuple((path, move(stream)) for path, stream in handle.private),
        meta=None if handle.meta is None else move(handle.meta),
    )
