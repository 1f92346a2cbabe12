"""Queried values as immutable states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, overload

from airflow_provider_statecheck.exceptions import (
    ImmutableStateError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.queryable.queries import StateReply
from airflow_provider_statecheck.state.descriptors import StateDescriptor, StateKind
from airflow_provider_statecheck.state.keyed.map_state import MapState
from airflow_provider_statecheck.state.keyed.registered_state import KeyContext, RegisteredState
from airflow_provider_statecheck.state.keyed.states import (
    AggregatingState,
    FoldingState,
    ListState,
    ReducingState,
    ValueState,
)
from airflow_provider_statecheck.state.reading.state_reader import (
    registered,
)
from airflow_provider_statecheck.state.schema_evolution import compatibility_of
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    TypeSerializer,
    migrated,
    serializer_from_now_on,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Out = TypeVar("Out")
Acc = TypeVar("Acc")


def _refused(*_: Any, **__: Any) -> NoReturn:
    """
    Refuse the change.

    :raises ImmutableStateError: always.
    """
    raise ImmutableStateError(
        "Expected a read of queried state, found a change; the stage that owns the state changes it, and a query "
        "reads it."
    )


class ImmutableValueState(ValueState[T]):
    """Queried value of a value state."""

    __slots__ = ()
    update = clear = _refused


class ImmutableListState(ListState[T]):
    """Queried list of a list state."""

    __slots__ = ()
    add = add_all = update = merge_from = clear = _refused


class ImmutableReducingState(ReducingState[T]):
    """Queried reduction of a reducing state."""

    __slots__ = ()
    add = merge_from = clear = _refused


class ImmutableAggregatingState(AggregatingState[In, Out]):
    """Queried accumulator of an aggregating state; ``get`` returns its result by the function of the descriptor."""

    __slots__ = ()
    add = merge_from = clear = _refused


class ImmutableFoldingState(FoldingState[T, Acc]):
    """Queried accumulator of a folding state."""

    __slots__ = ()
    add = clear = _refused


class ImmutableMapState(MapState[K, V]):
    """Queried map of a map state. Its iterators and entries refuse changes too."""

    __slots__ = ()
    put = put_all = remove = clear = _frozen = _refused


@overload
def immutable_state(reply: StateReply, descriptor: ValueStateDescriptor[T]) -> ImmutableValueState[T]: ...
@overload
def immutable_state(reply: StateReply, descriptor: ListStateDescriptor[T]) -> ImmutableListState[T]: ...
@overload
def immutable_state(reply: StateReply, descriptor: ReducingStateDescriptor[T]) -> ImmutableReducingState[T]: ...
@overload
def immutable_state(
    reply: StateReply, descriptor: AggregatingStateDescriptor[Any]
) -> ImmutableAggregatingState[Any, Any]: ...
@overload
def immutable_state(reply: StateReply, descriptor: FoldingStateDescriptor[Acc]) -> ImmutableFoldingState[Any, Acc]: ...
@overload
def immutable_state(reply: StateReply, descriptor: MapStateDescriptor[V]) -> ImmutableMapState[Any, V]: ...
def immutable_state(reply: StateReply, descriptor: Any) -> Any:
    """
    Return the state of the only key of a reply, with the values of the descriptor's types.

    Only the serializer of the descriptor creates objects of the user's classes. It reads what ``resolve_compatibility``
    allows it to restore, such as records with fewer fields. Each view has its own copy of the serializer, because a
    user-defined one may keep a buffer; those of this package have no state.

    :param reply: Reply to a query of one key, with the whole state of the key.
    :param descriptor: Descriptor of the state, as in the stage. Its name and its default are not used.
    :raises UnknownKeyOrNamespaceError: if the key has no state.
    :raises InvalidConfigurationError: if the descriptor has another kind than the state.
    :raises StateMigrationError: if the types of the descriptor cannot restore the state.
    """
    _require_kind(reply, descriptor)
    served, wanted = registered(reply.schema), copy.deepcopy(replace(RegisteredState.of(descriptor), ttl=None))
    restored = _Restored.of(reply, served.serializer, wanted.serializer)
    if wanted.key_serializer is not None and served.key_serializer is not None:
        user_keys = _Restored.of(reply, served.key_serializer, wanted.key_serializer, are_keys=True)
        table: Any = _EntryTable(_entries(reply.value, user_keys, restored))
    elif wanted.kind is StateKind.LIST:
        table = _CellTable(restored.frozen(reply.value))
    else:
        table = _CellTable(restored.frozen([reply.value])[0])
    state = replace(wanted, serializer=restored.serializer)
    return _VIEWS[wanted.kind](table, _context(reply.keys[0]), "", state, descriptor, "")


class _CellTable:
    """Table with the cell of one key."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    put = remove = _refused

    def get(self, *_: Any) -> Any:
        return self._cell


