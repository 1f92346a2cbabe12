"""
Split enumerator for sources that consist of items.

Items are planned in the order of the ledger. A restarted attempt therefore plans the same increments that would have
followed the finished ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.planning import Limits, Piece, plan
from airflow_provider_statecheck.spark.sources.source import Increment, Split, SplitEnumerator
from airflow_provider_statecheck.state.source_items import (
    Item,
    Ledger,
    decode_ledger,
    decoding,
    pack_items,
    unpack_items,
)
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ItemSplit(Split):
    """A split that consists of an item, or of some row groups of it."""

    item: Item = field(kw_only=True)
    groups: tuple[int, int] | None = field(kw_only=True, default=None)
    """First row group and the one after the last; ``None`` for the whole item."""


class ItemReader(ABC):
    """Reads the items of one kind of source."""

    @abstractmethod
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits, at least one, as a lazy DataFrame."""

    def require_unchanged(self, items: Sequence[Item]) -> None:  # noqa: B027 - optional hook
        """
        Verify that items have not changed; does nothing by default, for input that never changes.

        :raises SourceChangedError: if one has changed since it was listed.
        """

    def row_groups(self, item: Item) -> Sequence[int] | None:
        """Return the sizes of the row groups of an item; ``None`` if it cannot be cut, as by default."""
        return None

    def rows_of(self, split: ItemSplit) -> range | None:
        """Return the numbers of the rows of a split within its item, from 0; ``None`` if unknown, as by default."""
        return None

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the reader for the next attempt, such as an inferred schema; empty by default."""
        return {}


class ItemEnumerator(SplitEnumerator):
    """
    Enumerates splits of items.

    :param state: The items and their progress.
    :param limits: Limits of one increment.
    :param reader: Reads items.
    """

    def __init__(self, state: SourceState, limits: Limits, reader: ItemReader) -> None:
        self._ledger = state.ledger
        self._total_bytes = state.ledger.total_bytes or None
        self._increments = state.increments
        self._target_bytes = state.target_bytes
        self._reader = reader
        self._configured = limits
        self._limits = replace(limits, size_bytes=state.target_bytes) if limits.is_automatic else limits
        items = state.ledger.items
        self._plan = plan(state.ledger, lambda: self._limits, lambda position: reader.row_groups(items[position]))
        self._listing = pack_items(items)
        self._planned: dict[int, tuple[Piece, ...]] = {}
        self._next_number = state.increments + 1

    @property
    @override
    def total_bytes(self) -> int | None:
        return self._total_bytes

    @property
    @override
    def finished_bytes(self) -> int | None:
        return self._ledger.finished_bytes if self.total_bytes else None

    @property
    @override
    def total_splits(self) -> int:
        return len(self._ledger.items)

    @property
    @override
    def finished_splits(self) -> int:
        return len(self._ledger.finished)

    @property
    def finished_share(self) -> float:
        """Part of the input that is finished, from 0 to 1; of its items if their sizes are unknown."""
        if self.total_bytes:
            return self._ledger.finished_bytes / self.total_bytes
        return self.finished_splits / self.total_splits if self.total_splits else 1.0

    def size_increments(self, amount: int, least: int) -> None:
        """
        Set the size of the increments that are planned from now on, within the limits that the user has set.

        :param amount: Bytes, or items if their sizes are unknown.
        :param least: Number of items or row groups that an increment has even if they exceed the amount.
        """
        self._limits = self._configured.within(amount, least, is_bytes=self.total_bytes is not None)

    @override
    def next_increment(self) -> Increment | None:
        pieces = next(self._plan, None)
        if pieces is None:
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        self._planned[number] = pieces
        size = sum(piece.size_bytes for piece in pieces)
        return Increment(number, tuple(self._split(piece) for piece in pieces), size if self.total_bytes else None)

    @override
    def load(self, increment: Increment) -> DataFrame:
        self.require_unchanged(increment)
        return self._reader.load(_item_splits(increment))

    @override
    def require_unchanged(self, increment: Increment) -> None:
        self._reader.require_unchanged([split.item for split in _item_splits(increment)])

    @override
    def finish(self, increment: Increment) -> None:
        if increment.number not in self._planned:
            raise InvalidConfigurationError(
                f"Expected an increment that this attempt planned, found number {increment.number}; finish only increments "
                "that next_increment() returned."
            )
        pieces = self._planned[increment.number]
        self._planned[increment.number] = ()
        self._increments = max(self._increments, increment.number)
        self._ledger = _finished(self._ledger, pieces)

    def encode(self, increment: Increment) -> Pieces:
        """Return the pieces of a planned increment as plain values, for :func:`state_after`."""
        return _encoded(self._planned[increment.number])

    def describe(self, increment: Increment) -> tuple[str, ...]:
        """Return the names of the items of an increment, with the rows that it reads of each as far as they are known."""
        return tuple(self._described(split) for split in _item_splits(increment))

    @override
    def snapshot(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            # Every snapshot has the same object.
            "listing": self._listing,
            "progress": self._ledger.progress_state(),
            "increments": self._increments,
            "target_bytes": self._target_bytes,
            "reader": self._reader.snapshot(),
        }

    def _described(self, split: ItemSplit) -> str:
        rows, name = self._reader.rows_of(split), redact(split.item.name)
        return name if rows is None else f"{name} (rows {rows.start} to {rows.stop - 1})"

    def _split(self, piece: Piece) -> ItemSplit:
        item = self._ledger.items[piece.position]
        suffix = "" if piece.groups is None else f"#{piece.groups[0]}-{piece.groups[1]}"
        size = piece.size_bytes if self.total_bytes else None
        return ItemSplit(f"{item.name}{suffix}", size, item=item, groups=piece.groups)


def _finished(ledger: Ledger, pieces: tuple[Piece, ...]) -> Ledger:
    for piece in pieces:
        if piece.groups is not None:
            size, count = piece.size_bytes, piece.group_count
            ledger = ledger.finish_groups(piece.position, *piece.groups, count=count, size_bytes=size)
    return ledger.finish_items([piece.position for piece in pieces if piece.groups is None])


def _item_splits(increment: Increment) -> tuple[ItemSplit, ...]:
    return tuple(split for split in increment.splits if isinstance(split, ItemSplit))


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of an enumerator in a checkpoint."""

    ledger: Ledger
    increments: int = 0
    """Number of finished increments."""
    target_bytes: int | None = None
    """Size of an increment that was chosen at the start of the run; ``None`` if the user set limits."""
    reader: Mapping[str, Any] | None = None
    """State of the reader."""


