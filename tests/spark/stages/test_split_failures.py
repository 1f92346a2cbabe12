"""Tasks of one job over many increments fail around their records, once each; nothing is counted twice or lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shared_spark import CONF
from tests.spark.conftest import results_of

SHORT = ("files: nothing", "files: exit before", "files: exit after")
IN_FILES = ("files: nothing", "files: raise before", "files: raise after")
IN_MAPS = ("maps: nothing", "maps: exit before", "maps: exit after", "maps: raise after")
IN_ROWS = ("rows: nothing", "rows: raise before", "rows: exit before", "rows: raise after", "rows: exit after")
Results = dict[str, dict[str, Any]]


@pytest.fixture(
    scope="module", params=[SHORT, *(pytest.param(ways, marks=pytest.mark.soak) for ways in (IN_FILES, IN_ROWS))]
)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What a stage leaves, by what goes wrong, where a task may fail twice; first what it leaves where nothing does."""
    module, folder = "tests.spark.stages.repeated_splits", tmp_path_factory.mktemp("splits")
    return results_of(module, folder, request.param, {**CONF, "spark.master": "local[2,3]"})


def test_stage_whose_tasks_fail_around_their_records_gives_what_it_gives_without_failures(
    results: Results,
) -> None:
    undisturbed, *failed = results.values()
    assert len(undisturbed["rows"]) > 0
    for found in failed:
        assert found["failed"]
        assert found["rows"] == undisturbed["rows"]
        assert found["state"] == undisturbed["state"]


def test_files_of_failed_tasks_were_there_and_are_neither_named_nor_left(results: Results) -> None:
    for way, found in results.items():
        assert set(found["there"]) <= set(found["named"]), way
        assert found["staged"] == [], way
        assert not found["records"], way
    has_state = not next(iter(results)).startswith("maps")
    assert all(note["state"] for found in list(results.values())[1:] for note in found["failed"]) or not has_state
