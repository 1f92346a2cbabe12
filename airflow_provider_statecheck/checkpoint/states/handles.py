"""State handles of a checkpoint: where keyed and operator state is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


class CheckpointedStateScope(StrEnum):
    """Whether several checkpoints may name a file."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class ByteStreamStateHandle:
    """State that is small enough to travel in the handle itself."""

    name: str
    """Tells it from others of equal bytes; unique."""
    data: bytes

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class FileStateHandle:
    """State in a file of its own."""

    uri: str
    size: int
    sha256: str = ""
    """Empty where nobody computed it."""

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        return self.size


@dataclass(frozen=True, slots=True)
class SegmentFileStateHandle:
    """State in a part of a file that holds that of others too."""

    uri: str
    start: int
    length: int
    scope: CheckpointedStateScope
    logical_id: str
    """Identifies the segment among all of the file merging."""
    sha256: str = ""

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        return self.length


@dataclass(frozen=True, slots=True)
class PlaceholderStateHandle:
    """Stands for state that an earlier checkpoint uploaded and the coordinator knows."""

    state_size: int = 0


StreamStateHandle = ByteStreamStateHandle | FileStateHandle | SegmentFileStateHandle | PlaceholderStateHandle
"""State as one stream of bytes."""


@dataclass(frozen=True, slots=True)
class KeyGroupsStateHandle:
    """Keyed state of some key groups, one after the other in one stream."""

    key_group_range: KeyGroupRange
    offsets: tuple[int, ...]
    """Where each key group of the range begins; -1 for an empty one."""
    stream: StreamStateHandle

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        return self.stream.state_size


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalKeyedStateHandle:
    """Keyed state of which a part was uploaded by earlier checkpoints."""

    backend_id: str
    key_group_range: KeyGroupRange
    checkpoint_id: int
    shared: tuple[tuple[str, StreamStateHandle], ...] = ()
    """Files that later checkpoints may name, by their path in the backend."""
    private: tuple[tuple[str, StreamStateHandle], ...] = ()
    meta: StreamStateHandle | None = None

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are, uploaded now or before."""
        streams = [handle for _, handle in (*self.shared, *self.private)]
        return sum(s.state_size for s in streams) + (self.meta.state_size if self.meta else 0)


KeyedStateHandle = KeyGroupsStateHandle | IncrementalKeyedStateHandle


class DistributionMode(StrEnum):
    """How operator state goes to the subtasks of a restored operator."""

    SPLIT_DISTRIBUTE = "split_distribute"
    """Its elements are dealt out."""
    UNION = "union"
    """Every subtask gets all elements."""
    BROADCAST = "broadcast"
    """Every subtask gets a copy of what each of them has."""


@dataclass(frozen=True, slots=True)
class OperatorStateMeta:
    """Where the elements of one named operator state are in the stream: rows of managed state, bytes of raw state."""

    offsets: tuple[int, ...]
    mode: DistributionMode


@dataclass(frozen=True, slots=True)
class OperatorStateHandle:
    """Operator state of one subtask: named lists in one stream."""

    states: tuple[tuple[str, OperatorStateMeta], ...]
    stream: StreamStateHandle

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        return self.stream.state_size


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSubtaskState:
    """What one subtask saved."""

    managed_operator: tuple[OperatorStateHandle, ...] = ()
    raw_operator: tuple[OperatorStateHandle, ...] = ()
    managed_keyed: tuple[KeyedStateHandle, ...] = ()
    raw_keyed: tuple[KeyedStateHandle, ...] = ()

    @property
    def has_state(self) -> bool:
        """Tell whether there is any state."""
        return bool(self.managed_operator or self.raw_operator or self.managed_keyed or self.raw_keyed)

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        handles = (*self.managed_operator, *self.raw_operator, *self.managed_keyed, *self.raw_keyed)
        return sum(handle.state_size for handle in handles)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """
    What all subtasks of an operator saved; a subtask without state has no entry.

    :raises InvalidConfigurationError: for a subtask that the operator does not have, or any of one that is fully finished.
    """

    operator_id: OperatorId
    uid: str
    name: str = ""
    parallelism: int
    max_parallelism: int
    subtask_states: dict[int, OperatorSubtaskState] = field(default_factory=dict)
    coordinator_state: StreamStateHandle | None = None
    is_fully_finished: bool = False
    """Whether all its subtasks had come to their end; then none of them has state."""

    def __post_init__(self) -> None:
        for index in self.subtask_states:
            self._require_index(index)

    @property
    def has_state(self) -> bool:
        """Tell whether a subtask or its coordinator has any state."""
        return self.coordinator_state is not None or any(state.has_state for state in self.subtask_states.values())

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        own = self.coordinator_state.state_size if self.coordinator_state else 0
        return own + sum(state.state_size for state in self.subtask_states.values())

    def put_state(self, index: int, state: OperatorSubtaskState) -> OperatorState:
        """
        Return the operator with the state of one more subtask, or another state of one that it has.

        :raises InvalidConfigurationError: for a subtask that the operator does not have, or if it is fully finished.
        """
        return replace(self, subtask_states=self.subtask_states | {index: state})

    def _require_index(self, index: int) -> None:
        if self.is_fully_finished:
            raise InvalidConfigurationError(
                f"Expected no state of subtasks of the fully finished operator {self.uid!r}, found some of subtask {index}."
            )
        if not 0 <= index < self.parallelism:
            raise InvalidConfigurationError(
                f"Expected a subtask of operator {self.uid!r} from 0 to {self.parallelism - 1}, found {index}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterState:
    """What a master hook saved."""

    name: str
    version: int
    data: bytes


def streams_of(state: OperatorState) -> Iterator[StreamStateHandle]:
    """Return every stream that an operator's state names, as often as it is named."""
    if state.coordinator_state is not None:
        yield state.coordinator_state
    for subtask in state.subtask_states.values():
        for handle in (*subtask.managed_operator, *subtask.raw_operator, *subtask.managed_keyed, *subtask.raw_keyed):
            yield from _streams_of_handle(handle)


def _streams_of_handle(handle: KeyedStateHandle | OperatorStateHandle) -> Iterator[StreamStateHandle]:
    if not isinstance(handle, IncrementalKeyedStateHandle):
        yield handle.stream
        return
    for _, stream in (*handle.shared, *handle.private):
        yield stream
    if handle.meta is not None:
        yield handle.meta


Move = Callable[[StreamStateHandle], StreamStateHandle]
"""Gives the stream that takes the place of another."""


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
        raw_keyed=tuple(_keyed(h, move) for h in state.raw_keyed),
    )


def _keyed(handle: KeyedStateHandle, move: Move) -> KeyedStateHandle:
    if isinstance(handle, KeyGroupsStateHandle):
        return replace(handle, stream=move(handle.stream))
    return replace(
        handle,
        shared=tuple((path, move(stream)) for path, stream in handle.shared),
        private=tuple((path, move(stream)) for path, stream in handle.private),
        meta=None if handle.meta is None else move(handle.meta),
    )
