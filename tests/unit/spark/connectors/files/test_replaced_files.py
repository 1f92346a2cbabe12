"""What a run does with directories that were rewritten since the run before it read them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.spark.connectors.files.source import CsvSource, JsonSource
from tests.unit.spark.connectors.runs import increments_of, state_of


class Folder:
    """A directory of files, and runs that read all that is new in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = None

    def write(self, *names: str) -> None:
        for name in names:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text("{}")

    def delete(self, *names: str) -> None:
        for name in names:
            (self.path / name).unlink()

    def read(self, on_change: str = "fail", source: type[JsonSource | CsvSource] = JsonSource) -> list[str]:
        spark: Any = None
        enumerator = source(self.path, schema="id bigint", on_change=on_change).open(spark, self.state, new_run=True)
        increments = increments_of(enumerator)
        for increment in increments:
            enumerator.finish(increment)
        self.state = state_of(enumerator)
        root = f"file://{self.path}/"
        return [split.split_id.removeprefix(root) for increment in increments for split in increment.splits]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "orders")


def spark_file(task: int = 0) -> str:
    return f"part-{task:05}-{uuid.uuid4()}-c000.json"


@pytest.mark.parametrize("source", [JsonSource, CsvSource])
@pytest.mark.parametrize(
    ("on_change", "error"), [("fail", SourceChangedError), ("restart", SourceRestartRequiredError)]
)
def test_partition_with_other_files_than_were_read_is_named(folder, source, on_change, error):
    folder.write("day=1/a", "day=1/b", "day=2/a")
    folder.read(source=source)
    folder.delete("day=1/a", "day=1/b")
    folder.write("day=1/c", "day=3/a")
    with pytest.raises(error, match=r"orders/day=1 \(2 vanished, such as a; 1 appeared, such as c\)"):
        folder.read(on_change, source)


@pytest.mark.parametrize(
    ("read", "deleted", "written"),
    [
        (["day=1/a", "day=1/b"], ["day=1/a"], ["day=1/c"]),
        (["day=1/hour=0/a", "day=1/hour=1/a"], ["day=1/hour=1/a"], ["day=1/hour=1/b"]),
        (
            ["old/day=__HIVE_DEFAULT_PARTITION__/a"],
            ["old/day=__HIVE_DEFAULT_PARTITION__/a"],
            ["old/day=__HIVE_DEFAULT_PARTITION__/b"],
        ),
    ],
    ids=["compacted in part", "nested", "no value"],
)
def test_part_of_a_partition_and_nested_ones_are_told(folder, read, deleted, written):
    folder.write(*read)
    folder.read()
    folder.delete(*deleted)
    folder.write(*written)
    with pytest.raises(SourceChangedError, match="other files in their place"):
        folder.read()


def test_directory_without_partitions_that_spark_overwrote_is_told(folder):
    old, new = [spark_file(0), spark_file(1)], [spark_file(0), spark_file(1)]
    folder.write(*old)
    folder.read()
    folder.delete(*old)
    folder.write(*new)
    with pytest.raises(SourceChangedError, match=r"orders \(2 vanished"):
        folder.read()


def test_directory_without_partitions_receives_new_files_as_old_ones_are_moved_away(folder):
    folder.write("orders-1", "orders-2")
    folder.read()
    folder.delete("orders-1", "orders-2")
    folder.write("orders-3")
    assert folder.read() == ["orders-3"]
    kept, moved, new = spark_file(), spark_file(), spark_file()
    folder.write(kept, moved)
    folder.read()
    folder.delete(moved)
    folder.write(new)
    assert folder.read() == [new], "Spark would have overwritten all files"


def test_late_files_of_a_day_are_read(folder):
    folder.write("day=1/a")
    folder.read()
    folder.write("day=1/b", "day=2/a")
    assert folder.read() == ["day=1/b", "day=2/a"]


def test_day_that_was_moved_away_is_no_change_and_receives_late_files_later(folder):
    folder.write("day=1/a", "day=2/a")
    folder.read()
    folder.delete("day=1/a")
    folder.write("day=3/a")
    assert folder.read() == ["day=3/a"]
    folder.write("day=1/late")
    assert folder.read() == ["day=1/late"]


def test_files_in_the_place_of_others_count_as_read_where_changes_are_ignored(folder):
    folder.write("day=1/a")
    folder.read()
    folder.delete("day=1/a")
    folder.write("day=1/b", "day=2/a")
    assert folder.read("ignore") == ["day=2/a"]
    folder.write("day=3/a")
    assert folder.read("fail") == ["day=3/a"], "a change that was ignored is not noticed again"


def test_whole_input_that_was_missing_in_a_run_and_was_rewritten_is_told(folder):
    old = spark_file()
    folder.write(old)
    folder.read()
    folder.delete(old)
    assert folder.read() == []
    folder.write(spark_file())
    with pytest.raises(SourceChangedError, match="1 vanished"):
        folder.read()
