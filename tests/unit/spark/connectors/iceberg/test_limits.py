"""Values that an Iceberg table can hold, in all its partitions, and those that are refused before the checkpoint."""

from __future__ import annotations

import datetime
import errno
import json
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)

from airflow_provider_statecheck.exceptions import StorageError, UnfitOutputError, UnsupportedStateError
from tests.unit.spark.connectors.iceberg.tables import Attempt, create_table, table_in

DAY_US = 86_400_000_000
NOT_IN_PYTHON = {
    "date": pa.array([0, 6_666_666, -800_000], pa.date32()),
    "time": pa.array([0, 6_666_666 * DAY_US, -800_000 * DAY_US], pa.timestamp("us")),
    "instant": pa.array([0, 2**63 - 1, -(2**63)], pa.timestamp("us", "UTC")),
}
MALFORMED = pa.Array.from_buffers(pa.string(), 2, [None, pa.array(["ab", "c"]).buffers()[1], pa.py_buffer(b"a\xffc")])


def written(folder, values, *transforms, **settings):
    rows = pa.table({"key": pa.array(range(len(values)), pa.int64()), "value": values})
    partitions = [("value", transform, f"part_{number}") for number, transform in enumerate(transforms)]
    create_table(folder, rows.schema, partitions)
    attempt = Attempt(folder, 1, schema=rows.schema, **settings).open()
    committables = json.loads(json.dumps(attempt.write_table(rows), allow_nan=False))
    attempt.commit(1, committables)
    return attempt


def read(folder):
    with table_in(folder) as table:
        found = table.scan().to_arrow().sort_by("key")
    return found.column("value")


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5, math.nan, None, math.nan, math.inf, -math.inf, 0.0, -0.0]),
        pa.array([1.5, math.nan, -0.0, 0.0], pa.float32()),
        pa.array(["a\0b", "a/b", "%41", "ü", "..", "", "null", None, "\u2028", "a=b"]),
        pa.array([Decimal("1.50"), None, Decimal("-1.50")], pa.decimal128(10, 2)),
        pa.array([b"\0\xff", b"a/b", None]),
        pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
        pa.array(
            [
                datetime.datetime.fromisoformat("0001-01-01"),
                datetime.datetime.fromisoformat("9999-12-31T23:59:59.999999"),
                None,
            ],
            pa.timestamp("us"),
        ),
        pa.array([True, None, False]),
    ],
    ids=lambda values: str(values.type),
)
def test_each_value_of_a_partition_is_read_back_once(tmp_path, values):
    written(tmp_path, values, IdentityTransform())
    found = read(tmp_path)
    assert [repr(value) for value in found.to_pylist()] == [repr(value) for value in values.to_pylist()]
    if pa.types.is_float64(values.type):
        with table_in(tmp_path) as table:
            assert table.scan("value = 1.5").to_arrow().num_rows == 1
            assert table.scan("value is nan").to_arrow().num_rows == 2


def test_partitions_that_share_a_column_are_written(tmp_path):
    values = pa.array([1, 2, None], pa.int64())
    written(tmp_path, values, IdentityTransform(), BucketTransform(4))
    assert read(tmp_path).to_pylist() == [1, 2, None]


def test_upserted_rows_of_all_partitions_are_read_back_once(tmp_path):
    values = pa.array([math.nan, 0.0, -0.0, None])
    attempt = written(tmp_path, values, IdentityTransform(), upsert_by=["key"])
    again = pa.table({"key": pa.array([1], pa.int64()), "value": pa.array([math.nan])})
    attempt.commit(2, attempt.write_table(again))
    assert [repr(value) for value in read(tmp_path).to_pylist()] == ["nan", "nan", "-0.0", "None"]


@pytest.mark.parametrize("values", NOT_IN_PYTHON.values(), ids=NOT_IN_PYTHON)
@pytest.mark.parametrize(
    "transforms",
    [(), (IdentityTransform(),), (YearTransform(),), (BucketTransform(4),)],
    ids=["plain", "identity", "year", "bucket"],
)
def test_years_that_pyiceberg_cannot_count_are_refused_by_column_before_the_checkpoint(tmp_path, values, transforms):
    with pytest.raises(UnfitOutputError, match="column 'value' has 2 values outside of the years 1 to 9999") as refused:
        written(tmp_path, values, *transforms)
    assert refused.value.violations == [
        {"column": "column 'value'", "kind": "outside of the years 1 to 9999", "count": 2}
    ]
    assert read(tmp_path).to_pylist() == []
    assert not list(tmp_path.rglob("statecheck-*.parquet"))


@pytest.mark.parametrize("transform", [MonthTransform(), DayTransform(), HourTransform()])
def test_years_at_the_limits_have_partitions_of_each_kind(tmp_path, transform):
    values = pa.array(
        [datetime.datetime.fromisoformat("0001-01-01"), datetime.datetime.fromisoformat("9999-12-31")],
        pa.timestamp("us"),
    )
    written(tmp_path, values, transform)
    assert read(tmp_path).to_pylist() == values.to_pylist()


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pa.array([{"at": 0}, {"at": 6_666_666}, None], pa.struct([("at", pa.date32())])), "value.at"),
        (pa.array([[0, 6_666_666], None], pa.list_(pa.date32())), "value.element"),
        (pa.array([[("a", 0)], [("b", 6_666_666)]], pa.map_(pa.string(), pa.date32())), "value.value"),
    ],
    ids=["struct", "list", "map"],
)
def test_parts_of_nested_values_are_checked_too(tmp_path, values, name):
    with pytest.raises(UnfitOutputError, match=f"column '{name}' has 1 value outside"):
        written(tmp_path, values)


