"""The operator of a stage with state: what it takes, and what it refuses before any work."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_statecheck import DataFrameSource, ParquetSink, Stage
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    StateMigrationError,
    StorageError,
)
from airflow_provider_statecheck.hooks import relayed_stage, submitted_stage
from airflow_provider_statecheck.operators import checkpointed
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator, CheckpointedStageOperator
from airflow_provider_statecheck.operators.spark_submit import CheckpointedStageSubmitOperator
from airflow_provider_statecheck.spark.stages import planning
from airflow_provider_statecheck.state.backends import FsStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.interpreter import modules_loaded_by
from tests.unit.operators import stages_of_test
from tests.unit.operators.test_registration import make_context

PLACE = "tests.unit.operators.stages_of_test"
DATE = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT: dict[str, Any] = {"dag_run": SimpleNamespace(logical_date=DATE)}

DAG_FILE = """
from datetime import datetime, timedelta
from airflow.sdk import DAG
from airflow_provider_statecheck import *


class Balance(KeyedProcessFunction):
    state = ValueStateDescriptor("balance", int, 0, ttl=StateTtlConfig(timedelta(days=1)))

    def process_element(self, value, context):
        return ()


class Named(RichMapFunction, CheckpointedFunction):
    state = ListStateDescriptor("seen", dict[str, tuple[int, ...]])

    def initialize_state(self, context): ...
    def snapshot_state(self, context): ...
    def map(self, value): return value


def of(source):
    return Stage().source(source).map(Named(), output="a string").key_by("a").process(Balance(), output="a string")


with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)):
    sources = [ParquetSource("s3://lake/a/", bytes_per_increment="2 GiB"), CsvSource("s3://lake/b", schema="a int")]
    sources += [JsonSource("s3://lake/c", schema="a int"), DataFrameSource([1], lambda spark, split: spark.range(1))]
    for number, source in enumerate(sources):
        stage = of(source).key_by("a").aggregate(total=Sum("b"), n=Count(), least=Min("b"), most=Max("b"))
        stage = stage.sink(ParquetSink("s3://lake/out"))
        CheckpointedStageOperator(task_id=f"t{number}", stage=stage, checkpoint_interval="auto")
    CheckpointedStageSubmitOperator(task_id="submitted", stage="pipelines.balances:stage")
"""


def make(stage: Any, **arguments: Any) -> CheckpointedStageOperator:
    return CheckpointedStageOperator(task_id="t", stage=stage, checkpoint_dir="memory://statecheck", **arguments)


def test_a_dag_with_stages_loads_neither_spark_nor_arrow() -> None:
    loaded = {name.partition(".")[0] for name in modules_loaded_by(DAG_FILE)}
    assert "airflow_provider_statecheck" in loaded
    assert not loaded & {"pyspark", "py4j", "pyarrow", "pandas", "numpy", "xxhash", "fastapi", "alembic"}


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (f"{PLACE}:without_a_source", "Expected a stage with a source"),
        (stages_of_test.without_a_key, "found an incomplete one"),
        (f"{PLACE}:not_a_stage", "Expected a Stage at .*, found int"),
        (f"{PLACE}:nothing", "found none: .* has no attribute 'nothing'"),
        ("no_such_module:stage", "No module named 'no_such_module'"),
        ("tests.unit.operators.stages_of_test", "as module:attribute, found 'tests"),
        (5, "Expected a Stage, or its location as module:attribute, found int"),
    ],
)
def test_wrong_stage_fails_without_a_retry_before_anything_is_asked(stage: Any, message: str) -> None:
    # A checkpoint_dir that is wrong too would be told first if anything were prepared first.
    operator = CheckpointedStageOperator(task_id="t", stage=stage, num_retained=-1)
    with pytest.raises(AirflowFailException, match=message):
        operator.execute(CONTEXT)


def test_error_of_the_users_own_while_the_stage_is_made_is_shown_as_it_is() -> None:
    with pytest.raises(ValueError, match="planned"):
        make(f"{PLACE}:failing").execute(CONTEXT)


@pytest.mark.parametrize("kind", [StateMigrationError, SourceChangedError])
def test_trouble_that_no_retry_can_mend_fails_the_task_for_good(kind: type[Exception], monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise kind("planned")

    operator = make(stages_of_test.stage)
    monkeypatch.setattr(CheckpointedStageOperator, "prepare", refuse)
    with pytest.raises(AirflowFailException, match="planned"):
        operator.execute(CONTEXT)


@pytest.mark.parametrize("stage", [stages_of_test.stage, f"{PLACE}:stage", f"{PLACE}:made"], ids=["it", "at", "made"])
@pytest.mark.parametrize(("given", "uid"), [(None, "task"), ("mine", "mine")])
def test_uid_is_the_task_id_whatever_the_stage_is_called(
    stage: Any, given: str | None, uid: str, monkeypatch: Any
) -> None:
    def loaded(*arguments: Any, **options: Any) -> Any:
        asked.append(load_stage(*arguments, **options).parallelism)
        return load_stage(*arguments, **options)

    def stop(prepared: Any) -> None:
        asked.append(prepared.registration.uid)
        raise RuntimeError("far enough")

    asked, load_stage = list[Any](), planning.load_stage
    monkeypatch.setattr(planning, "load_stage", loaded)
    operator = make(stage, uid=given, parallelism=3)
    monkeypatch.setattr(checkpointed, "push_link", lambda *_: None)
    monkeypatch.setattr(
        CheckpointedStageOperator, "prepare", lambda self, _: stop(checkpointed.prepare_stage(self, make_context()))
    )
    with pytest.raises(RuntimeError, match="far enough"):
        operator.execute(CONTEXT)
    assert asked == [3, uid]


def test_nothing_of_a_stage_reaches_airflows_database() -> None:
    with DAG("d", schedule=None, start_date=DATE) as dag:
        operator = make(stages_of_test.stage)
    assert stages_of_test.SECRET not in json.dumps(DagSerialization.to_dict(dag))
    assert not {"stage", "op_kwargs['stage']"} & set(operator.template_fields)
    assert stages_of_test.SECRET not in repr(operator.stage)
    assert stages_of_test.SECRET not in repr([getattr(operator, name) for name in operator.template_fields])


def test_mapped_task_is_serialised_alike_each_time_the_dag_is_parsed() -> None:
    """Another text would be another version of the Dag."""

    def parse() -> str:
        stage = (
            Stage("s").source(DataFrameSource([1], lambda spark, _: spark.range(1))).sink(ParquetSink("s3://lake/a"))
        )
        with DAG("d", schedule=None, start_date=DATE) as dag:
            CheckpointedStageOperator.partial(task_id="t", stage=stage).expand(map_key=["eu", "us"])
        return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)

    assert parse() == parse()


def test_the_place_holder_says_that_it_is_none() -> None:
    with pytest.raises(ValueError, match="Expected the Airflow operator to run the stage"):
        make(stages_of_test.stage).python_callable()


SUBMITTED = "pipelines.balances:stage"


class FailedStage:
    """A submitted stage whose driver says why it failed."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def failure(self) -> str:
        return self._reason

    def close(self, *_: object) -> bool:
        return True

    def relaying(self) -> AbstractContextManager[None]:
        return nullcontext()

    def log_checkpoints(self) -> None: ...

    def require_end(self) -> None: ...

    def kept(self) -> str:
        return "nothing"

    def stopped_with(self) -> None: ...


