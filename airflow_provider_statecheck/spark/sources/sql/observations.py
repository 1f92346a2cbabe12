"""What was seen of ranges when they were read, by which later changes are noticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.spark.sources.sql.key_ranges import KeyRange


@dataclass(frozen=True, slots=True)
class Observation:
    """How many rows a range had, and their largest version."""

    keys: KeyRange
    rows: int
    newest: Any

    def joined(self, following: Observation) -> Observation:
        """Return what was seen of this range and the one right behind it."""
        versions = [version for version in (self.newest, following.newest) if version is not None]
        keys = KeyRange(self.keys.above, following.keys.up_to)
        return Observation(keys, self.rows + following.rows, max(versions, default=None))

    def encode(self) -> list[Any]:
        """Return it as plain values."""
        return [self.keys.name, self.rows, self.newest]

    @classmethod
    def decode(cls, encoded: list[Any]) -> Observation:
        """Return what :meth:`encode` gave."""
        name, rows, newest = encoded
        return cls(KeyRange.of_name(name), rows, newest)


def joined(observations: Iterable[Observation]) -> list[Observation]:
    """Return as few observations as say the same: neighbours become one."""
    found: list[Observation] = []
    for seen in observations:
        if found and _are_neighbours(found[-1].keys, seen.keys):
            found[-1] = found[-1].joined(seen)
        else:
            found.append(seen)
    return found


def encode_observations(observations: Iterable[Observation]) -> list[list[Any]]:
    """Return observations as plain values."""
    return [seen.encode() for seen in observations]


def decode_observations(state: Mapping[str, Any], name: str) -> list[Observation]:
    """Return what :func:`encode_observations` gave."""
    return [Observation.decode(encoded) for encoded in state[name]]


def _are_neighbours(keys: KeyRange, following: KeyRange) -> bool:
    return keys.up_to is not None and following.up_to is not None and keys.up_to == following.above
