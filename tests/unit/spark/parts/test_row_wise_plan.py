from __future__ import annotations

import pytest

from airflow_provider_statecheck.spark.parts.plan_trees import (
    BARRIER,
    SUBQUERY,
    SUBSET,
    PlanNode,
    Refusal,
    sql_refusal,
    tree_of_text,
)
from airflow_provider_statecheck.spark.parts.row_wise_plan import tree_refusal

MARKER = "statecheck_over_0123456789ab"

JOIN = f"""Project [k#3L, id#2L, label#8]
+- Join LeftOuter, (k#3L = k#7L)
   :- SubqueryAlias {MARKER}
   :  +- Limit 3
   :     +- LogicalRDD [id#2L, k#3L], false
   +- ResolvedHint (strategy=broadcast)
      +- Aggregate [k#7L], [k#7L, max(label#9) AS label#8]
         +- Relation [k#7L,label#9] parquet"""


def node(kind: str, *children: PlanNode, detail: str = "", refusal: Refusal | None = None) -> PlanNode:
    return PlanNode(kind=kind, detail=detail, children=list(children), refusal=refusal)


OVER = node("SubqueryAlias", detail=MARKER)
OTHER = node("LocalRelation")


def refused(text: str) -> str | None:
    refusal = tree_refusal(tree_of_text(text, MARKER), MARKER)
    return None if refusal is None else refusal.operation


def operation_of(tree: PlanNode) -> str | None:
    refusal = tree_refusal(tree, MARKER)
    return None if refusal is None else refusal.operation


def test_tree_of_a_text_has_its_shape_and_ends_at_the_marker():
    right = node("ResolvedHint", node("Aggregate", node("LogicalRelation")))
    assert tree_of_text(JOIN, MARKER) == node("Project", node("Join", OVER, right, detail="LeftOuter"))


def test_row_wise_text_is_accepted():
    assert refused(JOIN) is None


def test_line_without_a_prefix_continues_the_node_before_it():
    text = (
        "Project [id#2L, a\nb AS x#1, \n AS y#2]\n+- Filter (name#3 = c\n\nd)\n"
        f"   +- SubqueryAlias {MARKER}\n      +- Range"
    )
    assert tree_of_text(text, MARKER) == node("Project", node("Filter", OVER))


def test_line_of_a_literal_that_looks_like_a_node_makes_the_plan_refused():
    text = f"Project [id#2L, a\n+- Filter b AS x#1]\n+- SubqueryAlias {MARKER}\n   +- Range (0, 3)"
    assert refused(text) == "Project"


def test_marker_in_the_name_of_another_alias_is_another_alias():
    assert refused(f"SubqueryAlias x{MARKER}\n+- Range (0, 3)") == "a plan that does not read over"


def test_plan_of_a_subquery_is_found_at_its_depth():
    text = (
        "Project [id#1, scalar-subquery#5 [] AS m#6]\n:  +- Aggregate [max(k#7L) AS m#8]\n:     +- Range (0, 3)\n"
        f"+- SubqueryAlias {MARKER}\n   +- Range (0, 3)"
    )
    subquery = node(SUBQUERY, node("Aggregate", node("Range")))
    assert tree_of_text(text, MARKER) == node("Project", subquery, OVER)
    assert refused(text) == "a subquery"


def test_text_says_nothing_about_subsets_and_barriers_so_the_caller_does():
    text = f"Deduplicate [k#1]\n+- MapInArrow f(k#1)#2, [k#3], true\n   +- SubqueryAlias {MARKER}"
    tree = tree_of_text(text, MARKER, has_subsets=True, is_barrier=True)
    assert tree == node("Deduplicate", node("MapInArrow", OVER, detail=BARRIER), detail=SUBSET)


@pytest.mark.parametrize("text", ["", "\n", "+-", "???", "...\n+- ..."])
def test_text_without_a_plan_is_refused(text: str):
    assert refused(text) is not None


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("Window [row_number() AS r#1], [k#2], [id#3 ASC]", "a window function"),
        ("Deduplicate [k#1]", "distinct"),
        ("GlobalLimit 3", "limit"),
        ("Repartition 2, true", "repartition"),
        ("Repartition 1, false", "coalesce"),
        ("Aggregate [k#1], [k#1, count(1) AS n#2]", "an aggregation"),
        ("Generate Split(name#1), false, [part#2]", "the table function Split"),
        ("TransformOfTomorrow [k#1]", "TransformOfTomorrow"),
    ],
)
def test_operation_on_the_way_to_the_input_is_refused_by_its_name(line: str, operation: str):
    assert refused(f"Project [k#1]\n+- {line}\n   +- SubqueryAlias {MARKER}\n      +- Range (0, 3)") == operation


@pytest.mark.parametrize("kind", ["Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"])
def test_join_that_keeps_rows_of_the_left_side_apart_is_accepted(kind: str):
    assert operation_of(node("Join", OVER, OTHER, detail=kind)) is None


@pytest.mark.parametrize(
    ("left", "right", "kind", "operation"),
    [
        (OVER, OTHER, "RightOuter", "a right join"),
        (OVER, OTHER, "FullOuter", "a full outer join"),
        (OVER, OTHER, "LeftSingle", "a join of type LeftSingle"),
        (OTHER, OVER, "Inner", "a join with over on the right side"),
        (OVER, node("Filter", OVER), "LeftSemi", "a join of over with itself"),
        (OVER, node("GlobalLimit", OTHER), "Inner", "limit on the right side of a join"),
        (OVER, node("Deduplicate", OTHER, detail=SUBSET), "Inner", "dropDuplicates on the right side of a join"),
        (
            OVER,
            node("Generate", OTHER, detail="split"),
            "Inner",
            "the table function split on the right side of a join",
        ),
        (OVER, node("Project", OTHER, refusal=Refusal("rand", "")), "Inner", "rand on the right side of a join"),
        (OTHER, OTHER, "Inner", "a plan that does not read over"),
    ],
)
def test_join_that_relates_rows_of_the_input_or_reads_unstable_rows_is_refused(left, right, kind, operation):
    assert operation_of(node("Join", left, right, detail=kind)) == operation


def test_distinct_rows_on_the_right_side_are_stable():
    assert operation_of(node("Join", OVER, node("Deduplicate", OTHER), detail="Inner")) is None


def test_refused_expression_on_the_way_to_the_input_counts():
    assert operation_of(node("Filter", OVER, refusal=Refusal("rand", ""))) == "rand"


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("1 + RAND()", "rand"),
        ("`rand` (3)", "rand"),
        ("system.builtin.uuid()", "uuid"),
        ("coalesce(a, now())", "now"),
        ("unix_timestamp( )", "unix_timestamp"),
        ("date_add(Current_Date, 1)", "current_date"),
        ("first(x) over (order by y)", "first"),
    ],
)
def test_refused_function_in_a_text_of_sql_is_found(sql: str, name: str):
    refusal = sql_refusal(sql, "project [date_add(current_date(some(etc/utc)), 1)]")
    assert refusal is not None
    assert refusal.operation == name


@pytest.mark.parametrize("sql", ["brand(x)", "unix_timestamp(at)", "rand + 1", "current_date + 1", "k in (1, 2)"])
def test_other_text_of_sql_is_accepted(sql: str):
    assert sql_refusal(sql, "project [current_date#1 + 1]") is None
