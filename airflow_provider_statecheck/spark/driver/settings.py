"""What a stage's driver decides by itself, without the coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """How a driver opens its storage, and what its checkpoints may cost."""

    tolerable_failed_checkpoints: int = -1
    """How many checkpoints in a row may fail before the stage fails; ``-1`` for any number."""
    overhead_budget: float | None = None
    """Which part of the stage's time checkpointing may take; ``None`` for any."""
    checkpoint_interval: str | None = None
    """How much time lies between two checkpoints that loops and stages with state take by themselves: milliseconds, or
    ``auto``; ``None`` for any."""
    min_pause_ms: int = 0
    """How much time lies after a completed checkpoint before the next one is taken by itself."""
    data_inline_threshold: int = 20 * 1024
    """Up to how many bytes small values are written into the metadata."""
    savepoint_dir: str | None = None
    """Where savepoints go whose request names no place."""
    allowed_locations: tuple[str, ...] = ()
    """Where checkpoints may name files beside their own directory and that of savepoints."""
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Options of the fsspec filesystem; they may be credentials."""
    logical_date: datetime | None = None
    """Of the Dag run: by it state expires."""
    state_config: dict[str, str] = field(default_factory=dict)
    """Which state backend a stage has that names none, and how it keeps state, by Flink's keys."""
    parallelism: int | None = None
    """How many subtasks a stage with state has; ``None`` for as many as it says itself."""
    renamed_uids: dict[str, str] = field(default_factory=dict)
    """Names of state that have changed: the old one and the new one."""
    allow_non_restored_state: bool = False
    """Whether state that nothing asks for any more may be left out."""
