"""
Each type of Spark in each place, as ``docs/reference/types.md`` says.

``make test`` tries a share of the types in each place, and ``make soak`` all. ``RECORD=1 make soak ARGS="tests/types
-n0"`` writes what it finds into ``results.json``, and ``python -m scripts.docs`` the page from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.shared_spark import setting, shared_session
from tests.soak import rest_in_soak
from tests.types import places
from tests.types.cases import CASES, SETTINGS
from tests.types.outcomes import Place, outcomes

pytestmark = pytest.mark.spark
RESULTS = Path(__file__).with_name("results.json")
SHARE = 16
"""One of so many types is tried in each place in ``make test``."""

PLACES: dict[str, dict[str, Place]] = {
    "snapshots": {
        "Snapshot": places.snapshot,
        "Snapshot that executors write": places.snapshot_by_executors,
        "Step in parts": places.step_in_parts,
    },
    "stages": {
        "Functions": places.functions,
        "Keyed state": places.state,
        "Key": places.key,
        "`Max`, `Min`": places.largest,
    },
    "sinks": {
        "`ParquetSink`": places.parquet_sink,
        "`DeltaSink`": places.delta_sink,
        "`DeltaSink` with `upsert_by`": places.delta_upserts,
        "`IcebergSink`": places.iceberg_sink,
        "`SqlSink`, SQLite": places.sqlite_sink,
    },
    "sources": {
        "`ParquetSource`": places.parquet_source,
        "`ParquetSource` that is cut": places.parquet_source_cut,
        "`DeltaSource`": places.delta_source,
        "`IcebergSource`": places.iceberg_source,
    },
}
NAMES = [(group, name) for group, named in PLACES.items() for name in named]
POSTGRES = ("sinks", "`SqlSink`, PostgreSQL")
LOST = {"`SqlSink`, SQLite": places.LOST_IN_SQLITE, "Key": ("'-0.0'",)}
"""Values that a place does not have; as a key, both zeros are one."""


@contextmanager
def typed_session() -> Iterator[Any]:
    """Return the session with all types."""
    with ExitStack() as stack:
        session = shared_session()
        for name, value in SETTINGS.items():
            stack.enter_context(setting(session, name, value))
        yield session


def recorded_in(file: Path) -> Any:
    """Return the recorded outcomes by group, place and type."""
    return json.loads(file.read_text())


@pytest.fixture
def spark() -> Iterator[Any]:
    with typed_session() as session:
        yield session


def compare(spark: Any, group: str, name: str, place: Place, folder: Path, share: int) -> None:
    """Compare the outcome of some types with the recorded ones, or record it."""
    recorded = recorded_in(RESULTS)
    first = [*NAMES, POSTGRES].index((group, name)) % share
    cases = [case.without(LOST.get(name, ())) for case in CASES[first::share]]
    found = outcomes(spark, place, cases, folder)
    if "RECORD" in os.environ:
        known = recorded.setdefault(group, {}).get(name, {})
        recorded[group][name] = {case.name: found.get(case.name, known.get(case.name)) for case in CASES}
        RESULTS.write_text(json.dumps(_ordered(recorded), indent=1, ensure_ascii=False) + "\n")
    assert found == {kind: recorded[group][name][kind] for kind in found}


def _ordered(recorded: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    order = [*NAMES, POSTGRES]
    return {g: {name: recorded[g][name] for each, name in order if each == g and name in recorded[g]} for g in PLACES}


@pytest.mark.parametrize("share", rest_in_soak((SHARE, 1), SHARE))
@pytest.mark.parametrize(("group", "name"), NAMES)
def test_each_type_is_equal_in_each_place_or_refused_before_any_work(
    spark: Any, tmp_path: Path, group: str, name: str, share: int
) -> None:
    compare(spark, group, name, PLACES[group][name], tmp_path, share)


@pytest.mark.parametrize("share", rest_in_soak((SHARE, 1), SHARE))
def test_each_type_is_equal_in_postgres_or_refused_before_any_work(
    spark: Any, tmp_path: Path, postgres_url: str, share: int
) -> None:
    compare(spark, *POSTGRES, partial(places.sql_sink, url=postgres_url), tmp_path, share)
