"""Lists and broadcast maps of operator state, their store, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateKind,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend, OperatorStateStore
from airflow_provider_statecheck.state.operator.states import BroadcastState, PartitionableListState
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStreamFactory
from tests.unit.state.operator.snapshots import numbers, rates, restored, saved

Get = Callable[[OperatorStateStore, str], Any]
GETS: list[Get] = [
    lambda store, name: store.get_list_state(numbers(name)),
    lambda store, name: store.get_union_list_state(numbers(name)),
    lambda store, name: store.get_broadcast_state(rates(name)),
]
each_kind = pytest.mark.parametrize("get", GETS, ids=["list", "union", "broadcast"])


@each_kind
def test_the_same_descriptor_gives_the_same_state(backend: DefaultOperatorStateBackend, get: Get) -> None:
    assert get(backend, "a") is get(backend, "a")
    assert get(backend, "a") is not get(backend, "b")


@pytest.mark.parametrize(("first", "second"), [("split_distribute", "union"), ("union", "split_distribute")])
def test_a_list_keeps_its_distribution(backend: DefaultOperatorStateBackend, first: str, second: str) -> None:
    gets = {"split_distribute": backend.get_list_state, "union": backend.get_union_list_state}
    gets[first](numbers("a"))
    with pytest.raises(CoordinatorError, match=rf"'a' to be distributed by {first}.*found {second}"):
        gets[second](numbers("a"))


def test_a_restored_list_cannot_become_a_union_list(
    backend: DefaultOperatorStateBackend, storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    backend.get_list_state(numbers("a")).add(1)
    again = restored(storage, saved(backend, streams))
    with pytest.raises(CoordinatorError, match="found union"):
        again.get_union_list_state(numbers("a"))
    assert again.get_list_state(numbers("a")).get() == (1,)


def test_lists_and_broadcast_maps_have_name_spaces_of_their_own(
    backend: DefaultOperatorStateBackend, storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    for name in ("a", "broadcast/a", "list/a", "list/broadcast/a"):
        backend.get_list_state(numbers(name)).add(len(name))
        backend.get_broadcast_state(rates(name)).put(name, 0.5)
    again = restored(storage, saved(backend, streams))
    for name in ("a", "broadcast/a", "list/a", "list/broadcast/a"):
        assert again.get_list_state(numbers(name)).get() == (len(name),)
        assert again.get_broadcast_state(rates(name)).immutable_entries() == ((name, 0.5),)


def test_names_are_told_by_name_space(backend: DefaultOperatorStateBackend) -> None:
    assert backend.get_registered_state_names() == frozenset()
    backend.get_list_state(numbers("a"))
    backend.get_union_list_state(numbers("b"))
    backend.get_broadcast_state(rates("c"))
    assert backend.get_registered_state_names() == {"a", "b"}
    assert backend.get_registered_broadcast_state_names() == {"c"}


def test_a_name_keeps_its_types(backend: DefaultOperatorStateBackend) -> None:
    backend.get_list_state(numbers("a", int))
    backend.get_broadcast_state(rates("a", str))
    with pytest.raises(InvalidConfigurationError, match="state a to be equal to its first one, found string"):
        backend.get_list_state(numbers("a", str))
    with pytest.raises(InvalidConfigurationError, match="state a to be equal to its first one, found keys of int64"):
        backend.get_broadcast_state(rates("a", int))


def test_operator_state_does_not_expire(backend: DefaultOperatorStateBackend) -> None:
    descriptor = numbers("a")
    descriptor.enable_time_to_live(StateTtlConfig(timedelta(minutes=1)))
    with pytest.raises(InvalidConfigurationError, match="without a time to live"):
        backend.get_list_state(descriptor)
    assert backend.get_registered_state_names() == frozenset()


@pytest.mark.parametrize("method", ["get_list_state", "get_union_list_state", "get_broadcast_state"])
def test_descriptors_of_other_kinds_are_refused(backend: DefaultOperatorStateBackend, method: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"Expected the descriptor of a (list|map) state"):
        getattr(backend, method)(ValueStateDescriptor("a", int))


@each_kind
def test_a_disposed_backend_gives_no_state(backend: DefaultOperatorStateBackend, get: Get) -> None:
    get(backend, "a")
    backend.dispose()
    backend.dispose()
    with pytest.raises(CoordinatorError, match="found it disposed"):
        get(backend, "a")


def test_schemas_name_each_state(backend: DefaultOperatorStateBackend) -> None:
    backend.get_list_state(numbers("a"))
    backend.get_broadcast_state(rates("a"))
    found = {(schema.name, schema.kind): schema for schema in backend.schemas()}
    assert found[("a", StateKind.LIST)].key is None
    assert found[("a", StateKind.LIST)].value == numbers().serializer.snapshot()
    assert found[("a", StateKind.MAP)].key == rates().key_serializer.snapshot()
    assert len(found) == 2


def test_changing_an_element_in_place_changes_no_state() -> None:
    state = DefaultOperatorStateBackend().get_list_state(ListStateDescriptor("held", list[int]))
    given = [1]
    state.add(given)
    given.append(2)
    next(iter(state.get())).append(3)
    assert list(state) == [[1]]


@pytest.mark.parametrize(
    ("key_type", "key"), [(float, float("nan")), (tuple[str, float], ("x", float("nan")))], ids=["float", "tuple"]
)
def test_a_key_of_a_broadcast_map_that_equals_nothing_is_refused(key_type: Any, key: Any) -> None:
    state: Any = DefaultOperatorStateBackend().get_broadcast_state(MapStateDescriptor("rules", key_type, int))
    for put in (lambda: state.put(key, 1), lambda: state.put_all({key: 1})):
        with pytest.raises(UnsupportedStateError, match=r"a map that equals itself, found .*nan"):
            put()
    assert state.immutable_entries() == ()


def test_changing_a_value_of_a_broadcast_map_in_place_changes_no_state() -> None:
    state = DefaultOperatorStateBackend().get_broadcast_state(MapStateDescriptor("rules", str, list[int]))
    given = [1]
    state.put("a", given)
    state.put_all({"b": given})
    given.append(2)
    for found in (state.get("a"), state.read_only().get("a"), next(iter(state.immutable_entries()))[1]):
        assert found is not None
        found.append(3)
    assert dict(state) == {"a": [1], "b": [1]}


def test_element_that_does_not_fit_is_refused_when_it_is_put() -> None:
    backend = DefaultOperatorStateBackend(operator_name="pairs")
    held: Any = backend.get_list_state(ListStateDescriptor("held", int))
    rules: Any = backend.get_broadcast_state(MapStateDescriptor("rules", str, int))
    for put in (
        lambda: held.add("text"),
        lambda: held.add_all([1, "text"]),
        lambda: held.update(["text"]),
        lambda: rules.put(1, 1),
        lambda: rules.put("a", "text"),
        lambda: rules.put_all({"a": 1, "b": "text"}),
    ):
        with pytest.raises(
            UnsupportedStateError, match=r"fit the (list|map) state '(held|rules)' of the operator 'pairs'"
        ):
            put()
    assert list(held) == []
    assert dict(rules) == {}


def list_of(*elements: int) -> PartitionableListState[int]:
    state: PartitionableListState[int] = DefaultOperatorStateBackend().get_list_state(numbers())
    state.update(elements)
    return state


def test_elements_keep_their_order_and_a_list_without_elements_is_no_none() -> None:
    state = list_of(1)
    state.add(2)
    state.add_all([3, 4])
    assert list(state.get()) == list(state) == [1, 2, 3, 4]
    state.update(iter([5, 6]))
    assert list(state.get()) == [5, 6]
    for empty in (lambda: state.update([]), state.clear):
        state.add(7)
        empty()
        assert list(state.get()) == []


def test_the_list_may_change_while_it_is_read() -> None:
    state = list_of(1, 2)
    for element in state.get():
        state.add(element + 10)
    assert list(state.get()) == [1, 2, 11, 12]


def test_a_given_list_stays_the_callers() -> None:
    given = [1]
    state = list_of()
    state.update(given)
    given.append(2)
    assert list(state.get()) == [1]


@pytest.mark.parametrize(("method", "value"), [("add", None), ("add_all", None), ("add_all", [2, None])])
@pytest.mark.parametrize("replaces", [False, True])
def test_none_is_refused_and_changes_nothing(method: str, value: Any, replaces: bool) -> None:
    state = list_of(1)
    with pytest.raises(InvalidConfigurationError, match="found None"):
        getattr(state, "update" if replaces else method)(value)
    assert list(state.get()) == [1]


@pytest.fixture
def state() -> BroadcastState[str, int | None]:
    state: BroadcastState[str, int | None] = DefaultOperatorStateBackend().get_broadcast_state(rates(value_type=int))
    state.put_all({"a": 1, "b": 2})
    return state


State = BroadcastState[str, int | None]


def test_it_is_a_map(state: State) -> None:
    state.put("c", 3)
    state.put_all({"a": 4, "d": 5})
    state.remove("b")
    state.remove("never there")
    assert state.get("a") == 4
    assert state.get("b") is None
    assert state.contains("d")
    assert not state.contains("b")
    assert dict(state) == {"a": 4, "c": 3, "d": 5}
    assert dict(state.entries()) == dict(state.immutable_entries()) == dict(state)


def test_an_entry_may_have_no_value(state: State) -> None:
    state.put("n", None)
    assert state.contains("n")
    assert state.get("n") is None
    state.clear()
    assert list(state.immutable_entries()) == []


def test_entries_are_those_of_the_moment(state: State) -> None:
    before = state.immutable_entries()
    for key, _ in before:
        state.remove(key)
    assert list(before) == [("a", 1), ("b", 2)]


def test_no_key_is_none(state: State) -> None:
    with pytest.raises(InvalidConfigurationError, match="found None"):
        state.put(None, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigurationError, match="found None"):
        state.put_all({"c": 3, None: 1})  # type: ignore[dict-item]
    assert dict(state) == {"a": 1, "b": 2}


def test_the_view_shows_the_state_and_its_changes(state: State) -> None:
    view = state.read_only()
    state.put("c", 3)
    assert view.get("c") == 3
    assert view.contains("a")
    assert not view.contains("z")
    assert list(view.immutable_entries()) == [("a", 1), ("b", 2), ("c", 3)]
    state.clear()
    assert list(view.immutable_entries()) == []


@pytest.mark.parametrize(
    ("method", "arguments"), [("put", ("a", 9)), ("put_all", ({"a": 9},)), ("remove", ("a",)), ("clear", ())]
)
def test_the_view_refuses_to_write(state: State, method: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(CoordinatorError, match=f"found a call of {method}"):
        getattr(state.read_only(), method)(*arguments)
    assert dict(state) == {"a": 1, "b": 2}
