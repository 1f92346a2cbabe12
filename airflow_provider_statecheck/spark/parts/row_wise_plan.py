"""
Plans that can be computed in parts: each row of the result depends on one row of the input.

The analysed plan of a step is compared with a list of operations for which this holds. All others are refused by their
names, including those of later versions of Spark. The input of the step is marked with an alias, and the plan below the
alias is not judged.

What the plan does not show is not judged: Python code in ``mapInPandas`` and ``mapInArrow`` that relates rows to each
other, and values that were computed from the input while the plan was built, which are literals in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_provider_statecheck.exceptions import UnsupportedPlanError
from airflow_provider_statecheck.spark.explained_plans import analysed_plan, cached_relations, explained, is_complete
from airflow_provider_statecheck.spark.parts.plan_trees import (
    AS_JOIN,
    AS_SCALAR,
    BARRIER,
    SUBQUERY,
    SUBSET,
    ExpressionRules,
    PlanNode,
    Refusal,
    message_refusal,
    reads_cache,
    tree_of_plan,
    tree_of_text,
)
from airflow_provider_statecheck.spark.plan_digest import messages
from airflow_provider_statecheck.spark.versions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AS_STEP = "put it into a step of its own, before or after this one, with checkpoint.snapshot without over"
_AS_STAGE = f"{_AS_STEP}, or into a Stage, which keeps aggregates as state"
_AS_LOOP = f"{_AS_STEP}, or use checkpoint.each for a loop over keys"
_AS_SWAPPED = "put over on the left side of a left or inner join"
_AS_SIDES = "take a step over each input, and unite their results"
_AS_BATCH = "use a Stage for input that arrives over time"
_AS_UNCACHED = "take a snapshot of it instead of caching it"
_AS_BUILT = "build the step from the DataFrame that it receives"
_AS_FRAME = "use the DataFrame itself instead of a name for it"
_AS_LEFT_OUT = "leave it out, because it does not change the rows"

_ONE_INPUT = frozenset({"Project", "Filter", "Generate", "MapInPandas", "MapInArrow", "SubqueryAlias", "ResolvedHint"})
_LEFT_JOINS = frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"})
_GENERATORS = frozenset({"explode", "posexplode", "inline", "stack", "json_tuple"})
_STABLE_LEAVES = frozenset(
    {"LogicalRelation", "LocalRelation", "LogicalRDD", "Range", "OneRowRelation", "DataSourceV2Relation"}
)
_STABLE = _STABLE_LEAVES | _ONE_INPUT | {"Join", "Aggregate", "Distinct", "Deduplicate", "Union", "Sort"}
_STABLE |= {"Intersect", "Except"}
"""Nodes that give equal rows in each job, for the right side of a join."""

_REFUSALS = {
    "Window": Refusal("a window function", _AS_LOOP),
    "Distinct": Refusal("distinct", _AS_STEP),
    "Deduplicate": Refusal("distinct", _AS_STEP),
    "DeduplicateWithinWatermark": Refusal("dropDuplicatesWithinWatermark", _AS_STEP),
    "Sort": Refusal("a sort", _AS_STEP),
    "GlobalLimit": Refusal("limit", _AS_STEP),
    "LocalLimit": Refusal("limit", _AS_STEP),
    "Offset": Refusal("offset", _AS_STEP),
    "Tail": Refusal("tail", _AS_STEP),
    "Sample": Refusal("sample", _AS_STEP),
    "Aggregate": Refusal("an aggregation", _AS_STAGE),
    "Pivot": Refusal("pivot", _AS_STAGE),
    "Expand": Refusal("unpivot or a sliding window (Expand)", _AS_STEP),
    "Transpose": Refusal("transpose", _AS_STEP),
    "FlatMapGroupsInPandas": Refusal("applyInPandas", _AS_LOOP),
    "FlatMapGroupsInArrow": Refusal("applyInArrow", _AS_LOOP),
    "FlatMapCoGroupsInPandas": Refusal("cogroup", _AS_LOOP),
    "FlatMapCoGroupsInArrow": Refusal("cogroup", _AS_LOOP),
    "FlatMapGroupsInPandasWithState": Refusal("applyInPandasWithState", _AS_STAGE),
    "TransformWithStateInPySpark": Refusal("transformWithState", _AS_STAGE),
    "Union": Refusal("union", _AS_SIDES),
    "Intersect": Refusal("intersect", _AS_STEP),
    "Except": Refusal("except", _AS_STEP),
    "RepartitionByExpression": Refusal("repartition", _AS_LEFT_OUT),
    "RebalancePartitions": Refusal("a rebalance hint", _AS_LEFT_OUT),
    "CollectMetrics": Refusal("observe", _AS_STEP),
    "EventTimeWatermark": Refusal("withWatermark", _AS_BATCH),
    "View": Refusal("a view", _AS_FRAME),
    "WithCTE": Refusal("a WITH clause", _AS_FRAME),
    "CTERelationRef": Refusal("a WITH clause", _AS_FRAME),
    "LogicalRDD": Refusal("a checkpoint or an RDD", _AS_STEP),
    "InMemoryRelation": Refusal("a cached DataFrame", _AS_UNCACHED),
    "LateralJoin": Refusal("a lateral join", AS_JOIN),
    "AsOfJoin": Refusal("an as-of join", _AS_STEP),
    "NearestByJoin": Refusal("a nearest-by join", _AS_STEP),
    SUBQUERY: Refusal("a subquery", AS_JOIN),
}
_JOINS = {"RightOuter": "a right join", "FullOuter": "a full outer join"}


def marked(frame: DataFrame) -> tuple[DataFrame, str]:
    """Return the input of a step with an alias that marks it, and the name of the alias."""
    name = f"statecheck_over_{uuid4().hex[:12]}"
    return frame.alias(name), name


def require_row_wise(built: DataFrame, marker: str, step: str) -> None:
    """
    Check that a step can be computed in parts.

    :param built: The result of the step for its whole input.
    :param marker: Name of the alias that marks the input.
    :raises UnsupportedPlanError: if an operation of the step is not known to map each row of the input on its own, or
        if two jobs could get different rows from it.
    """
    refusal = _refusal(built, marker)
    if refusal is not None:
        raise UnsupportedPlanError(
            f"Expected step '{step}' to consist of operations that can be computed row by row, found "
            f"{refusal.operation}; {refusal.way_out}.",
            operation=refusal.operation,
        )


def _refusal(built: Any, marker: str) -> Refusal | None:
    if built.isStreaming:
        return Refusal("a streaming source", _AS_BATCH)
    return _connect_refusal(built, marker) if is_connect(built) else _classic_refusal(built, marker)


def _classic_refusal(built: Any, marker: str) -> Refusal | None:
    query = built._jdf.queryExecution()
    plan = query.analyzed()
    refusal = tree_refusal(tree_of_plan(plan, marker, ExpressionRules(built.sparkSession)), marker)
    if refusal is None and reads_cache(plan, query.withCachedData(), marker):
        return _REFUSALS["InMemoryRelation"]
    return refusal


def tree_refusal(tree: PlanNode, marker: str) -> Refusal | None:
    """
    Return why a plan is refused, ``None`` if it can be computed in parts.

    :param tree: Tree of the analysed plan.
    :param marker: Name of the alias that marks the input.
    """
    node = tree
    while not node.is_marked(marker):
        refusal = _node_refusal(node, marker) or node.refusal
        if refusal is not None:
            return refusal
        node = node.children[0]
    return None


def _node_refusal(node: PlanNode, marker: str) -> Refusal | None:
    if node.kind == "Join" and len(node.children) == 2:
        return _join_refusal(node, node.children[0], node.children[1], marker)
    if node.kind in _ONE_INPUT and _subquery(node) is None and len(node.children) == 1:
        return _argument_refusal(node)
    if node.kind in _STABLE_LEAVES - {"LogicalRDD"}:
        return Refusal("a plan that does not read over", _AS_BUILT)
    return _named_refusal(node)


def _subquery(node: PlanNode) -> PlanNode | None:
    return next((child for child in node.children if child.kind == SUBQUERY), None)


def _join_refusal(node: PlanNode, left: PlanNode, right: PlanNode, marker: str) -> Refusal | None:
    if node.detail not in _LEFT_JOINS:
        return Refusal(_JOINS.get(node.detail, f"a join of type {node.detail}"), _AS_SWAPPED)
    if right.reads(marker):
        is_self_join = left.reads(marker)
        name = "a join of over with itself" if is_self_join else "a join with over on the right side"
        return Refusal(name, AS_JOIN if is_self_join else _AS_SWAPPED)
    return _right_refusal(right)


def _right_refusal(node: PlanNode) -> Refusal | None:
    found = None if node.kind in _STABLE and _subquery(node) is None else _named_refusal(node)
    found = found or _argument_refusal(node) or node.refusal
    if found is not None:
        return Refusal(f"{found.operation} on the right side of a join", AS_JOIN)
    return next(filter(None, map(_right_refusal, node.children)), None)


def _argument_refusal(node: PlanNode) -> Refusal | None:
    if node.kind == "Generate" and node.detail not in _GENERATORS:
        return Refusal(f"the table function {node.detail}", AS_SCALAR)
    if node.detail == BARRIER:
        return Refusal("a barrier", AS_SCALAR)
    if node.kind == "Deduplicate" and node.detail == SUBSET:
        return _named_refusal(node)
    return None


def _named_refusal(node: PlanNode) -> Refusal:
    if _subquery(node) is not None and node.kind != "LateralJoin":
        return _REFUSALS[SUBQUERY]
    if node.kind == "Deduplicate" and node.detail == SUBSET:
        return Refusal("dropDuplicates", _AS_STEP)
    if node.kind == "Repartition":
        return Refusal("repartition" if node.detail == "true" else "coalesce", _AS_LEFT_OUT)
    return _REFUSALS.get(node.kind) or Refusal(node.kind or "a plan without a readable text", _AS_STEP)


def _connect_refusal(built: Any, marker: str) -> Refusal | None:
    plan = built._plan.to_proto(built.sparkSession.client)
    judged = list(messages(plan, lambda message: _is_marked_message(message, marker)))
    text = explained(built)
    if not is_complete(text):
        return Refusal("a plan whose text is incomplete", _AS_STEP)
    analysed = analysed_plan(text, built.schema.simpleString() if built.schema.fields else "")
    refusal = tree_refusal(tree_of_text(analysed, marker, **_flags(judged)), marker)
    refusal = refusal or message_refusal(judged, analysed, lambda: _registered(built.sparkSession))
    if refusal is None and cached_relations(text) > _cached_in_input(built, marker, text):
        return _REFUSALS["InMemoryRelation"]
    return refusal


def _is_marked_message(message: Any, marker: str) -> bool:
    return bool(message.DESCRIPTOR.name == "SubqueryAlias" and message.alias == marker)


def _flags(judged: list[Any]) -> dict[str, bool]:
    # The text does not say whether the columns of a dropDuplicates are all columns.
    kinds = [(message.DESCRIPTOR.name, message) for message in judged]
    return {
        "has_subsets": any(kind == "Deduplicate" and not m.all_columns_as_keys for kind, m in kinds),
        "is_barrier": any(kind == "MapPartitions" and m.is_barrier for kind, m in kinds),
    }


def _registered(spark: Any) -> list[str]:
    return [row[0] for row in spark.sql("SHOW USER FUNCTIONS").collect()]


def _cached_in_input(built: Any, marker: str, text: str) -> int:
    if not cached_relations(text):
        return 0
    plan = built._plan
    while plan is not None and getattr(plan, "_alias", None) != marker:
        plan = getattr(plan, "_child", None)
    return 0 if plan is None else cached_relations(explained(type(built)(plan, built.sparkSession)))
