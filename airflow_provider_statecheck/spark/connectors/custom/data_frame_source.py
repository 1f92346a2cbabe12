"""Source of splits that a user defines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require_count
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import (
    ItemReader,
    ItemSplit,
    Limits,
)
from airflow_provider_statecheck.spark.tables.alignment import union_by_name
from airflow_provider_statecheck.state.source_items import Item, Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource, Opening


class DataFrameSource(ItemSource):
    """
    User-defined splits, such as days, id ranges or table names.

    :param splits: All splits in order, or a function that returns them; must be the same in every attempt.
    :param load: Returns the rows of a split; must return the same rows each time.
    :param key: Returns the name of a split in checkpoints; ``str`` by default.
    :param splits_per_increment: Maximum number of splits in one Spark job.
    :param on_change: Policy for splits that differ within a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    def __init__(
        self,
        splits: Sequence[Any] | Callable[[], Sequence[Any]],
        load: Callable[[SparkSession, Any], DataFrame],
        *,
        key: Callable[[Any], str] = str,
        splits_per_increment: int = 1,
        on_change: str = "fail",
    ) -> None:
        super().__init__(Limits(items=require_count("splits_per_increment", splits_per_increment)), on_change)
        self._splits = splits if callable(splits) else _split_list(splits)
        self.load = load
        self._key = key

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        splits = self._splits_by_key()
        items = [Item.of(key, 0, "") for key in splits]
        return opening.reconciled(items, self._on_change), _UserReader(opening.spark, self.load, splits)

    def _splits_by_key(self) -> dict[str, Any]:
        splits = _split_list(self._splits()) if callable(self._splits) else self._splits
        by_key = {self._key_of(split): split for split in splits}
        if len(by_key) < len(splits):
            raise InvalidConfigurationError(
                f"Expected a unique key for each of {len(splits)} splits, found {counted(len(by_key), 'key')}; "
                "correct key."
            )
        return by_key

    def _key_of(self, split: Any) -> str:
        key: object = self._key(split)
        if not isinstance(key, str) or not key or "\0" in key:
            raise InvalidConfigurationError(f"Expected the key of a split to be text, found {key!r}; correct key.")
        return key


def _split_list(splits: Iterable[Any]) -> tuple[Any, ...]:
    # Read once: an iterator would have no splits for the next attempt, which would replace the output by nothing.
    if isinstance(splits, str) or not isinstance(splits, Iterable):
        raise InvalidConfigurationError(
            f"Expected splits to be a list of splits or a function that returns one, found {splits!r}; write "
            f"[{splits!r}]."
        )
    return tuple(splits)


class _UserReader(ItemReader):
    """Reads splits with the user's function, whose input is unknown; a change of it is not detected."""

    has_stable_partitions = False  # it may shuffle rows, which Spark then distributes in another way

    def __init__(
        self, spark: SparkSession, load: Callable[[SparkSession, Any], DataFrame], splits: Mapping[str, Any]
    ) -> None:
        self._spark = spark
        self._load = load
        self._splits = splits

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return union_by_name([self._load(self._spark, self._splits[split.item.name]) for split in splits])
