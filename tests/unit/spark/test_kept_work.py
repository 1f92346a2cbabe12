"""What is kept of saved work after changes that no other test makes; ``docs/inside/rules/kept.md`` lists them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import (
    IncompatibleCheckpointError,
    SourceChangedError,
    StateMigrationError,
    StorageError,
)
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.connectors.source import OnChange, reconcile
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.stages.executor.node_run import StateCapture
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.preparation import merged_schemas
from airflow_provider_statecheck.spark.stages.sink_commits import SinkCommits
from airflow_provider_statecheck.spark.stages.stage_state import RestoredStageState
from airflow_provider_statecheck.state.aggregates import AggregateSchema
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas, StateSchema
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from airflow_provider_statecheck.state.source_items import Intervals, Item, Ledger
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document, read_values
from airflow_provider_statecheck.storage.stored_json import encode_state
from tests.messages import make_owner, present
from tests.unit.spark.connectors.runs import increments_of, state_of
from tests.unit.spark.stages.loop_without_spark import LoopWithoutSpark, numbers_in, open_sink, staged
from tests.unit.spark.test_savepoints import begin_from
from tests.unit.written_stage import WrittenStage, parquet

STATE = {
    "values": encode_state({"cursor": 7}),
    "loops": [[[], "days", ["d1"], 1.0]],
    "iterations": [[[], "ranks", 3, False]],
}


def test_other_settings_and_another_checkpoint_dir_keep_all_that_is_saved(stage: WrittenStage, tmp_path: Path) -> None:
    first = stage.attempt()
    snapshot = stage.snapshot(first, "ranks")
    first.take_checkpoint(CheckpointContent(snapshots=(snapshot,), state=STATE))
    first.finish(AttemptStatus.FAILED)
    moved = replace(stage, storage=CheckpointStorage.open(f"{tmp_path}/moved").allowing(stage.storage.base_uri))
    attempt = moved.attempt(num_retained=3, checkpoint_timeout_seconds=7.0)
    restored = present(attempt.restore())
    assert [handle.uri for handle in restored.document.snapshots] == [snapshot.uri]
    assert {name: restored.state[name] for name in STATE} == STATE
    attempt.finish(AttemptStatus.FAILED)
    attempt = moved.attempt(num_retained=3, checkpoint_timeout_seconds=7.0)
    with StageContext(None, attempt, overhead_budget=0.5, checkpoint_interval="1 min") as checkpoint:  # type: ignore[arg-type]
        assert dict(checkpoint.state) == {"cursor": 7}
        assert list(checkpoint.each("days", ["d1"])) == []


@pytest.mark.parametrize("work", [lambda: None, lambda: 1])
def test_values_in_state_are_kept_whatever_changes(stage: WrittenStage, work: Callable[[], object]) -> None:
    first = stage.attempt()
    first.take_checkpoint(CheckpointContent(snapshots=(), state=STATE))
    first.finish(AttemptStatus.FAILED)
    with StageContext(None, stage.attempt()) as checkpoint:  # type: ignore[arg-type]
        for _ in checkpoint.each("days", ["d1", "d2"], version="2"):
            work()
        assert dict(checkpoint.state) == {"cursor": 7}


def items(folder: str, *names: str) -> tuple[Item, ...]:
    return tuple(Item.of(f"s3://lake/{folder}/{name}", 10, 1) for name in names)


def test_another_place_of_a_source_is_refused_within_a_run_and_read_by_the_next() -> None:
    before = Ledger(items("monday", "a", "b"), Intervals.of([0, 1]))
    now = items("tuesday", "a", "b")
    with pytest.raises(SourceChangedError):
        reconcile(before, now, on_change=OnChange.FAIL, new_run=False)
    ledger = reconcile(before, now, on_change=OnChange.FAIL, new_run=True)
    assert (ledger.items, list(ledger.finished)) == (now, [])


class ChangedSource(ParquetSource):
    """The same files with other code."""

    def unused(self) -> None:
        """Do nothing."""


def test_progress_of_a_source_is_kept_by_other_code_of_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tmp_path.joinpath(f"{name}.parquet").write_bytes(parquet(1, 0))
    settings: dict[str, Any] = {"schema": "n bigint", "files_per_increment": 1}
    begun = ParquetSource(str(tmp_path), **settings).open(None)  # type: ignore[arg-type]
    begun.finish(begun.next_increment())  # type: ignore[arg-type]
    resumed = ChangedSource(str(tmp_path), **settings).open(None, state_of(begun))  # type: ignore[arg-type]
    assert [[split.item.name for split in each.splits] for each in increments_of(resumed)] == [
        [f"file://{tmp_path}/b.parquet"]
    ]


def largest(kind: pa.DataType) -> OperatorSchemas:
    """Return the types of the state of an aggregate of a column."""
    value = serializer_of(pa.struct([pa.field("largest", kind)])).snapshot()
    aggregate = AggregateSchema(name="largest", is_nullable=True, function="max", combine="max", expression="v")
    return OperatorSchemas(
        keyed=(StateSchema(name="aggregates", kind=StateKind.VALUE, value=value),), aggregates=(aggregate,)
    )


def test_aggregate_follows_its_column_to_a_wider_type_and_to_no_other() -> None:
    before, wider = largest(pa.int32()), largest(pa.int64())
    assert merged_schemas({"stage/aggregate": before}, {"stage/aggregate": wider}) == {"stage/aggregate": wider}
    for other in (pa.string(), pa.int16()):
        with pytest.raises(StateMigrationError):
            merged_schemas({"stage/aggregate": before}, {"stage/aggregate": largest(other)})


def written(
    stage: WrittenStage,
    sink: ParquetSink,
    increments: int,
    *,
    code: Callable[[int], int] = int,
    run: str = "2026-01-01",
) -> None:
    """Run the remaining increments of a stage that writes a number for each."""
    attempt = stage.attempt(owner=make_owner(run_key=run, run_id=run))
    restored = RestoredStageState(attempt, attempt.restore())
    open_sink(sink, attempt, restored)
    commits = SinkCommits(sink, attempt, restored.open_commits)
    if restored.checkpoint_id is not None and commits.has_open:
        commits.commit(restored.checkpoint_id)
    finished = (restored.source or {}).get("finished", 0)
    loop = LoopWithoutSpark(attempt, sink, job=job_of(code, sink, attempt), finished=finished)
    try:
        loop.run(increments, commits).end()
    finally:
        attempt.finish(AttemptStatus.FAILED)


def test_output_that_other_code_has_written_is_kept(stage: WrittenStage, tmp_path: Path) -> None:
    written(stage, ParquetSink(tmp_path / "output"), 2)
    written(stage, ParquetSink(tmp_path / "output"), 3, code=lambda number: number * 100)
    assert numbers_in(tmp_path / "output") == [1, 2, 300]


def test_output_at_another_place_is_refused_within_a_run(stage: WrittenStage, tmp_path: Path) -> None:
    written(stage, ParquetSink(tmp_path / "output"), 2)
    with pytest.raises(IncompatibleCheckpointError, match=r"output, where its run .* found it at .*other; restore"):
        written(stage, ParquetSink(tmp_path / "other"), 3)
    written(stage, ParquetSink(tmp_path / "output"), 3)
    assert numbers_in(tmp_path / "output") == [1, 2, 3]


def test_next_run_goes_on_at_another_place(stage: WrittenStage, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        written(stage, ParquetSink(tmp_path / f"day={number}"), number, run=f"2026-01-0{number}")
    assert [numbers_in(tmp_path / f"day={number}") for number in (1, 2, 3)] == [[1], [2], [3]]


class BrokenSink(ParquetSink):
    """A sink that commits nothing after the first checkpoint."""

    def commit(self, checkpoint_id: int, committables: Sequence[Any]) -> None:
        if checkpoint_id > 1:
            raise StorageError("broken")
        super().commit(checkpoint_id, committables)


@pytest.mark.parametrize("finisher", ["retry", "next run"])
def test_output_that_a_run_has_not_committed_is_committed_at_its_place(
    stage: WrittenStage, tmp_path: Path, finisher: str
) -> None:
    written(stage, ParquetSink(tmp_path / "day=1"), 1, run="2026-01-01")
    with pytest.raises(StorageError):
        written(stage, BrokenSink(tmp_path / "day=2"), 2, run="2026-01-02")
    assert numbers_in(tmp_path / "day=2") == []
    if finisher == "retry":
        written(stage, ParquetSink(tmp_path / "day=2"), 3, run="2026-01-02")
        assert numbers_in(tmp_path / "day=2") == [2, 3]
    else:
        written(stage, ParquetSink(tmp_path / "day=3"), 3, run="2026-01-03")
        assert [numbers_in(tmp_path / f"day={number}") for number in (1, 2, 3)] == [[1], [2], [3]]


def job_of(code: Callable[[int], int], sink: ParquetSink, attempt: StageAttempt) -> Any:
    def job(increment: int, _: StateCapture) -> Sequence[TaskReport]:
        return [TaskReport(vertex=0, subtask=0, committables=staged(sink, attempt, code(increment)), rows=1)]

    return job


def test_a_savepoint_is_restored_like_the_checkpoint_that_it_copies(stage: WrittenStage, tmp_path: Path) -> None:
    attempt = stage.attempt()
    with StageContext(None, attempt) as checkpoint:  # type: ignore[arg-type]
        stage.request_savepoint(attempt, f"file://{tmp_path}/savepoints")
        for day in checkpoint.each("days", ["d1"]):
            checkpoint.state["day"] = day
    copied = load_document(stage.storage, present(attempt.latest))
    expected = read_values(stage.storage, copied, is_bounded=False)["bases"]
    savepoint = next(tmp_path.joinpath("savepoints").iterdir())
    _, fork = begin_from(stage, f"file://{savepoint}")
    assert fork.state["bases"] == expected != []
