"""Key groups: the unit in which keyed state moves between subtasks; Flink's ranges and index formulas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """
    Key groups ``start`` to ``end``, both included; every range whose start lies behind its end is the empty one.

    :raises InvalidConfigurationError: for a negative start.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start > self.end:
            object.__setattr__(self, "start", 0)
            object.__setattr__(self, "end", -1)
        elif self.start < 0:
            raise InvalidConfigurationError(f"Expected a range of key groups from 0 on, found {self.start}.")

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups that are in both, perhaps none."""
        return KeyGroupRange(max(self.start, other.start), min(self.end, other.end))
