"""Handles of states, and which states can be restored into which."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.ids import OperatorId, operator_id_of
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
from airflow_provider_statecheck.checkpoint.states.matching import (
    MatchedStates,
    match_states,
    restored_max_parallelism,
    validate_states,
)
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError
from tests.unit.checkpoint.states.states import (
    keyed_subtasks,
    make_full_state,
    make_state,
    make_target,
    operator_handle,
)

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
        for bound in (1, 32768):
            require_parallelism(bound, bound)
            assert key_group_ranges(bound, bound)[-1] == KeyGroupRange(bound - 1, bound - 1)

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


def uids(matched: MatchedStates) -> dict[str, str]:
    return {target.uid: state.uid for target, state in matched.pairs}


def test_operators_are_matched_by_uid_whatever_their_order_and_name() -> None:
    targets = [make_target("b", name="other"), make_target("a")]
    matched = match_states(targets, [make_state("a"), make_state("b")])
    assert uids(matched) == {"a": "a", "b": "b"}
    assert not matched.new
    assert not matched.unmatched


def test_uid_counts_before_the_id() -> None:
    other = operator_id_of("other")
    targets = [make_target("a", operator_id=other), make_target("b", operator_id=operator_id_of("a"))]
    matched = match_states(targets, [make_state("a")])
    assert uids(matched) == {"a": "a"}
    assert [target.uid for target in matched.new] == ["b"]


def test_operator_without_uid_is_matched_by_its_generated_id() -> None:
    generated = OperatorId("f" * 32)
    matched = match_states(
        [make_target("", operator_id=generated)], [make_state("", operator_id=generated), make_state("a")]
    )
    assert [(target.operator_id, state.operator_id) for target, state in matched.pairs] == [(generated, generated)]
    assert [state.uid for state in matched.unmatched] == ["a"]


def test_operator_that_got_a_uid_still_finds_its_state_by_id() -> None:
    generated = OperatorId("f" * 32)
    matched = match_states([make_target("named", operator_id=generated)], [make_state("", operator_id=generated)])
    assert len(matched.pairs) == 1


def test_state_found_by_uid_is_not_disturbed_by_another_of_the_same_id() -> None:
    generated = OperatorId("f" * 32)
    states = [make_state("old", operator_id=generated), make_state("a", operator_id=OperatorId("e" * 32))]
    matched = match_states([make_target("a", operator_id=generated)], states)
    assert uids(matched) == {"a": "a"}
    assert [state.uid for state in matched.unmatched] == ["old"]


def test_what_is_left_on_either_side_is_told() -> None:
    matched = match_states([make_target("new")], [make_state("gone")])
    assert [target.uid for target in matched.new] == ["new"]
    assert [state.uid for state in matched.unmatched] == ["gone"]


class TestRenames:
    def test_renamed_operator_finds_its_state(self) -> None:
        assert uids(match_states([make_target("new")], [make_state("old")], {"old": "new"})) == {"new": "old"}

    def test_two_operators_can_change_places(self) -> None:
        states = [make_state("a"), make_state("b")]
        matched = match_states([make_target("a"), make_target("b")], states, {"a": "b", "b": "a"})
        assert uids(matched) == {"a": "b", "b": "a"}

    def test_rename_that_was_done_may_stay(self) -> None:
        assert uids(match_states([make_target("new")], [make_state("new")], {"old": "new"})) == {"new": "new"}

    def test_renamed_state_does_not_fall_back_to_its_old_operator(self) -> None:
        matched = match_states([make_target("old")], [make_state("old")], {"old": "elsewhere"})
        assert [state.uid for state in matched.unmatched] == ["old"]

    def test_two_states_for_one_operator_are_refused(self) -> None:
        with pytest.raises(IncompatibleCheckpointError, match="'new', found those of 'old' and 'new'"):
            match_states([make_target("new")], [make_state("old"), make_state("new")], {"old": "new"})


def test_two_states_of_one_generated_id_are_refused() -> None:
    state = make_state("", operator_id=OperatorId("f" * 32))
    with pytest.raises(IncompatibleCheckpointError, match="Expected one state"):
        match_states([make_target("", operator_id=state.operator_id)], [state, replace(state, name="again")])


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("uid", make_target("a", operator_id=OperatorId("f" * 32))),
        ("id", make_target("b", operator_id=operator_id_of("a"))),
    ],
    ids=["uid", "id"],
)
def test_operators_that_share_a_uid_or_id_are_refused(what: str, other: object) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"a unique {what} for each operator"):
        match_states([make_target("a"), other], [])  # type: ignore[list-item]


def test_equal_max_parallelism_is_kept() -> None:
    assert restored_max_parallelism(make_state(), make_target(is_max_parallelism_configured=True)) == 128


@pytest.mark.parametrize("is_configured", [True, False])
def test_more_subtasks_than_restored_key_groups_are_refused(is_configured: bool) -> None:
    target = make_target(parallelism=200, max_parallelism=256, is_max_parallelism_configured=is_configured)
    with pytest.raises(IncompatibleCheckpointError, match="max_parallelism=128, the job asks for parallelism=200"):
        restored_max_parallelism(make_state(), target)


def test_as_many_subtasks_as_restored_key_groups_are_allowed() -> None:
    assert restored_max_parallelism(make_state(), make_target(parallelism=128, max_parallelism=256)) == 128


@pytest.mark.parametrize("max_parallelism", [64, 256])
def test_changed_configured_max_parallelism_is_refused(max_parallelism: int) -> None:
    target = make_target(max_parallelism=max_parallelism, is_max_parallelism_configured=True)
    with pytest.raises(IncompatibleCheckpointError, match=f"{max_parallelism}, which cannot be changed; set it to 128"):
        restored_max_parallelism(make_state(), target)


@pytest.mark.parametrize("max_parallelism", [64, 256])
def test_changed_derived_max_parallelism_gives_way(max_parallelism: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert restored_max_parallelism(make_state(), make_target(max_parallelism=max_parallelism)) == 128
    assert "uses max_parallelism=128" in caplog.text


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 1), (3, 2), (1, 32769)])
def test_operator_out_of_bounds_cannot_be_restored(parallelism: int, max_parallelism: int) -> None:
    with pytest.raises(InvalidConfigurationError):
        make_target(parallelism=parallelism, max_parallelism=max_parallelism)


class TestStateWithoutOperator:
    STATES = (make_full_state("features"), make_full_state("totals"), make_full_state("kept"))

    def test_all_of_it_is_listed_with_names_uids_and_the_nearest_current_uids(self) -> None:
        targets = [make_target("feature"), make_target("kept")]
        with pytest.raises(IncompatibleCheckpointError) as caught:
            validate_states(targets, self.STATES)
        text = str(caught.value)
        assert "'features' (name 'Features'" in text
        assert "nearest are 'feature'" in text
        assert "'totals' (name 'Totals'" in text
        assert "'kept' (" not in text
        assert "set allow_non_restored_state" in text
        assert caught.value.operator_ids == (self.STATES[0].operator_id, self.STATES[1].operator_id)

    def test_it_is_dropped_with_a_log_line_where_that_is_allowed(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        matched = validate_states([make_target("kept")], self.STATES, allow_non_restored_state=True)
        assert [state.uid for state in matched.unmatched] == ["features", "totals"]
        assert "'features'" in caplog.text
        assert "'totals'" in caplog.text

    @pytest.mark.parametrize(
        "state",
        [
            make_state("gone"),
            make_state("gone", subtask_states={0: OperatorSubtaskState()}),
            make_state("gone", is_fully_finished=True),
        ],
        ids=["no entry", "empty entry", "finished"],
    )
    def test_empty_state_is_always_skipped(self, state: object) -> None:
        matched = validate_states([make_target("kept")], [state])  # type: ignore[list-item]
        assert (matched.pairs, [target.uid for target in matched.new]) == ((), ["kept"])

    def test_state_of_a_coordinator_alone_counts(self) -> None:
        state = make_state("gone", coordinator_state=ByteStreamStateHandle("c", b"x"))
        with pytest.raises(IncompatibleCheckpointError, match="'gone'"):
            validate_states([make_target("kept")], [state])

    def test_rename_to_an_operator_that_is_not_there_is_told(self) -> None:
        with pytest.raises(
            IncompatibleCheckpointError, match=r"'features' renamed to 'feature_'.*nearest are 'feature'"
        ):
            validate_states([make_target("feature")], [self.STATES[0]], renamed_uids={"features": "feature_"})


class TestMaxParallelism:
    def test_state_with_other_key_groups_than_configured_is_refused(self) -> None:
        target = make_target(max_parallelism=256, is_max_parallelism_configured=True)
        with pytest.raises(IncompatibleCheckpointError, match="max_parallelism=256"):
            validate_states([target], [make_full_state()])


class TestAllOrNothing:
    SOME = make_state(parallelism=3, subtask_states=keyed_subtasks(2, 128))

    def test_state_of_a_subset_of_subtasks_is_refused_only_if_asked(self) -> None:
        validate_states([make_target()], [self.SOME])
        with pytest.raises(
            IncompatibleCheckpointError, match="all 3 subtasks of operator 'sum', found it of only a subset"
        ):
            validate_states([make_target()], [self.SOME], all_or_nothing_state=True)

    def test_empty_entry_is_no_state(self) -> None:
        state = self.SOME.put_state(2, OperatorSubtaskState())
        with pytest.raises(IncompatibleCheckpointError, match="subset of 2"):
            validate_states([make_target()], [state], all_or_nothing_state=True)

    @pytest.mark.parametrize(
        "state", [make_full_state(), make_state(), make_state(is_fully_finished=True)], ids=["all", "none", "finished"]
    )
    def test_all_none_and_finished_are_allowed(self, state: object) -> None:
        matched = validate_states([make_target()], [state], all_or_nothing_state=True)  # type: ignore[list-item]
        assert [found for _, found in matched.pairs] == [state]

    def test_dropped_state_is_not_asked(self) -> None:
        matched = validate_states([], [self.SOME], all_or_nothing_state=True, allow_non_restored_state=True)
        assert matched.unmatched == (self.SOME,)


class TestFinishedOperators:
    FINISHED = make_state("b", is_fully_finished=True)

    def test_finished_operator_behind_finished_ones_is_allowed(self) -> None:
        targets = [make_target("a"), make_target("b", upstream=("a",)), make_target("c", upstream=("b",))]
        states = [make_state("a", is_fully_finished=True), self.FINISHED, make_full_state("c")]
        assert validate_states(targets, states).pairs == tuple(zip(targets, states, strict=True))

    def test_finished_operator_behind_a_running_one_is_refused(self) -> None:
        targets = [make_target("a"), make_target("b", upstream=("a",))]
        with pytest.raises(IncompatibleCheckpointError, match="'b' is finished in the checkpoint, but 'a' upstream"):
            validate_states(targets, [make_full_state("a"), self.FINISHED])

    def test_new_operator_upstream_of_a_finished_one_is_refused(self) -> None:
        targets = [make_target("new"), make_target("b", upstream=("new",))]
        with pytest.raises(IncompatibleCheckpointError, match="'new' upstream"):
            validate_states(targets, [self.FINISHED])

    def test_new_operator_behind_finished_ones_is_allowed(self) -> None:
        matched = validate_states([make_target("b"), make_target("new", upstream=("b",))], [self.FINISHED])
        assert [target.uid for target in matched.new] == ["new"]

    def test_operator_that_is_not_restored_itself_is_judged_by_its_state(self) -> None:
        alone = [make_target("b", upstream=("a",))]
        validate_states(alone, [make_state("a", is_fully_finished=True), self.FINISHED])
        with pytest.raises(IncompatibleCheckpointError, match="'a' upstream"):
            validate_states(alone, [make_full_state("a"), self.FINISHED], allow_non_restored_state=True)

    def test_renamed_upstream_is_known_by_its_new_uid(self) -> None:
        targets = [make_target("new"), make_target("b", upstream=("new",))]
        states = [make_state("old", is_fully_finished=True), self.FINISHED]
        matched = validate_states(targets, states, renamed_uids={"old": "new"})
        assert [(target.uid, state.uid) for target, state in matched.pairs] == [("new", "old"), ("b", "b")]
