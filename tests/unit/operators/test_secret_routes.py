"""
A secret in the errors of a task, looked for on each route by which a text leaves the process of the task.

The secret is one that Airflow does not know, and the function of the task quotes it in each notation.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk._shared import secrets_masker
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import MaskSecret, SetXCom

from airflow_provider_statecheck.api.metrics import AirflowMetrics
from airflow_provider_statecheck.checkpoint import masking
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.masking import remember_secrets
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.gateway.in_process import observed_store
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.operators import checkpointed
from airflow_provider_statecheck.operators.links import push_link
from airflow_provider_statecheck.plugins import statecheck as plugin
from airflow_provider_statecheck.spark.connectors.sql.databases import Database
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests import leaks
from tests.messages import ManualClock
from tests.sqlite_rows import engine_on, new_engine
from tests.unit.api.server import ApiServer
from tests.unit.operators.stand_in_spark import Task
from tests.unit.written_stage import JOB, WrittenStage

SECRET = 'c0rrect/h0rse"ü+b@ttery'
PASSWORD_IN_URL = quote(SECRET, safe="")
NOTATIONS = (
    SECRET,
    repr(SECRET),
    json.dumps(SECRET),
    PASSWORD_IN_URL,
    PASSWORD_IN_URL.replace("%2F", "/").lower(),
    base64.b64encode(f"ada:{SECRET}".encode()).decode(),
)
TEXT = f"cannot log in with {' or '.join(NOTATIONS)}"

GIVEN: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
    "a setting of Spark": ({"config_kwargs": {"spark.hadoop.fs.s3a.access.key": SECRET}}, lambda: None),
    "an option of a source": ({}, lambda: HiddenOptions({"client": {"secret_access_key": SECRET}})),
    "an option of the storage": ({}, lambda: CheckpointStorage.open("memory://other", password=SECRET)),
    "the URL of a database": ({}, lambda: Database(f"postgresql+psycopg2://ada:{PASSWORD_IN_URL}@db/sales")),
    "the token of a driver": ({}, lambda: remember_secrets([SECRET])),
}
"""Arguments of the operator, and what the function of the task opens."""


@dataclass
class Told:
    """What a task has told, by the route."""

    error: BaseException | None = None
    sent: list[Any] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    logged: str = ""

    def send(self, msg: Any, **_: Any) -> None:
        """Take what the task sends to its supervisor."""
        self.sent.append(msg)

    def logged_by_airflow(self, text: str) -> str:
        """Return a text as the supervisor of the task logs it, which knows the secrets that the task has sent."""
        supervisor = secrets_masker.SecretsMasker()
        for each in self.sent:
            if isinstance(each, MaskSecret):
                supervisor.add_mask(each.value, each.name)
        return str(supervisor.redact(text))


class _Stats:
    """Metrics of Airflow that keep all that they are given."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self._told.metrics.append((name, args, kwargs))


@pytest.fixture(autouse=True)
def _no_secrets_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "known_secrets", masking.KnownSecrets())
    monkeypatch.setattr(secrets_masker._secrets_masker(), "patterns", set())
    monkeypatch.setattr(secrets_masker._secrets_masker(), "replacer", None)


@pytest.fixture(params=GIVEN)
def told(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Told:
    """Run a task whose checkpoint fails and whose function then fails, and return what it told."""
    told, clock, engine = Told(), ManualClock(), new_engine(tmp_path / "rows.db")
    store = observed_store(SqlJobStore(engine, clock), AirflowMetrics(_Stats(told)))
    stage = WrittenStage(CheckpointStorage.open(str(tmp_path / "base")), clock, store)
    arguments, open_it = GIVEN[request.param]
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", told, raising=False)
    task = Task(stage, monkeypatch)
    monkeypatch.setattr(checkpointed, "push_link", push_link)
    operator = task.operator(_failing(open_it, told, monkeypatch), tolerable_failed_checkpoints=5, **arguments)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"https://ada:{PASSWORD_IN_URL}@airflow.example/")
    context: Any = task.context()
    vars(context["ti"]).update(dag_id="nightly", run_id="run-1", task_id="task", map_index=-1)
    operator.render_template_fields(context)
    told.sent.append(task_runner._serialize_rendered_fields(operator))
    with caplog.at_level(logging.DEBUG), pytest.raises(AirflowFailException) as raised:
        operator.execute(context)
    told.error = raised.value
    plugin.on_task_instance_failed(SimpleNamespace(task=operator), raised.value)
    told.logged = caplog.text
    engine.dispose()
    return told


