"""
Split enumerator for sources that consist of items, and the planning of their increments.

Items, and row groups of large ones, are planned in the order of the ledger. A restarted attempt therefore plans the
same increments that would have followed the finished ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require_count
from airflow_provider_statecheck.checkpoint.config_options import parse_size
from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.source import Increment, Split, SplitEnumerator
from airflow_provider_statecheck.state.source_items import (
    Intervals,
    Item,
    Ledger,
    Partial,
    decode_ledger,
    pack_items,
    unpack_items,
)
from airflow_provider_statecheck.storage.stored_json import decoding
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from airflow_provider_statecheck.spark.connectors.file_parts import FileParts

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ItemSplit(Split):
    """A split that consists of an item, or of some row groups of it."""

    item: Item = field(kw_only=True)
    groups: tuple[int, int] | None = field(kw_only=True, default=None)
    """First row group and the one after the last; ``None`` for the whole item."""


class ItemReader(ABC):
    """Reads the items of one kind of source."""

    has_stable_partitions: bool = True
    """Whether a task that Spark repeats reads the same rows as before, as from files."""

    @abstractmethod
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits, at least one, as a lazy DataFrame."""

    def require_unchanged(self, items: Sequence[Item]) -> None:  # noqa: B027 - optional hook
        """
        Verify that items have not changed; does nothing by default, for input that never changes.

        :raises SourceChangedError: if one has changed since it was listed.
        """

    def file_parts(self, splits: Sequence[ItemSplit], columns: StructType) -> FileParts | None:
        """
        Return the files of splits for tasks that read them; ``None`` if PyArrow does not read the same rows as Spark.

        :param columns: The columns of the source that are wanted.
        :raises SourceChangedError: if Spark would not read them.
        """
        return None

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
    """Enumerates splits of items."""

    def __init__(self, state: SourceState, limits: Limits, reader: ItemReader) -> None:
        self._ledger = state.ledger
        self._total_bytes = state.ledger.total_bytes or None
        self._increments = state.increments
        self._target_bytes = state.target_bytes
        self.reader = reader
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
    def has_stable_partitions(self) -> bool:
        """Whether a task that Spark repeats reads the same rows as before."""
        return self.reader.has_stable_partitions

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
        return self.reader.load(_item_splits(increment))

    def file_parts(self, increment: Increment, columns: StructType) -> FileParts | None:
        """
        Return what :meth:`load` reads of some columns, for tasks that read it themselves; ``None`` if only Spark can.
        """
        self.require_unchanged(increment)
        return self.reader.file_parts(_item_splits(increment), columns)

    @override
    def require_unchanged(self, increment: Increment) -> None:
        self.reader.require_unchanged([split.item for split in _item_splits(increment)])

    @override
    def finish(self, increment: Increment) -> None:
        if increment.number not in self._planned:
            raise InvalidConfigurationError(
                f"Expected an increment that this attempt planned, found number {increment.number}; finish only "
                "increments that next_increment() returned."
            )
        pieces = self._planned[increment.number]
        self._planned[increment.number] = ()
        self._increments = max(self._increments, increment.number)
        self._ledger = _finished(self._ledger, pieces)

    def encode(self, increment: Increment) -> Pieces:
        """Return the pieces of a planned increment as plain values, for :func:`state_after`."""
        return _encoded(self._planned[increment.number])

    def describe(self, increment: Increment) -> tuple[str, ...]:
        """
        Return the names of the items of an increment, with the rows that it reads of each as far as they are known.
        """
        return tuple(self._described(split) for split in _item_splits(increment))

    @override
    def snapshot(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            # Every checkpoint has the same object.
            "listing": self._listing,
            "progress": self._ledger.progress_state(),
            "increments": self._increments,
            "target_bytes": self._target_bytes,
            "reader": self.reader.snapshot(),
        }

    def _described(self, split: ItemSplit) -> str:
        rows, name = self.reader.rows_of(split), redact(split.item.name)
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
    with decoding("the state of a source"):
        form = dict(restored).get("format")
    if form != _FORMAT:
        raise CorruptStateError(
            f"Expected the state of a source in format {_FORMAT}, found {form!r:.100}; a newer version or another "
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
Pieces of an increment as plain values: the positions of consecutive items, first and one after the last; or the
position of an item that is cut, its bytes, its row groups, first and one after the last, and the number of all its row
groups.
"""


def state_after(listed: Mapping[str, Any], finished: Iterable[Pieces]) -> dict[str, Any]:
    """
    Return the state of a source after increments that were finished in any order.

    :param listed: State from :meth:`ItemEnumerator.snapshot` before the increments.
    :param finished: Pieces of the finished increments, as from :meth:`ItemEnumerator.encode`.
    """
    with decoding("the finished parts of a source"):
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
    with decoding("the parts of a source"):
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
        if not 0 <= values[0] <= values[-1 if len(values) == _RANGE else 0] <= len(items):
            raise ValueError(f"items {list(values)!r:.100} of {len(items)}")
        if len(values) == _RANGE:
            yield from (Piece(position, items[position].size_bytes) for position in range(*values))
        else:
            position, size, start, end, count = values
            yield Piece(position, size, (start, end), count)


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
        items=None if count is None else require_count(name, count),
        row_groups=None if row_groups is None else require_count("row_groups_per_increment", row_groups),
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
            f"Expected to read the rest of {redact(ledger.items[position].name)}, which is partially finished, found a "
            "schema, options or settings of the session with which it can be read only as a whole; use those of the "
            "previous attempt."
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
