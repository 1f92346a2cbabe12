"""What the checkpoints of a stage hold after a failed try: its steps, loops and items, and those of a mapped task."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.queryable.job_contents import JobContents, snapshot_in
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.state_dataframes import read_snapshot as read_with_spark
from airflow_provider_statecheck.state.reading.checkpoint_contents import FinishedItems, ReachedIteration
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.snapshot_reader import read_snapshot
from airflow_provider_statecheck.state.writing.canonical import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.spark.tries import JOB, PlannedError, Tries, ids


def fail_in_the_third_day(tries: Tries, checkpoint: StageContext, rows: int) -> None:
    checkpoint.state["cursor"] = rows
    checkpoint.snapshot("rows", tries.builder("rows", rows))
    checkpoint.iterate("refined", tries.spark.range(rows), 4, 2, step=lambda frame, number: frame)
    for day in checkpoint.each("days", [1, 2, 3]):
        checkpoint.snapshot("rows", tries.builder(f"day {day}", rows + day))
        if day == 3:
            raise PlannedError


def failed(tries: Tries) -> JobContents:
    """Let a stage and an instance of a mapped task fail in the middle."""
    for uid, rows in (("stage", 2), ("mapped[eu]", 5)):
        with tries.failing(uid=uid, allow_non_restored_state=True) as checkpoint:
            fail_in_the_third_day(tries, checkpoint, rows)
    return JobContents(open_gateway(tries.metadata), CheckpointStorage.open)


@pytest.mark.soak
def test_steps_items_and_iterations_of_each_operator_are_listed_and_read(tries, spark):
    jobs = failed(tries)
    mapped, stage = jobs.read(job_id_of(JOB), lambda stages: stages)
    assert (mapped.uid, stage.uid) == ("mapped[eu]", "stage")
    for each, rows in ((stage, 2), (mapped, 5)):
        found = {(s.scope, s.name): (s.rows, s.columns) for s in each.contents.snapshots()}
        columns = (("id", "int64"),)
        assert found == {
            ("", "rows"): (rows, columns),
            ("", "refined"): (rows, columns),
            ("days[3]", "rows"): (rows + 3, columns),
        }
        assert each.contents.finished_items() == (FinishedItems(loop="days", count=2),)
        assert each.contents.items("days", limit=10).items == ("1", "2")
        assert each.contents.iterations() == (ReachedIteration(loop="refined", iteration=4, is_converged=False),)
        assert each.contents.values() == {"cursor": rows}
        table = read_snapshot(each.pointer, "rows", scope="days[3]").read_all()
        assert sorted(table.column("id").to_pylist()) == list(range(rows + 3))
        assert ids(read_with_spark(spark, each.pointer, "rows", scope="days[3]")) == list(range(rows + 3))
    _, reader = jobs.read(job_id_of(JOB), lambda stages: snapshot_in(stages, "refined"), uid="mapped[eu]")
    assert reader.record_batches().read_all().num_rows == 5


@pytest.mark.soak
def test_savepoint_is_read_after_it_was_moved(tries, spark, tmp_path):
    (stage,) = failed(tries).read(job_id_of(JOB), lambda stages: stages, uid="stage")
    states = CheckpointStates.load(stage.pointer)
    first = tmp_path / "first"
    properties = CheckpointProperties.for_savepoint()
    write_savepoint(states.storage, states.document, directory=first.as_uri(), checkpoint_id=99, properties=properties)
    moved = first.rename(tmp_path / "moved").as_uri()
    assert sorted(read_snapshot(moved, "rows", scope="").read_all().column("id").to_pylist()) == [0, 1]
    assert ids(read_with_spark(spark, moved, "rows", scope="")) == [0, 1]
