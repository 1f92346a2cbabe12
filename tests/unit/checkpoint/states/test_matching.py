"""Which state belongs to which operator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_statecheck.checkpoint.ids import OperatorId, operator_id_of
from airflow_provider_statecheck.checkpoint.states.compatibility import MatchedStates, match_states
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError
from tests.unit.checkpoint.states.states import make_state, make_target


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
