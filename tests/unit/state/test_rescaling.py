"""Another maximum parallelism for a checkpoint, offline: no key loses or gains anything, and it can be restored at any parallelism."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.assignment import assign_states
from airflow_provider_statecheck.checkpoint.states.compatibility import RestoreTarget
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    KeyGroupRange,
    OperatorState,
    OperatorSubtaskState,
    key_group_ranges,
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
from airflow_provider_statecheck.state.keyed.abstract_backend import StateEnvironment
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.state_reader import StateReader
from airflow_provider_statecheck.state.schemas import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.state.writing.canonical import (
    CanonicalCopies,
    rescale_max_parallelism,
    write_savepoint,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle, decode_metadata
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from tests.soak import rest_in_soak

UID = "balances/balance"
KEYS = KeySerializer((KeyField("customer", pa.int64()), KeyField("country", pa.string())))
ALL = [(number, country) for number in range(-15, 25) for country in ("de", "nz", "")]
OLD = 16


def descriptors() -> dict[str, Any]:
    lived: Any = ValueStateDescriptor("seen", int)
    lived.enable_time_to_live(StateTtlConfig(timedelta(seconds=10)))
    return {
        "balance": ValueStateDescriptor("balance", float),
        "orders": ListStateDescriptor("orders", str),
        "by_day": MapStateDescriptor("by_day", str, int),
        "seen": lived,
    }


def streams(storage: CheckpointStorage, directory: str) -> FsCheckpointStreamFactory:
    writing = StateWriting(epoch=1, inline_threshold=0)
    return FsCheckpointStreamFactory(storage=storage, exclusive=directory, shared=directory, writing=writing)


class Operator:
    """Subtasks of one operator with a state backend."""

    def __init__(self, backend: Any, storage: CheckpointStorage, base: str) -> None:
        self.backend = backend
        self.storage = storage
        self.base = base
        self.now_ms = 1_000

    def open(self, groups: int, owned: KeyGroupRange, restored: Any = (), index: int = 0) -> Any:
        environment = StateEnvironment(
            storage=self.storage,
            now_ms=lambda: self.now_ms,
        )
        return self.backend.create_keyed_state_backend(environment, "job", UID, KEYS, groups, owned, restored=restored)

    def filled(self, parallelism: int) -> OperatorState:
        subtasks = {}
        for index, owned in enumerate(key_group_ranges(parallelism, OLD)):
            state = self.open(OLD, owned, index=index)
            self.fill(state, [key for key in ALL if KEYS.key_group_of(key, OLD) in owned])
            handle = state.snapshot(3, 0, streams(self.storage, f"{self.base}/chk-3")).run().handle
            if handle is not None:
                subtasks[index] = OperatorSubtaskState(managed_keyed=(handle,))
            state.dispose()
        return OperatorState(
            operator_id=operator_id_of(UID),
            uid=UID,
            parallelism=parallelism,
            max_parallelism=OLD,
            subtask_states=subtasks,
            coordinator_state=ByteStreamStateHandle("schemas", b"{}"),
        )

    def fill(self, backend: Any, keys: list[Any]) -> None:
        states = {name: backend.get_partitioned_state(each) for name, each in descriptors().items()}
        windows = backend.get_partitioned_state(descriptors()["balance"], "window-1")
        for number, key in enumerate(keys):
            backend.set_current_key(key)
            states["balance"].update(number / 8)
            states["orders"].update([f"{key}-{i}" for i in range(number % 4)])
            for day in range(number % 3):
                states["by_day"].put(f"day {day}", number)
            states["seen"].update(number)
            if number % 5 == 0:
                windows.update(float(number))

    def content(self, backend: Any) -> dict[Any, Any]:
        found = {}
        states = {name: backend.get_partitioned_state(each) for name, each in descriptors().items()}
        windows = backend.get_partitioned_state(descriptors()["balance"], "window-1")
        for key in ALL:
            if KEYS.key_group_of(key, backend.number_of_key_groups) not in backend.key_group_range:
                continue
            backend.set_current_key(key)
            found[key] = (
                states["balance"].value(),
                list(states["orders"].get() or ()),
                dict(states["by_day"].entries()),
                states["seen"].value(),
                windows.value(),
            )
        return found

    def restored(self, document: CheckpointDocument, parallelism: int) -> dict[Any, Any]:
        target = RestoreTarget(
            operator_id=operator_id_of(UID),
            uid=UID,
            parallelism=parallelism,
            max_parallelism=document.operator_states[0].max_parallelism,
            is_max_parallelism_configured=True,
        )
        assigned = assign_states([target], document.operator_states).subtask_states
        found: dict[Any, Any] = {}
        ranges = key_group_ranges(parallelism, target.max_parallelism)
        for index, owned in enumerate(ranges):
            handles = assigned.get((target.operator_id, index), OperatorSubtaskState()).managed_keyed
            backend = self.open(target.max_parallelism, owned, handles, index)
            found |= self.content(backend)
            backend.dispose()
        return found


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
def operator(request: pytest.FixtureRequest, storage: CheckpointStorage, base: str) -> Operator:
    return Operator(BACKENDS[request.param](), storage, base)


@pytest.fixture
def base(tmp_path: Any) -> str:
    return f"file://{tmp_path}/lake"


@pytest.fixture
def storage(base: str) -> CheckpointStorage:
    return CheckpointStorage.open(base)


def document_of(*states: OperatorState) -> CheckpointDocument:
    return CheckpointDocument(
        job_id="0" * 32,
        job_name="sales",
        operator_id=operator_id_of("balances"),
        uid="balances",
        checkpoint_id=3,
        epoch=1,
        generation=1,
        snapshots=(),
        state=InlineStateHandle(value={}),
        created_at="2026-01-01T00:00:00+00:00",
        operator_states=states,
    )


def rescaled(operator: Operator, source: CheckpointDocument, groups: int) -> CheckpointDocument:
    directory = f"{operator.base}/savepoint-000000-0123456789ab"
    written = rescale_max_parallelism(operator.storage, source, directory=directory, max_parallelism=groups)
    assert written.metadata.uri == f"{directory}/_metadata"
    return decode_metadata(operator.storage.read_bytes(written.metadata.uri), uri=written.metadata.uri)


@pytest.mark.parametrize("groups", rest_in_soak([3, 16, 40], 40))
def test_each_key_has_the_same_state_as_before_under_its_new_key_group(operator: Operator, groups: int) -> None:
    source = document_of(operator.filled(3))
    before = operator.restored(source, 3)
    assert sum(value is not None for value in before) == len(ALL)
    after = rescaled(operator, source, groups)
    assert after.operator_states[0].max_parallelism == groups
    assert operator.restored(after, 3) == before


def test_it_can_be_restored_at_any_parallelism_up_to_the_new_maximum(operator: Operator) -> None:
    source = document_of(operator.filled(2))
    before = operator.restored(source, 2)
    after = rescaled(operator, source, 9)
    for parallelism in range(1, 10):
        assert operator.restored(after, parallelism) == before


def test_state_that_lives_for_a_time_keeps_the_time_at_which_it_was_used(operator: Operator) -> None:
    after = rescaled(operator, document_of(operator.filled(2)), 32)
    operator.now_ms = 11_000
    assert {content[3] for content in operator.restored(after, 2).values()} == {None}
    operator.now_ms = 10_999
    assert None not in {content[3] for content in operator.restored(after, 2).values()}


def with_late_state(operator: Operator, *, wide: Any, ttl: Any = None) -> OperatorState:
    """Return two subtasks with a state that only the second one has requested again, with a type of more fields."""
    narrow = pa.struct([("a", pa.int64())])
    ranges, subtasks = key_group_ranges(2, OLD), {}
    for index, groups in enumerate(ranges):
        handles: tuple[Any, ...] = ()
        for checkpoint, kind in enumerate((narrow, wide), 3):
            backend = operator.open(OLD, groups, handles, index)
            if kind is narrow or index == 1:
                late = backend.get_partitioned_state(
                    ValueStateDescriptor("late", kind, ttl=ttl if kind is wide else None)
                )
                for key in (key for key in ALL if KEYS.key_group_of(key, OLD) in groups):
                    backend.set_current_key(key)
                    late.update({"a": key[0]} if kind is narrow else {"a": key[0], "b": key[1]})
            directory = f"{operator.base}/chk-{checkpoint}"
            handles = (backend.snapshot(checkpoint, 0, streams(operator.storage, directory)).run().handle,)
            backend.dispose()
        subtasks[index] = OperatorSubtaskState(managed_keyed=handles)
    return OperatorState(
        operator_id=operator_id_of(UID),
        uid=UID,
        parallelism=2,
        max_parallelism=OLD,
        subtask_states=subtasks,
        coordinator_state=ByteStreamStateHandle("schemas", json.dumps(encode_schemas(OperatorSchemas())).encode()),
    )


def test_state_that_one_subtask_has_not_requested_yet_loses_no_field_of_the_others(operator: Operator) -> None:
    wide = pa.struct([("a", pa.int64()), ("b", pa.string())])
    found = rescaled(operator, document_of(with_late_state(operator, wide=wide)), 32)
    reader = StateReader(operator.storage, CheckpointStates(operator.storage, found).content("late"))
    rows = reader.record_batches().read_all().to_pylist()
    migrated = {key for key in ALL if KEYS.key_group_of(key, OLD) in key_group_ranges(2, OLD)[1]}
    assert {(each["customer"], each["country"]): each["value"] for each in rows} == {
        key: {"a": key[0], "b": key[1] if key in migrated else None} for key in ALL
    }


def test_rows_get_no_time_of_their_last_use_that_another_release_has_added(operator: Operator) -> None:
    wide = pa.struct([("a", pa.int64()), ("b", pa.string())])
    source = document_of(with_late_state(operator, wide=wide, ttl=StateTtlConfig(timedelta(days=1))))
    with pytest.raises(UnsupportedStateError, match="another release"):
        rescaled(operator, source, 32)


def test_other_tools_find_the_types_with_all_fields_in_the_files_of_all_subtasks(operator: Operator) -> None:
    wide = pa.struct([("a", pa.int64()), ("b", pa.string())])
    directory = f"{operator.base}/savepoint-000000-0123456789ab"
    source = document_of(with_late_state(operator, wide=wide))
    properties = CheckpointProperties.for_savepoint()
    write_savepoint(operator.storage, source, directory=directory, checkpoint_id=4, properties=properties)
    files = [f"{directory}/{name}" for name in operator.storage.list_files(directory) if name.endswith(".parquet")]
    assert len(files) > 1
    assert {parquet.read_schema(uri.removeprefix("file://")).field("value").type for uri in files} == {wide}


def test_rows_that_cannot_be_read_in_one_type_are_refused(operator: Operator) -> None:
    other = document_of(with_late_state(operator, wide=pa.struct([("a", pa.int64()), ("b", pa.string())])))
    states = CheckpointStates(operator.storage, other)
    content = states.content("late")
    narrow = replace(
        content.schema, value=ValueStateDescriptor("late", pa.struct([("a", pa.int64())])).serializer.snapshot()
    )
    with pytest.raises(UnsupportedStateError, match="which another release has written"):
        StateReader(operator.storage, replace(content, schema=narrow)).record_batches().read_all()


def test_the_source_stays_as_it_is_and_the_savepoint_needs_nothing_of_it(operator: Operator) -> None:
    source = document_of(operator.filled(2))
    before = operator.restored(source, 2)
    files = {uri: operator.storage.read_bytes(f"{operator.base}/chk-3/{uri}") for uri in list_names(operator, "chk-3")}
    after = rescaled(operator, source, 32)
    again = {uri: operator.storage.read_bytes(f"{operator.base}/chk-3/{uri}") for uri in list_names(operator, "chk-3")}
    assert again == files
    operator.storage.delete_directory(f"{operator.base}/chk-3")
    assert operator.restored(after, 5) == before


def list_names(operator: Operator, directory: str) -> list[str]:
    return [uri.rpartition("/")[2] for uri in operator.storage.list_files(f"{operator.base}/{directory}")]


def test_it_is_a_savepoint_that_can_be_moved(operator: Operator) -> None:
    after = rescaled(operator, document_of(operator.filled(2)), 32)
    assert after.properties.is_savepoint
    assert after.relocatable


def test_it_can_be_rescaled_back_again(operator: Operator) -> None:
    source = document_of(operator.filled(2))
    there = rescaled(operator, source, 100)
    directory = f"{operator.base}/savepoint-000000-ba9876543210"
    written = rescale_max_parallelism(operator.storage, there, directory=directory, max_parallelism=OLD)
    back = decode_metadata(operator.storage.read_bytes(written.metadata.uri), uri=written.metadata.uri)
    assert operator.restored(back, 4) == operator.restored(source, 4)


def test_an_operator_without_keyed_state_keeps_its_lists_and_gets_the_new_maximum(operator: Operator) -> None:
    written = DefaultOperatorStateBackend()
    written.get_list_state(ListStateDescriptor("buffer", str)).update(["a", "b"])
    handle = written.snapshot(1, 0, streams(operator.storage, f"{operator.base}/chk-3")).run().handle
    assert handle is not None
    plain = OperatorState(
        operator_id=operator_id_of("balances/clean"),
        uid="balances/clean",
        parallelism=2,
        max_parallelism=OLD,
        subtask_states={1: OperatorSubtaskState(managed_operator=(handle,))},
    )
    after = rescaled(operator, document_of(operator.filled(2), plain), 32).operator_states[1]
    assert (after.parallelism, after.max_parallelism, list(after.subtask_states)) == (2, 32, [1])
    kept = DefaultOperatorStateBackend.restore(operator.storage, after.subtask_states[1].managed_operator)
    assert list(kept.get_list_state(ListStateDescriptor("buffer", str)).get()) == ["a", "b"]


def test_other_state_of_the_driver_is_copied(operator: Operator) -> None:
    data = b"what the source has read"
    uri = f"{operator.base}/chk-3/source"
    operator.storage.write_bytes(uri, data)
    stream = streams(operator.storage, f"{operator.base}/chk-3").create_checkpoint_state_output_stream(
        CheckpointedStateScope.EXCLUSIVE
    )
    stream.write(data)
    source = replace(operator.filled(2), coordinator_state=stream.close_and_get_handle())
    after = rescaled(operator, document_of(source), 32)
    handle: Any = after.operator_states[0].coordinator_state
    assert handle.uri.startswith(f"{operator.base}/savepoint-000000-0123456789ab/")
    assert operator.storage.read_bytes(handle.uri) == data


def test_fewer_key_groups_than_subtasks_are_refused(operator: Operator) -> None:
    with pytest.raises(InvalidConfigurationError, match="parallelism 3 and max_parallelism 2"):
        rescaled(operator, document_of(operator.filled(3)), 2)
    assert not operator.storage.is_directory(f"{operator.base}/savepoint-000000-0123456789ab")


def test_of_one_that_fails_nothing_is_left(operator: Operator) -> None:
    first, second = operator.filled(2), operator.filled(2)
    second = replace(second, operator_id=operator_id_of("other"), uid="other")
    handle: Any = second.subtask_states[1].managed_keyed[0]
    stream: Any = next(stream for _, stream in (*handle.shared, *handle.private))
    operator.storage.delete_file(stream.uri)
    with pytest.raises(CheckpointNotFoundError):
        rescaled(operator, document_of(first, second), 32)
    assert not operator.storage.is_directory(f"{operator.base}/savepoint-000000-0123456789ab")


def changed(operator: Operator, source: OperatorState) -> OperatorState:
    """Return the state after a second snapshot, at another parallelism, which removed and changed some keys."""
    target = RestoreTarget(
        operator_id=source.operator_id, uid=UID, parallelism=5, max_parallelism=OLD, is_max_parallelism_configured=True
    )
    assigned = assign_states([target], [source]).subtask_states
    subtasks = {}
    for index, owned in enumerate(key_group_ranges(5, OLD)):
        backend = operator.open(OLD, owned, assigned[source.operator_id, index].managed_keyed, index)
        states = {name: backend.get_partitioned_state(each) for name, each in descriptors().items()}
        for key in (key for key in ALL[::4] if KEYS.key_group_of(key, OLD) in owned):
            backend.set_current_key(key)
            states["balance"].clear()
            states["by_day"].clear()
            states["orders"].add("one more")
        handle = backend.snapshot(4, 0, streams(operator.storage, f"{operator.base}/chk-4")).run().handle
        subtasks[index] = OperatorSubtaskState(managed_keyed=(handle,))
        backend.dispose()
    return replace(source, parallelism=5, subtask_states=subtasks)


def test_what_was_removed_or_changed_since_an_earlier_snapshot_stays_so(operator: Operator) -> None:
    source = document_of(changed(operator, operator.filled(2)))
    before = operator.restored(source, 5)
    assert {content[0] for key, content in before.items() if key in ALL[::4]} == {None}
    assert operator.restored(rescaled(operator, source, 40), 3) == before


def test_of_a_handle_that_lends_some_of_its_key_groups_no_others_are_taken(operator: Operator) -> None:
    old = operator.filled(2)
    new = changed(operator, old)
    target = RestoreTarget(
        operator_id=old.operator_id, uid=UID, parallelism=5, max_parallelism=OLD, is_max_parallelism_configured=True
    )
    lent = assign_states([target], [old]).subtask_states
    # Subtasks that had no input keep what they were lent, in which others have old values.
    mixed = {i: new.subtask_states[i] if i % 2 else lent[old.operator_id, i] for i in range(5)}
    source = document_of(replace(new, subtask_states=mixed))
    before = operator.restored(source, 5)
    assert before not in (operator.restored(document_of(old), 5), operator.restored(document_of(new), 5))
    assert operator.restored(rescaled(operator, source, 40), 5) == before


def test_large_state_is_sorted_in_pieces_and_written_as_one_run(storage: CheckpointStorage, base: str) -> None:
    operator = Operator(ArrowStateBackend(), storage, base)
    source = document_of(operator.filled(2))
    copies = CanonicalCopies(
        storage, f"{base}/savepoint-000000-0123456789ab", source, max_parallelism=40, bytes_at_once=1
    )
    after = copies.of_document(source)
    handles: Any = [subtask.managed_keyed[0] for subtask in after.operator_states[0].subtask_states.values()]
    assert [len(handle.shared) == len(descriptors()) for handle in handles] == [True, True]
    assert operator.restored(after, 3) == operator.restored(source, 2)
