"""Ranges of key groups, and what an operator's state may hold."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.states.handles import (
    MAX_PARALLELISM_BOUND,
    ByteStreamStateHandle,
    KeyGroupRange,
    OperatorSubtaskState,
    default_max_parallelism,
    key_group_range_of,
    key_group_ranges,
    require_parallelism,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from tests.unit.checkpoint.states.states import keyed_subtasks, make_state, operator_handle

small = st.integers(1, 600).flatmap(lambda groups: st.tuples(st.integers(1, groups), st.just(groups)))
any_range = st.builds(KeyGroupRange, st.integers(0, 50), st.integers(-1, 50))


class TestRangesOfSubtasks:
    @pytest.mark.parametrize(
        ("max_parallelism", "parallelism", "ranges"),
        [
            (10, 3, [(0, 3), (4, 6), (7, 9)]),
            (128, 3, [(0, 42), (43, 85), (86, 127)]),
            (128, 5, [(0, 25), (26, 51), (52, 76), (77, 102), (103, 127)]),
            (13, 2, [(0, 6), (7, 12)]),
            (32768, 3, [(0, 10922), (10923, 21845), (21846, 32767)]),
            (1, 1, [(0, 0)]),
        ],
    )
    def test_ranges_are_those_of_the_vectors(
        self, max_parallelism: int, parallelism: int, ranges: list[tuple[int, int]]
    ) -> None:
        assert [(r.start, r.end) for r in key_group_ranges(parallelism, max_parallelism)] == ranges

    @given(small)
    def test_ranges_are_disjoint_ordered_cover_all_and_differ_by_at_most_one(self, sizes: tuple[int, int]) -> None:
        parallelism, max_parallelism = sizes
        ranges = key_group_ranges(parallelism, max_parallelism)
        assert [group for own in ranges for group in own] == list(range(max_parallelism))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1

    @given(small, st.data())
    def test_operator_index_lies_in_the_range_that_holds_the_key_group(
        self, sizes: tuple[int, int], data: st.DataObject
    ) -> None:
        parallelism, max_parallelism = sizes
        key_group = data.draw(st.integers(0, max_parallelism - 1))
        # Spark computes the index with this expression.
        index = key_group * parallelism // max_parallelism
        assert key_group in key_group_range_of(index, parallelism, max_parallelism)

    @pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 4), (-1, 4), (5, 4), (1, 0), (1, 32769)])
    def test_parallelism_out_of_bounds_is_refused(self, parallelism: int, max_parallelism: int) -> None:
        for refuses in (
            lambda: require_parallelism(parallelism, max_parallelism),
            lambda: key_group_ranges(parallelism, max_parallelism),
            lambda: key_group_range_of(0, parallelism, max_parallelism),
        ):
            with pytest.raises(InvalidConfigurationError, match=f"max_parallelism {max_parallelism}"):
                refuses()

    def test_the_bounds_themselves_are_allowed(self) -> None:
        require_parallelism(1, 1)
        require_parallelism(32768, 32768)

    @pytest.mark.parametrize("index", [-1, 3])
    def test_subtask_out_of_bounds_is_refused(self, index: int) -> None:
        with pytest.raises(InvalidConfigurationError, match="0 to 2"):
            key_group_range_of(index, 3, 10)


class TestDefaultMaxParallelism:
    @pytest.mark.parametrize(
        ("parallelism", "expected"),
        [
            *((p, 128) for p in (1, 2, 85)),
            *((p, 256) for p in (86, 100, 171)),
            (172, 512),
            (1000, 2048),
            *((p, 32768) for p in (21845, 21846, 32768)),
        ],
    )
    def test_default_is_that_of_the_vectors(self, parallelism: int, expected: int) -> None:
        assert default_max_parallelism(parallelism) == expected

    @given(st.integers(1, MAX_PARALLELISM_BOUND))
    def test_default_is_a_power_of_two_that_holds_the_parallelism(self, parallelism: int) -> None:
        groups = default_max_parallelism(parallelism)
        assert groups & (groups - 1) == 0
        require_parallelism(parallelism, groups)

    @pytest.mark.parametrize("parallelism", [0, 32769])
    def test_parallelism_out_of_bounds_has_none(self, parallelism: int) -> None:
        with pytest.raises(InvalidConfigurationError):
            default_max_parallelism(parallelism)


class TestKeyGroupRange:
    def test_ranges_with_start_behind_end_are_the_empty_one(self) -> None:
        assert KeyGroupRange(5, 4) == KeyGroupRange(9, 0) == KeyGroupRange(-3, -7)
        assert len(KeyGroupRange(5, 4)) == 0
        assert list(KeyGroupRange(5, 4)) == []
        assert 0 not in KeyGroupRange(5, 4)

    def test_negative_start_is_refused(self) -> None:
        with pytest.raises(InvalidConfigurationError, match="-1"):
            KeyGroupRange(-1, 3)

    def test_key_groups_come_in_ascending_order(self) -> None:
        assert list(KeyGroupRange(2, 5)) == [2, 3, 4, 5]

    @given(any_range, any_range)
    def test_intersection_holds_what_is_in_both(self, one: KeyGroupRange, other: KeyGroupRange) -> None:
        common = one.intersection(other)
        assert list(common) == [group for group in one if group in other]
        assert common == other.intersection(one)


SOME = OperatorSubtaskState(managed_operator=(operator_handle("f", a=[0]),))


def test_state_is_put_for_each_subtask() -> None:
    state = make_state().put_state(0, SOME).put_state(1, OperatorSubtaskState())
    assert state.subtask_states == {0: SOME, 1: OperatorSubtaskState()}
    assert state.state_size == 100


def test_putting_state_leaves_the_operator_as_it_was() -> None:
    before = make_state()
    before.put_state(0, SOME)
    assert before == make_state()


@pytest.mark.parametrize("index", [-1, 2])
def test_subtask_that_the_operator_does_not_have_is_refused(index: int) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"0 to 1, found {index}"):
        make_state().put_state(index, SOME)
    with pytest.raises(InvalidConfigurationError, match=f"0 to 1, found {index}"):
        make_state(subtask_states={index: SOME})


def test_fully_finished_operator_refuses_state_of_subtasks() -> None:
    finished = make_state(is_fully_finished=True)
    with pytest.raises(InvalidConfigurationError, match="fully finished operator 'sum'"):
        finished.put_state(0, OperatorSubtaskState())
    with pytest.raises(InvalidConfigurationError, match="fully finished operator 'sum'"):
        make_state(is_fully_finished=True, subtask_states=keyed_subtasks(2, 128))


def test_stateless_subtask_leaves_the_operator_present_without_entry() -> None:
    assert make_state().subtask_states == {}
    assert not make_state().has_state


@pytest.mark.parametrize("kind", ["managed_operator", "raw_operator", "managed_keyed"])
def test_subtask_has_state_if_any_collection_has(kind: str) -> None:
    some = keyed_subtasks(1, 1)[0].managed_keyed if "keyed" in kind else SOME.managed_operator
    assert not OperatorSubtaskState().has_state
    assert OperatorSubtaskState(**{kind: some}).has_state  # type: ignore[arg-type]
    assert make_state().put_state(1, OperatorSubtaskState(**{kind: some})).has_state  # type: ignore[arg-type]


def test_state_of_the_coordinator_is_state_and_counts() -> None:
    state = make_state(coordinator_state=ByteStreamStateHandle("c", b"12345"))
    assert state.has_state
    assert state.put_state(0, SOME).state_size == 105
