"""Random histories of a pipeline: no row is lost or counted twice, and no savepoint names output that was retracted."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.spark.connectors.stage_output.source import StageOutputReader
from tests.integration.pipeline_walk import World, load_rows

SEEDS, STEPS = 12, 150


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_row_is_lost_or_counted_twice_whatever_happens_to_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(StageOutputReader, "load_files", load_rows)
    world = World(tmp_path, seed)
    try:
        for _ in range(STEPS):
            world.act()
        world.end()
    except (AssertionError, StateCheckError) as error:
        error.add_note("\n".join(world.log))
        raise
