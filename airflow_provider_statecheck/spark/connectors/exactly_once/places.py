"""The places of sinks, which checkpoints and commit logs record."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Self

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.storage.uris import redact

_CONCEALED = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place to which a sink writes, without credentials."""

    kind: str
    """Kind of the sink."""
    address: str
    """URI or name of the directory, of the table, or of the commit log of a custom sink."""
    store: str = field(default="", repr=False)
    """Database or catalog of a table, without credentials."""
    staging: str = ""
    """Directory of rows that wait for their commit, if it is not in the place."""

    @classmethod
    def of_uri(cls, kind: str, uri: str) -> Self:
        """Return the place with a URI."""
        return cls(kind=kind, address=redact(uri))

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Return the place in a commit log.

        :raises CoordinatorError: if the text is not one of :attr:`text`.
        """
        return decode(cls, json.loads(text))

    @property
    def text(self) -> str:
        """The place as text; equal places have equal texts."""
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    def is_reachable_from(self, own: Place) -> bool:
        """
        Return whether a sink at another place may open this one.

        A checkpoint or log names it, so it gets the credentials of the sink only if it is in the same bucket or on the
        same host.
        """
        pairs = ((self.address, own.address), (self.staging, own.staging))
        return all(_CONCEALED not in theirs and _host_of(theirs) == _host_of(mine) for theirs, mine in pairs)

    @property
    def shown(self) -> str:
        """The place for messages."""
        return f"{self.address} of {self.store}" if self.store else self.address

    def has_log_of(self, other: Place | None) -> bool:
        """Return whether a sink has the same commit log at both places."""
        return other is not None and (self.kind, self.address, self.store) == (other.kind, other.address, other.store)


def _host_of(address: str) -> list[str]:
    return address.split("/", 3)[:3] if "://" in address else []


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredOutput:
    """What a restored checkpoint tells about its output."""

    place: Place | None
    """``None`` in checkpoints of older versions, and for sinks without a place."""
    is_committed: bool
    """Whether the coordinator knows that the sink has committed it."""
    is_of_this_run: bool
