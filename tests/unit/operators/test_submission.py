"""
Submissions: with the command, the environment and the calls of Spark's own operator, and what is refused before them.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from airflow.providers.apache.spark.operators import spark_submit as spark_operators
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.hooks import relayed_stage, spark_settings, submitted_stage
from airflow_provider_statecheck.operators.checkpointed import StageTerminatedError
from airflow_provider_statecheck.operators.spark_submit import (
    CheckpointedSparkSubmitOperator,
    CheckpointedStageSubmitOperator,
)
from airflow_provider_statecheck.spark.driver.application import STAGE_APPLICATION
from airflow_provider_statecheck.spark.driver.attempts import Handover
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_registration

CLIENT = {"conn_type": "spark", "host": "spark://master", "port": 7077}
CLUSTER = {**CLIENT, "extra": {"deploy-mode": "cluster"}}
JAR = "/jobs/a.jar"
POLLS = 7

VALUES: dict[str, Any] = {
    "application": "/jobs/b.jar",
    "conf": {"spark.a": 1, "spark.b": True, "spark.c": ""},
    "conn_id": "other",
    "files": "/data/{{ ds }}.csv",
    "py_files": "/jobs/mine.zip",
    "archives": "/jobs/env.tar.gz#env",
    "driver_class_path": "/jars/driver.jar",
    "jars": "/jars/{{ ds }}.jar",
    "java_class": "Main",
    "packages": "org.example:a:1",
    "exclude_packages": "org.example:b",
    "repositories": "https://repository.example.com",
    "total_executor_cores": 8,
    "executor_cores": 2,
    "executor_memory": "2g",
    "driver_memory": "3g",
    "keytab": "/etc/{{ ds }}.keytab",
    "principal": "me@EXAMPLE.COM",
    "proxy_user": "you",
    "name": "named {{ ds }}",
    "num_executors": 4,
    "status_poll_interval": POLLS,
    "application_args": ["--day", "{{ ds }}"],
    "env_vars": {"MINE": "{{ ds }}"},
    "verbose": True,
    "spark_binary": "spark3-submit",
    "properties_file": "/etc/{{ ds }}.conf",
    "yarn_queue": "mine",
    "deploy_mode": "client",
    "use_krb5ccache": True,
    "post_submit_commands": ["curl -X POST localhost:15020/{{ ds }}"],
    "track_driver_via_k8s_api": True,
    "yarn_track_via_rm_api": True,
    "yarn_rm_auth": object(),
    "openlineage_inject_parent_job_info": True,
    "openlineage_inject_transport_info": True,
    "reconnect_on_retry": False,
    "durable": False,
}
"""A value other than the default for each argument of Spark's operator."""


class Stage:
    """An attempt of a driver that is not started."""

    def __init__(self) -> None:
        self.closed: list[tuple[Any, ...]] = []

    def register(self) -> Handover:
        return Handover(url="http://api", token="a token", registration=make_registration(), driver=DriverSettings())

    def close(self, *end: Any) -> None:
        self.closed.append(end)

    def log_checkpoints(self) -> None: ...

    @contextmanager
    def relaying(self) -> Iterator[None]:
        yield

    def adopt_running(self) -> None: ...

    def let_complete(self) -> None: ...

    def require_end(self) -> None: ...

    def was_cleared(self) -> bool:
        return False

    def kept(self) -> str:
        return "nothing"

    def stopped_with(self) -> None: ...

    def failure(self) -> str:
        return ""


class Process:
    """A process of spark-submit that has ended."""

    stdout = ("Submitted driver-20260101000000-0001\n",)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait(self) -> int:
        return 0

    def poll(self) -> int:
        return 0


