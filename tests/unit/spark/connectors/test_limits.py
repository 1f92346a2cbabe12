"""Values that Delta tables and directories of Parquet files cannot hold, refused before the checkpoint."""

from __future__ import annotations

import datetime
import math

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_provider_statecheck.exceptions import A_RETRY_CANNOT_HELP, UnfitOutputError
from airflow_provider_statecheck.spark.connectors.limits import MALFORMED, OUTSIDE_OF_YEARS, TargetLimits, limits_of
from tests.unit.spark.connectors.attempts import Attempt
from tests.unit.spark.connectors.delta.attempts import DeltaAttempt, added_in, rows_of

US = 86_400_000_000
TIMES = [0, 6_666_666 * US, -800_000 * US, 2**63 - 1, -(2**63)]
DAYS = pa.array([0, 6_666_666, -800_000, None], pa.date32())
NOT_UNICODE = pa.Array.from_buffers(pa.string(), 2, [None, pa.array(["ab", "c"]).buffers()[1], pa.py_buffer(b"a\xffc")])


def numbered(values):
    return pa.table({"key": pa.array(range(len(values)), pa.int64()), "value": values})


def refused(kind, path, values, **settings):
    rows = numbered(values)
    attempt = kind(path, 1, schema=rows.schema, **settings).open()
    with pytest.raises(UnfitOutputError) as error:
        attempt.write_table(rows)
    return str(error.value)


def in_delta(path, values, **settings):
    rows = numbered(values)
    attempt = DeltaAttempt(path, 1, schema=rows.schema, **settings).open()
    attempt.commit(1, attempt.write_table(rows))
    return rows_of(path).sort_by("key").column("value")


# Delta


@pytest.mark.parametrize("zone", ["UTC", None])
@pytest.mark.parametrize("upsert_by", [[], ["key"]])
def test_times_of_all_years_are_in_a_delta_table_that_stays_readable(tmp_path, zone, upsert_by):
    path = f"file://{tmp_path}/t"
    values = pa.array(TIMES, pa.timestamp("us", zone))
    assert in_delta(path, values, upsert_by=upsert_by).cast(pa.int64()).to_pylist() == TIMES
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    assert rows_of(path).sort_by("key").column("value").cast(pa.int64()).to_pylist() == TIMES


@pytest.mark.parametrize("settings", [{}, {"partition_by": ["value"]}, {"upsert_by": ["key"]}], ids=str)
def test_days_with_which_deltalake_could_not_read_the_table_are_refused(tmp_path, settings):
    told = refused(DeltaAttempt, f"file://{tmp_path}/t", DAYS, **settings)
    assert "found in a batch of 4 rows: column 'value' has 2 values outside of the years 1 to 9999" in told
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob("*.staged"))


