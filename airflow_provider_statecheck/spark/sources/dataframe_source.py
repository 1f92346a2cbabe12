"""Parts that a user names and loads as a source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    ItemSplit,
    Limits,
    SourceState,
    decode_source_state,
)
from airflow_provider_statecheck.spark.sources.source import require_count
from airflow_provider_statecheck.spark.sources.source_changes import on_change_of, reconcile
from airflow_provider_statecheck.spark.sources.splits import Item, Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DataFrameSource:
    """
    A user's own splits: days, ranges of ids, names of tables.

    :param splits: All splits in their order, or a function that gives them; every attempt must get the same ones.
    :param load: Returns the rows of a split; the same ones each time.
    :param key: Returns the name by which a split is known in checkpoints; ``str`` by default.
    :param splits_per_increment: How many splits one Spark job reads at most.
    :param on_change: What to do if splits differ within a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is out of its range.
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
        self._splits = splits
        self._load = load
        self._key = key
        self._limits = Limits(items=require_count(splits_per_increment, "splits_per_increment"))
        self._on_change = on_change_of(on_change)

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        Ask for the splits and plan what is left of them.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what appeared since is read.
        :param storage_options: Without effect; the user's function reaches its data by itself.
        :raises InvalidConfigurationError: if two splits have the same key.
        :raises SourceChangedError: if splits of the start differ.
        :raises SourceRestartRequiredError: if they differ and the stage is to begin again.
        """
        named = self._named()
        items = tuple(Item.of(name, 0, "") for name in named)
        state = SourceState(Ledger(items))
        if restored is not None:
            before = decode_source_state(restored)
            ledger = reconcile(before.ledger, items, on_change=self._on_change, new_run=new_run)
            state = SourceState(ledger, before.increments)
        return ItemEnumerator(state, self._limits, _UserReader(spark, self._load, named), lambda _: None)

    def _named(self) -> dict[str, Any]:
        splits = list(self._splits() if callable(self._splits) else self._splits)
        named = {self._name(split): split for split in splits}
        if len(named) < len(splits):
            raise InvalidConfigurationError(
                f"Expected a key of its own for each of {len(splits)} splits, found {len(named)} keys; correct key."
            )
        return named

    def _name(self, split: Any) -> str:
        name: object = self._key(split)
        if not isinstance(name, str) or not name or "\0" in name:
            raise InvalidConfigurationError(f"Expected the key of a split to be a text, found {name!r}; correct key.")
        return name


class _UserReader:
    def __init__(
        self, spark: SparkSession, load: Callable[[SparkSession, Any], DataFrame], named: Mapping[str, Any]
    ) -> None:
        self._spark = spark
        self._load = load
        self._named = named

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """Nothing is known of what a user's function reads."""

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        frames = [self._load(self._spark, self._named[split.item.name]) for split in splits if split.item]
        return functools.reduce(lambda frame, other: frame.unionByName(other), frames)

    def snapshot(self) -> dict[str, Any]:
        return {}
