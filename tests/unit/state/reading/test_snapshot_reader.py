"""DataFrame snapshots of a checkpoint, read without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    UnknownStateError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.state.progress import NamedSnapshot
from airflow_provider_statecheck.state.reading.snapshot_reader import SnapshotReader, read_snapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import build_manifest
from tests.written_snapshots import (
    SnapshotJob,
    change_type_of_page,
    data_files,
    flip,
    flip_page,
    sales,
    spark_schema,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def job(tmp_path: Path) -> SnapshotJob:
    return SnapshotJob(CheckpointStorage.open(tmp_path.as_uri()))


def one_row(kind: pa.DataType, value: Any) -> pa.RecordBatch:
    return pa.record_batch({"_c0": pa.array([value, None], kind)})


def struct_of(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in fields],
    }


def test_rows_have_the_names_and_types_of_the_dataframe(job: SnapshotJob) -> None:
    pointer = job.take(job.snapshot("sales", files=2))
    reader = read_snapshot(pointer, "sales")
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema == pa.schema([("id", pa.int64()), ("shop", pa.string())])
    rows = [{"id": i, "shop": f"shop {i}"} for i in range(3)]
    assert reader.read_all().to_pylist() == [*rows, *rows]


@pytest.mark.parametrize(
    ("kind", "stored", "value", "expected"),
    [
        ("byte", pa.int8(), 1, 1),
        ("decimal(10,2)", pa.decimal128(10, 2), Decimal("1.25"), Decimal("1.25")),
        ("varchar(5)", pa.string(), "ab", "ab"),
        ("string collate UNICODE_CI", pa.string(), "ab", "ab"),
        ("binary", pa.binary(), b"\x00\xff", b"\x00\xff"),
        ("date", pa.date32(), date(1, 1, 1), date(1, 1, 1)),
        ("timestamp", pa.timestamp("us", "UTC"), NOON, NOON),
        ("timestamp_ntz", pa.timestamp("us"), NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
        ("interval day to second", pa.int64(), 5_000_000, timedelta(seconds=5)),
        ("interval year to month", pa.int32(), 27, 27),
        ("void", pa.null(), None, None),
        ({"type": "array", "elementType": "integer", "containsNull": True}, pa.list_(pa.int32()), [1, None], [1, None]),
        (
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
            pa.map_(pa.string(), pa.int64()),
            [("a", 1)],
            [("a", 1)],
        ),
        (
            {"type": "udt", "class": "v", "pyClass": "v.V", "sqlType": struct_of(("x", "double"))},
            pa.struct([("x", pa.float64())]),
            {"x": 0.5},
            {"x": 0.5},
        ),
        (
            struct_of(("took", "interval day to second"), ("times", {"type": "array", "elementType": "timestamp"})),
            pa.struct([("_c0", pa.int64()), ("_c1", pa.list_(pa.timestamp("us", "UTC")))]),
            {"_c0": 1_000_000, "_c1": [NOON]},
            {"took": timedelta(seconds=1), "times": [NOON]},
        ),
    ],
    ids=str,
)
def test_types_are_those_of_the_dataframe(
    job: SnapshotJob, kind: Any, stored: pa.DataType, value: Any, expected: Any
) -> None:
    pointer = job.take(job.snapshot("typed", one_row(stored, value), {"c": kind}))
    assert read_snapshot(pointer, "typed").read_all().column("c").to_pylist() == [expected, None]


def test_timestamps_in_the_old_form_of_spark_keep_their_microseconds(job: SnapshotJob) -> None:
    early = datetime(1, 1, 1, 0, 0, 0, 123456, UTC)
    file = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    pointer = job.take(
        written(job, pa.table({"_c0": pa.array([early], pa.timestamp("us", "UTC"))}), "timestamp", **file)
    )
    assert read_snapshot(pointer, "plain").read_all().column("c").to_pylist() == [early]


def test_columns_with_equal_names_are_all_read(job: SnapshotJob) -> None:
    pointer = job.take(job.snapshot("twice", sales(2), [("a", "long"), ("a", "string")]))
    table = read_snapshot(pointer, "twice", columns=["a"]).read_all()
    assert [column.to_pylist() for column in table.columns] == [[0, 1], ["shop 0", "shop 1"]]


def test_only_the_wanted_columns_are_read(job: SnapshotJob) -> None:
    handle = job.snapshot("sales", sales(20_000))
    pointer = job.take(handle)
    (path,) = data_files(handle)
    flip_page(path)
    assert read_snapshot(pointer, "sales", columns=["shop"]).read_all().num_rows == 20_000
    with pytest.raises(CorruptStateError, match="A page of"):
        read_snapshot(pointer, "sales", columns=["id"]).read_all()


def test_unknown_column_lists_the_columns(job: SnapshotJob) -> None:
    pointer = job.take(job.snapshot("sales"))
    with pytest.raises(InvalidConfigurationError, match="found 'other'; give some of 'id', 'shop'"):
        read_snapshot(pointer, "sales", columns=["id", "other"])


def test_unknown_name_lists_the_snapshots(job: SnapshotJob) -> None:
    inner = job.snapshot("hours", scope=(("days", "2026-01-01"),))
    with pytest.raises(UnknownStateError, match=r"snapshot 'other' .* found sales, days\[2026-01-01\]/hours"):
        read_snapshot(job.take(job.snapshot("sales"), inner), "other")
    with pytest.raises(UnknownStateError, match="found no snapshot"):
        read_snapshot(job.take(), "sales")


def test_name_in_several_scopes_needs_a_scope(job: SnapshotJob) -> None:
    outer = job.snapshot("sales", sales(1))
    first = job.snapshot("sales", sales(2), scope=(("days", "1"),))
    second = job.snapshot("sales", sales(3), scope=(("days", "2"), ("shops", "x")))
    pointer = job.take(outer, first, second)
    with pytest.raises(InvalidConfigurationError, match=r"found it in '', 'days\[1\]', 'days\[2\]/shops\[x\]'"):
        read_snapshot(pointer, "sales")
    counts = [read_snapshot(pointer, "sales", scope=s).read_all().num_rows for s in ("", "days[1]", "days[2]/shops[x]")]
    assert counts == [1, 2, 3]
    with pytest.raises(UnknownStateError, match="in the scope 'days\\[3\\]'"):
        read_snapshot(pointer, "sales", scope="days[3]")


def flip_footer(path: Path) -> None:
    flip(path, path.stat().st_size - 20)


@pytest.mark.parametrize("damage", [flip_page, change_type_of_page, flip_footer, Path.unlink])
def test_damaged_file_is_an_error_and_no_partial_result(job: SnapshotJob, damage: Callable[[Path], None]) -> None:
    handle = job.snapshot("sales", sales(20_000), files=2)
    damage(data_files(handle)[1])
    with pytest.raises(CorruptStateError):
        read_snapshot(job.take(handle), "sales").read_all()


def test_changed_manifest_is_an_error(job: SnapshotJob) -> None:
    handle = job.snapshot("sales")
    flip(Path(handle.uri.removeprefix("file://")) / "_manifest", 10)
    with pytest.raises(CorruptStateError):
        read_snapshot(job.take(handle), "sales")


def test_missing_checkpoint_is_not_found(job: SnapshotJob, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        read_snapshot(f"{tmp_path.as_uri()}/chk-9", "sales")


def test_files_are_read_one_after_the_other(job: SnapshotJob) -> None:
    handle = job.snapshot("sales", files=2)
    reader = read_snapshot(job.take(handle), "sales")
    assert reader.read_next_batch().num_rows == 3
    data_files(handle)[1].unlink()
    with pytest.raises(CheckpointNotFoundError):
        reader.read_next_batch()


def test_few_wanted_rows_are_read_without_the_rest_of_their_file(
    job: SnapshotJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [bytes([i % 251]) + os.urandom(1000) for i in range(8000)]
    handle = job.snapshot("raw", pa.record_batch({"_c0": texts}), columns={"raw": "binary"})
    lengths, original = [], job.storage.read_range

    def counted(uri: str, start: int, end: int) -> bytes:
        lengths.append(end - start)
        return original(uri, start, end)

    monkeypatch.setattr(job.storage, "read_range", counted)
    assert next(SnapshotReader(job.storage, NamedSnapshot((handle,))).batches(21)).column(0).to_pylist() == texts[:21]
    assert sum(lengths) < handle.size_bytes / 3


def test_wanted_rows_may_be_in_several_batches(job: SnapshotJob) -> None:
    sold = NamedSnapshot((job.snapshot("sales", sales(50), files=2),))
    batches = SnapshotReader(job.storage, sold).batches(21)
    assert [batch.num_rows for batch in batches] == [21, 21, 8] * 2


@pytest.mark.parametrize(
    "variant",
    [
        {"metadata": b"m", "value": b"v", "typed_value": 1},
        {"metadata": b"m", "value": b"v"},
    ],
    ids=["shredded", "other order"],
)
def test_other_layout_of_a_type_needs_spark(job: SnapshotJob, variant: dict[str, Any]) -> None:
    batch = pa.record_batch({"_c0": pa.array([variant])})
    pointer = job.take(job.snapshot("variants", batch, {"v": "variant"}))
    with pytest.raises(UnsupportedStateError, match="state_dataframes"):
        read_snapshot(pointer, "variants").read_all()


def test_type_that_only_spark_reads_does_not_hide_other_columns(job: SnapshotJob) -> None:
    pointer = job.take(job.snapshot("places", sales(2), {"id": "long", "place": "geometry(4326)"}))
    with pytest.raises(UnsupportedStateError, match="'place'"):
        read_snapshot(pointer, "places")
    assert read_snapshot(pointer, "places", columns=["id"]).read_all().num_rows == 2


def test_dates_of_the_julian_calendar_need_spark(job: SnapshotJob) -> None:
    marked = pa.table({"_c0": pa.array([date(1500, 1, 1)])}).replace_schema_metadata(
        {"org.apache.spark.legacyDateTime": ""}
    )
    pointer = job.take(written(job, marked, "date"))
    with pytest.raises(UnsupportedStateError, match="state_dataframes"):
        read_snapshot(pointer, "plain").read_all()


@pytest.mark.parametrize("schema", ["", "[]", '{"fields": [{"name": "a"}]}', '{"fields": [{"name": "a", "type": {}}]}'])
def test_invalid_schema_is_corrupt(job: SnapshotJob, schema: str) -> None:
    handle = job.snapshot("sales")
    manifest = build_manifest(job.storage, f"{handle.uri}/data", schema)
    pointer = job.take(job.add(f"{handle.uri}x", "sales", (), manifest))
    job.storage.copy_directory(f"{handle.uri}/data", f"{handle.uri}x/data", size_bytes=0)
    with pytest.raises(CorruptStateError, match="Expected"):
        read_snapshot(pointer, "sales")


def written(job: SnapshotJob, table: pa.Table, kind: str, **options: Any) -> Any:
    """Return a snapshot of one file in a form that Spark's own writer has."""
    handle = job.snapshot("plain", pa.record_batch({"_c0": [0]}), {"c": kind})
    uri = f"{handle.uri}-spark"
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True, **options)
    job.storage.write_bytes(f"{uri}/data/part-0.parquet", sink.getvalue().to_pybytes())
    return job.add(uri, "plain", (), build_manifest(job.storage, f"{uri}/data", spark_schema({"c": kind})))
