"""Partial results of a key are added up wherever they are read, whichever files they are in."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.states.assignment import handles_within
from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.state_runs import MOST_PARTIAL_RUNS, partial_runs_to_merge
from airflow_provider_statecheck.state.descriptors import PartialResultsDescriptor, ValueStateDescriptor
from tests.unit.state.arrow.harness import GROUPS, VALUE, Job

TOTAL = pa.struct([("n", pa.int64()), ("top", pa.float64())])
TOTALS = PartialResultsDescriptor("totals", TOTAL, (("n", "sum"), ("top", "max")))
ONE_FILE = ArrowStateSettings(block_rows=64)
TINY = ArrowStateSettings(block_rows=4, part_bytes=512, memtable_bytes=1024)


def add(job: Job, backend: ArrowKeyedStateBackend, keys: range, n: int, top: float = 0.0) -> None:
    batch = job.batch(keys)
    backend.batch_state(TOTALS).add(batch, pa.array([{"n": n, "top": top}] * len(batch), TOTAL))


def part(job: Job, keys: range, n: int, top: float = 0.0) -> KeyedStateHandle:
    """Return what a task without earlier state saves."""
    backend = job.open()
    add(job, backend, keys, n, top)
    return job.save(backend)


def totals(job: Job, *handles: KeyedStateHandle, owned: KeyGroupRange | None = None) -> dict[int, int]:
    """Return the sums that a scan finds, which those of single and of many look-ups must be."""
    backend = job.open(*handles, owned=owned)
    found: dict[int, int] = {}
    for keys, values in backend.scan(TOTALS):
        assert backend.batch_state(TOTALS).get(keys).to_pylist() == values.to_pylist()
        found |= dict(zip(job.listed(keys), values.field("n").to_pylist(), strict=True))
    for key in list(found)[:3]:
        backend.set_current_key(key)
        assert Job.state(backend, TOTALS).value()["n"] == found[key]
    return found


def replaced(job: Job, backend: ArrowKeyedStateBackend, n: int) -> ArrowKeyedStateBackend:
    """Set values as earlier code does, for a tenth as many keys."""
    batch = job.batch(range(n // 10))
    backend.batch_state(TOTALS).put(batch, pa.array([{"n": n, "top": 0.0}] * len(batch), TOTAL))
    return backend


def test_nothing_is_read_to_add(tmp_path: Path) -> None:
    job = Job(tmp_path)
    handle = part(job, range(100), 1)
    backend = job.open(handle)
    for file in (Path(stream.uri.removeprefix("file://")) for _, stream in handle.shared):  # type: ignore[union-attr]
        file.unlink()
    add(job, backend, range(100), 1)
    assert dict(job.save(backend).shared).keys() > dict(handle.shared).keys()


@pytest.mark.parametrize("settings", [ONE_FILE, TINY], ids=["one file", "many files"])
def test_parts_that_several_tasks_saved_are_added_up(tmp_path: Path, settings: ArrowStateSettings) -> None:
    job = Job(tmp_path, settings=settings)
    parts = [part(job, range(start, start + 50), 1 + start) for start in range(0, 100, 10)]
    wanted = {key: sum(1 + start for start in range(0, 100, 10) if start <= key < start + 50) for key in range(140)}
    assert totals(job, *parts) == wanted
    assert totals(job, *reversed(parts)) == wanted


def test_parts_are_divided_among_subtasks_as_other_state_is(tmp_path: Path) -> None:
    job = Job(tmp_path)
    parts = [part(job, range(60), 1), part(job, range(30, 90), 2)]
    halves = [KeyGroupRange(0, GROUPS // 2 - 1), KeyGroupRange(GROUPS // 2, GROUPS - 1)]
    found = [totals(job, *handles_within(parts, half), owned=half) for half in halves]
    assert found[0].keys().isdisjoint(found[1])
    assert found[0] | found[1] == totals(job, *parts)


def test_values_below_the_parts_are_the_newest_of_theirs(tmp_path: Path) -> None:
    job = Job(tmp_path)
    older = job.save(replaced(job, job.open(), 100))
    below = job.save(replaced(job, job.open(older), 200))
    parts = [part(job, range(5), 1), part(job, range(5), 2)]
    assert totals(job, below, *parts) == {key: 203 if key < 5 else 200 for key in range(20)}
    merged = job.open(below, *parts)
    add(job, merged, range(1), 4)
    assert totals(job, job.save(merged)) == {key: 207 if key == 0 else 203 if key < 5 else 200 for key in range(20)}


def test_removed_key_begins_anew(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open(part(job, range(3), 5))
    backend.batch_state(TOTALS).put(job.batch(range(2)), pa.nulls(2, TOTAL))
    removed = job.save(backend)
    assert totals(job, removed) == {2: 5}
    assert totals(job, removed, part(job, range(1), 1)) == {0: 1, 2: 5}


def test_few_runs_stay_and_more_are_merged(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ONE_FILE)
    handle = part(job, range(50), 1)
    for number in range(2, 3 * MOST_PARTIAL_RUNS):
        backend = job.open(handle)
        add(job, backend, range(50), 1)
        before, handle = handle, job.save(backend)
        assert len(job.described(handle)["totals"].runs) <= MOST_PARTIAL_RUNS
        if number <= MOST_PARTIAL_RUNS:
            assert set(before.shared) < set(handle.shared)
    assert totals(job, handle) == dict.fromkeys(range(50), 3 * MOST_PARTIAL_RUNS - 1)


def test_many_parts_are_merged_by_the_next_snapshot(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open(*(part(job, range(20), 1) for _ in range(2 * MOST_PARTIAL_RUNS)))
    Job.state(backend, TOTALS)
    handle = job.save(backend)
    assert len(job.described(handle)["totals"].runs) <= MOST_PARTIAL_RUNS
    assert totals(job, handle) == dict.fromkeys(range(20), 2 * MOST_PARTIAL_RUNS)


def test_number_of_runs_is_bounded_for_runs_of_any_size(tmp_path: Path) -> None:
    job = Job(tmp_path, settings=ONE_FILE)
    sizes = [1, 100, 3, 50, 7, 1, 1, 200, 2, 90]
    backend = job.open(*(part(job, range(size), 1) for size in sizes))
    Job.state(backend, TOTALS)
    base = backend.snapshot(99, 0, job.streams()).states[0].base
    for first, last in pairwise(range(len(base) + 1)):
        count = partial_runs_to_merge(1, base[first:])
        assert len(base) - first - count + 1 <= MOST_PARTIAL_RUNS, last


def test_description_of_partial_rows_is_refused_by_a_release_that_would_not_add_them(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert b"statecheck-arrow-state 2" in meta_of(job, part(job, range(3), 1))
    assert b"statecheck-arrow-state 1" in meta_of(job, job.save(job.filled(range(3))))


def meta_of(job: Job, handle: KeyedStateHandle) -> bytes:
    assert handle.meta is not None
    return job.storage.read_bytes(handle.meta.uri)  # type: ignore[union-attr]


def test_state_that_nobody_asks_for_stays_in_parts(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open(part(job, range(10), 1), part(job, range(5, 15), 1))
    assert backend.num_entries() == 15
    handle = job.save(backend)
    assert totals(job, handle) == {key: 2 if 5 <= key < 10 else 1 for key in range(15)}


def test_values_of_a_plain_descriptor_are_added_up_too(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open(part(job, range(3), 1), part(job, range(3), 2))
    plain: ValueStateDescriptor[Any] = ValueStateDescriptor("totals", TOTAL)
    found = chain.from_iterable(values.to_pylist() for _, values in backend.scan(plain))
    assert list(found) == [{"n": 3, "top": 0.0}] * 3


def test_sums_wrap_around_only_where_the_state_says_so(tmp_path: Path) -> None:
    job, kind = Job(tmp_path), pa.struct([("n", pa.int64())])
    found = []
    for function in ("wrapping_sum", "sum"):
        descriptor = PartialResultsDescriptor(function, kind, (("n", function),))
        backend = job.open()
        for _ in range(2):
            backend.batch_state(descriptor).add(job.batch(range(1)), pa.array([{"n": 2**62}], kind))
            backend = job.open(job.save(backend))
        if function == "sum":
            with pytest.raises(UnsupportedStateError, match=r"sums in state within .* larger one of n int64"):
                list(backend.scan(descriptor))
        else:
            found = [values.to_pylist() for _, values in backend.scan(descriptor)]
    assert found == [[{"n": -(2**63)}]]


def test_values_that_do_not_combine_cannot_be_added(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with pytest.raises(InvalidConfigurationError, match="to have values that combine"):
        job.open().batch_state(VALUE).add(job.batch(range(1)), pa.array([1]))


def test_batch_removes_a_value_that_was_set_before_it_one_by_one(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open()
    backend.set_current_key(1)
    Job.state(backend, VALUE).update(1)
    backend.batch_state(VALUE).put(job.batch([1, 2]), pa.nulls(2, pa.int64()))
    assert job.values(backend, range(3)) == [None] * 3
    backend.set_current_key(1)
    assert Job.state(backend, VALUE).value() is None
