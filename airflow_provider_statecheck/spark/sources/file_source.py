"""Files as a source: how they are chosen, cut and checked, whatever their format is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.changes import OnChange, on_change_of, reconcile
from airflow_provider_statecheck.spark.sources.enumerator import ItemEnumerator, SourceState, decode_source_state
from airflow_provider_statecheck.spark.sources.file_reader import FileFormat, FileReader
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.ledger import Ledger
from airflow_provider_statecheck.spark.sources.listing import FileListing
from airflow_provider_statecheck.spark.sources.partitions import require_same_columns
from airflow_provider_statecheck.spark.sources.places import places_of
from airflow_provider_statecheck.spark.sources.planning import Limits
from airflow_provider_statecheck.spark.sources.sizes import AUTO, parse_bytes_per_increment, require_count
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

SMALLEST_TARGET_BYTES = 256 * 1024 * 1024
WANTED_INCREMENTS = 64

# They would leave out files behind the back of the plan, or give a file other columns than its increment says.
_REFUSED_OPTIONS = frozenset(
    {"basepath", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "mergeschema", "path"}
)


class FileSource:
    """What the sources of files have in common."""

    _format = ""

    def __init__(
        self,
        path: Paths,
        *,
        bytes_per_increment: str | int | None = "auto",
        files_per_increment: int | None = None,
        row_groups_per_increment: int | None = None,
        columns: Sequence[str] | None = None,
        schema: Any = None,
        on_change: str = "fail",
        order: str = "path",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._places = places_of(path)
        self._files = _count(files_per_increment, "files_per_increment")
        self._row_groups = _count(row_groups_per_increment, "row_groups_per_increment")
        self._is_auto = bytes_per_increment == AUTO and self._files is None and self._row_groups is None
        self._bytes = parse_bytes_per_increment(bytes_per_increment)
        self._on_change: OnChange = on_change_of(on_change)
        self._order = _order(order)
        names = None if columns is None else _names(columns)
        self._file_format = FileFormat(name=self._format, options=_allowed(options), schema=schema, columns=names)

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        List the files and plan what is left of them.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what appeared since is read.
        :param storage_options: Options of the filesystem that lists; they may be credentials.
        :raises InvalidConfigurationError: if there are no files at the start.
        :raises SourceChangedError: if what was listed before has changed.
        :raises SourceRestartRequiredError: if it has changed and the stage is to begin again.
        """
        listing = FileListing(self._places, dict(storage_options or {}), self._order)
        state = self._state(listing.files(), restored, new_run=new_run)
        require_same_columns((listing.root_of(item.name), item.name) for item in state.ledger.items)
        reader = self._reader(spark, listing, state)
        limits = Limits(size_bytes=self._bytes or state.target_bytes, items=self._files, row_groups=self._row_groups)
        return ItemEnumerator(
            state, limits, reader, lambda position: self._groups(reader, state.ledger.items[position])
        )

    def _state(self, files: tuple[Item, ...], restored: Mapping[str, Any] | None, *, new_run: bool) -> SourceState:
        if restored is None:
            self._require_files(files)
            return SourceState(Ledger(files), target_bytes=self._target(Ledger(files)))
        before = decode_source_state(restored)
        ledger = reconcile(before.ledger, files, on_change=self._on_change, new_run=new_run)
        # Within a run increments stay as large as they were, so that they are the same ones.
        is_kept = self._is_auto and not new_run and before.target_bytes
        target = before.target_bytes if is_kept else self._target(ledger)
        return SourceState(ledger, before.increments, target, before.reader)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None

    def _require_files(self, files: tuple[Item, ...]) -> None:
        if not files:
            shown = ", ".join(redact(f"{place.root}/{place.pattern}") for place in self._places)
            raise InvalidConfigurationError(
                f"Expected files in {shown}, found none that are not empty or hidden; correct the path. Alternatives "
                "such as {a,b} are written as several paths."
            )

    def _reader(self, spark: SparkSession, listing: FileListing, state: SourceState) -> FileReader:
        items, restored = state.ledger.items, state.reader
        return FileReader(spark, self._file_format, listing, items, on_change=self._on_change, restored=restored)

    def _groups(self, reader: FileReader, item: Item) -> Sequence[int] | None:
        return None


def _count(value: int | None, name: str) -> int | None:
    return None if value is None else require_count(value, name)


def _order(order: str) -> str:
    if order not in ("path", "mtime"):
        raise InvalidConfigurationError(f"Expected order to be 'path' or 'mtime'; found {order!r}.")
    return order


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    names = tuple(columns)
    if isinstance(columns, str) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
    return names


def _allowed(options: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(options or {})
    refused = sorted(name for name in found if name.lower() in _REFUSED_OPTIONS)
    if refused:
        raise InvalidConfigurationError(
            f"Expected options of the format, found {refused}, by which Spark would choose files or columns by itself; "
            "choose files by path, and columns by schema."
        )
    return found