class _EntryTable:
    """Table with the entries of one key."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries

    put = remove = clear = _refused

    def get(self, _key: Any, _key_group: int, _namespace: str, user_key: Any) -> Any:
        return self._entries.get(user_key)

    def contains(self, _key: Any, _key_group: int, _namespace: str, user_key: Any) -> bool:
        return user_key in self._entries

    def entries(self, *_: Any) -> Iterator[tuple[Any, Any]]:
        return iter(self._entries.items())

    def is_empty(self, *_: Any) -> bool:
        return not self._entries


class _Restored(NamedTuple):
    """Conversion of served values to those of a descriptor."""

    served: TypeSerializer[Any]
    serializer: TypeSerializer[Any]
    """Serializer of the descriptor, or the reconfigured one."""
    verdict: Compatibility

    @classmethod
    def of(
        cls, reply: StateReply, served: TypeSerializer[Any], wanted: TypeSerializer[Any], *, are_keys: bool = False
    ) -> _Restored:
        verdict = compatibility_of(
            reply.name, wanted, served.snapshot(), are_keys=are_keys, advice="use the descriptor of the stage"
        )
        return cls(served, serializer_from_now_on(verdict, wanted), verdict)

    def array(self, values: Sequence[Any]) -> Any:
        """Return the Arrow array of served values that the serializer reads."""
        array = self.served.to_arrow(values)
        return array if self.verdict.serializer is not None else migrated(self.verdict, array)

    def frozen(self, values: Sequence[Any]) -> list[Any]:
        """Return the cells of served values."""
        return self.serializer.freezing().read(self.array(values))


def _entries(value: dict[Any, Any], user_keys: _Restored, values: _Restored) -> dict[Any, Any]:
    restored = user_keys.serializer.from_arrow(user_keys.array([*value]))
    return dict(zip(restored, values.frozen([*value.values()]), strict=True))


def _require_kind(reply: StateReply, descriptor: StateDescriptor[Any]) -> None:
    if reply.is_entry:
        raise InvalidConfigurationError(
            f"Expected a whole map of the state {reply.name!r}, found one of its entries; query the key without a user "
            "key."
        )
    if descriptor.kind is not reply.schema.kind:
        raise InvalidConfigurationError(
            f"Expected the descriptor of a {reply.schema.kind} state for {reply.name!r}, found a {descriptor.kind} "
            "state; use the descriptor of the stage."
        )


def _context(key: Any) -> KeyContext:
    context = KeyContext()
    context.key, context.key_group = key, 0
    return context


_VIEWS: dict[StateKind, Callable[..., Any]] = {
    StateKind.VALUE: ImmutableValueState,
    StateKind.LIST: ImmutableListState,
    StateKind.REDUCING: ImmutableReducingState,
    StateKind.AGGREGATING: ImmutableAggregatingState,
    StateKind.FOLDING: ImmutableFoldingState,
    StateKind.MAP: ImmutableMapState,
}
