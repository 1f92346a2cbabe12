"""Steps that may and may not be computed in parts, for classic Spark and for Spark Connect."""

from __future__ import annotations

import functools
import importlib
import random
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Window, functions as F
from pyspark.sql.pandas import functions as pandas_functions

from airflow_provider_statecheck.exceptions import UnsupportedPlanError
from airflow_provider_statecheck.spark.parts.row_wise_plan import marked, require_row_wise

Build = Callable[[Any, Any, Any], Any]
"""A step over a DataFrame, with the session and another DataFrame to join."""

OVER = "id long, k long, name string, tags array<string>, at timestamp, x double"
OTHER = "k long, label string, weight double"


class Refused(NamedTuple):
    name: str
    build: Build
    found: str
    only: str = ""


class Accepted(NamedTuple):
    name: str
    build: Build
    only: str = ""


def over_frame(spark: Any) -> Any:
    # One partition, so that a part is one task.
    return spark.range(0, 30, 1, 1).selectExpr(
        "id",
        "id % 4 as k",
        "if(id % 5 = 0, null, concat('n', id % 6)) as name",
        "slice(array('t0', 't1'), 1, int(id % 3)) as tags",
        "timestamp_seconds(1704067200 + id * 3600) as at",
        "double(id) / 4 as x",
    )


def other_frame(spark: Any) -> Any:
    rows = "(0L, 'zero', 0.5D), (1L, 'one', 1.5D), (1L, 'uno', 2.5D), (3L, 'three', 3.5D), (9L, 'nine', 4.5D)"
    return spark.sql(f"values {rows} as t(k, label, weight)")


def cases_of(kind: str, cases: list[Any], *, every: int) -> list[Any]:
    """Return the cases of classic Spark or of Spark Connect as parameters; all but every n-th one are long tests."""
    chosen = enumerate(case for case in cases if case.only in ("", kind))
    marks = ((case, () if i % every == 0 else pytest.mark.soak) for i, case in chosen)
    return [pytest.param(case, id=case.name, marks=mark) for case, mark in marks]


def by_k() -> Any:
    return Window.partitionBy("k").orderBy("id")


def noise() -> Any:
    return F.udf(lambda value: value, "long").asNondeterministic()


def add_registered(spark: Any, frame: Any, function: Any) -> Any:
    spark.udf.register("statecheck_registered", function)
    return frame.withColumn("r", F.expr("statecheck_registered(id)"))


def of_view(spark: Any, frame: Any) -> Any:
    name = f"view_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    return spark.table(name)


def same_rows(frames: Iterator[Any]) -> Iterator[Any]:
    yield from frames


def pandas_group(group: Any) -> Any:
    return group


def arrow_group(group: Any) -> Any:
    return group


def pair(left: Any, right: Any) -> Any:
    return left


class Split:
    def eval(self, text: str) -> Iterator[tuple[str]]:
        yield (text,)


def split(column: Any) -> Any:
    function: Any = F.udtf(Split, returnType="part string")
    return function(column)


def mean_of(values: Any) -> float:
    return float(values.mean())


def pandas_mean(column: str) -> Any:
    series = importlib.import_module("pandas").Series
    # The annotations of this module are texts; these decide the kind of the function.
    mean_of.__annotations__ = {"values": series, "return": float}
    pandas_udf: Any = pandas_functions.pandas_udf
    return pandas_udf(mean_of, "double")(column)


def rate(spark: Any) -> Any:
    return spark.readStream.format("rate").load().select(F.col("value").alias("k"))


