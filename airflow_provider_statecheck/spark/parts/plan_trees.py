"""
Analysed plans as trees, and expressions whose value in a part differs from the whole step.

A tree ends at the alias that marks the input of a step, because the plan below it is not part of the step.

In a session of this process, Catalyst knows whether an expression is deterministic. A client of Spark Connect only has
the names of functions, so names decide there, and functions registered on the server are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.spark.explained_plans import nodes_above
from airflow_provider_statecheck.spark.plan_digest import containing, items

AS_VALUE = "compute the value before the step and pass it as a literal, or add it in a step without over"
AS_JOIN = "take a snapshot of the other DataFrame before, and join that"
AS_FUNCTION = "pass the function itself instead of its name"
AS_SCALAR = "use a function that maps each row on its own, or take the step without over"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Operation that prevents a step from being computed in parts, and what to do instead."""

    operation: str
    way_out: str


_SCALAR_EVAL_TYPES = frozenset({100, 101, 200, 204, 205, 207, 250, 251})
"""Batched, Arrow batched, scalar pandas and its iterator, mapInPandas, mapInArrow, scalar Arrow and its iterator."""

_TIMES = frozenset({"current_timestamp", "now", "current_date", "curdate", "localtimestamp", "current_time"})
# Catalyst treats these like the current time, but they are constant in a session.
_SESSION_CONSTANTS = frozenset(
    {
        "current_catalog",
        "current_database",
        "current_schema",
        "current_timezone",
        "current_user",
        "session_user",
        "user",
    }
)
_RANDOM = frozenset({"rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle"})
_PLACES = frozenset(
    {
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
    }
)
_CALLS = frozenset({"reflect", "java_method", "try_reflect"})
_ORDERED_AGGREGATES = frozenset(
    {
        "any_value",
        "approx_percentile",
        "array_agg",
        "collect_list",
        "collect_set",
        "first",
        "first_value",
        "histogram_numeric",
        "last",
        "last_value",
        "listagg",
        "max_by",
        "min_by",
        "mode",
        "percentile_approx",
        "string_agg",
    }
)
"""Aggregates that depend on the order of the rows, which differs between jobs."""
_DENIED = _TIMES | _RANDOM | _PLACES | _CALLS | _ORDERED_AGGREGATES


class ExpressionRules:
    """Rules for the expressions of a plan of this process."""

    def __init__(self, spark: Any) -> None:
        patterns = spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._subquery = patterns.PLAN_EXPRESSION()
        self._current = patterns.CURRENT_LIKE()
        self._python = patterns.PYTHON_UDF()
        self._aggregate = patterns.AGGREGATE_EXPRESSION()

    def refusal(self, plan: Any) -> Refusal | None:
        """Return why an expression of a node of a plan is refused, ``None`` if none is."""
        patterns = (self._subquery, self._current, self._python, self._aggregate)
        if plan.deterministic() and not any(plan.containsPattern(pattern) for pattern in patterns):
            return None
        return next(filter(None, map(self._refusal_of, items(plan.expressions()))), None)

    def _refusal_of(self, expression: Any) -> Refusal | None:
        if expression.containsPattern(self._subquery):
            return Refusal("a subquery", AS_JOIN)
        return (
            self._nondeterministic(expression)
            or self._current_value(expression)
            or self._not_scalar(expression)
            or self._ordered_aggregate(expression)
        )

    def _nondeterministic(self, expression: Any) -> Refusal | None:
        if expression.deterministic():
            return None
        while (deeper := _first(expression, lambda child: not child.deterministic())) is not None:
            expression = deeper
        return Refusal(_name(expression), AS_VALUE)

    def _current_value(self, expression: Any) -> Refusal | None:
        values = _deepest(expression, self._current)
        return next((Refusal(name, AS_VALUE) for name in map(_name, values) if name not in _SESSION_CONSTANTS), None)

    def _not_scalar(self, expression: Any) -> Refusal | None:
        for function in containing(expression, self._python):
            if _kind(function) in ("PythonUDF", "PythonUDAF") and function.evalType() not in _SCALAR_EVAL_TYPES:
                return Refusal(f"the function {_name(function)}", AS_SCALAR)
        return None

    def _ordered_aggregate(self, expression: Any) -> Refusal | None:
        aggregates = [e for e in containing(expression, self._aggregate) if _kind(e) == "AggregateExpression"]
        names = [_name(aggregate.aggregateFunction()) for aggregate in aggregates]
        return next((Refusal(name, AS_VALUE) for name in names if name in _ORDERED_AGGREGATES), None)


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _name(expression: Any) -> str:
    if _kind(expression) in ("PythonUDF", "PythonUDAF", "ScalaUDF"):
        return str(expression.name())
    return str(expression.prettyName()).lower()


