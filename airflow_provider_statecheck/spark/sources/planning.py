"""Planning of increments: their limits, and the items and row groups of each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.config_options import parse_size
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.source_items import Intervals, Ledger, Partial
from airflow_provider_statecheck.storage.uris import redact

AUTO = "auto"
SMALLEST_TARGET_BYTES = 256 * 1024 * 1024
WANTED_INCREMENTS = 64

RowGroupSizes = Callable[[int], Sequence[int] | None]
"""Returns the sizes of the row groups of the item at a position; ``None`` if the item cannot be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one increment; the first one that is reached ends the increment."""

    size_bytes: int | None = None
    items: int | None = None
    row_groups: int | None = None
    is_automatic: bool = False
    """Whether the source itself chooses the size at the start of a run."""
    target_bytes: int | None = None
    """Size that ends the increment once it has ``least`` items or row groups."""
    least: int = 0

    @property
    def sought_bytes(self) -> int | None:
        """The smaller one of the limit and the target."""
        return min((size for size in (self.size_bytes, self.target_bytes) if size is not None), default=None)

    def within(self, amount: int, least: int, *, is_bytes: bool) -> Limits:
        """Return the limits for an amount, in bytes or items, that does not exceed them."""
        if not is_bytes:
            return replace(self, items=min(max(amount, least), self.items or max(amount, least)))
        return replace(self, target_bytes=amount, least=least)


def parse_limits(
    bytes_per_increment: str | int | None, items: tuple[str, int | None], row_groups: int | None = None
) -> Limits:
    """
    Parse the arguments of a source that limit an increment.

    :param items: Name and value of the argument that limits the number of items.
    :param row_groups: Value of ``row_groups_per_increment``.
    :raises InvalidConfigurationError: if a value is invalid.
    """
    name, count = items
    return Limits(
        size_bytes=parse_bytes_per_increment(bytes_per_increment),
        items=None if count is None else require_count(count, name),
        row_groups=None if row_groups is None else require_count(row_groups, "row_groups_per_increment"),
        is_automatic=bytes_per_increment == AUTO and count is None and row_groups is None,
    )


def parse_bytes_per_increment(value: str | int | None) -> int | None:
    """
    Parse ``bytes_per_increment``; return ``None`` for ``"auto"`` or ``None``.

    :raises InvalidConfigurationError: if the value is not a size of at least one byte.
    """
    if value is None or value == AUTO:
        return None
    size = parse_size("bytes_per_increment", value)
    if size < 1:
        raise InvalidConfigurationError(f"Expected bytes_per_increment to be at least one byte, found {value!r}.")
    return size


def require_count(count: object, name: str) -> int:
    """
    Return a count of files, row groups or splits if it is valid.

    :param name: Name of the argument, for the error message.
    :raises InvalidConfigurationError: if the value is not an integer of at least 1.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidConfigurationError(f"Expected {name} to be a number from 1; found {count!r}.")
    return count


def automatic_bytes(ledger: Ledger) -> int:
    """Return the automatic size of an increment for the unfinished part of a ledger."""
    return max(SMALLEST_TARGET_BYTES, (ledger.total_bytes - ledger.finished_bytes) // WANTED_INCREMENTS)


@dataclass(frozen=True, slots=True)
class Piece:
    """An item, or consecutive row groups of an item."""

    position: int
    size_bytes: int
    groups: tuple[int, int] | None = None
    """First row group and the one after the last; ``None`` for the whole item."""
    group_count: int = 0
    """Number of row groups of an item that is cut."""

    def plus(self, following: Piece) -> Piece | None:
        """Return this piece with the one that follows it in the same item; ``None`` for another one."""
        if self.position != following.position or self.groups is None or following.groups is None:
            return None
        if self.groups[1] != following.groups[0]:
            return None
        groups = (self.groups[0], following.groups[1])
        return replace(self, size_bytes=self.size_bytes + following.size_bytes, groups=groups)


def plan(ledger: Ledger, limits: Callable[[], Limits], row_groups: RowGroupSizes) -> Iterator[tuple[Piece, ...]]:
    """
    Yield the pieces of each increment, in the order of the ledger.

    :param limits: Returns the limits of the next increment.
    """
    increment = _Increment(limits())
    for piece in _pieces(ledger, limits, row_groups):
        if not increment.has_room_for(piece):
            yield increment.merged_pieces()
            increment = _Increment(limits())
        increment.add(piece)
    if increment.pieces:
        yield increment.merged_pieces()


class _Increment:
    """Collects the pieces of one increment."""

    def __init__(self, limits: Limits) -> None:
        self.pieces: list[Piece] = []
        self._limits = limits
        self._size_bytes = 0
        self._items = 0

    def has_room_for(self, piece: Piece) -> bool:
        return not self.pieces or not (
            self._exceeds_size(piece)
            or _exceeds(self._items + self._is_new_item(piece), self._limits.items)
            or _exceeds(len(self.pieces) + 1, self._limits.row_groups)
        )

    def add(self, piece: Piece) -> None:
        self._size_bytes += piece.size_bytes
        self._items += self._is_new_item(piece)
        self.pieces.append(piece)

    def merged_pieces(self) -> tuple[Piece, ...]:
        merged: list[Piece] = []
        for piece in self.pieces:
            joined = merged[-1].plus(piece) if merged else None
            if joined is None:
                merged.append(piece)
            else:
                merged[-1] = joined
        return tuple(_as_item_if_complete(piece) for piece in merged)

    def _exceeds_size(self, piece: Piece) -> bool:
        size, is_enough = self._size_bytes + piece.size_bytes, len(self.pieces) >= self._limits.least
        return _exceeds(size, self._limits.size_bytes) or (is_enough and _exceeds(size, self._limits.target_bytes))

    def _is_new_item(self, piece: Piece) -> bool:
        return not self.pieces or self.pieces[-1].position != piece.position


def _pieces(ledger: Ledger, limits: Callable[[], Limits], row_groups: RowGroupSizes) -> Iterator[Piece]:
    for position in range(len(ledger.items)):
        if position not in ledger.finished:
            yield from _pieces_of_item(ledger, position, limits(), row_groups)


def _pieces_of_item(ledger: Ledger, position: int, limits: Limits, row_groups: RowGroupSizes) -> Iterator[Piece]:
    size = ledger.items[position].size_bytes
    is_cut = position in ledger.partial or limits.row_groups is not None or _is_large(size, limits)
    sizes = row_groups(position) if is_cut else None
    if not sizes:
        _require_no_progress(ledger, position)
        yield Piece(position, size)
        return
    finished = ledger.partial.get(position, Partial(Intervals(), 0)).groups
    for group, group_bytes in enumerate(sizes):
        if group not in finished:
            yield Piece(position, group_bytes, (group, group + 1), len(sizes))


def _require_no_progress(ledger: Ledger, position: int) -> None:
    if position in ledger.partial:
        raise InvalidConfigurationError(
            f"Expected to read the rest of {redact(ledger.items[position].name)}, which is partially finished, found a schema or "
            "options with which it can be read only as a whole; use those of the previous attempt."
        )


def _is_large(size_bytes: int, limits: Limits) -> bool:
    # Spark reads whole files much faster than PyArrow reads row groups.
    sought = limits.sought_bytes
    return sought is not None and size_bytes > 2 * sought


def _exceeds(found: int, limit: int | None) -> bool:
    return limit is not None and found > limit


def _as_item_if_complete(piece: Piece) -> Piece:
    is_complete = piece.groups == (0, piece.group_count)
    return Piece(piece.position, piece.size_bytes) if is_complete else piece
