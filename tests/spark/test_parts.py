"""
What a step that is computed in parts promises: results, retries, changed input and code, failures, and what is seen.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import LongType, StructField, StructType

from airflow_provider_statecheck import CsvSource, DataFrameSource, DeltaSource, ParquetSource, SqlSource
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OnClear
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    PartFailedError,
    SourceChangedError,
    UnknownStateError,
    UnsupportedPlanError,
)
from airflow_provider_statecheck.spark.context import StageContext, StepReport
from airflow_provider_statecheck.state.reading.checkpoint_contents import CheckpointContents
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.snapshot_reader import read_snapshot
from tests.soak import rest_in_soak
from tests.spark.tries import PlannedError, Tries, ids

FILES, ROWS_OF_A_FILE = 6, 5
ROWS = FILES * ROWS_OF_A_FILE
SCHEMA = "number long, score long"


class Scoring:
    """A function that notes each row that it gets, and fails at one while it is told to."""

    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls"
        self.bad = folder / "bad"

    def __call__(self, frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            if self.bad.exists() and int(self.bad.read_text()) in set(frame.number):
                raise ValueError(f"row {self.bad.read_text()} is bad")
            with self.calls.open("a") as file:
                file.write("".join(f"{number}\n" for number in frame.number))
            yield frame.assign(score=frame.number * 3)

    def counts(self) -> Counter[int]:
        return Counter(map(int, self.calls.read_text().split())) if self.calls.exists() else Counter()


@pytest.fixture
def scoring(tmp_path: Path) -> Scoring:
    return Scoring(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six Parquet files with five rows each."""
    folder = tmp_path / "input"
    folder.mkdir()
    for number in range(FILES):
        write_file(folder, number)
    return folder


def write_file(folder: Path, number: int, rows: int = ROWS_OF_A_FILE, **options: Any) -> None:
    numbers = range(number * ROWS_OF_A_FILE, number * ROWS_OF_A_FILE + rows)
    pq.write_table(pa.table({"number": pa.array(numbers, pa.int64())}), folder / f"{number}.parquet", **options)


def scores(frame: DataFrame) -> dict[int, int]:
    return {row.number: row.score for row in frame.collect()}


EXPECTED = {number: 3 * number for number in range(ROWS)}


def scored(checkpoint: StageContext, over: Any, scoring: Scoring, **options: Any) -> DataFrame:
    score = scoring.__call__
    return checkpoint.snapshot("scored", lambda rows: rows.mapInPandas(score, SCHEMA), over=over, **options)


def report(checkpoint: StageContext) -> StepReport:
    return checkpoint.steps[-1]


def failed_try(tries: Tries, over: Any, scoring: Scoring, *, bad: int = 27, **options: Any) -> PartFailedError:
    """Run a try that fails at a row; the parts before it are finished."""
    scoring.bad.write_text(str(bad))
    with pytest.raises(PartFailedError) as failure, tries.open() as checkpoint:
        scored(checkpoint, over, scoring, **options)
    scoring.bad.unlink()
    return failure.value


# Results and retries


def test_step_is_computed_in_parts_and_equals_the_plain_computation(tries, folder, scoring):
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, tries.spark.read.parquet(str(folder)), scoring)) == EXPECTED
        assert report(checkpoint).parts == 3
        assert report(checkpoint).rows == ROWS
        assert checkpoint.costs.parts == 3
        assert "3 parts of steps written" in checkpoint.costs.summary()
    assert scoring.counts() == Counter(range(ROWS))


def test_retry_computes_only_the_parts_that_are_not_saved(tries, folder, scoring):
    over = tries.spark.read.parquet(str(folder))
    failed_try(tries, over, scoring)
    before = scoring.counts()
    assert 0 < len(before) < ROWS
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, over, scoring)) == EXPECTED
        assert report(checkpoint).restored_parts > 0
        assert not report(checkpoint).is_restored
    finished = {number for number, count in before.items() if scoring.counts()[number] == count}
    assert len(finished) >= 2 * ROWS_OF_A_FILE
    assert set(scoring.counts()) == set(range(ROWS))


