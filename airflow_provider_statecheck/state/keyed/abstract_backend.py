"""Base of keyed state backends: the current key, registered states, and namespaces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateMigrationError
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keyed.expiry import TimeToLive, TtlCells, TtlEntries
from airflow_provider_statecheck.state.keyed.keyed_state_store import (
    BatchState,
    DefaultKeyedStateStore,
    KeyedStateStore,
)
from airflow_provider_statecheck.state.keyed.map_state import MapState
from airflow_provider_statecheck.state.keyed.registered_state import (
    NO_KEY_GROUP,
    KeyContext,
    RegisteredState,
    StateValues,
)
from airflow_provider_statecheck.state.keyed.states import (
    AggregatingState,
    DefaultedValueState,
    FoldingState,
    ListState,
    MergeableState,
    ReducingState,
    State,
    TtlListState,
    ValueState,
)
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE, MapTable, StateTable
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
    describe,
    kept_distinct,
    serializer_from_now_on,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.backends.state_backend import StateSnapshot
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory


def create_state(
    descriptor: StateDescriptor[Any],
    registered: RegisteredState,
    table: StateTable | MapTable,
    context: KeyContext,
    namespace: str,
    now_ms: Callable[[], int],
    operator: str,
) -> State:
    """
    Return a state over its table, with all that the descriptor wants of it.

    :param operator: What users call the operator, for errors.
    """
    values = StateValues(registered, operator)
    ttl = None if registered.ttl is None else TimeToLive(registered.ttl, now_ms)
    if registered.kind is StateKind.MAP:
        return _map_state(registered, cast("MapTable", table), context, namespace, values, ttl)
    cells = cast("StateTable", table)
    if registered.kind is StateKind.LIST:
        if ttl is None:
            return ListState(cells, context, namespace, values)
        return TtlListState(cells, context, namespace, values, ttl)
    return _single_state(descriptor, cells if ttl is None else TtlCells(cells, ttl), context, namespace, values)


def _map_state(
    registered: RegisteredState,
    table: MapTable,
    context: KeyContext,
    namespace: str,
    values: StateValues,
    ttl: TimeToLive | None,
) -> State:
    assert registered.key_serializer is not None  # noqa: S101 - for the type checker
    check = partial(registered.key_serializer.to_arrow, [None])
    return MapState(table if ttl is None else TtlEntries(table, ttl), context, namespace, values, check)


def _single_state(
    descriptor: StateDescriptor[Any], table: StateTable, context: KeyContext, namespace: str, values: StateValues
) -> State:
    common = (table, context, namespace, values)
    if isinstance(descriptor, ReducingStateDescriptor):
        return ReducingState(*common, descriptor.reduce_function)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return AggregatingState(*common, descriptor.aggregate_function)
    if isinstance(descriptor, FoldingStateDescriptor):
        initial = partial(getattr, descriptor, "initial")
        return FoldingState(*common, initial, descriptor.fold_function)
    if isinstance(descriptor, ValueStateDescriptor) and descriptor.default is not None:
        return DefaultedValueState(*common, partial(getattr, descriptor, "default"))
    return ValueState(*common)


def require_mergeable(state: State) -> MergeableState:
    """
    Return a state whose namespaces can be merged.

    :raises InvalidConfigurationError: for one of another kind.
    """
    if not isinstance(state, ListState | ReducingState | AggregatingState):
        raise InvalidConfigurationError(
            f"Expected a list, reducing or aggregating state, found {type(state).__name__}; others cannot be merged."
        )
    return cast("MergeableState", state)


_SAME = (Outcome.COMPATIBLE_AS_IS, Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER)


def require_same_state(known: RegisteredState, wanted: RegisteredState) -> None:
    """
    Refuse a descriptor that means another state than the one of its name.

    :raises InvalidConfigurationError: for another kind, other types, or a time to live where there was none.
    """
    differs = _difference(known, wanted)
    if differs:
        raise InvalidConfigurationError(
            f"Expected the state {wanted.name} to be what it was at first, found {differs}; use another name for another state."
        )


def reconfigured(wanted: RegisteredState, restored: StateSchema) -> RegisteredState:
    """
    Return a state with the serializers that its restored data asks for.

    :raises StateMigrationError: for another kind, or if the restored data cannot go on with the serializers.
    """
    if restored.kind is not wanted.kind:
        raise StateMigrationError(
            f"Expected {wanted.name} to be the {restored.kind} state that was restored, found a {wanted.kind} state; use another "
            f"name for another state."
        )
    verdict = compatibility_of(wanted.name, wanted.serializer, restored.value)
    serializer = serializer_from_now_on(verdict, wanted.serializer)
    if wanted.key_serializer is None or restored.key is None:
        return replace(wanted, serializer=serializer)
    keys = compatibility_of_keys(wanted.name, wanted.key_serializer, restored.key)
    return replace(wanted, serializer=serializer, key_serializer=serializer_from_now_on(keys, wanted.key_serializer))


def compatibility_of(name: str, serializer: TypeSerializer[Any], old: SerializerSnapshot) -> Compatibility:
    """
    Return how restored data goes on with a serializer.

    :raises StateMigrationError: if it cannot.
    """
    return _possible(name, serializer.resolve_compatibility(old), serializer, old)


def compatibility_of_keys(name: str, serializer: TypeSerializer[Any], old: SerializerSnapshot) -> Compatibility:
    """
    Return how restored keys of a map go on with a serializer.

    :raises StateMigrationError: if they cannot, or if two of them could become one.
    """
    verdict = kept_distinct(serializer.resolve_compatibility(old), "keys of a map")
    return _possible(name, verdict, serializer, old)


def _possible(
    name: str, verdict: Compatibility, serializer: TypeSerializer[Any], old: SerializerSnapshot
) -> Compatibility:
    if verdict.outcome is Outcome.INCOMPATIBLE:
        raise StateMigrationError(
            f"Expected the state {name} to be of a type that can go on with {describe(old)}, found "
            f"{describe(serializer.snapshot())}: {verdict.reason or 'they do not fit'}; keep the type, or use another name for a "
            f"new state.",
            state=name,
        )
    return verdict


def _difference(known: RegisteredState, wanted: RegisteredState) -> str | None:
    if wanted.kind is not known.kind:
        return f"a {wanted.kind} state in place of a {known.kind} state"
    if not _goes_on(wanted.serializer, known.serializer):
        return f"{describe(wanted.serializer.snapshot())} in place of {describe(known.serializer.snapshot())}"
    if known.key_serializer and wanted.key_serializer and not _goes_on(wanted.key_serializer, known.key_serializer):
        return f"keys of {describe(wanted.key_serializer.snapshot())} in place of {describe(known.key_serializer.snapshot())}"
    return "another time to live" if wanted.ttl != known.ttl else None


def _goes_on(wanted: TypeSerializer[Any], known: TypeSerializer[Any]) -> bool:
    return wanted.resolve_compatibility(known.snapshot()).outcome in _SAME


class AbstractKeyedStateBackend(ABC):
    """
    The keyed state of one subtask.

    It is used by one thread; only what ``snapshot`` returns may run in another.

    :param key_serializer: What keys are.
    :param number_of_key_groups: The maximum parallelism of the operator.
    :param key_group_range: The key groups of this subtask.
    :param now_ms: Gives the time by which state expires, in milliseconds.
    :param operator_name: What users call the operator, for errors.
    :raises InvalidConfigurationError: for a range that is not within the key groups.
    """

    def __init__(
        self,
        *,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        now_ms: Callable[[], int],
        operator_name: str = "",
    ) -> None:
        _require_range(key_group_range, number_of_key_groups)
        self.key_serializer = key_serializer
        self.number_of_key_groups = number_of_key_groups
        self.key_group_range = key_group_range
        self.operator_name = operator_name
        self.store: KeyedStateStore = DefaultKeyedStateStore(self)
        self._now_ms = now_ms
        # Looked at for each element.
        self._first, self._last = key_group_range.start, key_group_range.end
        self._has_parts = len(key_serializer.fields) > 1
        self._context = KeyContext()
        self._registered: dict[str, RegisteredState] = {}
        self._tables: dict[str, StateTable | MapTable] = {}
        self._states: dict[str, tuple[StateDescriptor[Any], State]] = {}
        self._unclaimed: dict[str, StateSchema] = {}
        """Restored states that no descriptor asked for yet; a subclass fills it, and finds a name in it in ``_create_table``."""

    @property
    def current_key(self) -> Any:
        """
        Return the key that was set.

        :raises CoordinatorError: if there is none.
        """
        self._context.require()
        return self._context.key

    @property
    def current_key_group(self) -> int:
        """
        Return the key group of the key that was set.

        :raises CoordinatorError: if there is none.
        """
        self._context.require()
        return self._context.key_group

    def set_current_key(self, key: Any, key_group: int | None = None) -> None:
        """
        Let all states speak of a key.

        :param key_group: Its key group, if the caller knows it; then the key has to be in its normalized form.
        :raises InvalidConfigurationError: for a key that is or has a null, and for a key group of another subtask.
        :raises UnsupportedStateError: for a key of another type.
        """
        if key is None or self._has_parts:
            self.key_serializer.require(key)
        if key_group is None:
            key = self.key_serializer.normalized(key)
            key_group = self.key_serializer.key_group_of(key, self.number_of_key_groups)
        if not self._first <= key_group <= self._last:
            raise _foreign(key, key_group, self.key_group_range)
        context = self._context
        context.key = key
        context.key_group = key_group

    def unset_current_key(self) -> None:
        """Let no state be used until there is a key again."""
        self._context.key = None
        self._context.key_group = NO_KEY_GROUP

    def get_partitioned_state(self, descriptor: StateDescriptor[Any], namespace: str = VOID_NAMESPACE) -> State:
        """
        Return the state of a descriptor, which is registered at the first time; it always speaks of the current key.

        :raises InvalidConfigurationError: for a null namespace, or a name that is taken by another kind of state.
        :raises StateMigrationError: if restored state cannot go on with the descriptor.
        """
        known = self._states.get(descriptor.name)
        if known is not None and known[0] is descriptor and namespace == VOID_NAMESPACE:
            return known[1]
        _require_namespace(namespace)
        state = self._register(descriptor)
        made = create_state(
            descriptor, state, self._tables[state.name], self._context, namespace, self._now_ms, self.operator_name
        )
        if namespace == VOID_NAMESPACE:
            self._states[state.name] = (descriptor, made)
        return made

    def merge_namespaces(self, descriptor: StateDescriptor[Any], target: str, sources: Sequence[str]) -> None:
        """
        Move what the current key has in some namespaces into another one.

        :raises InvalidConfigurationError: for a null namespace, or a state of a kind that cannot be merged.
        :raises CoordinatorError: if there is no current key.
        """
        for namespace in (target, *sources):
            _require_namespace(namespace)
        merged = require_mergeable(self.get_partitioned_state(descriptor, target))
        for source in dict.fromkeys(sources):
            if source != target:
                merged.merge_from(self.get_partitioned_state(descriptor, source))

    def get_keys(self, name: str, namespace: str = VOID_NAMESPACE) -> Iterator[Any]:
        """
        Return the keys that have a value of a state, each once, as they are now.

        :raises InvalidConfigurationError: for a null namespace.
        """
        _require_namespace(namespace)
        table = self._tables.get(name)
        return iter(()) if table is None else table.keys(namespace)

    def apply_to_all_keys(
        self, namespace: str, descriptor: StateDescriptor[Any], function: Callable[[Any, State], None]
    ) -> None:
        """
        Call a function with each key that has a value of a state, while that key is the current one.

        :raises InvalidConfigurationError: for a null namespace.
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
        Return a state of single values for many keys at once, without namespace.

        :raises InvalidConfigurationError: for lists, maps and folded values.
        """
        self.get_partitioned_state(descriptor)
        state = self._registered[descriptor.name]
        return BatchState.of(
            descriptor, state, self._tables[state.name], self.key_group_range, self._now_ms, self.operator_name
        )

    def registered_states(self) -> tuple[RegisteredState, ...]:
        """Return the states that descriptors asked for, in the order of their first time."""
        return tuple(self._registered.values())

    def schemas(self) -> tuple[StateSchema, ...]:
        """Return what the metadata says about each state, those included that were restored and not asked for."""
        return (*(state.schema() for state in self._registered.values()), *self._unclaimed.values())

    def advance_to(self, key_group: int) -> None:  # noqa: B027
        """Take note that keys of lower groups are not touched before the next snapshot."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:  # noqa: B027
        """Take note that a checkpoint is complete, so that later snapshots may name its files."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027
        """Take note that the files of a checkpoint may be gone, so that later snapshots must not name them."""

    @abstractmethod
    def num_entries(self) -> int:
        """Return for how many keys and namespaces there is state, summed over all states."""

    @abstractmethod
    def snapshot(
        self, checkpoint_id: int, timestamp: int, streams: CheckpointStreamFactory
    ) -> StateSnapshot[KeyedStateHandle]:
        """
        Capture the state as it is now; what is returned writes it, and later changes are not in it.

        :param checkpoint_id: Of the checkpoint.
        :param timestamp: When it was triggered, in milliseconds.
        :param streams: Where it is written.
        """

    @abstractmethod
    def _create_table(self, state: RegisteredState) -> StateTable | MapTable:
        """
        Make the table of a state, with what was restored under its name.

        :raises StateMigrationError: if that cannot go on with the serializers of the state.
        """

    def dispose(self) -> None:
        """Give up the state and end the snapshots that still run; without effect the second time."""
        self.unset_current_key()
        self._states.clear()
        self._tables.clear()
        self._registered.clear()
        self._unclaimed.clear()

    def _register(self, descriptor: StateDescriptor[Any]) -> RegisteredState:
        wanted = RegisteredState.of(descriptor)
        known = self._registered.get(wanted.name)
        if known is not None:
            require_same_state(known, wanted)
            return known
        if wanted.name in self._unclaimed:
            wanted = reconfigured(wanted, self._unclaimed[wanted.name])
        self._tables[wanted.name] = self._create_table(wanted)
        self._registered[wanted.name] = wanted
        self._unclaimed.pop(wanted.name, None)
        return wanted


def _require_range(owned: KeyGroupRange, number_of_key_groups: int) -> None:
    if owned.end >= number_of_key_groups:
        raise InvalidConfigurationError(
            f"Expected key groups below {number_of_key_groups}, found the range {owned.start} to {owned.end}."
        )


def _require_namespace(namespace: str | None) -> None:
    if namespace is None:
        raise InvalidConfigurationError("Expected a namespace, found None; state without one is in VOID_NAMESPACE.")


def _foreign(key: Any, key_group: int, owned: KeyGroupRange) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected a key of the key groups {owned.start} to {owned.end}, found {key!r} of key group {key_group}; keys must be "
        f"partitioned as the state is."
    )
