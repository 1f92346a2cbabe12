"""
Locations that a checkpoint's metadata may name.

A savepoint may come from an untrusted source. Without this limit, its metadata could make the driver open any URI, such as
a page of the internal network or a local file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, checkpoint_id_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, LocationNotAllowedError
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact

SETTING = "allowed_locations"
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)

_CANONICAL_SCHEMES = {"local": "file", "s3a": "s3", "gcs": "gs", "abfss": "abfs"}
"""Canonical names of scheme aliases."""


@dataclass(frozen=True, slots=True)
class AllowedLocations:
    """The locations that a storage may read."""

    places: tuple[AllowedLocation, ...] = ()

    def around(self, *uris: str | None) -> Self:
        """Return the locations plus those of directories named by the user or the coordinator."""
        return self._with(AllowedLocation.around(uri) for uri in uris if uri is not None)

    def below(self, *uris: str) -> Self:
        """Return the locations plus those of the setting."""
        return self._with(map(AllowedLocation.below, uris))

    def __or__(self, other: Self) -> Self:
        """Return the union of both."""
        return self._with(other.places)

    def require(self, uri: str) -> None:
        """
        Require that a URI is in an allowed location.

        :raises LocationNotAllowedError: if it is not.
        """
        if not any(place.holds(uri) for place in self.places):
            raise LocationNotAllowedError(
                f"Expected files of checkpoints and savepoints in {', '.join(map(str, self.places))}, found "
                f"{redact(uri)!r}, which was not opened. If you trust the checkpoint that references it, add its "
                f"location to {SETTING}, in the section [statecheck] or as an argument.",
                uri=redact(uri),
            )

    def _with(self, places: Iterable[AllowedLocation]) -> Self:
        new = [place for place in dict.fromkeys(places) if not any(known.covers(place) for known in self.places)]
        return type(self)((*self.places, *new)) if new else self


@dataclass(frozen=True, slots=True)
class AllowedLocation:
    """
    A directory tree that may be read.

    :param scheme: Canonical name of the scheme.
    :param authority: The bucket, the container with its account, or the host.
    :param path: The path with a trailing slash.
    """

    scheme: str
    authority: str
    path: str

    @classmethod
    def below(cls, uri: str) -> AllowedLocation:
        """
        Return the location of all files below a URI.

        :raises InvalidConfigurationError: if the URI is not absolute.
        """
        found = _URI.fullmatch(uri.strip())
        if found is None or (found[1].lower() in LOCAL_SCHEMES and (found[2] or not found[3])):
            raise InvalidConfigurationError(
                f"Expected {SETTING} to be URIs such as s3://bucket or file:///mnt/archive, found {redact(uri)!r}.",
                key=SETTING,
            )
        scheme = found[1].lower()
        return cls(_CANONICAL_SCHEMES.get(scheme, scheme), found[2], f"{found[3].rstrip('/')}/")

    @classmethod
    def around(cls, uri: str) -> AllowedLocation:
        """
        Return the location that a given directory belongs to.

        On remote storage this is the whole bucket or host. On a local filesystem it is the directory itself; for a
        checkpoint it is the directory of its job, because checkpoints of a job share files.
        """
        location = cls.below(uri.removesuffix(f"/{METADATA_FILE}"))
        if location.scheme not in LOCAL_SCHEMES:
            return cls(location.scheme, location.authority, "/")
        parent, _, name = location.path.rstrip("/").rpartition("/")
        return location if checkpoint_id_of(name) is None or not parent else cls(location.scheme, "", f"{parent}/")

    def holds(self, uri: str) -> bool:
        """Return whether a URI is in this location after resolving symbolic links and dots."""
        try:
            return self.covers(AllowedLocation.below(uri))
        except ValueError:
            return False

    def covers(self, other: AllowedLocation) -> bool:
        """Return whether another location is inside this one."""
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        if self.scheme in LOCAL_SCHEMES:
            return _resolved(other.path).startswith(_resolved(self.path))
        return other.path.startswith(self.path) and not {".", ".."} & set(other.path.split("/"))

    def __str__(self) -> str:
        """Return the location as a redacted URI."""
        return redact(f"{self.scheme}://{self.authority}{self.path}".removesuffix("/") or self.path)


def parse_locations(value: Any) -> tuple[str, ...]:
    """
    Parse a list of URIs or a comma-separated text.

    :raises InvalidConfigurationError: if a URI is not absolute.
    """
    texts = value.split(",") if isinstance(value, str) else list(value)
    uris = tuple(str(each).strip() for each in texts if str(each).strip())
    for uri in uris:
        AllowedLocation.below(uri)
    return uris


def _resolved(path: str) -> str:
    return f"{os.path.realpath(path).rstrip('/')}/"
