"""Sources of files without Spark: what they plan, and what they notice."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.spark.connectors.enumerator import SMALLEST_TARGET_BYTES, automatic_bytes
from airflow_provider_statecheck.spark.connectors.files.source import CsvSource, JsonSource
from airflow_provider_statecheck.state.source_items import Item, Ledger
from tests.unit.spark.connectors.runs import state_of

SCHEMA = "id bigint"


@pytest.fixture
def write(tmp_path):
    def write(*names, content="0123456789"):
        for name in names:
            (tmp_path / name).write_text(content)

    return write


@pytest.fixture
def source(tmp_path):
    def source(**named):
        return JsonSource(tmp_path, schema=SCHEMA, **{"files_per_increment": 1, **named})

    return source


def names(enumerator):
    planned = iter(enumerator.next_increment, None)
    return [[split.item.name.rpartition("/")[2] for split in increment.splits] for increment in planned]


def after_one(source):
    """The state of an attempt that finished one increment."""
    enumerator = source.open(None)
    enumerator.finish(enumerator.next_increment())
    return state_of(enumerator)


@pytest.mark.parametrize(
    ("limits", "planned"),
    [
        ({"files_per_increment": 2}, [["a", "b"], ["c"]]),
        ({"files_per_increment": None, "bytes_per_increment": "20 B"}, [["a", "b"], ["c"]]),
        ({"files_per_increment": None, "bytes_per_increment": None}, [["a", "b", "c"]]),
    ],
    ids=["number", "bytes", "no limit"],
)
def test_files_go_into_increments_by_the_limits(write, source, limits, planned):
    write("a", "b", "c")
    assert names(source(**limits).open(None)) == planned


def test_an_increment_tells_its_bytes_and_its_source_the_progress(write, source):
    write("a", "b")
    enumerator = source().open(None)
    increment = enumerator.next_increment()
    enumerator.finish(increment)
    assert (increment.number, increment.size_bytes, increment.splits[0].size_bytes) == (1, 10, 10)
    assert (enumerator.finished_bytes, enumerator.total_bytes) == (10, 20)
    assert (enumerator.finished_splits, enumerator.total_splits) == (1, 2)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: (d / "d").write_text("x"), "/d appeared"),
        (lambda d: (d / "c").unlink(), "/c vanished"),
        (lambda d: (d / "a").unlink(), "/a vanished"),
        (lambda d: (d / "b").write_text("longer than before"), "/b changed"),
        (lambda d: (d / "a").write_text(""), "/a vanished"),
    ],
    ids=["appeared", "vanished", "finished vanished", "changed", "emptied"],
)
def test_a_change_between_attempts_fails_and_names_the_file(tmp_path, write, source, change, told):
    write("a", "b", "c")
    state = after_one(source())
    change(tmp_path)
    with pytest.raises(SourceChangedError, match=f"{told}.*on_change"):
        source().open(None, state)
    with pytest.raises(SourceRestartRequiredError, match=told):
        source(on_change="restart").open(None, state)


def test_ignored_changes_leave_the_files_of_the_start(tmp_path, write, source):
    write("a", "b", "c")
    state = after_one(source())
    write("0", "d")
    write("b", content="other and longer")
    (tmp_path / "a").unlink()
    enumerator = source(on_change="ignore").open(None, state)
    assert names(enumerator) == [["b"], ["c"]]
    assert enumerator.total_bytes == 36


def test_a_new_run_reads_what_appeared_in_increments_of_its_own(tmp_path, write, source):
    write("a", "b")
    enumerator = source().open(None)
    for increment in iter(enumerator.next_increment, None):
        enumerator.finish(increment)
    write("0", "c")
    (tmp_path / "a").unlink()
    following = source().open(None, enumerator.snapshot(), new_run=True)
    first = following.next_increment()
    assert first.number == 3
    assert [first.splits[0].item.name[-1], names(following)] == ["0", [["c"]]]
    assert following.total_splits == 3


@pytest.mark.parametrize(
    ("on_change", "error"),
    [("fail", SourceChangedError), ("ignore", SourceChangedError), ("restart", SourceRestartRequiredError)],
)
@pytest.mark.parametrize(
    ("change", "told"),
    [(lambda file: file.write_text("longer than it was"), "/a changed"), (lambda file: file.unlink(), "/a vanished")],
    ids=["changed", "vanished"],
)
def test_a_file_that_changes_between_plan_and_load_is_not_read(tmp_path, write, source, on_change, error, change, told):
    write("a", "b")
    enumerator = source(on_change=on_change).open(None)
    increment = enumerator.next_increment()
    change(tmp_path / "a")
    with pytest.raises(error, match=told):
        enumerator.load(increment)


def test_a_change_while_an_increment_was_read_is_noticed_by_a_second_look(write, source):
    write("a", "b")
    enumerator = source().open(None)
    increment = enumerator.next_increment()
    enumerator.require_unchanged(increment)
    write("b", content="another increment's")
    enumerator.require_unchanged(increment)
    write("a", content="changed")
    with pytest.raises(SourceChangedError):
        enumerator.require_unchanged(increment)


@pytest.mark.parametrize("content", [None, ""])
def test_a_source_without_files_is_refused_at_the_start(tmp_path, write, source, content):
    if content is not None:
        write("a", content=content)
    with pytest.raises(InvalidConfigurationError, match="found none"):
        source().open(None)


@pytest.mark.parametrize(("path", "is_refused"), [("{a,b}", True), ("{d,e}", False)])
def test_a_path_with_alternatives_among_others_is_refused_at_the_start(tmp_path, write, path, is_refused):
    write("a", "b", "c", "{d,e}")
    source: Any = JsonSource([tmp_path / path, tmp_path / "c"], schema=SCHEMA)
    with (
        pytest.raises(InvalidConfigurationError, match=r"/\{a,b\}/, found none; .* alternatives")
        if is_refused
        else nullcontext()
    ):
        source.open(None)


def test_files_in_directories_of_other_columns_are_refused(tmp_path, source):
    for name in ("day=1/a", "month=1/a"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    with pytest.raises(InvalidConfigurationError, match=r"same partition columns .*\['day'\].*\['month'\]"):
        source().open(None)


def test_automatic_increments_are_a_64th_of_what_is_left_and_no_less_than_a_bound():
    large, small = (Ledger((Item.of("a", size, ""), Item.of("b", 64 << 30, ""))) for size in (64 << 30, 1))
    assert automatic_bytes(large) == 2 << 30
    assert automatic_bytes(large.finish_items([0])) == 1 << 30
    assert automatic_bytes(Ledger(small.items[:1])) == SMALLEST_TARGET_BYTES


def test_automatic_increments_keep_their_size_within_a_run(write, source):
    write("a", "b")
    automatic = source(files_per_increment=None)
    state = {**automatic.open(None).snapshot(), "target_bytes": 10}
    assert names(automatic.open(None, state)) == [["a"], ["b"]]
    assert names(automatic.open(None, state, new_run=True)) == [["a", "b"]]


@pytest.mark.parametrize("kind", [JsonSource, CsvSource])
@pytest.mark.parametrize("schema", [None, ""])
def test_files_that_do_not_say_what_is_in_them_need_a_schema(tmp_path, kind, schema):
    with pytest.raises(InvalidConfigurationError, match=r"Expected a schema for (JSON|CSV) files"):
        kind(tmp_path, schema=schema)