def test_a_delta_table_has_the_first_and_the_last_day(tmp_path):
    days = [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
    for number, settings in enumerate(({}, {"partition_by": ["value"]}, {"upsert_by": ["key"]})):
        assert in_delta(f"file://{tmp_path}/{number}", pa.array(days), **settings).to_pylist() == days


def test_a_time_that_deltalake_cannot_compare_is_refused_as_a_key(tmp_path):
    values = pa.array([0, 2**63 - 1], pa.timestamp("us", "UTC"))
    assert "'value' has 1 value outside" in refused(DeltaAttempt, f"file://{tmp_path}/t", values, upsert_by=["value"])


def test_texts_that_delta_does_not_hold_are_refused(tmp_path):
    assert "1 value in invalid UTF-8" in refused(DeltaAttempt, f"file://{tmp_path}/t", NOT_UNICODE)
    null = pa.array(["__HIVE_DEFAULT_PARTITION__", "plain", None])
    for number, settings in enumerate(({}, {"upsert_by": ["key"]})):
        told = refused(DeltaAttempt, f"file://{tmp_path}/{number}", null, partition_by=["value"], **settings)
        assert "1 value equal to __HIVE_DEFAULT_PARTITION__, which stands for null" in told


@pytest.mark.parametrize("upsert_by", [[], ["key"]])
def test_odd_texts_of_partitions_are_read_back(tmp_path, upsert_by):
    texts = ["a\0b", "a/b", "%41", "ü", "..", "null", None, "\u2028", "a=b", "x\n", "a'b", ' "q" ']
    path = f"file://{tmp_path}/t"
    assert in_delta(path, pa.array(texts), partition_by=["value"], upsert_by=upsert_by).to_pylist() == texts


def test_a_partition_for_which_an_upsert_has_no_directory_is_refused_before_the_checkpoint(tmp_path):
    texts = pa.array(["ü" * 41, "ü" * 42, "x" * 249, "x" * 250])
    told = refused(DeltaAttempt, f"file://{tmp_path}/t", texts, partition_by=["value"], upsert_by=["key"])
    assert "column 'value' has 2 values with a directory whose name has more than 255 bytes" in told
    kept = texts.filter(pa.array([True, False, True, False]))
    found = in_delta(f"file://{tmp_path}/u", kept, partition_by=["value"], upsert_by=["key"])
    assert found.to_pylist() == kept.to_pylist()


def test_numbers_that_are_none_are_in_a_delta_table(tmp_path):
    values = [0.0, -0.0, math.nan, math.inf, -math.inf]
    for number, settings in enumerate(({}, {"upsert_by": ["key"]})):
        found = in_delta(f"file://{tmp_path}/{number}", pa.array(values), **settings)
        assert list(map(repr, found.to_pylist())) == list(map(repr, values))


def test_the_log_has_bounds_of_days_and_none_of_times(tmp_path):
    path = f"file://{tmp_path}/t"
    rows = pa.table({"d": [datetime.date(1, 1, 1)], "t": pa.array([2**63 - 1], pa.timestamp("us", "UTC"))})
    attempt = DeltaAttempt(path, 1, schema=rows.schema).open()
    attempt.commit(1, attempt.write_table(rows))
    (added,) = added_in(path)
    assert '"minValues": {"d": "0001-01-01"}' in added["stats"]


# Parquet


def test_a_directory_of_parquet_files_has_days_and_texts_of_all_kinds(tmp_path):
    rows = pa.table({"day": DAYS.slice(1, 2), "text": NOT_UNICODE})
    attempt = Attempt(f"file://{tmp_path}/t", 1, schema=rows.schema).open()
    attempt.commit(1, attempt.write_table(rows))
    assert pq.read_table(f"{tmp_path}/t").equals(rows)


def test_partitions_that_readers_do_not_understand_are_refused(tmp_path):
    for values, told in ((DAYS, "2 values outside of the years"), (NOT_UNICODE, "1 value in invalid UTF-8")):
        path = f"file://{tmp_path}/{told[:9]}"
        assert f"column 'value' has {told}" in refused(Attempt, path, values, partition_by=["value"])
        assert not list(tmp_path.rglob("*.staged"))


# Counts


def test_values_are_counted_by_column_and_kind_and_never_shown():
    rows = pa.table(
        {"day": DAYS, "text": ["secret"] * 4, "times": [[datetime.datetime.fromisoformat("0001-01-01")]] * 4}
    )
    limits = TargetLimits(target="the table t", limits=limits_of(rows.schema, (OUTSIDE_OF_YEARS, MALFORMED)))
    with pytest.raises(UnfitOutputError) as error:
        limits.require(rows)
    assert isinstance(error.value, A_RETRY_CANNOT_HELP)
    assert error.value.violations == [{"column": "column 'day'", "kind": "outside of the years 1 to 9999", "count": 2}]
    assert "Repair the values in the stage (for example null where year(column) not between 1 and 9999)" in str(
        error.value
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_bounds_are_exact_in_each_unit(unit):
    per_day = {"s": 86_400, "ms": 86_400_000, "us": US, "ns": US * 1000}[unit]
    inside = [v for v in (-719_162 * per_day, 2_932_897 * per_day - 1) if -(2**63) <= v < 2**63]
    outside = [v for v in (-719_162 * per_day - 1, 2_932_897 * per_day) if -(2**63) <= v < 2**63]
    rows = pa.table({"at": pa.array([*inside, *outside, None], pa.timestamp(unit, "UTC"))})
    limits = TargetLimits(target="t", limits=limits_of(rows.schema, (OUTSIDE_OF_YEARS,)))
    assert [count for _, count in limits.violated(rows)] == ([len(outside)] if outside else [])


def test_parts_of_slices_are_those_of_the_slice():
    kind = pa.map_(pa.string(), pa.struct([("days", pa.list_(pa.date32()))]))
    bad, good = [("k", {"days": [6_666_666, 0, None]})], [("k", {"days": [0]}), ("l", None)]
    values = pa.chunked_array([pa.array([bad, good, None, bad], kind).slice(1, 2), pa.array([bad], kind)])
    rows = pa.table({"m": values})
    limits = TargetLimits(target="t", limits=limits_of(rows.schema, (OUTSIDE_OF_YEARS,)))
    ((limit, count),) = limits.violated(rows)
    assert (limit.path, count) == ("m.value.days.element", 1)
    assert pc.is_null(values).to_pylist() == [False, True, False]


def test_a_null_in_a_map_of_structs_whose_fields_are_never_null_has_no_parts():
    never = [pa.field("day", pa.date32(), nullable=False)]
    inner = pa.StructArray.from_arrays(
        [pa.array([6_666_666, None], pa.date32())], fields=never, mask=pa.array([False, True])
    )
    fields = [pa.field("inner", inner.type, nullable=False)]
    structs = pa.StructArray.from_arrays([inner], fields=fields, mask=pa.array([False, True]))
    rows = pa.table({"m": pa.MapArray.from_arrays([0, 1, 2], ["k", "l"], structs)})
    limits = TargetLimits(target="t", limits=limits_of(rows.schema, (OUTSIDE_OF_YEARS,)))
    assert [(limit.path, count) for limit, count in limits.violated(rows)] == [("m.value.inner.day", 1)]
    assert limits.violated(rows.slice(1)) == []
