"""Spark repeats tasks that failed after they had written; nothing of what they wrote is counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shared_spark import CONF
from tests.spark.conftest import results_of
from tests.spark.stages.repeated_tasks import committed_of

pytestmark = pytest.mark.soak

ONE_VERTEX, TWO_VERTICES = "nothing", "nothing in two vertices"
SHORT = (ONE_VERTEX, "raise in function", "exit in sink")
LONG = (ONE_VERTEX, "exit in function", "raise in sink")
IN_TWO_VERTICES = (TWO_VERTICES, "exit in function of two vertices", "exit in sink of two vertices")
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=[SHORT, LONG, IN_TWO_VERTICES], ids=["a few ways", "more ways", "two vertices"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What a stage leaves, by what goes wrong, where a task may fail twice; first what it leaves where nothing does."""
    module, folder = "tests.spark.stages.repeated_tasks", tmp_path_factory.mktemp("repeated")
    return results_of(module, folder, request.param, {**CONF, "spark.master": "local[2,3]"})


def test_stage_whose_tasks_fail_once_gives_what_it_gives_without_failures(results: Results) -> None:
    undisturbed, *failed = results.values()
    assert len(undisturbed["rows"]) > 0
    for found in failed:
        assert found["rows"] == undisturbed["rows"]
        assert found["state"] == undisturbed["state"]


def test_files_of_failed_tasks_were_there_and_are_neither_named_nor_left(results: Results) -> None:
    failed = [found for way, found in results.items() if "in sink" in way]
    assert failed
    for found in failed:
        assert len(found["failed"]) == 8, "each of two subtasks fails once in each of four increments"
        assert all(note["staged"] and note["state"] for note in found["failed"])
        staged = [name for note in found["failed"] for name in note["staged"]]
        assert committed_of(staged, found["committed"]) == []
        assert found["staged"] == []
        assert set(found["there"]) <= set(found["named"])
