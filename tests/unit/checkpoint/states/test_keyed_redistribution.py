"""How keyed state goes to another number of subtasks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.states.assignment import intersection_of, redistribute_keyed
from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    KeyGroupRange,
    key_group_ranges,
)
from tests.unit.checkpoint.states.states import file, keyed_handle

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