@pytest.mark.soak
def test_finished_step_is_restored_without_its_input(tries, folder, scoring):
    with tries.failing() as checkpoint:
        scored(checkpoint, ParquetSource(str(folder)), scoring)
    shutil.rmtree(folder)
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, ParquetSource(str(folder)), scoring)) == EXPECTED
        assert report(checkpoint).is_restored
        assert (report(checkpoint).parts, report(checkpoint).restored_parts) == (3, 3)
    assert scoring.counts() == Counter(range(ROWS))


@pytest.mark.soak
def test_changed_function_recomputes_the_whole_step(tries, folder, scoring):
    over = tries.spark.read.parquet(str(folder))
    failed_try(tries, over, scoring)
    with tries.open() as checkpoint:
        frame = checkpoint.snapshot("scored", lambda rows: rows.selectExpr("number", "number + 1 AS score"), over=over)
        assert scores(frame) == {number: number + 1 for number in range(ROWS)}
        assert report(checkpoint).restored_parts == 0


@pytest.mark.soak
def test_changed_function_recomputes_the_steps_that_stand_on_it(tries, folder):
    over = tries.spark.read.parquet(str(folder))

    def pipeline(checkpoint: StageContext, build: Callable[[DataFrame], DataFrame]) -> list[int]:
        first = checkpoint.snapshot("first", build, over=over)
        checkpoint.snapshot("second", lambda rows: rows.where("id >= 0"), over=first)
        third = checkpoint.snapshot("third", lambda: first.where("id < 3"))
        return ids(third)

    with tries.failing() as checkpoint:
        assert pipeline(checkpoint, lambda rows: rows.selectExpr("number AS id")) == [0, 1, 2]
    with tries.failing() as checkpoint:
        assert pipeline(checkpoint, lambda rows: rows.selectExpr("number AS id")) == [0, 1, 2]
        assert [step.is_restored for step in checkpoint.steps] == [True, True, True]
    with tries.open() as checkpoint:
        assert pipeline(checkpoint, lambda rows: rows.selectExpr("number + 2 AS id")) == [2]
        assert [step.is_restored for step in checkpoint.steps] == [False, False, False]


@pytest.mark.soak
def test_step_of_the_same_name_may_change_its_kind(tries, folder, scoring):
    over = tries.spark.read.parquet(str(folder))
    with tries.failing() as checkpoint:
        scored(checkpoint, over, scoring)
    with tries.failing() as checkpoint:
        assert ids(checkpoint.snapshot("scored", tries.builder("whole"))) == [0, 1, 2]
    (listed,) = CheckpointContents(CheckpointStates.load(_latest(tries).location)).snapshots()
    assert (listed.rows, listed.parts) == (3, 0)
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, over, scoring)) == EXPECTED
        assert report(checkpoint).restored_parts == 0


@pytest.mark.soak
def test_steps_in_parts_are_separate_in_each_item_of_a_loop(tries, folder):
    over = tries.spark.read.parquet(str(folder))
    with tries.open() as checkpoint:
        found = {
            item: ids(checkpoint.snapshot("picked", _picking(item), over=over))
            for item in checkpoint.each("items", [1, 2])
        }
    assert found == {1: [1], 2: [2]}


def _picking(item: int) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.where(rows.number == item).selectExpr("number AS id")


@pytest.mark.soak
def test_input_without_rows_gives_a_step_without_rows(tries, folder):
    with tries.open() as checkpoint:
        none = checkpoint.snapshot("none", lambda: tries.spark.range(5).where("id > 9"))
        assert checkpoint.snapshot("kept", lambda rows: rows.where("id > 0"), over=none).collect() == []
    with tries.open() as checkpoint:
        over = tries.spark.read.parquet(str(folder))
        gone = checkpoint.snapshot("gone", lambda rows: rows.where("number < 0"), over=over)
        assert gone.columns == ["number"]
        assert gone.collect() == []


# Inputs


@pytest.mark.soak
def test_over_a_snapshot_reads_each_of_its_files_once(tries, scoring):
    with tries.open() as checkpoint:
        numbers = checkpoint.snapshot("numbers", lambda: tries.spark.range(0, ROWS, 1, 6).toDF("number"))
        assert scores(scored(checkpoint, numbers, scoring)) == EXPECTED
        assert report(checkpoint).parts == 3
    assert scoring.counts() == Counter(range(ROWS))


