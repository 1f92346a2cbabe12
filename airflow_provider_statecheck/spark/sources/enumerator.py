"""Split enumerator: plans increments and remembers finished ones across attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.source import Increment, Split
from airflow_provider_statecheck.spark.sources.splits import (
    Intervals,
    Item,
    Ledger,
    Partial,
    pack_items,
    restored_ledger,
    unpack_items,
)
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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


_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ItemSplit(Split):
    """A file, some of its row groups, or a part that a user named."""

    item: Item | None = None
    groups: tuple[int, int] | None = None
    """From the first to before the last row group; ``None`` for the whole item."""


class ItemReader(Protocol):
    """Reads items in the ways of one source."""

    def require_unchanged(self, items: tuple[Item, ...]) -> None:
        """
        Look at items again.

        :raises SourceChangedError: if one is no longer what was listed.
        """
        ...

    def load(self, splits: tuple[ItemSplit, ...]) -> DataFrame:
        """Return the rows of splits."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to read in the same way."""
        ...


@dataclass(frozen=True, slots=True)
class SourceState:
    """What an enumerator leaves to the next one."""

    ledger: Ledger
    increments: int = 0
    """How many increments were finished."""
    target_bytes: int | None = None
    """How large increments are, where nobody said so."""
    reader: Mapping[str, Any] | None = None


def decode_source_state(restored: Mapping[str, Any]) -> SourceState:
    """
    Return what :meth:`ItemEnumerator.snapshot` gave.

    :raises CorruptStateError: if it is not of this form.
    """
    if restored.get("format") != _FORMAT:
        raise CorruptStateError(
            f"Expected the state of a source in format {_FORMAT}, found {restored.get('format')!r}; was it written by a "
            "newer version, or by another source?"
        )
    try:
        ledger = restored_ledger(unpack_items(restored["listing"]), restored["progress"])
        return SourceState(ledger, int(restored["increments"]), restored["target_bytes"], restored["reader"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStateError(f"Expected the state of a source, found something else: {error!r}.") from error


class ItemEnumerator:
    """
    Plans increments of items.

    :param state: What there is, and what of it is finished.
    :param limits: How much an increment reads.
    :param reader: Reads items.
    :param row_groups: Tells how an item may be cut.
    """

    def __init__(self, state: SourceState, limits: Limits, reader: ItemReader, row_groups: RowGroupSizes) -> None:
        self._ledger = state.ledger
        self._increments = state.increments
        self._target_bytes = state.target_bytes
        self._reader = reader
        self._plan = plan(state.ledger, limits, row_groups)
        self._listing = pack_items(state.ledger.items)
        self._given: dict[int, tuple[Piece, ...]] = {}
        self._next_number = state.increments + 1

    @property
    def total_bytes(self) -> int | None:
        """How many bytes all files have; ``None`` where nobody knows."""
        return self._ledger.total_bytes or None

    @property
    def finished_bytes(self) -> int | None:
        """How many of them are finished; ``None`` where nobody knows."""
        return self._ledger.finished_bytes if self.total_bytes else None

    @property
    def total_splits(self) -> int:
        """How many files or parts there are."""
        return len(self._ledger.items)

    @property
    def finished_splits(self) -> int:
        """How many of them are finished as a whole."""
        return len(self._ledger.finished)

    def next_increment(self) -> Increment | None:
        """
        Return what is to be read next; ``None`` once every split was given.

        :raises SourceChangedError: if a file that has to be cut is no longer what was listed.
        """
        pieces = next(self._plan, None)
        if pieces is None:
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        self._given[number] = pieces
        size = sum(piece.size_bytes for piece in pieces)
        return Increment(number, tuple(self._split(piece) for piece in pieces), size if self.total_bytes else None)

    def load(self, increment: Increment) -> DataFrame:
        """
        Return the rows of an increment; nothing is read yet, and every call gives the same rows.

        :raises SourceChangedError: if a file is no longer what was listed.
        """
        self.require_unchanged(increment)
        return self._reader.load(_item_splits(increment))

    def require_unchanged(self, increment: Increment) -> None:
        """
        Look again at what an increment reads, as is worth while once it was read too.

        :raises SourceChangedError: if a file is no longer what was listed.
        """
        self._reader.require_unchanged(tuple(split.item for split in _item_splits(increment) if split.item))

    def finish(self, increment: Increment) -> None:
        """
        Note that an increment is part of the state from now on; once more changes nothing.

        :raises InvalidConfigurationError: if this enumerator did not give it.
        """
        if increment.number not in self._given:
            raise InvalidConfigurationError(
                f"Expected an increment that this attempt planned, found number {increment.number}; finish those that "
                "next_increment() gave."
            )
        pieces = self._given[increment.number]
        self._given[increment.number] = ()
        self._increments = max(self._increments, increment.number)
        self._ledger = _finished(self._ledger, pieces)

    def snapshot(self) -> dict[str, Any]:
        """Return what the source needs to go on after the finished increments; the listing stays the same object."""
        return {
            "format": _FORMAT,
            "listing": self._listing,
            "progress": self._ledger.progress_state(),
            "increments": self._increments,
            "target_bytes": self._target_bytes,
            "reader": self._reader.snapshot(),
        }

    def _split(self, piece: Piece) -> ItemSplit:
        item = self._ledger.items[piece.position]
        suffix = "" if piece.groups is None else f"#{piece.groups[0]}-{piece.groups[1]}"
        size = piece.size_bytes if self.total_bytes else None
        return ItemSplit(f"{item.name}{suffix}", size, item, piece.groups)


def _finished(ledger: Ledger, pieces: tuple[Piece, ...]) -> Ledger:
    for piece in pieces:
        if piece.groups is not None:
            size, count = piece.size_bytes, piece.group_count
            ledger = ledger.finish_groups(piece.position, *piece.groups, count=count, size_bytes=size)
    return ledger.finish_items([piece.position for piece in pieces if piece.groups is None])


def _item_splits(increment: Increment) -> tuple[ItemSplit, ...]:
    return tuple(split for split in increment.splits if isinstance(split, ItemSplit))
