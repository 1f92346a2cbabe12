"""How operator state goes to another number of subtasks, against vectors and properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.states.assignment import Handles, redistribute
from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    OperatorStateHandle,
    OperatorStateMeta,
)
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError
from tests.unit.checkpoint.states.states import BROADCAST, SPLIT, UNION, file, operator_handle

Element = tuple[str, int]


def elements(handles: Sequence[OperatorStateHandle], name: str) -> list[Element]:
    """Return what a subtask reads of a named state, in order."""
    return [
        (handle.stream.uri, offset)  # type: ignore[union-attr]
        for handle in handles
        for own, meta in handle.states
        if own == name
        for offset in meta.offsets
    ]


def offsets(subtasks: Sequence[Handles], name: str) -> list[list[int]]:
    return [[offset for _, offset in elements(handles, name)] for handles in subtasks]


def lists(mode: DistributionMode = SPLIT, /, **named: list[list[int]]) -> list[Handles]:
    """Make the handles of subtasks that write one file each, from the elements of each name by subtask."""
    number = len(next(iter(named.values())))
    return [(operator_handle(f"{i}", mode, **{name: of[i] for name, of in named.items()}),) for i in range(number)]


class TestSplit:
    def test_elements_are_dealt_out_in_order(self) -> None:
        dealt = redistribute(lists(a=[[1, 2, 3], [4, 5, 6, 7]]), 2, 3)
        assert offsets(dealt, "a") == [[1, 2, 3], [4, 5], [6, 7]]

    def test_next_name_begins_with_the_first_subtask_that_got_no_extra_element(self) -> None:
        dealt = redistribute(lists(a=[[1, 2, 3], [4, 5, 6, 7]], b=[[10], [20]]), 2, 3)
        assert offsets(dealt, "a") == [[1, 2, 3], [4, 5], [6, 7]]
        assert offsets(dealt, "b") == [[], [10], [20]]

    def test_fewer_subtasks_take_more(self) -> None:
        assert offsets(redistribute(lists(a=[[1], [2], [3]]), 3, 2), "a") == [[1, 2], [3]]

    def test_more_subtasks_than_elements_leave_some_without(self) -> None:
        dealt = redistribute(lists(a=[[1], [2]], b=[[10], [20]]), 2, 5)
        assert offsets(dealt, "a") == [[1], [2], [], [], []]
        assert offsets(dealt, "b") == [[], [], [10], [20], []]
        assert dealt[4] == ()

    def test_names_are_dealt_out_in_sorted_order_however_they_were_written(self) -> None:
        named = {"z": [[1], [2]], "a": [[10], [20]]}
        dealt = redistribute(lists(**named), 2, 5)
        assert offsets(dealt, "a") == [[10], [20], [], [], []]
        assert dealt == redistribute(lists(**dict(reversed(named.items()))), 2, 5)

    def test_without_extra_elements_the_start_stays(self) -> None:
        dealt = redistribute(lists(a=[[1, 2], [3, 4]], b=[[10], []]), 2, 4)
        assert offsets(dealt, "b") == [[10], [], [], []]

    def test_start_wraps_around(self) -> None:
        dealt = redistribute(lists(a=[[1], [2]], b=[[10], [20]], c=[[5], []]), 2, 3)
        assert offsets(dealt, "b") == [[20], [], [10]]
        assert offsets(dealt, "c") == [[], [5], []]

    def test_equal_parallelism_redistributes_nothing(self) -> None:
        old = lists(a=[[1, 2, 3], []])
        assert all(new is before for new, before in zip(redistribute(old, 2, 2), old, strict=True))

    def test_empty_lists_give_nothing(self) -> None:
        assert redistribute(lists(a=[[], []]), 2, 3) == ((), (), ())


class TestUnion:
    @pytest.mark.parametrize("new", [1, 2, 3])
    def test_every_subtask_gets_every_element_also_with_equal_parallelism(self, new: int) -> None:
        assert offsets(redistribute(lists(UNION, a=[[1, 2], [3]]), 2, new), "a") == [[1, 2, 3]] * new

    def test_other_states_stay_where_they_are_with_equal_parallelism(self) -> None:
        union = lists(UNION, u=[[1], [2]])
        split = lists(SPLIT, s=[[7, 8, 9], []])
        old = [u + s for u, s in zip(union, split, strict=True)]
        dealt = redistribute(old, 2, 2)
        assert offsets(dealt, "u") == [[1, 2]] * 2
        assert offsets(dealt, "s") == [[7, 8, 9], []]


class TestBroadcast:
    def test_subtasks_get_copies_in_turn(self) -> None:
        dealt = redistribute(lists(BROADCAST, a=[[1], [2]]), 2, 5)
        assert offsets(dealt, "a") == [[1], [2], [1], [2], [1]]

    def test_copies_come_from_those_that_reported_one(self) -> None:
        old = [(), *lists(BROADCAST, a=[[1], [2]])]
        assert offsets(redistribute(old, 3, 4), "a") == [[1], [2], [1], [2]]

    def test_equal_parallelism_changes_nothing(self) -> None:
        old = lists(BROADCAST, a=[[1], [2]])
        assert all(new is before for new, before in zip(redistribute(old, 2, 2), old, strict=True))

    def test_subtask_without_one_gets_the_copy_of_another_with_equal_parallelism(self) -> None:
        own = lists(BROADCAST, a=[[1], [2]])
        dealt = redistribute([own[0], (), own[1]], 3, 3)
        assert offsets(dealt, "a") == [[1], [2], [2]]
        assert (dealt[0], dealt[2]) == (own[0], own[1])

    def test_nothing_reported_gives_nothing(self) -> None:
        assert redistribute([(), ()], 2, 3) == ((), (), ())


class TestHandles:
    def test_handles_of_one_file_are_merged(self) -> None:
        old = [(operator_handle("one", a=[1]),), (operator_handle("one", a=[5], b=[9]),)]
        (merged,) = redistribute(old, 2, 1)[0]
        assert merged == operator_handle("one", a=[1, 5], b=[9])

    def test_handles_are_kept_apart_where_one_would_change_the_order(self) -> None:
        old = [(operator_handle("x", a=[1]), operator_handle("y", a=[2]), operator_handle("x", a=[3])), ()]
        assert offsets(redistribute(old, 2, 1), "a") == [[1, 2, 3]]

    def test_files_of_old_subtasks_come_in_their_order(self) -> None:
        old = lists(a=[[1], []], b=[[10], [20]])
        assert offsets(redistribute(old, 2, 1), "b") == [[10, 20]]


class TestPreconditions:
    @pytest.mark.parametrize("new", [0, -1])
    def test_new_parallelism_below_one_is_refused(self, new: int) -> None:
        with pytest.raises(InvalidConfigurationError, match=f"at least 1, found {new}"):
            redistribute([()], 1, new)

    @pytest.mark.parametrize("old", [1, 3])
    def test_another_number_of_old_subtasks_is_refused(self, old: int) -> None:
        with pytest.raises(InvalidConfigurationError, match=f"{old} subtasks, found that of 2"):
            redistribute([(), ()], old, 2)

    def test_subtasks_that_disagree_on_a_mode_are_refused(self) -> None:
        old = [(operator_handle("x", SPLIT, a=[1]),), (operator_handle("y", UNION, a=[2]),)]
        with pytest.raises(IncompatibleCheckpointError, match="'a' by split_distribute, found union"):
            redistribute(old, 2, 3)


NAMES = ("a", "b", "c")
subtask_lists = st.lists(st.fixed_dictionaries({name: st.integers(0, 4) for name in NAMES}), min_size=1, max_size=5)


def _written(lengths: list[dict[str, int]], mode: DistributionMode) -> list[Handles]:
    written: list[Handles] = []
    for subtask, named in enumerate(lengths):
        states = tuple((name, OperatorStateMeta(tuple(range(number)), mode)) for name, number in named.items())
        written.append((OperatorStateHandle(states, file(str(subtask))),))
    return written


@given(subtask_lists, st.integers(1, 7))
def test_split_keeps_every_element_once_and_in_order(lengths: list[dict[str, int]], new: int) -> None:
    old = _written(lengths, SPLIT)
    dealt = redistribute(old, len(old), new)
    for name in NAMES:
        before = [element for handles in old for element in elements(handles, name)]
        assert Counter(e for handles in dealt for e in elements(handles, name)) == Counter(before)
        for handles in dealt:
            own = elements(handles, name)
            first = before.index(own[0]) if own else 0
            assert own == before[first : first + len(own)]


@given(subtask_lists, st.integers(1, 7))
def test_totals_over_all_names_differ_by_at_most_one(lengths: list[dict[str, int]], new: int) -> None:
    if new == len(lengths):
        return
    dealt = redistribute(_written(lengths, SPLIT), len(lengths), new)
    totals = [sum(len(elements(handles, name)) for name in NAMES) for handles in dealt]
    assert max(totals) - min(totals) <= 1


@given(subtask_lists, st.integers(1, 7))
def test_union_gives_all_elements_in_order_to_all(lengths: list[dict[str, int]], new: int) -> None:
    old = _written(lengths, UNION)
    for name in NAMES:
        before = [element for handles in old for element in elements(handles, name)]
        assert all(elements(handles, name) == before for handles in redistribute(old, len(old), new))


@given(subtask_lists, st.integers(1, 7))
def test_broadcast_gives_a_whole_copy_to_all(lengths: list[dict[str, int]], new: int) -> None:
    old = _written(lengths, BROADCAST)
    for index, handles in enumerate(redistribute(old, len(old), new)):
        for name in NAMES:
            assert elements(handles, name) == elements(old[index % len(old)], name)


@given(subtask_lists, st.integers(1, 7))
def test_one_subtask_has_one_handle_for_each_file(lengths: list[dict[str, int]], new: int) -> None:
    for handles in redistribute(_written(lengths, SPLIT), len(lengths), new):
        streams = [handle.stream for handle in handles]
        assert len(streams) == len(set(streams))


def test_thousands_of_subtasks_are_dealt_out_in_a_pass() -> None:
    old = _written([{"a": 3, "b": 2}] * 4000, SPLIT)
    dealt = redistribute(old, 4000, 5000)
    assert sum(len(elements(handles, "a")) for handles in dealt) == 12000
