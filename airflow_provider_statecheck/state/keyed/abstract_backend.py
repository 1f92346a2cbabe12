"""Base class of keyed state backends, the store of user functions, and contract of snapshots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateMigrationError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keyed.expiry import TimeToLive, TtlCells, TtlEntries
from airflow_provider_statecheck.state.keyed.map_state import MapState
from airflow_provider_statecheck.state.keyed.queryable_names import NamedState, TaskKvStateRegistry
from airflow_provider_statecheck.state.keyed.registered_state import (
    NO_KEY_GROUP,
    VOID_NAMESPACE,
    KeyContext,
    MapTable,
    RegisteredState,
    StateTable,
)
from airflow_provider_statecheck.state.keyed.states import (
    AggregatingState,
    BatchState,
    DefaultedValueState,
    FoldingState,
    ListState,
    ReducingState,
    State,
    TtlListState,
    ValueState,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import StateSchema, compatibility_of
from airflow_provider_statecheck.state.serializers.serializer import (
    Outcome,
    TypeSerializer,
    describe,
    serializer_from_now_on,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
    from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory

T = TypeVar("T")
Acc = TypeVar("Acc")
Handle = TypeVar("Handle")


_SHOWN_KEY = 100
"""Characters of a key in an error."""


@dataclass(frozen=True, slots=True)
class StateSize:
    """Number of keys and size of one state in a snapshot, as far as the backend knows them."""

    name: str
    keys: int | None = None
    """Number of keys, counted once for each namespace; ``None`` if only a scan could tell."""
    size_bytes: int | None = None
    """Size of the files of the state; ``None`` if it shares a file with other states."""


@dataclass(frozen=True, slots=True)
class SnapshotResult(Generic[Handle]):
    """Result of a snapshot."""

    handle: Handle | None = None
    """Handle of the snapshot; ``None`` if there was no state."""
    new_bytes: int = 0
    """Bytes written by this snapshot, without the files of earlier snapshots."""
    sizes: tuple[StateSize, ...] = ()
    """Sizes of single states, for display; a backend may omit them."""

    @classmethod
    def empty(cls) -> SnapshotResult[Handle]:
        """Return the result of a snapshot without state."""
        return cls()


class StateSnapshot(Protocol[Handle]):
    """Captured state that is not written yet. Later changes are not included."""

    def run(self) -> SnapshotResult[Handle]:
        """
        Write the state. Called once, possibly in another thread.

        :raises StorageError: if the storage fails; written files are deleted.
        :raises SnapshotCancelledError: if the snapshot was cancelled.
        """

    def cancel(self) -> None:
        """Stop the write and delete its files. Has no effect after the end of the write."""


class KeyedStateStore:
    """
    Registry of the keyed states of a function.

    The first call with a descriptor registers its state, and later calls return the same state. Each method raises
    ``InvalidConfigurationError`` for a descriptor of another kind or a name that belongs to another kind of state, and
    ``StateMigrationError`` if the descriptor is incompatible with restored state.

    :param state_of: Returns the state of a descriptor for the current key.
    """

    def __init__(self, state_of: Callable[[StateDescriptor[Any]], State]) -> None:
        self.state_of = state_of

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return a state with one value per key."""
        return cast("ValueState[T]", self._state(descriptor, StateKind.VALUE))

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a state with one list per key."""
        return cast("ListState[T]", self._state(descriptor, StateKind.LIST))

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return a state that reduces added values."""
        return cast("ReducingState[T]", self._state(descriptor, StateKind.REDUCING))

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Acc]) -> AggregatingState[Any, Any]:
        """Return a state that aggregates added values."""
        return cast("AggregatingState[Any, Any]", self._state(descriptor, StateKind.AGGREGATING))

    def get_folding_state(self, descriptor: FoldingStateDescriptor[Acc]) -> FoldingState[Any, Acc]:
        """Return a state that folds added values."""
        return cast("FoldingState[Any, Acc]", self._state(descriptor, StateKind.FOLDING))

    def get_map_state(self, descriptor: MapStateDescriptor[T]) -> MapState[Any, T]:
        """Return a state with one map per key."""
        return cast("MapState[Any, T]", self._state(descriptor, StateKind.MAP))

    def _state(self, descriptor: StateDescriptor[Any], kind: StateKind) -> State:
        if descriptor.kind is not kind:
            raise InvalidConfigurationError(
                f"Expected the descriptor of a {kind} state, found the {descriptor.kind} state {descriptor.name}; call "
                "the method of its kind."
            )
        return self.state_of(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnvironment:
    """What a backend needs of the attempt in which it runs."""

    storage: CheckpointStorage
    """Storage of the restored state."""
    now_ms: Callable[[], int]
    """
    Returns the time for expiry in milliseconds; by default the logical date of the run, so that a rerun expires the
    same values.
    """
    operator_name: str = ""
    """Operator name for errors."""
    schemas: OperatorSchemas | None = None
    """Schemas of the restored state of all subtasks, if any."""
    subtask: int = 0
    """Index of the subtask."""


class AbstractKeyedStateBackend(ABC):
    """
    Keyed state of one subtask.

    A backend belongs to one thread. Only the snapshots that it returns may run in another one.

    :param number_of_key_groups: Maximum parallelism of the operator.
    :param key_group_range: Key groups of the subtask.
    :param kv_registry: Registry of the queryable names of states; by default one of this backend alone.
    :raises InvalidConfigurationError: if the range exceeds the number of key groups.
    """

    def __init__(
        self,
        environment: StateEnvironment,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_registry: TaskKvStateRegistry | None = None,
    ) -> None:
        if key_group_range.end >= number_of_key_groups:
            raise InvalidConfigurationError(
                f"Expected key groups below {number_of_key_groups}, found the range {key_group_range.start} to "
                f"{key_group_range.end}; pass a range below the maximum parallelism."
            )
        self.key_serializer = key_serializer
        self.number_of_key_groups = number_of_key_groups
        self.key_group_range = key_group_range
        self.operator_name = environment.operator_name
        self.store = KeyedStateStore(self.get_partitioned_state)
        self._now_ms = environment.now_ms
        self._kv_registry = kv_registry or TaskKvStateRegistry()
        # Cached, because set_current_key reads them for each element.
        self._first, self._last = key_group_range.start, key_group_range.end
        self._is_composite = len(key_serializer.fields) > 1
        self._context = KeyContext()
        self._registered: dict[str, RegisteredState] = {}
        self._tables: dict[str, Any] = {}
        """Tables of the registered states, as :meth:`_create_table` returned them."""
        self._states: dict[str, tuple[StateDescriptor[Any], State]] = {}

    @property
    def current_key(self) -> Any:
        """
        The current key.

        :raises CoordinatorError: if there is no current key.
        """
        self._context.require()
        return self._context.key

    @property
    def key_in_progress(self) -> str:
        """The text of the current key, shortened; empty without one."""
        if self._context.key_group < 0:
            return ""
        return f"{self._context.key!r:.{_SHOWN_KEY}}"

    def set_current_key(self, key: Any, key_group: int | None = None) -> None:
        """
        Set the current key of all states.

        :param key_group: Key group of the key, if known; the key must then be normalized.
        :raises InvalidConfigurationError: if the key is null or contains null, or belongs to another subtask.
        :raises UnsupportedStateError: if the key has another type.
        """
        if key is None or self._is_composite:
            self.key_serializer.require(key)
        if key_group is None:
            key = self.key_serializer.normalized(key)
            key_group = self.key_serializer.key_group_of_normalized(key, self.number_of_key_groups)
        if not self._first <= key_group <= self._last:
            raise InvalidConfigurationError(
                f"Expected a key of the key groups {self._first} to {self._last}, found {key!r} of key group "
                f"{key_group}; partition the keys by key group."
            )
        context = self._context
        context.key = key
        context.key_group = key_group

    def unset_current_key(self) -> None:
        """Unset the current key. State cannot be accessed until a key is set."""
        self._context.key = None
        self._context.key_group = NO_KEY_GROUP

    def get_partitioned_state(self, descriptor: StateDescriptor[Any], namespace: str = VOID_NAMESPACE) -> State:
        """
        Return the state of a descriptor for the current key. The first call registers it.

        :raises InvalidConfigurationError: if the namespace is ``None``, or the name belongs to another kind of state.
        :raises StateMigrationError: if the descriptor is incompatible with restored state.
        """
        known = self._states.get(descriptor.name)
        if known is not None and known[0] is descriptor and namespace == VOID_NAMESPACE:
            return known[1]
        _require_namespace(namespace)
        state = self._register(descriptor)
        created = self._created(descriptor, state, namespace)
        if namespace == VOID_NAMESPACE:
            self._states[state.name] = (descriptor, created)
        return created

    def merge_namespaces(self, descriptor: StateDescriptor[Any], target: str, sources: Sequence[str]) -> None:
        """
        Merge the state of the current key in the source namespaces into the target namespace.

        :raises InvalidConfigurationError: if a namespace is ``None``, or the state cannot be merged.
        :raises CoordinatorError: if there is no current key.
        """
        for namespace in (target, *sources):
            _require_namespace(namespace)
        merged: Any = self.get_partitioned_state(descriptor, target)
        if not isinstance(merged, ListState | ReducingState | AggregatingState):
            raise InvalidConfigurationError(
                f"Expected a list, reducing or aggregating state, found {type(merged).__name__}; others cannot be "
                "merged."
            )
        for source in dict.fromkeys(sources):
            if source != target:
                merged.merge_from(cast(Any, self.get_partitioned_state(descriptor, source)))

    def get_keys(self, name: str, namespace: str = VOID_NAMESPACE) -> Iterator[Any]:
        """
        Return the distinct keys that have state under a name, which may be expired.

        :raises InvalidConfigurationError: if the namespace is ``None``.
        """
        _require_namespace(namespace)
        table = self._tables.get(name)
        return iter(()) if table is None else table.keys(namespace)

    def apply_to_all_keys(
        self, namespace: str, descriptor: StateDescriptor[Any], function: Callable[[Any, State], None]
    ) -> None:
        """
        Call a function for each key of a state, with that key as the current key.

        :raises InvalidConfigurationError: if the namespace is ``None``.
        """
        state = self.get_partitioned_state(descriptor, namespace)
        before = self._context.key, self._context.key_group
        try:
            for key in self.get_keys(descriptor.name, namespace):
                self.set_current_key(key)
                function(key, state)
        finally:
            self._context.key, self._context.key_group = before

    def batch_state(self, descriptor: StateDescriptor[Any]) -> BatchState:
        """
        Return the state of a descriptor for reads and writes of many keys at once, without a namespace.

        :raises InvalidConfigurationError: for a list, map or folding state.
        """
        self.get_partitioned_state(descriptor)
        state = self._registered[descriptor.name]
        return BatchState(descriptor, state, self._unexpired(state), self.key_group_range, self.operator_name)

    def scan(self, descriptor: StateDescriptor[Any]) -> Iterator[tuple[KeyBatch, Any]]:
        """
        Yield all keys of a state without a namespace, in batches of keys and an Arrow array of their values.

        :raises InvalidConfigurationError: for a list, map or folding state.
        """
        state, by_group = self.batch_state(descriptor), dict[int, list[Any]]()
        for key in self.get_keys(descriptor.name):
            by_group.setdefault(self.key_serializer.key_group_of(key, self.number_of_key_groups), []).append(key)
        for group, keys in sorted(by_group.items()):
            batch = KeyBatch(pa.array([group] * len(keys), pa.int32()), self.key_serializer.to_columns(keys))
            yield batch, state.get(batch)

    def registered_states(self) -> tuple[RegisteredState, ...]:
        """Return the states with a descriptor, in the order of registration."""
        return tuple(self._registered.values())

    def schemas(self) -> tuple[StateSchema, ...]:
        """Return the schemas of all states, including restored states without a descriptor."""
        return (*(state.schema() for state in self._registered.values()), *self._unclaimed().values())

    def prefetch(self, keys: KeyBatch) -> None:  # noqa: B027
        """
        Notify the backend that keys are accessed next, so that it can read all of their registered states at once.
        """

    def advance_to(self, key_group: int) -> None:  # noqa: B027
        """Notify the backend that keys of lower key groups are not accessed before the next snapshot."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:  # noqa: B027
        """Notify the backend of a completed checkpoint, whose files later snapshots may reference."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027
        """Notify the backend of an aborted checkpoint, whose files later snapshots must not reference."""

    @abstractmethod
    def num_entries(self) -> int:
        """Return the number of pairs of key and namespace with state, summed over all states. Reads all state."""

    @abstractmethod
    def snapshot(
        self, checkpoint_id: int, timestamp: int, streams: CheckpointStreamFactory
    ) -> StateSnapshot[KeyedStateHandle]:
        """
        Capture the current state. The returned snapshot writes it without later changes.

        :param timestamp: Trigger time of the checkpoint in milliseconds since the epoch.
        """

    @abstractmethod
    def _unclaimed(self) -> dict[str, StateSchema]:
        """Return the schemas of the restored states without a table, by name."""

    @abstractmethod
    def _create_table(self, state: RegisteredState) -> StateTable | MapTable:
        """
        Return the table of a state, filled with the restored state of its name.

        :raises StateMigrationError: if the restored state is incompatible.
        """

    def dispose(self) -> None:
        """Release the state and cancel running snapshots; idempotent."""
        self.unset_current_key()
        self._states.clear()
        self._tables.clear()
        self._registered.clear()

    def _register(self, descriptor: StateDescriptor[Any]) -> RegisteredState:
        wanted = RegisteredState.of(descriptor)
        known = self._registered.get(wanted.name)
        if known is not None:
            require_same_state(known, wanted)
            return known
        if wanted.queryable_name is not None:
            self._kv_registry.register_kv_state(wanted.queryable_name, NamedState(self.operator_name, wanted.name))
        restored = self._unclaimed().get(wanted.name)
        if restored is not None:
            wanted = reconfigured(wanted, restored)
        self._tables[wanted.name] = self._create_table(wanted)
        self._registered[wanted.name] = wanted
        return wanted

    def _created(self, descriptor: StateDescriptor[Any], state: RegisteredState, namespace: str) -> State:
        """Return a new state of a descriptor over the table of its name."""
        table, of_key = self._unexpired(state), (self._context, namespace, state, descriptor, self.operator_name)
        if state.ttl is not None and state.kind is StateKind.LIST:
            return TtlListState(table, *of_key, time_to_live=TimeToLive(state.ttl, self._now_ms))
        has_default = isinstance(descriptor, ValueStateDescriptor) and descriptor.default is not None
        kind = DefaultedValueState if has_default else _STATES[state.kind]
        return kind(table, *of_key)

    def _unexpired(self, state: RegisteredState) -> Any:
        """Return the table of a state, which hides expired cells but not expired elements of lists."""
        table = self._tables[state.name]
        if state.ttl is None or state.kind is StateKind.LIST:
            return table
        ttl = TimeToLive(state.ttl, self._now_ms)
        return TtlEntries(table, ttl) if state.is_map else TtlCells(table, ttl)


def _require_namespace(namespace: str | None) -> None:
    if namespace is None:
        raise InvalidConfigurationError(
            "Expected a namespace, found None; use VOID_NAMESPACE for state without a namespace."
        )


_STATES: Mapping[StateKind, type[State]] = {
    StateKind.VALUE: ValueState,
    StateKind.LIST: ListState,
    StateKind.REDUCING: ReducingState,
    StateKind.AGGREGATING: AggregatingState,
    StateKind.FOLDING: FoldingState,
    StateKind.MAP: MapState,
}


_SAME = (Outcome.COMPATIBLE_AS_IS, Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER)


def require_same_state(known: RegisteredState, wanted: RegisteredState) -> None:
    """
    Require a descriptor that is equal to the first one of its name.

    :raises InvalidConfigurationError: for another kind, other types or another time to live.
    """
    difference = _difference(known, wanted)
    if difference:
        raise InvalidConfigurationError(
            f"Expected the descriptor of state {wanted.name} to be equal to its first one, found {difference}; use "
            "another name for another state."
        )


def reconfigured(wanted: RegisteredState, restored: StateSchema) -> RegisteredState:
    """
    Return a state with serializers reconfigured for its restored data.

    :raises StateMigrationError: for another kind or incompatible types.
    """
    if restored.kind is not wanted.kind:
        raise StateMigrationError(
            f"Expected a {restored.kind} state {wanted.name}, as in the checkpoint, found a {wanted.kind} state; use "
            "another name for another state."
        )
    wanted = replace(wanted, combination=wanted.combination or restored.combination)
    verdict = compatibility_of(wanted.name, wanted.serializer, restored.value)
    serializer = serializer_from_now_on(verdict, wanted.serializer)
    if wanted.key_serializer is None or restored.key is None:
        return replace(wanted, serializer=serializer)
    keys = compatibility_of(wanted.name, wanted.key_serializer, restored.key, are_keys=True)
    return replace(wanted, serializer=serializer, key_serializer=serializer_from_now_on(keys, wanted.key_serializer))


def _difference(known: RegisteredState, wanted: RegisteredState) -> str | None:
    if wanted.kind is not known.kind:
        return f"a {wanted.kind} state in place of a {known.kind} state"
    if not _is_same_type(wanted.serializer, known.serializer):
        return f"{describe(wanted.serializer.snapshot())} in place of {describe(known.serializer.snapshot())}"
    if (
        known.key_serializer
        and wanted.key_serializer
        and not _is_same_type(wanted.key_serializer, known.key_serializer)
    ):
        new, old = describe(wanted.key_serializer.snapshot()), describe(known.key_serializer.snapshot())
        return f"keys of {new} in place of {old}"
    return "another time to live" if wanted.ttl != known.ttl else None


def _is_same_type(wanted: TypeSerializer[Any], known: TypeSerializer[Any]) -> bool:
    snapshot = known.snapshot()
    return wanted.snapshot() == snapshot or wanted.resolve_compatibility(snapshot).outcome in _SAME
