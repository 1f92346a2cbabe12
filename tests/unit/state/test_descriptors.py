"""What descriptors take, refuse and hand out."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.serializers.nested_columns import OptionalSerializer
from airflow_provider_statecheck.state.serializers.resolve import serializer_of

DAY = StateTtlConfig(timedelta(days=1))


class Mean:
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return (a[0] + b[0], a[1] + b[1])


def add(a, b):
    return a + b


def every_kind(name: Any = "s", **options: Any) -> dict[StateKind, StateDescriptor[Any]]:
    return {
        StateKind.VALUE: ValueStateDescriptor(name, int, **options),
        StateKind.LIST: ListStateDescriptor(name, int, **options),
        StateKind.REDUCING: ReducingStateDescriptor(name, add, int, **options),
        StateKind.AGGREGATING: AggregatingStateDescriptor(name, Mean(), tuple[int, int], **options),
        StateKind.FOLDING: FoldingStateDescriptor(name, 0, add, int, **options),
        StateKind.MAP: MapStateDescriptor(name, str, int, **options),
    }


@pytest.mark.parametrize("kind", StateKind)
class TestEveryKind:
    def test_it_can_be_sent_to_an_executor(self, kind: StateKind) -> None:
        descriptor = every_kind(ttl=DAY, queryable_name="q")[kind]
        before = pickle.loads(pickle.dumps(descriptor))
        assert (before.kind, before.name, before.ttl, before.queryable_name) == (kind, "s", DAY, "q")
        assert before.serializer.snapshot() == descriptor.serializer.snapshot()
        assert pickle.loads(pickle.dumps(descriptor)).serializer.snapshot() == descriptor.serializer.snapshot()

    def test_its_serializer_is_made_when_it_is_first_needed_and_once(self, kind: StateKind) -> None:
        descriptor = every_kind()[kind]
        first = descriptor.serializer
        descriptor.initialize_serializer_unless_set(pa.int32())
        assert descriptor.serializer is first

    def test_a_serializer_that_is_set_stays(self, kind: StateKind) -> None:
        descriptor = every_kind()[kind]
        descriptor.initialize_serializer_unless_set(pa.int32())
        descriptor.initialize_serializer_unless_set(str)
        descriptor.initialize_serializer_unless_set()
        assert descriptor.serializer.arrow_type == pa.int32()

    def test_two_of_the_same_name_and_kind_are_equal(self, kind: StateKind) -> None:
        assert every_kind()[kind] == every_kind()[kind]
        assert len({every_kind()[kind], every_kind()[kind]}) == 1
        assert every_kind()[kind] != every_kind("other")[kind]
        assert sum(every_kind()[kind] == other for other in every_kind().values()) == 1

    def test_it_lives_for_ever_and_is_not_queryable_unless_it_is_said(self, kind: StateKind) -> None:
        descriptor = every_kind()[kind]
        assert (descriptor.ttl, descriptor.queryable_name, descriptor.is_queryable) == (None, None, False)
        descriptor.enable_time_to_live(DAY)
        descriptor.set_queryable("q")
        assert (descriptor.ttl, descriptor.queryable_name, descriptor.is_queryable) == (DAY, "q", True)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_text_that_is_not_empty(name: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="non-empty string as name of a state"):
        ValueStateDescriptor(name, int)


def test_only_a_map_has_keys() -> None:
    assert MapStateDescriptor("m", str, int).key_serializer.arrow_type == pa.string()
    assert ListStateDescriptor("l", int).key_serializer is None
    descriptor: MapStateDescriptor[int] = MapStateDescriptor("m", str, int)
    assert descriptor.key_serializer is descriptor.key_serializer


def test_a_default_and_a_first_accumulator_are_copied_for_each_read() -> None:
    value: Any = ValueStateDescriptor("v", list[int], [1])
    value.default.append(2)
    assert value.default == [1]
    assert ValueStateDescriptor("v", int).default is None
    folding = FoldingStateDescriptor("f", [0], lambda a, b: [*a, b], list[int])
    folding.initial.append(2)
    assert folding.initial == [0]


def test_whether_a_whole_value_may_be_none_is_for_its_kind_of_state_to_say() -> None:
    optional: ValueStateDescriptor[int] = ValueStateDescriptor("v", int | None)
    assert optional.serializer.snapshot() == serializer_of(int).snapshot()
    assert MapStateDescriptor("m", str, int | None).serializer.snapshot() == serializer_of(int).snapshot()
    assert isinstance(MapStateDescriptor("m", str | None, int).key_serializer, OptionalSerializer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReducingStateDescriptor("r", None, int),  # type: ignore[arg-type]
        lambda: FoldingStateDescriptor("f", 0, None, int),  # type: ignore[arg-type]
        lambda: FoldingStateDescriptor("f", None, add, int),
        lambda: AggregatingStateDescriptor("a", object(), int),  # type: ignore[arg-type]
    ],
    ids=["reduce", "fold", "initial", "aggregate"],
)
def test_functions_and_first_accumulators_are_required(make: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected"):
        make()


def test_a_type_that_cannot_be_state_is_refused_when_it_is_needed() -> None:
    descriptor: ValueStateDescriptor[Any] = ValueStateDescriptor("v", object)
    with pytest.raises(UnsupportedStateError):
        _ = descriptor.serializer


@pytest.mark.parametrize("name", ["", 1, ".", "..", "a\nb", "a\x00", "\ud800"])
def test_a_queryable_name_is_a_text_that_a_url_can_contain(name: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="queryable_name"):
        ValueStateDescriptor("v", int, queryable_name=name)


def test_there_is_one_queryable_name() -> None:
    descriptor: ValueStateDescriptor[int] = ValueStateDescriptor("v", int, queryable_name="a")
    with pytest.raises(InvalidConfigurationError, match="'a' and 'b'"):
        descriptor.set_queryable("b")


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(microseconds=999), 5, None])
def test_a_time_to_live_is_at_least_a_millisecond(ttl: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="at least one millisecond"):
        StateTtlConfig(ttl)


def test_what_a_time_to_live_means_unless_it_is_said() -> None:
    config = StateTtlConfig(timedelta(seconds=1))
    assert config.update_type is UpdateType.ON_CREATE_AND_WRITE
    assert config.state_visibility is StateVisibility.NEVER_RETURN_EXPIRED
    assert (config.is_enabled, config.ttl_ms) == (True, 1000)


def test_a_value_expires_when_its_time_is_over() -> None:
    config = StateTtlConfig(timedelta(milliseconds=10))
    assert not config.is_expired(100, 109)
    assert config.is_expired(100, 110)


def test_a_disabled_time_to_live_is_none() -> None:
    disabled = StateTtlConfig(timedelta(milliseconds=10), UpdateType.DISABLED)
    assert not disabled.is_expired(100, 10**9)
    assert ValueStateDescriptor("v", int, ttl=disabled).ttl is None


def test_a_time_to_live_is_a_config() -> None:
    with pytest.raises(InvalidConfigurationError, match="StateTtlConfig"):
        ValueStateDescriptor("v", int, ttl=timedelta(1))  # type: ignore[call-overload]


def test_a_file_that_only_declares_state_loads_no_pyarrow() -> None:
    program = (
        "import sys\n"
        "from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor\n"
        "ValueStateDescriptor('v', int, 0)\n"
        "assert not {'pyarrow', 'numpy', 'pyspark'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
