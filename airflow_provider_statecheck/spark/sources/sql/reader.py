"""Reads ranges of keys, and keeps what another attempt needs to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.sql.columns import Columns
from airflow_provider_statecheck.spark.sources.sql.database import Database
from airflow_provider_statecheck.spark.sources.sql.key_ranges import KeyRange
from airflow_provider_statecheck.spark.sources.sql.observations import (
    Observation,
    decode_observations,
    encode_observations,
)
from airflow_provider_statecheck.spark.sources.sql.range_tasks import load_ranges
from airflow_provider_statecheck.spark.sources.sql.relation import Relation
from airflow_provider_statecheck.spark.sources.sql.watch import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Position:
    """How far runs have come, beside the ranges of the current one."""

    key: str
    mark: Any = None
    """The largest key that any run planned; ``None`` before there was a row."""
    has_planned_rows_without_key: bool = False

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"key": self.key, "mark": self.mark, "null": self.has_planned_rows_without_key}


@dataclass(frozen=True, slots=True)
class KeptPosition:
    """What an earlier attempt kept."""

    position: Position
    columns: Columns
    finished: Sequence[Observation]
    current: Sequence[Observation]

    @classmethod
    def decode(cls, state: Mapping[str, Any] | None, key: str) -> KeptPosition:
        """
        Return what :meth:`SqlReader.snapshot` gave.

        :raises InvalidConfigurationError: if it was by another key.
        :raises CorruptStateError: if it is something else.
        """
        try:
            kept = _decoded(state or {})
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(f"Expected the position of a source in a database, found {error!r}.") from error
        if kept.position.key != key:
            raise InvalidConfigurationError(
                f"Expected to go on by the key {kept.position.key!r}, found key={key!r}; take the key of the attempt before, "
                "or start over."
            )
        return kept

    def seen_of(self, finished: frozenset[str]) -> list[Observation]:
        """
        Return what was seen of all that is finished.

        :param finished: The names of ranges of the last run that are.
        """
        return [*self.finished, *(seen for seen in self.current if seen.keys.name in finished)]


class SqlReader:
    """
    Reads ranges through Spark.

    :param columns: All that is known of the relation.
    :param names: The columns that are read.
    """

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        relation: Relation,
        columns: Columns,
        names: Sequence[str],
        watch: Watch,
        position: Position,
    ) -> None:
        self._spark = spark
        self._database = database
        self._relation = relation
        self._columns = columns
        self._names = names
        self._watch = watch
        self._position = position

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Look at ranges again, if there is a version to look at.

        :raises SourceChangedError: if rows changed since the look before.
        """
        self._watch.require_unchanged(KeyRange.of_name(item.name) for item in items)

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        ranges = [KeyRange.of_name(split.item.name) for split in splits if split.item]
        schema = self._columns.of(self._names, self._relation.shown).schema
        return load_ranges(self._spark, self._database, self._relation, schema, ranges)

    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to go on."""
        return {
            **self._position.encode(),
            "columns": self._columns.encode(),
            "finished": encode_observations(self._watch.finished),
            "current": encode_observations(self._watch.current.values()),
        }


def _decoded(state: Mapping[str, Any]) -> KeptPosition:
    return KeptPosition(
        Position(str(state["key"]), state["mark"], bool(state["null"])),
        Columns.decode(state["columns"]),
        decode_observations(state, "finished"),
        decode_observations(state, "current"),
    )
