"""A source of user-defined splits."""

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
from airflow_provider_statecheck.spark.sources.source_changes import parse_on_change, reconcile
from airflow_provider_statecheck.state.source_items import Item, Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DataFrameSource:
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
        self._splits = splits
        self._load = load
        self._key = key
        self._limits = Limits(items=require_count(splits_per_increment, "splits_per_increment"))
        self._on_change = parse_on_change(on_change)

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        Get the splits and plan the unfinished ones.

        :param spark: The session that reads.
        :param restored: State from :meth:`ItemEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: ``True`` if a new run continues from the state of an earlier run and also reads new splits.
        :param storage_options: Unused; ``load`` accesses its storage itself.
        :raises InvalidConfigurationError: if two splits have the same key.
        :raises SourceChangedError: if the splits differ from those of the first attempt.
        :raises SourceRestartRequiredError: if they differ and ``on_change`` is ``"restart"``.
        """
        splits = self._splits_by_key()
        items = tuple(Item.of(key, 0, "") for key in splits)
        state = SourceState(Ledger(items))
        if restored is not None:
            before = decode_source_state(restored)
            ledger = reconcile(before.ledger, items, on_change=self._on_change, new_run=new_run)
            state = SourceState(ledger, before.increments)
        return ItemEnumerator(state, self._limits, _UserReader(spark, self._load, splits), lambda _: None)

    def _splits_by_key(self) -> dict[str, Any]:
        splits = list(self._splits() if callable(self._splits) else self._splits)
        by_key = {self._key_of(split): split for split in splits}
        if len(by_key) < len(splits):
            raise InvalidConfigurationError(
                f"Expected a unique key for each of {len(splits)} splits, found {len(by_key)} keys; correct key."
            )
        return by_key

    def _key_of(self, split: Any) -> str:
        key: object = self._key(split)
        if not isinstance(key, str) or not key or "\0" in key:
            raise InvalidConfigurationError(f"Expected the key of a split to be a text, found {key!r}; correct key.")
        return key


class _UserReader:
    def __init__(
        self, spark: SparkSession, load: Callable[[SparkSession, Any], DataFrame], splits: Mapping[str, Any]
    ) -> None:
        self._spark = spark
        self._load = load
        self._splits = splits

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """Do nothing: the input of a user's function is unknown."""

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        frames = [self._load(self._spark, self._splits[split.item.name]) for split in splits if split.item]
        return functools.reduce(lambda frame, other: frame.unionByName(other), frames)

    def snapshot(self) -> dict[str, Any]:
        return {}
