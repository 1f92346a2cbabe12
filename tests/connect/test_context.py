"""The context of a stage over Spark Connect does what it does on a session of this process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck import StageContext
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.driver.session import run_interruptibly
from tests.connect_server import ConnectServer


def open_stage(spark: Any, work: Path, **settings: Any) -> StageContext:
    return StageContext.open(
        spark, job="j", checkpoint_dir=str(work / "checkpoints"), metadata=f"sqlite:///{work}/state.db", **settings
    )


def test_failed_stage_resumes(spark, tmp_path: Path) -> None:
    calls: list[str] = []

    def numbers() -> Any:
        calls.append("numbers")
        return spark.range(10).selectExpr("id", "id % 3 AS `a b.c`", "array(id) AS ids")

    def stage(checkpoint: StageContext, *, fails: bool) -> int:
        source = checkpoint.snapshot("numbers", numbers)
        checkpoint.snapshot("query", spark.sql("SELECT count(*) AS n FROM {source}", source=source))
        for day in checkpoint.each("days", ["1", "2", "3"]):
            calls.append(day)
            if fails and day == "2":
                raise RuntimeError("planned")
            checkpoint.state[day] = source.where("id > 4").count()
        return sum(checkpoint.state.values())

    with pytest.raises(RuntimeError, match="planned"), open_stage(spark, tmp_path) as first:
        stage(first, fails=True)
    with open_stage(spark, tmp_path) as second:
        assert stage(second, fails=False) == 15
        assert [step.is_restored for step in second.steps] == [True, True]
    assert calls == ["numbers", "1", "2", "2", "3"]


def test_a_session_of_a_class_of_its_service_is_one_of_spark_connect(server: ConnectServer, tmp_path: Path) -> None:
    from pyspark.sql.connect.session import SparkSession

    class ServiceSession(SparkSession):
        """As those that Google's client makes."""

    session = ServiceSession(server.url)
    for is_restored in (False, True):
        with suppress(RuntimeError), open_stage(session, tmp_path) as checkpoint:
            assert checkpoint.snapshot("numbers", lambda: session.range(10)).count() == 10
            assert [step.is_restored for step in checkpoint.steps] == [is_restored]
            raise RuntimeError("planned")
    session.stop()


def test_alternatives_in_a_path_are_refused_as_the_input_of_a_step_in_parts(spark, tmp_path: Path) -> None:
    for name in "abc":
        spark.range(3).write.parquet(f"file://{tmp_path}/{name}")
    paths = [f"file://{tmp_path}/{{a,b}}", f"file://{tmp_path}/c"]
    with open_stage(spark, tmp_path) as checkpoint:
        with pytest.raises(InvalidConfigurationError, match="Write alternatives such as"):
            checkpoint.snapshot("all", lambda rows: rows.where("id > 0"), over=spark.read.parquet(*paths))
        rows = checkpoint.snapshot("one", lambda rows: rows.where("id > 0"), over=spark.read.parquet(paths[1]))
        assert rows.count() == 2


@pytest.mark.soak
def test_a_damaged_page_is_told_and_the_retry_computes_what_stands_on_it(spark, tmp_path: Path) -> None:
    calls: list[str] = []

    def built(name: str, frame: Any) -> Any:
        calls.append(name)
        return frame

    def stage(checkpoint: StageContext) -> list[int]:
        base = checkpoint.snapshot("base", lambda: built("base", spark.range(1000).coalesce(1)))
        evens = checkpoint.snapshot("evens", lambda: built("evens", base.where("id % 2 = 0")))
        other = checkpoint.snapshot("other", lambda: built("other", spark.range(7)))
        if len(calls) == 3:
            raise RuntimeError("planned")
        return [base.where("id > 9").count(), evens.count(), other.count()]

    with pytest.raises(RuntimeError, match="planned"), open_stage(spark, tmp_path) as first:
        stage(first)
    (path,) = (tmp_path / "checkpoints").glob("*/shared/*/base-*/*/data/*.parquet")
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    # Object stores have no such checksums, which Hadoop keeps on local disks.
    path.with_name(f".{path.name}.crc").unlink()
    calls.append("second try")
    with pytest.raises(Exception, match="FAILED_READ_FILE"), open_stage(spark, tmp_path) as second:
        stage(second)
    with open_stage(spark, tmp_path) as third:
        assert stage(third) == [990, 500, 7]
    assert calls == ["base", "evens", "other", "second try", "base", "evens"]


@pytest.mark.soak
def test_what_comes_back_equals_what_was_written(spark, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT * FROM VALUES (1, 'a', TIMESTAMP '2026-01-01 00:00:00', 1.50BD, NULL), "
        "(2, NULL, NULL, NULL, map('k', array(1))) AS t(id, text, at, price, `a map`)"
    )
    with open_stage(spark, tmp_path) as checkpoint:
        back = checkpoint.snapshot("all", frame)
        assert back.dtypes == frame.dtypes
        assert sorted(back.collect(), key=lambda row: row.id) == sorted(frame.collect(), key=lambda row: row.id)


def test_type_that_a_snapshot_cannot_hold_is_refused(spark, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedStateError), open_stage(spark, tmp_path) as checkpoint:
        checkpoint.snapshot("intervals", spark.range(1).selectExpr("make_interval(1, 2) AS i"))


@pytest.mark.soak
def test_lineage_starts_at_the_snapshot(spark, tmp_path: Path, capsys) -> None:
    with open_stage(spark, tmp_path) as checkpoint:
        frame = spark.range(10)
        for i in range(20):
            frame = frame.withColumn(f"c{i}", frame.id + i)
        checkpoint.snapshot("wide", frame).explain()
    plan = capsys.readouterr().out
    assert "FileScan parquet" in plan or "Scan parquet" in plan
    assert "Range" not in plan


def test_timeout_interrupts_what_the_server_computes(spark) -> None:
    def endless() -> None:
        spark.range(10**13).where("id % 7 = 8").count()

    with pytest.raises(TimeoutError):
        run_interruptibly(spark, endless, timeout_seconds=2.0, grace_seconds=30.0)
    assert spark.range(3).count() == 3
