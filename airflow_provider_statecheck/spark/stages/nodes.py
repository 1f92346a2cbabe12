"""The parts of a declared stage, in the order in which data passes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.spark.stages.aggregates import Aggregate


@dataclass(frozen=True, slots=True, kw_only=True)
class MapNode:
    """A function of single elements, which may have operator state and, behind a key, keyed state."""

    uid: str
    function: Any
    output: Any = None
    """``None`` where elements keep their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNode:
    """From here on elements of one key meet in one subtask."""

    columns: tuple[str, ...]
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNode:
    """A function with keyed state."""

    uid: str
    function: Any
    output: Any = None
    """``None`` where it gives nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateNode:
    """Aggregates by key, of which the library knows how to compute them on whole columns."""

    uid: str
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    emits_changes: bool = False
    """Whether changed keys are given after each increment, in contrast to all of them at the end."""


Node = MapNode | KeyNode | ProcessNode | AggregateNode
"""What can stand between source and sink."""
