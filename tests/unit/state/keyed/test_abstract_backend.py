"""What all backends of keyed state do the same, by the one in memory."""

from __future__ import annotations

import enum
import math
import subprocess
import sys
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.backends import MemoryStateBackend
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateKind,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.function_harness import KEY_GROUPS, KeyedHarness

TTL = StateTtlConfig(timedelta(seconds=1))


@dataclass(frozen=True, eq=False)
class Identical:
    number: int


@pytest.fixture
def keyed() -> KeyedHarness:
    return KeyedHarness(MemoryStateBackend(), CheckpointStorage.open(f"memory://{uuid.uuid4().hex}"))


def test_registered_state_says_what_its_descriptor_says(keyed: KeyedHarness) -> None:
    backend = keyed.open()
    descriptor: Any = MapStateDescriptor("m", str, int, ttl=TTL)
    backend.store.get_map_state(descriptor)
    (state,) = backend.registered_states()
    assert (state.name, state.kind, state.is_map, state.ttl) == ("m", StateKind.MAP, True, TTL)
    (schema,) = backend.schemas()
    assert (schema.name, schema.kind, schema.ttl_ms) == ("m", StateKind.MAP, 1000)
    assert schema.value == descriptor.serializer.snapshot()
    assert schema.key == descriptor.key_serializer.snapshot()


def test_cells_of_state_that_expires_have_times() -> None:
    import pyarrow as pa

    timed = pa.struct([("value", pa.int64()), ("last_access_ms", pa.int64())])
    value: Any = ValueStateDescriptor("v", int, ttl=TTL)
    elements: Any = ListStateDescriptor("l", int, ttl=TTL)
    assert RegisteredState.of(value).cell_type == timed
    assert RegisteredState.of(elements).cell_type == pa.list_(timed)


@pytest.mark.parametrize(
    ("kind", "nan", "other"),
    [
        (float, math.nan, -0.0),
        (float | None, math.nan, None),
        (tuple[str, float], ("a", math.nan), ("a", math.inf)),
        (tuple[float, ...], (1.0, math.nan), ()),
        (tuple[Identical | None, int], (Identical(1), 2), (None, 2)),
    ],
)
def test_what_equals_nothing_is_no_key_of_a_map_because_it_would_never_be_found_again(
    keyed: KeyedHarness, kind: Any, nan: Any, other: Any
) -> None:
    backend = keyed.open()
    backend.set_current_key("a")
    state = backend.store.get_map_state(MapStateDescriptor("m", kind, int))
    state.put(other, 1)
    with pytest.raises(UnsupportedStateError, match="equals itself"):
        state.put(nan, 2)
    assert [tuple(entry) for entry in state.entries()] == [(other, 1)]


def test_same_descriptor_gives_the_same_object(keyed: KeyedHarness) -> None:
    backend = keyed.open()
    descriptor: Any = ValueStateDescriptor("v", int)
    assert backend.store.get_state(descriptor) is backend.store.get_state(descriptor)


def test_each_descriptor_has_its_own_default(keyed: KeyedHarness) -> None:
    backend = keyed.open()
    backend.set_current_key("a")
    assert [backend.store.get_state(ValueStateDescriptor("v", int, each)).value() for each in (1, 2, None)] == [
        1,
        2,
        None,
    ]


def test_other_time_to_live_under_one_name_is_refused(keyed: KeyedHarness) -> None:
    backend: Any = keyed.open()
    backend.store.get_state(ValueStateDescriptor("v", int))
    with pytest.raises(InvalidConfigurationError, match="time to live"):
        backend.store.get_state(ValueStateDescriptor("v", int, ttl=TTL))


def test_other_type_of_user_keys_under_one_name_is_refused(keyed: KeyedHarness) -> None:
    backend: Any = keyed.open()
    backend.store.get_map_state(MapStateDescriptor("m", int, int))
    with pytest.raises(InvalidConfigurationError, match="keys of"):
        backend.store.get_map_state(MapStateDescriptor("m", str, int))


def test_key_is_brought_into_its_form_when_its_group_is_computed() -> None:
    import pyarrow as pa

    keyed = KeyedHarness(MemoryStateBackend(), CheckpointStorage.open("memory://forms"), [pa.float64()])
    backend: Any = keyed.open()
    state = backend.store.get_state(ValueStateDescriptor("v", int))
    backend.set_current_key(-0.0)
    state.update(1)
    backend.set_current_key(0.0)
    assert state.value() == 1
    assert str(backend.current_key) == "0.0"


def test_key_with_a_null_part_is_refused_also_with_its_group() -> None:
    import pyarrow as pa

    keyed = KeyedHarness(MemoryStateBackend(), CheckpointStorage.open("memory://parts"), [pa.int64(), pa.string()])
    for key in ((1, None), (1,), 1, None):
        with pytest.raises(InvalidConfigurationError):
            keyed.open().set_current_key(key, 3)


@pytest.mark.parametrize("key_group", [-1, KEY_GROUPS])
def test_key_group_out_of_range_is_refused_and_leaves_the_current_key(keyed: KeyedHarness, key_group: int) -> None:
    backend = keyed.open()
    backend.set_current_key("a")
    with pytest.raises(InvalidConfigurationError, match="key group"):
        backend.set_current_key("b", key_group)
    assert backend.current_key == "a"


def test_key_is_back_when_a_function_for_all_keys_fails(keyed: KeyedHarness) -> None:
    backend: Any = keyed.open()
    descriptor: Any = ValueStateDescriptor("v", int)
    for key in "ab":
        backend.set_current_key(key)
        backend.store.get_state(descriptor).update(1)
    backend.set_current_key("z")
    with pytest.raises(ZeroDivisionError):
        backend.apply_to_all_keys("", descriptor, lambda key, state: 1 / 0)
    assert backend.current_key == "z"


def test_restored_state_goes_on_with_a_reconfigured_serializer(keyed: KeyedHarness) -> None:
    before = enum.Enum("Colour", ["RED", "BLUE"])  # type: ignore[misc]
    after = enum.Enum("Colour", ["BLUE", "GREEN", "RED"])  # type: ignore[misc]
    backend: Any = keyed.open()
    for key, name in (("a", "RED"), ("b", "BLUE")):
        backend.set_current_key(key)
        backend.store.get_state(ValueStateDescriptor("v", before)).update(before[name])
        backend.store.get_list_state(ListStateDescriptor("l", before)).add(before[name])
        backend.store.get_map_state(MapStateDescriptor("m", before, before)).put(before[name], before[name])
    for _ in range(2):
        backend = keyed.reopened(backend)
        for key, name in (("a", "RED"), ("b", "BLUE")):
            backend.set_current_key(key)
            assert backend.store.get_state(ValueStateDescriptor("v", after)).value() is after[name]
            assert list(backend.store.get_list_state(ListStateDescriptor("l", after)).get()) == [after[name]]
            assert backend.store.get_map_state(MapStateDescriptor("m", after, after)).get(after[name]) is after[name]


def test_backends_are_named_without_loading_arrow() -> None:
    code = (
        "import sys; import airflow_provider_statecheck.state.backends, "
        "airflow_provider_statecheck.state.arrow.keyed_backend; "
        "print([name for name in ('pyarrow', 'numpy', 'xxhash', 'airflow') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