@pytest.fixture
def attempt() -> Stage:
    """Return the attempt of the driver of any checkpointed operator."""
    return Stage()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attempt: Stage) -> list[tuple[str, Any]]:
    """Return what is started, and in what environment, by any operator; nothing is started for real."""
    started: list[tuple[str, Any]] = []

    def popen(command: list[str], env: dict[str, str] | None = None, **_: Any) -> Process:
        own = {name: value for name, value in (env or {}).items() if name == "MINE"}
        started.append(("submit", (command, own)))
        return Process()

    def run(command: list[str], **_: Any) -> Any:
        if command[0] == "curl":  # Python itself starts others
            started.append(("afterwards", command))
        return SimpleNamespace(stdout="", returncode=0)

    def prepare(operator: Any, _: Any) -> Any:
        operator.ship_package, operator.package_dir = False, str(tmp_path)
        return SimpleNamespace(
            registration=make_registration(), driver=None, on_overlap=None, storage=CheckpointStorage.open("memory://t")
        )

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(CheckpointedSparkSubmitOperator, "prepare", prepare)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda: nullcontext(str(tmp_path)))
    monkeypatch.setattr(submitted_stage, "driver_access", lambda _: nullcontext())
    monkeypatch.setattr(relayed_stage, "RelayedStage", lambda *_, **__: attempt)
    monkeypatch.setenv("KRB5CCNAME", "/tmp/krb5cc")
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(CLIENT))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(CLIENT | {"host": "spark://other"}))
    for name in ("parent_job", "transport"):
        monkeypatch.setattr(
            spark_operators,
            f"inject_{name}_information_into_spark_properties",
            lambda conf, context, name=name: {**conf, f"spark.openlineage.{name}": context["ds"]},
        )
    return started


def submitted(kind: type[SparkSubmitOperator], started: list[tuple[str, Any]], **arguments: Any) -> Any:
    """Return what the execution of an operator starts, or the error with which it ends."""
    started.clear()
    with DAG("d", schedule=None):
        operator = kind(task_id="t", **arguments)
    context: Any = {"ds": "2026-01-01", "task_state_store": None}
    operator.render_template_fields(context)
    try:
        operator.execute(context)
    except Exception as error:
        return type(error), str(error)
    assert operator._hook is not None
    return [*started], operator._hook._status_poll_interval, getattr(operator, "durable", None)


def test_every_argument_of_sparks_own_operator_has_a_value_here() -> None:
    parameters = inspect.signature(inspect.unwrap(SparkSubmitOperator.__init__)).parameters
    assert set(VALUES) == set(parameters) - {"self", "kwargs"}
    assert [name for name, value in VALUES.items() if value == parameters[name].default] == []


@pytest.mark.filterwarnings("ignore:.*reconnect_on_retry.*")
@pytest.mark.parametrize("name", VALUES)
def test_argument_has_the_effect_that_it_has_in_sparks_own_operator(started: Any, name: str) -> None:
    arguments = {"application": JAR, name: VALUES[name]}
    expected = submitted(SparkSubmitOperator, started, **arguments)
    assert submitted(CheckpointedSparkSubmitOperator, started, **arguments) == expected


@pytest.mark.filterwarnings("ignore:.*reconnect_on_retry.*")
@pytest.mark.parametrize("name", sorted(set(VALUES) - {"application", "application_args"}))
def test_argument_has_the_same_effect_on_a_submitted_stage(started: Any, name: str, tmp_path: Path) -> None:
    arguments = {name: VALUES[name]}
    expected = submitted(SparkSubmitOperator, started, application="A", application_args=["a:b"], **arguments)
    found = submitted(CheckpointedStageSubmitOperator, started, stage="a:b", **arguments)
    scripts = [str(path) for path in tmp_path.rglob(STAGE_APPLICATION)]
    assert repr(found).replace(next(iter(scripts), "A"), "A") == repr(expected)


def test_lineage_is_injected_into_the_command(started: Any) -> None:
    submitted(CheckpointedSparkSubmitOperator, started, application=JAR, openlineage_inject_parent_job_info=True)
    [(_, (command, _))] = started
    assert "spark.openlineage.parent_job=2026-01-01" in command


def test_templates_are_those_of_sparks_own_operator() -> None:
    own, theirs = CheckpointedSparkSubmitOperator, SparkSubmitOperator
    assert set(theirs.template_fields) <= set(own.template_fields)
    for name in ("template_ext", "template_fields_renderers", "external_id_key", "ui_color"):
        assert getattr(own, name) == getattr(theirs, name)