@pytest.mark.soak
def test_large_files_of_a_snapshot_are_cut_at_their_row_groups(tries, scoring):
    with tries.open() as checkpoint:
        tries.spark.conf.set("parquet.block.size", 1024)
        numbers = checkpoint.snapshot("numbers", lambda: tries.spark.range(0, 2_000, 1, 1).toDF("number"))
        tries.spark.conf.unset("parquet.block.size")
        doubled = checkpoint.snapshot("doubled", lambda rows: rows.selectExpr("number * 2 AS id"), over=numbers)
        assert ids(doubled) == list(range(0, 4_000, 2))
        assert report(checkpoint).parts > 1


@pytest.mark.soak
def test_over_a_step_that_is_itself_computed_in_parts(tries, folder, scoring):
    with tries.failing() as checkpoint:
        first = scored(checkpoint, tries.spark.read.parquet(str(folder)), scoring)
        second = checkpoint.snapshot("second", lambda rows: rows.selectExpr("score AS id"), over=first)
        assert ids(second) == sorted(EXPECTED.values())
    with tries.open() as checkpoint:
        first = scored(checkpoint, tries.spark.read.parquet(str(folder)), scoring)
        second = checkpoint.snapshot("second", lambda rows: rows.selectExpr("score AS id"), over=first)
        assert ids(second) == sorted(EXPECTED.values())
        assert [step.is_restored for step in checkpoint.steps] == [True, True]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["frame", "source"])
def test_over_csv_files(tries, folder, scoring, kind):
    path = str(folder.parent / "csv")
    tries.spark.read.parquet(str(folder)).repartition(6).write.option("header", True).csv(path)
    frame = tries.spark.read.option("header", True).schema("number long").csv(path)
    source = CsvSource(path, schema="number long", options={"header": True})
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, frame if kind == "frame" else source, scoring)) == EXPECTED
        assert report(checkpoint).parts > 1


@pytest.mark.soak
@pytest.mark.parametrize("file_format", ["json", "orc"])
def test_over_a_frame_of_other_files(tries, folder, scoring, file_format):
    path = str(folder.parent / file_format)
    tries.spark.read.parquet(str(folder)).write.format(file_format).save(path)
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, tries.spark.read.format(file_format).load(path), scoring)) == EXPECTED


@pytest.mark.soak
def test_over_a_pattern_that_matches_names_with_brackets(tries, folder, scoring):
    (folder / "1.parquet").rename(folder / "1 [b].parquet")
    with tries.open() as checkpoint:
        frame = tries.spark.read.parquet(f"{folder}/*.parquet")
        assert scores(scored(checkpoint, frame, scoring)) == EXPECTED


@pytest.mark.soak
def test_over_partitioned_files_has_the_columns_of_their_directories(tries, folder):
    path = str(folder.parent / "partitioned")
    rows = tries.spark.read.parquet(str(folder)).withColumn("kind", F.col("number") % 3)
    rows.write.partitionBy("kind").parquet(path)
    with tries.open() as checkpoint:
        frame = checkpoint.snapshot(
            "kinds", lambda part: part.select("kind", "number"), over=tries.spark.read.parquet(path)
        )
        assert {(row.kind, row.number) for row in frame.collect()} == {(n % 3, n) for n in range(ROWS)}


@pytest.mark.soak
def test_over_key_ranges_of_a_database(tries, tmp_path, scoring):
    import sqlite3

    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("create table numbers (number integer primary key)")
        database.executemany("insert into numbers values (?)", [(number,) for number in range(ROWS)])
    source = SqlSource(f"sqlite:///{tmp_path}/rows.db", "numbers", key="number", ranges=6, readers=1)
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, source, scoring)) == EXPECTED
        assert report(checkpoint).parts == 6


def test_over_a_delta_table(tries, tmp_path, scoring):
    for first in range(0, ROWS, 10):
        numbers = pa.table({"number": pa.array(range(first, first + 10), pa.int64())})
        write_deltalake(str(tmp_path / "table"), numbers, mode="append")
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, DeltaSource(str(tmp_path / "table")), scoring)) == EXPECTED
        assert report(checkpoint).parts == 2


