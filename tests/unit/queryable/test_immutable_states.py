"""Views of queried state read as the states of the stage, and never write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import (
    ImmutableStateError,
    InvalidConfigurationError,
    StateMigrationError,
    UnknownKeyOrNamespaceError,
)
from airflow_provider_statecheck.queryable.immutable_states import immutable_state
from airflow_provider_statecheck.queryable.queries import ABSENT
from airflow_provider_statecheck.state.backends import MemoryStateBackend
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.function_harness import KeyedHarness, all_descriptors, read_all, write_all
from tests.unit.queryable.replies import as_served, reply_of, sent, served_user_keys
from tests.unit.state.serializers.record_types import Item, Order, Point
from tests.unit.state.serializers.test_custom_serializers import Evolving, Sketch, SketchSerializer

SERVED: dict[str, Any] = {
    "value": 7,
    "list": [7, 8],
    "reducing": 7,
    "aggregating": ["7"],
    "folding": ["start", "7"],
    "map": {"number": 7},
}
"""What a server returns for the state that ``write_all`` writes with 7."""

MUTATIONS: dict[str, list[Callable[[Any], Any]]] = {
    "value": [lambda state: state.update(1), lambda state: state.update("wrong"), lambda state: state.clear()],
    "list": [
        lambda state: state.add(1),
        lambda state: state.add_all([]),
        lambda state: state.update([1]),
        lambda state: state.merge_from(state),
        lambda state: state.clear(),
    ],
    "reducing": [lambda state: state.add(1), lambda state: state.merge_from(state), lambda state: state.clear()],
    "aggregating": [lambda state: state.add("1"), lambda state: state.merge_from(state), lambda state: state.clear()],
    "folding": [lambda state: state.add("1"), lambda state: state.clear()],
    "map": [
        lambda state: state.put("a", 1),
        lambda state: state.put_all({}),
        lambda state: state.remove("a"),
        lambda state: state.clear(),
        lambda state: next(state.entries()).set_value(2),
        lambda state: [iterator := state.keys(), next(iterator), iterator.remove()],
    ],
}


class Views:
    """Gives the views where the state backend gives its states, so that the same reads run on both."""

    def __init__(self, given: dict[str, Any] | None = None) -> None:
        self.given = given or {}

    def get_partitioned_state(self, descriptor: Any) -> Any:
        return self.given.get(descriptor.name) or view_of(descriptor, SERVED[descriptor.name])


def view_of(descriptor: Any, value: Any, value_type: Any = None) -> Any:
    user_keys = descriptor.key_type if descriptor.kind is StateKind.MAP else None
    reply = reply_of(descriptor.kind, value_type or descriptor.type, (value,), user_key_type=user_keys)
    return immutable_state(sent(reply), descriptor)


def test_every_view_reads_what_the_state_of_the_stage_reads(tmp_path: Any) -> None:
    backend = KeyedHarness(MemoryStateBackend(), CheckpointStorage.open(tmp_path.as_uri())).open()
    backend.set_current_key("user-0")
    write_all(backend, 7)

    assert read_all(Views()) == read_all(backend)
    for name, descriptor in all_descriptors().items():
        assert isinstance(view_of(descriptor, SERVED[name]), type(backend.get_partitioned_state(descriptor)))


@pytest.mark.parametrize(("name", "change"), [(name, each) for name, changes in MUTATIONS.items() for each in changes])
def test_every_change_is_refused_and_changes_nothing(name: str, change: Callable[[Any], Any]) -> None:
    view = view_of(all_descriptors()[name], SERVED[name])
    with pytest.raises(ImmutableStateError):
        change(view)
    assert read_all(Views({name: view})) == read_all(Views())


def test_a_map_answers_each_of_its_reading_methods() -> None:
    view = view_of(
        MapStateDescriptor("m", Point, int), dict(zip(served_user_keys(Point, [Point(1)]), [None], strict=True))
    )
    assert view.contains(Point(1))
    assert not view.contains(Point(2))
    assert (view.get(Point(1)), view.get(Point(2))) == (None, None)
    assert ([*view.keys()], [*view.values()], [tuple(entry) for entry in view]) == (
        [Point(1)],
        [None],
        [(Point(1), None)],
    )
    assert not view.is_empty()


def test_objects_of_the_users_classes_come_from_the_descriptor() -> None:
    order = Order(1, [Item("a", 2, 3.0)], tags={"x": {1}})
    (served,) = as_served(Order, [order])
    assert isinstance(served, dict)
    assert view_of(ValueStateDescriptor("order", Order), served).value() == order


def test_a_change_of_a_value_that_was_read_does_not_change_the_view() -> None:
    view = view_of(ListStateDescriptor("orders", Item), [*as_served(Item, [Item("a", 1, 2.0)])])
    next(iter(view)).sku = "changed"
    assert list(view) == [Item("a", 1, 2.0)]


@dataclass
class Narrow:
    sku: str
    quantity: int


@dataclass
class Wide:
    sku: str
    price: float
    note: str = "none"


def test_a_descriptor_whose_record_has_other_fields_restores_those_that_it_can() -> None:
    (served,) = as_served(Item, [Item("a", 2, 3.0)])
    assert view_of(ValueStateDescriptor("item", Narrow), served, Item).value() == Narrow("a", 2)
    assert view_of(ValueStateDescriptor("item", Wide), served, Item).value() == Wide("a", 3.0)


@pytest.mark.parametrize("wanted", [Evolving(1, ";"), Evolving(2, ";")], ids=["reconfigured", "migrated"])
def test_a_serializer_of_the_user_reads_an_earlier_version(wanted: Any) -> None:
    (served,) = as_served(SketchSerializer(), [Sketch(["a", "b"])])
    assert served == b"a,b"
    assert view_of(ValueStateDescriptor("sketch", wanted), served, SketchSerializer()).value() == Sketch(["a", "b"])


def test_incompatible_types_are_named() -> None:
    with pytest.raises(
        StateMigrationError,
        match=r"totals-by-user that is compatible with int64, found string.*use the descriptor of the stage",
    ):
        view_of(ValueStateDescriptor("total", str), 7, int)


def test_user_keys_that_could_become_equal_are_refused() -> None:
    @dataclass(frozen=True)
    class OnlyX:
        x: int

    reply = reply_of(StateKind.MAP, int, ({},), user_key_type=Point)
    with pytest.raises(StateMigrationError, match="keys of a map"):
        immutable_state(reply, MapStateDescriptor("m", OnlyX, int))


def test_a_descriptor_of_another_kind_is_refused() -> None:
    with pytest.raises(
        InvalidConfigurationError, match="descriptor of a list state for 'totals-by-user', found a value"
    ):
        immutable_state(reply_of(StateKind.LIST, int, ([1],)), ValueStateDescriptor("total", int))


def test_one_entry_of_a_map_is_no_map_state() -> None:
    reply = reply_of(StateKind.MAP, int, (1,), user_key_type=str, is_entry=True)
    with pytest.raises(InvalidConfigurationError, match="without a user key"):
        immutable_state(reply, MapStateDescriptor("m", str, int))


def test_a_key_without_state_is_an_error_also_if_the_descriptor_has_a_default() -> None:
    with pytest.raises(UnknownKeyOrNamespaceError, match="the key 'user-0' in checkpoint 7"):
        immutable_state(reply_of(StateKind.VALUE, int, (ABSENT,)), ValueStateDescriptor("total", int, 5))


BOTH_READ = threading.Barrier(2)


class Exclusive(SketchSerializer):
    """Serializer that only one thread may use at a time, as the contract of serializers says."""

    is_busy = False

    def deserialize(self, data: bytes) -> Sketch:
        if self.is_busy:
            BOTH_READ.abort()
            raise AssertionError("two threads use one serializer")
        self.is_busy = True
        BOTH_READ.wait(timeout=30)
        self.is_busy = False
        return Sketch(super().deserialize(data).words)


def test_two_views_can_be_read_at_the_same_time_by_two_threads() -> None:
    sketches = [Sketch(["a"]), Sketch(["b"])]
    descriptor = ValueStateDescriptor("sketch", Exclusive())
    views = [view_of(descriptor, served) for served in as_served(SketchSerializer(), sketches)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda view: view.value(), views)) == sketches
