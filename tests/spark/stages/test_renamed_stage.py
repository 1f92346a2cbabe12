"""A stage that got another uid in its job, by a new name or by another operator: no row of its output comes twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, IncompatibleCheckpointError
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import run_stage
from tests.contracts.operator_uids_contract import owner_of_task
from tests.spark.stages.functions import RunningBalance
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_stage import payments, running, running_stage


def of_task(task_id: str, run: str = "2026-01-01", **changes: Any) -> dict[str, Any]:
    """Return what the task of a Dag with one task registers with."""
    owner = replace(owner_of_task(task_id), run_key=run, run_id=run)
    values = {"uid": task_id, "dag_uids": {task_id: (task_id,)}, "allow_non_restored_state": False, "owner": owner}
    return values | changes


def test_renamed_stage_is_refused_and_goes_on_once_its_former_uid_is_told(tries: StageTries) -> None:
    parts = payments()
    stage = running_stage(tries, RunningBalance())
    tries.write_input(*parts[:2])
    tries.run(stage, **of_task("balances"))
    tries.write_input(*parts[2:])
    with pytest.raises(IncompatibleCheckpointError, match=r"renamed_uids=.*'balances': 'accounts'"):
        tries.run(stage, **of_task("accounts", "2026-01-02"))
    assert tries.rows() == running(parts[:2])
    result = tries.run(stage, **of_task("accounts", "2026-01-02", former_uids=("balances",)))
    assert result.increments == 2
    assert tries.rows() == running(parts)


@pytest.mark.soak
def test_stage_that_may_begin_with_nothing_does_not_write_beside_its_old_output(tries: StageTries) -> None:
    parts = payments()
    stage = running_stage(tries, RunningBalance())
    tries.write_input(*parts)
    tries.run(stage, **of_task("balances"))
    renamed = of_task("accounts", "2026-01-02")
    with pytest.raises(EnvironmentNotReadyError, match="output of 'balances'"):
        tries.run(stage, **renamed | {"allow_non_restored_state": True})
    assert tries.rows() == running(parts)
    # What that try left behind does not keep the stage from its state.
    assert tries.run(stage, **renamed, former_uids=("balances",)).increments == 0
    assert tries.rows() == running(parts)


def numbers(spark: Any, part: int) -> Any:
    return spark.range(10 * part, 10 * part + 10)


def test_script_whose_stage_was_renamed_goes_on_once_it_says_so(spark: Any, tmp_path: Any) -> None:
    def run(uid: str, parts: list[int], day: str, **settings: Any) -> int:
        stage = Stage(uid).source(DataFrameSource(parts, numbers)).sink(ParquetSink(str(tmp_path / "output")))
        places: dict[str, Any] = {
            "checkpoint_dir": str(tmp_path / "checkpoints"),
            "metadata": f"sqlite:///{tmp_path}/state.db",
        }
        return run_stage(spark, stage, job="numbers", run=day, **settings, **places).rows

    run("old", [1, 2], "2026-01-01")
    with pytest.raises(IncompatibleCheckpointError, match="not that of this script"):
        run("new", [1, 2, 3], "2026-01-02")
    assert run("new", [1, 2, 3], "2026-01-02", renamed_uids={"old": "new"}) == 10
    assert spark.read.parquet(str(tmp_path / "output")).count() == 30