@pytest.mark.soak
@pytest.mark.parametrize("rows_per_file", [5, pytest.param(30, marks=pytest.mark.soak)])
def test_over_a_snapshot_that_executors_have_written(tries, scoring, object_store, tmp_path, rows_per_file):
    where = {
        "checkpoint_dir": f"s3://{object_store.bucket}/{tmp_path.name}",
        "storage_options": object_store.storage_options,
    }

    def pipeline(checkpoint: StageContext) -> dict[int, int]:
        numbers = checkpoint.snapshot(
            "numbers", lambda: tries.spark.range(0, ROWS, 1, ROWS // rows_per_file).toDF("number")
        )
        return scores(scored(checkpoint, numbers, scoring))

    scoring.bad.write_text("27")
    with pytest.raises(PartFailedError), tries.open(**where) as checkpoint:
        pipeline(checkpoint)
    scoring.bad.unlink()
    with tries.failing(**where) as checkpoint:
        assert pipeline(checkpoint) == EXPECTED
    with tries.open(**where) as checkpoint:
        assert pipeline(checkpoint) == EXPECTED
        assert [step.is_restored for step in checkpoint.steps] == [True, True]


@pytest.mark.soak
def test_over_splits_of_the_user(tries, scoring):
    source = DataFrameSource([0, 10, 20], lambda spark, first: spark.range(first, first + 10).toDF("number"))
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, source, scoring)) == EXPECTED
        assert report(checkpoint).parts == 3


@pytest.mark.soak
def test_limits_of_a_source_hold(tries, folder, scoring):
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, ParquetSource(str(folder), files_per_increment=1), scoring)) == EXPECTED
        assert report(checkpoint).parts == FILES


@pytest.mark.soak
def test_cut_and_whole_files_have_the_same_columns(tries, tmp_path):
    """The first parts are row groups of a file, and later ones whole files."""
    folder = str(tmp_path / "described")
    schema = StructType([StructField("number", LongType(), False, {"comment": "of a row"})])
    rows = tries.spark.createDataFrame([(number,) for number in range(400)], schema)
    rows.coalesce(1).write.option("parquet.block.size", 512).parquet(folder)
    rows.coalesce(1).write.mode("append").parquet(folder)
    with tries.open() as checkpoint:
        over = tries.spark.read.parquet(folder)
        found = checkpoint.snapshot("kept", lambda part: part.withColumn("score", part.number * 3), over=over)
        assert sorted(row.number for row in found.collect()) == sorted([*range(400), *range(400)])
        assert found.schema["number"].metadata["comment"] == "of a row"


@pytest.mark.soak
def test_over_a_frame_of_an_earlier_iteration_reads_that_iteration(tries):
    found: list[list[int]] = []

    def is_over(current: DataFrame, previous: DataFrame) -> bool:
        with_over = checkpoint.snapshot(f"seen{len(found)}", lambda rows: rows.where("id >= 0"), over=previous)
        found.append(ids(with_over))
        return False

    with tries.open() as checkpoint:
        start = checkpoint.snapshot("start", lambda: tries.spark.range(1))
        checkpoint.iterate("loop", start, 3, step=lambda rows, number: tries.spark.range(number + 1), until=is_over)
    assert found == [[0], [0, 1], [0, 1, 2]]


# Input that changes under the step


@pytest.mark.soak
@pytest.mark.parametrize("change", rest_in_soak(["appeared", "vanished", "changed"], "changed"))
def test_input_that_changed_between_tries_is_named_and_refused(tries, folder, scoring, change):
    over = tries.spark.read.parquet(str(folder))
    failed_try(tries, over, scoring)
    if change == "vanished":
        (folder / "5.parquet").unlink()
    else:
        write_file(folder, 9 if change == "appeared" else 0, rows=3)
    name = {"appeared": "9", "vanished": "5", "changed": "0"}[change]
    with pytest.raises(SourceChangedError, match=rf"{name}\.parquet {change}"), tries.open() as checkpoint:
        scored(checkpoint, tries.spark.read.parquet(str(folder)), scoring)


