"""Lists and broadcast maps of operator state."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.state.operator.states import BroadcastState, PartitionableListState


def test_an_empty_list_is_no_none() -> None:
    assert list(PartitionableListState[int]().get()) == []


def test_elements_keep_their_order() -> None:
    state = PartitionableListState([1])
    state.add(2)
    state.add_all([3, 4])
    assert list(state.get()) == list(state) == [1, 2, 3, 4]


def test_update_replaces_all_elements() -> None:
    state = PartitionableListState([1])
    state.update(iter([5, 6]))
    assert list(state.get()) == [5, 6]
    state.update([])
    assert list(state.get()) == []


def test_clear_removes_all_elements() -> None:
    state = PartitionableListState([1])
    state.clear()
    assert list(state.get()) == []


def test_the_list_may_change_while_it_is_read() -> None:
    state = PartitionableListState([1, 2])
    for element in state.get():
        state.add(element + 10)
    assert list(state.get()) == [1, 2, 11, 12]


def test_a_given_list_stays_the_callers() -> None:
    given = [1]
    state = PartitionableListState[int]()
    state.update(given)
    given.append(2)
    assert list(state.get()) == [1]


@pytest.mark.parametrize(("method", "value"), [("add", None), ("add_all", None), ("add_all", [2, None])])
@pytest.mark.parametrize("replaces", [False, True])
def test_none_is_refused_and_changes_nothing(method: str, value: Any, replaces: bool) -> None:
    state = PartitionableListState([1])
    with pytest.raises(InvalidConfigurationError, match="found None"):
        getattr(state, "update" if replaces else method)(value)
    assert list(state.get()) == [1]


@pytest.fixture
def state() -> BroadcastState[str, int | None]:
    return BroadcastState([("a", 1), ("b", 2)])


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


def test_clear_removes_all_entries(state: State) -> None:
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


@pytest.mark.parametrize(
    ("method", "arguments"), [("put", ("a", 9)), ("put_all", ({"a": 9},)), ("remove", ("a",)), ("clear", ())]
)
def test_the_view_refuses_to_write(state: State, method: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(CoordinatorError, match=f"found a call of {method}"):
        getattr(state.read_only(), method)(*arguments)
    assert dict(state) == {"a": 1, "b": 2}