def decode_source_state(restored: Mapping[str, Any]) -> SourceState:
    """
    Decode the state from :meth:`ItemEnumerator.snapshot`.

    :raises CorruptStateError: if the state is invalid.
    """
    if restored.get("format") != _FORMAT:
        raise CorruptStateError(
            f"Expected the state of a source in format {_FORMAT}, found {restored.get('format')!r}; a newer version or another "
            "source may have written it."
        )
    with decoding("the state of a source"):
        ledger = decode_ledger(unpack_items(restored["listing"]), restored["progress"])
        target, reader = restored["target_bytes"], restored["reader"]
        return SourceState(
            ledger,
            int(restored["increments"]),
            None if target is None else int(target),
            None if reader is None else dict(reader),
        )


Pieces = Sequence[Sequence[int]]
"""
Pieces of an increment as plain values: the positions of consecutive items, first and one after the last; or the position
of an item that is cut, its bytes, its row groups, first and one after the last, and the number of all its row groups.
"""


def state_after(listed: Mapping[str, Any], finished: Iterable[Pieces]) -> dict[str, Any]:
    """
    Return the state of a source after increments that were finished in any order.

    :param listed: State from :meth:`ItemEnumerator.snapshot` before the increments.
    :param finished: Pieces of the finished increments, as from :meth:`ItemEnumerator.encode`.
    """
    ledger = decode_ledger(unpack_items(listed["listing"]), listed["progress"])
    for pieces in finished:
        ledger = _finished(ledger, tuple(_decoded(pieces, ledger.items)))
    return {**listed, "progress": ledger.progress_state()}


def moved_pieces(pieces: Pieces, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[list[int]]:
    """
    Return pieces of an increment for another listing of the source; items that it does not have are left out.

    :param before: State of the source with the listing of the pieces.
    :param now: State of the source with the other listing.
    """
    items, positions = unpack_items(before["listing"]), {i.name: n for n, i in enumerate(unpack_items(now["listing"]))}
    known = [piece for piece in _decoded(pieces, items) if items[piece.position].name in positions]
    return _encoded([replace(piece, position=positions[items[piece.position].name]) for piece in known])


def _encoded(pieces: Iterable[Piece]) -> list[list[int]]:
    encoded: list[list[int]] = []
    for piece in pieces:
        if piece.groups is not None:
            encoded.append([piece.position, piece.size_bytes, *piece.groups, piece.group_count])
        elif encoded and len(encoded[-1]) == _RANGE and encoded[-1][1] == piece.position:
            encoded[-1][1] += 1
        else:
            encoded.append([piece.position, piece.position + 1])
    return encoded


_RANGE = 2


def _decoded(pieces: Pieces, items: Sequence[Item]) -> Iterator[Piece]:
    for values in pieces:
        if len(values) == _RANGE:
            yield from (Piece(position, items[position].size_bytes) for position in range(*values))
        else:
            position, size, start, end, count = values
            yield Piece(position, size, (start, end), count)
