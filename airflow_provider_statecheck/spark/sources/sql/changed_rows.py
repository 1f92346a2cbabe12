"""Detection of rows that change after they were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.spark.sources.source_changes import OnChange
from airflow_provider_statecheck.spark.sources.sql.database import Database
from airflow_provider_statecheck.spark.sources.sql.relation import KeyRange, Relation


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


class Watch:
    """
    Looks at ranges before and after they are read, and when an attempt begins.

    :param version: The column; without one nothing is looked at.
    :param seen: What was seen of ranges that are finished, in their order.
    """

    def __init__(
        self,
        database: Database,
        relation: Relation,
        version: str | None,
        on_change: OnChange,
        seen: Iterable[Observation] = (),
    ) -> None:
        self._database = database
        self._relation = relation
        self._version = version
        self._on_change = on_change
        self.finished = joined(seen)
        """What was seen of all that earlier attempts have read."""
        self.current: dict[str, Observation] = {}
        """What was seen of ranges that this attempt reads, by their names."""

    def require_finished_unchanged(self) -> None:
        """
        Look again at all that earlier attempts have read.

        :raises SourceChangedError: if rows changed and the stage is to fail.
        :raises SourceRestartRequiredError: if it is to begin again.
        """
        now = self._look([seen.keys for seen in self.finished])
        self._compare(self.finished, now)
        # A change that the user lets pass is not noticed again.
        self.finished = now or self.finished

    def require_unchanged(self, ranges: Iterable[KeyRange]) -> None:
        """
        Look at ranges, and compare with what was seen of them before in this attempt.

        :raises SourceChangedError: if rows changed and the stage is to fail.
        :raises SourceRestartRequiredError: if it is to begin again.
        """
        wanted = list(ranges)
        now = self._look(wanted)
        before = [self.current.get(seen.keys.name, seen) for seen in now]
        self.current.update({seen.keys.name: seen for seen in now})
        self._compare(before, now)

    def _look(self, ranges: list[KeyRange]) -> list[Observation]:
        if self._version is None or not ranges:
            return []
        with self._database.connect() as connection:
            return [Observation(keys, *self._relation.observed(connection, self._version, keys)) for keys in ranges]

    def _compare(self, before: list[Observation], now: list[Observation]) -> None:
        changed = [(was, seen) for was, seen in zip(before, now, strict=False) if was != seen]
        if changed and self._on_change is not OnChange.IGNORE:
            raise _changed(self._relation, *changed[0], self._on_change)


def _changed(
    relation: Relation, was: Observation, now: Observation, on_change: OnChange
) -> SourceChangedError | SourceRestartRequiredError:
    found = (
        f"Expected {relation.shown} as it was read, found that {was.keys} changed: {was.rows} rows with versions up to "
        f"{was.newest} are now {now.rows} with versions up to {now.newest}"
    )
    if on_change is OnChange.RESTART:
        return SourceRestartRequiredError(f"{found}; the stage begins again, as on_change='restart' says.")
    return SourceChangedError(
        f"{found}. Set on_change to 'ignore' to go on with the rows as they were read, or to 'restart' to read everything "
        "again."
    )
