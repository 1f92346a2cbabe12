"""Detection of rows that change after they were read, by row counts and a version column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.spark.sources.source_changes import OnChange
from airflow_provider_statecheck.spark.sources.sql.database import Database
from airflow_provider_statecheck.spark.sources.sql.relation import KeyRange, Relation


class Watch:
    """
    Observes ranges before and after they are read, and at the start of an attempt.

    :param version_column: Name of the version column; without one nothing is observed.
    :param finished: Observations of finished ranges, in order.
    """

    def __init__(
        self,
        database: Database,
        relation: Relation,
        version_column: str | None,
        on_change: OnChange,
        finished: Iterable[Observation] = (),
    ) -> None:
        self._database = database
        self._relation = relation
        self._version_column = version_column
        self._on_change = on_change
        self.finished = merge_adjacent(finished)
        """Observations of all ranges that earlier attempts have read."""
        self.current: dict[str, Observation] = {}
        """Observations of the ranges that this attempt reads, by the names of the ranges."""

    def require_finished_unchanged(self) -> None:
        """
        Verify that the ranges of earlier attempts have not changed.

        :raises SourceChangedError: if rows changed and the policy is ``FAIL``.
        :raises SourceRestartRequiredError: if rows changed and the policy is ``RESTART``.
        """
        now = self._observe([observation.keys for observation in self.finished])
        self._compare(self.finished, now)
        # An ignored change is not reported again.
        self.finished = now or self.finished

    def require_unchanged(self, ranges: Iterable[KeyRange]) -> None:
        """
        Observe ranges and verify that they have not changed since this attempt observed them first.

        :raises SourceChangedError: if rows changed and the policy is ``FAIL``.
        :raises SourceRestartRequiredError: if rows changed and the policy is ``RESTART``.
        """
        now = self._observe(list(ranges))
        before = [self.current.get(observation.keys.name, observation) for observation in now]
        self.current.update({observation.keys.name: observation for observation in now})
        self._compare(before, now)

    def _observe(self, ranges: list[KeyRange]) -> list[Observation]:
        if self._version_column is None or not ranges:
            return []
        version = self._version_column
        with self._database.connect() as connection:
            return [Observation(keys, *self._relation.count_and_version(connection, version, keys)) for keys in ranges]

    def _compare(self, before: list[Observation], now: list[Observation]) -> None:
        changed = [(old, new) for old, new in zip(before, now, strict=False) if old != new]
        if changed and self._on_change is not OnChange.IGNORE:
            raise _change_error(self._relation, *changed[0], self._on_change)


def _change_error(
    relation: Relation, old: Observation, new: Observation, on_change: OnChange
) -> SourceChangedError | SourceRestartRequiredError:
    found = (
        f"Expected {relation.shown} as it was read, found that {old.keys} changed: {old.rows} rows with versions up to "
        f"{old.newest} are now {new.rows} with versions up to {new.newest}"
    )
    if on_change is OnChange.RESTART:
        return SourceRestartRequiredError(f"{found}; the stage starts over, because on_change is 'restart'.")
    return SourceChangedError(
        f"{found}. Set on_change to 'ignore' to continue with the rows as they were read, or to 'restart' to read everything "
        "again."
    )


@dataclass(frozen=True, slots=True)
class Observation:
    """Row count and largest version of a key range at one time."""

    keys: KeyRange
    rows: int
    newest: Any

    def merge(self, following: Observation) -> Observation:
        """Return the observation of this range and the adjacent following one."""
        versions = [version for version in (self.newest, following.newest) if version is not None]
        keys = KeyRange(self.keys.above, following.keys.up_to)
        return Observation(keys, self.rows + following.rows, max(versions, default=None))

    def encode(self) -> list[Any]:
        """Return the observation as plain values."""
        return [self.keys.name, self.rows, self.newest]

    @classmethod
    def decode(cls, encoded: list[Any]) -> Observation:
        """Decode an observation from :meth:`encode`."""
        name, rows, newest = encoded
        return cls(KeyRange.of_name(name), rows, newest)


def merge_adjacent(observations: Iterable[Observation]) -> list[Observation]:
    """Merge the observations of adjacent ranges."""
    merged: list[Observation] = []
    for observation in observations:
        if merged and _are_adjacent(merged[-1].keys, observation.keys):
            merged[-1] = merged[-1].merge(observation)
        else:
            merged.append(observation)
    return merged


def encode_observations(observations: Iterable[Observation]) -> list[list[Any]]:
    """Return observations as plain values."""
    return [observation.encode() for observation in observations]


def decode_observations(state: Mapping[str, Any], name: str) -> list[Observation]:
    """Decode observations from :func:`encode_observations`."""
    return [Observation.decode(encoded) for encoded in state[name]]


def _are_adjacent(keys: KeyRange, following: KeyRange) -> bool:
    return keys.up_to is not None and following.up_to is not None and keys.up_to == following.above