REFUSED = [
    Refused("row number", lambda s, f, o: f.withColumn("r", F.row_number().over(by_k())), "a window function"),
    Refused("sum over a window", lambda s, f, o: f.select("id", F.sum("x").over(by_k())), "a window function"),
    Refused("distinct", lambda s, f, o: f.select("k").distinct(), "distinct"),
    Refused("dropDuplicates", lambda s, f, o: f.dropDuplicates(["k"]).select("id"), "dropDuplicates"),
    Refused("sort", lambda s, f, o: f.sort("x"), "a sort"),
    Refused("sort below a filter", lambda s, f, o: f.orderBy(F.desc("x")).where("id > 3"), "a sort"),
    Refused("sortWithinPartitions", lambda s, f, o: f.sortWithinPartitions("x"), "a sort"),
    Refused("limit", lambda s, f, o: f.limit(3), "limit"),
    Refused("limit below a projection", lambda s, f, o: f.limit(3).select("id"), "limit"),
    Refused("offset", lambda s, f, o: f.offset(3), "offset"),
    Refused("groupBy", lambda s, f, o: f.groupBy("k").count(), "an aggregation"),
    Refused("agg", lambda s, f, o: f.agg(F.max("x")), "an aggregation"),
    Refused("sum in a projection", lambda s, f, o: f.select(F.sum("x")), "an aggregation"),
    Refused("collect_list", lambda s, f, o: f.groupBy("k").agg(F.collect_list("id")), "an aggregation"),
    Refused("having", lambda s, f, o: f.groupBy("k").count().where("count > 1"), "an aggregation"),
    Refused("rollup", lambda s, f, o: f.rollup("k").count(), "an aggregation"),
    Refused("cube", lambda s, f, o: f.cube("k", "name").count(), "an aggregation"),
    Refused("pivot", lambda s, f, o: f.groupBy("k").pivot("name", ["n1"]).count(), "an aggregation"),
    Refused("unpivot", lambda s, f, o: f.select("id", "k").unpivot("id", "k", "v", "y"), "unpivot"),
    Refused("sliding window", lambda s, f, o: f.select("id", F.window("at", "2 hours", "1 hour")), "sliding window"),
    Refused("applyInPandas", lambda s, f, o: f.groupBy("k").applyInPandas(pandas_group, f.schema), "applyInPandas"),
    Refused("applyInArrow", lambda s, f, o: f.groupBy("k").applyInArrow(arrow_group, f.schema), "applyInArrow"),
    Refused(
        "cogroup",
        lambda s, f, o: f.groupBy("k").cogroup(o.groupBy("k")).applyInPandas(pair, f.schema),
        "cogroup",
    ),
    Refused("union with itself", lambda s, f, o: f.union(f), "union"),
    Refused("union with another", lambda s, f, o: f.select("k").union(o.select("k")), "union"),
    Refused("union after another", lambda s, f, o: o.select("k").unionByName(f.select("k")), "union"),
    Refused("intersect", lambda s, f, o: f.select("k").intersect(o.select("k")), "intersect"),
    Refused("subtract", lambda s, f, o: f.select("k").subtract(o.select("k")), "except"),
    Refused("exceptAll", lambda s, f, o: f.exceptAll(f.where("id > 3")), "except"),
    Refused("right join", lambda s, f, o: f.join(o, "k", "right"), "a right join"),
    Refused("full join", lambda s, f, o: f.join(o, "k", "full"), "a full outer join"),
    Refused("join on the right", lambda s, f, o: o.join(f, "k"), "a join with over on the right side"),
    Refused("cross join on the right", lambda s, f, o: o.crossJoin(f), "a join with over on the right side"),
    Refused("anti join on the right", lambda s, f, o: o.join(f, "k", "anti"), "a join with over on the right side"),
    Refused("self-join", lambda s, f, o: f.join(f.select("k", "id"), "k"), "a join of over with itself"),
    Refused("join with aggregate of itself", lambda s, f, o: f.join(f.groupBy("k").count(), "k"), "over with itself"),
    Refused("semi join with itself", lambda s, f, o: f.join(f.where("x > 3"), "k", "semi"), "over with itself"),
    Refused("as-of join", lambda s, f, o: f._joinAsOf(o, "id", "k"), "an as-of join", "classic"),
    Refused("lateral join", lambda s, f, o: f.lateralJoin(o.where(F.col("k") == F.col("id").outer())), "lateral join"),
    Refused("Python UDTF", lambda s, f, o: f.lateralJoin(split(F.col("name").outer())), "lateral|table"),
    Refused("repartition", lambda s, f, o: f.repartition(2), "repartition"),
    Refused("repartition by a column", lambda s, f, o: f.repartition("k"), "repartition"),
    Refused("repartitionByRange", lambda s, f, o: f.repartitionByRange(2, "k"), "repartition"),
    Refused(
        "repartition before mapInPandas", lambda s, f, o: f.repartition(2, "k").mapInPandas(same_rows, OVER), "repa"
    ),
    Refused("coalesce", lambda s, f, o: f.coalesce(1), "coalesce"),
    Refused("rebalance", lambda s, f, o: f.hint("rebalance"), "a rebalance hint"),
    Refused("sample", lambda s, f, o: f.sample(0.5), "sample"),
    Refused("seeded sample", lambda s, f, o: f.sample(0.5, 7), "sample"),
    Refused("sampleBy", lambda s, f, o: f.sampleBy("k", {1: 0.5}), "rand|sampleBy"),
    Refused("observe", lambda s, f, o: f.observe("seen", F.count(F.lit(1)).alias("n")), "observe"),
    Refused("transpose", lambda s, f, o: f.select("name", "k").where("id < 3").transpose(), "transpose|does not read"),
    Refused("view", lambda s, f, o: of_view(s, f), "a view"),
    Refused("SQL over the input", lambda s, f, o: s.sql("select id from {f} where id > 3", f=f), "a view"),
    Refused("checkpoint", lambda s, f, o: f.localCheckpoint().select("id"), "a checkpoint or an RDD"),
    Refused("RDD", lambda s, f, o: f.select("id").rdd.toDF("id long"), "a checkpoint or an RDD", "classic"),
    Refused("cached", lambda s, f, o: f.where("id > 3").cache().select("id"), "a cached DataFrame"),
    Refused("cached on the right", lambda s, f, o: f.join(o.where("k < 3").cache(), "k"), "a cached DataFrame"),
    Refused("cached result", lambda s, f, o: f.where("id > 4").cache(), "a cached DataFrame"),
    Refused("scalar subquery", lambda s, f, o: f.withColumn("m", o.select(F.max("k")).scalar()), "a subquery"),
    Refused("exists", lambda s, f, o: f.where(o.where(F.col("k") == F.col("id").outer()).exists()), "a subquery"),
    Refused("IN subquery", lambda s, f, o: f.where(F.col("k").isin(o.select("k"))), "a subquery"),
    Refused("SQL subquery", lambda s, f, o: f.where("k in (select id from range(2))"), "a subquery"),
    Refused(
        "subquery in a later step", lambda s, f, o: f.select(F.expr("(select max(id) from range(2)) m")), "subquery"
    ),
    Refused("rand", lambda s, f, o: f.withColumn("r", F.rand()), "rand"),
    Refused("seeded rand", lambda s, f, o: f.withColumn("r", F.rand(7)), "rand"),
    Refused(
        "rand deep in an expression", lambda s, f, o: f.select(F.when(F.col("id") > F.rand(), 1).otherwise(2)), "rand"
    ),
    Refused("rand in a filter", lambda s, f, o: f.where(F.rand() > 0.5), "rand"),
    Refused("rand in a text", lambda s, f, o: f.selectExpr("id", "1 + Rand ( ) as r"), "rand"),
    Refused("rand below", lambda s, f, o: f.withColumn("r", F.rand()).where("r > 0.5").select("id"), "rand"),
    Refused("rand in a lambda", lambda s, f, o: f.select(F.transform("tags", lambda t: F.rand())), "rand"),
    Refused("randn", lambda s, f, o: f.select(F.randn()), "randn"),
    Refused("uuid", lambda s, f, o: f.withColumn("u", F.expr("uuid()")), "uuid"),
    Refused("shuffle", lambda s, f, o: f.select(F.shuffle("tags")), "shuffle"),
    Refused("row ids", lambda s, f, o: f.select(F.monotonically_increasing_id()), "monotonically_increasing_id"),
    Refused("partition ids", lambda s, f, o: f.select(F.spark_partition_id()), "spark_partition_id"),
    Refused("file names", lambda s, f, o: f.select(F.input_file_name()), "input_file_name"),
    Refused("current_timestamp", lambda s, f, o: f.withColumn("n", F.current_timestamp()), "current_timestamp"),
    Refused("now", lambda s, f, o: f.where(F.col("at") < F.now()), "now"),
    Refused("current_date", lambda s, f, o: f.withColumn("d", F.current_date()), "current_date"),
    Refused("localtimestamp", lambda s, f, o: f.withColumn("d", F.localtimestamp()), "localtimestamp"),
    Refused("unix_timestamp", lambda s, f, o: f.withColumn("u", F.unix_timestamp()), "(unix|current)_timestamp"),
    Refused("bare name in a text", lambda s, f, o: f.selectExpr("id", "CURRENT_DATE as d"), "current_date"),
    Refused("bare name as a column", lambda s, f, o: f.select("id", F.col("current_timestamp")), "current_timestamp"),
    Refused("udf", lambda s, f, o: f.withColumn("n", noise()("id")), "<lambda>"),
    Refused("udf in a filter", lambda s, f, o: f.where(noise()("id") > 3), "<lambda>"),
    Refused("registered udf", lambda s, f, o: add_registered(s, f, noise()), "statecheck_registered|<lambda>"),
    Refused(
        "registered udf by its name",
        lambda s, f, o: add_registered(s, f, F.udf(lambda value: value, "long")),
        "the registered function statecheck_registered",
        "connect",
    ),
    Refused("barrier", lambda s, f, o: f.mapInArrow(same_rows, OVER, barrier=True), "a barrier"),
    Refused("limit on the right", lambda s, f, o: f.join(o.limit(2), "k"), "limit on the right side of a join"),
    Refused("offset on the right", lambda s, f, o: f.join(o.offset(2), "k"), "offset on the right side"),
    Refused("sorted limit on the right", lambda s, f, o: f.join(o.sort("k").limit(2), "k"), "limit on the right side"),
    Refused("duplicates on the right", lambda s, f, o: f.join(o.dropDuplicates(["k"]), "k"), "dropDuplicates on the"),
    Refused(
        "window on the right",
        lambda s, f, o: f.join(o.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy("weight"))), "k"),
        "a window function on the right side",
    ),
    Refused("sample on the right", lambda s, f, o: f.join(o.sample(0.5), "k"), "sample on the right side"),
    Refused("rand on the right", lambda s, f, o: f.join(o.withColumn("r", F.rand()), "k"), "rand"),
    Refused("time on the right", lambda s, f, o: f.join(o.withColumn("r", F.current_date()), "k"), "current_date"),
    Refused("first on the right", lambda s, f, o: f.join(o.groupBy("k").agg(F.first("label")), "k"), "first"),
    Refused(
        "list on the right", lambda s, f, o: f.join(o.groupBy("k").agg(F.collect_list("label")), "k"), "collect_list"
    ),
    Refused(
        "max_by on the right", lambda s, f, o: f.join(o.groupBy("k").agg(F.max_by("label", "weight")), "k"), "max_by"
    ),
    Refused(
        "subquery on the right", lambda s, f, o: f.join(o.where("k in (select id from range(2))"), "k"), "subquery"
    ),
    Refused("repartition on the right", lambda s, f, o: f.join(o.repartition(2), "k"), "repartition on the right"),
    Refused("view on the right", lambda s, f, o: f.join(of_view(s, o), "k"), "a view on the right side"),
    Refused(
        "WITH on the right",
        lambda s, f, o: f.join(s.sql("with a as (select 1 k) select a.k from a join a b using (k)"), "k"),
        "a WITH clause on the right side",
    ),
    Refused("stream on the right", lambda s, f, o: f.join(rate(s), "k"), "a streaming source"),
    Refused(
        "applyInPandas on the right",
        lambda s, f, o: f.join(o.groupBy("k").applyInPandas(pandas_group, OTHER), "k"),
        "applyInPandas on",
    ),
    Refused("last on the right", lambda s, f, o: f.join(o.groupBy("k").agg(F.last("label")), "k"), "last"),
    Refused("mode on the right", lambda s, f, o: f.join(o.groupBy("k").agg(F.mode("label")), "k"), "mode"),
    Refused(
        "pandas aggregate on the right",
        lambda s, f, o: f.join(o.groupBy("k").agg(pandas_mean("weight")), "k"),
        "mean_of",
    ),
    Refused("another frame", lambda s, f, o: s.range(3), "a plan that does not read over"),
    Refused(
        "join of other frames", lambda s, f, o: s.range(3).join(s.range(4), "id"), "a plan that does not read over"
    ),
]


