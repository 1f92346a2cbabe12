"""
Locations of files that a process may open.

A savepoint may come from an untrusted source. Without a limit to allowed locations, its metadata could make the driver
open any URI, such as a page of the internal network or a local file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.ids import METADATA_FILE, canonical_scheme, checkpoint_id_of
from airflow_provider_statecheck.checkpoint.masking import redact
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, LocationNotAllowedError
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, URI

SETTING = "allowed_locations"
_KEPT_PLACES = 256
"""Number of URIs whose normal forms are kept, as each call asks for them several times."""


@dataclass(frozen=True, slots=True)
class AllowedLocations:
    """
    The locations that a storage may read.

    :param places: URIs of directory trees, with canonical schemes and trailing slashes.
    :param is_fixed: Whether further locations, such as those in rows and metadata, are not added.
    """

    places: tuple[str, ...] = ()
    is_fixed: bool = False

    @classmethod
    def only(cls, below: Iterable[str], around: Iterable[str] = ()) -> Self:
        """
        Return locations to which no others can be added, without opening any of them.

        :param below: URIs from the configuration.
        :param around: URIs of directories named by the user.
        """
        places = (*map(_place_below, below), *map(_place_around, around))
        return cls(tuple(dict.fromkeys(places)), is_fixed=True)

    def around(self, *uris: str | None) -> Self:
        """Return the locations plus those of directories named by the user or the coordinator."""
        return self._with(_place_around(uri) for uri in uris if uri is not None)

    def below(self, *uris: str) -> Self:
        """Return the locations plus those of the setting."""
        return self._with(map(_place_below, uris))

    def __or__(self, other: Self) -> Self:
        """Return the union of both."""
        return self._with(other.places)

    def require(self, uri: str) -> None:
        """
        Require that a URI is in an allowed location, after resolving symbolic links and dots.

        :raises LocationNotAllowedError: if it is not.
        """
        if not self.covers(uri):
            raise self.refused(uri)

    def refused(self, uri: str) -> LocationNotAllowedError:
        """Return the error of a URI in no allowed location."""
        places = redact(", ".join(place.removesuffix("/") for place in self.places))
        return LocationNotAllowedError(
            f"Expected files of checkpoints and savepoints in {places or 'the configured locations'}, found "
            f"{redact(uri)!r}, which was not opened. If you trust the checkpoint that references it, add its "
            f"location to {SETTING}, in the section [statecheck] or as an argument.",
            uri=redact(uri),
        )

    def covers(self, uri: str) -> bool:
        """Return whether a URI is in an allowed location, after resolving symbolic links and dots."""
        try:
            place = resolved(uri)
            has_dots = bool({".", ".."} & set(place.split("/")))
            return not has_dots and any(place.startswith(_resolved(known)) for known in self.near(uri))
        except ValueError:
            return False

    def near(self, uri: str) -> list[str]:
        """
        Return the locations with the scheme of a URI, first those that contain it by their names, the innermost first.

        Nothing is opened: a local location may be on a server that does not answer.
        """
        place = _place_below(uri)
        scheme = place.partition("://")[0]
        same = (known for known in self.places if known.partition("://")[0] == scheme)
        return sorted(same, key=lambda known: (not place.startswith(known), -len(known)))

    def _with(self, places: Iterable[str]) -> Self:
        # One whose name is below another may be a link that leads elsewhere. Nothing is opened to tell: it may be on a
        # server that does not answer.
        new = [] if self.is_fixed else [place for place in dict.fromkeys(places) if place not in self.places]
        return type(self)((*self.places, *new)) if new else self

    def fixed(self) -> Self:
        """Return these locations, to which no others can be added."""
        return type(self)(self.places, is_fixed=True)

    def with_own(self, uri: str) -> Self:
        """Return the locations plus a directory of this process, also if they are fixed."""
        return type(self)((*self.places, _place_below(uri)), is_fixed=self.is_fixed)

    def host_of(self, uri: str) -> str:
        """
        Return what a URI shares a host with: its bucket or host, or the location that contains a local file by name.

        A local file in no location shares its topmost directory.
        """
        around = _place_around(uri)
        scheme, _, rest = around.partition("://")
        if scheme not in LOCAL_SCHEMES:
            return redact(f"{scheme}://{rest.partition('/')[0]}")
        place = _place_below(uri)
        inner = next((known for known in self.near(uri) if place.startswith(known)), None)
        return f"{scheme}:///{rest.lstrip('/').partition('/')[0]}" if inner is None else inner.rstrip("/")


def root_of_host(uri: str) -> str:
    """Return the URI of the root of the bucket or host of a remote URI."""
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.partition('/')[0]}/"


@lru_cache(_KEPT_PLACES)
def _place_below(uri: str) -> str:
    """
    Return the location of all files below a URI.

    :raises InvalidConfigurationError: if the URI is not absolute.
    """
    found = URI.fullmatch(uri.strip())
    if found is None or (found[1].lower() in LOCAL_SCHEMES and not found[2].startswith("/")):
        raise InvalidConfigurationError(
            f"Expected {SETTING} to be URIs such as s3://bucket or file:///mnt/archive, found {redact(uri)!r}.",
            key=SETTING,
        )
    return f"{canonical_scheme(found[1])}://{found[2].rstrip('/')}/"


def _place_around(uri: str) -> str:
    """
    Return the location that a given directory belongs to.

    On remote storage this is the whole bucket or host. On a local filesystem it is the directory itself; for a
    checkpoint it is the directory of its job, because checkpoints of a job share files.
    """
    place = _place_below(uri.removesuffix(f"/{METADATA_FILE}"))
    scheme, _, path = place.partition("://")
    if scheme not in LOCAL_SCHEMES:
        return f"{scheme}://{path.partition('/')[0]}/"
    parent, _, name = path.rstrip("/").rpartition("/")
    return place if checkpoint_id_of(name) is None or not parent else f"{scheme}://{parent}/"


def resolved(uri: str) -> str:
    """
    Return the location of all files below a URI without symbolic links, which opens local directories.

    :raises ValueError: if no filesystem accepts the path.
    """
    return _resolved(_place_below(uri))


def _resolved(place: str) -> str:
    scheme, _, path = place.partition("://")
    return f"{scheme}://{os.path.realpath(path).rstrip('/')}/" if scheme in LOCAL_SCHEMES else place


def parse_locations(value: Any) -> tuple[str, ...]:
    """
    Parse a list of URIs or a comma-separated text.

    :raises InvalidConfigurationError: if a URI is not absolute.
    """
    texts = value.split(",") if isinstance(value, str) else list(value)
    uris = tuple(str(each).strip() for each in texts if str(each).strip())
    for uri in uris:
        _place_below(uri)
    return uris
