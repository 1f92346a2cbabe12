"""How a stateful stage is declared; nothing runs here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.aggregates import Aggregate
from airflow_provider_statecheck.spark.stages.nodes import AggregateNode, KeyNode, MapNode, Node, ProcessNode
from airflow_provider_statecheck.state.functions.flat_map_function import FlatMapFunction
from airflow_provider_statecheck.state.functions.map_function import MapFunction
from airflow_provider_statecheck.state.functions.overrides import require_keyed_process_function

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.sinks.sink import Sink
    from airflow_provider_statecheck.spark.sources.source import Source

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
