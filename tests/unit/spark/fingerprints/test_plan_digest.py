from __future__ import annotations

import pytest

from airflow_provider_statecheck.spark.plan_digest import stable_text

EQUAL = {
    "ids": ("Project [a#12, b#7L AS c#13L]", "Project [a#1, b#2L AS c#3L]"),
    "lambda-names": ("lambdafunction(lambda x_1#5, lambda x_1#5)", "lambdafunction(lambda x_7#9, lambda x_7#9)"),
    "partitions-of-a-range": ("Range (0, 9, step=1, splits=Some(2))", "Range (0, 9, step=1, splits=Some(64))"),
    "drawn-seeds": ("[rand(-4622673334435848592) AS r#1]", "[rand(8622673334435848592) AS r#2]"),
    "drawn-seed-of-a-sample": (
        "Sample 0.0, 0.1, false, 3696230512826699043, Bernoulli",
        "Sample 0.0, 0.1, false, 6230512826699043369, Bernoulli",
    ),
    "drawn-seed-of-uuid": ("uuid(Some(5158508642481926753))", "uuid(Some(1158508642481926753))"),
    "common-table-expressions": (
        "CTERelationDef 4, false\nCTERelationRef 4, true",
        "CTERelationDef 0, false\nCTERelationRef 0, true",
    ),
    "addresses": ("Provider@3fed043e, rate", "Provider@201ad1fe, rate"),
    "rdds": ("MapPartitionsRDD[4] at x", "MapPartitionsRDD[9] at x"),
}
UNEQUAL = {
    "which-column": ("Join (id#1 = id#2), id#1", "Join (id#1 = id#2), id#2"),
    "given-seed": ("rand(5)", "rand(6)"),
    "given-seed-of-a-sample": ("Sample 0.0, 0.1, false, 42, Bernoulli", "Sample 0.0, 0.1, false, 43, Bernoulli"),
    "number-in-a-text": ("Filter (a#1 = order #12)", "Filter (a#1 = order #13)"),
    "name-with-a-number": ("Project [col_1#4]", "Project [col_2#4]"),
    "which-table-expression": (
        "CTERelationDef 0\nCTERelationDef 1\nCTERelationRef 0",
        "CTERelationDef 0\nCTERelationDef 1\nCTERelationRef 1",
    ),
}


@pytest.mark.parametrize(("first", "second"), EQUAL.values(), ids=EQUAL.keys())
def test_what_a_jvm_counts_or_draws_does_not_matter(first, second):
    assert stable_text(first) == stable_text(second)


@pytest.mark.parametrize(("first", "second"), UNEQUAL.values(), ids=UNEQUAL.keys())
def test_what_somebody_wrote_matters(first, second):
    assert stable_text(first) != stable_text(second)
