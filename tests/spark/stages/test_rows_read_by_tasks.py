"""Tasks that read Parquet files themselves find the rows and the values of plain Spark, or leave the reading to it."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import SourceChangedError
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.stages.split_plans import SplitPlan
from airflow_provider_statecheck.spark.stages.stage import Aggregate, Count, Max, Stage, Sum
from airflow_provider_statecheck.state.reading.state_reader import read_state
from tests.shared_spark import setting, to_arrow
from tests.soak import rest_in_soak
from tests.spark.stages.aggregate_cases import COLUMNS, KEYS, ORDERED, aggregates_of, drawn, frame_of, require_equal
from tests.spark.stages.stage_tries import StageTries

ONLY_IN_SPARK = {"span", "numeral"}
"""Columns of which Spark computes some aggregate in another way than PyArrow, or which PyArrow does not read."""
READ = {name: column for name, column in COLUMNS.items() if name not in ONLY_IN_SPARK}
READ["exact"] = READ["exact"]._replace(functions=ORDERED)
NUMBERS = {
    "tiny": pa.array([-128, 127, None, 0], pa.int8()),
    "small": pa.array([-32768, 32767, None, 0], pa.int16()),
    "int": pa.array([-(2**31), 2**31 - 1, None, 2**24 + 1], pa.int32()),
    "long": pa.array([-(2**63), 2**63 - 1, 2**53 + 1, 2**54 + 3], pa.int64()),
    "real": pa.array([0.1, -0.0, float("nan"), 3.4e38], pa.float32()),
    "number": pa.array([0.1, -0.0, float("inf"), None], pa.float64()),
    "price": pa.array([Decimal("0.07"), Decimal("-9999999999999.99"), None, Decimal("5.55")], pa.decimal128(15, 2)),
    "fraction": pa.array(
        [Decimal("0.000000000000001"), Decimal("0.123456789012345"), None, Decimal(0)], pa.decimal128(15, 15)
    ),
    "whole": pa.array([Decimal(10**15 - 1), Decimal(-3), None, Decimal(7)], pa.decimal128(15, 0)),
}
TYPES = ("tinyint", "smallint", "int", "bigint", "float", "double", "BIGINT", "long", "real")

Jobs = list[str]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Note who reads the rows of each job: ``tasks`` or ``Spark``."""
    noted: Jobs = []
    for name, reader in {"of_files": "tasks", "of_frames": "Spark"}.items():
        monkeypatch.setattr(SplitPlan, name, _noting(noted, reader, getattr(SplitPlan, name)))
    return noted


def _noting(noted: Jobs, reader: str, plan: Callable[..., Any]) -> Callable[..., Any]:
    def planned(*arguments: Any) -> Any:
        noted.append(reader)
        return plan(*arguments)

    return planned


def written_by_spark(tries: StageTries, *tables: Any) -> None:
    """Write a Parquet file of each table."""
    tries.input.mkdir()
    for number, table in enumerate(tables):
        folder = tries.folder / f"spark-{number}"
        frame_of(tries.spark, table).coalesce(1).write.parquet(str(folder))
        [file] = folder.glob("*.parquet")
        file.rename(tries.input / f"part-{number}.parquet")


def totals(tries: StageTries, keys: tuple[str, ...], aggregates: dict[str, Any], **source: Any) -> Any:
    """Return the state of a stage after all files as a table."""
    read = ParquetSource(str(tries.input), files_per_increment=1, **source)
    tries.run(Stage("stage", parallelism=2).source(read).key_by(*keys).aggregate(**aggregates))
    state = read_state(tries.completed()[-1].location, "aggregates").read_all()
    value = state.column("value").combine_chunks()
    columns = dict(zip([field.name for field in value.type], value.flatten(), strict=True))
    return pa.table({key: state.column(key) for key in keys} | {name: columns[name] for name in aggregates})


def in_spark(tries: StageTries, keys: tuple[str, ...], aggregates: dict[str, Any]) -> Any:
    """Return the rows of plain Spark as a table."""
    from pyspark.sql import functions as F

    columns = [F.expr(f"{each.spark_function}({each.expression})").alias(name) for name, each in aggregates.items()]
    return to_arrow(tries.spark.read.parquet(str(tries.input)).groupBy(*keys).agg(*columns))


@pytest.mark.parametrize("key", rest_in_soak(list(KEYS), "k_decimal"))
def test_each_function_of_each_type_read_by_tasks_is_that_of_spark(tries: StageTries, jobs: Jobs, key: str) -> None:
    chance, aggregates = random.Random(key), aggregates_of(READ) | {"all": Count()}
    written_by_spark(tries, *(drawn(chance, rows) for rows in (40, 1, 60)))
    with setting(tries.spark, "spark.sql.session.timeZone", "America/St_Johns"):
        found, expected = totals(tries, (key,), aggregates), in_spark(tries, (key,), aggregates)
    require_equal(found, expected, (key,))
    assert jobs == ["tasks"]


def cast_cases() -> list[tuple[str, str]]:
    """Return each number with each type to which tasks cast it."""
    widths = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "long": 8}
    own = {"tiny": 1, "small": 2, "int": 4, "long": 8}
    found = []
    for name in NUMBERS:
        for kind in TYPES:
            is_wider = name in own and widths.get(kind.lower(), 0) >= own[name]
            is_float = kind in ("float", "real", "double") and (name in own or name == "real")
            if is_wider or is_float or kind == "double":
                found.append((name, kind))
    return found


