"""Sets of numbers that are mostly runs without gaps, kept as their bounds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervals:
    """Numbers from each start to before its end; sorted, apart from each other."""

    bounds: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Intervals:
        """Return the set of some numbers."""
        return cls().plus((number, number + 1) for number in numbers)

    def plus(self, added: Iterable[tuple[int, int]]) -> Intervals:
        """Return these numbers and those of more bounds."""
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*self.bounds, *added]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            elif start < end:
                merged.append((start, end))
        return Intervals(tuple(merged))

    def __contains__(self, number: int) -> bool:
        found = bisect_right(self.bounds, number, key=lambda bound: bound[0]) - 1
        return found >= 0 and number < self.bounds[found][1]

    def __iter__(self) -> Iterator[int]:
        for start, end in self.bounds:
            yield from range(start, end)

    def __len__(self) -> int:
        return sum(end - start for start, end in self.bounds)
