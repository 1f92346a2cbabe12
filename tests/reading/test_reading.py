"""
Folders of Parquet files and Delta tables that are read whole, cut, and by Spark or Delta's own library, at random.

A failure names its seed; ``SEED=<seed> make soak ARGS="tests/reading -k <kind>"`` repeats it. In ``make soak`` the
tests take ten minutes, with seeds that are new each time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.tables.schemas import quoted_column
from tests.reading.folders import (
    ARROW,
    NAMES,
    READING,
    ROWS,
    TEXTS,
    WRITING,
    Folder,
    chosen,
    directories,
    one_of,
    write_with_arrow,
    write_with_java,
    write_with_spark,
)
from tests.seeds import folder_for, named_in_failure, new_seeds
from tests.shared_spark import setting, shared_session
from tests.soak import rest_in_soak

log = logging.getLogger(__name__)
pytestmark = pytest.mark.spark

WHOLE: dict[str, Any] = {"bytes_per_increment": None}
CUT: dict[str, Any] = {"row_groups_per_increment": 1}
SEEDS = {"arrow": range(6), "spark": range(3), "java": (0, 6), "delta": range(2)}
"""Seeds of the short tests."""
SOAK_SECONDS = 150.0


@contextlib.contextmanager
def settings(spark: Any, given: dict[str, str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, value in given.items():
            stack.enter_context(setting(spark, name, value))
        yield


def folder_of(spark: Any, kind: str, chance: random.Random, root: Path) -> Folder:
    """Write a folder, and choose how it is read."""
    names, parts = chance.sample(NAMES, chance.randint(2, 5)), chance.choice((0, 0, 1, 2))
    if kind == "spark":
        with settings(spark, chosen(chance, WRITING, 0.5)):
            write_with_spark(spark, chance, names, root, min(parts, len(names) - 1))
    else:
        directory = directories(chance, chance.sample(NAMES, parts), root)
        if kind == "arrow":
            write_with_arrow(chance, names, directory)
        else:
            write_with_java(spark, chance, directory)
    return Folder(path=root, settings=chosen(chance, READING, 0.15))


def schema_of(chance: random.Random, found: Any) -> Any:
    """Return columns in another order and case, some of them missing and one in addition, or none."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    if chance.random() < 0.7:
        return None
    fields = [field for field in found.fields if chance.random() < 0.8] or found.fields[:1]
    chance.shuffle(fields)
    kinds = [StringType() if chance.random() < 0.1 else field.dataType for field in fields]
    renamed = [f.name.swapcase() if chance.random() < 0.2 else f.name for f in fields]
    given = [StructField(name, kind) for name, kind in zip(renamed, kinds, strict=True)]
    return StructType([*given, StructField("in addition", LongType())])


def outcome(read: Callable[[], Any]) -> Any:
    """Return the types and the rows of what is read, or that it is refused."""
    try:
        frame = read()
        columns = sorted(frame.columns)
        rows = frame.select([quoted_column(name) for name in columns]).collect()
        return sorted(_types(frame.schema)), sorted(repr(tuple(row)) for row in rows)
    except Exception as error:  # the classes of Spark and of the source differ
        log.info("Refused: %s", str(error)[:300])
        return "refused"


def require_equal(found: Any, expected: Any, how: Any) -> None:
    """Fail with what differs."""
    if "refused" in (found, expected) or found[0] != expected[0]:
        assert found == expected, how
    differences = [pair for pair in zip(found[1], expected[1], strict=True) if pair[0] != pair[1]]
    assert not differences, how


def all_increments(source: Any, spark: Any) -> Any:
    enumerator, frames = source.open(spark), []
    for increment in iter(enumerator.next_increment, None):
        frames.append(enumerator.load(increment))
        enumerator.finish(increment)
    assert len({_types(frame.schema) for frame in frames}) == 1
    found = frames[0]
    for frame in frames[1:]:
        found = found.unionAll(frame)
    return found


def _types(schema: Any) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.dataType.simpleString()) for field in schema.fields)


