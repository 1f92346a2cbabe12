"""Notice rows that change behind what was read, where a column has a version that rises with each change."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_statecheck.exceptions import SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.spark.sources.changes import OnChange
from airflow_provider_statecheck.spark.sources.sql.database import Database
from airflow_provider_statecheck.spark.sources.sql.key_ranges import KeyRange
from airflow_provider_statecheck.spark.sources.sql.observations import Observation, joined
from airflow_provider_statecheck.spark.sources.sql.relation import Relation


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
