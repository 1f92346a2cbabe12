"""List the files of a source through fsspec, the same way each time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    LocationNotAllowedError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.spark.sources.changes import Changes
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.places import Place
from airflow_provider_statecheck.storage.failures import advice
from airflow_provider_statecheck.storage.listing import find
from airflow_provider_statecheck.storage.options import conceal, harmless
from airflow_provider_statecheck.storage.retries import RetryPolicy
from airflow_provider_statecheck.storage.schemes import open_filesystem
from airflow_provider_statecheck.storage.uris import redact

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

    places: tuple[Place, ...]
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

    def _below(self, place: Place) -> Iterator[tuple[str, Info]]:
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
