"""Which checkpoints are the members of a savepoint of a whole job if its stages read each other's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, OperatorId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreSource
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnClear
from airflow_provider_statecheck.checkpoint.savepoint_restore import adopt, propose
from airflow_provider_statecheck.checkpoint.transitions import mark_discarded, roll_back
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError
from airflow_provider_statecheck.maintenance.savepoint_members import MemberChoice, StageAtTrigger, stages_at_trigger
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_owner
from tests.unit.written_stage import JOB, WrittenStage

Reads = dict[int, dict[str, list[int]]]
"""What checkpoints have listed: by their ids, the checkpoints of other stages by uid."""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


class Pipeline:
    """Two stages of a job that are running, and what their checkpoints have listed of each other."""

    def __init__(self, path: Path) -> None:
        self.stage = WrittenStage(CheckpointStorage.open(f"{path}/checkpoints"))
        self.reads: Reads = {}
        self.copies: dict[int, int] = {}
        self.writer, self.reader = self.begin("writer"), self.begin("reader")
        self.stages: list[StageAtTrigger] = []
        self.savepoint: CheckpointRecord | None = None

    def begin(self, uid: str, **changes: Any) -> StageAttempt:
        # Retains all checkpoints.
        return self.stage.attempt(uid=uid, num_retained=100, **changes)

    def retry(self, restored: int, num_retained: int = 100) -> StageAttempt:
        """Let the writer fail, and begin another attempt of it that has restored a checkpoint."""
        self.writer.finish(AttemptStatus.FAILED)
        retry = self.stage.attempt(uid="writer", num_retained=num_retained)
        with self.stage.store.transaction(job_id_of(JOB)) as tx:
            attempt = tx.attempt(operator_id_of("writer"), retry.grant.attempt.epoch)
            assert attempt is not None
            tx.save_attempt(replace(attempt, restored_from=restored))
        return retry

    def require_declined(self, match: str) -> None:
        """Require that the stages cannot give consistent members."""
        with pytest.raises(CheckpointDeclinedError, match=match):
            self.members()

    def take(self, attempt: StageAttempt, reads: Mapping[str, list[int]] | None = None) -> int:
        self.stage.clock.advance(1)
        taken = self.stage.take(attempt)
        self.reads[taken.checkpoint_id] = dict(reads or {})
        return taken.checkpoint_id

    def trigger(self, properties: CheckpointProperties | None = None) -> None:
        self.stage.clock.advance(1)
        view = self.stage.coordinator.describe(job_id_of(JOB))
        self.stages = stages_at_trigger(view)
        with self.stage.store.transaction(job_id_of(JOB)) as tx:
            number = tx.draw_checkpoint_id()
        self.savepoint = replace(
            view.checkpoints[-1],
            operator_id=ALIGNED_OPERATOR_ID,
            triggered_at=view.read_at,
            checkpoint_id=number,
            properties=properties or CheckpointProperties.for_savepoint(),
        )
        self.stage.clock.advance(1)

    def members(self) -> dict[str, int | None]:
        view = self.stage.coordinator.describe(job_id_of(JOB))
        assert self.savepoint is not None
        chosen = MemberChoice(view, self.savepoint, self).members(self.stages)
        return {stage.uid: None if member is None else member.checkpoint_id for stage, member in chosen.items()}

    def positions_of(self, checkpoint: CheckpointRecord) -> dict[OperatorId, list[int]]:
        reads = self.reads[checkpoint.checkpoint_id]
        return {operator_id_of(uid): positions for uid, positions in reads.items()}

    def copied_checkpoint(self, adopted: CheckpointRecord) -> int:
        return self.copies[adopted.checkpoint_id]

    def row(self, checkpoint_id: int) -> CheckpointRecord | None:
        return self.stage.coordinator.checkpoint(job_id_of(JOB), checkpoint_id)


def test_members_that_have_listed_nothing_later_stay_the_first_ones(pipeline: Pipeline) -> None:
    before = pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    written = pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"writer": [before]})
    pipeline.take(pipeline.writer)
    assert pipeline.members() == {"writer": written, "reader": read}


def test_a_writer_that_is_behind_its_reader_gives_a_later_member(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(pipeline.writer)
    listed = pipeline.take(pipeline.writer)
    later = pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"writer": [listed]})
    assert pipeline.members() == {"writer": listed, "reader": read}
    assert later > listed


def test_stages_that_stop_at_their_first_boundary_are_consistent(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger(CheckpointProperties.for_sync_savepoint(terminate=False))
    # The writer waits after its member, so that there is nothing later that the reader could list.
    written = pipeline.take(pipeline.writer)
    assert pipeline.members() == {"writer": written, "reader": None}
    read = pipeline.take(pipeline.reader, {"writer": [written]})
    assert pipeline.members() == {"writer": written, "reader": read}


def test_stages_that_terminate_give_their_last_checkpoints(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.trigger(CheckpointProperties.for_sync_savepoint(terminate=True))
    pipeline.take(pipeline.writer)
    written = pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"writer": [written]})
    pipeline.reader.finish(AttemptStatus.FINISHED)
    assert pipeline.members() == {"writer": None, "reader": read}
    pipeline.writer.finish(AttemptStatus.FINISHED)
    assert pipeline.members() == {"writer": written, "reader": read}


def test_the_output_of_a_stage_that_started_over_and_ended_without_a_checkpoint_is_not_listed(
    pipeline: Pipeline,
) -> None:
    written = pipeline.take(pipeline.writer)
    pipeline.writer.finish(AttemptStatus.FINISHED)
    again = pipeline.begin("writer", on_clear=OnClear.RESTART, owner=make_owner(clear_marker="cleared"))
    pipeline.trigger()
    again.finish(AttemptStatus.FINISHED)
    pipeline.take(pipeline.reader, {"writer": [written]})
    with pytest.raises(CheckpointDeclinedError, match="'reader' has listed the output of stage 'writer', which had no"):
        pipeline.members()


def test_a_stage_that_runs_again_after_its_end_is_awaited_if_a_stage_that_terminates_has_read_more(
    pipeline: Pipeline,
) -> None:
    pipeline.take(pipeline.writer)
    pipeline.trigger(CheckpointProperties.for_sync_savepoint(terminate=True))
    pipeline.writer.finish(AttemptStatus.FINISHED)
    again = pipeline.begin("writer")
    written = pipeline.take(again)
    read = pipeline.take(pipeline.reader, {"writer": [written]})
    pipeline.reader.finish(AttemptStatus.FINISHED)
    assert pipeline.members() == {"writer": None, "reader": read}
    again.finish(AttemptStatus.FINISHED)
    assert pipeline.members() == {"writer": written, "reader": read}


def test_a_writer_that_has_not_confirmed_what_was_read_is_awaited(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"writer": [1_000]})
    assert pipeline.members() == {"writer": None, "reader": read}


def test_stages_that_read_each_other_without_end_decline(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    following = pipeline.take(pipeline.writer)
    for _ in range(6):
        following = pipeline.take(pipeline.reader, {"writer": [following + 1]})
        following = pipeline.take(pipeline.writer, {"reader": [following + 2]})
    pipeline.require_declined(r"'writer' and 'reader' read each other|'reader' and 'writer'")


def test_output_that_its_stage_has_retracted_declines_and_names_both(pipeline: Pipeline) -> None:
    restored = pipeline.take(pipeline.writer)
    retracted = pipeline.take(pipeline.writer)
    retry = pipeline.retry(restored)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(retry)
    pipeline.take(pipeline.reader, {"writer": [retracted]})
    pipeline.require_declined(f"'reader' has listed .* checkpoint {retracted} of stage 'writer'")


@pytest.mark.parametrize("has_begun", [True, False])
def test_output_of_a_stage_that_gives_no_member_declines(pipeline: Pipeline, has_begun: bool) -> None:
    if has_begun:
        pipeline.begin("empty").finish(AttemptStatus.FINISHED)
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.stages = [stage for stage in pipeline.stages if stage.uid != "empty"]
    late = pipeline.begin("empty")
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader, {"empty": [pipeline.take(late)]})
    pipeline.require_declined("'reader' has listed the output of stage 'empty', which had no")


def test_a_long_chain_of_stages_settles(pipeline: Pipeline) -> None:
    chain = [pipeline.begin(f"stage {number}") for number in range(8)]
    for attempt in (pipeline.writer, pipeline.reader, *chain):
        pipeline.take(attempt)
    pipeline.trigger()
    first = [pipeline.take(attempt) for attempt in (pipeline.writer, pipeline.reader, *chain)]
    assert len(first) == 10
    following = pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    before = "writer"
    for number, attempt in enumerate(chain):
        following = pipeline.take(attempt, {before: [following]})
        before = f"stage {number}"
    # Only the last one has its first checkpoint after all others.
    last = pipeline.begin("last")
    pipeline.stages.append(replace(pipeline.stages[0], uid="last", operator_id=operator_id_of("last"), is_running=True))
    end = pipeline.take(last, {before: [following]})
    members = pipeline.members()
    assert (members[before], members["last"]) == (following, end)
    assert members["writer"] == first[-1] + 1


def test_output_from_before_a_restore_in_place_is_in_force(pipeline: Pipeline) -> None:
    kept = pipeline.take(pipeline.writer)
    cut = pipeline.take(pipeline.writer)
    above = pipeline.take(pipeline.writer)
    pipeline.writer.finish(AttemptStatus.FINISHED)
    adopting = pipeline.begin("writer")
    adopted = _adopt(pipeline, adopting, cut)
    assert adopted > above
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    written = pipeline.take(adopting)
    read = pipeline.take(pipeline.reader, {"writer": [kept, cut]})
    assert pipeline.members() == {"writer": written, "reader": read}
    pipeline.reads[read] = {"writer": [above]}
    pipeline.require_declined("has retracted it")


def _adopt(pipeline: Pipeline, attempt: StageAttempt, copied: int) -> int:
    """Let an attempt start from a savepoint of its job, in a new generation."""
    ref = attempt.grant.attempt
    with pipeline.stage.store.transaction(job_id_of(JOB)) as tx:
        operator, record = tx.operator(ref.operator_id), tx.attempt(ref.operator_id, ref.epoch)
        assert operator is not None
        assert record is not None
        generation = operator.generation + 1
        tx.save_operator(replace(operator, generation=generation))
        source = RestoreSource(
            pointer="memory://savepoint",
            metadata_uri="memory://savepoint/_metadata",
            metadata_size=1,
            metadata_sha256="",
        )
        propose(tx, replace(operator, generation=generation), source)
        adopted = max(tx.open_checkpoints(ref.operator_id), key=lambda c: c.checkpoint_id)
        record = replace(record, generation=generation)
        adopt(tx, record, adopted, claim=False)
        tx.save_attempt(replace(record, restored_from=adopted.checkpoint_id))
    pipeline.copies[adopted.checkpoint_id] = copied
    return adopted.checkpoint_id


def _start_over(pipeline: Pipeline) -> StageAttempt:
    """Begin an attempt of the writer whose source has changed, so that it uses nothing of what it restores."""
    attempt = pipeline.begin("writer")
    attempt.confirm_restore(attempt.load(), starts_over=True)
    return attempt


def test_output_of_a_stage_that_has_started_over_with_a_changed_source_declines(pipeline: Pipeline) -> None:
    retracted = pipeline.take(pipeline.writer)
    pipeline.writer.finish(AttemptStatus.FINISHED)
    again = _start_over(pipeline)
    pipeline.take(again)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(again)
    pipeline.take(pipeline.reader, {"writer": [retracted]})
    pipeline.require_declined(f"checkpoint {retracted} of stage 'writer', which has retracted")


def test_a_stage_that_starts_over_with_a_changed_source_while_others_are_awaited_declines(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.writer.finish(AttemptStatus.FINISHED)
    pipeline.trigger()
    pipeline.take(_start_over(pipeline))
    pipeline.take(pipeline.reader)
    pipeline.require_declined("stage 'writer' has started over")


def test_a_restart_of_a_running_stage_declines(pipeline: Pipeline) -> None:
    before = pipeline.take(pipeline.writer)
    pipeline.take(pipeline.writer)
    pipeline.trigger()
    retry = pipeline.retry(before)
    with pipeline.stage.store.transaction(job_id_of(JOB)) as tx:
        newest = tx.open_checkpoints(operator_id_of("writer"))[-1]
        roll_back(tx, [newest])
    pipeline.require_declined(f"checkpoint {newest.checkpoint_id} of stage 'writer' was rolled back")
    pipeline.take(retry)
    pipeline.require_declined("was rolled back")


def test_output_that_was_retracted_long_ago_declines(pipeline: Pipeline) -> None:
    restored = pipeline.take(pipeline.writer)
    retracted = pipeline.take(pipeline.writer)
    retry = pipeline.retry(restored, num_retained=1)
    for _ in range(120):
        pipeline.take(retry)
    with pipeline.stage.store.transaction(job_id_of(JOB)) as tx:
        mark_discarded(tx, operator_id_of("writer"), range(retracted + 120))
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(retry)
    pipeline.take(pipeline.reader, {"writer": [retracted]})
    assert all(c.checkpoint_id != retracted for c in pipeline.stage.coordinator.describe(job_id_of(JOB)).checkpoints)
    pipeline.require_declined("has retracted it")


def test_output_of_a_stage_outside_the_job_is_not_cut(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.trigger()
    written = pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"another job's stage": [9_999]})
    assert pipeline.members() == {"writer": written, "reader": read}


def test_a_pinned_member_is_kept_while_others_are_awaited(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    first = pipeline.take(pipeline.writer)
    second = pipeline.take(pipeline.writer)
    _pin(pipeline, second)
    assert first < second
    assert pipeline.members() == {"writer": second, "reader": None}


def test_a_pinned_member_that_was_rolled_back_declines(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(pipeline.writer)
    _pin(pipeline, 1_000)
    pipeline.require_declined("checkpoint 1000 of stage 'writer' was rolled back")


def _pin(pipeline: Pipeline, checkpoint_id: int) -> None:
    with pipeline.stage.store.transaction(job_id_of(JOB)) as tx:
        operator = tx.operator(operator_id_of("writer"))
        assert operator is not None
        tx.save_operator(replace(operator, pinned_checkpoint=checkpoint_id))


@pytest.mark.parametrize("uid", ["plain", "load[de]", "with / slashes/3/4/ended", "new\nline"])
def test_a_stage_is_read_back_from_its_attempt_id(uid: str) -> None:
    stage = StageAtTrigger(operator_id=operator_id_of(uid), uid=uid, generation=3, epoch=12, is_running=True)
    assert StageAtTrigger.named(stage.attempt_id, stage.operator_id) == stage


def test_a_task_of_another_coordinator_is_no_stage() -> None:
    assert StageAtTrigger.named("source/1", operator_id_of("source")) is None