@pytest.mark.soak
@pytest.mark.parametrize("is_repaired", [False, True])
def test_source_that_restarts_on_a_change_is_read_again(tries, folder, scoring, caplog, is_repaired):
    failed_try(tries, ParquetSource(str(folder), on_change="restart"), scoring)
    write_file(folder, 9)
    if is_repaired:
        (folder / "0.parquet").unlink()
    caplog.set_level(logging.WARNING)
    with tries.open() as checkpoint:
        found = scores(scored(checkpoint, ParquetSource(str(folder), on_change="restart"), scoring))
        assert set(found) == {*range(ROWS_OF_A_FILE if is_repaired else 0, ROWS), *range(45, 50)}
        assert report(checkpoint).restored_parts == 0
    assert "Step scored is recomputed: " in caplog.text
    assert "9.parquet appeared" in caplog.text


@pytest.mark.soak
def test_another_input_recomputes_the_whole_step(tries, folder, scoring):
    failed_try(tries, ParquetSource(str(folder)), scoring)
    other = folder.parent / "other"
    other.mkdir()
    write_file(other, 0)
    with tries.open() as checkpoint:
        assert set(scores(scored(checkpoint, ParquetSource(str(other)), scoring))) == set(range(ROWS_OF_A_FILE))


@pytest.mark.soak
def test_step_that_is_resumed_with_other_code_keeps_its_parts_in_the_tries_after(tries, folder, scoring):
    over = tries.spark.read.parquet(str(folder))
    failed_try(tries, over, scoring)

    def changed(checkpoint: StageContext) -> DataFrame:
        score = scoring.__call__
        return checkpoint.snapshot(
            "scored",
            lambda rows: rows.where("number >= 0").mapInPandas(score, SCHEMA),
            over=over,
            on_bad_part="quarantine",
        )

    scoring.bad.write_text("27")
    with pytest.raises(PartFailedError), tries.open(on_clear=OnClear.RESUME) as checkpoint:
        changed(checkpoint)
    scoring.bad.unlink()
    with tries.open() as checkpoint:
        assert scores(changed(checkpoint)) == EXPECTED
        assert report(checkpoint).restored_parts > 0


# Failures


def test_part_that_fails_names_its_files_and_rows_and_the_finished_parts_are_kept(tries, folder, scoring):
    error = failed_try(tries, tries.spark.read.parquet(str(folder)), scoring)
    assert "ValueError: row 27 is bad" in str(error)
    assert f"{folder}/5.parquet (rows 0 to 4)" in str(error)
    assert "1 that failed" in str(error)
    with tries.open() as checkpoint:
        assert checkpoint.is_restored()
        scored(checkpoint, tries.spark.read.parquet(str(folder)), scoring)
        assert report(checkpoint).restored_parts > 0


@pytest.mark.soak
def test_rows_of_a_cut_file_are_named(tries, tmp_path, scoring):
    folder = tmp_path / "cut"
    folder.mkdir()
    write_file(folder, 0, rows=40, row_group_size=10)
    source = ParquetSource(str(folder), row_groups_per_increment=1)
    error = failed_try(tries, source, scoring, bad=25)
    assert "0.parquet (rows 20 to 29)" in str(error)


def test_quarantine_finishes_the_other_parts_and_a_retry_computes_only_the_bad_one(tries, folder, scoring, caplog):
    over = tries.spark.read.parquet(str(folder))
    error = failed_try(tries, over, scoring, bad=2, on_bad_part="quarantine")
    assert error.parts == ((f"file://{folder}/0.parquet (rows 0 to 4)", f"file://{folder}/1.parquet (rows 0 to 4)"),)
    assert "row 2 is bad" in str(error.__cause__)
    before = scoring.counts()
    assert set(before) >= set(range(2 * ROWS_OF_A_FILE, ROWS))
    caplog.set_level(logging.INFO)
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, over, scoring, on_bad_part="quarantine")) == EXPECTED
    assert "runs again what failed before" in caplog.text
    assert {number for number, count in scoring.counts().items() if count > before[number]} <= set(
        range(2 * ROWS_OF_A_FILE)
    )


