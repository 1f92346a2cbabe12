"""Small files and messages that decode to gigabytes, or cost seconds, are refused before."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from airflow_provider_statecheck.api.requests import parse_message
from airflow_provider_statecheck.checkpoint.codec import LONGEST_TEXT
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, FinishAttempt, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, FileStateHandle
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    RequestLimitError,
    StateCheckError,
)
from airflow_provider_statecheck.queryable.preview import preview
from airflow_provider_statecheck.state import bounded_process
from airflow_provider_statecheck.state.arrow import run_writer
from airflow_provider_statecheck.state.arrow.run_files import RunBytes
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.snapshot_reader import SnapshotReader, find_snapshot
from airflow_provider_statecheck.state.reading.state_reader import read_state
from airflow_provider_statecheck.state.source_items import Item, pack_items, unpack_items
from airflow_provider_statecheck.state.writing.canonical import rescale_max_parallelism
from airflow_provider_statecheck.storage.bounds import LARGEST_DECODED, bounded_decoding
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import LARGEST_METADATA, load_document
from airflow_provider_statecheck.storage.snapshot_manifest import footer_digest
from airflow_provider_statecheck.storage.stored_json import DEEPEST, MOST_VALUES, read_json
from tests.messages import make_owner, make_registration
from tests.soak import rest_in_soak
from tests.sqlite_rows import new_store
from tests.unit.written_stage import WrittenStage, local_path
from tests.written_state import BACKENDS, StatefulJob

MIB = 1024 * 1024
ATTEMPT = AttemptRef(job_id=job_id_of("a"), operator_id=operator_id_of("a"), epoch=1)


def _part(data: bytes, start: int, end: int) -> bytes:
    return data[start:end]


def _snapshot(tmp_path: Path, column: Any) -> SnapshotReader:
    """Write a snapshot whose file has a hostile column, in the manifest that its job writes."""
    stage = WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))
    attempt = stage.attempt()
    handle = stage.snapshot(attempt, "rows", rows=2)
    for name in ("part-0", "part-1"):
        path = local_path(f"{handle.uri}/data/{name}.parquet")
        pyarrow.parquet.write_table(pa.table({"_c0": [1, 2], "_c1": column}), path, compression="zstd")
    manifest = json.loads(local_path(f"{handle.uri}/_manifest").read_bytes())
    for file in manifest["files"]:
        uri = f"{handle.uri}/data/{file[0]}"
        data = local_path(uri).read_bytes()
        file[1], file[2] = len(data), footer_digest(partial(_part, data), uri, len(data))
    data = json.dumps(manifest).encode()
    local_path(f"{handle.uri}/_manifest").write_bytes(data)
    taken = stage.take(
        attempt, replace(handle, manifest_size=len(data), manifest_sha256=hashlib.sha256(data).hexdigest())
    )
    return SnapshotReader(stage.storage, find_snapshot(load_document(stage.storage, taken), "rows"))


def test_a_page_of_kilobytes_that_decodes_to_more_than_a_server_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_process, "MEMORY_BYTES", 32 * MIB)
    reader = _snapshot(tmp_path, ["a" * 100 * MIB, "b"])
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.parquet")) < 100_000
    with bounded_decoding(), pytest.raises(RequestLimitError, match="bytes of memory"):
        preview(reader, 20, 4 * MIB)


def test_ordinary_rows_are_previewed_equally_in_a_bounded_process_and_without(tmp_path):
    reader = _snapshot(tmp_path, ["Zürich", None])
    plain = preview(reader, 3, 4 * MIB)
    with bounded_decoding():
        assert preview(reader, 3, 4 * MIB) == plain
    assert (len(plain.rows), plain.has_more) == (3, True)


def test_an_error_in_the_bounded_process_is_the_error_of_the_reader(tmp_path):
    reader = _snapshot(tmp_path, ["a", "b"])
    for path in tmp_path.rglob("*.parquet"):
        path.write_bytes(b"x" * path.stat().st_size)
    with bounded_decoding(), pytest.raises(CorruptStateError):
        preview(reader, 3, 4 * MIB)


def test_a_state_value_that_declares_more_than_a_server_reads_is_refused_and_a_driver_reads_it(tmp_path):
    job = StatefulJob(
        CheckpointStorage.open(tmp_path.as_uri()), BACKENDS["arrow"](), [ValueStateDescriptor("value", str)]
    )
    job.open(1)
    job.state("ann", "value").update("a" * 80 * MIB)
    pointer = job.save()
    job.close()
    with bounded_decoding(), pytest.raises(RequestLimitError, match="declared"):
        read_state(pointer, "value").read_all()
    assert read_state(pointer, "value").read_all().num_rows == 1


def test_a_row_group_of_kilobytes_that_decodes_to_more_than_a_server_has_is_refused(monkeypatch):
    monkeypatch.setattr(bounded_process, "MEMORY_BYTES", 32 * MIB)
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"value": ["a" * MIB] * 500}), sink, compression="zstd")
    data = bytes(sink.getvalue())
    assert len(data) < 10_000
    metadata = pyarrow.parquet.read_metadata(pa.BufferReader(data))
    with pytest.raises(RequestLimitError, match="bytes of memory"):
        run_writer.read_elsewhere(metadata, 0, 4, data[4:])


@pytest.mark.parametrize("size", [1000, 80 * MIB])
def test_a_canonical_savepoint_is_decoded_by_a_server_within_its_bound_and_by_a_driver_in_any_size(tmp_path, size):
    job = StatefulJob(
        CheckpointStorage.open(tmp_path.as_uri()), BACKENDS["arrow"](), [ValueStateDescriptor("value", str)]
    )
    job.open(1)
    job.state("ann", "value").update("a" * size)
    states = CheckpointStates.load(job.save())
    job.close()
    pointer = f"{tmp_path.as_uri()}/savepoint"
    rescale_max_parallelism(states.storage, states.document, directory=pointer, max_parallelism=64)
    plain = read_state(pointer, "value").read_all()
    with bounded_decoding():
        if size > LARGEST_DECODED:
            with pytest.raises(RequestLimitError, match="bytes of memory"):
                read_state(pointer, "value").read_all()
        else:
            assert read_state(pointer, "value").read_all().equals(plain)
    assert plain.num_rows == 1


def test_reads_of_canonical_savepoints_beyond_those_that_a_server_decodes_at_once_are_to_be_sent_again(monkeypatch):
    monkeypatch.setattr(run_writer, "WAIT_SECONDS", 0.01)
    with run_writer.ELSEWHERE, run_writer.ELSEWHERE, pytest.raises(RequestLimitError) as refused:
        run_writer.read_elsewhere(None, 0, 4, b"")
    assert refused.value.retry_after_seconds is not None


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b"[" + b"[]," * MOST_VALUES + b"[]]",
        b"9" * 30,
        b"-" + b"9" * 21,
        b"1e999",
        b"NaN",
        b"[Infinity]",
        b"\xff",
        b"",
    ],
    ids=range(11),
)
def test_json_beyond_the_bounds_is_corrupt(text):
    with pytest.raises(CorruptStateError):
        read_json(text, "file:///x")


def test_a_listing_of_a_source_that_inflates_to_more_than_a_server_reads_is_refused():
    for packed in (
        {"names": zlib.compress(bytes(70 * MIB)), "sizes": zlib.compress(bytes(8)), "digests": bytes(8)},
        {"names": zlib.compress(b"a"), "sizes": zlib.compress(bytes(4 * MIB)), "digests": b""},
    ):
        with bounded_decoding(), pytest.raises(RequestLimitError):
            unpack_items(packed)
    items = tuple(Item.of(str(i), 1, 1) for i in range(1000))
    with bounded_decoding():
        assert unpack_items(pack_items(items)) == items


def test_names_of_a_listing_are_counted_before_they_are_split():
    packed = pack_items([Item.of("a", 1, 1)])
    inflating = {**packed, "names": zlib.compress(bytes(3 * MIB), 9)}
    for wrong in (inflating, {**packed, "digests": b""}, {**inflating, "digests": b""}):
        tracemalloc.start()
        try:
            with bounded_decoding(4 * MIB), pytest.raises(CorruptStateError):
                unpack_items(wrong)
            assert tracemalloc.get_traced_memory()[1] < 12 * MIB
        finally:
            tracemalloc.stop()


def _sparse(tmp_path, size):
    path = tmp_path / "state"
    with path.open("wb") as file:
        file.truncate(size)
    return CheckpointStorage.open(tmp_path.as_uri()), FileStateHandle(path.as_uri(), size, "")


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 400 * MIB)],
        [(0, 1), (1, 65 * MIB)],
        [(i * 40 * MIB, 40 * MIB) for i in range(10)],
        [(0, 40 * MIB)] * 10,
        [(i * 100_000, 99_000) for i in range(4000)],
        [(0, 2 * MIB)] * 100,
    ],
    ids=["one", "second", "together", "the same", "coalesced", "overlapping"],
)
@pytest.mark.parametrize("is_inline", [False, True])
def test_pieces_of_state_that_are_too_large_for_a_server_are_refused_before_they_are_read(
    tmp_path, monkeypatch, pieces, is_inline
):
    storage, handle = _sparse(tmp_path, 400 * MIB)
    handle = ByteStreamStateHandle("x", b"few bytes") if is_inline else handle
    monkeypatch.setattr(CheckpointStorage, "reading", lambda *_: pytest.fail("read"))
    with bounded_decoding(), pytest.raises(RequestLimitError, match="declared"):
        RunBytes(storage).read(handle, pieces)


def test_a_server_reads_a_look_up_of_64_ordinary_blocks_and_a_driver_any(tmp_path):
    storage, handle = _sparse(tmp_path, 70 * MIB)
    files = RunBytes(storage)
    with bounded_decoding():
        assert sum(map(len, files.read(handle, [(i * (MIB + 500), MIB + 500) for i in range(64)]))) == 64 * (MIB + 500)
    assert list(map(len, files.read(handle, [(0, 65 * MIB)]))) == [65 * MIB]


def test_json_within_the_bounds_is_read_as_it_is():
    values: tuple[Any, ...] = ({"a": ["[" * 1000, '\\"[[', 2**63 - 1, -(2**63), 0.1, None]}, [[]] * 1000, "[" * 1000)
    for value in values:
        assert read_json(json.dumps(value).encode(), "file:///x") == value
    deep: Any = 1
    for _ in range(DEEPEST):
        deep = [deep]
    assert read_json(json.dumps(deep).encode(), "file:///x") == deep


@pytest.mark.parametrize("value", rest_in_soak([b'{"a":1}', b"[]", b'"\xf0\x9f\x94\xa5"', b"1.5", b"12345678"], b"[]"))
def test_json_within_the_bounds_takes_less_memory_than_a_server_has(value):
    most = (MOST_VALUES - 1) // (1 + value.count(b"{") + value.count(b"["))
    text = b"[" + b",".join([value] * min(most, LARGEST_METADATA // (len(value) + 1))) + b"]"
    tracemalloc.start()
    read_json(text, "file:///x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300 * MIB


def test_a_message_of_many_small_values_costs_no_seconds():
    began = time.process_time()
    for values in ("[" + "1," * 400_000 + "1]", "[" + "[]," * 300_000 + "[]]", "[" * 5000 + "]" * 5000):
        body = f'{{"attempt": {values}, "request_key": "{new_key()}"}}'.encode()
        with pytest.raises(InvalidConfigurationError, match="too many values"):
            parse_message(TriggerCheckpoint, body, 65_536)
    assert time.process_time() - began < 1


_LONG = 300_000
_UNENDED = [b'"', b'\\"', b'"a"', b'"\\', b'{"a":"']


@pytest.mark.parametrize("end", [b"", b"\\", b'"'])
@pytest.mark.parametrize("piece", _UNENDED)
def test_a_text_in_json_without_an_end_is_searched_once(piece, end):
    """A search that begins anew at each quote would take the server minutes, with its lock held."""
    nested = b"[" * (DEEPEST + 1) + b'"'
    with pytest.raises(CorruptStateError):
        read_json(nested + piece * (_LONG // len(piece)) + end, "file:///x")
    with pytest.raises(InvalidConfigurationError):
        parse_message(TriggerCheckpoint, nested + piece * (_LONG // len(piece)) + end, 2 * _LONG)


_ADDRESSES = [
    "://a:",
    "abfs://",
    "abfs://a@",
    "://a:1/",
    "://a:1",
    "?a=",
    "?pass='",
    ";",
    "?",
    "=?=",
    "@",
    "://@",
    "?key={",
]


@pytest.mark.parametrize("piece", rest_in_soak(_ADDRESSES, "://a:", "abfs://", "?pass='"))
def test_addresses_in_a_message_of_a_task_are_searched_once(piece):
    text = piece * (_LONG // len(piece))
    for each in (text, f"{text}@", f"?key={text}", f"{text}\n{text}"):
        attempt = FinishAttempt(attempt=ATTEMPT, status=AttemptStatus.FAILED, message=each)
        assert len(str(attempt.message)) <= LONGEST_TEXT


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": make_owner(label="x" * 800_000)},
        {"owner": make_owner(clear_marker="x" * 800_000)},
        {"storage_base": f"memory://{'x' * 800_000}"},
    ],
    ids=["label", "marker", "directory"],
)
def test_texts_of_hundreds_of_kilobytes_are_not_stored(changes):
    store = new_store()
    with pytest.raises(StateCheckError):
        AttemptCoordinator(store).register(make_registration(**changes))
    assert store.jobs() == ()


@pytest.mark.parametrize(
    ("fits", "exceeds", "told"),
    [
        ({"storage_base": f"memory://{'x' * 16_375}"}, {"storage_base": f"memory://{'x' * 16_376}"}, "16384"),
        ({"owner": make_owner(label="x" * 261_000)}, {"owner": make_owner(label="x" * 262_144)}, "262144"),
    ],
    ids=["text", "json"],
)
def test_a_row_has_texts_up_to_the_bound_and_no_longer_ones(fits, exceeds, told):
    coordinator = AttemptCoordinator(new_store())
    assert coordinator.register(make_registration(**fits)).attempt.epoch == 1
    with pytest.raises(InvalidConfigurationError, match=f"at most {told} characters"):
        coordinator.register(make_registration(**exceeds))
