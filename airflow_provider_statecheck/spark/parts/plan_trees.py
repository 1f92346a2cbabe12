"""
Analysed plan of a DataFrame as a tree, from the JVM or from the text of Spark Connect.

A tree ends at the alias that marks the input of a step, because the plan below it is not part of the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.spark.parts.plan_expressions import ExpressionRules, Refusal, items

SUBSET = "subset"
BARRIER = "barrier"
SUBQUERY = "Subquery"
"""Kind of a node that stands for the plan of a subquery in an expression."""

# The text of a plan names these nodes differently from their classes.
_CLASSES = {"Relation": "LogicalRelation", "RelationV2": "DataSourceV2Relation"}
_PREFIX = re.compile(r"(?:[: ] {2})*[:+]- ")
_KIND = re.compile(r"[A-Za-z]\w*")
_DETAILS = {
    "SubqueryAlias": re.compile(r"SubqueryAlias (.*)"),
    "Join": re.compile(r"Join (\w+)"),
    "Generate": re.compile(r"Generate (\w+)\("),
    "Repartition": re.compile(r"Repartition \d+, (\w+)"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNode:
    """An operation of a plan with its inputs."""

    kind: str
    """Class of the node in Catalyst."""
    detail: str = ""
    """Name of an alias, type of a join, function of a Generate; :data:`SUBSET` or :data:`BARRIER`."""
    children: tuple[PlanNode, ...] = ()
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
    :param rules: Rules for the expressions of the nodes.
    """
    kind, detail = plan.getClass().getSimpleName(), _detail(plan)
    if kind == "SubqueryAlias" and detail == marker:
        return PlanNode(kind=kind, detail=detail)
    children = tuple(tree_of_plan(child, marker, rules) for child in items(plan.children()))
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

    :param plan: The analysed plan.
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

    A line without the prefix of a node continues the text of the node before it: a name or a literal has a line break.

    :param text: The text, without the line that describes the columns.
    :param marker: Name of the alias at which the tree ends.
    :param has_subsets: Whether a ``dropDuplicates`` of the plan is on a subset of the columns, which the text does not say.
    :param is_barrier: Whether a ``mapInPandas`` or ``mapInArrow`` of the plan uses barrier mode.
    """
    details = {"Deduplicate": SUBSET if has_subsets else ""}
    if is_barrier:
        details |= {"MapInPandas": BARRIER, "MapInArrow": BARRIER}
    open_nodes: list[_OpenNode] = []
    for depth, line in _above_marker(_nodes(text), marker):
        node = _open_node(line, details)
        _attach(open_nodes, depth, node)
    return open_nodes[0].closed() if open_nodes else PlanNode(kind="")


@dataclass(slots=True)
class _OpenNode:
    kind: str
    detail: str
    children: list[_OpenNode] = field(default_factory=list)

    def closed(self) -> PlanNode:
        return PlanNode(kind=self.kind, detail=self.detail, children=tuple(child.closed() for child in self.children))


def _nodes(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n")):
        prefix = _PREFIX.match(line)
        if prefix is not None:
            yield len(prefix.group()) // 3, line[prefix.end() :]
        elif number == 0:
            yield 0, line


def _above_marker(nodes: Iterable[tuple[int, str]], marker: str) -> Iterator[tuple[int, str]]:
    marker_depth: int | None = None
    for depth, line in nodes:
        if marker_depth is not None and depth > marker_depth:
            continue
        marker_depth = depth if line == f"SubqueryAlias {marker}" else None
        yield depth, line


def _open_node(line: str, details: dict[str, str]) -> _OpenNode:
    found = _KIND.match(line)
    kind = found.group() if found is not None else ""
    kind = _CLASSES.get(kind, kind)
    pattern = _DETAILS.get(kind)
    if pattern is None:
        return _OpenNode(kind, details.get(kind, ""))
    argument = pattern.match(line)
    return _OpenNode(kind, argument.group(1) if argument is not None else "")


def _attach(open_nodes: list[_OpenNode], depth: int, node: _OpenNode) -> None:
    # The plan of a subquery is two levels below the node whose expression contains it.
    while open_nodes and len(open_nodes) < depth:
        missing = _OpenNode(SUBQUERY, "")
        open_nodes[-1].children.append(missing)
        open_nodes.append(missing)
    if depth:
        open_nodes[depth - 1].children.append(node)
        del open_nodes[depth:]
    open_nodes.append(node)
