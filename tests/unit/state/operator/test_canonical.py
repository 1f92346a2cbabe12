"""Operator state in canonical savepoints."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.assignment import redistribute
from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    FileStateHandle,
    OperatorState,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend, read_restored
from airflow_provider_statecheck.state.operator.stream_format import (
    WrittenState,
    decode,
    decode_parquet,
    encode_parquet,
    written_elements,
)
from airflow_provider_statecheck.state.writing.canonical import CanonicalCopies, write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle, decode_metadata
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStreamFactory
from tests.unit.state.operator import snapshots
from tests.unit.state.operator.snapshots import Handles, saved_subtask

LIST = ListStateDescriptor("items", int)
UNION = ListStateDescriptor("times", time)
RATES = MapStateDescriptor("items", str, float)
EMPTY = ListStateDescriptor("empty", str)
SUBTASKS = 3
EMPTY_DOCUMENT = CheckpointDocument(
    job_id="0" * 32,
    job_name="job",
    operator_id=operator_id_of("stage"),
    uid="stage",
    checkpoint_id=1,
    epoch=2,
    generation=1,
    snapshots=(),
    state=InlineStateHandle(value={}),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.fixture
def saved(storage: CheckpointStorage, streams: FsCheckpointStreamFactory) -> OperatorState:
    """State of three subtasks in a canonical savepoint."""
    subtasks = {index: written(streams, index) for index in range(SUBTASKS)}
    document = replace(EMPTY_DOCUMENT, operator_states=(operator_of(subtasks),))
    savepoint = write_savepoint(
        storage,
        document,
        directory=directory(storage),
        checkpoint_id=2,
        properties=CheckpointProperties.for_savepoint(),
    )
    found = decode_metadata(storage.read_bytes(savepoint.metadata.uri), uri=savepoint.metadata.uri)
    return found.operator_states[0]


def operator_of(subtasks: dict[int, OperatorSubtaskState]) -> OperatorState:
    return OperatorState(
        operator_id=operator_id_of("stage/items"),
        uid="stage/items",
        parallelism=len(subtasks),
        max_parallelism=16,
        subtask_states=subtasks,
    )


def directory(storage: CheckpointStorage) -> str:
    return f"{storage.base_uri}/savepoint-000000-000000000000"


def written(streams: FsCheckpointStreamFactory, index: int) -> OperatorSubtaskState:
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(LIST).update([10 * index, 10 * index + 1])
    backend.get_union_list_state(UNION).update([time(index)])
    backend.get_broadcast_state(RATES).put("eur", 1.5)
    backend.get_list_state(EMPTY)
    return saved_subtask(backend, streams)


def restored(storage: CheckpointStorage, state: OperatorState, parallelism: int) -> list[DefaultOperatorStateBackend]:
    old = [state.subtask_states.get(i, OperatorSubtaskState()).managed_operator for i in range(state.parallelism)]
    dealt = redistribute(old, state.parallelism, parallelism)
    return [DefaultOperatorStateBackend(read_restored(storage, handles)) for handles in dealt]


def files(storage: CheckpointStorage, kind: str) -> list[str]:
    root = Path(directory(storage).removeprefix("file://"))
    return sorted(str(file) for file in root.glob(f"state/stage_items-*/{kind}/*/*.parquet"))


def test_other_tools_read_lists_and_maps(storage: CheckpointStorage, saved: OperatorState) -> None:
    items = [file for file in files(storage, "split_distribute") if "/items-" in file]
    assert sorted(polars.read_parquet(items)["value"].to_list()) == [0, 1, 10, 11, 20, 21]
    with duckdb.connect() as connection:
        times = connection.execute(f"SELECT value FROM read_parquet({files(storage, 'union')})").fetchall()
        rates = connection.execute(f"SELECT key, value FROM read_parquet({files(storage, 'broadcast')})").fetchall()
    assert sorted(times) == [(f"0{hour}:00:00.000000",) for hour in range(SUBTASKS)]
    assert rates == [("eur", 1.5)]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_each_mode_is_distributed_to_any_number_of_subtasks(
    storage: CheckpointStorage, saved: OperatorState, parallelism: int
) -> None:
    backends = restored(storage, saved, parallelism)
    items = [list(each.get_list_state(LIST).get()) for each in backends]
    assert [item for share in items for item in share] == [0, 1, 10, 11, 20, 21]
    assert max(map(len, items)) - min(map(len, items)) <= 1
    for each in backends:
        assert list(each.get_union_list_state(UNION).get()) == [time(hour) for hour in range(SUBTASKS)]
        assert dict(each.get_broadcast_state(RATES).entries()) == {"eur": 1.5}
        assert list(each.get_list_state(EMPTY).get()) == []


def test_subtasks_share_one_file_of_a_broadcast_map(storage: CheckpointStorage, saved: OperatorState) -> None:
    assert len(files(storage, "broadcast")) == 1
    assert [len(subtask.managed_operator) for subtask in saved.subtask_states.values()] == [4, 4, 4]


def test_size_is_that_of_the_files(storage: CheckpointStorage, streams: FsCheckpointStreamFactory) -> None:
    copies = CanonicalCopies(storage, directory(storage), EMPTY_DOCUMENT)
    copies.of_operator(operator_of({index: written(streams, index) for index in range(SUBTASKS)}))
    assert copies.size_bytes == sum(storage.list_files(directory(storage)).values()) > 0


def test_elements_of_several_types_are_in_several_files(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    handles: Handles = ()
    for kind, value in ((pa.int32(), 1), (pa.int64(), 2)):
        backend = DefaultOperatorStateBackend()
        backend.get_list_state(ListStateDescriptor("items", kind)).update([value])
        handles += snapshots.saved(backend, streams)
    operator = operator_of({0: OperatorSubtaskState(managed_operator=handles)})
    copied = CanonicalCopies(storage, directory(storage), EMPTY_DOCUMENT).of_operator(operator).subtask_states[0]
    assert len(copied.managed_operator) == 2
    backend = DefaultOperatorStateBackend(read_restored(storage, copied.managed_operator))
    assert list(backend.get_list_state(ListStateDescriptor("items", pa.int64())).get()) == [1, 2]


def test_damaged_file_is_refused(storage: CheckpointStorage, saved: OperatorState) -> None:
    handle = saved.subtask_states[0].managed_operator[0]
    assert isinstance(handle.stream, FileStateHandle)
    path = Path(handle.stream.uri.removeprefix("file://"))
    data = path.read_bytes()
    path.write_bytes(bytes([*data[:20], data[20] ^ 1, *data[21:]]))
    with pytest.raises(CorruptStateError):
        DefaultOperatorStateBackend(read_restored(storage, [handle]))
    with pytest.raises(CorruptStateError, match="Parquet"):
        decode_parquet(data[:-10])


def test_type_that_parquet_cannot_hold_is_refused() -> None:
    declared = RegisteredState.of(ListStateDescriptor("items", pa.decimal256(60, -2)))
    state = WrittenState("items", DistributionMode.UNION, (written_elements(declared, [Decimal(100)]),))
    with pytest.raises(UnsupportedStateError, match="native"):
        encode_parquet(state)


def test_file_without_a_description_is_refused(storage: CheckpointStorage) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": [1]}), sink)
    with pytest.raises(CorruptStateError, match="Parquet"):
        decode_parquet(bytes(sink.getvalue()))
    with pytest.raises(CorruptStateError):
        decode(bytes(sink.getvalue()))
