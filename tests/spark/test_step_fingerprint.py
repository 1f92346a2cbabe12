from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.fingerprint import step_fingerprint
from airflow_provider_statecheck.spark.snapshots.dataframes import read_dataframe, write_dataframe

# Run in processes of their own: DataFrames and builders as a user writes them, with all that a JVM numbers.
STEPS = """
import json, os, sys
from pyspark.sql import functions as F
from airflow_provider_statecheck.spark.fingerprint import step_fingerprint
from tests.sessions import start_session

spark = start_session(json.loads(os.environ["SPARK_CONF"]) | {"spark.master": os.environ["MASTER_URL"]})
spark.sparkContext.setLogLevel("OFF")
# What else this JVM has done moves every counter of its own.
for i in range(int(os.environ["EARLIER"])):
    spark.range(3).select(F.transform(F.array("id"), lambda x: x + i), F.rand()).collect()

WANTED = {"a", "b", "c", "d", "e", None}

@F.udf("string")
def tag(x):
    return "yes" if x in {"p", "q", "r", "s"} else helper(x)

def helper(x):
    return str(x) + "!"

base = spark.createDataFrame([(1, "p"), (2, "z")], "k int, v string")
base.createOrReplaceTempView("base")
table = spark.read.schema("_c0 long").parquet(sys.argv[1])
frames = {
    "range": spark.range(100),
    "udf": base.withColumn("t", tag("v")),
    "lambda": base.select(F.transform(F.array("k"), lambda x: x + 1)),
    "seeds": base.select(F.rand(), F.randn(), F.uuid(), F.shuffle(F.array("k"))).sample(0.5),
    "sql": spark.sql("with q as (select * from base) select a.k from q a join q b on a.k = b.k "
                     "where a.k in (select max(k) from base) and a.k > (select min(k) from base)"),
    "pandas": base.mapInPandas(lambda batches: batches, "k int, v string"),
    "grouped": base.groupBy("k").applyInPandas(lambda part: part, "k int, v string"),
    "snapshot": table.join(base, table["_c0"] == base["k"]),
}
builders = {
    f"build {name}": (lambda frame=frame: helper(frame.where(tag("v") == "yes"))) for name, frame in frames.items()
}
snapshots = {sys.argv[1]: sys.argv[2]}
print(json.dumps({
    name: step_fingerprint(step, version="1", snapshots=snapshots) for name, step in {**frames, **builders}.items()
}))
"""


@pytest.fixture
def fingerprint():
    def measure(step, *, version=None, snapshots=None, **arguments):
        return step_fingerprint(step, version=version, snapshots=snapshots or {}, **arguments)

    return measure


@pytest.mark.soak
def test_every_interpreter_and_jvm_finds_the_same_fingerprints(spark, run_child, tmp_path):
    """Another hash seed, other cores, other work before: only where and when the parent was written differs."""
    found = []
    for number, (seed, master) in enumerate([("0", "local[1]"), ("4711", "local[2]")]):
        uri = f"file://{tmp_path}/{number}/data"
        write_dataframe(spark.range(3), uri)
        script = STEPS.replace("import json, os, sys\n", f"import json, os, sys\nsys.argv = ['', {uri!r}, 'parent']\n")
        found.append(run_child(script, PYTHONHASHSEED=seed, MASTER_URL=master, EARLIER=str(3 * number)))
    assert found[0] == found[1]
    assert len(set(found[0].values())) == len(found[0])


def test_a_changed_parent_changes_its_children_and_an_equal_one_does_not(spark, fingerprint, tmp_path):
    def child(place, parent):
        uri = f"file://{tmp_path}/{place}/data"
        df = read_dataframe(spark, [uri], spark.range(1).schema.json()).where("id > 1")
        return fingerprint(df, snapshots={uri: parent})

    for place in ("first", "second"):
        write_dataframe(spark.range(3), f"file://{tmp_path}/{place}/data")
    assert child("first", "p1") == child("second", "p1")
    assert child("first", "p1") != child("first", "p2")


def test_a_parent_counts_when_a_builder_captures_it_or_a_subquery_reads_it(spark, fingerprint, tmp_path):
    uri = f"file://{tmp_path}/data"
    write_dataframe(spark.range(3), uri)
    parent = read_dataframe(spark, [uri], spark.range(1).schema.json())
    parent.createOrReplaceTempView("fingerprint_parent")
    inside = spark.sql("select 1 where 2 in (select id from fingerprint_parent)")
    for step in (parent, inside, lambda: parent.count()):
        assert fingerprint(step, snapshots={uri: "p1"}) != fingerprint(step, snapshots={uri: "p2"})
    assert fingerprint(spark.range(3), snapshots={uri: "p1"}) == fingerprint(spark.range(3), snapshots={uri: "p2"})


