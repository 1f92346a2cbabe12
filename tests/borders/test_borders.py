"""
Stages over tables with awkward names and changing types, each compared with plain Spark.

A failure names its seed. ``SEED=<seed> make soak ARGS="tests/borders -k <kind>"`` repeats it. In ``make soak`` each
kind takes ten minutes, with seeds that are new each time.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck import DataFrameSource, ParquetSink, Stage, run_stage
from airflow_provider_statecheck.exceptions import SourceChangedError, StateMigrationError, UnsupportedStateError
from airflow_provider_statecheck.gateway.time_travel import find_checkpoint
from airflow_provider_statecheck.spark.stages.stage import Count, Max, StageSettings, Sum
from airflow_provider_statecheck.spark.tables.schemas import quoted_column
from airflow_provider_statecheck.state.reading import state_reader
from tests.borders.chains import NAMES, TWINS, Chain, passed, source_rows, summed
from tests.seeds import named_in_failure, new_seeds
from tests.shared_spark import shared_session

pytestmark = pytest.mark.spark
SEEDS = {"chains": (8,), "types": (2, 18)}
"""Seeds of ``make test``."""
SOAK_SECONDS = 600.0
ROWS, SPLITS = 24, 2


def tried(kind: str, folder: Path, seed: int) -> None:
    """Run a case; a failure tells its seed."""
    with named_in_failure(seed):
        CASES[kind](shared_session(), folder / str(seed), seed)


def chain_case(spark: Any, folder: Path, seed: int) -> None:
    """Compare the rows of a chain of functions over one to four shuffles."""
    chance = random.Random(seed)
    is_sensitive = chance.random() < 0.5
    spark.conf.set("spark.sql.caseSensitive", str(is_sensitive).lower())
    try:
        names = chance.sample(NAMES, 3) + (chance.sample(TWINS, 2) if is_sensitive else chance.sample(TWINS, 1))
        chance.shuffle(names)
        columns = source_rows(chance, names)

        def load(session: Any, split: int) -> Any:
            low = split * ROWS // SPLITS
            rows = session.range(low, low + ROWS // SPLITS).selectExpr(*columns)
            # Splits have the columns in any order.
            return rows if split == 0 else rows.select([quoted_column(name) for name in reversed(names)])

        stage = Stage("chain", max_parallelism=8, parallelism=2).source(DataFrameSource(list(range(SPLITS)), load))
        chain = Chain(stage, spark.range(ROWS).selectExpr(*columns))
        for _ in range(chance.randint(1, 4)):
            chain = chance.choice((passed, passed, summed))(chance, chain)
        target = str(folder / "out")
        settings = StageSettings(combines=chance.choice((True, False, None)))
        run_stage(spark, chain.stage.sink(ParquetSink(target)), job="job", settings=settings, **places(folder))
        found = spark.read.parquet(target)
        assert sorted(found.columns) == sorted(chain.names)
        assert rows_of(found.select([quoted_column(name) for name in chain.names])) == rows_of(chain.rows)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def places(folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    return {"checkpoint_dir": str(folder / "checkpoints"), "metadata": f"sqlite:///{folder}/state.db"}


def rows_of(frame: Any) -> list[str]:
    return sorted(map(repr, (tuple(row) for row in frame.collect())))


FAMILIES = (
    ("tinyint", "smallint", "int", "bigint", "float", "double"),
    ("int", "bigint", "decimal(5, 2)", "decimal(12, 4)", "decimal(38, 0)", "decimal(38, 18)"),
    ("date", "timestamp", "timestamp_ntz"),
    ("array<int>", "array<bigint>", "struct<a: int>", "struct<a: bigint>"),
    ("string", "boolean", "binary", "void"),
)
TYPES = tuple(dict.fromkeys(kind for family in FAMILIES for kind in family))
TEXTS = {
    "boolean": "true",
    "date": "2026-01-02",
    "timestamp": "2026-01-02 03:04:05",
    "timestamp_ntz": "2026-01-02 03:04:05",
}


def value_of(kind: str, number: int) -> str:
    """Return an expression of a type."""
    if kind == "void":
        return "null"
    if kind.startswith("array"):
        return f"cast(array({number}) as {kind})"
    if kind.startswith("struct"):
        return f"cast(named_struct('a', {number}) as {kind})"
    return f"cast('{TEXTS.get(kind, number)}' as {kind})"


def type_case(spark: Any, folder: Path, seed: int) -> None:
    """Compare the aggregates of splits, within a run or over two, whose type changes; a refusal names both types."""
    chance = random.Random(seed)
    # Within a family, types are often wider or narrower than others.
    first, second = chance.choices(chance.choice((*FAMILIES, *FAMILIES, TYPES)), k=2)
    kinds, runs = (first, second), chance.choice((1, 2))

    def load(session: Any, split: int) -> Any:
        columns = [f"{value_of(kinds[split], split + 1)} as v", "1L as k"]
        return session.sql(f"select {', '.join(columns if split else columns[::-1])}")

    order = chance.choice(("max(v)", "count(v)", "sum(v)"))
    function = {"max(v)": Max("v"), "count(v)": Count("v"), "sum(v)": Sum("v")}[order]
    if (order == "sum(v)" and not all(_is_number(kind) for kind in kinds)) or (order == "max(v)" and _is_nested(kinds)):
        function, order = Count("v"), "count(v)"
    refusal = None
    try:
        for run in range(runs):
            splits = [0, 1] if runs == 1 else list(range(run + 1))
            stage = Stage("types", max_parallelism=8, parallelism=1).source(DataFrameSource(splits, load)).key_by("k")
            run_stage(spark, stage.aggregate(x=function), job="job", run=f"2026-01-0{run + 1}", **places(folder))
    except (SourceChangedError, StateMigrationError, UnsupportedStateError) as error:
        refusal = str(error)
    if refusal is not None:
        assert not _is_widened(kinds), refusal
        assert first != second or first in UNSUPPORTED, refusal
        assert all(kind.replace(" ", "") in refusal for kind in kinds) or "->" in refusal or first in UNSUPPORTED, (
            refusal
        )
        return
    rows = load(spark, 0).unionByName(load(spark, 1)).groupBy("k").agg({"v": order.partition("(")[0]})
    pointer = find_checkpoint("job", "types", metadata=places(folder)["metadata"])
    (found,) = state_reader.read_state(pointer, "aggregates").read_all().to_pylist()
    assert _plain(found["value"]["x"]) == _plain(rows.collect()[0][1]), (kinds, order)


UNSUPPORTED = frozenset({"void"})
"""Types that state cannot have."""


def _is_number(kind: str) -> bool:
    return kind.startswith(("tiny", "small", "int", "big", "float", "double", "decimal"))


def _is_widened(kinds: tuple[str, ...]) -> bool:
    """Return whether the second type is a whole number of as many bytes as the first one, or of more."""
    whole = FAMILIES[0][:4]
    return all(kind in whole for kind in kinds) and whole.index(kinds[0]) <= whole.index(kinds[1])


def _is_nested(kinds: tuple[str, ...]) -> bool:
    return any(kind.startswith(("array", "struct", "void", "bin")) for kind in kinds)


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


CASES = {"chains": chain_case, "types": type_case}


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, seeds in SEEDS.items() for seed in seeds])
def test_rows_are_those_of_plain_spark(tmp_path: Path, kind: str, seed: int) -> None:
    tried(kind, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("kind", CASES)
def test_rows_are_those_of_plain_spark_for_ten_minutes(tmp_path: Path, kind: str) -> None:
    for seed in new_seeds(SOAK_SECONDS):
        tried(kind, tmp_path, seed)
