"""What became of one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What became of one step in this try."""

    name: str
    """With its items: ``days[2026-01-01]/sessions``."""
    is_restored: bool
    seconds: float
    """What computing and writing it took, in the try that did so."""
    size_bytes: int
    rows: int | None
    write_seconds: float = 0.0
    """What writing it took in this try, as measured or estimated; 0 for a step that was restored."""