def add_one(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.assign(id=batch["id"] + 1)


def arrow_rows(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.select(["id", "k"])


def lengths(names: Any) -> Any:
    return names.fillna("").str.len()


def pandas_length(column: str) -> Any:
    series = importlib.import_module("pandas").Series
    # The annotations of this module are texts; these decide the kind of the function.
    lengths.__annotations__ = {"names": series, "return": series}
    pandas_udf: Any = pandas_functions.pandas_udf
    return pandas_udf(lengths, "long")(column)


ACCEPTED = [
    Accepted("input itself", lambda s, f, o: f),
    Accepted("projection", lambda s, f, o: f.select("id", F.upper("name").alias("n"), (F.col("x") * 2).alias("d"))),
    Accepted("filter", lambda s, f, o: f.where((F.col("id") % 3 == 1) & F.col("name").isNotNull())),
    Accepted("columns", lambda s, f, o: f.withColumn("y", F.col("x") + 1).withColumnRenamed("k", "kk").drop("name")),
    Accepted("toDF", lambda s, f, o: f.select("id", "k").toDF("a", "b")),
    Accepted("other alias", lambda s, f, o: f.alias("a").where("a.id > 3").select("a.id")),
    Accepted("missing values", lambda s, f, o: f.fillna({"name": "none"}).replace(1, 2, ["k"]).dropna(subset=["name"])),
    Accepted("texts", lambda s, f, o: f.selectExpr("id", "case when k > 1 then 'a' else 'b' end as c").where("id > 2")),
    Accepted("explode", lambda s, f, o: f.select("id", F.explode("tags").alias("tag"))),
    Accepted("explode_outer", lambda s, f, o: f.select("id", F.explode_outer("tags").alias("tag"))),
    Accepted("posexplode", lambda s, f, o: f.select("id", F.posexplode("tags"))),
    Accepted("inline", lambda s, f, o: f.select("x", F.inline(F.array(F.struct("id", "k"))))),
    Accepted("stack", lambda s, f, o: f.select("x", F.stack(F.lit(2), "id", "k"))),
    Accepted("json_tuple", lambda s, f, o: f.select("id", F.json_tuple(F.lit('{"a":1}'), "a"))),
    Accepted("time window", lambda s, f, o: f.select("id", F.window("at", "2 hours"))),
    Accepted("lambda", lambda s, f, o: f.select("id", F.transform("tags", lambda t: F.concat(t, F.lit("!"))))),
    Accepted("udf", lambda s, f, o: f.withColumn("n", F.udf(lambda value: value + 1, "long")("id"))),
    Accepted("Arrow udf", lambda s, f, o: f.select(F.udf(lambda value: value + 1, "long", useArrow=True)("id"))),
    Accepted("pandas udf", lambda s, f, o: f.select("id", pandas_length("name"))),
    Accepted("mapInPandas", lambda s, f, o: f.select("id", "x").mapInPandas(add_one, "id long, x double")),
    Accepted("mapInArrow", lambda s, f, o: f.mapInArrow(arrow_rows, "id long, k long").where("k > 0")),
    Accepted("inner join", lambda s, f, o: f.join(o, "k")),
    Accepted("left join", lambda s, f, o: f.join(F.broadcast(o), "k", "left")),
    Accepted("semi join", lambda s, f, o: f.join(o, "k", "semi")),
    Accepted("anti join", lambda s, f, o: f.join(o, "k", "anti")),
    Accepted("cross join", lambda s, f, o: f.crossJoin(o.select("label"))),
    Accepted(
        "join on a range of values", lambda s, f, o: f.join(o, f["x"] > o["weight"], "left").select("id", "label")
    ),
    Accepted("two joins", lambda s, f, o: f.join(o, "k", "left").join(o.select("k").distinct(), "k")),
    Accepted("join with an aggregate", lambda s, f, o: f.join(o.groupBy("k").agg(F.max("label"), F.count("*")), "k")),
    Accepted(
        "join with set operations",
        lambda s, f, o: f.join(o.select("k").union(s.range(3)).intersect(s.range(9)).subtract(s.range(1)), "k"),
    ),
    Accepted(
        "join with a full join",
        lambda s, f, o: f.join(o.join(s.range(5), o["k"] == F.col("id"), "full").select("k"), "k"),
    ),
    Accepted("join with a sorted frame", lambda s, f, o: f.join(o.sort("k"), "k")),
    Accepted("join with SQL", lambda s, f, o: f.join(s.sql("select 1 as k, 'x' as c"), "k", "left")),
    Accepted("join with values", lambda s, f, o: f.join(s.sql("values (1, 2), (2, 3) as t(k, v)"), "k")),
    Accepted("join with mapInPandas", lambda s, f, o: f.join(o.mapInPandas(same_rows, OTHER), "k")),
    Accepted("join with a checkpoint", lambda s, f, o: f.join(o.localCheckpoint(), "k")),
    Accepted(
        "literals with line breaks", lambda s, f, o: f.select("id", F.lit("a\nb").alias("x\ny"), F.lit("\n").alias("z"))
    ),
    Accepted(
        "names of refused functions",
        lambda s, f, o: f.select("id", F.lit("rand()").alias("now()"), F.lit(1).alias("uuid")),
    ),
    Accepted(
        "column named like a time", lambda s, f, o: f.withColumn("current_date", F.lit(1)).select("id", "current_date")
    ),
    Accepted("time of a column", lambda s, f, o: f.select("id", F.unix_timestamp("at"))),
    Accepted("session's user", lambda s, f, o: f.select("id", F.current_user())),
    Accepted("watermark", lambda s, f, o: f.withWatermark("at", "1 hour").select("id")),
    Accepted("registered udf", lambda s, f, o: add_registered(s, f, F.udf(lambda value: value, "long")), "classic"),
]


def refuse(spark: Any, build: Build) -> UnsupportedPlanError:
    """Return the error with which a step is refused."""
    frame, marker = marked(over_frame(spark))
    built = build(spark, frame, other_frame(spark))
    with pytest.raises(UnsupportedPlanError) as told:
        require_row_wise(built, marker, "days")
    return told.value


def check_refused(spark: Any, case: Refused) -> None:
    error = refuse(spark, case.build)
    assert re.search(case.found, error.operation), str(error)
    assert str(error).startswith(
        f"Expected step 'days' to consist of operations that can be computed row by row, found {error.operation}; "
    )


def accept(spark: Any, build: Build) -> None:
    """Check that a step is accepted."""
    frame, marker = marked(over_frame(spark))
    require_row_wise(build(spark, frame, other_frame(spark)), marker, "days")


def check_accepted(spark: Any, build: Build) -> None:
    """Check that a step is accepted and that its parts give the rows of the whole."""
    accept(spark, build)
    whole, parts = rows_of(spark, over_frame(spark), other_frame(spark), build)
    assert whole == parts


def rows_of(spark: Any, over: Any, other: Any, build: Build) -> tuple[list[str], list[str]]:
    """Return the sorted rows of a step, for its whole input and for three parts of it."""
    parts = [build(spark, over.where(F.col("id") % 3 == i), other) for i in range(3)]
    frames = [build(spark, over, other).select("*", F.lit(True).alias("is_whole"))]
    frames += [part.select("*", F.lit(False)) for part in parts]
    rows = [tuple(row) for row in functools.reduce(lambda a, b: a.union(b), frames).collect()]
    return tuple(sorted(repr(row[:-1]) for row in rows if row[-1] is is_whole) for is_whole in (True, False))  # type: ignore[return-value]


Step = Callable[[Any, Any], Any]

ROW_WISE_STEPS: list[Step] = [
    lambda f, o: f.withColumn("x", F.col("id") * 3 + F.col("k")),
    lambda f, o: f.where(F.col("id") % 7 != 2),
    lambda f, o: f.select("*", F.explode("tags").alias("tag")).drop("tag"),
    lambda f, o: f.select("*", F.explode_outer("tags").alias("tag")).drop("tag"),
    lambda f, o: f.join(o.select("k", "weight"), "k", "left").drop("weight"),
    lambda f, o: f.join(o.select("k").distinct(), "k"),
    lambda f, o: f.join(o, "k", "semi"),
    lambda f, o: f.join(o.where("k = 1"), "k", "anti"),
    lambda f, o: f.crossJoin(o.groupBy("weight").count().where("weight > 3").select("count")).drop("count"),
    lambda f, o: f.alias("other").where(F.col("other.k") < 9),
    lambda f, o: f.fillna({"name": "none"}).hint("broadcast"),
    lambda f, o: f.withColumn("k", (F.col("k") + F.col("id")) % 4),
    lambda f, o: f.mapInArrow(same_rows, f.schema),
]
REFUSED_STEPS: list[Step] = [
    lambda f, o: f.distinct(),
    lambda f, o: f.limit(20),
    lambda f, o: f.union(f),
    lambda f, o: f.withColumn("r", F.row_number().over(by_k())).drop("r"),
    lambda f, o: f.withColumn("x", F.rand()),
    lambda f, o: f.join(o.limit(1), "k", "semi"),
    lambda f, o: f.join(f.select("k"), "k", "semi"),
    lambda f, o: f.repartition(2),
]


def random_step(seed: int, *, is_refused: bool = False) -> Build:
    """Return a chain of row-wise operations, with one other operation in it if that is asked for."""
    chosen = random.Random(seed)
    steps = [chosen.choice(ROW_WISE_STEPS) for _ in range(chosen.randint(2, 5))]
    if is_refused:
        steps.insert(chosen.randint(0, len(steps)), REFUSED_STEPS[seed % len(REFUSED_STEPS)])
    return lambda spark, frame, other: functools.reduce(lambda built, step: step(built, other), steps, frame)
