"""
The allowed locations of a server or of maintenance, each with a deadline of its own.

A local location may be on the mount of a server that is gone, where even the resolution of a symbolic link never
returns. A URI is therefore assigned to a location by its name, and everything that opens a path runs within the
deadline of that location only: a dead mount delays and fails the calls to it, and none to the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.locations import AllowedLocations, resolved
from airflow_provider_statecheck.storage.patience import CALL_SECONDS, HostPatience
from airflow_provider_statecheck.storage.uris import is_local

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class GuardedPlaces:
    """
    Checks of URIs, and calls to their hosts.

    :param allowed: The only locations that may be opened.
    :param patience: Deadlines of the calls.
    """

    allowed: AllowedLocations
    patience: HostPatience

    def require(self, uri: str) -> None:
        """
        Require that a URI is in an allowed location, after resolving symbolic links and dots.

        :raises LocationNotAllowedError: if it is not.
        :raises StorageError: if its location, or every other one that it may lead to, does not answer.
        """
        if not is_local(uri):
            self.allowed.require(uri)
        elif not self._covers(uri):
            raise self.allowed.refused(uri)

    def ask_allowed(
        self, uri: str, action: Callable[[], Result], seconds: float, *, probe: Callable[[], object] | None = None
    ) -> Result:
        """
        Return the result of a call to the host of a URI in an allowed location.

        One call checks the location and acts, because each one needs a thread; the check has the deadline of a short
        call.

        :param probe: As for :meth:`ask`.
        :raises LocationNotAllowedError: as :meth:`require`.
        :raises StorageError: as :meth:`require` and :meth:`ask`.
        """
        for place in self._own(uri) if is_local(uri) else ():
            covered = _Covered(place, uri, action)
            done = self.ask(uri, covered.act, seconds, probe=probe, has_begun=covered.has_begun)
            if done is not None:
                return done[0]
        self.require(uri)
        return self.ask(uri, action, seconds, probe=probe)

    def ask(
        self,
        uri: str,
        action: Callable[[], Result],
        seconds: float = CALL_SECONDS,
        *,
        probe: Callable[[], object] | None = None,
        has_begun: Callable[[], bool] = lambda: True,
    ) -> Result:
        """
        Return the result of a call to the host of a URI, or raise its error.

        :param has_begun: As for :meth:`HostPatience.call`.
        :param probe: As for :meth:`HostPatience.call`; by default a look at the location of a local file.
        :raises StorageError: if the host does not answer in time, or did not recently.
        """
        host = self.allowed.host_of(uri)
        if probe is None and is_local(uri):
            probe = partial(look_at, host)
        return self.patience.call(host, action, seconds, probe=probe, has_begun=has_begun)

    def _covers(self, uri: str) -> bool:
        # A location that contains the URI by its name is asked first, and usually alone.
        return any(self.ask(uri, partial(_only(place).covers, uri)) for place in self._own(uri)) or self._leads_to(uri)

    def _own(self, uri: str) -> list[str]:
        host = self.allowed.host_of(uri)
        return [place for place in self.allowed.near(uri)[:1] if place.rstrip("/") == host]

    def _leads_to(self, uri: str) -> bool:
        """Return whether the links of a URI lead to another location than its name tells."""
        try:
            real = self.ask(uri, partial(resolved, uri))
        except ValueError:
            return False
        silent: StorageError | None = None
        for place in self.allowed.near(real):
            try:
                if self.ask(place, partial(_only(place).covers, real)):
                    return True
            except StorageError as error:
                silent = error
        if silent is not None:
            raise silent
        return False


def look_at(host: str) -> None:
    """Ask the server of a local location for a fact that no client caches."""
    os.statvfs(os.path.realpath(host.partition("://")[2] or "/"))


@dataclass(slots=True)
class _Covered(Generic[Result]):
    """A call that is made if a location contains a URI."""

    place: str
    uri: str
    action: Callable[[], Result]
    _is_inside: bool = False

    def has_begun(self) -> bool:
        """Return whether the location was found to contain the URI."""
        return self._is_inside

    def act(self) -> tuple[Result] | None:
        """Return the result, or ``None`` if the location does not contain the URI, after resolving symbolic links."""
        self._is_inside = _only(self.place).covers(self.uri)
        return (self.action(),) if self._is_inside else None


def _only(place: str) -> AllowedLocations:
    return AllowedLocations((place,))
