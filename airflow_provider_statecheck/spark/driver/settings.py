"""What a stage's driver decides by itself, without the coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """How a driver opens its storage, and what its checkpoints may cost."""

    tolerable_failed_checkpoints: int = -1
    """How many checkpoints in a row may fail before the stage fails; ``-1`` for any number."""
    overhead_budget: float | None = None
    """Which part of the stage's time checkpointing may take; ``None`` for any."""
    checkpoint_interval_ms: int | None = None
    """How much time lies between two checkpoints that loops take by themselves; ``None`` for any."""
    min_pause_ms: int = 0
    """How much time lies after a completed checkpoint before a loop takes the next one by itself."""
    data_inline_threshold: int = 20 * 1024
    """Up to how many bytes small values are written into the metadata."""
    savepoint_dir: str | None = None
    """Where savepoints go whose request names no place."""
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Options of the fsspec filesystem; they may be credentials."""
