"""Canonical savepoints: Parquet that other tools read, and state that any backend restores at any parallelism."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, SavepointFormat
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    streams_of,
)
from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    CorruptStateError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.state.arrow.restore import restored_files
from airflow_provider_statecheck.state.arrow.run_files import RunFile, decode_meta, encode_meta
from airflow_provider_statecheck.state.backends import ArrowStateBackend, FsStateBackend
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading import state_reader
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.diff_states import diff_states
from airflow_provider_statecheck.state.reading.state_reader import StateReader, read_state
from airflow_provider_statecheck.state.serializers.serializer import AS_IS, Compatibility
from airflow_provider_statecheck.state.writing.canonical import write_savepoint
from airflow_provider_statecheck.state.writing.canonical_files import KeyedFiles
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, decode_metadata
from airflow_provider_statecheck.storage.pointers import WrittenSavepoint
from airflow_provider_statecheck.storage.views.state_files import read_state as read_file
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.soak import rest_in_soak
from tests.written_state import EACH_BACKEND, GROUPS, SMALL, StatefulJob

BACKENDS: dict[str, Callable[[], Any]] = {"arrow": ArrowStateBackend, "fs": FsStateBackend}
TTL = StateTtlConfig(timedelta(seconds=100))
DAY = timedelta(days=1)
NAMES = ("value", "account", "tags", "amounts", "total", "mean", "seen", "seen_tags", "sketch")
KEYS = KeySerializer((KeyField("key_group", pa.string()), KeyField("day", pa.date32()), KeyField("Value", pa.int8())))


@dataclass
class Account:
    balance: float
    opened: time
    note: str | None = None


class Words:
    """Serializer of the user."""

    class_id = "words"

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def serialize(self, value: list[str]) -> bytes:
        return ",".join(value).encode()

    def deserialize(self, data: bytes) -> list[str]:
        return data.decode().split(",")


class WordsOfAnyVersion(Words):
    def resolve_compatibility(self, old: Any) -> Compatibility:
        return AS_IS


class Mean:
    def create_accumulator(self) -> tuple[int, float]:
        return (0, 0.0)

    def add(self, value: float, accumulator: tuple[int, float]) -> tuple[int, float]:
        return (accumulator[0] + 1, accumulator[1] + value)

    def get_result(self, accumulator: tuple[int, float]) -> float:
        return accumulator[1] / accumulator[0]

    def merge(self, a: tuple[int, float], b: tuple[int, float]) -> tuple[int, float]:
        return (a[0] + b[0], a[1] + b[1])


def plus(a: int, b: int) -> int:
    return a + b


DESCRIPTORS: list[Any] = [
    ValueStateDescriptor("value", int),
    ValueStateDescriptor("account", Account),
    ListStateDescriptor("tags", str),
    MapStateDescriptor("amounts", str, Decimal),
    ReducingStateDescriptor("total", plus, int),
    AggregatingStateDescriptor("mean", Mean(), tuple[int, float]),
    ValueStateDescriptor("seen", int, ttl=TTL),
    ListStateDescriptor("seen_tags", str, ttl=TTL),
    ValueStateDescriptor("sketch", Words()),
]


@pytest.fixture(params=EACH_BACKEND)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(tmp_path.as_uri())


@pytest.fixture
def make_job(storage: CheckpointStorage) -> Iterator[Callable[..., StatefulJob]]:
    """Return a function that makes a job, which may restore the savepoint with a pointer."""
    with contextlib.ExitStack() as stack:

        def make(
            descriptors: list[Any] = DESCRIPTORS, backend: str = "arrow", pointer: str = "", **options: Any
        ) -> StatefulJob:
            allowed = storage.allowing(pointer) if pointer else storage
            made = StatefulJob(allowed, BACKENDS[backend](), descriptors, **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def job(backend: str, make_job: Callable[..., StatefulJob]) -> StatefulJob:
    return make_job(backend=backend)


@pytest.fixture
def arrow_job(make_job: Callable[..., StatefulJob]) -> StatefulJob:
    return make_job()


def operator_of(pointer: str) -> OperatorState:
    return CheckpointStates.load(pointer).document.operator_states[0]


def filled(job: StatefulJob, keys: int = 12, parallelism: int = 3) -> str:
    """Fill the state over two checkpoints, and return the pointer to the second one."""
    job.open(parallelism)
    for number in range(keys):
        update(job, number)
    job.save()
    job.now_ms += 1000
    for number in range(0, keys, 3):
        job.state(f"key {number}", "value").update(number + 100)
        job.state(f"key {number}", "seen").update(number + 100)
    job.state("key 1", "value").clear()
    job.state("key 2", "value", "window").update(7)
    return job.save()


def update(job: StatefulJob, number: int) -> None:
    key = f"key {number}"
    job.state(key, "value").update(number)
    job.state(key, "account").update(Account(number / 2, time(1, 2, 3, number), None if number % 2 else "even"))
    job.state(key, "tags").update([f"{key}-{i}" for i in range(number % 3)])
    job.state(key, "amounts").put("x", Decimal(number))
    job.state(key, "amounts").put("y", None)
    for value in (number, 1):
        job.state(key, "total").add(value)
        job.state(key, "mean").add(float(value))
    job.state(key, "seen").update(number)
    job.state(key, "seen_tags").update([key, "and more"])
    job.state(key, "sketch").update([key, "word"])


def content(job: StatefulJob, keys: int = 12) -> dict[str, Any]:
    """Return what functions read of each key."""
    return {
        key: (
            job.state(key, "value").value(),
            job.state(key, "account").value(),
            list(job.state(key, "tags").get() or ()),
            dict(job.state(key, "amounts").entries()),
            job.state(key, "total").get(),
            job.state(key, "mean").get(),
            job.state(key, "seen").value(),
            list(job.state(key, "seen_tags").get() or ()),
            job.state(key, "sketch").value(),
            job.state(key, "value", "window").value(),
        )
        for key in (f"key {number}" for number in range(keys))
    }


def save(
    pointer: str, kind: SavepointFormat = SavepointFormat.CANONICAL, storage: Any = None, name: str = "0" * 12
) -> WrittenSavepoint:
    states = CheckpointStates.load(pointer)
    return write_savepoint(
        storage or states.storage,
        states.document,
        directory=directory_of(pointer, name),
        checkpoint_id=99,
        properties=CheckpointProperties.for_savepoint(savepoint_format=kind),
    )


def directory_of(pointer: str, name: str = "0" * 12) -> str:
    return f"{pointer.rpartition('/')[0]}/savepoint-000000-{name}"


def savepoint(pointer: str, kind: SavepointFormat = SavepointFormat.CANONICAL) -> str:
    save(pointer, kind)
    return directory_of(pointer)


def files_of(pointer: str, name: str = "*") -> list[Path]:
    """Return the Parquet files of the keyed states of a savepoint."""
    return sorted(Path(pointer.removeprefix("file://")).glob(f"state/*/keyed/{name}-*/*.parquet"))


def shown(pointer: str, name: str, **options: Any) -> list[dict[str, Any]]:
    return by_key(read_state(pointer, name, namespaces=True, with_times=True, **options).read_all().to_pylist())


def by_key(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["account"], row["namespace"], row.get("map_key", "")))


def with_duckdb(paths: list[Path]) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(f"SELECT * FROM read_parquet({list(map(str, paths))})").to_arrow_table()
    return found.to_pylist()  # type: ignore[no-any-return]


def with_polars(paths: list[Path]) -> list[dict[str, Any]]:
    return polars.read_parquet(paths).to_dicts()


@pytest.mark.parametrize("read", [with_duckdb, with_polars])
def test_other_tools_read_each_state(job: StatefulJob, read: Callable[[list[Path]], Any]) -> None:
    pointer = savepoint(filled(job))
    for name in NAMES:
        require_equal(read, pointer, name)


def require_equal(read: Callable[[list[Path]], Any], pointer: str, name: str) -> None:
    rows = by_key(read(files_of(pointer, name)))
    expected = shown(pointer, name)
    assert {row["key_group"] for row in rows} <= set(range(GROUPS))
    columns = [column for column in expected[0] if column not in {"value", "map_value"}]
    assert [{c: row[c] for c in columns} for row in rows] == [{c: row[c] for c in columns} for row in expected]
    value = "map_value" if name == "amounts" else "value"
    assert [as_text(row[value]) for row in rows] == [as_text(row[value]) for row in expected]


def as_text(value: Any) -> str:
    # Spark has no type for times of day, so that they are text.
    return json.dumps(
        value, default=lambda part: part.isoformat("microseconds") if isinstance(part, time) else str(part)
    )


def test_columns_are_those_of_the_user_with_the_time_of_expiry(job: StatefulJob) -> None:
    pointer = savepoint(filled(job))
    names = {name: pq.read_schema(files_of(pointer, name)[0]).names for name in ("amounts", "seen", "seen_tags")}
    assert names == {
        "amounts": ["key_group", "account", "namespace", "map_key", "map_value"],
        "seen": ["key_group", "account", "namespace", "value", "last_access", "expires_at"],
        "seen_tags": ["key_group", "account", "namespace", "value", "last_access", "expires_at"],
    }
    [row] = [row for row in with_polars(files_of(pointer, "seen")) if row["account"] == "key 3"]
    assert row["expires_at"] - row["last_access"] == timedelta(seconds=100)
    [row] = [row for row in with_polars(files_of(pointer, "seen_tags")) if row["account"] == "key 3"]
    assert [b - a for a, b in zip(row["last_access"], row["expires_at"], strict=True)] == [timedelta(seconds=100)] * 2


def test_file_describes_its_state(job: StatefulJob) -> None:
    pointer = savepoint(filled(job))
    described = json.loads(pq.read_schema(files_of(pointer, "tags")[0]).metadata[b"statecheck"])
    assert (described["uid"], described["number_of_key_groups"]) == ("stage/balance", GROUPS)
    assert [(state["name"], state["kind"]) for state in described["schemas"]["keyed"]] == [("tags", "list")]
    assert described["schemas"]["key"]["config"] == {"fields": [{"name": "account", "type": "string"}]}


def test_file_is_found_by_the_uid_and_the_name_of_the_state(job: StatefulJob) -> None:
    pointer = savepoint(filled(job))
    names = [file.relative_to(pointer.removeprefix("file://")).as_posix() for file in files_of(pointer, "value")]
    readable = [name.split("/")[1].startswith("stage_balance-") for name in names]
    assert (len(names), set(readable)) == (3, {True})
    assert [name.rpartition("/")[2] for name in names] == [f"1-0000{i}-00000.parquet" for i in range(3)]


@pytest.mark.parametrize("target", sorted(BACKENDS))
@pytest.mark.parametrize("parallelism", rest_in_soak([1, 4], 4))
def test_any_backend_restores_it_at_any_parallelism(
    job: StatefulJob, storage: CheckpointStorage, target: str, parallelism: int, make_job: Callable[..., StatefulJob]
) -> None:
    checkpoint = filled(job)
    expected = content(job)
    pointer = savepoint(checkpoint)
    heir = make_job(DESCRIPTORS, target, pointer, job_name="heir", now_ms=job.now_ms)
    heir.open(parallelism, operator_of(pointer))
    assert content(heir) == expected
    heir.state("key 4", "value").update(-4)
    heir.state("key 5", "tags").clear()
    later = heir.save()
    again = make_job(DESCRIPTORS, target, pointer, job_name="again", now_ms=job.now_ms)
    again.open(2, CheckpointStates.of(heir.storage, later).document.operator_states[0])
    assert content(again) == expected | {
        "key 4": (-4, *expected["key 4"][1:]),
        "key 5": (*expected["key 5"][:2], [], *expected["key 5"][3:]),
    }
    save(later, storage=heir.storage)
    assert shown(directory_of(later), "amounts") == shown(pointer, "amounts")


@pytest.mark.parametrize("target", sorted(BACKENDS))
def test_state_without_a_descriptor_is_carried_on(
    job: StatefulJob, make_job: Callable[..., StatefulJob], target: str
) -> None:
    pointer = savepoint(filled(job))
    heir = make_job(DESCRIPTORS[:1], target, pointer, job_name="heir")
    heir.open(2, operator_of(pointer))
    heir.state("key 4", "value").update(-4)
    later = heir.save()
    assert shown(later, "tags", allowed_locations=[pointer]) == shown(pointer, "tags")


def test_values_expire_after_a_restore(job: StatefulJob, make_job: Callable[..., StatefulJob]) -> None:
    pointer = savepoint(filled(job))
    heir = make_job(DESCRIPTORS, "arrow", pointer, now_ms=job.now_ms - 1000 + 100_000)
    heir.open(2, operator_of(pointer))
    assert [heir.state(f"key {i}", "seen").value() for i in (2, 3)] == [None, 103]


@pytest.mark.parametrize("target", ["fs", "arrow"])
def test_native_savepoint_has_the_files_of_the_backend(
    job: StatefulJob, backend: str, make_job: Callable[..., StatefulJob], target: str
) -> None:
    checkpoint = filled(job)
    expected = content(job)
    pointer = savepoint(checkpoint, SavepointFormat.NATIVE)
    before, after = CheckpointStates.load(checkpoint).document, CheckpointStates.load(pointer).document
    assert digests(after) == digests(before)
    assert after.operator_states[0].state_size == before.operator_states[0].state_size
    if backend != "arrow" and target == "arrow":
        return
    heir = make_job(DESCRIPTORS, target, pointer, job_name="heir", now_ms=job.now_ms)
    heir.open(2, after.operator_states[0])
    assert content(heir) == expected


def digests(document: CheckpointDocument) -> list[str]:
    return [s.sha256 for state in document.operator_states for s in streams_of(state) if isinstance(s, FileStateHandle)]


def test_savepoint_equals_the_checkpoint(job: StatefulJob) -> None:
    checkpoint = filled(job)
    pointer = savepoint(checkpoint)
    for name in NAMES:
        assert shown(pointer, name) == shown(checkpoint, name)
        assert diff_states(checkpoint, pointer, name, namespaces=True).read_all().num_rows == 0
    assert CheckpointStates.load(pointer).document.relocatable


def test_row_group_has_one_key_group_and_rows_are_sorted(job: StatefulJob) -> None:
    for file in files_of(savepoint(filled(job, 60)), "value"):
        parquet = pq.ParquetFile(file)
        groups = [parquet.read_row_group(number) for number in range(parquet.num_row_groups)]
        assert all(len(set(rows["key_group"].to_pylist())) == 1 for rows in groups)
        rows = [tuple(row.values())[:3] for row in parquet.read().to_pylist()]
        assert rows == sorted(rows)


def test_range_of_key_groups_reads_only_its_row_groups(arrow_job: StatefulJob) -> None:
    pointer = savepoint(filled(arrow_job, 60, parallelism=1))
    states = CheckpointStates.load(pointer)
    [file] = files_of(pointer, "value")
    data = bytearray(file.read_bytes())
    row_groups = pq.read_metadata(file)
    for number in range(1, row_groups.num_row_groups):
        data[row_groups.row_group(number).column(0).data_page_offset + 40] ^= 1
    file.write_bytes(data)
    reader = StateReader(states.storage, states.content("value"), namespaces=True)
    assert sum(table.num_rows for table in reader.tables(KeyGroupRange(0, 0))) == row_groups.row_group(0).num_rows
    with pytest.raises(CorruptStateError, match="of state value"):
        list(reader.tables(KeyGroupRange(1, 1)))


@pytest.mark.parametrize("target", sorted(BACKENDS))
@pytest.mark.parametrize("damage", ["row group", "footer", "truncated"])
def test_damaged_file_is_refused(
    arrow_job: StatefulJob, make_job: Callable[..., StatefulJob], damage: str, target: str
) -> None:
    pointer = savepoint(filled(arrow_job))
    for file in files_of(pointer):
        data = bytearray(file.read_bytes())
        data[{"row group": 30, "footer": -20, "truncated": 0}[damage]] ^= damage != "truncated"
        file.write_bytes(data[:-10] if damage == "truncated" else data)
    heir = make_job(DESCRIPTORS, target, pointer, job_name="heir")

    def read() -> None:
        heir.open(2, operator_of(pointer))
        content(heir)

    with pytest.raises((CorruptStateError, BackendRestoreError), match="corrupt") as caught:
        read()
    assert any(str(file) in str(caught.value) for file in files_of(pointer))


@pytest.mark.parametrize("target", sorted(BACKENDS))
@pytest.mark.parametrize(
    "forge",
    [
        lambda part, data: replace(part, footer=(0, 100, zlib.crc32(data[:100]))),
        lambda part, _: replace(part, footer=(0, 1 << 62, 0)),
        lambda part, _: replace(part, footer=(0, -1, 0)),
        lambda part, _: replace(part, footer=("0", "1", "2")),
        lambda part, _: replace(part, footer=(1,)),
        lambda part, _: replace(part, schema=part.schema.append(pa.field("more", pa.int64()))),
        lambda part, data: _at(part, data, int(part.offsets[0]) + 1),
    ],
)
def test_forged_description_is_refused(
    arrow_job: StatefulJob, make_job: Callable[..., StatefulJob], forge: Callable[[Any, bytes], Any], target: str
) -> None:
    arrow_job.descriptors = DESCRIPTORS[:1]
    arrow_job.open(1)
    arrow_job.state("key 0", "value").update(1)
    pointer = savepoint(arrow_job.save())
    [file] = files_of(pointer)
    operator = operator_of(pointer)
    [handle] = operator.subtask_states[0].managed_keyed
    assert isinstance(handle, KeyedStateHandle)
    assert isinstance(handle.meta, ByteStreamStateHandle)
    meta = decode_meta(handle.meta.data, dict(handle.shared), "")
    [files] = meta.states
    forged = replace(meta, states=(replace(files, runs=((forge(files.runs[0][0], file.read_bytes()),),)),))
    handle = replace(handle, meta=ByteStreamStateHandle("forged", encode_meta(forged)))
    heir = make_job(DESCRIPTORS[:1], target, pointer, job_name="heir")

    def read() -> None:
        heir.open(1, operator.put_state(0, OperatorSubtaskState(managed_keyed=(handle,))))
        heir.state("key 0", "value").value()

    with pytest.raises((CorruptStateError, BackendRestoreError), match="restore from another checkpoint"):
        read()


def _at(part: Any, data: bytes, offset: int) -> Any:
    blocks = part.blocks.copy()
    blocks["offset"] = offset
    blocks["checksum"] = zlib.crc32(data[offset : offset + int(blocks["length"][0])])
    return replace(part, blocks=blocks)


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_conversion_that_failed_at_any_call_is_completed_by_the_next(job: StatefulJob, mode: FaultMode) -> None:
    job.descriptors = DESCRIPTORS[:1]
    job.open(2)
    for number in range(4):
        job.state(f"key {number}", "value").update(number)
    checkpoint = job.save()
    storage = CheckpointStates.load(checkpoint).storage
    save(checkpoint, name="f" * 12)
    expected = contents(storage, directory_of(checkpoint, "f" * 12))
    for point in range(1, 200):
        name, plan = f"{point:012x}", FaultPlan(point, mode)
        try:
            save(checkpoint, storage=faulty_storage(storage, plan), name=name)
        except StateCheckError:
            assert not storage.exists(f"{directory_of(checkpoint, name)}/_metadata") or mode is FaultMode.REPLY_LOST
            save(checkpoint, name=name)
            assert contents(storage, directory_of(checkpoint, name)) == expected
            continue
        assert len(plan.calls) < point
        return
    pytest.fail("expected a run without a fault")


def contents(storage: CheckpointStorage, directory: str) -> dict[str, bytes]:
    names = storage.list_files(directory).keys() - {"_metadata"}
    return {name: storage.read_bytes(f"{directory}/{name}") for name in names}


def test_savepoint_that_is_written_again_is_the_same(job: StatefulJob) -> None:
    checkpoint = filled(job)
    assert save(checkpoint) == save(checkpoint)


def test_size_is_that_of_the_written_state(job: StatefulJob) -> None:
    checkpoint = filled(job)
    size = save(checkpoint).state_size_bytes
    [operator] = CheckpointStates.load(directory_of(checkpoint)).document.operator_states
    assert size == sum(
        each.state_size for subtask in operator.subtask_states.values() for each in subtask.managed_keyed
    )
    assert size > sum(file.stat().st_size for file in files_of(directory_of(checkpoint))) > 0


def test_file_of_another_writer_is_not_replaced(job: StatefulJob) -> None:
    checkpoint = filled(job)
    [first, *_] = files_of(savepoint(checkpoint), "value")
    Path(f"{directory_of(checkpoint)}/_metadata".removeprefix("file://")).unlink()
    first.write_bytes(b"other")
    with pytest.raises(StorageError, match="two writers"):
        save(checkpoint)
    assert first.read_bytes() == b"other"


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.uint64(), (1 << 64) - 1, Decimal((1 << 64) - 1)),
        (pa.float16(), 0.5, 0.5),
        (pa.time32("s"), time(1, 2, 3), "01:02:03"),
        (pa.duration("ms"), timedelta(seconds=5), timedelta(seconds=5)),
        (pa.binary(4), b"four", b"four"),
        (pa.decimal32(5, 2), Decimal("1.50"), Decimal("1.50")),
        (pa.decimal128(5, -2), Decimal(12300), Decimal(12300)),
        (pa.list_(pa.null()), [None, None], [None, None]),
        (pa.list_(pa.time64("us")), [time(1, 2, 3, 4)], ["01:02:03.000004"]),
        (pa.map_(pa.string(), pa.uint8()), {"a": 255}, [("a", 255)]),
        (pa.struct([("t", pa.time64("us"))]), {"t": time(4)}, {"t": "04:00:00.000000"}),
    ],
    ids=lambda each: str(each) if isinstance(each, pa.DataType) else "",
)
@pytest.mark.parametrize("ttl", [None, TTL], ids=["", "ttl"])
def test_types_that_spark_lacks_are_stored_in_others_and_come_back(
    make_job: Callable[..., StatefulJob], kind: Any, value: Any, stored: Any, ttl: StateTtlConfig | None
) -> None:
    job = make_job([ValueStateDescriptor("odd", kind, ttl=ttl)])
    job.open(1)
    job.state("ann", "odd").update(value)
    pointer = savepoint(job.save())
    [file] = files_of(pointer, "odd")
    assert pq.ParquetFile(file).read().to_pylist()[0]["value"] == stored
    for backend in BACKENDS:
        heir = make_job(job.descriptors, backend, pointer, job_name="heir", now_ms=job.now_ms)
        heir.open(1, operator_of(pointer))
        assert heir.state("ann", "odd").value() == value


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.decimal256(60, -2), Decimal(100)), (pa.duration("s"), timedelta.max.days * DAY)]
)
def test_what_parquet_cannot_hold_is_refused(
    make_job: Callable[..., StatefulJob], monkeypatch: pytest.MonkeyPatch, kind: Any, value: Any
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    job = make_job([ValueStateDescriptor("odd", kind)])
    job.open(1)
    job.state("ann", "odd").update(value)
    pointer = job.save()
    with pytest.raises(UnsupportedStateError, match=r"found others: .* native"):
        save(pointer)
    gc.collect()
    assert unraisable == []


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_map_with_keys_of_a_narrow_decimal(make_job: Callable[..., StatefulJob], backend: str) -> None:
    job = make_job([MapStateDescriptor("odd", pa.decimal32(5, 2), int)], backend)
    job.open(1)
    for text in ("2.50", "-1.25", "10.00"):
        job.state("ann", "odd").put(Decimal(text), 1)
    pointer = savepoint(job.save())
    [file] = files_of(pointer)
    assert pq.read_table(file)["map_key"].to_pylist() == [Decimal("-1.25"), Decimal("2.50"), Decimal("10.00")]


def test_expiry_of_a_time_to_live_without_end_fits_its_column(make_job: Callable[..., StatefulJob]) -> None:
    job = make_job([ValueStateDescriptor("seen", int, ttl=StateTtlConfig(timedelta.max))])
    job.open(1)
    job.state("ann", "seen").update(1)
    [file] = files_of(savepoint(job.save()))
    [expiry] = pq.read_table(file)["expires_at"].cast(pa.int64()).to_pylist()
    assert expiry > 100_000 * timedelta(days=365) // timedelta(microseconds=1)


def test_names_of_key_columns_that_the_file_uses_get_a_prefix(make_job: Callable[..., StatefulJob]) -> None:
    job = make_job(DESCRIPTORS[:1], keys=KEYS)
    job.open(1)
    key = ("a", date(2026, 1, 2), 5)
    job.state(key, "value").update(1)
    pointer = savepoint(job.save())
    [file] = files_of(pointer, "value")
    group = KEYS.key_group_of(key, GROUPS)
    assert pq.ParquetFile(file).read().to_pylist() == [
        {"key_group": group, "key_key_group": "a", "day": key[1], "key_Value": 5, "namespace": "", "value": 1}
    ]


def test_large_key_group_has_several_row_groups(make_job: Callable[..., StatefulJob]) -> None:
    job = make_job([ValueStateDescriptor("text", str)], "fs", max_parallelism=1)
    job.open(1)
    for number in range(12):
        job.state(f"key {number:02}", "text").update("x" * (1 << 20))
    pointer = savepoint(job.save())
    [file] = files_of(pointer, "text")
    assert 2 < pq.read_metadata(file).num_row_groups < 12
    heir = make_job(job.descriptors, "arrow", pointer, max_parallelism=1)
    heir.open(1, operator_of(pointer))
    assert [len(heir.state(f"key {number:02}", "text").value()) for number in range(12)] == [1 << 20] * 12


def test_state_of_an_unknown_backend_is_refused(arrow_job: StatefulJob) -> None:
    filled(arrow_job)
    handle = KeyedStateHandle(backend_id="rocks", key_group_range=KeyGroupRange(0, GROUPS - 1), checkpoint_id=1)
    operator = OperatorState(
        operator_id=operator_id_of("stage/other"),
        uid="stage/other",
        parallelism=1,
        max_parallelism=GROUPS,
        subtask_states={0: OperatorSubtaskState(managed_keyed=(handle,))},
    )
    pointer = arrow_job.publish(operator)
    with pytest.raises(UnsupportedStateError, match=r"'stage/other'.*'rocks'.*native"):
        save(pointer)
    save(pointer, SavepointFormat.NATIVE, name="1" * 12)


def test_state_that_fails_to_convert_fails_the_savepoint_and_not_the_stage(
    arrow_job: StatefulJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = filled(arrow_job)

    def failing(*_: Any) -> Any:
        raise OverflowError("too large")

    monkeypatch.setattr(KeyedFiles, "write", failing)
    with pytest.raises(UnsupportedStateError, match=r"that fails: too large; take a native savepoint"):
        save(pointer)


def test_several_versions_of_a_serializer_of_the_user_are_refused(make_job: Callable[..., StatefulJob]) -> None:
    job = make_job([ValueStateDescriptor("sketch", Words())], "fs")
    job.open(1)
    job.state("ann", "sketch").update(["a"])
    old = job.operator().subtask_states[0].managed_keyed
    job.descriptors = [ValueStateDescriptor("sketch", Words(2))]
    job.open(1)
    job.state("bob", "sketch").update(["b"])
    new = job.operator()
    both = OperatorSubtaskState(managed_keyed=(*old, *new.subtask_states[0].managed_keyed))
    pointer = job.publish(new.put_state(0, both))
    with pytest.raises(UnsupportedStateError, match=r"'sketch'.*one version of its serializer"):
        save(pointer)


def test_several_versions_of_a_serializer_in_the_files_of_a_subtask_are_refused(storage: CheckpointStorage) -> None:
    job = StatefulJob(storage, ArrowStateBackend(SMALL), [ValueStateDescriptor("sketch", Words())])
    job.open(1)
    for number in range(50):
        job.state(f"key {number}", "sketch").update(["a"])
    job.save()
    job.descriptors = [ValueStateDescriptor("sketch", WordsOfAnyVersion(2))]
    job.open(1, CheckpointStates.of(storage, job.save()).document.operator_states[0])
    job.state("bob", "sketch").update(["b"])
    pointer = job.save()
    versions = {part.state.value.version for part in parts_of(storage, pointer)}
    assert versions == {1, 2}
    with pytest.raises(UnsupportedStateError, match=r"'sketch'.*one version of its serializer"):
        save(pointer)
    job.close()


def test_files_of_a_state_are_found_and_checked_once(
    make_job: Callable[..., StatefulJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job([ValueStateDescriptor("sketch", Words(), ttl=TTL)], "fs")
    job.open(1)
    job.state("ann", "sketch").update(["a"])
    pointer, calls = job.save(), list[Any]()

    def counted(*given: Any) -> Any:
        calls.append(given)
        return restored_files(*given)

    monkeypatch.setattr(state_reader, "restored_files", counted)
    save(pointer)
    assert len(calls) == 1


def parts_of(storage: CheckpointStorage, pointer: str) -> list[RunFile]:
    """Return the files of the first state."""
    [handle] = CheckpointStates.of(storage, pointer).document.operator_states[0].subtask_states[0].managed_keyed
    assert isinstance(handle, KeyedStateHandle)
    assert handle.meta is not None
    meta = decode_meta(read_file(storage, handle.meta), dict(handle.shared), "")
    return [part for run in meta.states[0].runs for part in run]


def test_raw_state_and_that_of_coordinators_is_copied(arrow_job: StatefulJob) -> None:
    filled(arrow_job)
    raw = OperatorStateHandle(
        (("_default_", OperatorStateMeta((0,), DistributionMode.SPLIT_DISTRIBUTE)),), ByteStreamStateHandle("r", b"raw")
    )
    operator = arrow_job.operator()
    subtask = replace(operator.subtask_states[0], raw_operator=(raw,))
    pointer = savepoint(arrow_job.publish(operator.put_state(0, subtask)))
    uri = f"{pointer}/_metadata"
    [copied] = decode_metadata(arrow_job.storage.read_bytes(uri), uri=uri).operator_states
    assert copied.subtask_states[0].raw_operator == (raw,)
    assert copied.coordinator_state == operator.coordinator_state
