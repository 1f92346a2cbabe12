"""Random walks over runs, clears, retries, renames, repairs, restarts and backfills, each row compared with a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walk.world import World


@pytest.mark.parametrize("seed", range(20))
def test_each_row_of_output_is_what_the_model_says(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    try:
        for _ in range(60):
            world.act()
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}", *world.history]))
        raise