@pytest.mark.soak
def test_report_and_checkpoint_keep_the_error_of_a_bad_part(tries, folder, scoring):
    scoring.bad.write_text("2")
    with pytest.raises(PartFailedError), tries.open() as checkpoint:
        scored(checkpoint, tries.spark.read.parquet(str(folder)), scoring, on_bad_part="quarantine")
    assert "row 2 is bad" in report(checkpoint).bad_parts[0].error
    summary = _latest(tries).summary
    assert summary is not None
    (step,) = summary.steps
    assert (step.parts, step.bad_parts, step.parts_text) == (2, 1, "2 parts, 66 %, 1 failed")


def damage_first_part(tries: Tries) -> None:
    """Damage the file of the first part, which all retained checkpoints reference."""
    files = tries.checkpoints.glob("*/shared/*/scored*/*/data/*.parquet")
    first = min(files, key=lambda path: path.stat().st_mtime_ns)
    first.write_bytes(first.read_bytes()[:-20] + bytes(20))


def test_damaged_part_is_recomputed_alone(tries, folder, scoring, caplog):
    over = tries.spark.read.parquet(str(folder))
    with tries.failing() as checkpoint:
        scored(checkpoint, over, scoring)
    before = scoring.counts()
    damage_first_part(tries)
    with tries.open() as checkpoint:
        assert scores(scored(checkpoint, over, scoring)) == EXPECTED
        assert (report(checkpoint).parts, report(checkpoint).restored_parts) == (3, 2)
    assert "is damaged; part" in caplog.text
    again = [number for number, count in scoring.counts().items() if count > before[number]]
    assert len(again) == 2 * ROWS_OF_A_FILE


@pytest.mark.soak
def test_steps_on_a_recomputed_part_are_recomputed_even_after_another_failure(tries, folder, scoring):
    over = tries.spark.read.parquet(str(folder))

    def pipeline(checkpoint: StageContext, *, fails: bool = False) -> None:
        checkpoint.snapshot("before", tries.builder("before"), version=str(len(tries.computed)))
        if fails:
            raise PlannedError
        first = scored(checkpoint, over, scoring)
        checkpoint.snapshot("after", lambda: first.where("score > 3"))

    with tries.failing() as checkpoint:
        pipeline(checkpoint)
    damage_first_part(tries)
    with tries.failing() as checkpoint:
        # A checkpoint without the damaged part, before the part is computed again.
        pipeline(checkpoint, fails=True)
    with tries.open() as checkpoint:
        pipeline(checkpoint)
        outcomes = {step.name: step.is_restored for step in checkpoint.steps}
        assert outcomes == {"before": outcomes["before"], "scored": False, "after": False}


