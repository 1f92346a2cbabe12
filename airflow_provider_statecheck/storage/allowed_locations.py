"""
Locations that a checkpoint's metadata may name.

A savepoint may come from anybody. Without a limit its metadata would make the driver open any URI, such as a page of the
internal network or a file of the machine.
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
_SAME = {"local": "file", "s3a": "s3", "gcs": "gs", "abfss": "abfs"}
"""Schemes that two systems have for one storage."""


@dataclass(frozen=True, slots=True)
class AllowedLocation:
    """
    What lies below a URI.

    :param scheme: The one name of its scheme.
    :param authority: The bucket, the container with its account, or the host.
    :param path: A path with a slash at its end.
    """

    scheme: str
    authority: str
    path: str

    @classmethod
    def below(cls, uri: str) -> AllowedLocation:
        """
        Return what lies below a URI.

        :raises InvalidConfigurationError: for text that is no absolute URI.
        """
        found = _URI.fullmatch(uri.strip())
        if found is None or (found[1].lower() in LOCAL_SCHEMES and (found[2] or not found[3])):
            raise InvalidConfigurationError(
                f"Expected {SETTING} to be URIs such as s3://bucket or file:///mnt/archive, found {redact(uri)!r}.",
                key=SETTING,
            )
        scheme = found[1].lower()
        return cls(_SAME.get(scheme, scheme), found[2], f"{found[3].rstrip('/')}/")

    @classmethod
    def around(cls, uri: str) -> AllowedLocation:
        """
        Return what moves together with a directory that somebody named, or shares its storage.

        That is the whole bucket or host. Of local files it is the directory alone, and for a checkpoint that of its job, in
        which it shares files with others.
        """
        place = cls.below(uri.removesuffix(f"/{METADATA_FILE}"))
        if place.scheme not in LOCAL_SCHEMES:
            return cls(place.scheme, place.authority, "/")
        parent, _, name = place.path.rstrip("/").rpartition("/")
        return place if checkpoint_id_of(name) is None or not parent else cls(place.scheme, "", f"{parent}/")

    def holds(self, uri: str) -> bool:
        """Tell whether a URI lies in this place, whatever links and dots are on its way."""
        try:
            return self.covers(AllowedLocation.below(uri))
        except ValueError:
            return False

    def covers(self, other: AllowedLocation) -> bool:
        """Tell whether another place lies in this one."""
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        if self.scheme in LOCAL_SCHEMES:
            return _real(other.path).startswith(_real(self.path))
        return other.path.startswith(self.path) and not {".", ".."} & set(other.path.split("/"))

    def __str__(self) -> str:
        """Return it as a URI, without what may be secret."""
        return redact(f"{self.scheme}://{self.authority}{self.path}".removesuffix("/") or self.path)


def parse_locations(value: Any) -> tuple[str, ...]:
    """
    Read a list of URIs, or text with commas between them.

    :raises InvalidConfigurationError: for what is no list of absolute URIs.
    """
    texts = value.split(",") if isinstance(value, str) else list(value)
    uris = tuple(str(each).strip() for each in texts if str(each).strip())
    for uri in uris:
        AllowedLocation.below(uri)
    return uris


@dataclass(frozen=True, slots=True)
class AllowedLocations:
    """The places that may be read."""

    places: tuple[AllowedLocation, ...] = ()

    def around(self, *uris: str | None) -> Self:
        """Return these places, and those of the directories that the user or the coordinator named."""
        return self._with(AllowedLocation.around(uri) for uri in uris if uri is not None)

    def below(self, *uris: str) -> Self:
        """Return these places, and those of the setting."""
        return self._with(map(AllowedLocation.below, uris))

    def __or__(self, other: Self) -> Self:
        """Return the places of both."""
        return self._with(other.places)

    def require(self, uri: str) -> None:
        """
        Refuse a URI elsewhere.

        :raises LocationNotAllowedError: naming it, the places and the setting.
        """
        if not any(place.holds(uri) for place in self.places):
            raise LocationNotAllowedError(
                f"Expected files of checkpoints and savepoints in {', '.join(map(str, self.places))}, found "
                f"{redact(uri)!r}, which was not opened. If you trust what names it, add its place to {SETTING}, in the "
                f"section [statecheck] or as an argument.",
                uri=redact(uri),
            )

    def _with(self, places: Iterable[AllowedLocation]) -> Self:
        new = [place for place in dict.fromkeys(places) if not any(known.covers(place) for known in self.places)]
        return type(self)((*self.places, *new)) if new else self


def _real(path: str) -> str:
    return f"{os.path.realpath(path).rstrip('/')}/"
