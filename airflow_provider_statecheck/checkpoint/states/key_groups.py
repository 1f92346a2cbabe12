"""
Ranges of key groups, and their assignment to subtasks, with Flink's formulas.

The number of key groups is the maximum parallelism, and each subtask owns a range of them. The ranges are disjoint, ordered,
cover all key groups and differ in size by at most one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

MAX_PARALLELISM_BOUND = 1 << 15
"""Maximum number of key groups."""
_MIN_DEFAULT = 128
EMPTY_KEY_GROUP = -1
"""Offset of a key group without state."""


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """
    Key groups from ``start`` to ``end``, both inclusive; a range whose start is greater than its end is empty.

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
        """Return the key groups that are in both ranges."""
        return KeyGroupRange(max(self.start, other.start), min(self.end, other.end))


@dataclass(frozen=True, slots=True)
class KeyGroupRangeOffsets:
    """
    Offsets of the key groups of a range in a stream.

    :param offsets: Offset of each key group of the range, in order; -1 for an empty one.
    :raises InvalidConfigurationError: if the numbers of offsets and key groups differ.
    """

    key_group_range: KeyGroupRange
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.key_group_range):
            raise InvalidConfigurationError(
                f"Expected one offset for each of {len(self.key_group_range)} key groups, found {len(self.offsets)}."
            )

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.key_group_range, self.offsets, strict=True))

    def offset_of(self, key_group: int) -> int:
        """
        Return the offset of a key group, or -1 if it has no state.

        :raises InvalidConfigurationError: for a key group outside of the range.
        """
        if key_group not in self.key_group_range:
            raise InvalidConfigurationError(f"Expected a key group of {self._shown}, found {key_group}.")
        return self.offsets[key_group - self.key_group_range.start]

    def is_empty(self, key_group: int) -> bool:
        """
        Return whether a key group has no state: it has no offset, or the next key group has the same offset.

        :raises InvalidConfigurationError: for a key group outside of the range.
        """
        offset = self.offset_of(key_group)
        later = self.offsets[key_group + 1 - self.key_group_range.start :]
        following = next((other for other in later if other != EMPTY_KEY_GROUP), None)
        return offset in (EMPTY_KEY_GROUP, following)

    def get_intersection(self, key_group_range: KeyGroupRange) -> KeyGroupRangeOffsets:
        """Return the offsets of the key groups that are also in another range."""
        common = self.key_group_range.intersection(key_group_range)
        return KeyGroupRangeOffsets(common, tuple(self.offset_of(key_group) for key_group in common))

    @property
    def _shown(self) -> str:
        return f"{self.key_group_range.start} to {self.key_group_range.end}"


def require_parallelism(parallelism: int, max_parallelism: int = MAX_PARALLELISM_BOUND) -> None:
    """
    Raise an error for an invalid parallelism or maximum parallelism.

    :raises InvalidConfigurationError: unless 1 <= parallelism <= max_parallelism <= 32768.
    """
    if not 1 <= parallelism <= max_parallelism <= MAX_PARALLELISM_BOUND:
        raise InvalidConfigurationError(
            f"Expected 1 <= parallelism <= max_parallelism <= {MAX_PARALLELISM_BOUND}, found parallelism {parallelism} and "
            f"max_parallelism {max_parallelism}."
        )


def key_group_range_of(index: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """
    Return the key groups that a subtask owns.

    :raises InvalidConfigurationError: for a parallelism or an index out of bounds.
    """
    require_parallelism(parallelism, max_parallelism)
    if not 0 <= index < parallelism:
        raise InvalidConfigurationError(f"Expected the index of a subtask from 0 to {parallelism - 1}, found {index}.")
    start = -(-index * max_parallelism // parallelism)
    return KeyGroupRange(start, ((index + 1) * max_parallelism - 1) // parallelism)


def key_group_ranges(parallelism: int, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """
    Return the key groups of each subtask.

    :raises InvalidConfigurationError: for a parallelism out of bounds.
    """
    require_parallelism(parallelism, max_parallelism)
    return tuple(key_group_range_of(index, parallelism, max_parallelism) for index in range(parallelism))


def default_max_parallelism(parallelism: int) -> int:
    """
    Return the default number of key groups: 1.5 times the parallelism, rounded up to a power of two, at least 128.

    :raises InvalidConfigurationError: for a parallelism out of bounds.
    """
    require_parallelism(parallelism)
    scaled = parallelism + parallelism // 2
    return min(max(1 << (scaled - 1).bit_length(), _MIN_DEFAULT), MAX_PARALLELISM_BOUND)
