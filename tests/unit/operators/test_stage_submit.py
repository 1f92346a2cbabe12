"""The operator that submits a stage: what reaches the driver, and which failures are for good."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    StateMigrationError,
    StorageError,
)
from airflow_provider_statecheck.hooks.spark import CheckpointedStageSubmitHook, Shipping
from airflow_provider_statecheck.operators.checkpointed import A_RETRY_CANNOT_HELP
from airflow_provider_statecheck.operators.spark_submit import CheckpointedStageSubmitOperator

PLACE = "pipelines.balances:stage"


class FailedStage:
    """A submitted stage whose driver says why it failed."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def failure(self) -> str:
        return self._reason

    def close(self, *_: object) -> None: ...

    def kept(self) -> str:
        return "nothing"

    def stopped_with(self) -> None: ...


def make(**arguments: Any) -> CheckpointedStageSubmitOperator:
    return CheckpointedStageSubmitOperator(task_id="t", stage=PLACE, **arguments)


def closed_after(failure: str) -> BaseException:
    operator = make()
    with pytest.raises((RuntimeError, *A_RETRY_CANNOT_HELP)) as raised, operator._closing(FailedStage(failure)):  # type: ignore[arg-type]
        raise RuntimeError("spark-submit ended with 1")
    return raised.value


@pytest.mark.parametrize("kind", [InvalidConfigurationError, StateMigrationError, SourceChangedError])
def test_reason_of_the_driver_that_no_retry_can_mend_becomes_the_tasks(kind: type[Exception]) -> None:
    error = closed_after(f"{kind.__name__}: planned: in detail")
    assert type(error) is kind
    assert str(error) == "planned: in detail"
    assert isinstance(error.__cause__, RuntimeError)


@pytest.mark.parametrize(
    "reason", ["", f"{StorageError.__name__}: full", "RuntimeError: InvalidConfigurationError: no"]
)
def test_any_other_end_of_the_driver_is_retried(reason: str) -> None:
    assert isinstance(closed_after(reason), RuntimeError)


def test_place_of_the_stage_is_templated() -> None:
    assert "stage" in make().template_fields


def test_application_of_the_users_own_is_refused() -> None:
    with pytest.raises(TypeError, match="application"):
        make(application="job.py")


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_application_is_put_where_the_driver_finds_it_with_nothing_beside_it(deploy_mode: str, tmp_path: Path) -> None:
    hook = CheckpointedStageSubmitHook.__new__(CheckpointedStageSubmitHook)
    hook._connection = {"deploy_mode": deploy_mode, "master": "spark://host:7077"}
    hook._shipping = Shipping(scratch=tmp_path / "scratch", shared=(tmp_path / "shared").as_uri())
    hook._conf, hook._py_files, hook._files, hook._application_args = {}, None, None, [PLACE]
    application = hook._prepare("statecheck_stage.py")
    folder = tmp_path / ("shared" if deploy_mode == "cluster" else "scratch")
    [script] = folder.rglob("*.py")
    assert [path.name for path in script.parent.iterdir()] == ["statecheck_stage.py"]
    given = hook._application_args[0] if deploy_mode == "cluster" else application
    assert (given, hook._application_args[-1]) == (str(script), PLACE)
    compile(script.read_text(), str(script), "exec")


def test_what_the_driver_needs_of_the_task_is_in_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from airflow_provider_statecheck.operators import checkpointed

    monkeypatch.setattr(checkpointed, "_registration", lambda *_: SimpleNamespace(job_name="job"))
    monkeypatch.setattr(checkpointed, "push_link", lambda *_: None)
    date = datetime(2026, 1, 1, tzinfo=UTC)
    operator = make(
        parallelism=3,
        renamed_uids={"old": "new"},
        allow_non_restored_state=True,
        checkpoint_interval="auto",
        checkpoint_dir=str(tmp_path),
    )
    driver = operator.prepare({"dag_run": SimpleNamespace(logical_date=date)}).driver
    assert (driver.logical_date, driver.parallelism, driver.checkpoint_interval) == (date, 3, "auto")
    assert (driver.renamed_uids, driver.allow_non_restored_state) == ({"old": "new"}, True)