def _first(expression: Any, holds: Callable[[Any], bool]) -> Any | None:
    return next((child for child in items(expression.children()) if holds(child)), None)


def _deepest(expression: Any, pattern: Any) -> Iterator[Any]:
    for found in containing(expression, pattern):
        if _first(found, lambda child: bool(child.containsPattern(pattern))) is None:
            yield found


_BARE_NAMES = frozenset({"current_timestamp", "current_date", "current_time", "localtimestamp"})
_CALLED = re.compile(r"([\w.`]+)\s*\(")
_WORD = re.compile(r"\w+")
_WITHOUT_ARGUMENT = re.compile(r"\bunix_timestamp`?\s*\(\s*\)")


def message_refusal(found: Iterable[Any], text: str, registered: Callable[[], Iterable[str]]) -> Refusal | None:
    """
    Return why a plan of Spark Connect is refused for its expressions, ``None`` if it is not.

    :param found: The messages of the plan, without those below the marked input.
    :param text: Text of the analysed plan.
    :param registered: Function that returns the names of the functions that are registered on the server.
    """
    called: set[str] = set()
    for message in found:
        refusal = _message_refusal(message, text.lower())
        if refusal is not None:
            return refusal
        called.update(_called_names(message))
    return _registered_refusal(called, registered)


def _message_refusal(message: Any, text: str) -> Refusal | None:
    match message.DESCRIPTOR.name:
        case "UnresolvedFunction" | "CallFunction":
            return _call_refusal(message.function_name, len(message.arguments))
        case "UnresolvedAttribute":
            return _bare_refusal(message.unparsed_identifier, text)
        case "ExpressionString":
            return sql_refusal(message.expression, text)
        case "SQL":
            return sql_refusal(message.query, text)
        case "CommonInlineUserDefinedFunction":
            return _function_refusal(message)
        case "SubqueryExpression":
            return Refusal("a subquery", AS_JOIN)
        case "StatSampleBy":
            return Refusal("sampleBy", AS_VALUE)
        case "CommonInlineUserDefinedTableFunction":
            return Refusal(f"the table function {message.function_name}", AS_SCALAR)
        case "TypedAggregateExpression" | "MlRelation" | "Any":
            return Refusal(f"{message.DESCRIPTOR.name} of Spark Connect", AS_SCALAR)
    return None


def _call_refusal(name: str, arguments: int) -> Refusal | None:
    name = _plain(name)
    is_time = name == "unix_timestamp" and not arguments
    return Refusal(name, AS_VALUE) if name in _DENIED or is_time else None


def _plain(name: str) -> str:
    return name.replace("`", "").rpartition(".")[2].lower()


def _bare_refusal(identifier: str, text: str) -> Refusal | None:
    # Without a column of this name, Spark takes the name for the function, which the analysed plan shows as a call.
    name = _plain(identifier)
    return Refusal(name, AS_VALUE) if name in _BARE_NAMES and f"{name}(" in text else None


def sql_refusal(sql: str, text: str) -> Refusal | None:
    """
    Return why a text of SQL is refused, ``None`` if it is not.

    :param sql: The text. A name in one of its literals counts too, because only a parser tells them apart.
    :param text: Text of the analysed plan.
    """
    lower = sql.lower()
    for name in map(_plain, _CALLED.findall(lower)):
        if name in _DENIED:
            return Refusal(name, AS_VALUE)
    if _WITHOUT_ARGUMENT.search(lower):
        return Refusal("unix_timestamp", AS_VALUE)
    return next(filter(None, (_bare_refusal(word, text) for word in _WORD.findall(lower))), None)


def _function_refusal(message: Any) -> Refusal | None:
    name = message.function_name
    if message.WhichOneof("function") != "python_udf" or message.python_udf.eval_type not in _SCALAR_EVAL_TYPES:
        return Refusal(f"the function {name}", AS_SCALAR)
    return None if message.deterministic else Refusal(f"the nondeterministic function {name}", AS_VALUE)


def _called_names(message: Any) -> Iterator[str]:
    match message.DESCRIPTOR.name:
        case "UnresolvedFunction" | "CallFunction" | "UnresolvedTableValuedFunction":
            yield _plain(message.function_name)
        case "ExpressionString":
            yield from map(_plain, _CALLED.findall(message.expression))
        case "SQL":
            yield from map(_plain, _CALLED.findall(message.query))


def _registered_refusal(called: set[str], registered: Callable[[], Iterable[str]]) -> Refusal | None:
    from pyspark.sql import functions

    # The server is asked only about names that Spark's own functions do not have.
    unknown = {name for name in called if _WORD.fullmatch(name) and not hasattr(functions, name)}
    names = {_plain(name) for name in registered()} & unknown if unknown else set()
    return Refusal(f"the registered function {min(names)}", AS_FUNCTION) if names else None


