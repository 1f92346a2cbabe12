"""The size of the next part of a step, from measured times."""

from __future__ import annotations

from airflow_provider_statecheck.spark.status_log import SmoothedRate

LONGEST_SECONDS = 60.0
SHORTEST_SECONDS = 3.0
_PARTS_OF_A_STEP = 20
"""
A part takes at most this fraction of the estimated time of the step, so that a failure loses little of a short one.
"""
_FIRST_PARTS = 200
_FIRST_BYTES = 32 * 1024 * 1024
_LARGEST_GROWTH = 4.0
"""The first parts are small and mostly measure the start of a Spark job; their rate is too low to rely on."""
_WINDOW_SECONDS = 60.0


class PartSizes:
    """
    Chooses the amount of input of each part.

    The time of the step that a part takes is the checkpoint interval, a twentieth of the estimated time of the step, or
    a minute, whichever is the least, but at least three seconds. Its Spark job takes longer, because another one runs
    at the same time.

    :param total: Amount of all input that is left: bytes, or items if their sizes are unknown.
    :param is_bytes: Whether amounts are in bytes.
    :param interval_seconds: Checkpoint interval; ``None`` if there is none.
    """

    def __init__(self, total: int, *, is_bytes: bool, interval_seconds: float | None) -> None:
        self._total = total
        self._longest = min(LONGEST_SECONDS, interval_seconds or LONGEST_SECONDS)
        first = total // _FIRST_PARTS
        self.amount = max(1, min(first, _FIRST_BYTES) if is_bytes else first)
        """Amount of the next part."""
        self._rate = SmoothedRate(_WINDOW_SECONDS)

    def observe(self, amount: int, seconds: float) -> None:
        """
        Adapt the size to a finished part.

        :param amount: Amount of the part.
        :param seconds: Time since the part before it had finished.
        """
        self._rate.observe(amount, seconds)
        if self._rate.per_second > 0:
            wanted = self._rate.per_second * self.wanted_seconds
            # A part may be larger than its amount, because it has a file or row group for each core.
            self.amount = max(1, int(min(wanted, max(self.amount, amount) * _LARGEST_GROWTH)))

    @property
    def wanted_seconds(self) -> float:
        """The wanted time of a part."""
        if not self._rate.per_second:
            return SHORTEST_SECONDS
        estimate = self._total / self._rate.per_second
        return max(SHORTEST_SECONDS, min(self._longest, estimate / _PARTS_OF_A_STEP))
