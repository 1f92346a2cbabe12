"""Who gets which state on a restore with another number of subtasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.states.assignment import (
    Handles,
    assign_states,
    intersection_of,
    redistribute,
    redistribute_keyed,
)
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    key_group_range_of,
    key_group_ranges,
)
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError
from tests.unit.checkpoint.states.states import (
    BROADCAST,
    SPLIT,
    UNION,
    file,
    keyed_handle,
    keyed_subtasks,
    make_full_state,
    make_state,
    make_target,
    operator_handle,
)

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

    @pytest.mark.parametrize("new", [2, 3])
    def test_elements_that_several_idle_subtasks_still_hold_are_given_once(self, new: int) -> None:
        restored = redistribute(lists(UNION, a=[[1, 2], [3]]), 2, 3)
        (own,) = lists(UNION, a=[[9]])
        (moved,) = (replace(handle, stream=file("own")) for handle in own)
        assert offsets(redistribute([(moved,), *restored[1:]], 3, new), "a") == [[9, 1, 2, 3]] * new

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


INCREMENTAL = KeyedStateHandle(
    backend_id="b", key_group_range=KeyGroupRange(0, 4), checkpoint_id=3, shared=(("x", file("x")),)
)
sizes = st.integers(1, 200).flatmap(
    lambda groups: st.tuples(st.integers(1, groups), st.integers(1, groups), st.just(groups))
)


def written(parallelism: int, max_parallelism: int) -> list[tuple[KeyedStateHandle, ...]]:
    ranges = key_group_ranges(parallelism, max_parallelism)
    return [(keyed_handle(own, f"{index}"),) for index, own in enumerate(ranges)]


def places(handles: tuple[KeyedStateHandle, ...]) -> list[tuple[int, str]]:
    """Return the file of each key group."""
    return [(group, path) for handle in handles for group in handle.key_group_range for path, _ in handle.shared]


def test_equal_parallelism_gives_each_subtask_its_very_own_handles() -> None:
    old = written(3, 10)
    assert all(new is before for new, before in zip(redistribute_keyed(old, 3, 10), old, strict=True))


def test_handles_are_cut_to_the_new_ranges() -> None:
    one, two = redistribute_keyed(written(3, 10), 2, 10)
    assert [handle.key_group_range for handle in one] == [KeyGroupRange(0, 3), KeyGroupRange(4, 4)]
    assert [handle.key_group_range for handle in two] == [KeyGroupRange(5, 6), KeyGroupRange(7, 9)]
    assert one[1] == keyed_handle(KeyGroupRange(4, 4), "1")


def test_handle_without_a_common_key_group_is_not_given() -> None:
    assert intersection_of(keyed_handle(KeyGroupRange(0, 4)), KeyGroupRange(5, 9)) is None
    assert intersection_of(INCREMENTAL, KeyGroupRange(5, 9)) is None


def test_incremental_state_is_given_with_the_common_range_to_all_that_have_one() -> None:
    assert intersection_of(INCREMENTAL, KeyGroupRange(4, 9)) == replace(
        INCREMENTAL, key_group_range=KeyGroupRange(4, 4)
    )
    first, second = (replace(INCREMENTAL, key_group_range=KeyGroupRange(*own)) for own in ((0, 3), (4, 4)))
    assert redistribute_keyed([(INCREMENTAL,), ()], 3, 10) == ((first,), (second,), ())


def test_subtask_without_state_gives_nothing() -> None:
    old = written(2, 10)
    assert redistribute_keyed([old[0], ()], 10, 10)[5:] == ((),) * 5


@given(sizes)
def test_every_key_group_goes_to_its_owner_and_to_nobody_else(given_sizes: tuple[int, int, int]) -> None:
    old, new, groups = given_sizes
    dealt = redistribute_keyed(written(old, groups), new, groups)
    for own, handles in zip(key_group_ranges(new, groups), dealt, strict=True):
        assert [group for group, _ in places(handles)] == list(own)


@given(sizes)
def test_there_and_back_every_key_group_is_where_it_was(given_sizes: tuple[int, int, int]) -> None:
    old, new, groups = given_sizes
    before = written(old, groups)
    after = redistribute_keyed(redistribute_keyed(before, new, groups), old, groups)
    assert [places(handles) for handles in after] == [places(handles) for handles in before]


SUM = operator_id_of("sum")


def ranges(handles: tuple[KeyedStateHandle, ...]) -> list[KeyGroupRange]:
    return [handle.key_group_range for handle in handles]


def full_state() -> OperatorState:
    """Make state of two subtasks with every kind of handle."""
    subtasks = {
        index: OperatorSubtaskState(
            managed_operator=(operator_handle(f"m{index}", a=[index]),),
            raw_operator=(operator_handle(f"r{index}", a=[index]),),
            managed_keyed=(keyed_handle(key_group_range_of(index, 2, 128), f"k{index}"),),
        )
        for index in range(2)
    }
    return make_state(subtask_states=subtasks)


def test_equal_parallelism_gives_each_subtask_what_it_had() -> None:
    state = full_state()
    assignment = assign_states([make_target()], [state])
    assert assignment.subtask_states == {(SUM, i): subtask for i, subtask in state.subtask_states.items()}
    assert assignment.subtask_states[SUM, 1].managed_keyed[0] is state.subtask_states[1].managed_keyed[0]
    assert assignment.subtask_states[SUM, 1].raw_operator[0] is state.subtask_states[1].raw_operator[0]


def test_another_parallelism_gives_every_kind_of_state_to_its_new_owner() -> None:
    only = assign_states([make_target(parallelism=1)], [full_state()]).subtask_states[SUM, 0]
    assert [handle.stream for handle in only.managed_operator] == [operator_handle(f"m{i}").stream for i in range(2)]
    assert [handle.stream for handle in only.raw_operator] == [operator_handle(f"r{i}").stream for i in range(2)]
    assert ranges(only.managed_keyed) == [KeyGroupRange(0, 63), KeyGroupRange(64, 127)]
    assert [path for handle in only.managed_keyed for path, _ in handle.shared] == ["k0", "k1"]


def test_subtask_for_which_there_is_nothing_has_no_entry() -> None:
    state = make_state(subtask_states={0: keyed_subtasks(2, 128)[0]})
    assert assign_states([make_target()], [state]).subtask_states.keys() == {(SUM, 0)}


def test_operator_that_gained_subtasks_has_some_without_state() -> None:
    state = make_state(
        subtask_states={
            0: OperatorSubtaskState(managed_operator=(operator_handle("x", a=[1, 2]),)),
        }
    )
    assert assign_states([make_target(parallelism=5)], [state]).subtask_states.keys() == {(SUM, 0), (SUM, 1)}


def test_union_state_reaches_subtasks_that_had_none() -> None:
    state = make_state(subtask_states={0: OperatorSubtaskState(managed_operator=(operator_handle("x", UNION, a=[1]),))})
    assert assign_states([make_target()], [state]).subtask_states.keys() == {(SUM, 0), (SUM, 1)}


def test_keyed_state_is_cut_by_the_restored_number_of_key_groups() -> None:
    state = make_full_state(max_parallelism=10)
    assignment = assign_states([make_target(parallelism=3, max_parallelism=128)], [state])
    assert assignment.max_parallelisms == {SUM: 10}
    assert ranges(assignment.subtask_states[SUM, 1].managed_keyed) == [KeyGroupRange(4, 4), KeyGroupRange(5, 6)]


def test_state_of_renamed_operator_goes_to_the_new_one() -> None:
    assignment = assign_states([make_target("total")], [make_full_state("sum")], renamed_uids={"sum": "total"})
    assert assignment.subtask_states.keys() == {(operator_id_of("total"), 0), (operator_id_of("total"), 1)}


def test_operators_are_matched_one_by_one_whichever_task_hosts_them() -> None:
    states = [make_full_state("a"), make_full_state("b", parallelism=3)]
    together = assign_states([make_target("a"), make_target("b", parallelism=3)], states)
    apart = [
        assign_states([target], states, allow_non_restored_state=True)
        for target in (make_target("a"), make_target("b", parallelism=3))
    ]
    assert together.subtask_states == apart[0].subtask_states | apart[1].subtask_states


def test_state_of_coordinators_is_given_by_operator() -> None:
    handle = ByteStreamStateHandle("c", b"x")
    states = [make_state(coordinator_state=handle), make_full_state("other")]
    assert assign_states([make_target(), make_target("other")], states).coordinator_states == {SUM: handle}


def test_finished_operators_are_told_and_get_nothing() -> None:
    assignment = assign_states([make_target()], [make_state(is_fully_finished=True)])
    assert assignment.finished == {SUM}
    assert assignment.subtask_states == {}


def test_new_operator_starts_without_state() -> None:
    assignment = assign_states([make_target("new")], [])
    assert [target.uid for target in assignment.matched.new] == ["new"]
    assert not assignment.subtask_states
    assert not assignment.max_parallelisms


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        (make_target("other"), {}),
        (make_target(max_parallelism=64, is_max_parallelism_configured=True), {}),
        (make_target(parallelism=1), {"all_or_nothing_state": True}),
    ],
    ids=["no operator", "key groups", "subset"],
)
def test_nothing_is_given_if_anything_does_not_fit(target: object, changes: dict[str, bool]) -> None:
    state = make_state(subtask_states={0: keyed_subtasks(2, 128)[0]})
    with pytest.raises(IncompatibleCheckpointError):
        assign_states([target], [state], **changes)  # type: ignore[list-item, arg-type]
