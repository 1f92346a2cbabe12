"""What a run reads: keys above all that runs before it have planned, and what those left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.ledger import Ledger
from airflow_provider_statecheck.spark.sources.sql.database import Database
from airflow_provider_statecheck.spark.sources.sql.key_ranges import KeyRange, equal_widths, ranges_between
from airflow_provider_statecheck.spark.sources.sql.reader import Position
from airflow_provider_statecheck.spark.sources.sql.relation import Relation

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How keys are cut into ranges, of which each is read by a task."""

    rows: int
    """How many rows a range has."""
    count: int | None
    """How many ranges of equal width there are in place of that."""

    def ranges_above(self, connection: Connection, relation: Relation, above: Any) -> list[KeyRange]:
        """
        Return ranges of all keys above one.

        :raises InvalidConfigurationError: if keys of this type have no width.
        """
        lowest, highest = relation.bounds(connection, above)
        if highest is None:
            return []
        if self.count is not None:
            return ranges_between(above, equal_widths(lowest, highest, self.count))
        return ranges_between(above, [*relation.every(connection, self.rows, KeyRange(above, highest)), highest])


def next_run(
    database: Database, relation: Relation, cuts: Cuts, before: Ledger, position: Position
) -> tuple[Ledger, Position]:
    """
    Return what a run reads, and how far runs have come with it.

    :param before: What the run before read, and how much of it is finished.
    :raises InvalidConfigurationError: if keys of this type have no width.
    """
    left = [item for i, item in enumerate(before.items) if i not in before.finished]
    with database.connect() as connection:
        ranges = cuts.ranges_above(connection, relation, position.mark)
        has_null = position.has_planned_rows_without_key or relation.has_rows_without_key(connection)
    mark = ranges[-1].up_to if ranges else position.mark
    if has_null and not position.has_planned_rows_without_key:
        ranges.append(KeyRange())
    items = (*left, *(Item.of(keys.name, 0, "") for keys in ranges))
    return Ledger(items), Position(position.key, mark, has_null)
