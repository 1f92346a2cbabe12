"""
How URIs stand in ``_metadata``: relative to a directory that is moved as a whole, or absolute.

A savepoint is its directory, so what lies in there is written relative to it; if it names anything else it cannot be moved,
and all its URIs stay absolute. A checkpoint shares files with others of its job, so URIs below the job's directory are
written relative to that, and any other one stays absolute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import redact

OF_JOB = "job:"
OF_DIRECTORY = "dir:"


@dataclass(frozen=True, slots=True)
class RelativeUris:
    """
    Shortens URIs that lie below a directory.

    :param prefix: What says that a URI was shortened.
    :param base: The directory, or ``None`` where nothing is to be shortened.
    """

    prefix: str
    base: str | None

    def shorten(self, uri: str) -> str:
        """
        Return a URI as it is written.

        :raises InvalidConfigurationError: for what is no absolute URI and would be taken for a shortened one.
        """
        if self.covers(uri):
            return f"{self.prefix}{uri.removeprefix(f'{self.base}/')}"
        if is_relative(uri):
            raise InvalidConfigurationError(f"Expected an absolute URI such as file:///data/x, found {redact(uri)!r}.")
        return uri

    def covers(self, uri: str) -> bool:
        """Tell whether a URI lies below the directory."""
        return (
            self.base is not None and uri.startswith(f"{self.base}/") and _is_plain(uri.removeprefix(f"{self.base}/"))
        )

    def cover(self, uris: Iterable[str]) -> bool:
        """Tell whether all of the URIs lie below the directory."""
        return all(map(self.covers, uris))


def lengthen(written: str, metadata_uri: str) -> str:
    """
    Return the URI that was written.

    :param metadata_uri: Where it was read from.
    :raises ValueError: for one that leads out of the directory to which it is relative.
    """
    if not is_relative(written):
        return written
    prefix, path = written[:4], written[4:]
    if not _is_plain(path):
        raise ValueError(f"{written!r} leads out of its directory")
    base = directory_of(metadata_uri) if prefix == OF_DIRECTORY else job_directory_of(metadata_uri)
    return f"{base}/{path}"


def is_relative(written: str) -> bool:
    """Tell whether a URI was shortened; one whose scheme happens to be called like a prefix was not."""
    return written.startswith((OF_JOB, OF_DIRECTORY)) and not written[4:].startswith("//")


def directory_of(metadata_uri: str) -> str:
    """Return the directory of a metadata file."""
    return metadata_uri.rstrip("/").rpartition("/")[0]


def job_directory_of(metadata_uri: str) -> str:
    """Return the directory of the job whose checkpoint a metadata file describes."""
    return directory_of(directory_of(metadata_uri))


def _is_plain(path: str) -> bool:
    return not {"", ".", ".."} & set(path.split("/"))
