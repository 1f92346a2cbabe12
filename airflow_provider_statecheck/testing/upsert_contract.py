"""
Contract of sinks that upsert rows by key, in addition to the contract of every sink.

Subclass :class:`UpsertContract`, create a sink with the key column ``key``, and read its output::

    class TestMyUpserts(UpsertContract):
        steps = (*LOG_STEPS, *transaction_steps(MySink))

        def sink(self, target, **settings):
            return MySink(target, upsert_by=["key"], **settings)

        def read_names(self, target):
            return {row.key: row.name for row in rows_of(target)}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa  # noqa: TID253 - only tests import this module
import pytest
from typing_extensions import override

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, SinkContract


class UpsertContract(SinkContract):
    """Contract of every sink that upserts rows by key and marks them."""

    def read_names(self, target: Any) -> Mapping[int, str]:
        """Return the values of ``name`` by ``key`` that a reader of the target sees; empty for a target without output."""
        raise NotImplementedError

    @override
    def read(self, target: Any) -> list[int]:
        return list(self.read_names(target))

    def test_row_replaces_the_row_with_its_key(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        attempt.add(1, 1, 2, name="old")
        attempt.add(2, 2, 3, name="new")
        assert self.read_names(target) == {1: "old 1", 2: "new 2", 3: "new 3"}

    def test_last_row_of_a_key_in_a_checkpoint_wins(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        rows = pa.table({"key": [1, 2, 1], "name": ["a", "b", "c"]}, SCHEMA)
        attempt.commit(1, [*attempt.write(3, subtask=0), *attempt.write_table(rows, subtask=1)])
        assert self.read_names(target) == {1: "c", 2: "b", 3: "name 3"}

    def test_null_key_fails_the_task_that_writes_it(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        with pytest.raises(UnsupportedStateError, match="null in key"):
            attempt.write_table(pa.table({"key": [2, None], "name": ["a", "b"]}, SCHEMA))
        assert not self.leftovers(target)

    def test_inserted_rows_of_a_replaced_checkpoint_go_and_updated_ones_keep_their_value(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1, name="one")
        first.add(2, 1, 2, name="two")
        self.opened(target, 2, 1).add(3, 3, name="three")
        assert self.read_names(target) == {1: "two 1", 3: "three 3"}

    def test_row_that_another_job_has_written_since_is_kept(self, target: Any) -> None:
        self._require_retraction()
        self.opened(target, 1).add(1, 1, 2, name="ours")
        self.opened(target, 1, job="other").add(1, 2, name="theirs")
        self.opened(target, 2, None, 2).add(2, 3, name="ours")
        assert self.read_names(target) == {2: "theirs 2", 3: "ours 3"}

    def test_row_that_is_written_again_after_a_retraction_belongs_to_the_new_checkpoint(self, target: Any) -> None:
        self._require_retraction()
        self.opened(target, 1).add(1, 1, 2)
        self.opened(target, 2, None, 2).add(2, 2, 3)
        assert self.seen(target) == [2, 3]
        self.opened(target, 3, None, 3).finish()
        assert self.seen(target) == []