def test_the_number_of_parts_of_a_parent_does_not_matter(spark, fingerprint, tmp_path):
    uris = [f"file://{tmp_path}/{part}/data" for part in range(3)]
    for uri in uris:
        write_dataframe(spark.range(3), uri)

    def child(count, identity="p1"):
        df = read_dataframe(spark, uris[:count], spark.range(1).schema.json()).where("id > 1")
        return fingerprint(df, snapshots=dict.fromkeys(uris, identity))

    assert child(1) == child(2) == child(3)
    assert child(2) != child(2, "p2")
    twice = spark.read.schema("_c0 long").parquet(uris[0], uris[0])
    assert fingerprint(twice) != fingerprint(spark.read.schema("_c0 long").parquet(uris[0]))


def test_a_snapshot_beside_one_whose_name_it_begins_with_is_another(spark, fingerprint, tmp_path):
    write_dataframe(spark.range(3), f"file://{tmp_path}/data2")
    df = spark.read.schema("_c0 long").parquet(f"file://{tmp_path}/data2")
    known = {f"file://{tmp_path}/data": "p1"}
    assert fingerprint(df, snapshots=known) == fingerprint(df)


def test_another_source_path_is_another_step(spark, fingerprint, tmp_path):
    for day in ("1", "2"):
        write_dataframe(spark.range(3), f"file://{tmp_path}/{day}")
    one, two = (spark.read.schema("_c0 long").parquet(f"file://{tmp_path}/{day}") for day in ("1", "2"))
    assert fingerprint(one) != fingerprint(two)


def plans(spark):
    base = spark.range(10).withColumn("b", F.col("id") * 2)
    return {
        "base": base,
        "constant": spark.range(10).withColumn("b", F.col("id") * 3),
        "name": spark.range(10).withColumn("c", F.col("id") * 2),
        "filter": base.where("b > 4"),
        "filtered column": base.where("id > 4"),
        "seed": base.select(F.rand(5)),
        "other seed": base.select(F.rand(6)),
        "metadata": base.select("id", F.col("b").alias("b", metadata={"unit": "m"})),
        "type": base.withColumn("b", F.col("b").cast("int")),
    }


def test_different_plans_differ_and_a_plan_built_again_does_not(spark, fingerprint):
    first = {name: fingerprint(df) for name, df in plans(spark).items()}
    assert len(set(first.values())) == len(first)
    assert {name: fingerprint(df) for name, df in plans(spark).items()} == first


def test_a_long_list_of_columns_is_not_cut_off(spark, fingerprint):
    def wide(last: str):
        return spark.range(1).select(*(F.lit(i).alias(f"c{i}") for i in range(200)), F.col("id").alias(last))

    assert fingerprint(wide("x").drop("x", "y")) == fingerprint(wide("x").drop("x", "y"))
    assert fingerprint(wide("x").select("c1")) != fingerprint(wide("y").select("c1"))


@pytest.mark.parametrize("kind", ["plan", "builder", "captured"])
def test_a_changed_udf_is_a_changed_step(spark, fingerprint, kind):
    def measure(body, result="long"):
        function = F.udf(body, result)
        df = spark.range(3).select(function("id").alias("x"))
        steps = {"plan": df, "builder": lambda: spark.range(3).select(function("id")), "captured": lambda: df.count()}
        return fingerprint(steps[kind])

    assert measure(lambda x: x + 1) == measure(lambda x: x + 1)
    assert measure(lambda x: x + 1) != measure(lambda x: x + 2)
    assert measure(lambda x: x + 1) != measure(lambda x: x + 1, "int")


def test_a_changed_function_over_batches_is_a_changed_step(spark, fingerprint):
    def measure(function):
        return fingerprint(spark.range(3).mapInPandas(function, "id long"))

    assert measure(lambda b: b) == measure(lambda b: b)
    assert measure(lambda b: b) != measure(lambda b: iter(list(b)))


def test_version_and_salt_count(spark, fingerprint):
    def build():
        return spark.range(3)

    found = [
        fingerprint(build),
        fingerprint(build, version="1"),
        fingerprint(build, version="2"),
        fingerprint(build, salt="x"),
    ]
    assert len(set(found)) == 4


def test_a_run_id_in_a_closure_does_not_count(spark, fingerprint):
    def make(run_id):
        return lambda: spark.range(3).withColumn("run", F.lit(run_id))

    assert fingerprint(make("run-1")) == fingerprint(make("run-2"))


def test_a_step_that_is_neither_function_nor_dataframe_is_refused(fingerprint):
    with pytest.raises(InvalidConfigurationError, match="found int"):
        fingerprint(3)
