"""Whatever is put, removed, saved, restored and split, the state is what a dict would be."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from airflow_provider_statecheck.checkpoint.states.assignment import redistribute_keyed
from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    PartialResultsDescriptor,
    ValueStateDescriptor,
)
from tests.unit.state.arrow.harness import BY_NUMBER, BY_TEXT_AND_NUMBER, GROUPS, Job

VALUE: ValueStateDescriptor[Any] = ValueStateDescriptor("value", int)
LIST: ListStateDescriptor[Any] = ListStateDescriptor("list", str)
MAP: MapStateDescriptor[Any] = MapStateDescriptor("map", str, int)
TOTAL = pa.struct([("n", pa.int64()), ("top", pa.int64())])
TOTALS = PartialResultsDescriptor("totals", TOTAL, (("n", "sum"), ("top", "max")))
NUMBERS = list(range(8))
NAMESPACES = st.sampled_from(["", "", "a", "b"])
USER_KEYS = st.sampled_from(["x", "y", "z"])


class ArrowStateModel(RuleBasedStateMachine):
    """Subtasks of one operator beside a dict."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._model: dict[tuple[str, Any, str], Any] = {}
        self._saved: list[tuple[list[tuple[KeyedStateHandle, ...]], dict[tuple[str, Any, str], Any]]] = []

    @initialize(
        several=st.booleans(),
        block_rows=st.sampled_from([1, 3, 4096]),
        part_bytes=st.sampled_from([1, 1 << 20]),
        memtable=st.sampled_from([1, 1 << 20]),
        inline=st.sampled_from([0, 20_480]),
    )
    def begin(self, several: bool, block_rows: int, part_bytes: int, memtable: int, inline: int) -> None:
        sizes = ArrowStateSettings(block_rows=block_rows, part_bytes=part_bytes, memtable_bytes=memtable)
        keys = BY_TEXT_AND_NUMBER if several else BY_NUMBER
        self._keys = [(f"k{n % 3}", n) for n in NUMBERS] if several else NUMBERS
        self._job = Job(Path(self._directory.name), keys, sizes, inline=inline)
        self._subtasks = [self._job.open()]

    @rule(number=st.sampled_from(NUMBERS), namespace=NAMESPACES, value=st.none() | st.integers(0, 9))
    def set_value(self, number: int, namespace: str, value: int | None) -> None:
        key = self._keys[number]
        Job.state(self._at(key), VALUE, namespace).update(value)
        self._set("value", key, namespace, value)

    @rule(number=st.sampled_from(NUMBERS), namespace=NAMESPACES, values=st.lists(st.text(max_size=2), max_size=2))
    def set_list(self, number: int, namespace: str, values: list[str]) -> None:
        key = self._keys[number]
        Job.state(self._at(key), LIST, namespace).update(values)
        self._set("list", key, namespace, values or None)

    @rule(
        number=st.sampled_from(NUMBERS), namespace=NAMESPACES, user_key=USER_KEYS, value=st.none() | st.integers(0, 9)
    )
    def put_entry(self, number: int, namespace: str, user_key: str, value: int | None) -> None:
        key = self._keys[number]
        Job.state(self._at(key), MAP, namespace).put(user_key, value)
        self._set("map", key, namespace, {**self._model.get(("map", key, namespace), {}), user_key: value})

    @rule(number=st.sampled_from(NUMBERS), namespace=NAMESPACES, user_key=USER_KEYS)
    def remove_entry(self, number: int, namespace: str, user_key: str) -> None:
        key = self._keys[number]
        Job.state(self._at(key), MAP, namespace).remove(user_key)
        entries = {k: v for k, v in self._model.get(("map", key, namespace), {}).items() if k != user_key}
        self._set("map", key, namespace, entries or None)

    @rule(number=st.sampled_from(NUMBERS), namespace=NAMESPACES)
    def clear_map(self, number: int, namespace: str) -> None:
        key = self._keys[number]
        Job.state(self._at(key), MAP, namespace).clear()
        self._set("map", key, namespace, None)

    @rule(numbers=st.sets(st.sampled_from(NUMBERS), min_size=1), value=st.none() | st.integers(0, 9))
    def put_batch(self, numbers: set[int], value: int | None) -> None:
        for subtask in self._subtasks:
            batch = self._job.batch(self._chosen(numbers, subtask))
            subtask.batch_state(VALUE).put(batch, pa.array([value] * len(batch), pa.int64()))
        for number in numbers:
            self._set("value", self._keys[number], "", value)

    @rule(numbers=st.sets(st.sampled_from(NUMBERS), min_size=1), value=st.integers(0, 9))
    def add_batch(self, numbers: set[int], value: int) -> None:
        self._write_totals(numbers, "add", {"n": value, "top": value})
        for number in numbers:
            old = self._model.get(("totals", self._keys[number], ""), {"n": 0, "top": 0})
            total = {"n": old["n"] + value, "top": max(old["top"], value)}
            self._set("totals", self._keys[number], "", total)

    @rule(numbers=st.sets(st.sampled_from(NUMBERS), min_size=1), value=st.none() | st.integers(0, 9))
    def replace_batch(self, numbers: set[int], value: int | None) -> None:
        total = None if value is None else {"n": value, "top": value}
        self._write_totals(numbers, "put", total)
        for number in numbers:
            self._set("totals", self._keys[number], "", total)

    def _write_totals(self, numbers: set[int], method: str, total: Any) -> None:
        for subtask in self._subtasks:
            batch = self._job.batch(self._chosen(numbers, subtask))
            getattr(subtask.batch_state(TOTALS), method)(batch, pa.array([total] * len(batch), TOTAL))

    @rule(numbers=st.sets(st.sampled_from(NUMBERS), min_size=1))
    def read_ahead(self, numbers: set[int]) -> None:
        for subtask in self._subtasks:
            subtask.prefetch(self._job.batch(self._chosen(numbers, subtask)))

    @rule(key_group=st.integers(0, GROUPS - 1))
    def seal(self, key_group: int) -> None:
        for subtask in self._subtasks:
            subtask.num_entries()  # counting seals the changes
            subtask.advance_to(key_group)

    @rule(completes=st.booleans())
    def save(self, completes: bool) -> None:
        self._saved.append((self._snapshots(), dict(self._model)))
        for subtask in self._subtasks:
            if completes:
                subtask.notify_checkpoint_complete(self._job.checkpoint_id)
            else:
                subtask.notify_checkpoint_aborted(self._job.checkpoint_id)

    @rule(parallelism=st.integers(1, 3), back=st.integers(0, 2))
    def restore(self, parallelism: int, back: int) -> None:
        if not self._saved:
            self.save(completes=True)
        handles, model = self._saved[-1 - min(back, len(self._saved) - 1)]
        self._model = dict(model)
        self._dispose()
        assigned = redistribute_keyed(handles, parallelism, GROUPS)
        ranges = [key_group_range_of(i, parallelism, GROUPS) for i in range(parallelism)]
        self._subtasks = [self._job.open(*own, owned=owned) for own, owned in zip(assigned, ranges, strict=True)]

    @rule()
    def every_key_has_what_the_dict_says(self) -> None:
        for key in self._keys:
            for namespace in ("", "a", "b"):
                assert self._read(key, namespace) == {
                    "value": self._model.get(("value", key, namespace)),
                    "list": self._model.get(("list", key, namespace), []),
                    "map": self._model.get(("map", key, namespace), {}),
                }
            total = Job.state(self._at(key), TOTALS).value()
            assert total == self._model.get(("totals", key, ""))

    @rule()
    def many_keys_at_once_have_it_too(self) -> None:
        for subtask in self._subtasks:
            batch = self._job.batch(self._chosen(set(NUMBERS), subtask))
            found = dict(zip(self._job.listed(batch), subtask.batch_state(VALUE).get(batch).to_pylist(), strict=True))
            assert found == {key: self._model.get(("value", key, "")) for key in found}
            totals = subtask.batch_state(TOTALS).get(batch).to_pylist()
            assert totals == [self._model.get(("totals", key, "")) for key in self._job.listed(batch)]

    @rule()
    def going_through_all_gives_each_once(self) -> None:
        assert sum(subtask.num_entries() for subtask in self._subtasks) == len(self._model)
        for descriptor in (VALUE, LIST, MAP, TOTALS):
            name = descriptor.name
            for subtask in self._subtasks:
                Job.state(subtask, descriptor)
            for namespace in ("", "a", "b"):
                found = [key for s in self._subtasks for key in s.get_keys(name, namespace)]
                assert sorted(found) == sorted(k for n, k, space in self._model if (n, space) == (name, namespace))
        assert sum(subtask.num_entries() for subtask in self._subtasks) == len(self._model)

    def teardown(self) -> None:
        if hasattr(self, "_subtasks"):
            self.every_key_has_what_the_dict_says()
            self.many_keys_at_once_have_it_too()
            self.going_through_all_gives_each_once()
        self._dispose()
        self._directory.cleanup()

    def _dispose(self) -> None:
        for subtask in getattr(self, "_subtasks", ()):
            subtask.dispose()

    def _snapshots(self) -> list[tuple[KeyedStateHandle, ...]]:
        streams = self._job.streams()
        results = [s.snapshot(self._job.checkpoint_id, 0, streams).run().handle for s in self._subtasks]
        # A subtask without state counts too: with as many subtasks as before each gets its own handles.
        return [() if handle is None else (handle,) for handle in results]

    def _set(self, name: str, key: Any, namespace: str, value: Any) -> None:
        if value is None:
            self._model.pop((name, key, namespace), None)
        else:
            self._model[name, key, namespace] = value

    def _chosen(self, numbers: set[int], subtask: ArrowKeyedStateBackend) -> list[Any]:
        owned: KeyGroupRange = subtask.key_group_range
        keys = [self._keys[number] for number in numbers]
        return [key for key in keys if self._job.keys.key_group_of(key, GROUPS) in owned]

    def _at(self, key: Any) -> ArrowKeyedStateBackend:
        group = self._job.keys.key_group_of(key, GROUPS)
        (subtask,) = (subtask for subtask in self._subtasks if group in subtask.key_group_range)
        subtask.set_current_key(key)
        return subtask

    def _read(self, key: Any, namespace: str) -> dict[str, Any]:
        subtask = self._at(key)
        entries = Job.state(subtask, MAP, namespace)
        return {
            "value": Job.state(subtask, VALUE, namespace).value(),
            "list": list(Job.state(subtask, LIST, namespace).get()),
            "map": dict(entries.entries()),
        }


TestArrowStateModel = ArrowStateModel.TestCase
TestArrowStateModel.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