def compare_folder(kind: str, seed: int, root: Path) -> None:
    spark, chance = shared_session(), random.Random(seed)
    folder = folder_of(spark, kind, chance, root)
    with settings(spark, folder.settings):
        try:
            schema = schema_of(chance, spark.read.parquet(str(root)).schema)
        except Exception:  # Spark does not read such a folder
            schema = None
        reader = spark.read if schema is None else spark.read.schema(schema)
        expected = outcome(lambda: _selected(reader.parquet(str(root)), schema))
        for limit in (WHOLE, CUT):
            source = ParquetSource(root, schema=schema, **limit)
            found = outcome(functools.partial(all_increments, source, spark))
            require_equal(found, expected, (limit, folder.settings, schema))


def _selected(frame: Any, schema: Any) -> Any:
    return frame if schema is None else frame.select([quoted_column(name) for name in schema.names])


def compare_delta(_kind: str, seed: int, root: Path) -> None:
    spark, chance = shared_session(), random.Random(seed)
    names = chance.sample(NAMES[:-1], 4)
    kinds = [(pa.string(), one_of(*TEXTS)), *(chance.choice(_DELTA) for _ in names[1:])]
    partition_by = names[: chance.randint(1, 2)]
    for _ in range(2):
        columns = {
            name: pa.array([None if chance.random() < 0.2 else make(chance) for _ in range(ROWS)], kind)
            for name, (kind, make) in zip(names, kinds, strict=True)
        }
        write_deltalake(str(root), pa.table(columns), mode="append", partition_by=partition_by)
    # Delta's own library knows one calendar, whatever Spark is set to.
    known = {name: values for name, values in READING.items() if "RebaseMode" not in name}
    with settings(spark, chosen(chance, known, 0.15)):
        expected = pa.table(DeltaTable(str(root)).to_pyarrow_table())
        source = DeltaSource(str(root), files_per_increment=chance.choice((1, 100)))
        found = outcome(lambda: all_increments(source, spark))
        require_equal(found, outcome(lambda: spark.createDataFrame(expected)), source)


_DELTA = tuple(
    each for each in ARROW if each[0] in (pa.int32(), pa.int64(), pa.bool_(), pa.date32(), pa.decimal128(18, 2))
)


def compare(kind: str, seed: int, folder: Path) -> None:
    root = folder_for(folder, seed)
    with named_in_failure(seed):
        (compare_delta if kind == "delta" else compare_folder)(kind, seed, root)


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, seeds in SEEDS.items() for seed in seeds])
def test_an_input_gives_the_same_rows_whole_cut_and_in_its_own_reader(tmp_path: Path, kind: str, seed: int) -> None:
    compare(kind, seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kind", SEEDS)
def test_inputs_give_the_same_rows_for_a_long_time(tmp_path: Path, kind: str) -> None:
    for seed in new_seeds(SOAK_SECONDS):
        compare(kind, seed, tmp_path)


SCANS: dict[str, tuple[dict[str, str], str]] = {
    "base": ({"basePath": ""}, "Day=1"),
    "below a pattern": ({}, "Day=*"),
    "pattern and base": ({"basePath": ""}, "Day=*/*.parquet"),
    "one file": ({}, "Day=1/a.parquet"),
    "recursive": ({"recursiveFileLookup": "true"}, ""),
    "hidden": ({}, "*"),
}


@pytest.mark.parametrize(("options", "below"), rest_in_soak(SCANS.values(), *list(SCANS.values())[:2]))
def test_a_step_over_a_scan_has_the_partition_columns_that_spark_has_found(
    tmp_path: Path, options: dict[str, str], below: str
) -> None:
    spark, root = shared_session(), tmp_path / "in"
    for number, name in enumerate(
        ("Day=1/a", "Day=1/b", "Day=2/a", "_old/a") if below == "*" else ("Day=1/a", "Day=2/a")
    ):
        path = root / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [number, 7], "day": ["in", "file"]}), path, row_group_size=1)
    given = {name: f"{root}/{value}" if name == "basePath" else value for name, value in options.items()}
    scan = spark.read.options(**given).parquet(f"{root}/{below}")
    places: dict[str, Any] = {
        "checkpoint_dir": str(tmp_path / "checkpoints"),
        "metadata": f"sqlite:///{tmp_path}/state.db",
    }
    with StageContext.open(spark, job="scan", **places) as checkpoint:
        copy = checkpoint.snapshot("copy", lambda rows: rows, over=scan)
        require_equal(outcome(lambda: copy), outcome(lambda: scan), options)