def make_submit(**arguments: Any) -> CheckpointedStageSubmitOperator:
    return CheckpointedStageSubmitOperator(task_id="t", stage=SUBMITTED, **arguments)


@pytest.fixture
def end_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], BaseException]:
    """Execute an operator whose driver fails with a reason, and return the error of the task."""

    def end_with(reason: str) -> BaseException:
        monkeypatch.setattr(relayed_stage, "RelayedStage", lambda *_, **__: FailedStage(reason))
        with pytest.raises((RuntimeError, AirflowFailException)) as raised:
            make_submit(package_dir=str(tmp_path)).execute({"task_state_store": None})  # type: ignore[typeddict-item]
        return raised.value

    def fail(*_: object) -> None:
        raise RuntimeError("spark-submit ended with 1")

    prepared = SimpleNamespace(
        registration=SimpleNamespace(owner=None),
        driver=None,
        on_overlap=None,
        storage=CheckpointStorage.open("memory://t"),
    )
    monkeypatch.setattr(CheckpointedStageSubmitOperator, "prepare", lambda *_: prepared)
    monkeypatch.setattr(submitted_stage, "driver_access", lambda _: nullcontext())
    monkeypatch.setattr(SparkSubmitOperator, "execute", fail)
    return end_with


@pytest.mark.parametrize("kind", [InvalidConfigurationError, StateMigrationError, SourceChangedError])
def test_reason_of_the_driver_that_no_retry_can_mend_becomes_the_tasks(
    kind: type[Exception], end_with: Callable[[str], BaseException]
) -> None:
    failed = end_with(f"{kind.__name__}: planned: in detail")
    assert type(failed) is AirflowFailException
    assert str(failed) == "planned: in detail"
    error = failed.__cause__
    assert type(error) is kind
    assert isinstance(error.__cause__, RuntimeError)


@pytest.mark.parametrize(
    "reason", ["", f"{StorageError.__name__}: full", "RuntimeError: InvalidConfigurationError: no"]
)
def test_any_other_end_of_the_driver_is_retried(reason: str, end_with: Callable[[str], BaseException]) -> None:
    assert type(end_with(reason)) is RuntimeError


def test_place_of_the_stage_is_templated() -> None:
    assert "stage" in make_submit().template_fields


def test_application_of_the_users_own_is_refused() -> None:
    with pytest.raises(TypeError, match="application"):
        make_submit(application="job.py")


def test_what_the_driver_needs_of_the_task_is_in_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpointed, "push_link", lambda *_: None)
    operator = make_submit(
        parallelism=3,
        renamed_uids={"old": "new"},
        allow_non_restored_state=True,
        checkpoint_interval="auto",
        checkpoint_dir=str(tmp_path),
    )
    context = make_context()
    driver, date = operator.prepare(context).driver, context["dag_run"].logical_date
    assert (driver.logical_date, driver.parallelism, driver.checkpoint_interval) == (date, 3, "auto")
    assert (driver.renamed_uids, driver.allow_non_restored_state) == ({"old": "new"}, True)


def test_a_task_has_the_directories_of_the_backend_of_its_stage(monkeypatch: Any) -> None:
    monkeypatch.setattr(
        CheckpointedPySparkOperator, "execute", lambda task, _: (task.checkpoint_dir, task.savepoint_dir)
    )
    declared = replace(stages_of_test.stage, state_backend=FsStateBackend("s3://lake/state"))
    task = CheckpointedStageOperator(task_id="sums", stage=declared, checkpoint_dir="/data/c", savepoint_dir="/data/s")
    assert task.execute(CONTEXT) == ("s3://lake/state", "/data/s")
