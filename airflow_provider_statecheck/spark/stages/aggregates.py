"""Aggregates that are computed on whole columns; each knows how its partial results are combined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


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
