"""Detection of rows that change after they were read, by row counts and a version column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.spark.sources.source import OnChange, change_error
from airflow_provider_statecheck.spark.sources.sql.relation import KeyRange, Relation
from airflow_provider_statecheck.spark.tables.databases import Database


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
            old, new = changed[0]
            raise change_error(
                f"Expected {self._relation.shown} as it was read, found that {old.keys} changed: {old.rows} rows with versions up "
                f"to {old.newest} are now {new.rows} with versions up to {new.newest}",
                "Set on_change to 'ignore' to continue with the rows as they were read, or to 'restart' to read everything again.",
                self._on_change,
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


def _are_adjacent(keys: KeyRange, following: KeyRange) -> bool:
    return keys.up_to is not None and following.up_to is not None and keys.up_to == following.above
