"""Functions in a Spark task: elements, keys, and aggregates."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import OperatorSubtaskState
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.stages.executor import elements
from airflow_provider_statecheck.spark.stages.executor.aggregate_run import AggregateRun
from airflow_provider_statecheck.spark.stages.executor.elements import (
    OVERFLOW_PREFIX,
    KeyedChunk,
    python_values,
    rows_of,
    table_of,
)
from airflow_provider_statecheck.spark.stages.executor.node_run import (
    NodeTask,
    StateCapture,
    SubtaskContext,
)
from airflow_provider_statecheck.spark.stages.planning import KEY_GROUP_COLUMN
from airflow_provider_statecheck.spark.stages.preparation import merged_schemas
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, Count, Max, Sum
from airflow_provider_statecheck.state.aggregates import AggregateSchema
from airflow_provider_statecheck.state.backends import ArrowStateBackend, backend_of_stage
from airflow_provider_statecheck.state.functions.task_owned import in_memory
from airflow_provider_statecheck.state.keyed.queryable_names import TaskKvStateRegistry
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.written_state import file_streams

NAN = float("nan")


def chunk(keys: list[Any], groups: list[int], type_: Any) -> KeyedChunk:
    table = pa.table({"key": pa.array(keys, type_), KEY_GROUP_COLUMN: pa.array(groups, pa.int32())})
    return KeyedChunk.of(table, KeySerializer((KeyField("key", type_),)))


def test_each_key_begins_once() -> None:
    found = chunk(["a", "a", "b", "c", "c"], [0, 0, 0, 1, 1], pa.string())
    assert (found.starts, found.keys.columns[0].to_pylist()) == ([0, 2, 3, 5], ["a", "b", "c"])


def test_rows_of_one_key_in_one_table_are_no_two_keys_because_of_nan() -> None:
    assert chunk([-0.0, 0.0, NAN, NAN, NAN], [0, 0, 1, 1, 1], pa.float64()).starts == [0, 2, 5]


def test_single_row_is_one_key() -> None:
    assert chunk([NAN], [0], pa.float64()).starts == [0, 1]


@pytest.mark.parametrize("buffer_bytes", [1, 100, 1 << 20], ids=["each batch on disk", "some on disk", "in memory"])
@pytest.mark.parametrize("chunk_rows", [1, 20, 1000])
def test_key_groups_come_whole_and_in_order(
    monkeypatch: pytest.MonkeyPatch, buffer_bytes: int, chunk_rows: int
) -> None:
    monkeypatch.setattr(elements, "BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr(elements, "CHUNK_ROWS", chunk_rows)
    rows = [(number * 7 % 10, number) for number in range(50)]
    columns = {
        KEY_GROUP_COLUMN: pa.array([group for group, _ in rows], pa.int32()),
        "n": [n for _, n in reversed(rows)],
    }
    batches = pa.table(columns).to_batches(max_chunksize=4)
    tables = list(elements.tables_by_key_group(batches, (KEY_GROUP_COLUMN, "n")))
    found = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    assert found == sorted(tuple(row.values()) for row in pa.table(columns).to_pylist())
    groups = [set(table[KEY_GROUP_COLUMN].to_pylist()) for table in tables]
    assert sum(map(len, groups)) == 10
    assert all(table.num_rows >= chunk_rows for table in tables[:-1])
    assert list(elements.tables_by_key_group([], (KEY_GROUP_COLUMN,))) == []


@pytest.mark.parametrize("buffer_bytes", [1, 1 << 20], ids=["on disk", "in memory"])
def test_rows_of_a_key_come_in_the_order_of_spark(monkeypatch: pytest.MonkeyPatch, buffer_bytes: int) -> None:
    monkeypatch.setattr(elements, "BUFFER_BYTES", buffer_bytes)
    ordered = [None, {"x": None}, {"x": -1.0}, {"x": NAN}]
    values = pa.array(ordered[::-1] * 2, pa.struct([("x", pa.float64())]))
    columns = {KEY_GROUP_COLUMN: pa.array([1] * 4 + [0] * 4, pa.int32()), "v": values}
    batches = pa.table(columns).to_batches(max_chunksize=3)
    tables = elements.tables_by_key_group(batches, (KEY_GROUP_COLUMN, "v"))
    assert str(pa.concat_tables(tables).column("v").to_pylist()) == str(ordered * 2)


def test_null_is_no_key() -> None:
    with pytest.raises(UnsupportedStateError, match="'key'"):
        chunk([1, None], [0, 0], pa.int64())


UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000}
FIRST, LAST = -62_135_500_000, 253_402_200_000
"""Seconds since 1970, within the years 1 to 9999 in every zone."""
ZONES = [None, "UTC", "Europe/Berlin", "America/St_Johns", "+05:30"]


@given(
    seconds=st.lists(st.none() | st.integers(FIRST, LAST) | st.integers(1_698_530_000, 1_698_550_000)),
    unit=st.sampled_from(sorted(UNITS)),
    zone=st.sampled_from(ZONES),
)
def test_times_are_those_of_arrow_also_where_an_hour_comes_twice(
    seconds: list[int | None], unit: str, zone: str | None
) -> None:
    column = pa.array([None if s is None else s * UNITS[unit] for s in seconds], pa.timestamp(unit, zone))
    found, expected = python_values(column), column.to_pylist()
    assert [repr(value) for value in found] == [repr(value) for value in expected]
    assert [value and value.fold for value in found] == [value and value.fold for value in expected]


@given(days=st.lists(st.none() | st.integers(-700_000, 2_900_000)))
def test_dates_are_those_of_arrow(days: list[int | None]) -> None:
    column = pa.chunked_array([pa.array(days, pa.int32()).cast(pa.date32())])
    assert python_values(column) == column.to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3]),
        pa.array([1.5, None, float("inf")]),
        pa.array(["a", None]),
        pa.array([[1], None, []]),
        pa.array([1_000_000_001, None], pa.timestamp("ns")),
        pa.array([], pa.date32()),
    ],
    ids=lambda column: str(column.type),
)
def test_other_values_are_those_of_arrow(column: pa.Array) -> None:
    assert python_values(column) == column.to_pylist()


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_time_that_python_has_none_for_is_refused_as_arrow_does(zone: str | None) -> None:
    column = pa.array([LAST * 2], pa.timestamp("s", zone))
    with pytest.raises((ValueError, OverflowError)):
        column.to_pylist()
    with pytest.raises((ValueError, OverflowError)):
        python_values(column)


def test_first_time_of_spark_is_refused_and_not_null() -> None:
    with pytest.raises((ValueError, OverflowError)):
        python_values(pa.array([-(1 << 63)], pa.int64()).cast(pa.timestamp("us")))


MALFORMED = pa.array([b"\xffa", b"b", None, b"\xff"]).cast(pa.string(), safe=False)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([6_600_000, 0, None, 0], pa.int32()).cast(pa.date32()), "'v' has 1 outside of the years 1 to 9999"),
        (pa.array([(1 << 63) - 1, 1 << 60, 0, 0]).cast(pa.timestamp("us", "UTC")), "'v' has 2 outside of the years"),
        (pa.array([-(1 << 63), 0, 0, 0]).cast(pa.timestamp("us")), "'v' has 1 outside of the years"),
        (MALFORMED, "'v' has 2 in invalid UTF-8"),
        (pa.StructArray.from_arrays([MALFORMED], ["t"]), r"'v\.t' has 2 in invalid UTF-8"),
    ],
)
def test_values_that_python_has_not_are_counted_by_column_and_kind(column: Any, told: str) -> None:
    table = pa.table({"k": [1, 2, 3, 4], "v": column})
    with pytest.raises(UnsupportedStateError, match=rf"found in 4 rows: column {told}"):
        rows_of(table)


@pytest.mark.parametrize("other", [{"a": "3", "b": "4"}, "34"], ids=["mapping", "text"])
def test_elements_besides_tuples_are_refused_and_not_read_by_position(other: Any) -> None:
    with pytest.raises(UnsupportedStateError, match=rf"found others: tuples and {type(other).__name__}"):
        table_of([("1", "2"), other], pa.schema([("a", pa.string()), ("b", pa.string())]))


@pytest.mark.parametrize(
    ("kind", "exact", "cut"),
    [
        (pa.int64(), [2.0, None, 3, np.int64(4), Decimal(5)], 2.5),
        (pa.int8(), [2, None], Decimal("2.5")),
        (pa.date32(), [datetime(2026, 1, 1, tzinfo=UTC), None], datetime(2026, 1, 1, 12, tzinfo=UTC)),
    ],
)
def test_fractions_and_times_of_day_are_refused_and_not_cut_off(kind: Any, exact: list[Any], cut: Any) -> None:
    schema = pa.schema([("n", kind)])
    assert len(table_of(exact, schema)) == len(exact)
    with pytest.raises(UnsupportedStateError, match=rf"found others: n .*{re.escape(str(cut))} would be changed"):
        table_of([exact[0], cut], schema)
    with pytest.raises(UnsupportedStateError):
        table_of([exact[0], float("inf")], schema)


KEYS, GROUPS, INCREMENTS = 10_000, 128, 3
SERIALIZER = KeySerializer((KeyField("id", pa.int64()),))
OUTPUT = pa.schema([("id", pa.int64()), ("total", pa.int64()), ("n", pa.int64()), ("top", pa.int64())])
NODE = AggregateNode(uid="sums", aggregates={"total": Sum("v"), "n": Count(), "top": Max("v")})


def run_of(
    storage: CheckpointStorage, state: OperatorSubtaskState, backend: Any = None, **changes: Any
) -> AggregateRun:
    context = SubtaskContext(
        job_id=job_id_of("job"),
        subtask=0,
        parallelism=1,
        max_parallelism=GROUPS,
        now_ms=0,
        logical_date=None,
        state_backend=backend or ArrowStateBackend(),
    )
    task = NodeTask(uid="stage/sums", node=NODE, output_schema=OUTPUT, key_serializer=SERIALIZER, states={0: state})
    registry, own = TaskKvStateRegistry(), in_memory(storage)
    run = AggregateRun(replace(task, **changes), context, storage, registry, own)
    run.open()
    return run


def increment(number: int) -> Any:
    """Return two rows of each key, ordered by key group and in no other way."""
    ids = np.random.default_rng(number).permutation(np.repeat(np.arange(KEYS), 2))
    values = pa.array(ids * 10 + number)
    groups = SERIALIZER.key_groups_of([pa.array(ids)], GROUPS)
    ones = pa.array(np.ones(len(ids), dtype="int64"))
    table = pa.table({KEY_GROUP_COLUMN: groups, "id": ids, "total": values, "n": ones, "top": values})
    return table.sort_by(KEY_GROUP_COLUMN)


def test_every_key_keeps_its_state_over_increments(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path.as_uri())
    streams = file_streams(storage)
    state, given = OperatorSubtaskState(), []
    for number in range(INCREMENTS):
        run = run_of(storage, state)
        run.process_keyed(increment(number))
        if number == INCREMENTS - 1:
            given = [emitted.table() for emitted in run.end()]
        saved = run.write_state(
            StateCapture(checkpoint=CheckpointMetaData(number + 1, datetime.fromtimestamp(0, UTC))), streams
        ).state
        assert saved is not None
        state = saved.subtask_states[0]
        run.close()
    rows = pa.concat_tables(given).sort_by("id")
    ids = np.arange(KEYS)
    assert rows["id"].to_pylist() == ids.tolist()
    assert set(rows["n"].to_pylist()) == {2 * INCREMENTS}
    assert rows["total"].to_pylist() == (2 * (3 * 10 * ids + sum(range(INCREMENTS)))).tolist()
    assert rows["top"].to_pylist() == (ids * 10 + INCREMENTS - 1).tolist()


AT_LIMIT = [[[2**62, 2**62]], [[2**62], [2**62]]]


def totals(tmp_path: Path, increments: list[list[Any]], kind: Any, **changes: Any) -> list[Any]:
    """Return the sum of one key after each increment."""
    output = pa.schema([("id", pa.int64()), ("total", kind)])
    node = AggregateNode(uid="sums", aggregates={"total": Sum("v")}, emits_changes=True)
    run = run_of(
        CheckpointStorage.open(tmp_path.as_uri()), OperatorSubtaskState(), node=node, output_schema=output, **changes
    )
    found = []
    for values in increments:
        same = pa.array([1] * len(values))
        rows = pa.table({KEY_GROUP_COLUMN: same.cast(pa.int32()), "id": same, "total": pa.array(values, kind)})
        found += run.process_keyed(rows).table()["total"].to_pylist()
    return found


@pytest.mark.parametrize("increments", AT_LIMIT)
def test_sum_that_is_too_large_is_refused_in_ansi_mode(tmp_path: Path, increments: list[list[int]]) -> None:
    with pytest.raises(UnsupportedStateError, match="Sum a type with more digits"):
        totals(tmp_path, increments, pa.int64())


@pytest.mark.parametrize("increments", AT_LIMIT)
def test_sum_of_integers_that_is_too_large_wraps_around_without_ansi_mode(
    tmp_path: Path, increments: list[list[int]]
) -> None:
    assert totals(tmp_path, [*increments, [5]], pa.int64(), is_ansi=False)[-2:] == [-(2**63), 5 - 2**63]


@pytest.mark.parametrize("is_ansi", [True, False])
@pytest.mark.parametrize("increments", AT_LIMIT)
def test_sum_of_intervals_that_is_too_large_is_refused_in_each_mode(
    tmp_path: Path, increments: list[list[int]], is_ansi: bool
) -> None:
    with pytest.raises(UnsupportedStateError, match="larger"):
        totals(tmp_path, increments, pa.duration("us"), is_ansi=is_ansi)


DECIMALS = [pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal128(20, 2)]


def largest(kind: Any) -> Decimal:
    return Decimal("9" * kind.precision).scaleb(-kind.scale, Context(prec=kind.precision))


@pytest.mark.parametrize("kind", DECIMALS)
@pytest.mark.parametrize("within_one", [True, False], ids=["in one increment", "over increments"])
def test_sum_of_decimals_that_was_too_large_stays_null_without_ansi_mode(
    tmp_path: Path, kind: Any, within_one: bool
) -> None:
    high, low = largest(kind), largest(kind).copy_negate()
    before = [[high, high]] if within_one else [[high], [high]]
    found = totals(tmp_path, [[None], *before, [low, low], [None]], kind, is_ansi=False)
    assert found == [None, *([] if within_one else [high]), None, None, None]


@pytest.mark.parametrize("kind", DECIMALS)
def test_sum_of_decimals_that_was_too_large_is_refused_in_ansi_mode(tmp_path: Path, kind: Any) -> None:
    assert totals(tmp_path, [[None], [largest(kind), None]], kind) == [None, largest(kind)]
    with pytest.raises(UnsupportedStateError, match=re.escape(f"larger ones of total {kind}")):
        totals(tmp_path, [[largest(kind)], [1]], kind)


def test_sum_of_decimals_passes_its_range_within_an_increment_and_comes_back(tmp_path: Path) -> None:
    kind = pa.decimal128(38, 0)
    high, low = largest(kind), largest(kind).copy_negate()
    assert totals(tmp_path, [[high], [high, low, low]], kind) == [high, 0]


def saved(run: AggregateRun, storage: CheckpointStorage) -> OperatorSubtaskState:
    """Return the state of a run after a snapshot."""
    moment = StateCapture(checkpoint=CheckpointMetaData(1, datetime.fromtimestamp(0, UTC)))
    state = run.write_state(moment, file_streams(storage)).state
    assert state is not None
    return state.subtask_states[0]


@pytest.mark.parametrize("backend", ["arrow", "hashmap"])
@pytest.mark.parametrize("name", ["total", "amount"], ids=["same name", "renamed"])
def test_sum_of_decimals_that_spark_found_too_large_stays_so_in_later_runs(
    tmp_path: Path, backend: str, name: str
) -> None:
    storage, kind = CheckpointStorage.open(tmp_path.as_uri()), pa.decimal128(38, 0)
    changes = declared(["total", "other"], kind=kind) | {"is_ansi": False}
    first = run_of(storage, OperatorSubtaskState(), backend_of_stage(backend, {}), **changes)
    columns = {OVERFLOW_PREFIX + "total": [True, None], "total": pa.nulls(2, kind), "other": pa.array([None, 1], kind)}
    ids = pa.array([1, 2])
    groups = SERIALIZER.key_groups_of([ids], GROUPS)
    first.process_keyed(pa.table({KEY_GROUP_COLUMN: groups, "id": ids, **columns}).sort_by(KEY_GROUP_COLUMN))
    state, types = saved(first, storage), first.schemas()
    changes = declared([name, "other"], kind=kind, **({} if name == "total" else {name: ("total",)}))
    both = [one_row(id=id, **{name: Decimal(5), "other": Decimal(5)}) for id in (1, 2)]
    later = run_of(storage, state, backend_of_stage(backend, {}), schemas=types, is_ansi=False, **changes)
    for rows in sorted(both, key=lambda rows: rows[KEY_GROUP_COLUMN][0].as_py()):
        later.process_keyed(rows)
    emitted = pa.concat_tables(each.table() for each in later.end()).sort_by("id").to_pylist()
    assert emitted == [{"id": 1, name: None, "other": 5}, {"id": 2, name: 5, "other": 6}]
    in_ansi_mode = run_of(storage, state, backend_of_stage(backend, {}), schemas=types, is_ansi=True, **changes)
    in_ansi_mode.process_keyed(both[1])
    with pytest.raises(UnsupportedStateError, match=f"larger ones of {name} decimal128"):
        list(in_ansi_mode.end())


def declared(names: list[str], kind: Any = pa.int64(), **aliases: tuple[str, ...]) -> dict[str, Any]:  # noqa: B008
    """Return the plan of sums with these names."""
    return {
        "node": AggregateNode(uid="sums", aggregates={name: Sum(name) for name in names}),
        "output_schema": pa.schema([("id", pa.int64()), *((name, kind) for name in names)]),
        "aggregates": tuple(
            AggregateSchema(name=name, is_nullable=True, function="sum", aliases=aliases.get(name, ()))
            for name in names
        ),
    }


def one_row(id: int = 1, **values: Any) -> Any:
    ids = pa.array([id])
    columns = {name: pa.array([value]) for name, value in values.items()}
    return pa.table({KEY_GROUP_COLUMN: SERIALIZER.key_groups_of([ids], GROUPS), "id": ids, **columns})


@pytest.mark.parametrize("backend", ["arrow", "hashmap"])
@pytest.mark.parametrize(
    ("later", "row", "expected"),
    [
        (declared(["b", "a"]), {"a": 10, "b": 20}, {"b": 22, "a": 11}),
        (declared(["b"]), {"b": 20}, {"b": 22}),
        (declared(["a", "c"], c=("b",)), {"a": 10, "c": 20}, {"a": 11, "c": 22}),
        (declared(["c", "a"], c=("b",)), {"a": 10, "c": 20}, {"c": 22, "a": 11}),
        (declared(["c", "d"], c=("b",), d=("a",)), {"c": 10, "d": 20}, {"c": 12, "d": 21}),
    ],
    ids=["reordered", "removed", "renamed", "renamed and reordered", "all renamed and reordered"],
)
def test_aggregates_go_on_under_other_names_and_in_another_order(
    tmp_path: Path, backend: str, later: dict[str, Any], row: dict[str, int], expected: dict[str, int]
) -> None:
    storage = CheckpointStorage.open(tmp_path.as_uri())
    streams, state_backend = file_streams(storage), backend_of_stage(backend, {})
    moment = StateCapture(checkpoint=CheckpointMetaData(1, datetime.fromtimestamp(0, UTC)))
    first = run_of(storage, OperatorSubtaskState(), state_backend, **declared(["a", "b"]))
    first.process_keyed(one_row(a=1, b=2))
    saved, types = first.write_state(moment, streams).state, first.schemas()
    assert saved is not None
    for adds in (row, dict.fromkeys(row, 0)):
        run = run_of(storage, saved.subtask_states[0], state_backend, schemas=types, **later)
        run.process_keyed(one_row(**adds))
        (emitted,) = (each.table() for each in run.end())
        assert emitted.to_pylist() == [{"id": 1, **expected}]
        saved, types = run.write_state(moment, streams).state, merged_schemas({"u": types}, {"u": run.schemas()})["u"]
        assert saved is not None
