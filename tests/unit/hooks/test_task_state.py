"""The marker in Airflow's task state store, which outlives a try, and which a clear may discard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.records import TaskState
from airflow_provider_statecheck.hooks import task_state
from airflow_provider_statecheck.hooks.task_state import MARKER_KEY, mark_task_state
from tests.stand_in_task import FileStateStore

FIRST, CLEARED = "3/0", "6/1"


@pytest.fixture
def store(tmp_path: Path) -> FileStateStore:
    return FileStateStore(tmp_path / "store.json")


def mark(store: Any, clear_marker: str = FIRST) -> TaskState:
    return mark_task_state({"task_state_store": store}, clear_marker)


def test_the_first_try_finds_nothing_and_its_retries_know_no_more(store: FileStateStore) -> None:
    assert [mark(store), mark(store)] == [TaskState.DISCARDED, TaskState.DISCARDED]


@pytest.mark.parametrize(
    ("installed", "found"),
    [("3.3.2", TaskState.PRESENT), ("3.4.0", TaskState.KEPT), ("3.4.0b1", TaskState.KEPT), ("4.0.0", TaskState.KEPT)],
)
def test_what_is_left_after_a_clear_is_a_choice_where_airflow_asks_for_one(
    store: FileStateStore, monkeypatch: pytest.MonkeyPatch, installed: str, found: TaskState
) -> None:
    monkeypatch.setattr(task_state, "version", lambda _: installed)
    mark(store)
    assert mark(store, CLEARED) == found


def test_a_clear_that_discards_leaves_nothing(store: FileStateStore) -> None:
    mark(store)
    store.delete(MARKER_KEY)
    assert mark(store, CLEARED) == TaskState.DISCARDED


def test_a_try_that_ended_before_its_registration_does_not_hide_what_a_clear_did(store: FileStateStore) -> None:
    mark(store)
    store.delete(MARKER_KEY)
    assert [mark(store, CLEARED), mark(store, CLEARED)] == [TaskState.DISCARDED, TaskState.DISCARDED]
    assert mark(store, "7/2") is not TaskState.DISCARDED, "a later clear that keeps it"


def test_nothing_is_known_without_a_store() -> None:
    assert mark_task_state({}, FIRST) is TaskState.UNKNOWN


def test_nothing_is_known_where_airflow_clears_the_store_after_success(
    store: FileStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
    assert mark(store) is TaskState.UNKNOWN
    assert store.get(MARKER_KEY) is None


class BrokenStore:
    """A backend that cannot be reached."""

    def get(self, key: str) -> Any:
        raise RuntimeError("unreachable")


def test_a_store_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert mark(BrokenStore()) is TaskState.UNKNOWN
    assert "unreachable" in caplog.text


@pytest.mark.parametrize("foreign", ["text", 5, {"cleared": FIRST, "state": "other"}, {}])
def test_a_foreign_value_is_replaced(store: FileStateStore, foreign: Any) -> None:
    store.set(MARKER_KEY, foreign)
    mark(store)
    assert store.get(MARKER_KEY)["cleared"] == FIRST
