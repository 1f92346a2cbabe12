"""Columns at the borders of a stage: matched by name, and widened as Spark does, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from airflow_provider_statecheck import (
    DataFrameSource,
    KeyedProcessFunction,
    ParquetSink,
    ParquetSource,
    Stage,
    run_stage,
)
from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError, SourceChangedError
from airflow_provider_statecheck.spark.stages.stage import Count, Max
from airflow_provider_statecheck.spark.tables.alignment import (
    InputColumns,
    aligned,
    differences_of,
    extended,
    is_alike,
    union_by_name,
)
from airflow_provider_statecheck.spark.tables.schemas import to_struct_type
from airflow_provider_statecheck.spark.versions import is_at_least
from tests.soak import rest_in_soak
from tests.unit.spark.connectors.runs import rows_read

WIDER = [
    ("tinyint", "smallint", "smallint"),
    ("int", "bigint", "bigint"),
    ("bigint", "double", "double"),
    ("float", "double", "double"),
    ("decimal(10, 2)", "decimal(12, 4)", "decimal(12,4)"),
    ("decimal(10, 4)", "decimal(10, 2)", "decimal(12,4)"),
    ("int", "decimal(12, 2)", "decimal(12,2)"),
    ("date", "timestamp", "timestamp"),
    ("void", "string", "string"),
    ("array<int>", "array<bigint>", "array<bigint>"),
    ("struct<a: int>", "struct<a: bigint>", "struct<a:bigint>"),
    ("map<string, int>", "map<string, double>", "map<string,double>"),
    ("interval hour", "interval hour to second", "interval hour to second"),
]
REFUSED = [
    ("bigint", "int", "narrower"),
    ("double", "bigint", "narrower"),
    ("timestamp", "date", "narrower"),
    ("decimal(12, 4)", "decimal(10, 2)", "narrower"),
    ("int", "string", "of another kind"),
    ("string", "int", "of another kind"),
    ("boolean", "int", "of another kind"),
    ("date", "string", "of another kind"),
    ("binary", "string", "of another kind"),
    ("decimal(38, 0)", "decimal(38, 18)", "of another kind"),
    ("struct<a: int>", "struct<a: string>", "of another kind"),
    ("array<bigint>", "array<int>", "narrower"),
    ("array<int>", "int", "of another kind"),
]


def columns(**types: str) -> StructType:
    return to_struct_type(", ".join(f"{name} {kind}" for name, kind in types.items()))


@pytest.mark.parametrize(("known", "found", "expected"), WIDER)
def test_type_of_later_rows_is_widened_as_in_a_union(spark: Any, known: str, found: str, expected: str) -> None:
    before = InputColumns(schema=columns(v=known))
    after = before.with_rows(columns(v=found), spark)
    assert after.schema["v"].dataType.simpleString() == expected
    union = spark.createDataFrame([], before.schema).unionByName(spark.createDataFrame([], columns(v=found)))
    assert is_alike(after.schema, union.schema)
    # What earlier rows had is read in the wider type, also after a restore.
    restored = InputColumns.decode(after.encode())
    assert restored.with_rows(before.schema, spark) is restored
    assert restored.with_rows(after.schema, spark) is restored


@pytest.mark.parametrize(("known", "found", "relation"), REFUSED)
def test_narrower_and_foreign_types_are_refused_with_both_types(
    spark: Any, known: str, found: str, relation: str
) -> None:
    shown = [columns(v=kind)["v"].dataType.simpleString() for kind in (known, found)]
    with pytest.raises(SourceChangedError) as refused:
        InputColumns(schema=columns(v=known)).with_rows(columns(v=found), spark)
    assert all(text in str(refused.value) for text in (*shown, relation, "'v'"))


def test_nullability_order_and_case_are_no_other_columns(spark: Any) -> None:
    known = InputColumns(schema=columns(id="bigint not null", v="array<int>"))
    assert known.with_rows(columns(V="array<int>", ID="bigint"), spark) is known
    rows = aligned(spark.sql("select array(1) V, 5L ID"), known.schema)
    assert rows.columns == ["id", "v"]
    assert [tuple(row) for row in rows.collect()] == [(5, [1])]


@pytest.mark.parametrize(
    ("found", "told"),
    [({"id": "bigint"}, r"without \['v'\]"), ({"id": "bigint", "v": "int", "w": "int"}, r"with \['w'\] in addition")],
)
def test_other_columns_of_a_split_are_refused_by_name(spark: Any, found: dict[str, str], told: str) -> None:
    with pytest.raises(SourceChangedError, match=told):
        InputColumns(schema=columns(id="bigint", v="int")).with_rows(columns(**found), spark)


def test_later_run_decides_its_columns_but_not_narrower_types(spark: Any) -> None:
    known = InputColumns(schema=columns(id="int", gone="string", v="double"))
    later = known.of_next_run(columns(new="string", v="double", id="bigint"), spark)
    assert [field.simpleString() for field in later.schema] == ["new:string", "v:double", "id:bigint"]
    with pytest.raises(SourceChangedError, match=r"'v' .* double, .* int, which is narrower"):
        known.of_next_run(columns(id="int", v="int"), spark)


def test_columns_of_a_checkpoint_that_was_changed_are_refused() -> None:
    with pytest.raises(CorruptStateError):
        InputColumns.decode({"schema": "{}", "earlier": {}})


def test_files_of_a_later_run_are_read_with_new_columns_and_wider_types(spark: Any) -> None:
    if not is_at_least(spark, "4.0"):
        with pytest.raises(SourceChangedError, match="which Spark does not read from files as bigint"):
            extended(columns(v="bigint"), columns(v="int"), spark, {})
        return
    known = columns(id="bigint", v="int", code="string", day="int")
    found = columns(id="int", v="bigint", code="int", day="string", new="date")
    later = extended(known, found, spark, {"code": {"5"}, "day": {None}})
    assert [field.simpleString() for field in later] == ["id:bigint", "v:bigint", "code:string", "day:int", "new:date"]
    with pytest.raises(SourceChangedError, match=r"'day' .* int, .* string, which is of another kind"):
        extended(known, found, spark, {"code": {"5"}, "day": {"A7"}})


@pytest.mark.parametrize(
    ("known", "found", "told"),
    [
        ("double", "bigint", "bigint, which Spark does not read from files as double"),
        ("timestamp", "date", "date, which Spark does not read from files as timestamp"),
        ("struct<x: double>", "struct<X: bigint>", "does not read from files as struct<x:double>"),
    ],
)
def test_files_of_a_later_run_that_spark_does_not_read_as_the_wider_type_are_refused(
    spark: Any, known: str, found: str, told: str
) -> None:
    with pytest.raises(SourceChangedError, match=told):
        extended(columns(v=known), columns(v=found), spark, {})


STRUCTS = [
    ("named_struct('y', 5L, 'X', 6)", {"x": 6, "y": 5}),
    ("named_struct('y', 5L)", {"x": None, "y": 5}),
    ("null", None),
]


@pytest.mark.parametrize(("given", "expected"), STRUCTS)
def test_fields_of_structs_are_matched_by_name_at_any_depth(spark: Any, given: str, expected: Any) -> None:
    first = spark.sql("select struct(1 x, 2L y) s, array(struct(1 x, 2L y)) a, map('k', struct(1 x, 2L y)) m")
    later = spark.sql(f"select {given} s, array({given}) a, map('k', {given}) m")
    found = union_by_name([first, later])
    assert is_alike(found.schema, first.schema)
    row = found.collect()[1].asDict(recursive=True)
    assert row == {"s": expected, "a": [expected], "m": {"k": expected}}


def test_splits_of_an_increment_are_a_union_by_name(spark: Any) -> None:
    frames = [
        spark.sql(text) for text in ("select 1 id, 'a' `x.y`", "select 'b' `X.Y`, 2L ID", "select 3 id, null `x.y`")
    ]
    found = union_by_name(frames)
    assert [field.simpleString() for field in found.schema] == ["id:bigint", "x.y:string"]
    assert sorted(map(tuple, found.collect()), key=str) == [(1, "a"), (2, "b"), (3, None)]


def test_differences_of_parts_are_told_by_name(spark: Any) -> None:
    known = columns(id="bigint not null", v="int")
    assert differences_of(known, columns(V="int", id="bigint"), spark) == []
    assert differences_of(known, columns(id="string", w="int"), spark) == [
        "no column 'v'",
        "a new column 'w'",
        "column 'id' as string instead of bigint",
    ]


class Shown(KeyedProcessFunction[Any, Any, Any]):
    """Emits each row as text."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield {"r": repr(value._asdict())}