def test_steps_on_a_step_in_parts_are_recomputed_after_a_change_that_was_taken_back(tries, folder):
    over = tries.spark.read.parquet(str(folder))

    def pipeline(checkpoint: StageContext, version: str, *, fails: bool = False) -> None:
        first = checkpoint.snapshot("first", lambda rows: rows.selectExpr("number AS id"), over=over, version=version)
        if fails:
            raise PlannedError
        checkpoint.snapshot("second", lambda: first.where("id < 3"))

    with tries.failing() as checkpoint:
        pipeline(checkpoint, "1")
    with tries.failing() as checkpoint:
        pipeline(checkpoint, "2", fails=True)
    with tries.open() as checkpoint:
        pipeline(checkpoint, "1")
        assert [step.is_restored for step in checkpoint.steps] == [False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"when": "auto"}, "with over to be written"),
        ({"on_bad_part": "skip"}, "one of fail, quarantine"),
        ({"over": None, "on_bad_part": "quarantine"}, "without over"),
        ({"over": [1, 2]}, "a DataFrame or a source"),
        ({"over": Path("/data/rows")}, "a DataFrame or a source"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_any_work(tries, folder, scoring, options, message):
    arguments = {"over": tries.spark.read.parquet(str(folder)), **options}
    with tries.failing() as checkpoint, pytest.raises(InvalidConfigurationError, match=message):
        scored(checkpoint, arguments.pop("over"), scoring, **arguments)
    assert not scoring.calls.exists()


def test_frame_instead_of_a_function_is_refused(tries, folder):
    rows = tries.spark.read.parquet(str(folder))
    with tries.failing() as checkpoint, pytest.raises(InvalidConfigurationError, match="a function of one DataFrame"):
        checkpoint.snapshot("scored", rows, over=rows)


@pytest.mark.parametrize(
    ("over", "found"),
    [
        (lambda rows: rows.where("number > 1"), "another plan"),
        (lambda rows: rows.groupBy("number").count(), "another plan"),
        (lambda rows: rows.localCheckpoint(), "another plan"),
        (lambda rows: rows.cache(), "a cached DataFrame"),
    ],
)
def test_input_that_is_no_scan_is_refused(tries, folder, scoring, over, found):
    frame = over(tries.spark.read.parquet(str(folder)))
    with tries.failing() as checkpoint, pytest.raises(UnsupportedPlanError, match=found):
        scored(checkpoint, frame, scoring)
    frame.unpersist()


def test_plan_that_does_not_work_row_by_row_is_refused_before_any_work(tries, folder):
    over = tries.spark.read.parquet(str(folder))
    with tries.failing() as checkpoint, pytest.raises(UnsupportedPlanError, match=r"step 'counts'.*groupBy|aggregat"):
        checkpoint.snapshot("counts", lambda rows: rows.groupBy("number").count(), over=over)
    assert tries.snapshots() == 0


# What is seen


@pytest.mark.soak
def test_progress_names_parts_and_what_is_kept(tries, folder, scoring, caplog):
    caplog.set_level(logging.INFO)
    with tries.open() as checkpoint:
        scored(checkpoint, tries.spark.read.parquet(str(folder)), scoring)
    line = next(message for message in caplog.messages if message.startswith("Step scored: "))
    assert "1 part, 0 % kept" in line
    assert any(m.startswith("Step scored computed in") and m.endswith("in 3 parts") for m in caplog.messages)


@pytest.mark.soak
def test_parts_are_listed_as_one_snapshot_and_an_unfinished_one_is_not_read(tries, folder, scoring):
    over = tries.spark.read.parquet(str(folder))
    failed_try(tries, over, scoring)
    pointer = _latest(tries).location
    (listed,) = CheckpointContents(CheckpointStates.load(pointer)).snapshots()
    assert (listed.name, listed.is_complete) == ("scored", False)
    with pytest.raises(UnknownStateError, match="not finished"):
        read_snapshot(pointer, "scored")
    with tries.failing() as checkpoint:
        scored(checkpoint, over, scoring)
    pointer = _latest(tries).location
    (listed,) = CheckpointContents(CheckpointStates.load(pointer)).snapshots()
    assert (listed.rows, listed.parts, listed.is_complete) == (ROWS, 3, True)
    table = read_snapshot(pointer, "scored").read_all()
    assert dict(zip(table["number"].to_pylist(), table["score"].to_pylist(), strict=True)) == EXPECTED


def _latest(tries: Tries) -> CheckpointRecord:
    return max((c for c in tries.view().checkpoints if c.is_restorable), key=lambda c: c.checkpoint_id)


@pytest.mark.soak
def test_used_up_budget_postpones_the_checkpoints_of_parts(tries, folder, scoring):
    tries.seconds_per_file = 1.0
    with tries.open(overhead_budget=0.01) as checkpoint:
        assert scores(scored(checkpoint, tries.spark.read.parquet(str(folder)), scoring)) == EXPECTED
        assert checkpoint.costs.put_off == 1
    # The budget allows the first one, and the last one is that of the finished step.
    assert tries.completed() == 2


@pytest.mark.soak
def test_savepoint_of_an_unfinished_step_is_continued_by_another_job(tries, folder, scoring, spark, tmp_path):
    over = tries.spark.read.parquet(str(folder))
    failed_try(tries, over, scoring)
    before = scoring.counts()
    with tries.failing(job="other", from_savepoint=_latest(tries).location, claim_mode="no_claim") as checkpoint:
        assert scores(scored(checkpoint, over, scoring)) == EXPECTED
        assert report(checkpoint).restored_parts > 0
    assert max((scoring.counts() - before).values()) == 1
