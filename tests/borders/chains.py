"""Chains of functions over shuffles, with awkward names of columns, and the same rows from plain Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row, functions as F

from airflow_provider_statecheck.spark.stages.stage import Count, Max, Min, Stage, Sum
from airflow_provider_statecheck.spark.tables.schemas import quoted, quoted_column
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMES = (
    *("a.b", "a`b", "a b", "a'b", 'a"b', "a,b", "a(b)", "a=b", "a;b", "a{b}", "a\\b", "a%b", "`", ".", "a.b.c"),
    *(
        "Größe",
        "日本",
        ".x",
        "[y",
        "class",
        "_dlt_id",
        "_fields",
        "count",
        "index",
        "id",
        "self",
        "uid",
        "emit",
        "select",
        "1",
        "null",
    ),
    *("total_sum", "v_max", "value0", "group0", "value0_sum", "value0 is NaN", "_c0", "_c1", "key", "rows", "*", "a.*"),
)
"""Legal names of columns, among them those of Arrow's results, of Python's tuples, and of SQL."""
TWINS = ("Name", "name", "NAME")
"""Names that are different only if Spark distinguishes case."""


@dataclass(frozen=True)
class Chain:
    """A stage so far, and the rows of plain Spark."""

    stage: Stage
    rows: DataFrame

    @property
    def names(self) -> list[str]:
        return self.rows.columns


class Passed(KeyedProcessFunction[Any, Any, Any]):
    """
    Emits each row in a form of its own, with its columns in another order.

    :param form: Returns a row by names and values.
    """

    def __init__(self, form: str, order: Sequence[int]) -> None:
        self._form = FORMS[form]
        self._order = order

    def open(self, runtime_context: Any) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", int, 0))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self._seen.update(self._seen.value() + 1)
        yield self._form(value, [value._fields[at] for at in self._order], [value[at] for at in self._order])


def _row(value: Any, names: Sequence[str], values: Sequence[Any]) -> Any:
    # As of Row(**named), which takes any names.
    row = Row(*values)
    row.__fields__ = list(names)
    return row


FORMS: dict[str, Callable[[Any, Sequence[str], Sequence[Any]], Any]] = {
    "itself": lambda value, names, values: value,
    "mapping": lambda value, names, values: dict(zip(names, values, strict=True)),
    "row": _row,
    "replaced": lambda value, names, values: value._replace(**dict(zip(names, values, strict=True))),
}


def source_rows(random_: random.Random, names: Sequence[str]) -> list[str]:
    """Return an expression for each column of a range, with nulls outside the first column."""
    kinds = ("id % 5", "cast(id % 3 as int)", "cast(id % 4 as string)", "cast(id as double)", "nullif(id, 3)")
    expressions = [f"id % {random_.randrange(2, 6)} as {quoted(names[0])}"]
    expressions += [f"{random_.choice(kinds)} as {quoted(name)}" for name in names[1:]]
    return expressions


def passed(random_: random.Random, chain: Chain) -> Chain:
    """Add a shuffle, and a function that returns its rows in any form."""
    order = random_.sample(range(len(chain.names)), len(chain.names))
    shuffled = random_.sample(range(len(chain.names)), len(chain.names))
    schema = chain.rows.select([quoted_column(chain.names[at]) for at in shuffled]).schema
    function = Passed(random_.choice(sorted(FORMS)), order)
    stage = chain.stage.key_by(chain.names[0]).process(function, uid=_uid(chain), output=schema)
    rows = chain.rows.select([quoted_column(chain.names[at]) for at in shuffled])
    # The first column is never null, as a key has to be.
    key = chain.names[0]
    return _keyed_first(Chain(stage, rows), key)


def _keyed_first(chain: Chain, key: str) -> Chain:
    names = [key, *(name for name in chain.names if name != key)]
    return replace(chain, stage=chain.stage, rows=chain.rows.select([quoted_column(name) for name in names]))


def summed(random_: random.Random, chain: Chain) -> Chain:
    """Add a shuffle and declared aggregates under awkward names."""
    keys = [chain.names[0]]
    names = random_.sample([name for name in NAMES if name not in keys], 3)
    of = [random_.choice(chain.names) for _ in names]
    kinds = [random_.choice((Max, Min, Count)) for _ in names]
    declared: dict[str, Any] = {name: kind(quoted(column)) for name, kind, column in zip(names, kinds, of, strict=True)}
    declared |= {f"{names[0]}_sum": Sum(f"cast({quoted(of[0])} as double)")} if f"{names[0]}_sum" not in keys else {}
    stage = chain.stage.key_by(*keys).aggregate(declared, uid=_uid(chain))
    columns = [getattr(F, each.spark_function)(F.expr(each.expression)).alias(name) for name, each in declared.items()]
    return Chain(stage, chain.rows.groupBy(*map(quoted_column, keys)).agg(*columns))


def _uid(chain: Chain) -> str:
    return f"f{len(chain.stage.nodes)}"
