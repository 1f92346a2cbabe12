"""
What is read in the texts of plans, with samples of each version of Spark.

The samples are of a left join of a marked range with a cached DataFrame, which has a column with a line break in its
name: all plans, those of the join without columns, and the plan of the cached DataFrame with statistics.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.spark.explained_plans import (
    TextNode,
    analysed_plan,
    cached_relations,
    cached_size,
    is_complete,
    nodes_above,
)

SAMPLES = Path(__file__).parent / "explained"
VERSIONS = sorted(path.name.removesuffix("-extended.txt") for path in SAMPLES.glob("*-extended.txt"))
MARKER = "statecheck_over_0123456789ab"
COLUMNS = "struct<id:bigint,a\nb:bigint>"


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sample(version: str, kind: str) -> str:
    return (SAMPLES / f"{version}-{kind}.txt").read_text()


def test_the_analysed_plan_begins_after_the_columns_also_if_a_name_has_a_line_break(version: str) -> None:
    tree = analysed_plan(sample(version, "extended"), COLUMNS)
    assert tree.startswith("Project [id#0L, a\nb#6L]\n+- Join LeftOuter")
    assert tree.endswith("+- Range (0, 5, step=1, splits=Some(1))")


def test_without_columns_the_analysed_plan_begins_at_once(version: str) -> None:
    assert analysed_plan(sample(version, "without-columns"), "").startswith("Project\n+- Project [id#0L")


def test_nodes_have_depths_and_details_and_those_below_the_marker_are_left_out(version: str) -> None:
    tree = analysed_plan(sample(version, "extended"), COLUMNS)
    assert list(nodes_above(tree, MARKER)) == [
        TextNode(0, "Project", ""),
        TextNode(1, "Join", "LeftOuter"),
        TextNode(2, "SubqueryAlias", MARKER),
        TextNode(2, "Project", ""),
        TextNode(3, "Range", ""),
    ]


def test_cached_relations_are_counted_in_the_optimised_plan_alone(version: str) -> None:
    text = sample(version, "extended")
    assert text.count("InMemoryRelation") == 2
    assert cached_relations(text) == 1


def test_a_text_that_was_cut_before_the_last_plan_is_incomplete(version: str) -> None:
    text = sample(version, "extended")
    assert is_complete(text)
    assert not is_complete(text[: text.index("\n== Physical Plan ==")])


def test_the_size_of_the_cached_relation_at_the_top_is_read(version: str) -> None:
    assert cached_size(sample(version, "cost")) == 80
    assert cached_size(sample(version, "extended")) is None


@pytest.mark.parametrize(
    ("shown", "expected"),
    [("40.0 B", 40), ("7.5 KiB", 7680), ("1.0 MiB", 1024**2), ("2.0 GiB", 2 * 1024**3), ("1.5E+3 B", 1500)],
)
def test_the_size_of_a_cached_relation_has_a_unit(version: str, shown: str, expected: int) -> None:
    assert cached_size(sample(version, "cost").replace("80.0 B", shown)) == expected


def test_what_is_not_cached_has_no_size_that_can_be_relied_on() -> None:
    assert cached_size("== Optimized Logical Plan ==\nRange (0, 5), Statistics(sizeInBytes=40.0 B)\n") is None
    assert cached_size("") is None


@pytest.mark.parametrize(
    ("line", "kind", "detail"),
    [
        ("Relation [k#7L] parquet", "LogicalRelation", ""),
        ("RelationV2[k#7L] table", "DataSourceV2Relation", ""),
        ("Generate explode(xs#1), false, [x#2]", "Generate", "explode"),
        ("Repartition 4, true", "Repartition", "true"),
        ("???", "", ""),
    ],
)
def test_a_node_has_the_name_of_its_class(line: str, kind: str, detail: str) -> None:
    assert list(nodes_above(line, MARKER)) == [TextNode(0, kind, detail)]
