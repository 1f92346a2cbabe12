"""What a task registers with: the run that it is, the turn that it takes, and the copy that it works on."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import OnOverlap
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.operators import checkpointed
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator, StageTerminatedError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.operators.test_identity import make_context
from tests.unit.written_stage import WrittenStage

RUN = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def stage(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> WrittenStage:
    """Return the job that is forked; tasks reach its coordinator."""
    stage = WrittenStage(CheckpointStorage.open(f"file://{tmp_path}"))
    monkeypatch.setattr(transport, "airflow_gateway", lambda: stage.coordinator)
    monkeypatch.setattr(transport, "is_orm_open", lambda: False)
    monkeypatch.setattr(checkpointed, "push_link", lambda *_: None)
    return stage


def prepared(stage: WrittenStage, **arguments: Any) -> checkpointed.PreparedStage:
    operator = CheckpointedPySparkOperator(
        task_id="t",
        python_callable=lambda: None,
        uid="aggregate",
        checkpoint_dir=stage.storage.base_uri,
        **arguments,
    )
    return checkpointed.prepare_stage(operator, make_context())


def test_a_task_registers_with_what_it_is_given_for_runs(stage: WrittenStage) -> None:
    task = prepared(stage, job="sales", retained_runs=3, on_overlap="wait")
    assert (task.registration.retained_runs, task.on_overlap) == (3, OnOverlap.WAIT)
    assert (task.registration.job_name, task.registration.restore_from) == ("sales", None)


def test_a_task_registers_with_the_uids_of_its_dag_and_with_those_it_had(
    stage: WrittenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DAG("dag"):
        CheckpointedPySparkOperator(task_id="other", python_callable=lambda: None)
        monkeypatch.setattr(transport, "is_orm_open", lambda: True)
        asked = prepared(stage, renamed_uids={"sums": "aggregate"}, allow_non_restored_state=True).registration
    assert asked.job_name.startswith("test/")
    assert (asked.uid, asked.former_uids, asked.allow_non_restored_state) == ("aggregate", ("sums",), True)
    assert asked.dag_uids == {"other": ("other",), "t": ("aggregate", "sums")}


@pytest.mark.parametrize(("given", "expected"), [(True, True), ("True", True), (False, False), ("False", False)])
def test_a_task_registers_for_a_savepoint_at_its_end_as_it_is_told_or_a_template_says(
    stage: WrittenStage, given: bool | str, expected: bool
) -> None:
    task = prepared(stage, savepoint_at_end=given, savepoint_dir="s3://lake/savepoints")
    assert task.registration.savepoint_at_end is expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"savepoint_at_end": True}, "set savepoint_dir"),
        ({"savepoint_at_end": "later", "savepoint_dir": "s3://lake/savepoints"}, "true or false, found 'later'"),
    ],
)
def test_a_savepoint_at_the_end_that_cannot_be_taken_is_refused(
    stage: WrittenStage, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=message):
        prepared(stage, **arguments)


@pytest.mark.parametrize(("fork", "name"), [(None, f"sales@{RUN}"), ("again", "sales@again")])
def test_a_fork_is_a_job_of_its_own_that_begins_at_a_checkpoint_of_the_other(
    stage: WrittenStage, fork: str | None, name: str
) -> None:
    stage.run(checkpoints=1)
    asked = prepared(stage, job="sales", from_checkpoint="1", fork=fork).registration
    assert asked.job_name == name
    assert isinstance(asked.restore_from, RestoreSource)
    assert asked.restore_from.mode is RestoreMode.NO_CLAIM
    assert asked.restore_from.pointer.endswith("chk-1")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"from_checkpoint": "1"}, "found no job"),
        ({"from_checkpoint": "1", "job": "sales", "from_savepoint": "s3://lake/savepoint"}, "found both"),
        ({"job": "sales", "fork": "again"}, "name the checkpoint to start from"),
        ({"job": "sales", "from_checkpoint": "newest"}, "found 'newest'"),
    ],
)
def test_a_fork_of_nothing_is_refused(stage: WrittenStage, arguments: dict[str, str], found: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=found):
        prepared(stage, **arguments)


def test_a_task_that_is_told_to_end_while_it_waits_for_its_turn_ends(
    stage: WrittenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = CheckpointedPySparkOperator(task_id="t", python_callable=lambda: None)
    # Airflow's signal handler calls it wherever the main thread is.
    monkeypatch.setattr(operator, "_open_attempt", lambda _: operator.on_kill())
    with pytest.raises(StageTerminatedError):
        operator._register(prepared(stage, job="sales"))
    operator.on_kill()


def test_nothing_of_a_job_is_read_unless_it_is_forked(stage: WrittenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "airflow_gateway", lambda: pytest.fail("asked"))
    assert prepared(stage, job="sales").registration.restore_from is None