def places(folder: Path) -> dict[str, Any]:
    return {"checkpoint_dir": str(folder / "checkpoints"), "metadata": f"sqlite:///{folder}/state.db"}


def write(path: Path, **values: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(values), path)


def newest_row(spark: Any, folder: Path, run: int, **given: Any) -> str:
    """Run a stage on the files of a folder and return the row with the largest id."""
    source = ParquetSource(folder / "in", **given)
    stage = (
        Stage("stage", max_parallelism=8, parallelism=1).source(source).key_by("id").process(Shown(), output="r string")
    )
    run_stage(spark, stage.sink(ParquetSink(folder / "out")), job="job", run=f"2026-01-0{run}", **places(folder))
    return max(str(row.r) for row in spark.read.parquet(str(folder / "out")).collect())


def test_new_column_of_a_later_run_is_read(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", id=[1], x=[10])
    newest_row(spark, tmp_path, 1)
    write(tmp_path / "in/b.parquet", id=[2], x=[20], y=["new"])
    assert newest_row(spark, tmp_path, 2) == "{'id': 2, 'x': 20, 'y': 'new'}"


@pytest.mark.parametrize("choice", rest_in_soak([None, "columns", "schema", "mergeSchema"], None))
def test_column_of_some_files_is_read_or_refused_as_chosen(spark: Any, tmp_path: Path, choice: str | None) -> None:
    write(tmp_path / "in/a.parquet", id=[1], x=[10])
    write(tmp_path / "in/b.parquet", id=[2], x=[20], y=["new"])
    if choice is None:
        with pytest.raises(SourceChangedError, match=r"b\.parquet.* found \['y'\] in addition"):
            newest_row(spark, tmp_path, 1)
        return
    given = {"columns": ["id", "x"], "schema": "id long, x long", "mergeSchema": {"mergeSchema": True}}[choice]
    found = newest_row(spark, tmp_path, 1, **{"options" if choice == "mergeSchema" else choice: given})
    assert found == ("{'id': 2, 'x': 20, 'y': 'new'}" if choice == "mergeSchema" else "{'id': 2, 'x': 20}")


def test_field_of_a_struct_that_only_some_files_have_is_refused_or_read_as_chosen(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", id=[1], s=[{"x": 1}])
    write(tmp_path / "in/b.parquet", id=[2], s=[{"x": 2, "y": 3}])
    for given in ({}, {"columns": ["id", "s"]}):
        with pytest.raises(SourceChangedError, match=r"b\.parquet.* found \['s\.y'\] in addition"):
            loaded(spark, tmp_path, **given)
    assert loaded(spark, tmp_path, options={"mergeSchema": True})[-1] == {"id": 2, "s": {"x": 2, "y": 3}}
    assert loaded(spark, tmp_path, schema="id long, s struct<x: long>")[-1] == {"id": 2, "s": {"x": 2}}


def loaded(spark: Any, folder: Path, **given: Any) -> list[Any]:
    """Return the rows of all files, one after the other, as a stage reads them."""
    enumerator = ParquetSource(folder / "in", files_per_increment=1, **given).open(spark)
    return [row.asDict(recursive=True) for row in rows_read(enumerator, lambda frame: frame.collect())]


def test_wider_type_of_a_later_file_of_a_run_is_read_and_a_foreign_one_refused(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", v=pa.array([1], pa.int32()))
    write(tmp_path / "in/b.parquet", v=pa.array([2**40], pa.int64()))
    write(tmp_path / "in/c.parquet", v=pa.array([3], pa.int32()))
    if not is_at_least(spark, "4.0"):
        with pytest.raises(SourceChangedError, match=r"b\.parquet .* which Spark does not read from files as bigint"):
            loaded(spark, tmp_path)
        return
    for options in ({}, {"mergeSchema": True}):
        assert [row["v"] for row in loaded(spark, tmp_path, options=options)] == [1, 2**40, 3]
    write(tmp_path / "in/d.parquet", v=["text"])
    for options in ({}, {"mergeSchema": True}):
        with pytest.raises(
            SourceChangedError, match=r"d\.parquet .*'v' .* bigint, .* string, which is of another kind"
        ):
            loaded(spark, tmp_path, options=options)


def test_type_that_spark_does_not_read_with_that_of_the_other_files_is_refused(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", v=pa.array([1], pa.int64()))
    write(tmp_path / "in/b.parquet", v=[0.5])
    with pytest.raises(SourceChangedError, match=r"b\.parquet .*'v' .* bigint, .* double, which Spark does not read"):
        loaded(spark, tmp_path, columns=["v"])


@pytest.mark.soak
def test_partition_value_of_another_kind_in_a_later_run_is_refused_with_both_types(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in/code=1/a.parquet", id=[1])
    newest_row(spark, tmp_path, 1)
    write(tmp_path / "in/code=A7/b.parquet", id=[2])
    with pytest.raises(SourceChangedError, match=r"'code' .* int, .* string, which is of another kind"):
        newest_row(spark, tmp_path, 2)


@pytest.mark.parametrize(
    ("names", "key", "told"),
    [
        (["id", "__statecheck_rows"], "id", r"do not begin with '__statecheck_'.*\['__statecheck_rows'\]"),
        (["id", "ID"], "id", r"found \['id'\], whose names differ from another one only in case"),
    ],
)
def test_names_that_a_stage_cannot_have_are_refused_before_it_starts(
    spark: Any, tmp_path: Path, names: list[str], key: str, told: str
) -> None:
    def load(session: Any, split: int) -> Any:
        return session.createDataFrame([(1, 2)], ", ".join(f"{name} bigint" for name in names))

    stage = Stage("stage").source(DataFrameSource([1], load)).key_by(key).aggregate(n=Count())
    with pytest.raises(InvalidConfigurationError, match=told):
        run_stage(spark, stage, job="job", **places(tmp_path))
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.soak
def test_wider_output_is_refused_before_the_sink_gets_it(spark: Any, tmp_path: Path) -> None:
    def load(session: Any, split: int) -> Any:
        return session.sql("select 1L k, 1 v" if split == 0 else "select 1L k, 2L v")

    stage = Stage("stage", max_parallelism=8).source(DataFrameSource([0, 1], load)).key_by("k").aggregate(x=Max("v"))
    with pytest.raises(SourceChangedError, match=r"column 'x' is int32 there and int64 here"):
        run_stage(spark, stage.sink(ParquetSink(tmp_path / "out")), job="job", **places(tmp_path))
