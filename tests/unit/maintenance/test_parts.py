"""Which checkpoints are the parts of a savepoint of a whole job if its stages read each other's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError
from airflow_provider_statecheck.maintenance.parts import Member, PartChoice, members_of
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
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
        self.writer, self.reader = self.begin("writer"), self.begin("reader")
        self.members: list[Member] = []
        self.savepoint: CheckpointRecord | None = None

    def begin(self, uid: str, **changes: Any) -> StageAttempt:
        # Retains all checkpoints.
        return self.stage.attempt(uid=uid, num_retained=100, **changes)

    def take(self, attempt: StageAttempt, reads: Mapping[str, list[int]] | None = None) -> int:
        self.stage.clock.advance(1)
        taken = self.stage.take(attempt)
        self.reads[taken.checkpoint_id] = dict(reads or {})
        return taken.checkpoint_id

    def trigger(self) -> None:
        self.stage.clock.advance(1)
        view = self.stage.coordinator.describe(job_id_of(JOB))
        self.members = members_of(view)
        latest = max(view.checkpoints, key=lambda c: c.checkpoint_id)
        self.savepoint = replace(latest, operator_id=ALIGNED_OPERATOR_ID, triggered_at=view.read_at)
        self.stage.clock.advance(1)

    def parts(self) -> dict[str, int | None]:
        view = self.stage.coordinator.describe(job_id_of(JOB))
        assert self.savepoint is not None
        chosen = PartChoice(view, self.savepoint, self._positions).parts(self.members)
        return {member.uid: None if part is None else part.checkpoint_id for member, part in chosen.items()}

    def _positions(self, checkpoint: CheckpointRecord) -> dict[Any, list[int]]:
        reads = self.reads[checkpoint.checkpoint_id]
        return {operator_id_of(uid): positions for uid, positions in reads.items()}


def test_parts_that_have_listed_nothing_later_stay_the_first_ones(pipeline: Pipeline) -> None:
    before = pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    written = pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"writer": [before]})
    pipeline.take(pipeline.writer)
    assert pipeline.parts() == {"writer": written, "reader": read}


def test_a_writer_that_is_behind_its_reader_gives_a_later_part(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(pipeline.writer)
    listed = pipeline.take(pipeline.writer)
    later = pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"writer": [listed]})
    assert pipeline.parts() == {"writer": listed, "reader": read}
    assert later > listed


def test_a_writer_that_has_not_confirmed_what_was_read_is_awaited(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"writer": [1_000]})
    assert pipeline.parts() == {"writer": None, "reader": read}


def test_a_chain_of_stages_settles(pipeline: Pipeline) -> None:
    last = pipeline.begin("last")
    for attempt in (pipeline.writer, pipeline.reader, last):
        pipeline.take(attempt)
    pipeline.trigger()
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    written = pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"writer": [written]})
    end = pipeline.take(last, {"reader": [read]})
    assert pipeline.parts() == {"writer": written, "reader": read, "last": end}


def test_stages_that_read_each_other_without_end_decline(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    following = pipeline.take(pipeline.writer)
    for _ in range(6):
        following = pipeline.take(pipeline.reader, {"writer": [following + 1]})
        following = pipeline.take(pipeline.writer, {"reader": [following + 2]})
    with pytest.raises(CheckpointDeclinedError, match=r"'writer' and 'reader' read each other|'reader' and 'writer'"):
        pipeline.parts()


def test_output_that_its_stage_has_retracted_declines_and_names_both(pipeline: Pipeline) -> None:
    restored = pipeline.take(pipeline.writer)
    retracted = pipeline.take(pipeline.writer)
    pipeline.writer.finish(AttemptStatus.FAILED)
    retry = pipeline.begin("writer")
    with pipeline.stage.store.transaction(job_id_of(JOB)) as tx:  # type: ignore[union-attr]
        attempt = tx.attempt(operator_id_of("writer"), retry.grant.attempt.epoch)
        assert attempt is not None
        tx.save_attempt(replace(attempt, restored_from=restored))
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(retry)
    pipeline.take(pipeline.reader, {"writer": [retracted]})
    with pytest.raises(
        CheckpointDeclinedError, match=f"'reader' has listed .* checkpoint {retracted} of stage 'writer'"
    ):
        pipeline.parts()


def test_output_of_a_stage_outside_the_job_is_not_cut(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.writer)
    pipeline.trigger()
    written = pipeline.take(pipeline.writer)
    read = pipeline.take(pipeline.reader, {"another job's stage": [9_999]})
    assert pipeline.parts() == {"writer": written, "reader": read}


def test_a_pinned_part_is_kept_while_others_are_awaited(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    first = pipeline.take(pipeline.writer)
    second = pipeline.take(pipeline.writer)
    _pin(pipeline, second)
    assert first < second
    assert pipeline.parts() == {"writer": second, "reader": None}


def test_a_pinned_part_that_was_rolled_back_declines(pipeline: Pipeline) -> None:
    pipeline.take(pipeline.reader)
    pipeline.trigger()
    pipeline.take(pipeline.writer)
    _pin(pipeline, 1_000)
    with pytest.raises(CheckpointDeclinedError, match="checkpoint 1000 of stage 'writer' was rolled back"):
        pipeline.parts()


def _pin(pipeline: Pipeline, checkpoint_id: int) -> None:
    with pipeline.stage.store.transaction(job_id_of(JOB)) as tx:  # type: ignore[union-attr]
        operator = tx.operator(operator_id_of("writer"))
        assert operator is not None
        tx.save_operator(replace(operator, pinned_checkpoint=checkpoint_id))


@pytest.mark.parametrize("uid", ["plain", "load[de]", "with / slashes/3/4/ended", "new\nline"])
def test_a_member_is_read_back_from_its_attempt_id(uid: str) -> None:
    member = Member(operator_id=operator_id_of(uid), uid=uid, generation=3, epoch=12, is_running=True)
    assert Member.named(member.attempt_id, member.operator_id) == member


def test_a_task_of_another_coordinator_is_no_member() -> None:
    assert Member.named("source/1", operator_id_of("source")) is None
