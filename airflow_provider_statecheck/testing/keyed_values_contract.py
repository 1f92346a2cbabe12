"""Rules of value, list, reducing, aggregating and folding states, for any state backend; part of ``StateBackendContract``."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.testing.keyed_harness import KeyedHarness
from airflow_provider_statecheck.testing.keyed_samples import Concatenate


class KeyedValuesContract:
    """What is read when nothing was written, and what null means."""

    @pytest.fixture
    def backend(self, keyed: KeyedHarness) -> AbstractKeyedStateBackend:
        """Return a backend whose current key is ``a``."""
        opened = keyed.open()
        opened.set_current_key("a")
        return opened

    def test_value_is_none_before_it_was_set(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", int))
        assert state.value() is None
        state.update(0)
        assert state.value() == 0

    def test_default_is_seen_until_a_value_is_set(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", int, 7))
        assert state.value() == 7
        state.update(1)
        assert state.value() == 1

    def test_updating_with_none_clears_the_value(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", int, 7))
        state.update(1)
        state.update(None)
        assert state.value() == 7
        assert backend.num_entries() == 0

    def test_default_is_copied_for_each_read(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", list[int], [1]))
        first: Any = state.value()
        first.append(2)
        assert state.value() == [1]
        backend.set_current_key("b")
        assert state.value() == [1]

    def test_reading_a_default_stores_nothing(self, backend: Any) -> None:
        assert backend.store.get_state(ValueStateDescriptor("n", list[int], [1])).value() == [1]
        assert backend.num_entries() == 0

    def test_empty_list_is_an_empty_iterable(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        assert list(state.get()) == []
        state.add(1)
        state.clear()
        assert list(state.get()) == []

    def test_list_keeps_the_order_of_insertion(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(3)
        state.add_all([1, 2])
        state.add(1)
        assert list(state.get()) == [3, 1, 2, 1] == list(state)

    def test_list_is_replaced_by_an_update(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(3)
        state.update([1, 2])
        assert list(state.get()) == [1, 2]

    def test_updating_with_no_elements_clears_the_list(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(3)
        state.update([])
        assert list(state.get()) == []
        assert backend.num_entries() == 0

    def test_adding_no_elements_does_nothing(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add_all([])
        assert backend.num_entries() == 0
        state.add(1)
        state.add_all([])
        assert list(state.get()) == [1]

    @pytest.mark.parametrize(
        ("method", "argument"),
        [("add", None), ("add_all", None), ("update", None), ("add_all", [2, None]), ("update", [None, 2])],
    )
    def test_null_in_a_list_is_refused_and_the_list_unchanged(self, backend: Any, method: str, argument: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(1)
        with pytest.raises(InvalidConfigurationError, match="None"):
            getattr(state, method)(argument)
        assert list(state.get()) == [1]

    def test_list_that_was_handed_in_stays_the_callers(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        mine = [1]
        state.update(mine)
        mine.append(2)
        assert list(state.get()) == [1]
        state.add(3)
        assert mine == [1, 2]

    def test_list_that_was_read_does_not_change_later(self, backend: Any) -> None:
        state = backend.store.get_list_state(ListStateDescriptor("l", int))
        state.add(1)
        found = state.get()
        state.add(2)
        assert list(found) == [1]

    def test_reducing_takes_the_first_value_as_it_is(self, backend: Any) -> None:
        state = backend.store.get_reducing_state(ReducingStateDescriptor("r", lambda a, b: a * 10 + b, int))
        assert state.get() is None
        state.add(1)
        assert state.get() == 1
        state.add(2)
        state.add(3)
        assert state.get() == 123

    def test_aggregating_adds_to_an_accumulator(self, backend: Any) -> None:
        state = backend.store.get_aggregating_state(AggregatingStateDescriptor("a", Concatenate(), list[str]))
        assert state.get() is None
        state.add("x")
        state.add("y")
        assert state.get() == "x,y"

    def test_folding_begins_with_a_copy_of_the_initial_value_for_each_key(self, backend: Any) -> None:
        def fold(accumulator: list[str], value: str) -> list[str]:
            accumulator.append(value)
            return accumulator

        state = backend.store.get_folding_state(FoldingStateDescriptor("f", ["0"], fold, list[str]))
        assert state.get() is None
        state.add("1")
        state.add("2")
        assert state.get() == ["0", "1", "2"]
        backend.set_current_key("b")
        state.add("3")
        assert state.get() == ["0", "3"]

    def test_adding_none_clears_what_was_added(self, backend: Any) -> None:
        store = backend.store
        states: list[Any] = [
            store.get_reducing_state(ReducingStateDescriptor("r", lambda a, b: a + b, str)),
            store.get_aggregating_state(AggregatingStateDescriptor("a", Concatenate(), list[str])),
            store.get_folding_state(FoldingStateDescriptor("f", "", lambda a, b: a + b, str)),
        ]
        for state in states:
            state.add("x")
            state.add(None)
            assert state.get() is None
        assert backend.num_entries() == 0

    def test_falsy_values_are_values(self, backend: Any) -> None:
        state = backend.store.get_state(ValueStateDescriptor("n", str, "default"))
        state.update("")
        assert state.value() == ""
        reducing = backend.store.get_reducing_state(ReducingStateDescriptor("r", lambda a, b: a + b, int))
        reducing.add(0)
        assert reducing.get() == 0
        assert backend.num_entries() == 2
