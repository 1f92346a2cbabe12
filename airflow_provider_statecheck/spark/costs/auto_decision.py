"""Whether writing a computed step pays, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE_PER_WRITE = 2.0
"""
How many times longer than writing a step computing it must take to be worth it.

A written step is read back at least once, which costs about as much again, and that before anything has failed.
"""


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a step, and why."""

    is_written: bool
    reason: str


def decide(compute_seconds: float, write_seconds: float | None) -> Decision:
    """
    Compare what a retry would save with what writing costs now.

    :param compute_seconds: What computing the step took.
    :param write_seconds: What writing it is expected to take; ``None`` where nothing was learned yet.
    """
    if write_seconds is None:
        return Decision(
            True, f"computing took {compute_seconds:.2f} s, how long writing takes is not known yet and measured now"
        )
    limit = COMPUTE_PER_WRITE * write_seconds
    is_written = compute_seconds >= limit
    sign = ">=" if is_written else "<"
    return Decision(
        is_written,
        f"computing took {compute_seconds:.2f} s {sign} {limit:.2f} s = {COMPUTE_PER_WRITE:g} x {write_seconds:.2f} s "
        f"for writing",
    )
