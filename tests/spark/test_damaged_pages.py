"""Changed bytes in the pages of snapshots: Spark never gives another value, and the retry computes what it must."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredDataFrames, StoredSnapshot
from tests.shared_spark import UNREADABLE
from tests.soak import rest_in_soak
from tests.spark.tries import PlannedError, Tries, ids

ROWS = 3000
QUERIES = [None, "low = '3'", "high = 'v7919'", "id between 1200 and 1300", "number > 1400"]
"""A whole read, and filters by which Parquet could skip pages and row groups."""


def columns(spark: SparkSession) -> DataFrame:
    """Rows with dictionaries, nulls and arrays, over several pages."""
    return (
        spark.range(ROWS)
        .coalesce(1)
        .selectExpr(
            "id",
            "if(id % 7 = 0, null, cast(id % 5 as string)) low",
            "concat('v', cast(id * 7919 % 100003 as string)) high",
            "id * 0.5D number",
            "array(id % 3, id % 4) list",
        )
    )


def positions(path: Path, seed: int) -> Iterator[tuple[str, int]]:
    """Give some places in dictionaries, in pages, in their headers, and in the indexes behind them."""
    draw, content = random.Random(seed), path.read_bytes()
    group = pq.read_metadata(path).row_group(0)
    end_of_pages = 0
    for chunk in map(group.column, range(group.num_columns)):
        start = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
        end = start + chunk.total_compressed_size
        end_of_pages = max(end_of_pages, end)
        if start < chunk.data_page_offset:
            yield "dictionary header", start + draw.randrange(12)
            yield "dictionary", draw.randrange(start + 20, chunk.data_page_offset)
        yield "header", chunk.data_page_offset + draw.randrange(20)
        yield from (("page", draw.randrange(chunk.data_page_offset + 30, end)) for _ in range(2))
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    yield from (("index", draw.randrange(end_of_pages, footer)) for _ in range(8))


def changed(content: bytes, position: int, seed: int) -> bytes:
    mask = random.Random(seed + position).randrange(1, 256)
    return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]


def rows(frame: DataFrame, condition: str | None) -> list[str]:
    return sorted(map(str, (frame if condition is None else frame.where(condition)).collect()))


def data_file(folder: Path, name: str = "") -> Path:
    """Return the newest file of a snapshot, without the checksums that Hadoop keeps on local disks beside it."""
    path = max(folder.rglob(f"{name}*/**/*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    crc_of(path).unlink(missing_ok=True)
    return path


def crc_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def flip_page(path: Path) -> None:
    """Change the last byte of the first column's last page."""
    chunk = pq.read_metadata(path).row_group(0).column(0)
    position = chunk.data_page_offset + chunk.total_compressed_size - 1
    path.write_bytes(changed(path.read_bytes(), position, 16))


class TestReading:
    """A read gives what was written, or fails."""

    @pytest.fixture
    def settings(self, spark: SparkSession) -> Iterator[None]:
        """Make pages small, as those of large snapshots are many."""
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        conf.set("parquet.page.size", "4096")
        conf.set("parquet.page.row.count.limit", "500")
        yield
        conf.unset("parquet.page.size")
        conf.unset("parquet.page.row.count.limit")

    @pytest.mark.soak
    @pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
    def test_no_changed_byte_gives_another_value(self, spark, storage, tmp_path, settings, seed):
        uri = f"{storage.base_uri}/data"
        frames = StoredDataFrames(storage)
        restored = frames.read(spark, [StoredSnapshot(storage.base_uri, frames.write(columns(spark), uri))])
        expected = {condition: rows(restored, condition) for condition in QUERIES}
        assert all(expected.values())
        path = data_file(tmp_path)
        whole = path.read_bytes()
        failed: dict[str, str] = {}
        for kind, position in positions(path, seed):
            path.write_bytes(changed(whole, position, seed))
            for condition in QUERIES:
                try:
                    found = rows(restored, condition)
                except Exception as error:
                    failed[kind] = str(error)
                else:
                    assert found == expected[condition], (kind, position, condition)
        assert all(path.name in text for text in failed.values())
        assert set(failed) == {"page", "dictionary", "header", "dictionary header"}

    def test_pages_have_checksums_whatever_the_session_says(self, spark, storage, tmp_path):
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        conf.set("parquet.page.write-checksum.enabled", "false")
        try:
            frames, uri = StoredDataFrames(storage), f"{storage.base_uri}/data"
            restored = frames.read(spark, [StoredSnapshot(storage.base_uri, frames.write(columns(spark), uri))])
        finally:
            conf.unset("parquet.page.write-checksum.enabled")
        flip_page(data_file(tmp_path))
        with pytest.raises(Exception, match="CRC checksum verification failed"):
            restored.collect()


