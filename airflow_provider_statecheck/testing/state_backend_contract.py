"""
Contract of a state backend as a test suite.

Subclass :class:`StateBackendContract` and define the fixture ``state_backend``. To test with another storage, override
the fixture ``storage``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.backends import StateBackend
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.function_harness import KeyedHarness
from airflow_provider_statecheck.testing.keyed_ownership_contract import (
    KeyedBatchContract,
    KeyedOwnershipContract,
    batch_of,
)
from airflow_provider_statecheck.testing.keyed_snapshot_contract import KeyedRestoreContract, KeyedSnapshotContract
from airflow_provider_statecheck.testing.keyed_state_contract import (
    KeyedAccessContract,
    KeyedMapContract,
    KeyedValuesContract,
)
from airflow_provider_statecheck.testing.keyed_ttl_contract import KeyedTtlContract, KeyedTtlRestoreContract

KEYS = [*"abcdefgh", "", "ü", "long " * 20]
VALUE: Any = ValueStateDescriptor("value", int)
LIST: Any = ListStateDescriptor("list", str)
MAP: Any = MapStateDescriptor("map", str, int)

_keys = st.sampled_from(KEYS)
_numbers = st.integers(-(1 << 63), (1 << 63) - 1)
_names = st.sampled_from(["x", "y", "z", ""])


class KeyedModel(RuleBasedStateMachine):
    """Model of value, list and map state with dictionaries."""

    backend: StateBackend

    @initialize(parallelism=st.integers(1, 4))
    def begin(self, parallelism: int) -> None:
        self.keyed = KeyedHarness(self.backend, CheckpointStorage.open(f"memory://{uuid.uuid4().hex}"))
        self.subtasks = [self.keyed.open((), index, parallelism) for index in range(parallelism)]
        self.values: dict[str, int] = {}
        self.lists: dict[str, list[str]] = {}
        self.maps: dict[str, dict[str, int | None]] = {}
        self.saved: list[Any] = []

    @rule(key=_keys, value=st.none() | _numbers)
    def update(self, key: str, value: int | None) -> None:
        self._state(key, VALUE).update(value)
        self.values.pop(key, None)
        if value is not None:
            self.values[key] = value

    @rule(keys=st.sets(_keys, min_size=1), value=st.none() | _numbers)
    def update_at_once(self, keys: set[str], value: int | None) -> None:
        for subtask in self.subtasks:
            own = [key for key in sorted(keys) if self.keyed.owner_of(key, self.subtasks) is subtask]
            _, batch = batch_of(self.keyed, own)
            subtask.batch_state(VALUE).put(batch, pa.array([value] * len(own), pa.int64()))
        for key in keys:
            self.values.pop(key, None)
            if value is not None:
                self.values[key] = value

    @rule(key=_keys, elements=st.lists(_names, max_size=3))
    def add_all(self, key: str, elements: list[str]) -> None:
        self._state(key, LIST).add_all(elements)
        if elements:
            self.lists.setdefault(key, []).extend(elements)

    @rule(key=_keys, elements=st.lists(_names, max_size=2))
    def replace_list(self, key: str, elements: list[str]) -> None:
        self._state(key, LIST).update(elements)
        self.lists.pop(key, None)
        if elements:
            self.lists[key] = list(elements)

    @rule(key=_keys, user_key=_names, value=st.none() | _numbers)
    def put(self, key: str, user_key: str, value: int | None) -> None:
        self._state(key, MAP).put(user_key, value)
        self.maps.setdefault(key, {})[user_key] = value

    @rule(key=_keys, user_key=_names)
    def remove(self, key: str, user_key: str) -> None:
        self._state(key, MAP).remove(user_key)
        entries = self.maps.get(key, {})
        entries.pop(user_key, None)
        if not entries:
            self.maps.pop(key, None)

    @rule(key=_keys)
    def clear(self, key: str) -> None:
        for descriptor, model in ((VALUE, self.values), (LIST, self.lists), (MAP, self.maps)):
            self._state(key, descriptor).clear()
            model.pop(key, None)

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.subtasks = self.keyed.reopen(self.subtasks, parallelism)

    @precondition(lambda self: len(self.saved) < 3)
    @rule()
    def snapshot(self) -> None:
        model = (
            dict(self.values),
            {k: list(v) for k, v in self.lists.items()},
            {k: dict(v) for k, v in self.maps.items()},
        )
        self.saved.append(([self.keyed.snapshot(subtask) for subtask in self.subtasks], model))

    @precondition(lambda self: self.saved)
    @rule(parallelism=st.integers(1, 4), data=st.data())
    def go_back(self, parallelism: int, data: st.DataObject) -> None:
        """Restore a snapshot that is written only now."""
        snapshots, model = self.saved.pop(data.draw(st.integers(0, len(self.saved) - 1)))
        self.subtasks = self.keyed.restore(snapshots, parallelism)
        self.values, self.lists, self.maps = model

    @rule()
    def everything_is_as_in_the_model(self) -> None:
        for key in KEYS:
            assert self._state(key, VALUE).value() == self.values.get(key)
            assert list(self._state(key, LIST).get()) == self.lists.get(key, [])
            found = {entry.key: entry.value for entry in self._state(key, MAP).entries()}
            assert found == self.maps.get(key, {})
        expected = len(self.values) + len(self.lists) + len(self.maps)
        assert sum(subtask.num_entries() for subtask in self.subtasks) == expected
        models: dict[str, Any] = {"value": self.values, "list": self.lists, "map": self.maps}
        for name, model in models.items():
            assert sorted(key for each in self.subtasks for key in each.get_keys(name)) == sorted(model)

    def teardown(self) -> None:
        self.everything_is_as_in_the_model()
        self.keyed.close()

    def _state(self, key: str, descriptor: Any) -> Any:
        owner = self.keyed.owner_of(key, self.subtasks)
        owner.set_current_key(key)
        return owner.get_partitioned_state(descriptor)


class KeyedModelContract:
    """Random operations have the same results as on dictionaries."""

    model_settings = settings(
        max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )

    def test_backend_does_what_dictionaries_would_do(self, state_backend: StateBackend) -> None:
        model = type("Model", (KeyedModel,), {"backend": state_backend})
        run_state_machine_as_test(model, settings=self.model_settings)


class StateBackendContract(
    KeyedAccessContract,
    KeyedValuesContract,
    KeyedMapContract,
    KeyedOwnershipContract,
    KeyedTtlContract,
    KeyedTtlRestoreContract,
    KeyedBatchContract,
    KeyedSnapshotContract,
    KeyedRestoreContract,
    KeyedModelContract,
):
    """All contracts that user functions and checkpoints rely on."""

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        """Return the backend under test."""
        raise NotImplementedError

    @pytest.fixture
    def storage(self) -> CheckpointStorage:
        """Return an empty storage."""
        return CheckpointStorage.open(f"memory://{uuid.uuid4().hex}")

    @pytest.fixture
    def keyed_by(
        self, state_backend: StateBackend, storage: CheckpointStorage
    ) -> Iterator[Callable[[Sequence[Any] | None], KeyedHarness]]:
        """Return a factory of operators, given the Arrow types of their keys."""
        made: list[KeyedHarness] = []

        def make(key_types: Sequence[Any] | None) -> KeyedHarness:
            made.append(KeyedHarness(state_backend, storage, key_types))
            return made[-1]

        yield make
        for each in made:
            each.close()

    @pytest.fixture
    def keyed(self, keyed_by: Callable[[Sequence[Any] | None], KeyedHarness]) -> KeyedHarness:
        """Return an operator with string keys."""
        return keyed_by(None)
