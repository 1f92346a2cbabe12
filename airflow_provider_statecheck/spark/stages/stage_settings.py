"""How a try of a stage is run, beside what the stage declares."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.interval_setting import AUTO as AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """What an operator or a script decides."""

    logical_date: datetime | None = None
    """By which state expires; without it the date that the run is named by, else the time at which its first try was
    registered."""
    checkpoint_interval: timedelta | str | int | None = None
    """How much time lies between two checkpoints; ``None`` takes one after each increment, ``auto`` finds it by what
    checkpoints cost and how often the job failed."""
    min_pause: timedelta | str | int | None = None
    renamed_uids: Mapping[str, str] = field(default_factory=dict)
    """New uids of functions by old ones, within the stage."""
    allow_non_restored_state: bool = False
    """Whether state of functions that are gone is dropped."""
    data_inline_threshold: int = 20 * 1024
    """Up to how many bytes state travels in the metadata."""
    state_config: Mapping[str, str] = field(default_factory=dict)
    """Which state backend a stage has that names none, and how it keeps state, by Flink's keys such as ``state.backend``."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of the filesystems of source and sink where they have none of their own."""
    combines: bool | None = None
    """Whether aggregates are combined in the JVM before the shuffle; ``None`` finds out where it pays."""
    monotonic: Callable[[], float] = time.monotonic
    """The clock for durations, in seconds."""