def test_texts_that_are_not_unicode_are_refused(tmp_path):
    with pytest.raises(UnfitOutputError, match=r"column 'value' has 1 value in invalid UTF-8.*make_valid_utf8"):
        written(tmp_path, MALFORMED)


def test_a_partition_whose_directory_cannot_have_its_name_is_refused(tmp_path):
    with pytest.raises(UnfitOutputError, match=r"at most 255 bytes, found longer ones of part_0"):
        written(tmp_path, pa.array(["ü" * 60]), IdentityTransform())
    written(tmp_path / "other", pa.array(["ü" * 60]), TruncateTransform(10))


def test_rows_of_other_writers_with_other_years_stay_when_their_file_is_rewritten(tmp_path, monkeypatch):
    attempt = written(tmp_path, pa.array([0, 1], pa.date32()), upsert_by=["key"])
    with table_in(tmp_path) as table:
        (file,) = [task.file.file_path for task in table.scan().plan_files()]
    _replace_days(file.removeprefix("file://"))
    attempt.commit(
        2, attempt.write_table(pa.table({"key": pa.array([0], pa.int64()), "value": pa.array([5], pa.date32())}))
    )
    assert read(tmp_path).cast(pa.int32()).to_pylist() == [5, 6_666_666]


def _replace_days(path):
    import pyarrow.parquet as pq

    found = pq.read_table(path)
    other = pc.if_else(pc.equal(found.column("key"), 1), pa.scalar(6_666_666, pa.date32()), found.column("value"))
    field = found.schema.field("value")
    pq.write_table(found.set_column(found.schema.get_field_index("value"), field, other), path)


CONVERTED = [
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (pa.decimal128(10, 3), pa.decimal128(10, 2)),
    (pa.decimal128(5, 0), pa.decimal128(5, 2)),
    (pa.decimal128(38, 10), pa.decimal128(38, 2)),
]
NESTED = {
    "plain": lambda kind: kind,
    "struct": lambda kind: pa.struct([("part", kind)]),
    "list": pa.list_,
    "map": lambda kind: pa.map_(pa.string(), kind),
    "key": lambda kind: pa.map_(kind, pa.string()),
    "deep": lambda kind: pa.list_(pa.struct([("part", pa.map_(pa.string(), kind))])),
}


@pytest.mark.parametrize("nest", NESTED.values(), ids=NESTED)
def test_types_that_pyiceberg_would_convert_are_refused_before_any_work(tmp_path, nest):
    for number, (given, kept) in enumerate(CONVERTED):
        create_table(tmp_path / str(number), pa.schema([("key", pa.int64()), ("value", nest(kept))]))
        rows = pa.schema([("key", pa.int64()), ("value", nest(given))])
        with pytest.raises(UnsupportedStateError, match=r"column 'value\S*' is \w+.* there and \w+.* here") as refused:
            Attempt(tmp_path / str(number), 1, schema=rows).open()
        assert not refused.value.retryable


@pytest.mark.parametrize("nest", [NESTED["plain"], NESTED["struct"], NESTED["list"]], ids=["plain", "struct", "list"])
def test_narrower_decimals_and_integers_are_widened(tmp_path, nest):
    for given, kept, value in [
        (pa.decimal128(5, 2), pa.decimal128(10, 2), Decimal("-9.75")),
        (pa.int32(), pa.int64(), 7),
    ]:
        folder = tmp_path / str(kept)
        create_table(folder, pa.schema([("key", pa.int64()), ("value", nest(kept))]))
        wrapped = {"struct": {"part": value}, "list": [value]}.get(str(nest(given)).partition("<")[0], value)
        rows = pa.table({"key": pa.array([1], pa.int64()), "value": pa.array([wrapped], nest(given))})
        attempt = Attempt(folder, 1, schema=rows.schema).open()
        attempt.commit(1, attempt.write_table(rows))
        assert read(folder).to_pylist() == [wrapped]


def test_a_full_disk_is_told_with_its_place_and_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    rows = pa.table({"key": pa.array([1], pa.int64()), "value": ["a"]})
    create_table(tmp_path, rows.schema)
    writer = Attempt(tmp_path, 1, schema=rows.schema).open().task(schema=rows.schema)
    writer.write(rows)
    monkeypatch.setattr("pyiceberg.io.pyarrow.ParquetFormatWriter.write", _half_a_file)
    with pytest.raises(StorageError, match=rf"below file://{tmp_path}/warehouse.*No space left.* free some space"):
        writer.prepare_commit()
    writer.abort()
    assert not list(tmp_path.rglob("statecheck-*"))


def _half_a_file(self, table):
    raise OSError(errno.ENOSPC, "No space left on device")
