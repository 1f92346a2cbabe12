"""State of operators for tests of metadata, by example and by Hypothesis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    DistributionMode,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    MasterState,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle
from tests.unit.storage.documents import JOB_URI, METADATA_URI, make_document, make_snapshot

SAVEPOINT_URI = "s3://saved/savepoint-012345-0123456789ab"
SAVEPOINT = CheckpointProperties.for_savepoint()

INLINE = ByteStreamStateHandle("i", b"\x00\xff")
RANGE = KeyGroupRange(0, 2)


def segment(uri: str) -> SegmentFileStateHandle:
    return SegmentFileStateHandle(uri, 5, 7, CheckpointedStateScope.SHARED, "seg", "ab")


def operator_handle(stream: Any, mode: DistributionMode = DistributionMode.UNION) -> OperatorStateHandle:
    return OperatorStateHandle((("a", OperatorStateMeta((0, 4), mode)), ("b", OperatorStateMeta((), mode))), stream)


def make_operator_state(base: str = f"{JOB_URI}/chk-3") -> OperatorState:
    """Make state with every kind of handle, all files of it below one directory."""
    file = FileStateHandle(f"{base}/2-aa", 10, "cd")
    incremental = KeyedStateHandle(
        backend_id="backend",
        key_group_range=RANGE,
        checkpoint_id=2,
        shared=(("1.sst", file), ("2.sst", segment(f"{base}/2-bb"))),
        private=(("log", INLINE), ("wal", FileStateHandle(f"{base}/2-ab", 4))),
        meta=FileStateHandle(f"{base}/2-cc", 3),
    )
    subtask = OperatorSubtaskState(
        managed_operator=(operator_handle(file), operator_handle(INLINE, DistributionMode.BROADCAST)),
        raw_operator=(operator_handle(segment(f"{base}/2-dd"), DistributionMode.SPLIT_DISTRIBUTE),),
        managed_keyed=(incremental, replace(incremental, key_group_range=KeyGroupRange(1, 0), shared=(), meta=None)),
    )
    return OperatorState(
        operator_id=OperatorId("a" * 32),
        uid="sum",
        name="Sum ü",
        parallelism=12,
        max_parallelism=128,
        subtask_states={11: subtask, 2: OperatorSubtaskState()},
        coordinator_state=FileStateHandle(f"{base}/2-ee", 1, "ef"),
    )


def make_savepoint(directory: str = SAVEPOINT_URI, **changes: Any) -> CheckpointDocument:
    """Make a savepoint of which everything lies in its directory."""
    values: dict[str, Any] = {
        "properties": SAVEPOINT,
        "snapshots": (make_snapshot(uri=f"{directory}/shared/raw-1a/2-ff"),),
        "state": FileStateHandle(f"{directory}/2-ff", 7, "cd"),
        "operator_states": (make_operator_state(directory),),
        "master_states": (MasterState(name="hook", version=2, data=b"\x00{}"),),
    }
    return make_document(**values | changes)


_text = st.text(st.characters(), max_size=8)
_number = st.integers(0, 2**62 - 1)
_uri = st.one_of(
    st.sampled_from([JOB_URI, METADATA_URI.rpartition("/")[0], SAVEPOINT_URI, "job://x", "dir://y", "s3://b"]),
).flatmap(lambda base: _text.map(lambda rest: f"{base}/{rest}"))
_streams = st.one_of(
    st.builds(ByteStreamStateHandle, _text, st.binary(max_size=9)),
    st.builds(FileStateHandle, _uri, _number, _text),
    st.builds(SegmentFileStateHandle, _uri, _number, _number, st.sampled_from(CheckpointedStateScope), _text, _text),
)
_ranges = st.builds(KeyGroupRange, st.integers(0, 9), st.integers(-1, 12))


def _tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=2).map(tuple)


_keyed = st.builds(
    KeyedStateHandle,
    backend_id=_text,
    key_group_range=_ranges,
    checkpoint_id=_number,
    shared=_tuples(st.tuples(_text, _streams)),
    private=_tuples(st.tuples(_text, _streams)),
    meta=st.none() | _streams,
)
_operator = st.builds(
    OperatorStateHandle,
    _tuples(st.tuples(_text, st.builds(OperatorStateMeta, _tuples(_number), st.sampled_from(DistributionMode)))),
    _streams,
)
_subtasks = st.builds(
    OperatorSubtaskState,
    managed_operator=_tuples(_operator),
    raw_operator=_tuples(_operator),
    managed_keyed=_tuples(_keyed),
)
operator_states = st.builds(
    OperatorState,
    operator_id=_text.map(OperatorId),
    uid=_text,
    name=_text,
    parallelism=st.just(5),
    max_parallelism=st.integers(5, 2**15),
    subtask_states=st.dictionaries(st.integers(0, 4), _subtasks, max_size=2),
    coordinator_state=st.none() | _streams,
)
finished_states = st.builds(
    OperatorState,
    operator_id=_text.map(OperatorId),
    uid=_text,
    parallelism=st.integers(0, 2**15),
    max_parallelism=st.integers(0, 2**15),
    is_fully_finished=st.just(True),
)
properties = st.builds(
    CheckpointProperties,
    snapshot_type=st.sampled_from(CheckpointType),
    savepoint_format=st.sampled_from(SavepointFormat),
    force=st.booleans(),
    discard_on_subsumed=st.booleans(),
    discard_on_finished=st.booleans(),
    discard_on_cancelled=st.booleans(),
    discard_on_failed=st.booleans(),
    discard_on_suspended=st.booleans(),
    unclaimed=st.booleans(),
)
documents = st.builds(
    make_document,
    job_name=_text,
    checkpoint_id=_number,
    snapshots=_tuples(st.builds(make_snapshot, name=_text, uri=_uri)),
    state=st.builds(FileStateHandle, _uri, _number, _text) | st.builds(InlineStateHandle, value=st.just({"a": []})),
    properties=properties,
    operator_states=_tuples(operator_states | finished_states),
    master_states=_tuples(st.builds(MasterState, name=_text, version=_number, data=st.binary(max_size=9))),
)
