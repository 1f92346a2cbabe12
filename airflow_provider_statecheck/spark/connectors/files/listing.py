"""
Listing of the files of a source: paths, wildcards and partition columns.

The driver lists through fsspec, without Spark. Files that are empty, or hidden by Spark's rules, are skipped. The
version of a file is its ETag or generation if the filesystem has one, otherwise its modification time.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, LocationNotAllowedError
from airflow_provider_statecheck.spark.connectors.source import Changes
from airflow_provider_statecheck.spark.tables.partition_directories import partition_names
from airflow_provider_statecheck.spark.tables.schemas import storage_failures
from airflow_provider_statecheck.state.source_items import Item
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.file_operations import find
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, open_filesystem, redact, scheme_of

_WILDCARD = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LISTING_THREADS = 16
_ETAGS = ("ETag", "etag", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modificationTime", "modified", "created")

Info = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FileListing:
    """
    Lists files through fsspec.

    :param paths: Files and directories of the source.
    :param options: Options of the filesystem; may contain credentials.
    :param order: ``"path"``, or ``"mtime"`` for the oldest files first.
    """

    paths: tuple[SourcePath, ...]
    options: Mapping[str, Any]
    order: str = "path"

    def files(self) -> tuple[Item, ...]:
        """
        Return all files in reading order, except hidden and empty ones.

        :raises StorageError: if the storage fails.
        :raises InvalidConfigurationError: if the filesystem does not report sizes, or times for ``order="mtime"``.
        """
        found = {uri: info for path in self.paths for uri, info in self._find_files(path)}
        by_path = sorted(found)
        order = sorted(by_path, key=lambda uri: _modified_at(uri, found[uri])) if self.order == "mtime" else by_path
        items = [_item(uri, found[uri]) for uri in order]
        return tuple(item for item in items if item.size_bytes)

    def changes(self, items: Sequence[Item]) -> Changes:
        """
        Return which of the items vanished or changed since they were listed.

        :raises StorageError: if the storage fails.
        """
        with ThreadPoolExecutor(_LISTING_THREADS) as threads:
            now = list(threads.map(self._current_item, items))
        pairs = list(zip(items, now, strict=True))
        return Changes(
            vanished=tuple(item for item, found in pairs if found is None),
            changed=tuple(found for item, found in pairs if found is not None and found.digest != item.digest),
        )

    def root_of(self, uri: str) -> str:
        """
        Return the root of the path that contains a file.

        :raises LocationNotAllowedError: if no path contains it, because a restored state may name any file.
        """
        roots = [path.root for path in self._paths_of(uri)]
        if not roots or ".." in uri.split("/"):
            known = ", ".join(redact(path.root) for path in self.paths)
            raise LocationNotAllowedError(
                f"Expected the files of the source below {known}, found {redact(uri)!r} in the restored state, which "
                "was not opened; set the original path of the source, or start without the state.",
                uri=redact(uri),
            )
        return max(roots, key=len)

    def base_of(self, uri: str) -> str:
        """
        Return the directory below which the names of directories are values of partition columns; empty if none is.

        :raises LocationNotAllowedError: if no path contains the file.
        """
        root = self.root_of(uri)
        path = next(path for path in self._paths_of(uri) if path.root == root)
        base = path.base_of(uri)
        return "" if base == uri else base

    def _paths_of(self, uri: str) -> list[SourcePath]:
        found = [path for path in self.paths if f"{uri}/".startswith(f"{path.root}/")]
        return [path for path in found if path.matches(_below(path.root, uri))] or found

    def _current_item(self, item: Item) -> Item | None:
        with self._storage_failures(item.name):
            filesystem = open_filesystem(self.root_of(item.name), dict(self.options))
            try:
                info = RetryPolicy().call(lambda: filesystem.info(_path(filesystem, item.name)), redact(item.name))
            except FileNotFoundError:
                return None
        return _item(item.name, info)

    def _find_files(self, path: SourcePath) -> Iterator[tuple[str, Info]]:
        with self._storage_failures(path.root):
            filesystem = open_filesystem(path.root, dict(self.options))
            root = _path(filesystem, path.root)
            found = RetryPolicy().call(lambda: _find(filesystem, root), redact(path.root))
        for name, info in found.items():
            relative = name.removeprefix(root).lstrip("/")
            # Spark reads no hidden file either that is a path itself.
            listed = path.listed_part(relative) or name.rpartition("/")[2]
            if (path.matches(relative) or name == root) and not _is_hidden(listed):
                uri = f"{path.root}/{relative}" if relative else path.root
                yield uri, self._followed(filesystem, name, info, uri)

    def _followed(self, filesystem: Any, name: str, info: Info, uri: str) -> Info:
        # A listing describes a link itself, except for its size: the file behind it could change unnoticed.
        if not info.get("islink") and info.get("type") != "link":
            return info
        with self._storage_failures(uri):
            target = filesystem.info(name) if filesystem.exists(name) else {"type": "nothing"}
        if target["type"] in ("directory", "nothing"):
            raise InvalidConfigurationError(
                f"Expected files and links to files in a source, found {redact(uri)}, a link to {target['type']}; add "
                "the directory itself to the paths of the source, restore what the link leads to, or exclude the link "
                "with a pattern."
            )
        return dict(target)

    def _storage_failures(self, uri: str) -> AbstractContextManager[None]:
        return storage_failures(f"The files of {redact(uri)} cannot be listed", self.options)


def _find(filesystem: Any, root: str) -> dict[str, dict[str, Any]]:
    found = find(filesystem, root)
    if found:
        return found
    try:
        info = filesystem.info(root)
    except FileNotFoundError:
        return {}
    return {} if info.get("type") == "directory" else {root: info}


@dataclass(frozen=True, slots=True)
class SourcePath:
    """A file or a directory, with an optional pattern for the files below it."""

    root: str
    """Absolute URI without wildcards and without a trailing slash."""
    pattern: str = ""
    """Pattern relative to the root; ``*`` matches within a path segment, ``**`` across segments."""
    base: str | None = None
    """
    Directory below which the names of directories are values of partition columns: the root for ``None``; empty if none
    is.
    """
    is_expanded: bool = False
    """Whether what the pattern matches counts as a path of its own, as in Spark, and not as part of the root."""

    def matches(self, relative_path: str) -> bool:
        """Return whether the pattern matches a file or one of its parent directories."""
        return not self.pattern or self._match(relative_path) is not None

    def base_of(self, uri: str) -> str:
        """Return the directory below which the names of directories above a file are values of partition columns."""
        if self.base is not None:
            return self.base
        match = self._match(_below(self.root, uri)) if self.is_expanded else None
        return self.root if match is None else f"{self.root}/{match}"

    def listed_part(self, relative_path: str) -> str:
        """Return the part of the path of a file that was found by listing, in which hidden names are left out."""
        match = self._match(relative_path) if self.is_expanded else None
        return relative_path if match is None else relative_path.removeprefix(match).lstrip("/")

    def _match(self, relative_path: str) -> str | None:
        """Return the shortest path above a file, or the file, that the pattern matches."""
        if not self.pattern:
            return None
        segments, expression = relative_path.split("/"), _expression(self.pattern)
        parts = ("/".join(segments[:length]) for length in range(1, len(segments) + 1))
        return next((part for part in parts if expression.fullmatch(part)), None)


def _below(root: str, uri: str) -> str:
    return uri.removeprefix(root).removeprefix("/")


def parse_paths(paths: Any) -> tuple[SourcePath, ...]:
    """
    Parse one path or several paths.

    :raises InvalidConfigurationError: if a path is empty, of another type, or has a wildcard in its scheme or host.
    """
    several = paths if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    if not several:
        raise InvalidConfigurationError("Expected a path to read, found none.")
    return tuple(_parse_path(path) for path in several)


def _parse_path(path: Any) -> SourcePath:
    if isinstance(path, SourcePath):
        return path
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not isinstance(text, str) or not text.strip():
        raise InvalidConfigurationError(f"Expected a path or a URI such as s3://lake/orders/, found {path!r}.")
    segments = _absolute_uri(text).split("/")
    # The first three segments are the scheme and the host, which take no wildcards.
    first = next((i for i, segment in enumerate(segments) if i > 2 and _WILDCARD.search(segment)), len(segments))
    root = "/".join(segments[:first]).rstrip("/")
    if not _SCHEME.match(root) or _WILDCARD.search(segments[2]):
        raise InvalidConfigurationError(
            f"Expected a directory or a bucket before any wildcard, found {redact(text)!r}."
        )
    return SourcePath(root, "/".join(segments[first:]))


def _absolute_uri(text: str) -> str:
    if not _SCHEME.match(text):
        return f"file://{_without_dots(str(Path(text).expanduser().absolute()))}"
    scheme, rest = scheme_of(text), text.partition("://")[2].rstrip("/")
    if scheme in LOCAL_SCHEMES:
        if not rest.startswith("/"):
            raise InvalidConfigurationError(
                f"Expected a local path with three slashes as in file:///data/orders, found {redact(text)!r}."
            )
        return f"file://{_without_dots(rest)}"
    return f"{scheme}://{rest}"


def _without_dots(path: str) -> str:
    # root_of refuses dots in the names of files, with which a restored state could name any file.
    return str(Path(path).resolve()) if ".." in path.split("/") else path


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    from fsspec.utils import glob_translate

    # Two stars next to other characters of a segment are one; Hadoop, too, excludes characters by [^ab].
    segments = (part if part == "**" else re.sub(r"\*+", "*", part) for part in pattern.replace("[^", "[!").split("/"))
    return re.compile(glob_translate("/".join(segments)))


def _path(filesystem: Any, uri: str) -> str:
    return str(filesystem._strip_protocol(uri)).rstrip("/")


def _is_hidden(relative_path: str) -> bool:
    # The rules of Spark: names of partition directories may start with an underscore.
    return any(
        segment.startswith(".") or (segment.startswith("_") and "=" not in segment) or segment.endswith("._COPYING_")
        for segment in relative_path.split("/")
    )


def _item(uri: str, info: Info) -> Item:
    size = info.get("size")
    if size is None:
        raise InvalidConfigurationError(
            f"Expected a filesystem that reports the sizes of files, found no size of {redact(uri)}; copy the files to "
            "another one."
        )
    version = next((info[name] for name in (*_ETAGS, *_TIMES) if info.get(name) is not None), "")
    return Item.of(uri, int(size), version)


def _modified_at(uri: str, info: Info) -> float:
    found = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if found is None:
        raise InvalidConfigurationError(
            f"Expected a filesystem that reports modification times, found no time of {redact(uri)}; use order='path'."
        )
    return _timestamp(found)


def _timestamp(value: Any) -> float:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)


def require_same_partition_columns(files: Iterable[tuple[str, str]], is_case_sensitive: Callable[[], bool]) -> None:
    """
    Require that all files have the same partition columns.

    :param files: Pairs of the directory below which a file has partition columns, and its URI.
    :param is_case_sensitive: Returns whether columns differ whose names differ in case only.
    :raises InvalidConfigurationError: if their partition columns differ.
    """
    known: dict[tuple[str, ...], str] = {}
    for base, uri in files:
        known.setdefault(partition_names(base, uri) if base else (), uri)
    if len(known) > 1 and (len({_in_lower_case(names) for names in known}) > 1 or is_case_sensitive()):
        (columns, uri), (other_columns, other_uri) = list(known.items())[:2]
        raise InvalidConfigurationError(
            f"Expected the same partition columns in all directories, found {list(columns)} in {redact(uri)} and "
            f"{list(other_columns)} in {redact(other_uri)}; read them as separate sources."
        )


def _in_lower_case(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)
