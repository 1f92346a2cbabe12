"""Where state lies: plain values, which whoever has the storage can open or delete."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange


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
