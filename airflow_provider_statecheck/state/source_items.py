"""
Items of a source and the ledger of finished items.

An item is a file, a key range or a user-defined split. The ledger is stored in checkpoints in two parts: the packed
listing, which stays the same during a run, and the progress, which changes with every increment.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.storage.bounds import inflated
from airflow_provider_statecheck.storage.stored_json import decoding

SOURCE = "source"
"""Uid of the source within its stage."""
BROADCAST_SUFFIX = "#broadcast"
"""End of the uid of a broadcast source, after that of its function."""
_DIGEST_BYTES = 8
_SIZE_BYTES = 8
_BYTES_PER_ITEM = 320
"""Memory of an item of a listing."""
_SEPARATOR = "\0"


@dataclass(frozen=True, slots=True)
class Item:
    """A file or another unit of input, as it was listed."""

    name: str
    """URI or key."""
    size_bytes: int
    digest: bytes
    """Hash of the size and the version; differs after a change of the content."""

    @classmethod
    def of(cls, name: str, size_bytes: int, version: object) -> Item:
        """
        Create an item.

        :param version: A value that changes with the content, such as an ETag or a modification time.
        """
        fingerprint = f"{size_bytes}:{version}".encode("utf-8", "surrogatepass")
        return cls(name, size_bytes, hashlib.blake2b(fingerprint, digest_size=_DIGEST_BYTES).digest())


def pack_items(items: Sequence[Item]) -> dict[str, bytes]:
    """Encode items in compressed columns; similar names compress well."""
    names = _SEPARATOR.join(item.name for item in items).encode("utf-8", "surrogatepass")
    return {
        "names": zlib.compress(names, 9),
        "sizes": zlib.compress(array("Q", [item.size_bytes for item in items]).tobytes(), 9),
        "digests": b"".join(item.digest for item in items),
    }


def unpack_items(packed: Mapping[str, Any]) -> tuple[Item, ...]:
    """
    Decode items from :func:`pack_items`.

    :raises CorruptStateError: if the columns are invalid.
    """
    with decoding("the listing of a source"):
        sizes = array("Q")
        sizes.frombytes(inflated(packed["sizes"], "the listing of a source", weight=_BYTES_PER_ITEM // _SIZE_BYTES))
        digests, length = packed["digests"], _DIGEST_BYTES
        if len(digests) != length * len(sizes):
            raise ValueError(f"{len(digests)} bytes of digests for {len(sizes)} files")
        each = (digests[i * length : (i + 1) * length] for i in range(len(sizes)))
        return tuple(Item(*fields) for fields in zip(_names_in(packed["names"], len(sizes)), sizes, each, strict=True))


def _names_in(packed: bytes, count: int) -> list[str]:
    if not count:
        return []
    names = inflated(packed, "the listing of a source")
    # A name takes a hundred times the memory of the separator that ends it.
    if (found := names.count(_SEPARATOR.encode()) + 1) != count:
        raise ValueError(f"{found} names for {count} files")
    return [name.decode("utf-8", "surrogatepass") for name in names.split(_SEPARATOR.encode())]


@dataclass(frozen=True, slots=True)
class Intervals:
    """An immutable set of integers as sorted, disjoint, half-open intervals."""

    bounds: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Intervals:
        """Create a set from single numbers."""
        return cls().plus((number, number + 1) for number in numbers)

    def plus(self, added: Iterable[tuple[int, int]]) -> Intervals:
        """Return the union with more intervals."""
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


@dataclass(frozen=True, slots=True)
class Partial:
    """Finished row groups of an item that is read in several increments."""

    groups: Intervals
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Items of a source by position, with their progress."""

    items: tuple[Item, ...]
    finished: Intervals = field(default_factory=Intervals)
    partial: Mapping[int, Partial] = field(default_factory=dict)
    """Progress of partially read items by position."""

    @property
    def total_bytes(self) -> int:
        """Size of all items."""
        return sum(item.size_bytes for item in self.items)

    @property
    def finished_bytes(self) -> int:
        """Size of all finished items and row groups."""
        whole = sum(self.items[i].size_bytes for i in self.finished)
        return whole + sum(progress.size_bytes for progress in self.partial.values())

    @property
    def finished_names(self) -> frozenset[str]:
        """Names of the finished items."""
        return frozenset(self.items[i].name for i in self.finished)

    @property
    def unfinished(self) -> tuple[Item, ...]:
        """The items that are not completely finished."""
        return tuple(item for i, item in enumerate(self.items) if i not in self.finished)

    def finish_items(self, positions: Sequence[int]) -> Ledger:
        """Return a ledger with some items marked as finished."""
        added = set(positions)
        return replace(
            self,
            finished=self.finished.plus((i, i + 1) for i in added),
            partial={i: progress for i, progress in self.partial.items() if i not in added},
        )

    def finish_groups(self, position: int, start: int, end: int, *, count: int, size_bytes: int) -> Ledger:
        """
        Return a ledger with row groups ``start`` to ``end`` of an item marked as finished.

        :param end: Index after the last row group.
        :param count: Number of row groups of the item.
        """
        known = self.partial.get(position, Partial(Intervals(), 0))
        groups = known.groups.plus([(start, end)])
        if len(groups) == count:
            return self.finish_items([position])
        return replace(self, partial={**self.partial, position: Partial(groups, known.size_bytes + size_bytes)})

    def with_items(self, items: Sequence[Item]) -> Ledger:
        """Return the progress for another list of items; items are matched by name."""
        finished = self.finished_names
        partial = {self.items[i].name: progress for i, progress in self.partial.items()}
        return Ledger(
            tuple(items),
            Intervals.of(i for i, item in enumerate(items) if item.name in finished),
            {i: partial[item.name] for i, item in enumerate(items) if item.name in partial},
        )

    def progress_state(self) -> dict[str, Any]:
        """Return the progress as plain values."""
        return {
            "finished": [list(bound) for bound in self.finished.bounds],
            "partial": [
                [i, [list(bound) for bound in progress.groups.bounds], progress.size_bytes]
                for i, progress in sorted(self.partial.items())
            ],
        }


def decode_ledger(items: tuple[Item, ...], progress: Mapping[str, Any]) -> Ledger:
    """
    Create a ledger from its items and the values of :meth:`Ledger.progress_state`.

    :raises CorruptStateError: if the values are invalid.
    """
    with decoding("the progress of a source"):
        partial = {int(i): Partial(_intervals(groups), int(size)) for i, groups, size in progress["partial"]}
        ledger = Ledger(items, _intervals(progress["finished"]), partial)
    bounds = ledger.finished.bounds
    if not all(0 <= start < end <= len(items) for start, end in bounds) or not all(
        0 <= i < len(items) for i in ledger.partial
    ):
        raise CorruptStateError(
            f"Expected the progress of {len(items)} items, found other positions; restore another checkpoint."
        )
    return ledger


def _intervals(bounds: Any) -> Intervals:
    return Intervals().plus((int(start), int(end)) for start, end in bounds)
