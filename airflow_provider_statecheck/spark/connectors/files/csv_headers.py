"""
Headers of CSV files, by whose names their columns are matched with those of a schema.

Spark's reader skips a header and takes the columns of the schema in the order of the file.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import functools
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import SourceChangedError
from airflow_provider_statecheck.spark.tables.named_rows import find_name
from airflow_provider_statecheck.spark.tables.schemas import storage_failures
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.uris import is_local, open_filesystem, redact

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_PLAIN = frozenset(
    (
        *("header", "sep", "delimiter", "encoding", "charset", "enforceschema", "inferschema", "samplingratio", "mode"),
        *("dateformat", "timestampformat", "timestampntzformat", "timezone", "locale", "nanvalue", "positiveinf"),
        *("negativeinf", "columnnameofcorruptrecord"),
    )
)
"""Options with which the first line of a file is its header, and plain CSV."""
_DECOMPRESSED: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_COMPRESSED = (".deflate", ".snappy", ".lz4", ".zst", ".xz")


def option_of(options: Mapping[str, Any], *names: str, default: str = "") -> str:
    """Return an option of Spark's reader, whose names are in any case."""
    by_name = {name.lower(): str(value) for name, value in options.items()}
    return next((by_name[name] for name in names if name in by_name), default)


def has_header(options: Mapping[str, Any]) -> bool:
    """Return whether files with these options of Spark's reader have a header."""
    return option_of(options, "header").lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvHeaders:
    """Reads the headers of files."""

    options: Mapping[str, Any]
    """Options of Spark's reader."""
    storage_options: Mapping[str, Any] = field(repr=False)
    read: Callable[[str], DataFrame]
    """Reads a file with Spark, without a schema."""

    def of(self, uris: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
        """
        Return the files by their headers.

        :raises StorageError: if a file cannot be read.
        """
        found: dict[tuple[str, ...], list[str]] = {}
        for uri, header in zip(uris, in_parallel(self._header, uris, is_local=is_local(uris[0])), strict=True):
            found.setdefault(header, []).append(uri)
        return found

    def _header(self, uri: str) -> tuple[str, ...]:
        line = None if uri.lower().endswith(_COMPRESSED) or not self._is_plain else self._first_line(uri)
        names = None if line is None else self._names_in(line)
        return tuple(self.read(uri).schema.names) if names is None else names

    def _names_in(self, line: bytes) -> tuple[str, ...] | None:
        """Return the names in a header; ``None`` if only Spark reads it."""
        # Spark's parser also knows escapes, comments, other ends of lines, and texts that are not in UTF-8.
        try:
            text = line.decode().rstrip("\r\n")
            if "\\" in text or '""' in text or "\r" in text:
                return None
            return tuple(next(csv.reader([text], delimiter=self._separator), ()))
        except (UnicodeDecodeError, csv.Error):
            return None

    @property
    def _is_plain(self) -> bool:
        encoding = option_of(self.options, "encoding", "charset", default="utf-8").lower()
        is_known = {name.lower() for name in self.options} <= _PLAIN
        return is_known and len(self._separator) == 1 and encoding in ("utf-8", "utf8")

    @property
    def _separator(self) -> str:
        return option_of(self.options, "sep", "delimiter", default=",")

    def _first_line(self, uri: str) -> bytes:
        with storage_failures(f"Expected to read the header of {redact(uri)}", self.storage_options):
            filesystem = open_filesystem(uri, dict(self.storage_options))
            with filesystem.open(filesystem._strip_protocol(uri), "rb") as file:
                opened: Callable[[Any], IO[bytes]] = _opener_of(uri)
                lines = (line.removeprefix(codecs.BOM_UTF8) for line in opened(file))
                return next((line for line in lines if line.strip()), b"")


def _opener_of(uri: str) -> Any:
    return next((opened for end, opened in _DECOMPRESSED.items() if uri.lower().endswith(end)), lambda file: file)


@functools.lru_cache(maxsize=64)
def positions_in_header(
    header: tuple[str, ...], names: tuple[str, ...], shown: str, *, is_case_sensitive: bool
) -> tuple[int | None, ...]:
    """
    Return the position in a header of each column; ``None`` for a missing one, which is null as in other formats.

    :param shown: A file with the header, for the error message.
    :raises SourceChangedError: if a column is there twice, or if others are in its place.
    """
    positions = tuple(find_name(header, name, is_case_sensitive=is_case_sensitive) for name in names)
    missing = [name for name, at in zip(names, positions, strict=True) if at is None]
    further = [name for at, name in enumerate(header) if at not in positions]
    twice = [name for name in names if _count(header, name, is_case_sensitive=is_case_sensitive) > 1]
    if twice or (missing and further):
        found = f"{twice} more than once" if twice else f"{further} instead of {missing}"
        raise SourceChangedError(
            f"Expected the columns {list(names)} of the schema in the header of {shown}, found {found}; name the "
            "columns of the schema as in the header, whose order does not count."
        )
    return positions


def _count(header: Sequence[str], name: str, *, is_case_sensitive: bool) -> int:
    return sum(each == name or (not is_case_sensitive and each.lower() == name.lower()) for each in header)
