"""Operator state that goes through a snapshot and comes back, also to another number of subtasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.states.assignment import assign_states
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.checkpoint.states.matching import RestoreTarget
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    StateMigrationError,
    StorageError,
)
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.state.operator.stream_format import decode
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import (
    FsCheckpointStreamFactory,
    MemoryCheckpointStreamFactory,
)
from airflow_provider_statecheck.storage.views.state_files import read_state
from tests.unit.state.operator.snapshots import Handles, numbers, rates, restored, saved, saved_subtask
from tests.unit.state.serializers.test_custom_serializers import Evolving, Sketch

Again = Callable[[DefaultOperatorStateBackend], DefaultOperatorStateBackend]


@pytest.fixture
def again(storage: CheckpointStorage, streams: FsCheckpointStreamFactory) -> Again:
    """Give what a backend is restored to from its own snapshot."""
    return lambda backend: restored(storage, saved(backend, streams))


Backend = DefaultOperatorStateBackend


@dataclass
class Point:
    x: int
    label: str | None


@dataclass
class WiderPoint:
    x: int
    label: str | None
    y: int = 7


@dataclass
class TurnedPoint:
    label: str | None
    x: int


@dataclass(frozen=True)
class LongKey:
    x: int
    label: str


@dataclass(frozen=True)
class ShortKey:
    x: int


@pytest.mark.parametrize(
    ("element_type", "elements"),
    [
        (int, [1, -(2**40), 3]),
        (str, ["", "ä", "x" * 1000]),
        (bytes, [b"", b"\x00\xff"]),
        (bool, [True, False]),
        (Decimal, [Decimal("1.5"), Decimal(-2)]),
        (Point, [Point(1, None), Point(2, "b")]),
        (list[int], [[], [1, 2]]),
        (dict[str, int], [{"a": 1}, {}]),
    ],
)
def test_elements_come_back_equal(backend: Backend, again: Again, element_type: Any, elements: list[Any]) -> None:
    backend.get_list_state(numbers("a", element_type)).update(elements)
    backend.get_union_list_state(numbers("b", element_type)).update(elements)
    backend.get_broadcast_state(rates("c", int, element_type)).put_all(dict(enumerate(elements)))
    found = again(backend)
    assert list(found.get_list_state(numbers("a", element_type))) == elements
    assert list(found.get_union_list_state(numbers("b", element_type))) == elements
    assert dict(found.get_broadcast_state(rates("c", int, element_type))) == dict(enumerate(elements))


def test_an_entry_without_value_comes_back(backend: Backend, again: Again) -> None:
    backend.get_broadcast_state(rates()).put("a", None)
    assert dict(again(backend).get_broadcast_state(rates())) == {"a": None}


def test_all_states_are_registered_before_they_are_asked_for_also_empty_ones(backend: Backend, again: Again) -> None:
    backend.get_list_state(numbers("full")).add(1)
    backend.get_list_state(numbers("empty"))
    backend.get_union_list_state(numbers("union"))
    backend.get_broadcast_state(rates("map"))
    found = again(backend)
    assert found.get_registered_state_names() == {"full", "empty", "union"}
    assert found.get_registered_broadcast_state_names() == {"map"}
    assert list(found.get_list_state(numbers("empty"))) == []
    assert dict(found.get_broadcast_state(rates("map"))) == {}


def test_state_that_nobody_asks_for_is_carried_on(backend: Backend, again: Again) -> None:
    backend.get_list_state(numbers("kept", Point)).add(Point(1, "a"))
    backend.get_broadcast_state(rates("map")).put("a", 0.5)
    backend.get_list_state(numbers("empty"))
    found = again(again(again(backend)))
    assert found.schemas() == backend.schemas()
    assert list(found.get_list_state(numbers("kept", Point))) == [Point(1, "a")]
    assert dict(found.get_broadcast_state(rates("map"))) == {"a": 0.5}


def test_restored_elements_are_changed_like_others(backend: Backend, again: Again) -> None:
    backend.get_list_state(numbers()).add(1)
    found = again(backend)
    found.get_list_state(numbers()).add(2)
    assert list(again(found).get_list_state(numbers())) == [1, 2]


def test_elements_of_several_old_subtasks_come_in_their_order(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    handles: Handles = ()
    for subtask in range(3):
        old = DefaultOperatorStateBackend()
        old.get_list_state(numbers()).update([10 * subtask, 10 * subtask + 1])
        handles += saved(old, streams)
    found = restored(storage, handles)
    assert list(found.get_list_state(numbers())) == [0, 1, 10, 11, 20, 21]


def test_only_the_elements_are_restored_that_the_handle_names(
    backend: Backend, storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    backend.get_list_state(numbers()).update([10, 11, 12, 13])
    (handle,) = saved(backend, streams)
    ((name, meta),) = handle.states
    part = OperatorStateMeta(offsets=meta.offsets[1:3], mode=meta.mode)
    found = restored(storage, [OperatorStateHandle(states=((name, part),), stream=handle.stream)])
    assert list(found.get_list_state(numbers())) == [11, 12]


def test_state_of_several_streams_is_carried_on_as_one_piece(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    handles: Handles = ()
    for element in (1, None, 2, None):
        old = DefaultOperatorStateBackend()
        old.get_list_state(numbers()).update([] if element is None else [element])
        handles += saved(old, streams)
    (handle,) = saved(restored(storage, handles), streams)
    ((state,),) = [decode(read_state(storage, handle.stream))]
    assert [len(piece) for piece in state.pieces] == [2]


def test_empty_pieces_of_other_versions_are_not_carried_on(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    old, new = DefaultOperatorStateBackend(), DefaultOperatorStateBackend()
    old.get_list_state(numbers("a", Point))
    new.get_list_state(numbers("a", WiderPoint)).add(WiderPoint(1, "a"))
    found = restored(storage, saved(old, streams) + saved(new, streams))
    assert [schema.value for schema in found.schemas()] == [numbers("a", WiderPoint).serializer.snapshot()]


class TestEvolution:
    def test_elements_of_lists_are_migrated(self, backend: Backend, again: Again) -> None:
        backend.get_list_state(numbers("a", Point)).add(Point(1, "a"))
        found = again(backend)
        assert list(found.get_list_state(numbers("a", WiderPoint))) == [WiderPoint(1, "a", 7)]
        assert list(again(found).get_list_state(numbers("a", WiderPoint))) == [WiderPoint(1, "a", 7)]

    def test_keys_and_values_of_broadcast_maps_are_migrated(self, backend: Backend, again: Again) -> None:
        import pyarrow as pa

        backend.get_broadcast_state(rates("a", pa.int32(), Point)).put(1, Point(1, "a"))
        found = again(backend).get_broadcast_state(rates("a", pa.int64(), WiderPoint))
        assert dict(found) == {1: WiderPoint(1, "a", 7)}

    def test_a_reconfigured_serializer_is_used_from_then_on(self, backend: Backend, again: Again) -> None:
        backend.get_list_state(numbers("a", Point)).add(Point(1, "a"))
        found = again(backend)
        state = found.get_list_state(numbers("a", TurnedPoint))
        state.add(TurnedPoint("b", 2))
        assert found.schemas() == backend.schemas()
        both = [TurnedPoint("a", 1), TurnedPoint("b", 2)]
        assert list(again(found).get_list_state(numbers("a", TurnedPoint))) == both
        assert again(found).schemas() == backend.schemas()

    def test_keys_of_broadcast_maps_are_not_migrated_into_each_other(self, backend: Backend, again: Again) -> None:
        backend.get_broadcast_state(rates("a", LongKey, int)).put_all({LongKey(1, "x"): 1, LongKey(1, "y"): 2})
        found = again(backend)
        with pytest.raises(StateMigrationError, match="two could become one"):
            found.get_broadcast_state(rates("a", ShortKey, int))
        assert len(dict(found.get_broadcast_state(rates("a", LongKey, int)))) == 2

    def test_what_cannot_be_migrated_fails_at_the_first_access_only(self, backend: Backend, again: Again) -> None:
        backend.get_list_state(numbers("a", str)).add("text")
        backend.get_list_state(numbers("b", int)).add(1)
        found = again(backend)
        assert list(found.get_list_state(numbers("b", int))) == [1]
        with pytest.raises(StateMigrationError, match="a") as caught:
            found.get_list_state(numbers("a", int))
        assert "string" in str(caught.value)
        assert "int64" in str(caught.value)
        assert list(found.get_list_state(numbers("a", str))) == ["text"]

    def test_what_cannot_be_migrated_is_carried_on_after_the_failure(self, backend: Backend, again: Again) -> None:
        backend.get_broadcast_state(rates("a", str, str)).put("k", "text")
        found = again(backend)
        with pytest.raises(StateMigrationError):
            found.get_broadcast_state(rates("a", str, int))
        assert dict(again(found).get_broadcast_state(rates("a", str, str))) == {"k": "text"}

    @pytest.mark.parametrize(
        ("wanted", "element", "expected"),
        [
            (WiderPoint, WiderPoint(2, "new", 9), [WiderPoint(1, "old", 7), WiderPoint(3, "old", 7)]),
            (TurnedPoint, TurnedPoint("new", 2), [TurnedPoint("old", 1), TurnedPoint("old", 3)]),
        ],
        ids=["migrated", "reconfigured"],
    )
    def test_pieces_of_several_versions_become_one_list(
        self,
        storage: CheckpointStorage,
        streams: FsCheckpointStreamFactory,
        again: Again,
        wanted: Any,
        element: Any,
        expected: list[Any],
    ) -> None:
        handles: Handles = ()
        for each in (Point(1, "old"), element, Point(3, "old")):
            old = DefaultOperatorStateBackend()
            old.get_list_state(numbers("a", type(each))).add(each)
            handles += saved(old, streams)
        carried = again(restored(storage, handles))
        assert len(carried.schemas()) == 2
        found = carried.get_list_state(numbers("a", wanted))
        assert list(found) == [expected[0], element, expected[1]]
        assert list(again(carried).get_list_state(numbers("a", wanted))) == list(found)

    def test_pieces_that_other_serializers_of_the_user_read_become_one_list(
        self, storage: CheckpointStorage, streams: FsCheckpointStreamFactory
    ) -> None:
        handles: Handles = ()
        for separator in (",", ";"):
            old = DefaultOperatorStateBackend()
            old.get_list_state(numbers("a", Evolving(2, separator))).add(Sketch(["x", "y"]))
            handles += saved(old, streams)
        found = restored(storage, handles).get_list_state(numbers("a", Evolving(2)))
        assert list(found) == [Sketch(["x", "y"])] * 2


class TestDamage:
    @pytest.fixture
    def handle(self, backend: Backend, streams: FsCheckpointStreamFactory) -> OperatorStateHandle:
        backend.get_list_state(numbers()).update(range(1, 1000))
        return saved(backend, streams)[0]

    def restore_bytes(self, handle: OperatorStateHandle, data: bytes) -> DefaultOperatorStateBackend:
        return restored(STORAGE, [replace(handle, stream=ByteStreamStateHandle("damaged", data))])

    def data_of(self, handle: OperatorStateHandle, storage: CheckpointStorage) -> bytes:
        return storage.read_bytes(handle.stream.uri)  # type: ignore[union-attr]

    @pytest.mark.parametrize("data", [b"", b"ARROW1", b"statecheck-metadata 1 2\n{}", b"statecheck-operator-state\n"])
    def test_other_bytes_are_told(self, handle: OperatorStateHandle, data: bytes) -> None:
        with pytest.raises(CorruptStateError, match="begins with 'statecheck-operator-state'"):
            self.restore_bytes(handle, data)

    def test_a_newer_version_is_told(self, handle: OperatorStateHandle, storage: CheckpointStorage) -> None:
        newer = self.data_of(handle, storage).replace(b"state 1 ", b"state 2 ", 1)
        with pytest.raises(IncompatibleCheckpointError, match="version 1, found b'2'"):
            self.restore_bytes(handle, newer)

    @pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
    def test_missing_bytes_are_told(self, handle: OperatorStateHandle, storage: CheckpointStorage, kept: float) -> None:
        data = self.data_of(handle, storage)
        with pytest.raises(CorruptStateError):
            self.restore_bytes(handle, data[: int(len(data) * kept)])

    @pytest.mark.parametrize("count", [b"0", b"-1"])
    def test_pieces_that_the_header_does_not_count_are_told(
        self, handle: OperatorStateHandle, storage: CheckpointStorage, count: bytes
    ) -> None:
        data = self.data_of(handle, storage).replace(b"state 1 1\n", b"state 1 %s\n" % count, 1)
        with pytest.raises(CorruptStateError, match="Expected 0 pieces of operator state, found further bytes"):
            decode(data)

    def test_changed_bytes_are_told(self, handle: OperatorStateHandle, storage: CheckpointStorage) -> None:
        data = bytearray(self.data_of(handle, storage))
        data[-20] ^= 1
        storage.delete_file(handle.stream.uri)  # type: ignore[union-attr]
        storage.write_bytes(handle.stream.uri, bytes(data))  # type: ignore[union-attr]
        with pytest.raises(CorruptStateError):
            restored(storage, [handle])

    def test_a_missing_file_is_told(self, handle: OperatorStateHandle, storage: CheckpointStorage) -> None:
        storage.delete_file(handle.stream.uri)  # type: ignore[union-attr]
        with pytest.raises((StorageError, LookupError)):
            restored(storage, [handle])

    def test_elements_that_are_not_there_are_told(
        self, handle: OperatorStateHandle, storage: CheckpointStorage
    ) -> None:
        meta = OperatorStateMeta(offsets=(5, 5000), mode=DistributionMode.SPLIT_DISTRIBUTE)
        with pytest.raises(CorruptStateError, match="Expected 2 elements of 'numbers'"):
            restored(storage, [OperatorStateHandle(states=(("numbers", meta),), stream=handle.stream)])

    def test_a_state_that_is_not_there_is_told(self, handle: OperatorStateHandle, storage: CheckpointStorage) -> None:
        meta = OperatorStateMeta(offsets=(0,), mode=DistributionMode.SPLIT_DISTRIBUTE)
        with pytest.raises(CorruptStateError, match="other"):
            restored(storage, [OperatorStateHandle(states=(("other", meta),), stream=handle.stream)])

    def test_streams_that_contradict_each_other_are_told(
        self, backend: Backend, storage: CheckpointStorage, streams: FsCheckpointStreamFactory
    ) -> None:
        backend.get_list_state(numbers()).add(1)
        other = DefaultOperatorStateBackend()
        other.get_union_list_state(numbers()).add(1)
        with pytest.raises(IncompatibleCheckpointError, match="by split_distribute, found union"):
            restored(storage, saved(backend, streams) + saved(other, streams))


STREAMS = MemoryCheckpointStreamFactory(max_state_size=1_000_000)
STORAGE = CheckpointStorage.open("memory://statecheck-rescaling")
OPERATOR = operator_id_of("buffer")

Subtasks = list[DefaultOperatorStateBackend]
ELEMENTS = st.lists(st.lists(st.text("abc", min_size=1, max_size=2), max_size=6), min_size=1, max_size=4)


def with_lists(of_subtasks: Sequence[Sequence[str]]) -> Subtasks:
    made = [DefaultOperatorStateBackend() for _ in of_subtasks]
    for backend, elements in zip(made, of_subtasks, strict=True):
        backend.get_list_state(numbers("a", str)).update(elements)
    return made


def lists(found: Subtasks) -> list[list[str]]:
    return [list(backend.get_list_state(numbers("a", str))) for backend in found]


def rescaled(old: Subtasks, parallelism: int) -> Subtasks:
    """Take a snapshot and restore it."""
    state = OperatorState(
        operator_id=OPERATOR,
        uid="buffer",
        parallelism=len(old),
        max_parallelism=128,
        subtask_states={index: saved_subtask(backend, STREAMS) for index, backend in enumerate(old)},
    )
    target = RestoreTarget(operator_id=OPERATOR, uid="buffer", parallelism=parallelism, max_parallelism=128)
    given = assign_states([target], [state]).subtask_states
    nothing = OperatorSubtaskState()
    handles = [given.get((OPERATOR, index), nothing).managed_operator for index in range(parallelism)]
    return [restored(STORAGE, each, index) for index, each in enumerate(handles)]


@settings(deadline=None)
@given(of_subtasks=ELEMENTS, parallelisms=st.lists(st.integers(1, 7), min_size=1, max_size=3))
def test_elements_keep_their_order_however_often_they_move(
    of_subtasks: list[list[str]], parallelisms: list[int]
) -> None:
    found = with_lists(of_subtasks)
    for parallelism in parallelisms:
        found = rescaled(found, parallelism)
    assert [element for share in lists(found) for element in share] == [e for share in of_subtasks for e in share]


@settings(deadline=None)
@given(of_subtasks=ELEMENTS, parallelism=st.integers(1, 7))
def test_each_subtask_gets_all_of_a_union_list_and_one_copy_of_a_broadcast_map(
    of_subtasks: list[list[str]], parallelism: int
) -> None:
    old = with_lists(of_subtasks)
    for index, (backend, elements) in enumerate(zip(old, of_subtasks, strict=True)):
        backend.get_union_list_state(numbers("u", str)).update(elements)
        backend.get_broadcast_state(rates("r", str, int)).put_all({"same": 1, "from": index})
    for index, backend in enumerate(rescaled(old, parallelism)):
        assert list(backend.get_union_list_state(numbers("u", str))) == [e for share in of_subtasks for e in share]
        assert dict(backend.get_broadcast_state(rates("r", str, int))) == {"same": 1, "from": index % len(old)}


def test_state_that_nobody_asks_for_is_dealt_out_too() -> None:
    unread = rescaled(with_lists(["123", "4567"]), 5)
    assert [backend.get_registered_state_names() for backend in unread] == [{"a"}] * 5
    assert lists(rescaled(unread, 3)) == [["1", "2", "3"], ["4", "5"], ["6", "7"]]


def test_union_list_that_nobody_asks_for_does_not_grow() -> None:
    backends = with_lists(["1", "2"])
    for index, backend in enumerate(backends):
        backend.get_union_list_state(numbers("u")).update([index])
    backends = rescaled(rescaled(rescaled(backends, 3), 2), 2)
    assert [list(backend.get_union_list_state(numbers("u"))) for backend in backends] == [[0, 1]] * 2
