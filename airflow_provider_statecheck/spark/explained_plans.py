"""
Texts that Spark writes of plans: all that this package reads in them.

A client of Spark Connect has plans as text only, and so has the size of a cached relation. Versions of Spark may write
other texts; the tests have samples of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_ANALYSED, _OPTIMISED, _PHYSICAL = (
    "== Analyzed Logical Plan ==\n",
    "\n== Optimized Logical Plan ==",
    "\n== Physical Plan ==",
)
_PLAN_LENGTH = "spark.sql.maxPlanStringLength"
_LONGEST_PLAN = str(2**31 - 16)
_CACHED_LINE = re.compile(r"^[:+\- ]*InMemoryRelation\b", re.MULTILINE)
_STATISTICS = re.compile(r"Statistics\(sizeInBytes=([\d.]+(?:E[+-]?\d+)?) ([KMGTPE]?)i?B")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_PREFIX = re.compile(r"(?:[: ] {2})*[:+]- ")
_KIND = re.compile(r"[A-Za-z]\w*")
# The text of a plan names these nodes differently from their classes.
_CLASSES = {"Relation": "LogicalRelation", "RelationV2": "DataSourceV2Relation"}
_DETAILS = {
    "SubqueryAlias": re.compile(r"SubqueryAlias (.*)"),
    "Join": re.compile(r"Join (\w+)"),
    "Generate": re.compile(r"Generate (\w+)\("),
    "Repartition": re.compile(r"Repartition \d+, (\w+)"),
}


class TextNode(NamedTuple):
    """A node in the text of a plan."""

    depth: int
    kind: str
    """Class of the node in Catalyst; empty if the text has another form."""
    detail: str
    """
    Name of an alias, type of a join, function of a Generate, whether a Repartition shuffles; empty for other nodes.
    """


def explained(frame: Any) -> str:
    """Return the plans of a DataFrame, not cut; the session must be one of Spark Connect."""
    text = str(frame._explain_string(mode="extended"))
    if is_complete(text):
        return text
    with _longest_plan(frame.sparkSession):
        return str(frame._explain_string(mode="extended"))


def explained_with_costs(frame: Any) -> str:
    """Return the optimised plan of a DataFrame with statistics, and its physical plan."""
    if hasattr(frame, "_jdf"):
        query = frame._jdf.queryExecution()
        return str(frame.sparkSession._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.explainString(query, "cost"))
    return str(frame._explain_string(mode="cost"))


@contextmanager
def _longest_plan(spark: Any) -> Iterator[None]:
    """Let the session return plans of any length."""
    before = spark.conf.get(_PLAN_LENGTH, None)
    spark.conf.set(_PLAN_LENGTH, _LONGEST_PLAN)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_PLAN_LENGTH)
        else:
            spark.conf.set(_PLAN_LENGTH, before)


def is_complete(text: str) -> bool:
    """Return whether the text has all plans."""
    return _PHYSICAL in text


def analysed_plan(text: str, columns: str) -> str:
    """
    Return the tree of the analysed plan.

    :param columns: Description of the columns, which precedes the tree; empty without columns.
    """
    # A name with a line break takes several lines.
    lines = 1 + columns.count("\n") if columns else 0
    section = text.partition(_ANALYSED)[2].partition(_OPTIMISED)[0]
    return "\n".join(section.removesuffix("\n").split("\n")[lines:])


def cached_relations(text: str) -> int:
    """Return the number of cached relations that the optimised plan reads."""
    return len(_CACHED_LINE.findall(text.partition(_OPTIMISED)[2].partition(_PHYSICAL)[0]))


def cached_size(text: str) -> int | None:
    """
    Return the size in bytes of the cached relation at the top of a plan with statistics, ``None`` if there is none.

    :param text: Result of :func:`explained_with_costs`.
    """
    top = next((line for line in text.splitlines() if line and not line.startswith("==")), "")
    found = _STATISTICS.search(text)
    if found is None or not top.startswith("InMemoryRelation"):
        return None
    return int(float(found.group(1)) * 1024 ** _POWERS[found.group(2)])


def nodes_above(text: str, marker: str) -> Iterator[TextNode]:
    """
    Yield the nodes in the tree of an analysed plan, without those below an alias.

    A line without the prefix of a node continues the text of the node before it: a name or a literal has a line break.

    :param marker: Name of the alias.
    """
    return (_node(depth, line) for depth, line in _above_marker(_lines(text), marker))


def _lines(text: str) -> Iterator[tuple[int, str]]:
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


def _node(depth: int, line: str) -> TextNode:
    found = _KIND.match(line)
    kind = found.group() if found is not None else ""
    kind = _CLASSES.get(kind, kind)
    pattern = _DETAILS.get(kind)
    argument = None if pattern is None else pattern.match(line)
    return TextNode(depth, kind, "" if argument is None else argument.group(1))
