"""Whether a job can go on with the state of a checkpoint."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_statecheck.checkpoint.states.compatibility import validate_states
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, OperatorSubtaskState
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from tests.unit.checkpoint.states.states import keyed_subtasks, make_full_state, make_state, make_target


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
        validate_states([make_target("kept")], [state])  # type: ignore[list-item]

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

    def test_more_subtasks_than_key_groups_are_refused(self) -> None:
        with pytest.raises(IncompatibleCheckpointError, match="parallelism=3"):
            validate_states([make_target(parallelism=3)], [make_full_state(max_parallelism=2)])


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
        validate_states([make_target()], [state], all_or_nothing_state=True)  # type: ignore[list-item]

    def test_dropped_state_is_not_asked(self) -> None:
        validate_states([], [self.SOME], all_or_nothing_state=True, allow_non_restored_state=True)


class TestFinishedOperators:
    FINISHED = make_state("b", is_fully_finished=True)

    def test_finished_operator_behind_finished_ones_is_allowed(self) -> None:
        targets = [make_target("a"), make_target("b", upstream=("a",)), make_target("c", upstream=("b",))]
        validate_states(targets, [make_state("a", is_fully_finished=True), self.FINISHED, make_full_state("c")])

    def test_finished_operator_behind_a_running_one_is_refused(self) -> None:
        targets = [make_target("a"), make_target("b", upstream=("a",))]
        with pytest.raises(IncompatibleCheckpointError, match="'b' is finished in the checkpoint, but 'a' upstream"):
            validate_states(targets, [make_full_state("a"), self.FINISHED])

    def test_new_operator_upstream_of_a_finished_one_is_refused(self) -> None:
        targets = [make_target("new"), make_target("b", upstream=("new",))]
        with pytest.raises(IncompatibleCheckpointError, match="'new' upstream"):
            validate_states(targets, [self.FINISHED])

    def test_new_operator_behind_finished_ones_is_allowed(self) -> None:
        validate_states([make_target("b"), make_target("new", upstream=("b",))], [self.FINISHED])

    def test_operator_that_is_not_restored_itself_is_judged_by_its_state(self) -> None:
        alone = [make_target("b", upstream=("a",))]
        validate_states(alone, [make_state("a", is_fully_finished=True), self.FINISHED])
        with pytest.raises(IncompatibleCheckpointError, match="'a' upstream"):
            validate_states(alone, [make_full_state("a"), self.FINISHED], allow_non_restored_state=True)

    def test_renamed_upstream_is_known_by_its_new_uid(self) -> None:
        targets = [make_target("new"), make_target("b", upstream=("new",))]
        validate_states(
            targets, [make_state("old", is_fully_finished=True), self.FINISHED], renamed_uids={"old": "new"}
        )