def test_each_try_submits_with_settings_of_its_own(started: Any) -> None:
    """Airflow's tests of Dags execute one operator several times."""
    operator = CheckpointedSparkSubmitOperator(task_id="t", application=JAR)
    for value in ("1", "2"):
        operator.conf = {"spark.a": value}
        operator.execute({"task_state_store": None})  # type: ignore[typeddict-item]
    assert [("spark.a=1" in command, "spark.a=2" in command) for _, (command, _) in started] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"conf": {"spark.driver.memory": None}}, r"for conf\['spark.driver.memory'\], found None"),
        ({"conf": {"spark.driver.memory": "None"}}, r"for conf\['spark.driver.memory'\], found 'None'"),
        ({"conf": "{'spark.a': 1}"}, "Expected a mapping as conf, found str"),
        ({"env_vars": {"MINE": None}}, r"for env_vars\['MINE'\], found None"),
        ({"application_args": ["--day", None]}, r"for application_args\[1\], found None"),
        ({"application_args": "['--day']"}, "Expected a list as application_args, found str"),
        ({"deploy_mode": "clustre"}, "as deploy_mode, .* found 'clustre'"),
        ({"transport": "post"}, "transport to be http or mailbox, found 'post'"),
        ({"transport": "in_process"}, "transport to be http or mailbox, found 'in_process'"),
        ({"mailbox_patience": "-1 s"}, "mailbox_patience above 0, found '-1 s'"),
        ({"mailbox_patience": "long"}, "mailbox_patience to be milliseconds, .* found 'long'"),
    ],
)
def test_argument_that_spark_would_refuse_is_told_by_name_before_the_submission(
    started: Any, arguments: Any, message: str
) -> None:
    operator = CheckpointedSparkSubmitOperator(task_id="t", application=JAR, **arguments)
    with pytest.raises(AirflowFailException, match=message):
        operator.execute({"task_state_store": None})  # type: ignore[typeddict-item]
    assert started == []


def test_numbers_are_arguments_of_an_application_too(started: Any) -> None:
    submitted(CheckpointedSparkSubmitOperator, started, application=JAR, application_args=["--day", 3])
    assert started[0][1][0][-2:] == ["--day", "3"]


PLACES = {
    "checked_settings": spark_settings,
    "was_cleared": Stage,
    "_get_hook": SparkSubmitOperator,
    "poll_until_complete": CheckpointedSparkSubmitOperator,
    "register": Stage,
}


@pytest.mark.parametrize("place", PLACES)
def test_task_that_is_told_to_end_ends_there_and_closes_its_attempt(
    started: Any, attempt: Stage, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    # Airflow's signal handler calls it wherever the main thread is.
    operator = CheckpointedSparkSubmitOperator(task_id="t", application=JAR, deploy_mode="cluster", durable=False)
    store = SimpleNamespace(get=lambda _: "driver-1") if place == "was_cleared" else None
    monkeypatch.setattr(PLACES[place], place, lambda *_: operator.on_kill())
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(CLUSTER))
    with pytest.raises(StageTerminatedError):
        operator.execute({"task_state_store": store})  # type: ignore[typeddict-item]
    is_begun = place not in ("checked_settings", "was_cleared")
    assert [end[0] for end in attempt.closed] == ([AttemptStatus.FAILED] if is_begun else [])
    operator.on_kill()


def test_error_that_is_no_failure_closes_the_attempt_as_what_its_task_becomes(
    started: Any, attempt: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow retries a task whose process exits."""

    def exit_(*_: Any) -> None:
        raise SystemExit(0)

    operator = CheckpointedSparkSubmitOperator(task_id="t", application=JAR)
    monkeypatch.setattr(SparkSubmitOperator, "execute", exit_)
    with pytest.raises(SystemExit):
        operator.execute({"task_state_store": None})  # type: ignore[typeddict-item]
    assert attempt.closed == [(AttemptStatus.FAILED, "SystemExit: 0")]


def test_task_that_fails_after_its_driver_has_succeeded_has_a_failed_attempt(started: Any, attempt: Stage) -> None:
    operator = CheckpointedSparkSubmitOperator(task_id="t", application=JAR)
    operator.execute({"task_state_store": None})  # type: ignore[typeddict-item]
    attempt.closed.clear()
    operator.fail_after_end(ValueError("of a callback"))
    [end] = attempt.closed
    assert end[:2] == (AttemptStatus.FAILED, "ValueError: of a callback")
