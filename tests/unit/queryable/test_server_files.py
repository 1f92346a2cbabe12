"""Which bytes the state server reads, what it keeps in memory, and what it does with files that are damaged or gone."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyedStateHandle,
)
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    LocationNotAllowedError,
    RequestLimitError,
    StorageError,
    UnknownKvStateIdError,
)
from airflow_provider_statecheck.queryable import opened_state
from airflow_provider_statecheck.queryable.locations import KvStateAddress
from airflow_provider_statecheck.queryable.opened_state import StateCache
from airflow_provider_statecheck.queryable.proxy import KvStateServer
from airflow_provider_statecheck.queryable.queries import ABSENT, ValueLimit
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings, Block
from airflow_provider_statecheck.state.arrow.run_files import LocalFiles
from airflow_provider_statecheck.state.arrow.runs import FileRun
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import StateContent
from airflow_provider_statecheck.storage.views.state_files import read_state
from tests.unit.queryable.served import ServedJob
from tests.written_state import EACH_BACKEND, GROUPS

VALUE = ValueStateDescriptor("value", str)
MAP = MapStateDescriptor("map", int, str)
NUMBERS = range(400)
BY_NUMBER = KeySerializer((KeyField("id", pa.int64()),))
SMALL_BLOCKS = ArrowStateSettings(block_rows=4, part_bytes=4096)


def filled(directory: Path | str, **arguments: Any) -> ServedJob:
    served = ServedJob(directory, VALUE, keys=BY_NUMBER, **arguments)
    for number in NUMBERS:
        served.job.state(number, "value").update(f"value {number}")
    return served


def group_of(number: int) -> int:
    return BY_NUMBER.key_group_of(number, GROUPS)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def remote() -> str:
    return f"memory://served-{uuid.uuid4().hex}"


def data_reads(served: ServedJob, pointer: str) -> list[tuple[str, int, int]]:
    """Return the reads of state files, without those of metadata."""
    files = {uri for address, _ in served.addresses(pointer, "value") for uri in state_files(address.content.handles)}
    return [read for read in served.storage.reads if read[0] in files]


def state_files(handles: Any) -> Iterator[str]:
    for handle in handles:
        streams = [each for _, each in (*handle.shared, *handle.private)]
        yield from (stream.uri for stream in streams if isinstance(stream, FileStateHandle))


def test_one_key_is_one_read_of_one_block_and_none_if_it_is_cached(remote: str) -> None:
    served = filled(remote, backend=ArrowStateBackend(SMALL_BLOCKS))
    pointer = served.job.save()
    served.storage.reads.clear()
    assert served.get(pointer, "value", 7) == ["value 7"]
    ((_, start, end),) = data_reads(served, pointer)
    assert end - start < 2_000
    served.storage.reads.clear()
    assert served.get(pointer, "value", 7) == ["value 7"]
    assert data_reads(served, pointer) == []


@pytest.mark.parametrize("bytes_at_once", [1, 1 << 20])
def test_few_large_values_are_in_memory_at_once(
    remote: str, monkeypatch: pytest.MonkeyPatch, bytes_at_once: int
) -> None:
    names = [f"key {number}" for number in range(20)]
    served = ServedJob(remote, VALUE, MAP, backend=ArrowStateBackend(SMALL_BLOCKS), cache=StateCache(block_bytes=0))
    for name in names:
        served.job.state(name, "value").update(name)
        served.job.state(name, "map").put_all(dict.fromkeys(range(20), name))
    pointer = served.job.save()
    monkeypatch.setattr(opened_state, "BYTES_AT_ONCE", bytes_at_once)
    read: list[int] = []
    blocks = FileRun.blocks

    def counted(run: FileRun, numbers: Sequence[int]) -> dict[int, Block]:
        read.append(len(numbers))
        return blocks(run, numbers)

    monkeypatch.setattr(FileRun, "blocks", counted)
    assert served.get(pointer, "map", *names) == [dict.fromkeys(range(20), name) for name in names]
    assert (max(read) <= 6) is (bytes_at_once == 1)
    read.clear()
    assert served.get(pointer, "value", *names) == names
    # A single key needs no read of several blocks.
    assert bool(read) is (bytes_at_once > 1)


@pytest.mark.parametrize("name", ["value", "map"])
def test_values_above_a_limit_are_refused(tmp_path: Path, name: str) -> None:
    served = ServedJob(tmp_path, VALUE, MAP)
    served.job.state("ann", "value").update("abc")
    served.job.state("ann", "map").put_all({1: "abc", 2: "def"})
    pointer = served.job.save()
    address, key = served.address(pointer, name, "ann"), ("ann", served.job.keys.key_group_of("ann", GROUPS))
    served.server.read(address, [key], limit=ValueLimit(100))
    with pytest.raises(RequestLimitError, match="at most 5 bytes in memory"):
        served.server.read(address, [key], limit=ValueLimit(5))


def test_adjacent_blocks_share_a_read_and_each_is_read_once(remote: str) -> None:
    served = filled(remote, backend=ArrowStateBackend(SMALL_BLOCKS), cache=StateCache(block_bytes=0))
    pointer = served.job.save()
    group = group_of(0)
    keys = [number for number in NUMBERS if group_of(number) == group]
    served.storage.reads.clear()
    assert served.get(pointer, "value", *keys, *keys) == [f"value {number}" for number in (*keys, *keys)]
    assert len(keys) > 3 * SMALL_BLOCKS.block_rows
    assert len(data_reads(served, pointer)) <= 2, "the blocks of a key group are in one file, or in two"


def test_only_the_key_group_of_a_full_snapshot_is_read(remote: str) -> None:
    served = filled(remote, backend="fs")
    pointer = served.job.save()
    served.storage.reads.clear()
    assert served.get(pointer, "value", 7) == ["value 7"]
    served.storage.reads.clear()
    (neighbour,) = [n for n in NUMBERS[8:] if BY_NUMBER.key_group_of(n, GROUPS) == group_of(7)][:1]
    assert served.get(pointer, "value", neighbour) == [f"value {neighbour}"]
    assert data_reads(served, pointer) == []
    (handle,) = served.address(pointer, "value", 7).content.handles
    served.cache.blocks.clear()
    assert served.get(pointer, "value", 7) == ["value 7"]
    read = sum(end - start for _, start, end in data_reads(served, pointer))
    assert 0 < read < handle.state_size // 3


def test_files_that_checkpoints_share_keep_their_blocks(tmp_path: Path) -> None:
    served = filled(tmp_path, backend=ArrowStateBackend(SMALL_BLOCKS))
    first = served.job.save()
    assert served.get(first, "value", *NUMBERS) == [f"value {number}" for number in NUMBERS]
    served.job.state(0, "value").update("new")
    second = served.job.save()
    before = served.cache.blocks.nbytes
    assert served.get(second, "value", *NUMBERS)[:2] == ["new", "value 1"]
    added = served.cache.blocks.nbytes - before
    assert 0 < added < before // 20
    assert served.get(first, "value", 0) == ["value 0"]


@pytest.mark.parametrize("backend", ["fs", "arrow"])
def test_a_changed_byte_is_told_and_not_kept(tmp_path: Path, backend: str) -> None:
    served = filled(tmp_path, backend=backend)
    pointer = served.job.save()
    for address, _ in served.addresses(pointer, "value"):
        for uri in state_files(address.content.handles):
            path = Path(uri.removeprefix("file://"))
            data = bytearray(path.read_bytes())
            for at in range(len(data) // 2, len(data)):
                data[at] ^= 1
            path.chmod(0o644)
            path.write_bytes(data)
    outcomes = [outcome(served, pointer, number) for number in NUMBERS]
    assert set(outcomes) == {"right", "corrupt"}
    assert [outcome(served, pointer, number) for number in NUMBERS] == outcomes


def outcome(served: ServedJob, pointer: str, number: int) -> str:
    try:
        (found,) = served.get(pointer, "value", number)
    except CorruptStateError:
        return "corrupt"
    return "right" if found == f"value {number}" else "wrong"


@pytest.mark.parametrize("backend", ["fs", "arrow"])
def test_files_that_are_gone_are_an_unknown_state(tmp_path: Path, backend: str) -> None:
    served = filled(tmp_path, backend=backend)
    pointer = served.job.save()
    addresses = served.addresses(pointer, "value")
    for address, _ in addresses:
        for uri in state_files(address.content.handles):
            Path(uri.removeprefix("file://")).unlink()
    for address, groups in addresses:
        key = next(number for number in NUMBERS if group_of(number) in groups)
        with pytest.raises(UnknownKvStateIdError, match="look the location up again") as caught:
            served.server.read(address, [(key, group_of(key))])
        assert isinstance(caught.value.__cause__, CheckpointNotFoundError)
        assert caught.value.kv_state_id == address.kv_state_id


def test_other_errors_of_the_storage_stay_what_they_are(tmp_path: Path) -> None:
    served = filled(tmp_path)
    pointer = served.job.save()
    address = served.address(pointer, "value", 7)
    for uri in state_files(address.content.handles):
        path = Path(uri.removeprefix("file://"))
        path.unlink()
        path.symlink_to(path.name)
    with pytest.raises(StorageError, match="cannot be read") as caught:
        served.server.read(address, [(7, group_of(7))])
    assert not isinstance(caught.value, CorruptStateError)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_is_corrupt_and_is_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    served = filled(tmp_path)
    address = served.address(served.job.save(), "value", 7)
    for uri in state_files(address.content.handles):
        path = Path(uri.removeprefix("file://"))
        path.unlink()
        make(path)
    with pytest.raises(CorruptStateError):
        served.server.read(address, [(7, group_of(7))])


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_memory_stays_within_its_bounds(tmp_path: Path, backend: str) -> None:
    cache = StateCache(index_bytes=300_000, block_bytes=60_000)
    served = filled(tmp_path, backend=backend, cache=cache)
    for taken in range(5):
        served.job.state(taken, "value").update("new")
        pointer = served.job.save()
        for number in NUMBERS[::7]:
            expected = "new" if number <= taken else f"value {number}"
            assert served.get(pointer, "value", number) == [expected]
            assert 0 < cache.states.nbytes <= 300_000
            assert 0 < cache.blocks.nbytes <= 60_000


def test_what_exceeds_the_bounds_is_read_without_being_kept(tmp_path: Path) -> None:
    served = filled(tmp_path, cache=StateCache(index_bytes=0, block_bytes=0))
    pointer = served.job.save()
    assert served.get(pointer, "value", *NUMBERS) == [f"value {number}" for number in NUMBERS]
    assert (served.cache.states.nbytes, served.cache.blocks.nbytes) == (0, 0)


def test_bounds_below_0_are_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="0 bytes"):
        StateCache(index_bytes=-1)


def test_size_of_an_opened_state_is_about_its_memory(tmp_path: Path) -> None:
    served = ServedJob(tmp_path, VALUE, keys=BY_NUMBER, backend=ArrowStateBackend(ArrowStateSettings(block_rows=1)))
    for number in range(6_000):
        served.job.state(number, "value").update("x")
    pointer = served.job.save()
    address = served.address(pointer, "value", 7)
    group = group_of(7)
    served.server.read(address, [(7, group)])
    served.cache.clear()
    gc.collect()
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    served.server.read(address, [(7, group)])
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - arrow
    tracemalloc.stop()
    estimated = served.cache.states.nbytes + served.cache.blocks.nbytes
    assert used / 1.5 < estimated < used * 1.5


def test_removed_job_that_runs_again_is_not_answered_from_the_old_one(tmp_path: Path) -> None:
    served = filled(tmp_path)
    pointer = served.job.save()
    assert served.get(pointer, "value", 7) == ["value 7"]
    served.job.state(7, "value").update("other")
    served.job.taken -= 1
    assert served.job.save() == pointer
    served.look_up_again()
    assert served.get(pointer, "value", 7) == ["other"]


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_threads_read_at_once(tmp_path: Path, backend: str) -> None:
    served = filled(tmp_path, backend=backend, cache=StateCache(block_bytes=20_000))
    pointer = served.job.save()
    addresses = {number: served.address(pointer, "value", number) for number in NUMBERS}

    def read(number: int) -> bool:
        key = number, group_of(number)
        return served.server.read(addresses[number], [key]) == [f"value {number}"]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, [*NUMBERS, *reversed(NUMBERS)] * 3))


def test_cached_blocks_of_a_job_are_not_served_to_another(tmp_path: Path) -> None:
    cache = StateCache()
    victim = filled(tmp_path / "victim", cache=cache)
    known = victim.address(victim.job.save(), "value", 7)
    assert victim.server.read(known, [(7, group_of(7))]) == ["value 7"]
    attacker = filled(tmp_path / "attacker", cache=cache)
    pointer = attacker.job.save()
    forged = replace(attacker.address(pointer, "value", 7), content=forged_content(victim, known))
    with pytest.raises(LocationNotAllowedError, match="was not opened"):
        attacker.server.read(forged, [(7, group_of(7))])


def forged_content(victim: ServedJob, known: KvStateAddress) -> StateContent:
    """Return the content of an address with its metadata copied into the handle, so that only the files are foreign."""
    (handle,) = known.content.handles
    assert isinstance(handle, KeyedStateHandle)
    assert handle.meta is not None
    meta = ByteStreamStateHandle("meta", read_state(victim.storage, handle.meta))
    return replace(known.content, handles=(replace(handle, meta=meta),))


def test_threads_that_miss_a_block_share_its_read(remote: str) -> None:
    served = filled(remote, backend=ArrowStateBackend(SMALL_BLOCKS))
    pointer = served.job.save()
    address, group = served.address(pointer, "value", 7), group_of(7)
    served.server.read(address, [(7, group)])
    served.cache.blocks.clear()
    served.storage.reads.clear()
    inside, others_wait = threading.Event(), threading.Event()
    original = served.storage.read_range

    def slow(uri: str, start: int, end: int) -> bytes:
        inside.set()
        assert others_wait.wait(30)
        return original(uri, start, end)

    served.storage.read_range = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(served.server.read, address, [(7, group)])
        assert inside.wait(30)
        later = [pool.submit(served.server.read, address, [(7, group)]) for _ in range(3)]
        others_wait.set()
        assert [each.result() for each in (first, *later)] == [["value 7"]] * 4
    assert len(data_reads(served, pointer)) == 1


def test_open_files_are_bounded_and_evicted_ones_close_after_their_last_read(tmp_path: Path) -> None:
    files, before = LocalFiles(2), open_descriptors()
    uris = []
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 10)
        uris.append((tmp_path / str(number)).as_uri())
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: files.read(uris[n % 5], 2, 3), range(500))) == [
            bytes([n % 5]) * 3 for n in range(500)
        ]
    assert open_descriptors() - before <= 2
    files.close()
    assert open_descriptors() <= before


def test_a_file_that_opens_slowly_does_not_keep_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = tmp_path / "slow", tmp_path / "fast"
    slow.write_bytes(b"slow")
    fast.write_bytes(b"fast")
    files, before, pending, original = LocalFiles(2), open_descriptors(), [slow.as_uri(), fast.as_uri()], os.open
    others: list[bytes] = []

    def opened(path: str, flags: int) -> int:
        # Other threads open both files before the first one has opened the slow one.
        if pending:
            uris, pending[:] = list(pending), []
            others.extend(pool.submit(files.read, uri, 0, 4).result(timeout=30) for uri in uris)
        return original(path, flags)

    monkeypatch.setattr(os, "open", opened)
    with ThreadPoolExecutor(1) as pool:
        assert files.read(slow.as_uri(), 0, 4) == b"slow"
    assert others == [b"slow", b"fast"]
    assert open_descriptors() - before == 2
    files.close()


def test_a_large_map_is_read_from_several_blocks(tmp_path: Path) -> None:
    served = ServedJob(tmp_path, MapStateDescriptor("map", int, int), backend=ArrowStateBackend(SMALL_BLOCKS))
    for number in NUMBERS:
        served.job.state("ann", "map").put(number, number)
    served.job.save()
    for number in range(0, 400, 2):
        served.job.state("ann", "map").remove(number)
    served.job.state("bob", "map").put(1, 1)
    pointer = served.job.save()
    odd = {number: number for number in range(1, 400, 2)}
    assert served.get(pointer, "map", "ann", "bob", "eve") == [odd, {1: 1}, ABSENT]
    assert [served.get(pointer, "map", "ann", user_key=n)[0] for n in (1, 2, 399)] == [1, ABSENT, 399]


def test_columns_that_are_computed_for_searches_count(tmp_path: Path) -> None:
    plain, computed = (
        Block(pa.table({"key_group": pa.array([1] * 4096, pa.int32()), "k_id": keys, "value": pa.nulls(4096)}))
        for keys in (pa.array(range(4096), pa.int64()), pa.array(map(float, range(4096)), pa.float64()))
    )
    assert computed.cached_nbytes - plain.cached_nbytes == 4096 * 8


def test_servers_may_share_a_cache(tmp_path: Path) -> None:
    served = filled(tmp_path)
    pointer = served.job.save()
    assert served.get(pointer, "value", 7) == ["value 7"]

    def refused(pointer: str) -> Any:
        raise AssertionError(f"the state at {pointer} is opened already")

    other = KvStateServer(refused, served.cache)
    address = served.address(pointer, "value", 7)
    assert other.read(address, [(7, group_of(7))]) == ["value 7"]
