"""Cut what is left of a source into increments; the same items give the same increments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.intervals import Intervals
from airflow_provider_statecheck.spark.sources.ledger import Ledger, Partial
from airflow_provider_statecheck.storage.uris import redact

RowGroupSizes = Callable[[int], Sequence[int] | None]
"""The sizes of the row groups of an item by its position; ``None`` if the item cannot be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much an increment reads at most; whatever comes first ends it."""

    size_bytes: int | None = None
    items: int | None = None
    row_groups: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """An item, or neighbouring row groups of it."""

    position: int
    size_bytes: int
    groups: tuple[int, int] | None = None
    """From the first to before the last; ``None`` for a whole item."""
    group_count: int = 0
    """How many row groups the item has, where it was cut."""


def plan(ledger: Ledger, limits: Limits, row_groups: RowGroupSizes) -> Iterator[tuple[Piece, ...]]:
    """
    Give the pieces of each increment.

    Items are taken in their order. So what is planned after some increments are finished is what would have come after them.
    """
    filling = _Filling(limits)
    for piece in _pieces(ledger, limits, row_groups):
        if filling.is_too_small_for(piece):
            yield filling.joined()
            filling = _Filling(limits)
        filling.add(piece)
    if filling.pieces:
        yield filling.joined()


class _Filling:
    """An increment that is being filled."""

    def __init__(self, limits: Limits) -> None:
        self.pieces: list[Piece] = []
        self._limits = limits
        self._size_bytes = 0
        self._items = 0

    def is_too_small_for(self, piece: Piece) -> bool:
        return bool(self.pieces) and (
            _exceeds(self._size_bytes + piece.size_bytes, self._limits.size_bytes)
            or _exceeds(self._items + self._is_another(piece), self._limits.items)
            or _exceeds(len(self.pieces) + 1, self._limits.row_groups)
        )

    def add(self, piece: Piece) -> None:
        self._size_bytes += piece.size_bytes
        self._items += self._is_another(piece)
        self.pieces.append(piece)

    def joined(self) -> tuple[Piece, ...]:
        joined: list[Piece] = []
        for piece in self.pieces:
            if joined and _are_neighbours(joined[-1], piece):
                joined[-1] = _both(joined[-1], piece)
            else:
                joined.append(piece)
        return tuple(_whole(piece) for piece in joined)

    def _is_another(self, piece: Piece) -> bool:
        return not self.pieces or self.pieces[-1].position != piece.position


def _pieces(ledger: Ledger, limits: Limits, row_groups: RowGroupSizes) -> Iterator[Piece]:
    for position in range(len(ledger.items)):
        if position not in ledger.finished:
            yield from _pieces_of(ledger, position, limits, row_groups)


def _pieces_of(ledger: Ledger, position: int, limits: Limits, row_groups: RowGroupSizes) -> Iterator[Piece]:
    size = ledger.items[position].size_bytes
    is_cut = position in ledger.partial or limits.row_groups is not None or _is_large(size, limits)
    sizes = row_groups(position) if is_cut else None
    if not sizes:
        _require_whole(ledger, position)
        yield Piece(position, size)
        return
    done = ledger.partial.get(position, Partial(Intervals(), 0)).groups
    for group, group_bytes in enumerate(sizes):
        if group not in done:
            yield Piece(position, group_bytes, (group, group + 1), len(sizes))


def _require_whole(ledger: Ledger, position: int) -> None:
    if position in ledger.partial:
        raise InvalidConfigurationError(
            f"Expected to read the rest of {redact(ledger.items[position].name)}, of which a part is finished, but with the "
            "schema and options of this attempt it can be read only as a whole; take those of the attempt before."
        )


def _is_large(size_bytes: int, limits: Limits) -> bool:
    # Whole files are read much faster than parts of them, so one of nearly two increments is not cut.
    return limits.size_bytes is not None and size_bytes > 2 * limits.size_bytes


def _exceeds(found: int, limit: int | None) -> bool:
    return limit is not None and found > limit


def _are_neighbours(piece: Piece, following: Piece) -> bool:
    return (
        piece.position == following.position
        and piece.groups is not None
        and following.groups is not None
        and piece.groups[1] == following.groups[0]
    )


def _both(piece: Piece, following: Piece) -> Piece:
    assert piece.groups is not None and following.groups is not None  # noqa: S101, PT018
    size = piece.size_bytes + following.size_bytes
    return Piece(piece.position, size, (piece.groups[0], following.groups[1]), piece.group_count)


def _whole(piece: Piece) -> Piece:
    is_whole = piece.groups == (0, piece.group_count)
    return Piece(piece.position, piece.size_bytes) if is_whole else piece
