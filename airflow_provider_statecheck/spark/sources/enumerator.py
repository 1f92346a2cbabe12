"""The increments of one attempt: what was given, what is finished, and what a later attempt needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.item import Item, pack_items, unpack_items
from airflow_provider_statecheck.spark.sources.ledger import Ledger, restored_ledger
from airflow_provider_statecheck.spark.sources.planning import Limits, Piece, RowGroupSizes, plan
from airflow_provider_statecheck.spark.sources.source import Increment, Split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
