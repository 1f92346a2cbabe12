from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    RequestLimitError,
)
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.storage.bounds import bounded_decoding
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle
from airflow_provider_statecheck.storage.snapshot_manifest import (
    FORMAT_VERSION,
    SnapshotFile,
    SnapshotManifest,
    SnapshotWriter,
    build_manifest,
    footer_digest,
    read_manifest,
    verify_files,
    verify_footer,
)


class Files(CheckpointStorage):
    """Files in memory, with a record of what was read of them."""

    def __init__(self, content: Mapping[str, bytes]) -> None:
        self.content = dict(content)
        self.read: list[tuple[str, int, int]] = []

    def list_files(self, directory: str) -> dict[str, int]:
        return {name: len(data) for name, data in self.content.items()}

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        name = uri.removeprefix("x://data/")
        self.read.append((name, start, end))
        return self.content[name][start:end]


def parquet(rows: int, columns: int = 1) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({f"c{i}": range(rows) for i in range(columns)}), sink)
    return sink.getvalue()


def make_manifest(**changes):
    file = SnapshotFile(name="part-0.parquet", size_bytes=4, footer_sha256="ab")
    return SnapshotManifest(**{"schema_json": "{}", "files": (file,), "rows": 1, **changes})


def test_rows_are_counted_from_footers_without_reading_the_data():
    files = Files({f"part-{i}.parquet": parquet(50_000 + i) for i in range(20)})
    manifest = build_manifest(files, "x://data", "{}")
    assert manifest.rows == sum(50_000 + i for i in range(20))
    assert sum(end - start for _, start, end in files.read) < manifest.size_bytes / 2


def test_a_footer_longer_than_one_read_is_read_whole():
    files = Files({"part-0.parquet": parquet(3, columns=2000)})
    assert build_manifest(files, "x://data", "{}").rows == 3
    assert len(files.read) == 2


def test_what_spark_passes_over_is_no_data():
    names = ["_SUCCESS", ".part-0.parquet.crc", "_temporary/0/part-1.parquet", "part-0.parquet"]
    files = Files({name: parquet(2) for name in names})
    assert [file.name for file in build_manifest(files, "x://data", "{}").files] == ["part-0.parquet"]


@pytest.mark.parametrize("data", [b"", b"PAR1", parquet(9)[:-1], b"PAR1" + b"\xff" * 8 + b"\x08\x00\x00\x00PAR1"])
def test_an_incomplete_file_is_found(data):
    with pytest.raises(CorruptStateError, match="readable footer"):
        build_manifest(Files({"part-0.parquet": data}), "x://data", "{}")


def test_nothing_where_spark_wrote_means_that_spark_wrote_elsewhere():
    """Spark writes a file even for no row; a manifest without one would verify although nothing can be restored."""
    with pytest.raises(EnvironmentNotReadyError, match="one endpoint"):
        build_manifest(Files({"_SUCCESS": b""}), "x://data", "{}")


def test_changed_statistics_change_the_fingerprint():
    def fingerprint(first: int) -> str:
        sink = io.BytesIO()
        pq.write_table(pa.table({"a": [first, 5]}), sink)
        return build_manifest(Files({"part-0.parquet": sink.getvalue()}), "x://data", "{}").fingerprint()

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)


def test_equal_manifests_have_equal_bytes_in_any_order_of_listing():
    content = {f"part-{i}.parquet": parquet(i + 1) for i in range(5)}
    forward = build_manifest(Files(content), "x://data", "{}")
    backward = build_manifest(Files(dict(reversed(content.items()))), "x://data", "{}")
    assert forward.encode() == backward.encode()


@pytest.mark.parametrize("writer", SnapshotWriter)
def test_decoding_gives_back_what_was_encoded(writer):
    manifest = make_manifest(schema_json='{"fields":[{"name":"naïve \\u0000"}]}', writer=writer)
    assert SnapshotManifest.decode(manifest.encode()) == manifest


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"format_version":1,"files":[[1]]}'])
def test_a_damaged_manifest_is_found(content):
    with pytest.raises(CorruptStateError):
        SnapshotManifest.decode(content)


def test_a_manifest_of_a_newer_format_says_so():
    document = {**json.loads(make_manifest().encode()), "format_version": FORMAT_VERSION + 1}
    with pytest.raises(IncompatibleCheckpointError, match=f"format {FORMAT_VERSION + 1}"):
        SnapshotManifest.decode(json.dumps(document).encode())


