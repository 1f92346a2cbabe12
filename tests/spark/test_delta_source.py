"""A Delta table read by a real Spark."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.storage.stored_json import decode_state, encode_state
from tests.unit.spark.connectors.delta.attempts import DeltaAttempt
from tests.unit.spark.connectors.runs import rows_read


def read_all(enumerator):
    return [row.asDict(recursive=True) for row in rows_read(enumerator)]


def in_order(rows):
    return sorted(rows, key=lambda row: row["key"])


DAYS = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), None]


def orders(first, last):
    keys = list(range(first, last))
    moment = datetime.datetime(2024, 1, 1, 12, 0, 0, 123456, tzinfo=datetime.UTC)
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "name": pa.array([f"Zürich/日本 {key % 3}%" for key in keys]),
            "day": pa.array([DAYS[key % 3] for key in keys], pa.date32()),
            "at": pa.array([moment] * len(keys), pa.timestamp("us", "UTC")),
            "money": pa.array([decimal.Decimal(key) for key in keys], pa.decimal128(12, 2)),
            "nested": pa.array([{"x": key, "y": [key, None]} for key in keys]),
        }
    )


@pytest.mark.parametrize("partition_by", [None, ["day"], ["name", "day"]])
def test_all_increments_together_are_what_deltalake_reads(spark, tmp_path, partition_by):
    path = str(tmp_path / "table")
    write_deltalake(path, orders(0, 20), partition_by=partition_by)
    write_deltalake(path, orders(20, 30), mode="append")
    found = in_order(read_all(DeltaSource(path, files_per_increment=2).open(spark)))
    expected = in_order(pa.table(DeltaTable(path).to_pyarrow_table()).to_pylist())
    assert [{**row, "at": None} for row in found] == [{**row, "at": None} for row in expected]
    assert list(found[0]) == DeltaTable(path).schema().to_arrow().names


@pytest.mark.parametrize("partition_by", [(), ("day",), ("code", "day")])
def test_what_a_delta_sink_wrote_is_read_with_its_types(spark, tmp_path, partition_by):
    schema = pa.schema([("key", pa.int64()), ("code", pa.string()), ("day", pa.date32())])
    attempt = DeltaAttempt(f"file://{tmp_path}/table", 1, schema=schema, partition_by=partition_by).open()
    table = pa.table({"key": [1, 2, 3], "code": ["001", "a/b", None], "day": DAYS}, schema)
    writer = attempt.task(schema=schema)
    writer.write(table)
    attempt.commit(1, writer.prepare_commit())
    assert in_order(read_all(DeltaSource(f"{tmp_path}/table").open(spark))) == table.to_pylist()


def test_values_of_partitions_that_no_directory_tells_come_from_the_log(spark, tmp_path):
    import pyarrow.parquet as pq
    from deltalake import Schema
    from deltalake.transaction import AddAction, create_table_with_add_actions

    path = tmp_path / "table"
    path.mkdir()
    adds = []
    for code in ("001", None):
        file = path / f"{code}.parquet"
        pq.write_table(pa.table({"key": [1 if code else 2]}), file)
        adds.append(AddAction(file.name, file.stat().st_size, {"code": code, "n": "7"}, 0, True, "{}"))
    schema = Schema.from_arrow(pa.schema([("code", pa.string()), ("key", pa.int64()), ("n", pa.int32())]))
    create_table_with_add_actions(str(path), schema, adds, partition_by=["code", "n"])
    found = read_all(DeltaSource(str(path), files_per_increment=5).open(spark))
    assert in_order(found) == [{"code": "001", "key": 1, "n": 7}, {"code": None, "key": 2, "n": 7}]


def test_columns_are_chosen_and_those_that_a_file_lacks_are_null(spark, tmp_path):
    path = str(tmp_path / "table")
    write_deltalake(path, pa.table({"key": [1]}))
    write_deltalake(path, pa.table({"key": [2], "more": ["x"]}), mode="append", schema_mode="merge")
    assert in_order(read_all(DeltaSource(path).open(spark))) == [{"key": 1, "more": None}, {"key": 2, "more": "x"}]
    assert read_all(DeltaSource(path, columns=["more"], files_per_increment=2).open(spark))[0].keys() == {"more"}
    with pytest.raises(InvalidConfigurationError, match=r"found \['none'\]"):
        read_all(DeltaSource(path, columns=["none"]).open(spark))


def test_a_later_run_reads_what_was_added_since_with_the_columns_of_then(spark, tmp_path):
    path = str(tmp_path / "table")
    write_deltalake(path, pa.table({"key": [1]}))
    first = DeltaSource(path).open(spark)
    read_all(first)
    write_deltalake(path, pa.table({"key": [2], "more": ["x"]}), mode="append", schema_mode="merge")
    state = decode_state(encode_state(first.snapshot()))
    assert read_all(DeltaSource(path).open(spark, state)) == []
    assert read_all(DeltaSource(path).open(spark, state, new_run=True)) == [{"key": 2, "more": "x"}]
