"""Relative URIs in metadata files, which remain valid if the file moves with its directory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import redact

OF_JOB = "job:"
"""Prefix of a URI relative to the directory of the job."""
OF_DIRECTORY = "dir:"
"""Prefix of a URI relative to the directory of the metadata file."""
_SPECIAL_NAMES = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True)
class RelativeUris:
    """
    Shortens URIs below a directory.

    :param prefix: Prefix that marks a shortened URI.
    :param base: The directory; ``None`` to keep all URIs absolute.
    """

    prefix: str
    base: str | None

    def shorten(self, uri: str) -> str:
        """
        Return the written form of a URI.

        :raises InvalidConfigurationError: if the URI is not absolute and would be read as a shortened one.
        """
        if self.covers(uri):
            return f"{self.prefix}{uri.removeprefix(f'{self.base}/')}"
        if is_relative(uri):
            raise InvalidConfigurationError(f"Expected an absolute URI such as file:///data/x, found {redact(uri)!r}.")
        return uri

    def covers(self, uri: str) -> bool:
        """Return whether a URI is below the directory."""
        return (
            self.base is not None and uri.startswith(f"{self.base}/") and _is_plain(uri.removeprefix(f"{self.base}/"))
        )

    def cover(self, uris: Iterable[str]) -> bool:
        """Return whether all URIs are below the directory."""
        return all(map(self.covers, uris))


def lengthen(written: str, metadata_uri: str) -> str:
    """
    Return the absolute URI of a written one.

    :param metadata_uri: URI of the metadata file that contains it.
    :raises ValueError: if a relative URI leads out of its directory.
    """
    if not is_relative(written):
        return written
    prefix, path = written[:4], written[4:]
    if not _is_plain(path):
        raise ValueError(f"{written!r} leads out of its directory")
    base = directory_of(metadata_uri) if prefix == OF_DIRECTORY else job_directory_of(metadata_uri)
    return f"{base}/{path}"


def is_relative(written: str) -> bool:
    """Return whether a written URI is relative. A URI whose scheme equals a prefix is absolute."""
    return written.startswith((OF_JOB, OF_DIRECTORY)) and not written[4:].startswith("//")


def directory_of(metadata_uri: str) -> str:
    """Return the directory of a metadata file."""
    return metadata_uri.rstrip("/").rpartition("/")[0]


def job_directory_of(metadata_uri: str) -> str:
    """Return the directory of the job whose checkpoint a metadata file describes."""
    return directory_of(directory_of(metadata_uri))


def _is_plain(path: str) -> bool:
    # Many files share a directory, which is checked once.
    directory, slash, name = path.rpartition("/")
    return name not in _SPECIAL_NAMES and (not slash or _is_plain_directory(directory))


@lru_cache(maxsize=256)
def _is_plain_directory(path: str) -> bool:
    return _SPECIAL_NAMES.isdisjoint(path.split("/"))
