"""
Contracts of sinks as test suites, also for sinks that upsert rows by key.

Subclass :class:`SinkContract`, create the sink and read its output::

    class TestMySink(SinkContract):
        steps = (*LOG_STEPS, *transaction_steps(MySink))

        def sink(self, target, **settings):
            return MySink(target, **settings)

        def read(self, target):
            return [row.key for row in rows_of(target)]

The suite runs attempts in this process, without Spark. It ends them before and after each of the steps, loses replies,
lets superseded attempts go on, falls back to older checkpoints and starts over. Afterwards, readers have to see the
output of an undisturbed run.

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
from pathlib import Path
from typing import Any

import pyarrow as pa  # noqa: TID253 - only tests import this module
import pytest

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    StaleAttemptError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.testing.sink_attempts import SCHEMA, UID, Committables, SinkAttempt, table_of
from airflow_provider_statecheck.testing.sink_faults import LOG_STEPS, SinkFaults, Step, transaction_steps

__all__ = [
    "LOG_STEPS",
    "SCHEMA",
    "Committables",
    "SinkAttempt",
    "SinkContract",
    "Step",
    "table_of",
    "transaction_steps",
]


class SinkContract(SinkFaults):
    """Contract of every sink."""

    # --- Superseded attempts

    def test_attempt_of_a_lower_epoch_cannot_open(self, target: Any) -> None:
        self.opened(target, 2)
        with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
            self.opened(target, 1)

    def test_superseded_attempt_cannot_commit_or_finish(self, target: Any) -> None:
        zombie = self.opened(target, 1)
        zombie.add(1, 1)
        late = zombie.write(2)
        self.opened(target, 2, 1).add(2, 3)
        with pytest.raises(StaleAttemptError):
            zombie.commit(2, late)
        with pytest.raises(StaleAttemptError):
            zombie.finish()
        assert self.seen(target) == [1, 3]

    def test_failed_attempt_leaves_its_output_to_the_next_one(self, target: Any) -> None:
        first = self.opened(target, 1)
        written = first.write(1)
        first.sink.close(succeeded=False)
        second = self.opened(target, 2, 1)
        second.commit(1, written)
        second.finish()
        assert self.seen(target) == [1]

    # --- Commits

    def test_output_is_invisible_before_its_commit(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        attempt.add(1, 1)
        attempt.write(2)
        assert self.seen(target) == [1]

    def test_output_of_a_failed_task_is_never_committed(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        lost, won = attempt.write(1), attempt.write(1)
        assert lost != won
        attempt.commit(1, won)
        attempt.finish()
        assert self.seen(target) == [1]
        assert not self.leftovers(target)

    def test_repeated_commit_changes_nothing(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        written = attempt.add(1, 1)
        attempt.commit(1, written)
        again = self.opened(target, 2, 1)
        again.commit(1, written)
        again.finish()
        assert self.seen(target) == [1]

    def test_repeated_commit_with_other_output_is_refused(self, target: Any) -> None:
        attempt = self.opened(target, 1)
        attempt.add(1, 1)
        with pytest.raises(CorruptStateError, match="same output with each commit of checkpoint 1"):
            attempt.add(1, 2, 3)
        assert self.seen(target) == [1]

    def test_several_open_commits_are_made_in_their_order(self, target: Any) -> None:
        first = self.opened(target, 1)
        one, two = first.write(1), first.write(2)
        second = self.opened(target, 2, 2)
        second.commit(1, one)
        second.commit(2, two)
        second.add(3, 3)
        second.finish()
        assert self.seen(target) == [1, 2, 3]

    def test_checkpoints_without_rows_keep_the_output(self, target: Any) -> None:
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2)
        second = self.opened(target, 2, 2)
        second.commit(3, [])
        second.add(4, 4)
        second.finish()
        assert self.seen(target) == [1, 4]

    def test_opening_twice_is_opening_once(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        second = self.opened(target, 2, 1).open()
        second.add(2, 2)
        assert self.seen(target) == [1, 2]

    def test_attempt_cannot_change_its_restored_checkpoint_after_a_commit(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        self.opened(target, 2, 1).add(2, 2)
        with pytest.raises(CoordinatorError, match="before its first commit"):
            self.opened(target, 2, None, 2)

    def test_output_of_an_attempt_that_the_database_has_lost_is_never_continued(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        self.opened(target, 2, 1).add(2, 2)
        with pytest.raises(CoordinatorError, match="the database was restored from a backup"):
            self.opened(target, 2, 1)
        if not self.can_retract:
            return
        third = self.opened(target, 3, 1)
        third.add(3, 2)
        third.finish()
        assert self.seen(target) == [1, 2]

    # --- Fallback

    def test_fallback_replaces_newer_output_with_its_first_commit(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        for checkpoint in (1, 2, 3):
            first.add(checkpoint, checkpoint)
        second = self.opened(target, 2, 1)
        assert self.seen(target) == [1, 2, 3]
        second.add(4, 40)
        assert self.seen(target) == [1, 40]

    def test_fallback_without_a_commit_removes_newer_output_at_its_end(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        self.opened(target, 2, 1).finish()
        assert self.seen(target) == [1]

    def test_output_that_waits_for_its_replacement_can_still_be_restored(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        self.opened(target, 2, 1)
        third = self.opened(target, 3, 2)
        third.add(3, 3)
        third.finish()
        assert self.seen(target) == [1, 2, 3]

    def test_checkpoint_whose_output_was_replaced_cannot_be_restored(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        self.opened(target, 2, 1).add(3, 3)
        with pytest.raises(CorruptStateError, match=r"output of checkpoint 2 .* replaced"):
            self.opened(target, 3, 2)
        assert self.seen(target) == [1, 3]

    def test_restored_checkpoint_continues_the_attempt_that_took_it(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        late = self.opened(target, 2, 1).write(3)
        third = self.opened(target, 3, 3, restored_epoch=2)
        third.commit(3, late)
        assert self.seen(target) == [1, 3]
        third.add(4, 4)
        assert self.seen(target) == [1, 3, 4]

    def test_start_from_a_savepoint_of_an_earlier_generation_keeps_the_output_up_to_there(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        for checkpoint in (1, 2, 3, 4):
            first.add(checkpoint, checkpoint)
        second = self.opened(target, 2, 2, 2)
        second.add(5, 50)
        second.finish()
        assert self.seen(target) == [1, 2, 50]
        third = self.opened(target, 3, 5, 2, restored_epoch=2)
        third.add(6, 60)
        third.finish()
        assert self.seen(target) == [1, 2, 50, 60]

    @pytest.mark.parametrize("open_checkpoints", [0, 1, 2])
    def test_start_from_a_savepoint_whose_output_was_not_committed_continues_to_its_end(
        self, target: Any, open_checkpoints: int
    ) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        late = {checkpoint: first.write(checkpoint) for checkpoint in range(1, open_checkpoints + 1)}
        second = self.opened(target, 2, 2, 2, restored_epoch=1)
        for checkpoint, committables in late.items():
            second.commit(checkpoint, committables)
        second.add(3, 3)
        second.finish()
        third = self.opened(target, 3, 3, 2, restored_epoch=2)
        third.add(4, 4)
        third.finish()
        assert self.seen(target) == [*late, 3, 4]

    def test_fallback_to_a_checkpoint_without_rows_replaces_nothing_before_its_first_commit(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        empty = first.add(2)
        first.add(3, 3)
        second = self.opened(target, 2, 2, restored_epoch=1)
        second.commit(2, empty)
        assert self.seen(target) == [1, 3]
        second.add(4, 4)
        assert self.seen(target) == [1, 4]

    def test_checkpoint_of_an_attempt_that_wrote_elsewhere_is_refused(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        with pytest.raises(CorruptStateError, match="found no record of it"):
            self.opened(target, 3, 2, restored_epoch=2)

    def test_start_that_needs_a_retraction_is_refused_if_the_sink_cannot(self, target: Any) -> None:
        if self.can_retract:
            pytest.skip("the sink retracts output")
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        for arguments in ((2, 1), (2, None, 2)):
            with pytest.raises(EnvironmentNotReadyError, match="cannot be rolled back"):
                self.opened(target, *arguments)
        assert self.seen(target) == [1, 2]

    # --- Fresh starts

    def test_fresh_start_replaces_earlier_output_with_its_first_commit(self, target: Any) -> None:
        self._require_retraction()
        first = self.opened(target, 1)
        first.add(1, 1)
        first.add(2, 2)
        second = self.opened(target, 2, None, 2)
        assert self.seen(target) == [1, 2]
        second.add(3, 30)
        assert self.seen(target) == [30]
        second.add(4, 40)
        assert self.seen(target) == [30, 40]

    def test_fresh_start_without_output_ends_with_an_empty_target(self, target: Any) -> None:
        self._require_retraction()
        self.opened(target, 1).add(1, 1)
        self.opened(target, 2, None, 2).finish()
        assert self.seen(target) == []

    def test_fresh_start_that_fails_leaves_earlier_output(self, target: Any) -> None:
        self._require_retraction()
        self.opened(target, 1).add(1, 1)
        second = self.opened(target, 2, None, 2)
        second.write(2)
        second.sink.close(succeeded=False)
        assert self.seen(target) == [1]

    def test_fresh_start_is_refused_with_earlier_output_if_the_sink_is_told_so(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        with pytest.raises(EnvironmentNotReadyError, match="on_earlier_output is 'refuse'"):
            self.opened(target, 2, None, 2, on_earlier_output="refuse")
        self.opened(target, 3, 1, on_earlier_output="refuse").add(2, 2)
        assert self.seen(target) == [1, 2]

    def test_checkpoint_of_an_earlier_start_cannot_be_restored_after_its_output_was_replaced(self, target: Any) -> None:
        self._require_retraction()
        self.opened(target, 1).add(1, 1)
        self.opened(target, 2, None, 2).add(2, 2)
        with pytest.raises(CorruptStateError, match="output of checkpoint 1"):
            self.opened(target, 3, 1, restored_epoch=1)
        assert self.seen(target) == [2]

    # --- Other jobs and stages

    @pytest.mark.parametrize("other", [{"job": "other"}, {"uid": "other/sink"}], ids=["jobs", "stages"])
    def test_sinks_that_share_a_target_keep_their_output_apart(self, target: Any, other: dict[str, str]) -> None:
        ours, theirs = self.opened(target, 1), self.opened(target, 1, **other)
        ours.add(1, 1)
        theirs.add(1, 10)
        staged = theirs.write(11)
        if self.can_retract:
            ours = self.opened(target, 2, None, 2)
            ours.add(2, 2)
        ours.finish()
        theirs.commit(2, staged)
        theirs.finish()
        assert self.seen(target) == [2 if self.can_retract else 1, 10, 11]

    def test_committed_output_of_a_forked_savepoint_stays_with_its_job(self, target: Any) -> None:
        theirs = self.opened(target, 1, job="other")
        written = theirs.add(1, 10)
        ours = self.opened(target, 1)
        ours.commit(1, written)
        ours.add(2, 2)
        ours.finish()
        assert self.seen(target) == [2, 10]

    def test_uncommitted_output_of_a_forked_savepoint_is_refused(self, target: Any) -> None:
        theirs = self.opened(target, 1, job="other")
        written = theirs.write(10)
        ours = self.opened(target, 1)
        with pytest.raises(IncompatibleCheckpointError, match="Run that job until it succeeds"):
            ours.commit(1, written)
        theirs.commit(1, written)
        ours.commit(1, written)
        assert self.seen(target) == [10]

    def test_target_with_output_of_a_removed_stage_is_refused(self, target: Any) -> None:
        self.opened(target, 1).add(1, 1)
        with pytest.raises(EnvironmentNotReadyError, match="renamed_uids"):
            self.opened(target, 2, uid="renamed/sink", gone_uids=(UID,))
        both = self.opened(target, 3, 1, gone_uids=("other/sink",))
        both.add(2, 2)
        assert self.seen(target) == [1, 2]

    def test_schema_that_does_not_fit_earlier_output_is_refused_before_any_work(self, target: Any) -> None:
        if self.other_schema is None:
            pytest.skip("the destination accepts any schema")
        self.opened(target, 1).add(1, 1)
        with pytest.raises(UnsupportedStateError, match=r"fit|incompatible"):
            self.opened(target, 2, 1, schema=self.other_schema)
        self.opened(target, 3, 1).add(2, 2)
        assert self.seen(target) == [1, 2]

    def test_relative_path_is_the_same_place_for_all_tasks_and_attempts(
        self, target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        relative, elsewhere = self.relative_target(target), tmp_path / "elsewhere"
        if relative is None:
            pytest.skip("the target has no path")
        elsewhere.mkdir()
        monkeypatch.chdir(tmp_path)
        first = self.opened(relative, 1)
        monkeypatch.chdir(elsewhere)
        first.add(1, 1)
        late = first.write(2)
        self.opened(target, 2, 2).commit(2, late)
        monkeypatch.chdir(tmp_path)
        third = self.opened(relative, 3, 2)
        monkeypatch.chdir(elsewhere)
        third.add(3, 3)
        third.finish()
        assert self.seen(target) == [1, 2, 3]
        assert list(elsewhere.iterdir()) == []

    def test_sink_that_is_not_open_says_so(self, target: Any) -> None:
        attempt = self.attempt(target, 1)
        with pytest.raises(CoordinatorError, match="open it"):
            attempt.write(1)
        with pytest.raises(CoordinatorError, match="open it"):
            attempt.commit(1, [])


class UpsertContract(SinkContract):
    """Contract of every sink that upserts rows by key and marks them."""

    def read_names(self, target: Any) -> Mapping[int, str]:
        """
        Return the values of ``name`` by ``key`` that a reader of the target sees.

        Empty for a target without output.
        """
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
