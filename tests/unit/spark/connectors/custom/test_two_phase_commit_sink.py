"""Custom sinks with two-phase commit, and the one of the documentation."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    EnvironmentNotReadyError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.sink import Sink
from airflow_provider_statecheck.testing.sink_contract import (
    LOG_STEPS,
    SinkAttempt,
    SinkContract,
    Step,
    table_of,
    transaction_steps,
)
from tests.unit.spark.connectors.folder_sink import FolderSink, keys_in, opened


def test_what_the_attempt_does_not_go_on_from_is_not_committed(tmp_path):
    first = opened(tmp_path, 1)
    first.add(1, 1)
    written = first.write(2)
    second = opened(tmp_path, 2, restored=1)
    with pytest.raises(CoordinatorError, match="found checkpoint 2 of attempt 1"):
        second.commit(2, written)


def test_nothing_older_than_the_last_commit_is_committed(tmp_path):
    written = opened(tmp_path, 1).write(1)
    second = opened(tmp_path, 2, restored=1)
    second.add(2, 2)
    with pytest.raises(CoordinatorError, match="a checkpoint after 2 of attempt 2"):
        second.commit(1, written)


def test_a_task_that_fails_aborts_its_transaction(tmp_path):
    first = opened(tmp_path, 1)
    writer = first.task()
    writer.write(table_of([1]))
    writer.prepare_commit()
    assert len(list(tmp_path.glob("hidden/*"))) == 1
    writer.abort()
    assert list(tmp_path.glob("hidden/*")) == []


def test_a_transaction_that_is_no_plain_json_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(FolderSink, "begin_transaction", lambda *_: {"file": "a", "keys": (1, 2)})
    monkeypatch.setattr(FolderSink, "pre_commit", lambda *_: None)
    with pytest.raises(UnsupportedStateError, match="plain JSON"):
        opened(tmp_path, 1).task().prepare_commit()


def test_an_attempt_may_settle_for_an_older_checkpoint_before_it_begins(tmp_path):
    first = opened(tmp_path, 1)
    first.add(1, 1)
    first.add(2, 2)
    second = opened(tmp_path, 2, restored=2).sink
    third = opened(tmp_path, 2, restored=1)
    third.add(3, 20)
    assert keys_in(tmp_path) == [1, 20]
    with pytest.raises(CoordinatorError, match="opened before its first commit"):
        second.open(SinkAttempt(FolderSink(tmp_path), 2, restored=2).context)


def test_a_place_that_does_not_fit_is_refused_before_it_is_taken_over(tmp_path, monkeypatch):
    def refuse(*_: Any) -> None:
        raise StorageError("no such place")

    monkeypatch.setattr(FolderSink, "check", refuse)
    with pytest.raises(StorageError, match="no such place"):
        opened(tmp_path, 2)
    monkeypatch.undo()
    opened(tmp_path, 1).add(1, 1)


def test_a_copy_for_tasks_has_no_hold_on_the_log(tmp_path):
    copy = pickle.loads(pickle.dumps(opened(tmp_path, 1).sink))
    with pytest.raises(CoordinatorError, match="found it closed"):
        copy.commit(1, [])


class TestFolderSink(SinkContract):
    steps: ClassVar[Sequence[Step]] = (*LOG_STEPS, *transaction_steps(FolderSink))

    def sink(self, target: str, **settings: Any) -> Sink:
        return FolderSink(Path(target), **settings)

    def read(self, target: str) -> list[int]:
        return keys_in(Path(target))


class PermanentFolderSink(FolderSink):
    can_retract = False


@pytest.mark.parametrize(
    ("before", "now"), [(FolderSink, PermanentFolderSink), (PermanentFolderSink, FolderSink)], ids=["sink", "output"]
)
def test_start_that_needs_a_retraction_is_refused_if_the_sink_or_the_one_that_wrote_cannot(tmp_path, before, now):
    first = SinkAttempt(before(tmp_path), 1).open()
    first.add(1, 1)
    first.add(2, 2)
    for restored, generation in ((1, 1), (None, 2)):
        with pytest.raises(EnvironmentNotReadyError, match="cannot be rolled back"):
            SinkAttempt(now(tmp_path), 2, restored=restored, generation=generation).open()
    assert keys_in(tmp_path) == [1, 2]


@pytest.mark.soak  # it shares its steps with a sink that can retract
class TestSinkThatCannotRetract(TestFolderSink):
    can_retract = False

    def sink(self, target: str, **settings: Any) -> Sink:
        return PermanentFolderSink(Path(target), **settings)


PAGE = Path(__file__).parents[5] / "docs" / "use" / "sink-two-phase.md"

# A module, so that the sink can be pickled for tasks.
_page = ModuleType("documented_sink")
sys.modules[_page.__name__] = _page
exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)), _page.__dict__)  # of this repository
TestEventStore: type[Any] = pytest.mark.soak(_page.__dict__["TestEventStore"])
