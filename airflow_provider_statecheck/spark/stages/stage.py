"""Declaration of a stateful stage: nodes, aggregates and settings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_provider_statecheck.checkpoint.config import AUTO as AUTO
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.functions.lifecycle import require_keyed_process_function
from airflow_provider_statecheck.state.functions.user_functions import FlatMapFunction, MapFunction

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.sinks.sink import Sink
    from airflow_provider_statecheck.spark.sources.source import Source


@dataclass(frozen=True, slots=True)
class Aggregate:
    """
    One aggregate of a group.

    :param expression: What is aggregated: a column, or any expression of Spark SQL.
    """

    expression: str

    spark_function: ClassVar[str]
    """The name of the function that Spark has for the first step."""
    combine: ClassVar[str]
    """The name of the function that Arrow has for combining partial results."""


class Sum(Aggregate):
    """The sum of what is not null; null where nothing was."""

    spark_function = "sum"
    combine = "sum"


class Max(Aggregate):
    """The largest of what is not null."""

    spark_function = "max"
    combine = "max"


class Min(Aggregate):
    """The smallest of what is not null."""

    spark_function = "min"
    combine = "min"


class Count(Aggregate):
    """
    How many there were.

    :param expression: What must not be null to count; by default every row does.
    """

    spark_function = "count"
    combine = "sum"

    def __init__(self, expression: str = "1") -> None:
        super().__init__(expression)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapNode:
    """A function of single elements, which may have operator state and, behind a key, keyed state."""

    uid: str
    function: Any
    output: Any = None
    """``None`` where elements keep their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNode:
    """From here on elements of one key meet in one subtask."""

    columns: tuple[str, ...]
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNode:
    """A function with keyed state."""

    uid: str
    function: Any
    output: Any = None
    """``None`` where it gives nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateNode:
    """Aggregates by key, of which the library knows how to compute them on whole columns."""

    uid: str
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    emits_changes: bool = False
    """Whether changed keys are given after each increment, in contrast to all of them at the end."""


Node = MapNode | KeyNode | ProcessNode | AggregateNode
"""What can stand between source and sink."""


RESERVED_UIDS = ("source", "sink")


@dataclass(frozen=True, slots=True, repr=False)
class Stage:
    """
    A source, functions with state, and a sink, run in increments of which each can end in a checkpoint.

    Each method gives a new stage with one more part, so that a common beginning can be shared.

    :param uid: Name of the stage within the job of a script, by default ``stage``; in Airflow the task id is its name.
    :param max_parallelism: Number of key groups, fixed for the life of the state; by default it follows from
        ``parallelism``.
    :param parallelism: Number of subtasks of keyed functions; by default as many tasks as Spark runs at once.
    :param state_backend: Where keyed state lives while it is worked on: an object, ``arrow`` (default), ``hashmap``,
        ``filesystem``, or the dotted path of a factory.
    """

    uid: str | None = None
    max_parallelism: int | None = None
    parallelism: int | None = None
    state_backend: Any = None
    input: Source | None = None
    nodes: tuple[Node, ...] = ()
    output: Sink | None = None

    def __repr__(self) -> str:
        """Return the same text for the same declaration: Airflow keeps it where a task is mapped, and pages show it."""
        return f"Stage({self.uid!r})"

    def source(self, source: Source) -> Stage:
        """
        Read from a source.

        :raises InvalidConfigurationError: if the stage has one.
        """
        if self.input is not None or self.nodes:
            raise InvalidConfigurationError(
                "Expected a stage to begin with its one source, found a second or a late one."
            )
        return replace(self, input=source)

    def map(self, function: Any, *, uid: str | None = None, output: Any = None) -> Stage:
        """
        Apply a function to each element.

        :param function: A callable, a ``MapFunction`` or a ``FlatMapFunction``; one that is a ``CheckpointedFunction`` too has
            operator state, and right behind ``key_by`` keyed state.
        :param uid: Name of its state within the stage; by default ``map``.
        :param output: Columns of what it gives: a DDL text, an Arrow or Spark schema, or a dataclass; by default those of its
            input.
        :raises InvalidConfigurationError: for what is no such function.
        """
        if isinstance(function, type) or not (
            callable(function) or isinstance(function, MapFunction | FlatMapFunction)
        ):
            raise InvalidConfigurationError(
                f"Expected a function of one element, or an object of a MapFunction or FlatMapFunction, found {function!r}."
            )
        return self._with(MapNode(uid=uid or "map", function=function, output=output))

    def key_by(self, *columns: str, order_by: str | tuple[str, ...] = ()) -> Stage:
        """
        Let elements of one key meet in one subtask.

        :param columns: The columns of the key.
        :param order_by: Columns by which the elements of a key are ordered within an increment; without it their order is not
            defined.
        :raises InvalidConfigurationError: without a column.
        """
        if not columns or not all(columns):
            raise InvalidConfigurationError(f"Expected names of columns to key by, found {columns!r}.")
        ordering = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        return self._with(KeyNode(columns=columns, order_by=ordering))

    def process(self, function: Any, *, uid: str | None = None, output: Any = None) -> Stage:
        """
        Apply a function with keyed state.

        :param function: A ``KeyedProcessFunction``.
        :param uid: Name of its state within the stage; by default ``process``.
        :param output: Columns of what it gives, as for :meth:`map`; ``None`` if it gives nothing.
        :raises InvalidConfigurationError: for what is no such function.
        """
        require_keyed_process_function(function)
        return self._with(ProcessNode(uid=uid or "process", function=function, output=output))

    def aggregate(
        self, *, uid: str | None = None, emit: Literal["end", "changes"] = "end", **aggregates: Aggregate
    ) -> Stage:
        """
        Aggregate by key, on whole columns.

        :param uid: Name of its state within the stage; by default ``aggregate``.
        :param emit: ``end`` gives every key when the input has ended; ``changes`` gives the changed ones after each increment.
        :param aggregates: The columns of the result.
        :raises InvalidConfigurationError: without an aggregate, or for another ``emit``.
        """
        if not aggregates or not all(isinstance(each, Aggregate) for each in aggregates.values()):
            raise InvalidConfigurationError(
                f"Expected aggregates by name, such as total=Sum('price'), found {aggregates!r}."
            )
        if emit not in ("end", "changes"):
            raise InvalidConfigurationError(f"Expected emit to be 'end' or 'changes', found {emit!r}.")
        return self._with(AggregateNode(uid=uid or "aggregate", aggregates=aggregates, emits_changes=emit == "changes"))

    def sink(self, sink: Sink) -> Stage:
        """
        Write to a sink; nothing can follow it.

        :raises InvalidConfigurationError: if the stage has one.
        """
        self._require_open()
        return replace(self, output=sink)

    def _with(self, node: Node) -> Stage:
        self._require_open()
        stage = replace(self, nodes=(*self.nodes, node))
        counts = Counter(each.uid for each in stage.nodes if not isinstance(each, KeyNode))
        repeated = [uid for uid, count in counts.items() if count > 1 or uid in RESERVED_UIDS]
        if repeated:
            raise InvalidConfigurationError(
                f"Expected a uid of its own for the state of each function, and neither of {RESERVED_UIDS}, found "
                f"{repeated[0]!r} again; give uid=."
            )
        return stage

    def _require_open(self) -> None:
        if self.input is None or self.output is not None:
            raise InvalidConfigurationError(
                "Expected a stage in the order source, functions, sink, found a part before its source or behind its sink."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """What an operator or a script decides."""

    logical_date: datetime | None = None
    """By which state expires; without it the date that the run is named by, else the time at which its first try was
    registered."""
    checkpoint_interval: timedelta | str | int | None = None
    """How much time lies between two checkpoints; ``None`` takes one after each increment, ``auto`` finds it by what
    checkpoints cost and how often the job failed."""
    min_pause: timedelta | str | int | None = None
    renamed_uids: Mapping[str, str] = field(default_factory=dict)
    """New uids of functions by old ones, within the stage."""
    allow_non_restored_state: bool = False
    """Whether state of functions that are gone is dropped."""
    data_inline_threshold: int = 20 * 1024
    """Up to how many bytes state travels in the metadata."""
    state_config: Mapping[str, str] = field(default_factory=dict)
    """Which state backend a stage has that names none, and how it keeps state, by Flink's keys such as ``state.backend``."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of the filesystems of source and sink where they have none of their own."""
    combines: bool | None = None
    """Whether aggregates are combined in the JVM before the shuffle; ``None`` finds out where it pays."""
    monotonic: Callable[[], float] = time.monotonic
    """The clock for durations, in seconds."""
