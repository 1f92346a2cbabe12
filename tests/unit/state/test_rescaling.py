"""Another maximum parallelism for a checkpoint, offline: no key changes, and it can be restored at any parallelism."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.assignment import redistribute_keyed
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    OperatorState,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    InvalidConfigurationError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.backends import ArrowStateBackend, FsStateBackend
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend, read_restored
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.state_reader import StateReader
from airflow_provider_statecheck.state.writing.canonical import (
    CanonicalCopies,
    rescale_max_parallelism,
    write_savepoint,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, decode_metadata
from tests.soak import rest_in_soak
from tests.written_state import GROUPS, StatefulJob, file_streams

KEYS = KeySerializer((KeyField("customer", pa.int64()), KeyField("country", pa.string())))
ALL = [(number, country) for number in range(-15, 25) for country in ("de", "nz", "")]
DESCRIPTORS: list[Any] = [
    ValueStateDescriptor("balance", float),
    ListStateDescriptor("orders", str),
    MapStateDescriptor("by_day", str, int),
    ValueStateDescriptor("seen", int, ttl=StateTtlConfig(timedelta(seconds=10))),
]
NARROW = pa.struct([("a", pa.int64())])
WIDE = pa.struct([("a", pa.int64()), ("b", pa.string())])
BACKENDS: dict[str, Callable[[], Any]] = {
    "filesystem": FsStateBackend,
    "arrow": ArrowStateBackend,
    "arrow-in-small-blocks": lambda: ArrowStateBackend(ArrowStateSettings(block_rows=2, part_bytes=400)),
}


@pytest.fixture(
    params=[
        "arrow-in-small-blocks",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("filesystem", "arrow")),
    ]
)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StatefulJob]:
    storage = CheckpointStorage.open(f"{tmp_path.as_uri()}/lake")
    made = StatefulJob(storage, BACKENDS[request.param](), DESCRIPTORS, keys=KEYS, now_ms=1_000)
    yield made
    made.close()


def filled(job: StatefulJob, parallelism: int) -> OperatorState:
    job.open(parallelism)
    for number, key in enumerate(ALL):
        job.state(key, "balance").update(number / 8)
        job.state(key, "orders").update([f"{key}-{i}" for i in range(number % 4)])
        # Some key groups have no row of this state.
        for day in range(number % 3 if number < 20 else 0):
            job.state(key, "by_day").put(f"day {day}", number)
        job.state(key, "seen").update(number)
        if number % 5 == 0:
            job.state(key, "balance", "window-1").update(float(number))
    return job.operator()


def changed(job: StatefulJob, source: OperatorState) -> OperatorState:
    """Return the state after a second snapshot, at another parallelism, which removed and changed some keys."""
    job.open(5, source)
    for key in ALL[::4]:
        job.state(key, "balance").clear()
        job.state(key, "by_day").clear()
        job.state(key, "orders").add("one more")
    return job.operator()


def with_late_state(job: StatefulJob, ttl: StateTtlConfig | None = None) -> OperatorState:
    """Return two subtasks with a state that only the second one has requested again, with a type of more fields."""
    job.descriptors = [ValueStateDescriptor("late", NARROW)]
    job.open(2)
    for key in ALL:
        job.state(key, "late").update({"a": key[0]})
    first, job.descriptors = job.operator(), []
    job.open(2, first)
    job.descriptors = [ValueStateDescriptor("late", WIDE, ttl=ttl)]
    for key in migrated(job):
        job.state(key, "late").update({"a": key[0], "b": key[1]})
    job.descriptors = []
    return job.operator()


def migrated(job: StatefulJob) -> list[Any]:
    """Return the keys of the second subtask."""
    return [key for key in ALL if KEYS.key_group_of(key, GROUPS) in job.states[1].key_group_range]


def document_of(job: StatefulJob, *operators: OperatorState) -> CheckpointDocument:
    return CheckpointStates.of(job.storage, job.publish(*operators)).document


def directory_of(job: StatefulJob, name: str = "0123456789ab") -> str:
    return f"{job.storage.base_uri}/savepoint-000000-{name}"


def rescaled(
    job: StatefulJob, source: CheckpointDocument, groups: int, name: str = "0123456789ab"
) -> CheckpointDocument:
    directory = directory_of(job, name)
    written = rescale_max_parallelism(job.storage, source, directory=directory, max_parallelism=groups)
    assert written.metadata.uri == f"{directory}/_metadata"
    return decode_metadata(job.storage.read_bytes(written.metadata.uri), uri=written.metadata.uri)


def restored(job: StatefulJob, document: CheckpointDocument, parallelism: int) -> dict[Any, Any]:
    """Return what functions read of each key after a restore."""
    operator = document.operator_states[0]
    heir = replace(job, states=[], max_parallelism=operator.max_parallelism)
    heir.open(parallelism, operator)
    found = {
        key: (
            heir.state(key, "balance").value(),
            list(heir.state(key, "orders").get() or ()),
            dict(heir.state(key, "by_day").entries()),
            heir.state(key, "seen").value(),
            heir.state(key, "balance", "window-1").value(),
        )
        for key in ALL
    }
    heir.close()
    return found


def contents(job: StatefulJob, directory: str) -> dict[str, bytes]:
    return {name: job.storage.read_bytes(f"{directory}/{name}") for name in job.storage.list_files(directory)}


@pytest.mark.parametrize("groups", rest_in_soak([3, 16, 40], 40))
def test_each_key_has_the_same_state_as_before_under_its_new_key_group(job: StatefulJob, groups: int) -> None:
    source = document_of(job, filled(job, 3))
    before = restored(job, source, 3)
    assert None not in {balance for balance, *_ in before.values()}
    after = rescaled(job, source, groups)
    assert after.operator_states[0].max_parallelism == groups
    assert restored(job, after, 3) == before


def test_it_is_a_savepoint_that_can_be_restored_at_any_parallelism_up_to_the_new_maximum(job: StatefulJob) -> None:
    source = document_of(job, filled(job, 2))
    before = restored(job, source, 2)
    after = rescaled(job, source, 9)
    assert (after.properties.is_savepoint, after.relocatable) == (True, True)
    for parallelism in range(1, 10):
        assert restored(job, after, parallelism) == before


def test_state_that_lives_for_a_time_keeps_the_time_at_which_it_was_used(job: StatefulJob) -> None:
    after = rescaled(job, document_of(job, filled(job, 2)), 32)
    job.now_ms = 11_000
    assert {content[3] for content in restored(job, after, 2).values()} == {None}
    job.now_ms = 10_999
    assert None not in {content[3] for content in restored(job, after, 2).values()}


def test_state_that_one_subtask_has_not_requested_yet_loses_no_field_of_the_others(job: StatefulJob) -> None:
    found = rescaled(job, document_of(job, with_late_state(job)), 32)
    reader = StateReader(job.storage, CheckpointStates(job.storage, found).content("late"))
    rows = reader.record_batches().read_all().to_pylist()
    assert {(each["customer"], each["country"]): each["value"] for each in rows} == {
        key: {"a": key[0], "b": key[1] if key in migrated(job) else None} for key in ALL
    }


def test_rows_get_no_time_of_their_last_use_that_another_release_has_added(job: StatefulJob) -> None:
    source = document_of(job, with_late_state(job, StateTtlConfig(timedelta(days=1))))
    with pytest.raises(UnsupportedStateError, match="another release"):
        rescaled(job, source, 32)


def test_other_tools_find_the_types_with_all_fields_in_the_files_of_all_subtasks(job: StatefulJob) -> None:
    directory, source = directory_of(job), document_of(job, with_late_state(job))
    properties = CheckpointProperties.for_savepoint()
    write_savepoint(job.storage, source, directory=directory, checkpoint_id=4, properties=properties)
    files = [f"{directory}/{name}" for name in job.storage.list_files(directory) if name.endswith(".parquet")]
    assert len(files) > 1
    assert {parquet.read_schema(uri.removeprefix("file://")).field("value").type for uri in files} == {WIDE}


def test_rows_that_cannot_be_read_in_one_type_are_refused(job: StatefulJob) -> None:
    content = CheckpointStates(job.storage, document_of(job, with_late_state(job))).content("late")
    narrow = replace(content.schema, value=ValueStateDescriptor("late", NARROW).serializer.snapshot())
    with pytest.raises(UnsupportedStateError, match="which another release has written"):
        StateReader(job.storage, replace(content, schema=narrow)).record_batches().read_all()


def test_the_source_stays_as_it_is_and_the_savepoint_needs_nothing_of_it(job: StatefulJob) -> None:
    pointer = job.publish(filled(job, 2))
    source = CheckpointStates.of(job.storage, pointer).document
    before, directory = restored(job, source, 2), pointer.rpartition("/")[0]
    files = contents(job, directory)
    after = rescaled(job, source, 32)
    assert contents(job, directory) == files != {}
    shutil.rmtree(directory.removeprefix("file://"))
    assert restored(job, after, 5) == before


def test_it_can_be_rescaled_back_again(job: StatefulJob) -> None:
    source = document_of(job, filled(job, 2))
    there = rescaled(job, source, 100)
    back = rescaled(job, there, GROUPS, "ba9876543210")
    assert restored(job, back, 4) == restored(job, source, 4)


def test_an_operator_without_keyed_state_keeps_its_lists_and_gets_the_new_maximum(job: StatefulJob) -> None:
    streams = file_streams(job.storage)
    written = DefaultOperatorStateBackend()
    written.get_list_state(ListStateDescriptor("buffer", str)).update(["a", "b"])
    handle = written.snapshot(1, 0, streams).run().handle
    assert handle is not None
    plain = OperatorState(
        operator_id=operator_id_of("stage/clean"),
        uid="stage/clean",
        parallelism=2,
        max_parallelism=GROUPS,
        subtask_states={1: OperatorSubtaskState(managed_operator=(handle,))},
    )
    after = rescaled(job, document_of(job, filled(job, 2), plain), 32).operator_states[1]
    assert (after.parallelism, after.max_parallelism, list(after.subtask_states)) == (2, 32, [1])
    kept = DefaultOperatorStateBackend(read_restored(job.storage, after.subtask_states[1].managed_operator))
    assert list(kept.get_list_state(ListStateDescriptor("buffer", str)).get()) == ["a", "b"]


def test_other_state_of_the_driver_is_copied(job: StatefulJob) -> None:
    data, uri = b"what the source has read", f"{job.storage.base_uri}/chk-3/source"
    job.storage.write_bytes(uri, data)
    stream = FileStateHandle(uri, len(data), hashlib.sha256(data).hexdigest())
    after = rescaled(job, document_of(job, replace(filled(job, 2), coordinator_state=stream)), 32)
    handle: Any = after.operator_states[0].coordinator_state
    assert handle.uri.startswith(f"{directory_of(job)}/")
    assert job.storage.read_bytes(handle.uri) == data


def test_fewer_key_groups_than_subtasks_are_refused(job: StatefulJob) -> None:
    with pytest.raises(InvalidConfigurationError, match="parallelism 3 and max_parallelism 2"):
        rescaled(job, document_of(job, filled(job, 3)), 2)
    assert not job.storage.is_directory(directory_of(job))


def test_of_one_that_fails_nothing_is_left(job: StatefulJob) -> None:
    first, second = filled(job, 2), filled(job, 2)
    second = replace(second, operator_id=operator_id_of("other"), uid="other")
    handle: Any = second.subtask_states[1].managed_keyed[0]
    stream: Any = next(stream for _, stream in (*handle.shared, *handle.private))
    job.storage.delete_file(stream.uri)
    with pytest.raises(CheckpointNotFoundError):
        rescaled(job, document_of(job, first, second), 32)
    assert not job.storage.is_directory(directory_of(job))


def test_what_was_removed_or_changed_since_an_earlier_snapshot_stays_so(job: StatefulJob) -> None:
    source = document_of(job, changed(job, filled(job, 2)))
    before = restored(job, source, 5)
    assert {content[0] for key, content in before.items() if key in ALL[::4]} == {None}
    assert restored(job, rescaled(job, source, 40), 3) == before


def test_of_a_handle_that_lends_some_of_its_key_groups_no_others_are_taken(job: StatefulJob) -> None:
    old = filled(job, 2)
    new = changed(job, old)
    lent = redistribute_keyed([old.subtask_states[i].managed_keyed for i in range(2)], 5, GROUPS)
    # Subtasks that had no input keep what they were lent, in which others have old values.
    mixed = {i: new.subtask_states[i] if i % 2 else OperatorSubtaskState(managed_keyed=lent[i]) for i in range(5)}
    source = document_of(job, replace(new, subtask_states=mixed))
    before = restored(job, source, 5)
    assert before not in (restored(job, document_of(job, old), 5), restored(job, document_of(job, new), 5))
    assert restored(job, rescaled(job, source, 40), 5) == before


def test_large_state_is_sorted_in_pieces_and_written_as_one_run(job: StatefulJob) -> None:
    large = replace(job, states=[], backend=ArrowStateBackend())
    source = document_of(large, filled(large, 2))
    copies = CanonicalCopies(job.storage, directory_of(job), source, max_parallelism=40, bytes_at_once=1)
    after = copies.of_document(source)
    handles: Any = [subtask.managed_keyed[0] for subtask in after.operator_states[0].subtask_states.values()]
    assert [len(handle.shared) == len(DESCRIPTORS) for handle in handles] == [True, True]
    assert restored(large, after, 3) == restored(large, source, 2)
    large.close()
