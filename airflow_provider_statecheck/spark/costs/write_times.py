"""How long a snapshot takes to be written, learned from those that were written after they had been computed."""

from __future__ import annotations

from typing import Any

MIB = 1024 * 1024
ASSUMED_BYTES_PER_SECOND = 64 * MIB
"""Of storage that nothing is known of yet."""
_KEPT = 16
# Of a smaller write most may be the start of a Spark job or a slow commit, which says nothing about bytes; a rate learned
# from one would keep all large steps from being written, and so from ever correcting it.
_TELLING_BYTES = 64 * MIB


class WriteTimes:
    """
    The last writes of a stage that were timed alone, apart from computing.

    A write is taken to cost a fixed part, the shortest small one seen, and its bytes at the rate of all larger ones
    together.

    :param encoded: What :meth:`encode` gave.
    """

    def __init__(self, encoded: Any = ()) -> None:
        self._seen: list[tuple[int, float]] = [(int(size), float(seconds)) for size, seconds in encoded]

    def encode(self) -> list[Any]:
        """Return the writes as JSON."""
        return [[size, round(seconds, 3)] for size, seconds in self._seen]

    def observe(self, size_bytes: int, seconds: float) -> None:
        """Learn from a write; only the last ones count."""
        self._seen = [*self._seen, (size_bytes, seconds)][-_KEPT:]

    def expected_seconds(self, size_bytes: int) -> float | None:
        """Return how long writing so many bytes will take; ``None`` where nothing was learned."""
        if not self._seen:
            return None
        fixed = self._fixed_seconds()
        return fixed + size_bytes / self._bytes_per_second(fixed)

    def part_of(self, seconds: float, size_bytes: int) -> float:
        """Return which part of computing and writing in one go was writing."""
        expected = self.expected_seconds(size_bytes)
        return min(seconds, size_bytes / ASSUMED_BYTES_PER_SECOND if expected is None else expected)

    def _fixed_seconds(self) -> float:
        # Where only large ones were seen a small one is thought to be free; when it is written it shows.
        return min((seconds for size, seconds in self._seen if size < _TELLING_BYTES), default=0.0)

    def _bytes_per_second(self, fixed: float) -> float:
        telling = [
            (size, seconds - fixed) for size, seconds in self._seen if size >= _TELLING_BYTES and seconds > fixed
        ]
        if not telling:
            return ASSUMED_BYTES_PER_SECOND
        return sum(size for size, _ in telling) / sum(seconds for _, seconds in telling)
