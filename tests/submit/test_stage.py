"""Stages that are submitted: the retry goes on with the increment that failed."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.airflow.dags import payments
from tests.submit.conftest import Pipeline

PLACE = """
from pathlib import Path
import payments

stage = payments.stage_in(Path({folder!r}), {trouble!r})
"""


class StagePipeline(Pipeline):
    """One task that submits a stage."""

    stage = "place:stage"

    def _operator(self) -> dict[str, Any]:
        place = self.work / "place.py"
        place.write_text(PLACE.format(folder=str(self.work), trouble=self.trouble))
        others = super()._operator()
        del others["application"], others["application_args"]
        return {**others, "stage": self.stage, "py_files": f"{payments.__file__},{place}"}

    def rows(self) -> list[tuple[Any, ...]]:
        """Return what a reader of the output sees."""
        files = sorted((self.work / "output").rglob("part-*.parquet"))
        return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())


def lines_of_checkpoints(log: str) -> list[Any]:
    """Return of each line about a checkpoint its id, its attempt and what became of it."""
    return re.findall(r"Checkpoint (\d+) of job .*?, attempt (\d+): (restored;|completed in|failed;)", log)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["local", "client", "cluster"])
def test_failed_stage_is_submitted_again_and_goes_on_with_the_increment_that_failed(pipeline, mode: str) -> None:
    stage: StagePipeline = pipeline(mode, "raise", StagePipeline)
    assert stage.run() != 0
    first = stage.output
    assert stage.run() == 0, stage.output
    assert stage.computed() == ["day 1", "day 2", "day 3", "day 3", "day 4"]
    assert stage.rows() == payments.expected()
    attempts = stage.job().attempts
    assert [a.status for a in attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert "planned" in attempts[0].message
    assert attempts[1].restored_from == 2
    assert first.count("retains checkpoint 2") == 1
    assert lines_of_checkpoints(first) == [("1", "1", "completed in"), ("2", "1", "completed in")]
    assert lines_of_checkpoints(stage.output) == [
        ("2", "2", "restored;"),
        ("4", "2", "completed in"),
        ("5", "2", "completed in"),
    ]


@pytest.mark.soak
def test_driver_that_is_told_to_end_closes_its_attempt_and_the_next_one_goes_on(pipeline) -> None:
    stage: StagePipeline = pipeline("local", "wait", StagePipeline)
    process = stage.start()
    stage.wait_until((stage.work / "trouble").exists)
    os.kill(int((stage.work / "driver").read_text()), signal.SIGTERM)
    assert stage.finish(process) != 0
    assert "DriverTerminatedError" in stage.job().attempts[0].message
    assert stage.run() == 0, stage.output
    assert stage.rows() == payments.expected()
    assert stage.job().attempts[1].restored_from == 2


@pytest.mark.soak
def test_driver_that_finds_no_stage_is_not_submitted_again(pipeline) -> None:
    stage: StagePipeline = pipeline("local", "raise", StagePipeline)
    stage.stage = "place:nothing"
    assert stage.run() != 0
    assert "AirflowFailException: Expected a stage at 'place:nothing', found none" in stage.output
    assert stage.computed() == []
    assert "InvalidConfigurationError" in stage.job().attempts[0].message
