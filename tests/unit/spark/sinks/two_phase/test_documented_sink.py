"""The sink that the documentation shows as an example keeps the promises that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext
from tests.unit.spark.sinks.two_phase.attempts import SCHEMA, table_of

PAGE = Path(__file__).parents[5] / "docs" / "sink-two-phase.md"


@pytest.fixture
def sink(tmp_path: Path) -> Any:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)  # the page of this repository
    return names["FolderSink"](tmp_path)


def shown(sink: Any) -> list[str]:
    return sorted(path.name for path in sink.folder.glob("*.parquet"))


def prepared(sink: Any) -> dict[str, Any]:
    transaction: dict[str, Any] = sink.begin_transaction(
        SinkTaskContext(subtask=0, epoch=1, task_id="task", schema=SCHEMA)
    )
    sink.write(transaction, table_of([1]))
    sink.pre_commit(transaction)
    return transaction


def test_a_commit_shows_a_file_once_and_may_be_repeated(sink):
    transaction = prepared(sink)
    assert shown(sink) == []
    sink.commit_transaction(transaction)
    sink.commit_transaction(transaction)
    assert shown(sink) == transaction["files"]


def test_an_abort_takes_a_committed_file_back_and_may_be_repeated(sink):
    transaction = prepared(sink)
    sink.commit_transaction(transaction)
    sink.abort_transaction(transaction)
    sink.abort_transaction(transaction)
    assert shown(sink) == []


def test_a_commit_of_a_file_that_is_gone_is_no_success(sink):
    transaction = prepared(sink)
    sink.abort_transaction(transaction)
    with pytest.raises(FileNotFoundError, match="is neither in"):
        sink.commit_transaction(transaction)