def test_casts_of_numbers_by_tasks_have_the_bits_of_spark(tries: StageTries, jobs: Jobs) -> None:
    size = len(next(iter(NUMBERS.values())))
    aggregates: dict[str, Any] = {
        f"{name}_{number}": Max(f" CAST( {name} as {kind})") for number, (name, kind) in enumerate(cast_cases())
    }
    aggregates["twice"] = Max("cast(cast(int as bigint) as double)")
    aggregates["counted"] = Count("cast(price as double)")
    written_by_spark(
        tries, *(pa.table({"id": [n], **{k: v.slice(n, 1) for k, v in NUMBERS.items()}}) for n in range(size))
    )
    found, expected = (work(tries, ("id",), aggregates).sort_by("id") for work in (totals, in_spark))
    assert jobs == ["tasks"]
    for name in aggregates:
        assert list(map(bits, found[name].to_pylist())) == list(map(bits, expected[name].to_pylist())), name


def bits(value: Any) -> Any:
    """Return a value that differs for each other one; the sign of zero and the bits of NaN are no part of it."""
    return struct.pack("d", value + 0.0) if isinstance(value, float) and value == value else repr(value)


ONLY_SPARK_COMPUTES = (
    Sum("cast(price as float)"),
    Sum("cast(long as int)"),
    Sum("cast(price as decimal(20, 2))"),
    Sum("price * 2"),
    Max("upper('x')"),
    Max("true"),
    Count("nullif(long, 0)"),
)


@pytest.mark.parametrize(
    "aggregate", rest_in_soak(ONLY_SPARK_COMPUTES, Sum("cast(price as float)")), ids=lambda each: each.text
)
def test_spark_computes_what_tasks_do_not(tries: StageTries, jobs: Jobs, aggregate: Aggregate) -> None:
    table = pa.table({"id": [0, 1], "long": [0, 7], "price": pa.array([Decimal("0.1"), None], pa.decimal128(15, 2))})
    written_by_spark(tries, table, table)
    found, expected = (work(tries, ("id",), {"x": aggregate}) for work in (totals, in_spark))
    require_equal(found, expected, ("id",))
    assert jobs == ["Spark"]


@pytest.mark.parametrize("name", rest_in_soak(["a b", "sum", "a.b", "Ünicode", "true", "LONG"], "a.b", "LONG"))
def test_columns_are_found_by_the_rules_of_spark(tries: StageTries, jobs: Jobs, name: str) -> None:
    table = pa.table({"id": [0, 0], name: [3, 4]})
    written_by_spark(tries, table, table)
    quoted = f"`{name}`"
    found = totals(tries, ("id",), {"x": Sum(quoted), "y": Max(quoted.lower()), "n": Count()})
    assert found.to_pylist() == [{"id": 0, "x": 14, "y": 4, "n": 4}]
    assert jobs == ["tasks"]


def test_files_with_fewer_columns_and_other_orders_are_read_as_by_spark(tries: StageTries, jobs: Jobs) -> None:
    tries.input.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "v": [1, 2], "w": [5, 6]}), tries.input / "a.parquet")
    pq.write_table(pa.table({"w": [7], "id": [1]}), tries.input / "b.parquet")
    found = totals(tries, ("id",), {"v": Sum("v"), "w": Sum("w")})
    assert sorted(found.to_pylist(), key=repr) == [{"id": 1, "v": 1, "w": 12}, {"id": 2, "v": 2, "w": 6}]
    assert jobs == ["tasks"]


def test_values_in_the_names_of_directories_are_read_by_spark_where_they_are_needed(
    tries: StageTries, jobs: Jobs
) -> None:
    for day in (1, 2):
        folder = tries.input / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2], "v": [day, 10 * day]}), folder / "part.parquet")
    assert sorted(totals(tries, ("id",), {"v": Sum("v")}).to_pylist(), key=repr) == [
        {"id": 1, "v": 3},
        {"id": 2, "v": 30},
    ]
    assert jobs == ["tasks"]


def test_the_column_of_directories_as_key(tries: StageTries, jobs: Jobs) -> None:
    for day in (1, 2):
        folder = tries.input / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"v": [day, 10 * day]}), folder / "part.parquet")
    found = totals(tries, ("day",), {"v": Sum("v")}).to_pylist()
    assert sorted(found, key=repr) == [{"day": 1, "v": 11}, {"day": 2, "v": 22}]
    assert jobs == ["Spark"]


def test_file_that_spark_refuses_is_refused_after_those_before_it(tries: StageTries, jobs: Jobs) -> None:
    tries.write_input({"id": [1], "v": [1]}, {"id": [1], "v": [2]}, {"id": [1], "v": ["text"]})
    with pytest.raises(SourceChangedError, match="part-002"):
        totals(tries, ("id",), {"v": Sum("v")})
    assert jobs == ["Spark"]
    assert read_state(tries.completed()[-1].location, "aggregates").read_all()["value"].to_pylist() == [{"v": 3}]


def test_large_files_are_cut_and_small_ones_are_packed(tries: StageTries, jobs: Jobs, tmp_path: Path) -> None:
    tries.input.mkdir()
    for number in range(4):
        table = pa.table({"id": list(range(1000)), "v": [number] * 1000})
        pq.write_table(table, tries.input / f"{number}.parquet", row_group_size=100)
    source = ParquetSource(str(tries.input), row_groups_per_increment=7)
    tries.run(Stage("stage", parallelism=2).source(source).key_by("id").aggregate(v=Sum("v"), n=Count()))
    state = read_state(tries.completed()[-1].location, "aggregates").read_all()
    assert state["value"].to_pylist() == [{"v": 6, "n": 4}] * 1000
    assert jobs == ["tasks"]
