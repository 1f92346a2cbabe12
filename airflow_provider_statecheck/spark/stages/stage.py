"""
Declaration of a stateful stage: nodes and aggregates.

A stage is immutable and holds no session, so that modules can declare it and Airflow can parse it without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_provider_statecheck.checkpoint.codec import require_one_of
from airflow_provider_statecheck.checkpoint.config import AUTO as AUTO
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.driver.settings import StageSettings as StageSettings
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import (
    FlatMapFunction,
    MapFunction,
    require_keyed_process_function,
)
from airflow_provider_statecheck.state.source_items import BROADCAST_SUFFIX

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.connectors.sink import Sink
    from airflow_provider_statecheck.spark.connectors.source import Source


@dataclass(frozen=True, slots=True)
class Aggregate:
    """
    One aggregate of a group.

    :param expression: A column or another expression of Spark SQL.
    """

    expression: str

    spark_function: ClassVar[str]
    """Name of the Spark function that computes a partial result."""
    combine: ClassVar[str]
    """Name of the Arrow function that combines partial results."""

    @property
    def text(self) -> str:
        """The aggregate for messages."""
        return f"{type(self).__name__}({self.expression!r})"


class Sum(Aggregate):
    """Sum of the non-null values; null if there are none."""

    spark_function = "sum"
    combine = "sum"


class Max(Aggregate):
    """Largest non-null value."""

    spark_function = "max"
    combine = "max"


class Min(Aggregate):
    """Smallest non-null value."""

    spark_function = "min"
    combine = "min"


class Count(Aggregate):
    """
    Number of rows.

    :param expression: Counts only rows in which this expression is not null; by default all rows.
    """

    spark_function = "count"
    combine = "sum"

    def __init__(self, expression: str = "1") -> None:
        # A star is no expression of a single row.
        super().__init__("1" if expression == "*" else expression)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapNode:
    """A function of single elements, with optional operator state and, directly after ``key_by``, keyed state."""

    uid: str
    function: Any
    output: Any = None
    """Output columns; ``None`` if they equal the input columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastInput:
    """A second source, whose rows each subtask sees all, and the states that the function keeps of them."""

    source: Source
    states: tuple[MapStateDescriptor[Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNode:
    """A repartitioning that sends all elements of a key to one subtask."""

    columns: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Former names of columns."""
    broadcast: BroadcastInput | None = None
    """Input that every subtask of the function after it sees first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNode:
    """A function with keyed state."""

    uid: str
    function: Any
    output: Any = None
    """Output columns; ``None`` if the function emits nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateNode:
    """Aggregates by key, computed on whole columns."""

    uid: str
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    emits_changes: bool = False
    """``True`` to emit changed keys after each increment, ``False`` to emit all keys at the end of the input."""
    reads_results: bool = False
    """
    Whether it aggregates the results of another aggregate, and reads them all at the end of each input. Set by the
    plan.
    """


Node = MapNode | KeyNode | ProcessNode | AggregateNode
"""A step between source and sink."""


RESERVED_UIDS = ("source", "sink")


@dataclass(frozen=True, slots=True, repr=False)
class Stage:
    """
    A source, stateful functions and a sink, run in increments that can each end with a checkpoint.

    Each method returns a new stage with one more step, so several stages can share their first steps.

    :param uid: Name of the stage within the job of a script, by default ``stage``; in Airflow the task id is used.
    :param max_parallelism: Number of key groups, fixed for the lifetime of the state; by default derived from
        ``parallelism``.
    :param parallelism: Number of subtasks of keyed functions; by default the number of tasks that Spark runs
        concurrently, at most one for each key group.
    :param state_backend: Backend of keyed state during processing: an object, ``arrow`` (default), ``hashmap``,
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
        """Return a text that depends only on the uid: Airflow stores it for mapped tasks, and pages show it."""
        return f"Stage({self.uid!r})"

    def source(self, source: Source) -> Stage:
        """
        Set the source.

        :raises InvalidConfigurationError: if the stage already has a source or another step.
        """
        if self.input is not None or self.nodes:
            raise InvalidConfigurationError(
                "Expected the source once and as the first step of a stage, found a second or a late one; remove it."
            )
        return replace(self, input=source)

    def map(self, function: Any, *, uid: str | None = None, output: Any = None) -> Stage:
        """
        Apply a function to each element.

        :param function: A callable, a ``MapFunction`` or a ``FlatMapFunction``. If it also is a
            ``CheckpointedFunction``, it has operator state and, directly after ``key_by``, keyed state.
        :param uid: Name of its state within the stage; by default ``map``.
        :param output: Output columns: DDL, an Arrow or Spark schema, or a dataclass; by default the input columns.
        :raises InvalidConfigurationError: if the function has another type.
        """
        if isinstance(function, type) or not (
            callable(function) or isinstance(function, MapFunction | FlatMapFunction)
        ):
            raise InvalidConfigurationError(
                "Expected a function of one element, or an object of a MapFunction or FlatMapFunction, found "
                f"{function!r}."
            )
        return self._with(MapNode(uid=uid or "map", function=function, output=output))

    def key_by(
        self,
        *columns: str,
        order_by: str | tuple[str, ...] = (),
        aliases: Mapping[str, str | Sequence[str]] | None = None,
    ) -> Stage:
        """
        Send all elements of a key to one subtask.

        :param columns: Columns of the key.
        :param order_by: Columns by which the elements of a key are ordered within an increment; without any, the order
            is undefined.
        :param aliases: Former names of columns, whose state goes on under their current ones.
        :raises InvalidConfigurationError: if there is no column, or aliases of a column that is not one of the key.
        """
        names: tuple[Any, ...] = columns
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidConfigurationError(f"Expected names of columns to key by, found {columns!r}.")
        ordering = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        former = _former_names(columns, {} if aliases is None else aliases)
        return self._with(KeyNode(columns=columns, order_by=ordering, aliases=former))

    def broadcast(self, source: Source, *states: MapStateDescriptor[Any]) -> Stage:
        """
        Let every subtask of the next function see the rows of a second source before those of its keys.

        :param source: The source; each run reads what is new in it before its first increment.
        :param states: Descriptors of the broadcast states of the function.
        :raises InvalidConfigurationError: if the step before is not ``key_by``, there is no descriptor of a map, or the
            source would start the run again.
        """
        self._require_open()
        key = self.nodes[-1] if self.nodes else None
        if not isinstance(key, KeyNode) or key.broadcast is not None:
            raise InvalidConfigurationError(
                "Expected one broadcast between key_by and a KeyedBroadcastProcessFunction, found it in another "
                "place; move it."
            )
        are_maps = all(isinstance(each, MapStateDescriptor) for each in states)
        if not states or not are_maps or len({each.name for each in states}) < len(states):
            raise InvalidConfigurationError(
                f"Expected descriptors of map states with different names in broadcast(source, ...), found {states!r}."
            )
        if getattr(source, "on_change", None) == "restart":
            raise InvalidConfigurationError(
                "Expected on_change of a broadcast input to be 'fail' or 'ignore', found 'restart', which only the "
                "source of a stage has: this input has no run of its own to start again; correct it."
            )
        return replace(
            self, nodes=(*self.nodes[:-1], replace(key, broadcast=BroadcastInput(source=source, states=states)))
        )

    def process(self, function: Any, *, uid: str | None = None, output: Any = None) -> Stage:
        """
        Apply a function with keyed state.

        :param function: A ``KeyedProcessFunction``; after :meth:`broadcast`, a ``KeyedBroadcastProcessFunction``.
        :param uid: Name of its state within the stage; by default ``process``.
        :param output: Output columns, as for :meth:`map`; ``None`` if the function emits nothing.
        :raises InvalidConfigurationError: if the function has another type.
        """
        require_keyed_process_function(function)
        return self._with(ProcessNode(uid=uid or "process", function=function, output=output))

    def aggregate(
        self,
        by_name: Mapping[str, Aggregate] | None = None,
        /,
        *,
        uid: str | None = None,
        emit: Literal["end", "changes"] = "end",
        **aggregates: Aggregate,
    ) -> Stage:
        """
        Aggregate by key, on whole columns.

        :param by_name: Aggregates by the names of their output columns, for columns named ``uid`` or ``emit``.
        :param uid: Name of its state within the stage; by default ``aggregate``.
        :param emit: ``end`` emits all keys at the end of the input; ``changes`` emits changed keys after each
            increment.
        :param aggregates: Aggregates by the names of their output columns.
        :raises InvalidConfigurationError: if there is no aggregate, or ``uid`` or ``emit`` is invalid.
        """
        declared = _aggregates_by_name(by_name, aggregates)
        for name, given in {"uid": uid, "emit": emit}.items():
            if isinstance(given, Aggregate):
                raise InvalidConfigurationError(
                    f"Expected text for {name}, found {given!r}; for a column of this name, give the aggregates in a "
                    f"dictionary: aggregate({{{name!r}: {given!r}}})."
                )
        require_one_of("emit", emit, ("end", "changes"))
        return self._with(AggregateNode(uid=uid or "aggregate", aggregates=declared, emits_changes=emit == "changes"))

    def sink(self, sink: Sink) -> Stage:
        """
        Set the sink; it is the last step.

        :raises InvalidConfigurationError: if the stage already has a sink, or has no source.
        """
        self._require_open()
        return replace(self, output=sink)

    def _with(self, node: Node) -> Stage:
        self._require_open()
        stage = replace(self, nodes=(*self.nodes, node))
        counts = Counter(known.uid for known in stage.nodes if not isinstance(known, KeyNode))
        repeated = [
            uid for uid, count in counts.items() if count > 1 or uid in RESERVED_UIDS or uid.endswith(BROADCAST_SUFFIX)
        ]
        if repeated:
            raise InvalidConfigurationError(
                f"Expected a unique uid for the state of each function, other than {RESERVED_UIDS} and without "
                f"{BROADCAST_SUFFIX!r}, found {repeated[0]!r} again; set uid=."
            )
        return stage

    def _require_open(self) -> None:
        if self.input is None or self.output is not None:
            raise InvalidConfigurationError(
                "Expected a stage in the order source, functions, sink, found a step before the source or after the "
                "sink."
            )


def _former_names(columns: Sequence[str], aliases: Any) -> dict[str, tuple[str, ...]]:
    given: Any = aliases.items() if isinstance(aliases, Mapping) else [(None, aliases)]
    former = {name: (old,) if isinstance(old, str) else old for name, old in given}
    are_names = all(
        isinstance(each, list | tuple) and all(isinstance(old, str) and old for old in each) for each in former.values()
    )
    if not are_names or not former.keys() <= set(columns):
        raise InvalidConfigurationError(
            f"Expected former names of the columns {tuple(columns)} of the key, found {aliases!r}."
        )
    return {name: tuple(old) for name, old in former.items()}


def _aggregates_by_name(by_name: Mapping[Any, Any] | None, named: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    given: Any = {} if by_name is None else by_name
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidConfigurationError(
            f"Expected a dictionary of aggregates by the names of columns, found {given!r}."
        )
    twice = sorted(named.keys() & given.keys())
    if twice:
        raise InvalidConfigurationError(
            f"Expected each aggregate once, found {twice[0]!r} in the dictionary and as an argument."
        )
    declared = {**given, **named}
    if not declared or not all(map(_is_complete, declared.values())):
        raise InvalidConfigurationError(f"Expected aggregates by name, such as total=Sum('price'), found {declared!r}.")
    return declared


def _is_complete(aggregate: object) -> bool:
    return isinstance(aggregate, Aggregate) and isinstance(aggregate.expression, str)
