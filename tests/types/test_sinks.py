"""
Rows of random types and values in each sink, read back by the target's own library and compared with plain Spark.

A failure names its seed; ``SEED=<seed> make soak ARGS="tests/types -k <sink>"`` repeats it. In ``make soak`` the tests
take ten minutes, with seeds that are new each time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import folder_for, named_in_failure, new_seeds
from tests.types import places
from tests.types.cases import NAMES, ROWS, TypeCase
from tests.types.draws import nested, varied
from tests.types.outcomes import REFUSED, Place, outcomes
from tests.types.test_types import LOST, RESULTS, recorded_in, typed_session

pytestmark = pytest.mark.spark
SINKS: dict[str, Place] = {
    "`ParquetSink`": places.parquet_sink_in_arrow,
    "`DeltaSink`": places.delta_sink,
    "`DeltaSink` with `upsert_by`": places.delta_upserts,
    "`IcebergSink`": places.iceberg_sink,
    "`SqlSink`, SQLite": places.sqlite_sink,
}
POSTGRES = "`SqlSink`, PostgreSQL"
SEEDS = (1,)
"""Seeds of ``make test``."""
SOAK_SECONDS = 100.0
"""Time of each of the six sinks."""


def drawn(chance: random.Random, name: str) -> list[TypeCase]:
    """Draw some types that a sink has, with values of them."""
    known = recorded_in(RESULTS)["sinks"][name]
    plain = [case for case in NAMES.values() if known[case.name] != REFUSED and case.values]
    chosen = chance.sample(plain, chance.randint(2, 5))
    cases = [varied(chance, case.without(LOST.get(name, ()))) for case in chosen]
    if not name.startswith("`SqlSink`"):
        cases = [_nest_for(chance, name, case) if chance.random() < 0.5 else case for case in cases]
    return cases


def _nest_for(chance: random.Random, name: str, case: TypeCase) -> TypeCase:
    """Return a nest of a type that the library of a sink stores, or the type itself."""
    # PyIceberg has no null lists and maps of structs, and deltalake creates no table with times without a zone in maps.
    if name == "`IcebergSink`" and case.name.startswith("struct"):
        return case
    found = nested(chance, case)
    return case if name.startswith("`DeltaSink`") and found.name == "map of timestamp_ntz" else found


def compare(spark: Any, name: str, place: Place, folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    with named_in_failure(seed):
        cases = drawn(chance, name)
        found = outcomes(spark, place, cases, folder_for(folder, seed), rows=chance.randint(1, 3 * ROWS))
        assert REFUSED not in found.values(), found


@pytest.fixture
def spark() -> Iterator[Any]:
    with typed_session() as session:
        yield session


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SINKS)
def test_rows_of_a_sink_are_those_of_plain_spark(spark: Any, tmp_path: Path, name: str, seed: int) -> None:
    compare(spark, name, SINKS[name], tmp_path, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_in_postgres_are_those_of_plain_spark(spark: Any, tmp_path: Path, postgres_url: str, seed: int) -> None:
    compare(spark, POSTGRES, partial(places.sql_sink, url=postgres_url), tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*SINKS, POSTGRES])
def test_rows_of_a_sink_are_those_of_plain_spark_for_a_long_time(
    spark: Any, tmp_path: Path, postgres_url: str, name: str
) -> None:
    place = SINKS.get(name) or partial(places.sql_sink, url=postgres_url)
    for seed in new_seeds(SOAK_SECONDS):
        compare(spark, name, place, tmp_path, seed)