class Stage:
    """``base``, ``evens`` and ``lasts`` stand on each other, ``other`` stands alone; each try reads all of them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.tries = Tries(spark, folder)
        self.folder = folder

    def builders(self, checkpoint: StageContext) -> dict[str, DataFrame]:
        base = checkpoint.snapshot("base", self.tries.builder("base", 20))
        evens = checkpoint.snapshot("evens", self._computed("evens", lambda: base.where("id % 2 = 0")))
        lasts = checkpoint.snapshot("lasts", self._computed("lasts", lambda: evens.where("id > 9")))
        other = checkpoint.snapshot("other", self.tries.builder("other", 5))
        return {"base": base, "evens": evens, "lasts": lasts, "other": other}

    def run(self, *, fails: bool = False) -> dict[str, list[int]]:
        with self.tries.open() as checkpoint:
            frames = self.builders(checkpoint)
            if fails:
                raise PlannedError
            return {name: ids(frame) for name, frame in frames.items()}

    def damage(self, name: str) -> None:
        flip_page(data_file(self.folder / "checkpoints", name))

    def _computed(self, name: str, build: Callable[[], DataFrame]) -> Callable[[], DataFrame]:
        def compute() -> DataFrame:
            self.tries.computed.append(name)
            return build()

        return compute


RESULT = {
    "base": list(range(20)),
    "evens": list(range(0, 20, 2)),
    "lasts": [10, 12, 14, 16, 18],
    "other": list(range(5)),
}


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Stage:
    """One that failed after all its steps were saved."""
    stage = Stage(spark, tmp_path)
    with pytest.raises(PlannedError):
        stage.run(fails=True)
    assert stage.tries.take_computed() == ["base", "evens", "lasts", "other"]
    return stage


DAMAGES = [
    ("base", ["base", "evens", "lasts"]),
    ("evens", ["evens", "lasts"]),
    ("lasts", ["lasts"]),
    ("other", ["other"]),
]
"""The damaged step, and what the retry computes."""


@pytest.mark.parametrize(("damaged", "computed"), rest_in_soak(DAMAGES, DAMAGES[1]))
def test_the_retry_computes_the_damaged_step_and_what_stands_on_it(stage, caplog, damaged, computed):
    stage.damage(damaged)
    with pytest.raises(Exception, match=UNREADABLE):
        stage.run()
    assert stage.tries.take_computed() == []
    assert f"/{damaged}-" in next(m for m in caplog.messages if "is damaged; the next try recomputes it" in m)
    (uri,) = stage.tries.view().operators[0].damaged_snapshots
    assert f"/{damaged}-" in uri
    with pytest.raises(PlannedError):
        stage.run(fails=True)
    assert stage.tries.take_computed() == computed
    # What was computed anew is restored from now on, with what was built from it.
    assert stage.run() == RESULT
    assert stage.tries.take_computed() == []


@pytest.mark.soak
def test_damage_that_only_the_checksums_of_hadoop_find_counts(stage):
    """On local disks and HDFS Hadoop has some of its own, also of the indexes that nothing reads here."""
    (path,) = (stage.folder / "checkpoints").rglob("other-*/**/*.parquet")
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(changed(content, footer - 2, 16))
    assert crc_of(path).exists()
    with pytest.raises(Exception, match="ChecksumException"):
        stage.run()
    assert stage.run() == RESULT
    assert stage.tries.take_computed() == ["other"]


@pytest.mark.soak
def test_damage_that_is_met_while_the_next_step_is_written_counts(stage):
    def doubled() -> None:
        with stage.tries.open() as checkpoint:
            base = stage.builders(checkpoint)["base"]
            checkpoint.snapshot("doubled", base.selectExpr("id * 2 as id"))

    stage.damage("base")
    with pytest.raises(Exception, match=UNREADABLE):
        doubled()
    assert stage.run() == RESULT
    assert stage.tries.take_computed() == ["base", "evens", "lasts"]


@pytest.mark.soak
def test_an_error_of_the_users_own_that_was_raised_from_it_counts(stage):
    def report() -> None:
        with stage.tries.open() as checkpoint:
            frames = stage.builders(checkpoint)
            try:
                frames["other"].collect()
            except Exception as error:
                raise LookupError("no rows") from error

    stage.damage("other")
    with pytest.raises(LookupError):
        report()
    assert stage.run() == RESULT
    assert stage.tries.take_computed() == ["other"]


def test_an_error_that_user_code_swallows_is_not_noticed(stage):
    stage.damage("other")
    with stage.tries.open() as checkpoint, suppress(Exception):
        stage.builders(checkpoint)["other"].collect()
    assert stage.tries.view().operators[0].damaged_snapshots == ()


@pytest.mark.soak
def test_a_snapshot_that_is_damaged_again_is_computed_again_with_what_stands_on_it(stage):
    for _ in range(2):
        stage.damage("base")
        with pytest.raises(Exception, match=UNREADABLE):
            stage.run()
        with pytest.raises(PlannedError):
            stage.run(fails=True)
        assert stage.tries.take_computed() == ["base", "evens", "lasts"]
    assert len(stage.tries.view().operators[0].damaged_snapshots) == 2
    assert stage.run() == RESULT


@pytest.mark.soak
def test_a_loop_whose_snapshot_is_damaged_begins_again_with_the_steps_inside(spark, tmp_path):
    tries, numbers, last = Tries(spark, tmp_path), [], [4]

    def step(frame: DataFrame, number: int) -> DataFrame:
        numbers.append(number)
        if number == last[-1]:
            raise PlannedError
        return frame.selectExpr(f"id + {number} as id").coalesce(1)

    def run() -> list[int]:
        with tries.open() as checkpoint:
            return ids(checkpoint.iterate("sums", tries.builder("start"), 5, step=step))

    with pytest.raises(PlannedError):
        run()
    flip_page(data_file(tmp_path / "checkpoints", "sums"))
    last.append(0)
    with pytest.raises(Exception, match=UNREADABLE):
        run()
    numbers.clear()
    assert run() == [15, 16, 17]
    assert numbers == [1, 2, 3, 4, 5]
