"""What operators register, and the identity of their stages."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.sdk import DAG, BaseOperator, TaskGroup, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_statecheck.checkpoint.declared_uids import former_uids
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreMode
from airflow_provider_statecheck.checkpoint.records import OnOverlap, Transport
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks import identity, submitted_stage, transport
from airflow_provider_statecheck.hooks.identity import job_name_of, owner_of
from airflow_provider_statecheck.operators import checkpointed
from airflow_provider_statecheck.operators.checkpointed import (
    refuse_shared_uid,
    uid_of,
    uids_by_task,
)
from airflow_provider_statecheck.operators.pyspark import (
    CheckpointedPySparkOperator,
    CheckpointedStageOperator,
)
from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.writing.canonical import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
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
        python_callable=lambda spark, checkpoint: None,
        checkpoint_dir=stage.storage.base_uri,
        **{"uid": "aggregate"} | arguments,
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
        CheckpointedPySparkOperator(task_id="other", python_callable=lambda spark, checkpoint: None)
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
        ({"claim_mode": None}, "claim_mode to be one of no_claim, claim, found None"),
        ({"renamed_uids": ["old"]}, "renamed_uids to be a mapping"),
    ],
)
def test_a_wrong_argument_is_refused(stage: WrittenStage, arguments: dict[str, Any], message: str) -> None:
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


@pytest.mark.parametrize(("is_test", "mode"), [(False, RestoreMode.CLAIM), (True, RestoreMode.NO_CLAIM)])
def test_a_test_run_does_not_claim_the_savepoint_that_it_starts_from(
    stage: WrittenStage, monkeypatch: pytest.MonkeyPatch, is_test: bool, mode: RestoreMode
) -> None:
    stage.run(checkpoints=1)
    taken = CheckpointStates.load(stage.coordinator.describe(job_id_of("sales")).checkpoints[0].location)
    pointer = new_savepoint_uri(stage.storage.base_uri, job_id_of("sales"))
    properties = CheckpointProperties.for_savepoint()
    write_savepoint(taken.storage, taken.document, directory=pointer, checkpoint_id=2, properties=properties)
    monkeypatch.setattr(transport, "is_orm_open", lambda: is_test)
    source = prepared(stage, job="heir", from_savepoint=pointer, claim_mode="claim").registration.restore_from
    assert source is not None
    assert (source.pointer, source.mode) == (pointer, mode)


def test_nothing_of_a_job_is_read_unless_it_is_forked(stage: WrittenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "airflow_gateway", lambda: pytest.fail("asked"))
    assert prepared(stage, job="sales").registration.restore_from is None


DATE = datetime(2026, 1, 1, tzinfo=UTC)


def make_context(**changes: Any) -> dict[str, Any]:
    values = {"logical_date": DATE, "run_id": "scheduled__1", "clear_number": 0, "map_index": -1, "max_tries": 2}
    values |= {"try_number": 1, "partition_key": None, "partition_date": None} | changes
    of_run = ("logical_date", "run_id", "clear_number", "partition_key", "partition_date")
    dag_run = SimpleNamespace(**{k: values[k] for k in of_run})
    ti = SimpleNamespace(
        dag_id="dag", task_id="task", **{k: values[k] for k in ("map_index", "max_tries", "try_number")}
    )
    return {"dag_run": dag_run, "ti": ti}


def test_state_lives_with_the_run_by_default() -> None:
    assert job_name_of(make_context(), None, is_test=False) == "dag/2026-01-01T00:00:00+00:00"


def test_a_run_without_a_logical_date_is_known_by_its_id() -> None:
    assert job_name_of(make_context(logical_date=None), None, is_test=False) == "dag/scheduled__1"


def test_a_run_of_a_partition_is_known_by_its_partition() -> None:
    context = make_context(logical_date=None, partition_key="us|2026-01-01", partition_date=DATE)
    assert job_name_of(context, None, is_test=False) == "dag/us|2026-01-01"
    owner = owner_of(context, None)
    assert (owner.run_key, owner.is_of_partition, owner.partition_date) == ("us|2026-01-01", True, DATE.isoformat())


def test_a_logical_date_precedes_a_partition() -> None:
    owner = owner_of(make_context(partition_key="us", partition_date=DATE), None)
    assert (owner.run_key, owner.is_of_partition, owner.partition_date) == (DATE.isoformat(), False, "")


@pytest.mark.parametrize(("is_open", "transport"), [(True, Transport.IN_PROCESS), (False, Transport.HTTP)])
def test_a_driver_in_its_task_calls_as_the_task_does(
    monkeypatch: pytest.MonkeyPatch, is_open: bool, transport: Transport
) -> None:
    monkeypatch.setattr(identity, "is_orm_open", lambda: is_open)
    assert owner_of(make_context(), None).transport is transport


def test_an_attempt_knows_the_task_instance_of_its_try() -> None:
    context = make_context()
    context["ti"].id = UUID(int=7)
    assert owner_of(context, None).ti_id == str(UUID(int=7))


def test_what_runs_with_the_database_open_never_touches_the_real_job() -> None:
    assert job_name_of(make_context(), "pipeline", is_test=True) == "test/pipeline"


@pytest.mark.parametrize(("job", "dag_id"), [("test/pipeline", "dag"), (None, "test")], ids=["named", "by its dag"])
def test_a_real_job_is_not_named_like_one_of_a_test_run(job: str | None, dag_id: str) -> None:
    """It would be removed as one: unasked, at any age."""
    context = make_context()
    context["ti"].dag_id = dag_id
    with pytest.raises(InvalidConfigurationError, match="without the prefix 'test/'"):
        job_name_of(context, job, is_test=False)
    assert job_name_of(context, job, is_test=True).startswith("test/test/")


def test_a_mapped_task_is_known_by_its_key_and_never_by_its_index() -> None:
    first = uid_of(make_context(map_index=0), None, "north")
    assert first == uid_of(make_context(map_index=7), None, "north") == "task[north]"
    with pytest.raises(InvalidConfigurationError, match="map_key"):
        uid_of(make_context(map_index=0), None, None)


@pytest.mark.parametrize("key", [0, "0"])
def test_the_number_0_is_a_map_key(stage: WrittenStage, key: Any) -> None:
    asked = prepared(stage, map_key=key).registration
    assert (asked.uid, asked.owner.logical_task.partition("/")[2]) == ("aggregate[0]", "task[0]")


@pytest.mark.parametrize(
    ("argument", "value", "found"),
    [
        ("job", 0, "a job that is text in UTF-8, found 0"),
        ("job", ["sales"], "a job that is text"),
        ("job", "None", "found 'None', which a template writes for a missing value"),
        ("uid", "None", "found 'None', which a template writes for a missing value"),
        ("uid", 0, "a uid that is text in UTF-8, found 0"),
        ("from_savepoint", 0, "found 0; give its directory"),
        ("from_checkpoint", 1.5, "found '1.5'; pass one of these forms"),
        ("from_checkpoint", [], r"found '\[\]'; pass one of these forms"),
        ("fork", 0, "name the checkpoint to start from"),
    ],
)
def test_what_a_native_template_gives_in_place_of_a_text_is_refused(
    stage: WrittenStage, argument: str, value: Any, found: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=found):
        prepared(stage, **{"job": "sales", "map_key": "north"} | {argument: value})


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        ("None", "Expected a value for package_dir"),
        ("s3://lake/packages?api_key=planted", "Expected package_dir without credentials"),
        ("https://anna:planted@host/packages", "Expected package_dir without credentials"),
    ],
    ids=["a missing value in a template", "a secret", "a password"],
)
def test_the_package_is_not_shipped_to_what_is_no_directory_without_credentials(
    stage: WrittenStage, monkeypatch: pytest.MonkeyPatch, place: str, refused: str
) -> None:
    task = CheckpointedSparkSubmitOperator(
        task_id="t", application="program.py", package_dir=place, checkpoint_dir=stage.storage.base_uri
    )
    monkeypatch.setattr(submitted_stage, "driver_access", lambda _: nullcontext())
    with pytest.raises(AirflowFailException, match=refused) as caught:
        task.execute(make_context())  # type: ignore[arg-type]
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("value", [None, ""])
def test_a_template_without_a_value_leaves_the_default(stage: WrittenStage, value: str | None) -> None:
    names = ("job", "uid", "map_key", "from_savepoint", "from_checkpoint", "fork")
    asked = prepared(stage, **dict.fromkeys(names, value)).registration
    assert (asked.job_name, asked.uid, asked.restore_from) == (f"dag/{RUN}", "task", None)


def test_a_fork_and_its_checkpoint_may_be_numbers(stage: WrittenStage) -> None:
    stage.run(checkpoints=1)
    asked = prepared(stage, job="sales", from_checkpoint=1, fork=0).registration
    assert asked.job_name == "sales@0"
    assert asked.restore_from is not None
    assert asked.restore_from.pointer.endswith("chk-1")
    released = prepared(stage, job="sales", from_checkpoint=0).registration.restore_from
    assert released is not None
    assert "a retained checkpoint 0 of job 'sales'" in str(released.problem)


def test_a_fork_is_not_named_by_what_a_template_writes_for_a_missing_value(stage: WrittenStage) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected a value for fork, found 'None'"):
        prepared(stage, job="sales", from_checkpoint="1", fork="None")


def test_a_retry_keeps_the_clear_marker() -> None:
    first, retry = owner_of(make_context(), None), owner_of(make_context(try_number=2), None)
    assert first.clear_marker == retry.clear_marker


@pytest.mark.parametrize("change", [{"max_tries": 5}, {"clear_number": 1}], ids=["after its end", "while running"])
def test_a_clear_changes_the_clear_marker(change: dict[str, Any]) -> None:
    assert owner_of(make_context(), None).clear_marker != owner_of(make_context(**change), None).clear_marker


def _callable(task_id: str, **arguments: Any) -> BaseOperator:
    return CheckpointedPySparkOperator(task_id=task_id, python_callable=lambda spark, checkpoint: None, **arguments)


def _submitted(task_id: str, **arguments: Any) -> BaseOperator:
    return CheckpointedSparkSubmitOperator(task_id=task_id, application="program.py", **arguments)


@pytest.mark.parametrize("second", [_callable, _submitted])
def test_two_tasks_of_any_kind_with_one_uid_in_one_job_are_refused(second) -> None:
    with DAG("dag") as dag:
        _callable("one", job="j", uid="u")
        second("two", job="j", uid="u")
    with pytest.raises(InvalidConfigurationError, match="'one' and 'two'"):
        refuse_shared_uid("one", dag.tasks)


@pytest.mark.parametrize(
    "other", [{"job": "k", "uid": "u"}, {"job": "j", "uid": "v"}, {"job": "j", "uid": "u", "map_key": "m"}]
)
def test_another_job_uid_or_map_key_is_another_stage(other: dict[str, str]) -> None:
    with DAG("dag") as dag:
        _callable("one", job="j", uid="u")
        _submitted("two", **other)
    refuse_shared_uid("one", dag.tasks)
    with dag:
        _callable("three", job="j", uid="u")
    with pytest.raises(InvalidConfigurationError, match="'one' and 'three'"):
        refuse_shared_uid("one", dag.tasks)


def test_tasks_without_state_are_nobodys_siblings() -> None:
    with DAG("dag") as dag:
        _callable("one", uid="two")
        BaseOperator(task_id="two")
    refuse_shared_uid("one", dag.tasks)
    refuse_shared_uid("two", dag.tasks)
    assert uids_of(dag) == {"one": ("two",)}


def uids_of(dag: DAG) -> dict[str, tuple[str, ...]]:
    return uids_by_task(dag.tasks[0], dag.tasks, "dag/2026-01-01")


def test_the_uids_of_a_dag_are_those_of_its_checkpointed_tasks() -> None:
    with DAG("dag") as dag:
        _callable("one")
        _submitted("two", uid="second")
        BaseOperator(task_id="three")
        with TaskGroup("group"):
            CheckpointedStageOperator(task_id="four", stage=Stage("named"))
    assert uids_of(dag) == {"one": ("one",), "two": ("second",), "group.four": ("group.four",)}


@pytest.mark.parametrize(
    ("job_name", "found"),
    [
        ("sales", {"own", "same", "template"}),
        ("sales@what-if", {"own", "same", "template"}),
        ("dag/2026-01-01", {"own", "of the run", "template"}),
        ("test/sales", {"own", "same", "template"}),
    ],
)
def test_tasks_of_other_jobs_have_no_uid_in_this_one(job_name: str, found: set[str]) -> None:
    jobs = {"own": "refunds", "same": "sales", "other": "refunds", "of the run": None, "template": "{{ params.job }}"}
    with DAG("dag") as dag:
        for task_id, job in jobs.items():
            _callable(task_id.replace(" ", "_"), job=job)
    own = dag.task_dict["own"]
    assert uids_by_task(own, dag.tasks, job_name).keys() == {each.replace(" ", "_") for each in found}


def test_a_renamed_task_had_other_uids() -> None:
    with DAG("dag") as dag:
        _callable("one", renamed_uids={"zero": "one", "function": "other function"})
    assert uids_of(dag) == {"one": ("one", "zero")}


def test_a_uid_that_is_known_only_when_the_task_runs_is_none_of_the_dags() -> None:
    with DAG("dag") as dag:
        rendered = _callable("one", uid="sales {{ params.region }}")
        CheckpointedSparkSubmitOperator.partial(task_id="two", application="a.py").expand(uid=["x", "y"])
        CheckpointedSparkSubmitOperator.partial(task_id="three", application="a.py").expand_kwargs([{"map_key": "x"}])
    rendered.uid = "sales north"
    assert uids_of(dag) == {"one": (), "two": (), "three": ()}


def test_mapped_tasks_of_any_kind_are_known_by_their_uid_without_a_key() -> None:
    @task.checkpointed_spark(map_key="{{ item }}", renamed_uids={"routes": "lines"})
    def lines(spark: Any, item: str) -> None: ...

    with DAG("dag") as dag:
        CheckpointedSparkSubmitOperator.partial(task_id="one", application="a.py").expand(map_key=["x", "y"])
        CheckpointedSparkSubmitOperator.partial(task_id="two", application="a.py", uid="second").expand(map_key=["x"])
        lines.expand(item=["x", "y"])
    assert uids_of(dag) == {"one": ("one",), "two": ("second",), "lines": ("lines", "routes")}


@pytest.mark.parametrize(
    ("renamed", "key", "former"),
    [
        ({"old": "new", "a": "b"}, None, ("old",)),
        ({"old": "new"}, "x", ("old[x]",)),
        ({"old[y]": "new[x]"}, "x", ("old[y]",)),
        ({"a": "b"}, "x", ()),
        ({"first": "old", "old": "new"}, None, ("old", "first")),
        ({"first": "old", "old": "new"}, "x", ("old[x]", "first[x]")),
        ({"new": "old", "old": "new"}, None, ("old",)),
    ],
)
def test_an_instance_of_a_renamed_task_keeps_its_key(
    renamed: dict[str, str], key: str | None, former: tuple[str, ...]
) -> None:
    assert former_uids("new", renamed, key) == former
