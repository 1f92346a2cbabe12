"""A stage that reads what another one has committed, with a real Spark."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.exceptions import SourceChangedError
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.connectors.stage_output.source import StageOutputSource
from airflow_provider_statecheck.spark.stages.stage import Count, Stage, Sum
from tests.job_savepoints import save_job
from tests.messages import make_owner, source_at
from tests.shared_spark import UNREADABLE
from tests.spark.stages.functions import FailingOnce
from tests.spark.stages.stage_tries import JOB
from tests.unit.spark.connectors.attempts import Attempt
from tests.unit.spark.connectors.runs import following

ACCOUNTS = 3
OUTPUT = pa.schema([("account", pa.string()), ("number", pa.int64()), ("balance", pa.int64())])


def part(number):
    """Ten payments, numbered in their order."""
    numbers = range(number * 10, number * 10 + 10)
    return {
        "account": [f"{n % ACCOUNTS:03d}" for n in numbers],
        "number": list(numbers),
        "amount": [1] * 10,
        "purpose": ["rent"] * 10,
    }


def upstream(tries, function, output=None):
    keyed = (
        Stage("stage")
        .source(ParquetSource(str(tries.input), files_per_increment=1))
        .key_by("account", order_by="number")
    )
    sink = ParquetSink(str(output or tries.output), partition_by=["account"])
    columns = "account string, number bigint, balance bigint"
    return keyed.process(function, uid="balance", output=columns).sink(sink)


def downstream(tries, path=None, report="report", **named):
    source = StageOutputSource(str(path or tries.output), **{"checkpoints_per_increment": 1, **named})
    counted = Stage("report").source(source).key_by("account").aggregate(n=Count(), total=Sum("number"), emit="changes")
    return counted.sink(ParquetSink(str(tries.folder / report)))


def run_downstream(tries, run="2026-01-01", **named):
    return tries.run(downstream(tries, **named), job_name="reports", uid="report", owner=make_owner(run_key=run))


def run_upstream(tries, function, run="2026-01-01"):
    return tries.run(upstream(tries, function), owner=make_owner(run_key=run))


def never(tries):
    return FailingOnce(tries.folder / "failed", number=-1)


def counts(tries, report="report"):
    """The newest number of rows of each account in the report."""
    rows = ds.dataset(tries.folder / report, format="parquet").to_table().to_pylist()
    return {
        account: max(row["n"] for row in rows if row["account"] == account) for account in {r["account"] for r in rows}
    }


def test_rows_are_those_that_were_committed_with_the_types_of_their_columns(spark, tries):
    tries.write_input(part(0), part(1))
    run_upstream(tries, never(tries))
    enumerator = StageOutputSource(str(tries.output)).open(spark)
    frame = enumerator.load(following(enumerator))
    assert dict(frame.dtypes) == {"account": "string", "number": "bigint", "balance": "bigint"}
    assert {row["account"] for row in frame.collect()} == {"000", "001", "002"}
    assert sorted(row["number"] for row in frame.collect()) == list(range(20))
    assert following(enumerator) is None


def test_a_changed_page_of_the_output_upstream_is_an_error_and_no_other_value(spark, tries):
    tries.write_input(part(0), part(1))
    run_upstream(tries, never(tries))
    for path in tries.output.rglob("part-*.parquet"):
        content = bytearray(path.read_bytes())
        content[pq.read_metadata(path).row_group(0).column(0).dictionary_page_offset + 40] ^= 1
        path.write_bytes(content)
    enumerator = StageOutputSource(str(tries.output)).open(spark)
    with pytest.raises(Exception, match=UNREADABLE):
        enumerator.load(following(enumerator)).collect()


def test_chosen_columns_come_in_their_order(spark, tries):
    tries.write_input(part(0))
    run_upstream(tries, never(tries))
    enumerator = StageOutputSource(str(tries.output), columns=["balance", "account"]).open(spark)
    assert enumerator.load(following(enumerator)).columns == ["balance", "account"]


def test_columns_stay_those_of_the_first_attempt(spark, tries):
    tries.write_input(part(0), part(1))
    run_upstream(tries, never(tries))
    source = StageOutputSource(str(tries.output), checkpoints_per_increment=1)
    enumerator = source.open(spark)
    first = following(enumerator)
    before = enumerator.load(first).schema
    enumerator.finish(first)
    again = source.open(spark, enumerator.snapshot())
    assert again.snapshot()["reader"]["schema"] == before.json()
    assert again.load(following(again)).schema == before


def test_each_run_reads_what_was_committed_since_the_run_before(tries):
    tries.write_input(part(0), part(1))
    run_upstream(tries, never(tries))
    assert run_downstream(tries).increments == 2
    tries.write_input(part(2))
    run_upstream(tries, never(tries), run="2026-01-02")
    second = run_downstream(tries, run="2026-01-02")
    assert (second.increments, second.rows) == (1, 10)
    assert counts(tries) == {"000": 10, "001": 10, "002": 10}
    assert run_downstream(tries, run="2026-01-03").increments == 0


@pytest.mark.soak
def test_output_of_a_failed_try_is_read_as_far_as_it_was_committed_and_the_rest_later(tries):
    tries.write_input(part(0), part(1))
    function = FailingOnce(tries.folder / "failed", number=15)
    with pytest.raises(Exception, match="planned"):
        run_upstream(tries, function)
    assert run_downstream(tries).rows == 10
    run_upstream(tries, function)
    assert run_downstream(tries, run="2026-01-02").rows == 10
    assert sum(counts(tries).values()) == 20


def begun_again(tries):
    """The same sink with a job that has lost its checkpoints: its first commit replaces what was there."""
    again = Attempt(f"file://{tries.output}", 99, generation=9, partition_by=["account"], schema=OUTPUT)
    again.context = replace(again.context, job_id=job_id_of(JOB), job_name=JOB, uid="stage/sink")
    rows = [{"account": "000", "number": 1, "balance": 1}]
    writer = again.open().task(schema=OUTPUT)
    writer.write(pa.Table.from_pylist(rows, OUTPUT))
    again.commit(99, writer.prepare_commit())


@pytest.mark.soak
def test_an_upstream_that_begins_again_is_noticed(tries):
    tries.write_input(part(0), part(1))
    run_upstream(tries, never(tries))
    run_downstream(tries)
    before = counts(tries)
    begun_again(tries)
    for policy in ("fail", "restart"):
        with pytest.raises(SourceChangedError, match=r"retracted checkpoint.*rewind the job"):
            run_downstream(tries, run="2026-01-02", on_change=policy)
    assert counts(tries) == before


class Fork:
    """Both stages of a job, restored into another one with directories of its own."""

    def __init__(self, tries, pointer):
        self.tries = tries
        self.storage = tries.storage.allowing(pointer)
        self.pointer = pointer
        self.output = tries.folder / "fork"

    def run(self, stage, uid, run):
        source, owner = source_at(self.storage, self.pointer, uid), make_owner(run_key=run)
        return self.tries.run(stage, job_name="fork", uid=uid, owner=owner, restore_from=source)

    def run_both(self, run):
        self.run(upstream(self.tries, never(self.tries), self.output), "stage", run)
        return self.run(downstream(self.tries, self.output, "fork-report"), "report", run)


@pytest.mark.soak
def test_a_pipeline_that_is_restored_into_another_job_reads_on_with_the_output_of_that_job(tries):
    tries.write_input(part(0), part(1))
    run_upstream(tries, never(tries))
    tries.run(downstream(tries), uid="report", owner=make_owner())
    newest = {record.operator_id: record for record in tries.completed()}
    fork = Fork(tries, save_job(tries.storage, list(newest.values()), f"file://{tries.folder}/savepoints"))
    # The first run of the fork has the date of the run before the savepoint, and no new input.
    assert fork.run_both("2026-01-01").rows == 0
    for number, run in ((2, "2026-01-02"), (3, "2026-01-03")):
        tries.write_input(part(number))
        assert fork.run_both(run).rows == 10
    assert sum(counts(tries, "fork-report").values()) == 40
    assert sum(counts(tries).values()) == 20
