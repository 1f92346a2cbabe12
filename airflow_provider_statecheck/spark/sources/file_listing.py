"""Listing of the files of a source: paths, patterns and partition columns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    LocationNotAllowedError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.spark.sources.source_changes import Changes
from airflow_provider_statecheck.spark.sources.splits import Item
from airflow_provider_statecheck.storage.failures import RetryPolicy, advice
from airflow_provider_statecheck.storage.file_operations import find
from airflow_provider_statecheck.storage.schemes import conceal, harmless, open_filesystem
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact, scheme_of

_WILDCARD = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class SourcePath:
    """A directory or a file, of which a pattern may choose a part."""

    root: str
    """Absolute URI without wildcards and without a slash at its end."""
    pattern: str = ""
    """What follows it; ``*`` stays within a name, ``**`` does not."""

    def chooses(self, below: str) -> bool:
        """Tell whether a file is meant, directly or by a directory that it is in."""
        if not self.pattern:
            return True
        parts = below.split("/")
        expression = _expression(self.pattern)
        return any(expression.fullmatch("/".join(parts[:length])) for length in range(1, len(parts) + 1))


def source_paths(paths: Any) -> tuple[SourcePath, ...]:
    """
    Return the places that a user names by one path or several.

    :raises InvalidConfigurationError: for a path that is empty, relative with a scheme, or no path.
    """
    several = paths if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    if not several:
        raise InvalidConfigurationError("Expected a path to read, found none.")
    return tuple(_place(path) for path in several)


def _place(path: Any) -> SourcePath:
    text = os.fspath(path).strip() if isinstance(path, str | os.PathLike) else ""
    if not isinstance(text, str) or not text:
        raise InvalidConfigurationError(f"Expected a path or a URI such as s3://lake/orders/, found {path!r}.")
    parts = _absolute(text).split("/")
    # The scheme and the host take no wildcards.
    first = next((i for i, part in enumerate(parts) if i > 2 and _WILDCARD.search(part)), len(parts))
    root = "/".join(parts[:first]).rstrip("/")
    if not _SCHEME.match(root) or _WILDCARD.search(parts[2]):
        raise InvalidConfigurationError(
            f"Expected a directory or a bucket before any wildcard, found {redact(text)!r}."
        )
    return SourcePath(root, "/".join(parts[first:]))


def _absolute(text: str) -> str:
    if not _SCHEME.match(text):
        return f"file://{Path(text).expanduser().absolute()}"
    scheme, rest = scheme_of(text), text.partition("://")[2].rstrip("/")
    if scheme in LOCAL_SCHEMES:
        if not rest.startswith("/"):
            raise InvalidConfigurationError(
                f"Expected a local path with three slashes as in file:///data/orders, found {redact(text)!r}."
            )
        return f"file://{rest}"
    return f"{scheme}://{rest}"


def _expression(pattern: str) -> re.Pattern[str]:
    parts = [_segment(part) for part in pattern.split("/")]
    joined = "/".join(parts)
    return re.compile(joined.replace(f"{_ANY}/", f"(?:{_ANY}/)?"), re.DOTALL)


_ANY = ".*"


def _segment(part: str) -> str:
    if part == "**":
        return _ANY
    pieces = re.split(r"(\*|\?|\[[^\]]+\])", part)
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(piece) or _characters(piece) for piece in pieces)


def _characters(piece: str) -> str:
    if not (piece.startswith("[") and piece.endswith("]") and len(piece) > 2):
        return re.escape(piece)
    inner = piece[1:-1].replace("\\", "\\\\")
    return f"[^{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"


_CALLS_AT_ONCE = 16
_ETAGS = ("ETag", "etag", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modificationTime", "modified", "created")
Info = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FileListing:
    """
    Looks at files through fsspec.

    :param places: Where they are.
    :param options: Options of the filesystem, which may be credentials.
    :param order: ``"path"``, or ``"mtime"`` for the oldest first.
    """

    places: tuple[SourcePath, ...]
    options: Mapping[str, Any]
    order: str = "path"

    def files(self) -> tuple[Item, ...]:
        """
        Return the files in the order in which they are read, without hidden and empty ones.

        :raises StorageError: if the storage fails.
        :raises InvalidConfigurationError: if a filesystem cannot tell how large or how old files are.
        """
        found = {uri: info for place in self.places for uri, info in self._below(place)}
        by_path = sorted(found)
        order = sorted(by_path, key=lambda uri: _time(uri, found[uri])) if self.order == "mtime" else by_path
        items = [_item(uri, found[uri]) for uri in order]
        return tuple(item for item in items if item.size_bytes)

    def changes(self, items: Sequence[Item]) -> Changes:
        """
        Return which of these files vanished or changed.

        :raises StorageError: if the storage fails.
        """
        with ThreadPoolExecutor(_CALLS_AT_ONCE) as threads:
            now = list(threads.map(self._again, items))
        pairs = list(zip(items, now, strict=True))
        return Changes(
            vanished=tuple(item for item, found in pairs if found is None),
            changed=tuple(found for item, found in pairs if found is not None and found.digest != item.digest),
        )

    def root_of(self, uri: str) -> str:
        """
        Return the place by which a file was found, as far as it has no wildcards.

        :raises LocationNotAllowedError: if it lies elsewhere, as one may that the state of a foreign savepoint names.
        """
        roots = [place.root for place in self.places if f"{uri}/".startswith(f"{place.root}/")]
        if not roots or ".." in uri.split("/"):
            known = ", ".join(redact(place.root) for place in self.places)
            raise LocationNotAllowedError(
                f"Expected the files of the source below {known}, found {redact(uri)!r} in the restored state, which was not "
                f"opened; give the source the path that it had, or begin without the state.",
                uri=redact(uri),
            )
        return max(roots, key=len)

    def _again(self, item: Item) -> Item | None:
        with self._failures_told(item.name):
            filesystem = open_filesystem(self.root_of(item.name), dict(self.options))
            try:
                info = RetryPolicy().call(lambda: filesystem.info(_path(filesystem, item.name)), redact(item.name))
            except FileNotFoundError:
                return None
        return _item(item.name, info)

    def _below(self, place: SourcePath) -> Iterator[tuple[str, Info]]:
        with self._failures_told(place.root):
            filesystem = open_filesystem(place.root, dict(self.options))
            root = _path(filesystem, place.root)
            found = RetryPolicy().call(lambda: _find(filesystem, root), redact(place.root))
        for path, info in found.items():
            below = path.removeprefix(root).lstrip("/")
            if not _is_hidden(below) and (place.chooses(below) or path == root):
                yield f"{place.root}/{below}" if below else place.root, info

    @contextmanager
    def _failures_told(self, uri: str) -> Iterator[None]:
        try:
            yield
        except StateCheckError:
            raise
        except Exception as error:
            said = conceal(str(error), self.options).rstrip(".")
            raise StorageError(f"The files of {redact(uri)} cannot be listed: {said}.{advice(error)}") from harmless(
                error, self.options
            )


def _find(filesystem: Any, root: str) -> dict[str, dict[str, Any]]:
    found = find(filesystem, root)
    if found:
        return found
    try:
        info = filesystem.info(root)
    except FileNotFoundError:
        return {}
    return {} if info.get("type") == "directory" else {root: info}


def _path(filesystem: Any, uri: str) -> str:
    return str(filesystem._strip_protocol(uri)).rstrip("/")


def _is_hidden(below: str) -> bool:
    # As Spark has it: directories of partitions may begin with an underscore.
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) or part.endswith("._COPYING_")
        for part in below.split("/")
    )


def _item(uri: str, info: Info) -> Item:
    size = info.get("size")
    if size is None:
        raise InvalidConfigurationError(
            f"Expected a filesystem that tells the sizes of files, found none of {redact(uri)}; copy the files to another."
        )
    version = next((info[name] for name in (*_ETAGS, *_TIMES) if info.get(name) is not None), "")
    return Item.of(uri, int(size), version)


def _time(uri: str, info: Info) -> float:
    found = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if found is None:
        raise InvalidConfigurationError(
            f"Expected a filesystem that tells when files changed, found no time of {redact(uri)}; use order='path'."
        )
    return _seconds(found)


def _seconds(found: Any) -> float:
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    if isinstance(found, datetime):
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return float(found)


NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_of(root: str, uri: str) -> dict[str, str | None]:
    """Return the columns that the directories between a root and a file name; ``None`` for a missing value."""
    directories = uri.removeprefix(root).split("/")[:-1]
    pairs = (part.partition("=") for part in directories if "=" in part)
    return {unquote(name): None if value == NULL else unquote(value) for name, _, value in pairs}


def require_same_columns(files: Iterable[tuple[str, str]]) -> None:
    """
    Refuse files of which only some are in directories of partitions, or in other ones.

    :param files: Root and URI of each.
    :raises InvalidConfigurationError: if their columns differ.
    """
    known: dict[tuple[str, ...], str] = {}
    for root, uri in files:
        known.setdefault(tuple(partition_of(root, uri)), uri)
    if len(known) > 1:
        (some, uri), (others, other) = list(known.items())[:2]
        raise InvalidConfigurationError(
            f"Expected the same columns in the names of all directories, found {list(some)} in {redact(uri)} and "
            f"{list(others)} in {redact(other)}; read them by sources of their own."
        )
