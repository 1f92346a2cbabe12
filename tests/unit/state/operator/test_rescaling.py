"""Operator state that goes to another number of subtasks, through real streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.states.assignment import assign_states
from airflow_provider_statecheck.checkpoint.states.compatibility import RestoreTarget
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState, OperatorSubtaskState
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.loading import MemoryCheckpointStreamFactory
from tests.unit.state.operator.snapshots import numbers, rates, restored, saved_subtask

STREAMS = MemoryCheckpointStreamFactory(max_state_size=1_000_000)
STORAGE = CheckpointStorage.open("memory://statecheck-rescaling")
OPERATOR = operator_id_of("buffer")

Subtasks = list[DefaultOperatorStateBackend]


def subtasks(number: int) -> Subtasks:
    return [DefaultOperatorStateBackend() for _ in range(number)]


def with_lists(**named: Sequence[Sequence[str]]) -> Subtasks:
    """Make subtasks from the elements of each name by subtask."""
    made = subtasks(len(next(iter(named.values()))))
    for name, of in named.items():
        for backend, elements in zip(made, of, strict=True):
            backend.get_list_state(numbers(name, str)).update(elements)
    return made


def rescaled(old: Subtasks, parallelism: int) -> Subtasks:
    """Take a snapshot and restore it."""
    state = OperatorState(
        operator_id=OPERATOR,
        uid="buffer",
        parallelism=len(old),
        max_parallelism=128,
        subtask_states={index: saved_subtask(backend, STREAMS) for index, backend in enumerate(old)},
    )
    target = RestoreTarget(operator_id=OPERATOR, uid="buffer", parallelism=parallelism, max_parallelism=128)
    given = assign_states([target], [state]).subtask_states
    nothing = OperatorSubtaskState()
    return [restored(STORAGE, given.get((OPERATOR, index), nothing).managed_operator) for index in range(parallelism)]


def lists(found: Subtasks, name: str) -> list[str]:
    """Return the elements of each subtask as one text."""
    return ["".join(backend.get_list_state(numbers(name, str))) for backend in found]


@pytest.mark.parametrize(
    ("old", "parallelism", "expected"),
    [
        ({"a": ["123", "4567"]}, 3, {"a": ["123", "45", "67"]}),
        ({"a": ["123", "4567"], "b": ["x", "y"]}, 3, {"a": ["123", "45", "67"], "b": ["", "x", "y"]}),
        ({"a": ["1", "2", "3"]}, 2, {"a": ["12", "3"]}),
        ({"a": ["1", "2"], "b": ["x", "y"]}, 5, {"a": ["1", "2", "", "", ""], "b": ["", "", "x", "y", ""]}),
        ({"a": ["12", "3"]}, 2, {"a": ["12", "3"]}),
    ],
)
def test_elements_of_lists_are_dealt_out_evenly(
    old: Mapping[str, Sequence[str]], parallelism: int, expected: Mapping[str, Sequence[str]]
) -> None:
    found = rescaled(with_lists(**old), parallelism)
    assert {name: lists(found, name) for name in old} == expected


def test_each_subtask_gets_the_copy_of_one_old_subtask() -> None:
    old = subtasks(2)
    for index, backend in enumerate(old):
        backend.get_broadcast_state(rates("r", str, int)).put_all({"same": 1, "from": index})
    found = rescaled(old, 5)
    maps = [dict(backend.get_broadcast_state(rates("r", str, int))) for backend in found]
    assert maps == [{"same": 1, "from": index % 2} for index in range(5)]


def test_subtasks_that_reported_no_map_get_the_copy_of_another() -> None:
    old = subtasks(3)
    for backend in old:
        backend.get_list_state(numbers("l")).add(1)
    old[1].get_broadcast_state(rates("r", str, int)).put("a", 1)
    found = rescaled(old, 3)
    assert [dict(backend.get_broadcast_state(rates("r", str, int))) for backend in found] == [{"a": 1}] * 3


def test_dealt_out_state_is_dealt_out_again() -> None:
    found = rescaled(rescaled(rescaled(with_lists(a=["123", "4567"]), 5), 2), 3)
    assert lists(found, "a") == ["123", "45", "67"]


def test_state_that_nobody_asks_for_is_dealt_out_too() -> None:
    unread = rescaled(with_lists(a=["123", "4567"]), 5)
    assert [backend.get_registered_state_names() for backend in unread] == [{"a"}] * 5
    assert lists(rescaled(unread, 3), "a") == ["123", "45", "67"]


ELEMENTS = st.lists(st.lists(st.text("abc", min_size=1, max_size=2), max_size=6), min_size=1, max_size=4)


@settings(deadline=None)
@given(of_subtasks=ELEMENTS, parallelisms=st.lists(st.integers(1, 7), min_size=1, max_size=3))
def test_no_element_is_lost_or_doubled_however_often_it_moves(
    of_subtasks: list[list[str]], parallelisms: list[int]
) -> None:
    before = Counter(element for elements in of_subtasks for element in elements)
    found = with_lists(a=of_subtasks)
    for parallelism in parallelisms:
        found = rescaled(found, parallelism)
    moved = [list(backend.get_list_state(numbers("a", str))) for backend in found]
    assert Counter(element for elements in moved for element in elements) == before


@settings(deadline=None)
@given(of_subtasks=ELEMENTS, parallelism=st.integers(1, 7))
def test_shares_of_lists_differ_by_one_element_at_most(of_subtasks: list[list[str]], parallelism: int) -> None:
    found = rescaled(with_lists(a=of_subtasks), parallelism)
    sizes = [len(list(backend.get_list_state(numbers("a", str)))) for backend in found]
    assert len(of_subtasks) == parallelism or max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(of_subtasks=ELEMENTS, parallelism=st.integers(1, 7))
def test_each_union_list_is_all_elements_in_the_order_of_subtasks(
    of_subtasks: list[list[str]], parallelism: int
) -> None:
    old = subtasks(len(of_subtasks))
    for backend, elements in zip(old, of_subtasks, strict=True):
        backend.get_union_list_state(numbers("u", str)).update(elements)
    union = [element for elements in of_subtasks for element in elements]
    for backend in rescaled(old, parallelism):
        assert list(backend.get_union_list_state(numbers("u", str))) == union
