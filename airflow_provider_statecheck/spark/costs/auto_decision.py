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


def decide(compute_seconds: float, write_seconds: float | None, *, unwritten_seconds: float = 0.0) -> Decision:
    """
    Compare what a retry would save with what writing costs now.

    :param compute_seconds: What computing the step took, from the cache of those before it.
    :param write_seconds: What writing it is expected to take; ``None`` where nothing was learned yet.
    :param unwritten_seconds: What computing those took that were not written since the last one that was; a retry
        repeats them too.
    """
    if write_seconds is None:
        return Decision(
            True, f"computing took {compute_seconds:.2f} s, how long writing takes is not known yet and measured now"
        )
    limit = COMPUTE_PER_WRITE * write_seconds
    is_written = compute_seconds + unwritten_seconds >= limit
    sign = ">=" if is_written else "<"
    return Decision(
        is_written,
        f"computing took {compute_seconds:.2f} s{_before(unwritten_seconds)} {sign} {limit:.2f} s = "
        f"{COMPUTE_PER_WRITE:g} x {write_seconds:.2f} s for writing",
    )


def _before(unwritten_seconds: float) -> str:
    return f" and {unwritten_seconds:.2f} s before it" if unwritten_seconds else ""
