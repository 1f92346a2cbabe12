"""A state of each kind, for suites of state backends."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)


class Concatenate:
    """Collects texts in a list and gives them as one."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: str, accumulator: list[str]) -> list[str]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[str]) -> str:
        return ",".join(accumulator)

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        return a + b


def all_descriptors() -> dict[str, Any]:
    """Return a descriptor of each kind."""
    return {
        "value": ValueStateDescriptor("value", int),
        "list": ListStateDescriptor("list", int),
        "reducing": ReducingStateDescriptor("reducing", lambda a, b: a + b, int),
        "aggregating": AggregatingStateDescriptor("aggregating", Concatenate(), list[str]),
        "folding": FoldingStateDescriptor("folding", ["start"], lambda acc, value: [*acc, value], list[str]),
        "map": MapStateDescriptor("map", str, int),
    }


def read_all(backend: Any) -> dict[str, Any]:
    """Return what the current key has in a state of each kind."""
    states = {name: backend.get_partitioned_state(each) for name, each in all_descriptors().items()}
    return {
        "value": states["value"].value(),
        "list": list(states["list"].get()),
        "reducing": states["reducing"].get(),
        "aggregating": states["aggregating"].get(),
        "folding": states["folding"].get(),
        "map": {key: value for key, value in states["map"].entries()},  # noqa: C416 - entries, not pairs
    }


def write_all(backend: Any, number: int) -> None:
    """Give the current key something in a state of each kind."""
    states = {name: backend.get_partitioned_state(each) for name, each in all_descriptors().items()}
    states["value"].update(number)
    states["list"].add_all([number, number + 1])
    states["reducing"].add(number)
    states["aggregating"].add(str(number))
    states["folding"].add(str(number))
    states["map"].put("number", number)


NOTHING: dict[str, Any] = {"value": None, "list": [], "reducing": None, "aggregating": None, "folding": None, "map": {}}


def written(number: int) -> dict[str, Any]:
    """Return what :func:`read_all` gives after :func:`write_all`."""
    return {
        "value": number,
        "list": [number, number + 1],
        "reducing": number,
        "aggregating": str(number),
        "folding": ["start", str(number)],
        "map": {"number": number},
    }
