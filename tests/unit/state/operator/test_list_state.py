"""Lists of operator state."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.operator.states import PartitionableListState


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