SUBSET = "subset"
BARRIER = "barrier"
SUBQUERY = "Subquery"
"""Kind of a node that stands for the plan of a subquery in an expression."""


@dataclass(slots=True, kw_only=True)
class PlanNode:
    """An operation of a plan with its inputs."""

    kind: str
    """Class of the node in Catalyst."""
    detail: str = ""
    """Name of an alias, type of a join, function of a Generate; :data:`SUBSET` or :data:`BARRIER`."""
    children: list[PlanNode] = field(default_factory=list)
    refusal: Refusal | None = None
    """Reason to refuse an expression of the node."""

    def reads(self, marker: str) -> bool:
        """Return whether the marked input is in this tree."""
        return self.is_marked(marker) or any(child.reads(marker) for child in self.children)

    def is_marked(self, marker: str) -> bool:
        """Return whether this node is the alias that marks the input."""
        return self.kind == "SubqueryAlias" and self.detail == marker


def tree_of_plan(plan: Any, marker: str, rules: ExpressionRules) -> PlanNode:
    """
    Return the tree of a plan of this process.

    :param plan: The analysed plan, an object of the JVM.
    :param marker: Name of the alias at which the tree ends.
    """
    kind, detail = plan.getClass().getSimpleName(), _detail(plan)
    if kind == "SubqueryAlias" and detail == marker:
        return PlanNode(kind=kind, detail=detail)
    children = [tree_of_plan(child, marker, rules) for child in items(plan.children())]
    return PlanNode(kind=kind, detail=detail, children=children, refusal=rules.refusal(plan))


def _detail(plan: Any) -> str:
    match plan.getClass().getSimpleName():
        case "SubqueryAlias":
            return str(plan.alias())
        case "Join":
            return str(plan.joinType().toString())
        case "Generate":
            return str(plan.generator().prettyName())
        case "MapInPandas" | "MapInArrow":
            return BARRIER if plan.isBarrier() else ""
        case "Repartition":
            return str(plan.shuffle()).lower()
        case "Deduplicate":
            return SUBSET if plan.keys().length() < plan.child().output().length() else ""
    return ""


def reads_cache(plan: Any, cached: Any, marker: str) -> bool:
    """
    Return whether a plan reads a cached DataFrame outside of the marked input.

    :param cached: The same plan, in which a cached relation replaces each cached part.
    :param marker: Name of the alias that marks the input.
    """
    if cached.getClass().getSimpleName() == "InMemoryRelation":
        return not _is_marked_plan(plan, marker)
    if _is_marked_plan(plan, marker):
        return False
    inputs, cached_inputs = items(plan.children()), items(cached.children())
    if len(inputs) != len(cached_inputs):
        return "InMemoryRelation" in str(cached.toString())
    return any(reads_cache(a, b, marker) for a, b in zip(inputs, cached_inputs, strict=True))


def _is_marked_plan(plan: Any, marker: str) -> bool:
    # Spark compares plans without their aliases, so the relation may replace aliases around the marked one.
    while plan.getClass().getSimpleName() == "SubqueryAlias":
        if str(plan.alias()) == marker:
            return True
        plan = plan.child()
    return False


def tree_of_text(text: str, marker: str, *, has_subsets: bool = False, is_barrier: bool = False) -> PlanNode:
    """
    Return the tree of the text of an analysed plan.

    :param text: The text, without the description of the columns.
    :param marker: Name of the alias at which the tree ends.
    :param has_subsets: Whether a ``dropDuplicates`` of the plan is on a subset of the columns, which the text does not
        say.
    :param is_barrier: Whether a ``mapInPandas`` or ``mapInArrow`` of the plan uses barrier mode.
    """
    details = {"Deduplicate": SUBSET if has_subsets else ""}
    if is_barrier:
        details |= {"MapInPandas": BARRIER, "MapInArrow": BARRIER}
    open_nodes: list[PlanNode] = []
    for depth, kind, detail in nodes_above(text, marker):
        _attach(open_nodes, depth, PlanNode(kind=kind, detail=detail or details.get(kind, "")))
    return open_nodes[0] if open_nodes else PlanNode(kind="")


def _attach(open_nodes: list[PlanNode], depth: int, node: PlanNode) -> None:
    # The plan of a subquery is two levels below the node whose expression contains it.
    while open_nodes and len(open_nodes) < depth:
        missing = PlanNode(kind=SUBQUERY)
        open_nodes[-1].children.append(missing)
        open_nodes.append(missing)
    if depth:
        open_nodes[depth - 1].children.append(node)
        del open_nodes[depth:]
    open_nodes.append(node)
