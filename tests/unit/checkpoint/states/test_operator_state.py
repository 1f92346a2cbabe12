"""What an operator's state may hold."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, OperatorSubtaskState
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from tests.unit.checkpoint.states.states import keyed_subtasks, make_state, operator_handle

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