def _failing(open_it: Callable[[], object], told: Told, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def function(spark: Any, checkpoint: Any) -> None:
        open_it()
        for day in checkpoint.each("days", ["1", "2"]):
            with monkeypatch.context() as patch:
                if day == "2":
                    patch.setattr(CheckpointStorage, "write_bytes", _refusing)
                checkpoint.checkpoint()
        raise InvalidConfigurationError(TEXT)

    return function


def _refusing(*_: Any, **__: Any) -> None:
    from airflow_provider_statecheck.exceptions import StorageError

    raise StorageError(TEXT)


def _require_masked(places: list[leaks.Place], *, is_told: bool = True) -> None:
    """Require the error, unless the route has none, and no form of the secret."""
    assert leaks.find([SECRET], places) == []
    # Half a secret is a secret too.
    assert [place.name for place in places if b"h0rse" in place.content or b"b@ttery" in place.content] == []
    if is_told:
        assert any(b"cannot log in with ***" in place.content for place in places), places


def _place(name: str, content: object) -> leaks.Place:
    return leaks.Place(name, str(content).encode())


def test_the_notations_of_the_error_would_be_found() -> None:
    assert {leak.form for leak in leaks.find([SECRET], [_place("error", TEXT)])} == {
        "plain",
        "url",
        "base64",
        "literal",
    }


def test_the_error_that_callbacks_and_listeners_get_is_masked(told: Told) -> None:
    _require_masked([_place("text", told.error), _place("notation", repr(told.error))])


def test_the_log_of_the_task_is_masked_by_its_supervisor(told: Told) -> None:
    # The supervisor also logs the error that the function raised, as it is.
    _require_masked([_place("log", told.logged_by_airflow(TEXT))])


def test_the_records_that_this_package_logs_are_masked(told: Told) -> None:
    _require_masked([_place("log", told.logged)])


def test_rendered_fields_links_and_values_for_other_tasks_are_masked(told: Told) -> None:
    sent = [each for each in told.sent if not isinstance(each, MaskSecret)]
    assert [each.value for each in sent if isinstance(each, SetXCom)] == [
        "https://airflow.example/statecheck/dags/nightly/runs/run-1/tasks/task"
    ]
    assert len(sent) > 1
    _require_masked([_place("message to the supervisor", each) for each in sent], is_told=False)


def test_metrics_have_the_dag_the_task_and_the_transport_only(told: Told) -> None:
    assert {name for name, _, _ in told.metrics} >= {"incr", "gauge"}
    assert {tag for _, _, values in told.metrics for tag in values["tags"]} <= {"dag_id", "task_id", "transport"}
    _require_masked([_place("metric", each) for each in told.metrics], is_told=False)


def test_rows_are_masked(told: Told, tmp_path: Path) -> None:
    _require_masked([leaks.Place(path.name, path.read_bytes()) for path in tmp_path.glob("rows.db*")])


def test_files_of_checkpoints_have_no_secret(told: Told, tmp_path: Path) -> None:
    files = list(leaks.files(tmp_path / "base"))
    assert {Path(place.name).name for place in files} >= {"_metadata"}
    _require_masked(files, is_told=False)


def test_replies_of_the_api_are_masked(told: Told, tmp_path: Path) -> None:
    with ApiServer(engine_on(tmp_path / "rows.db")) as api:
        job_id = job_id_of(JOB)
        paths = (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/checkpoints", "/v1/jobs")
        replies = [api.call("GET", path, api.task_token()) for path in paths]
    assert [reply.status_code for reply in replies] == [200] * len(paths)
    _require_masked([leaks.Place(path, reply.content) for path, reply in zip(paths, replies, strict=True)])
