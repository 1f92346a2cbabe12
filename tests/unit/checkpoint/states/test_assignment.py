"""Who gets which state on restore."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.states.assignment import assign_states
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorSubtaskState,
    key_group_range_of,
)
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from tests.unit.checkpoint.states.states import (
    UNION,
    keyed_handle,
    keyed_subtasks,
    make_full_state,
    make_state,
    make_target,
    operator_handle,
)

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


@given(st.integers(1, 40), st.integers(1, 40))
def test_rescaled_operator_covers_all_key_groups_once(old: int, new: int) -> None:
    state = make_full_state(parallelism=old, max_parallelism=64)
    assignment = assign_states([make_target(parallelism=new)], [state])
    for index in range(new):
        handles = assignment.subtask_states[SUM, index].managed_keyed
        assert [group for own in ranges(handles) for group in own] == list(key_group_range_of(index, new, 64))
