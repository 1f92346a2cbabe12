"""Durations as people say them in a line of a log."""

from __future__ import annotations

_UNITS = ((86_400.0, "d", 48 * 3_600.0), (3_600.0, "h", 2 * 3_600.0), (60.0, "min", 120.0))


def readable_seconds(seconds: float) -> str:
    """Return a duration in its one fitting unit, such as ``1.2 s``, ``45 s``, ``4 min``, ``31 h`` or ``3 d``."""
    for size, unit, least in _UNITS:
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
