"""A step over Spark Connect counts as unchanged exactly where it does on a session of this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.spark.fingerprint import step_fingerprint
from tests.connect_server import ConnectServer

STEPS = """
from pyspark.sql import functions as F

{lead}
@F.udf("long")
def shifted(value):
    return value + {shift}


def make(spark):
    numbers = spark.range(100)
    return {{
        "udf": numbers.select(shifted("id")),
        "join": numbers.join(numbers.withColumn("b", numbers.id * 2), "id"),
        "lambda": numbers.select(F.transform(F.array("id"), lambda x: x + {shift})),
        "rand": numbers.select(F.rand(), F.randn()),
        "sample": numbers.sample(0.5),
        "rows": spark.createDataFrame([({shift},)], "a long"),
        "files": spark.read.schema("id long").parquet("{path}"),
    }}
"""
CHILD = """
import importlib.util, json, os, sys
from pyspark.sql import SparkSession
from airflow_provider_statecheck.spark.fingerprint import step_fingerprint

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
spec = importlib.util.spec_from_file_location("steps", sys.argv[2])
steps = importlib.util.module_from_spec(spec)
sys.modules["steps"] = steps
spec.loader.exec_module(steps)
made = steps.make(spark)
print(json.dumps({k: step_fingerprint(f, version=None, snapshots=json.loads(sys.argv[3])) for k, f in made.items()}))
"""


@pytest.fixture(scope="module")
def fingerprints(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compute the fingerprints of the steps in a file, in a fresh interpreter."""
    folder = tmp_path_factory.mktemp("steps")
    (folder / "child.py").write_text(CHILD)

    def compute(lead: str = "", shift: int = 1, path: str = "/data/x", snapshots: dict[str, str] | None = None) -> Any:
        (folder / "steps.py").write_text(STEPS.format(lead=lead, shift=shift, path=path))
        done = subprocess.run(
            [sys.executable, "child.py", server.url, "steps.py", json.dumps(snapshots or {})],
            cwd=folder,
            # Bytecode does not notice a change within the second in which it was written.
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return compute


@pytest.fixture(scope="module")
def original(fingerprints) -> dict[str, str]:
    return dict(fingerprints())


@pytest.mark.soak
def test_code_that_only_moved_gives_equal_fingerprints_in_another_process(fingerprints, original) -> None:
    assert fingerprints(lead="# a comment\n\n\nUNUSED = 1\n") == original


@pytest.mark.soak
def test_changed_code_of_a_udf_or_a_lambda_counts_and_nothing_else(fingerprints, original) -> None:
    changed = fingerprints(shift=2)
    assert {name for name in original if changed[name] != original[name]} == {"udf", "lambda"}


def test_path_that_is_read_counts(fingerprints, original) -> None:
    assert fingerprints(path="/data/y")["files"] != original["files"]


@pytest.mark.soak
def test_snapshot_counts_by_its_fingerprint_and_not_by_its_place(fingerprints) -> None:
    a = fingerprints(path="file:///a/data", snapshots={"file:///a/data": "same"})["files"]
    b = fingerprints(path="file:///b/data", snapshots={"file:///b/data": "same"})["files"]
    c = fingerprints(path="file:///b/data", snapshots={"file:///b/data": "other"})["files"]
    assert (a == b, b == c) == (True, False)


def test_computing_it_does_not_change_the_plan(spark) -> None:
    frame = spark.range(3).sample(0.5, 10**12)
    before = str(frame._plan.to_proto(spark.client))
    step_fingerprint(frame, version=None, snapshots={})
    assert str(frame._plan.to_proto(spark.client)) == before


def test_the_number_of_parts_of_a_parent_does_not_matter(spark: Any, tmp_path: Path) -> None:
    paths = [f"file://{tmp_path}/{part}" for part in range(3)]

    def child(count: int, identity: str = "p1") -> str:
        frame = spark.read.schema("id long").parquet(*paths[:count]).where("id > 1")
        return step_fingerprint(frame, version=None, snapshots=dict.fromkeys(paths, identity))

    assert child(1) == child(2) == child(3)
    assert child(2) != child(2, "p2")