def test_an_unknown_writer_is_damage():
    document = {**json.loads(make_manifest(writer=SnapshotWriter.EXECUTORS).encode()), "writer": "nobody"}
    with pytest.raises(CorruptStateError):
        SnapshotManifest.decode(json.dumps(document).encode())


def test_files_of_repeated_tasks_are_no_damage_beside_what_executors_wrote():
    manifest = make_manifest(writer=SnapshotWriter.EXECUTORS)
    verify_files(Files({"part-0.parquet": b"1234", "part-0-loser.parquet": b"1"}), "x://data", manifest)
    with pytest.raises(CorruptStateError, match="is missing"):
        verify_files(Files({"part-0-loser.parquet": b"1"}), "x://data", manifest)
    with pytest.raises(CorruptStateError, match="3 bytes instead of 4"):
        verify_files(Files({"part-0.parquet": b"123"}), "x://data", manifest)


def test_all_differences_are_told():
    manifest = make_manifest(
        files=tuple(SnapshotFile(name=name, size_bytes=4, footer_sha256="") for name in ("a", "b", "c"))
    )
    with pytest.raises(CorruptStateError) as raised:
        verify_files(Files({"a": b"1234", "b": b"123", "d": b"1"}), "x://data", manifest)
    assert raised.value.differences == ["c is missing", "d was added", "b has 3 bytes instead of 4"]


@pytest.mark.parametrize(
    "udt",
    [
        {"type": "udt", "pyClass": "os.system", "sqlType": "long"},
        {"type": "udt", "pyClass": "pyspark.x.Y", "serializedClass": "gASVBg==", "sqlType": "long"},
    ],
    ids=["foreign-class", "pickled-class"],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_schema_cannot_make_a_restore_load_code(udt, is_nested):
    kind = {"type": "array", "elementType": udt, "containsNull": True} if is_nested else udt
    field = {"name": "a", "type": kind, "nullable": True, "metadata": {}}
    with pytest.raises(CorruptStateError, match="does not load"):
        parse_schema(json.dumps({"type": "struct", "fields": [field]}))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"type":"struct"}', '{"type":"struct","fields":[{}]}'])
def test_a_damaged_schema_is_found(text):
    with pytest.raises(CorruptStateError):
        parse_schema(text)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Return the storage, the handle and the manifest of a snapshot of more files than a server reads."""
    storage = CheckpointStorage.open(tmp_path_factory.mktemp("large").as_uri())
    files = (SnapshotFile(f"part-{number:06}.parquet", 4, "ab" * 32) for number in range(260_000))
    manifest = make_manifest(files=tuple(files))
    data = manifest.encode()
    storage.write_bytes(f"{storage.base_uri}/s/_manifest", data)
    handle = SnapshotHandle(
        name="s",
        uri=f"{storage.base_uri}/s",
        epoch=1,
        rows=1,
        size_bytes=manifest.size_bytes,
        files=len(manifest.files),
        fingerprint="",
        seconds=1.0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        manifest_size=len(data),
        manifest_sha256=hashlib.sha256(data).hexdigest(),
    )
    return storage, handle, manifest


def test_driver_reads_the_manifest_that_it_wrote_however_many_files_it_has(large):
    storage, handle, manifest = large
    assert read_manifest(storage, handle) == manifest


def test_server_refuses_a_manifest_that_is_too_large_without_calling_it_corrupt(large, monkeypatch):
    storage, handle, _ = large
    monkeypatch.setattr(SnapshotManifest, "decode", lambda _: pytest.fail("decoded"))
    with bounded_decoding(), pytest.raises(RequestLimitError, match="at most 1000000 values, found"):
        read_manifest(storage, handle)
    monkeypatch.setattr(CheckpointStorage, "read_verified", lambda *_, **__: pytest.fail("read"))
    with bounded_decoding(), pytest.raises(RequestLimitError, match="at most 33554432 bytes, found"):
        read_manifest(storage, replace(handle, manifest_size=35 << 20))


def test_error_about_a_changed_footer_names_no_digest_of_what_was_found():
    data = parquet(10)
    expected = SnapshotFile("part-0.parquet", len(data), "ab" * 32)
    with pytest.raises(CorruptStateError, match="found another one") as caught:
        verify_footer(Files({"part-0.parquet": data}), "x://data/part-0.parquet", expected)
    found = footer_digest(lambda start, end: data[start:end], "x", len(data))
    assert found[:6] not in str(caught.value)
